//! Where the library is.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::settings::LIBRARY_VARIABLE;

/// File name of the library.
const NAME: &str = "libunderpass.so";
/// Where an installation has it, seen from the directory of the command; the first is that of a build.
const PLACES: [&str; 3] = [".", "../lib/underpass", "../lib"];
/// The loader's variable.
pub const PRELOAD: &str = "LD_PRELOAD";

/// Why there is no library to load. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is in none of its places.
    #[error("cannot find {NAME}; it was looked for in\n{}\nbuild it (`cargo build --release`), put it in one of these places, or say where it is with {LIBRARY_VARIABLE}=PATH", list(.0))]
    Nowhere(Vec<PathBuf>),
    /// The file that was named cannot be used.
    #[error(
        "cannot use the library {path}, which {LIBRARY_VARIABLE} names: {error}; without that variable {NAME} is looked for beside the command"
    )]
    Unusable {
        /// The file.
        path: String,
        /// The system's words.
        error: io::Error,
    },
    /// The loader takes spaces and colons for the end of a path.
    #[error(
        "the library's path {0:?} has a space or a colon, which {PRELOAD} cannot express; make a link to it without, and name that with {LIBRARY_VARIABLE}"
    )]
    Path(PathBuf),
}

/// The library's absolute path, fit for [`PRELOAD`].
pub fn find() -> Result<PathBuf, LibraryError> {
    let path = match env::var_os(LIBRARY_VARIABLE).filter(|v| !v.is_empty()) {
        Some(named) => {
            let unusable = |error| LibraryError::Unusable { path: named.to_string_lossy().into_owned(), error };
            let path = std::path::absolute(&named).map_err(unusable)?;
            is_library(&path).map_err(unusable)?;
            path
        }
        None => {
            let command = env::current_exe().unwrap_or_default();
            let beside = command.parent().unwrap_or(Path::new("/"));
            let places: Vec<PathBuf> = PLACES.iter().map(|p| plain(&beside.join(p).join(NAME))).collect();
            let found = places.iter().find(|p| is_library(p).is_ok()).cloned();
            found.ok_or(LibraryError::Nowhere(places))?
        }
    };
    let bytes = path.as_os_str().as_bytes();
    if bytes.iter().any(|b| b.is_ascii_whitespace() || *b == b':') { Err(LibraryError::Path(path)) } else { Ok(path) }
}

/// The loader's variable with the library first, and whatever it had.
pub fn preload(library: &Path) -> OsString {
    let had = env::var_os(PRELOAD).unwrap_or_default();
    let mut entries = had.as_bytes().split(|b| matches!(b, b' ' | b':')).filter(|e| !e.is_empty());
    if entries.clone().next().is_none() {
        return library.into();
    }
    if entries.any(|e| e == library.as_os_str().as_bytes()) {
        return had;
    }
    OsString::from_vec([library.as_os_str().as_bytes(), b":", had.as_bytes()].concat())
}

/// The first bytes tell a library from a text that a careless copy left.
fn is_library(path: &Path) -> io::Result<()> {
    let mut magic = [0; 4];
    File::open(path)?.read_exact(&mut magic).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("it is not a library"),
        _ => e,
    })?;
    if magic == *b"\x7fELF" { Ok(()) } else { Err(io::Error::other("it is not a library")) }
}

/// The path without `.` and `..`, for people.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

fn list(places: &[PathBuf]) -> String {
    places.iter().map(|p| format!("  {}", p.display())).collect::<Vec<_>>().join("\n")
}

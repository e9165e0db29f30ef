//! Where the library is.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, SHT_DYNSYM, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{Endianness, ReadCache, ReadRef};

use crate::failure::Failure;
use crate::settings::LIBRARY_VARIABLE;

/// File name of the library.
const NAME: &str = "libunderpass.so";
/// Where an installation has it, seen from the directory of the command; the first is that of a build.
const PLACES: [&str; 3] = [".", "../lib/underpass", "../lib"];
/// What the library's file name must contain: by that, an accelerated program that executes another one tells whether
/// that one loads the library too.
const MARK: &str = "libunderpass";
/// And what has to be its end: a compiler that works on Underpass has many files with names like that mapped.
const ENDING: &str = ".so";
/// What the library exports, that it may be known from others.
const SYMBOL: &[u8] = b"UNDERPASS_LIBRARY";
/// The loader's variable.
pub const PRELOAD: &str = "LD_PRELOAD";

/// Why there is no library to load. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is in none of its places.
    #[error("cannot find {NAME}; it was looked for in\n{}\nbuild it (`cargo build --release`), put it in one of these \
             places, or say where it is with {LIBRARY_VARIABLE}=PATH", list(.0))]
    Nowhere(Vec<(PathBuf, io::Error)>),
    /// It cannot be found out where the command itself is.
    #[error(
        "cannot tell where the command is, beside which {NAME} is looked for, since /proc/self/exe cannot be read \
         ({0}); mount /proc, or say where the library is with {LIBRARY_VARIABLE}=PATH"
    )]
    NoProc(io::Error),
    /// The file that was named cannot be used.
    #[error(
        "cannot use the library {path}, which {LIBRARY_VARIABLE} names: {error}; without that variable {NAME} is \
         looked for beside the command"
    )]
    Unusable {
        /// The file.
        path: String,
        /// The system's words.
        error: io::Error,
    },
    /// The loader takes spaces and colons for the end of a path.
    #[error(
        "the library's path {0:?} has a space or a colon, which {PRELOAD} cannot express; make a link to it without, \
         and name that with {LIBRARY_VARIABLE}"
    )]
    Path(PathBuf),
    /// The library goes by its file's name.
    #[error(
        "the library's file name {0:?} must have \"{MARK}\" in it and end in \"{ENDING}\": by that a program tells \
         whether the one that it executes loads the library too; give the file such a name"
    )]
    Name(PathBuf),
}

impl From<LibraryError> for Failure {
    fn from(error: LibraryError) -> Failure {
        Failure::Failed(error.into())
    }
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
            let command = env::current_exe().map_err(LibraryError::NoProc)?;
            let beside = command.parent().unwrap_or(Path::new("/"));
            let mut places = PLACES.iter().map(|p| plain(&beside.join(p).join(NAME)));
            let mut refused = Vec::new();
            let found = places.find_map(|p| match is_library(&p) {
                Ok(()) => Some(p),
                Err(error) => {
                    refused.push((p, error));
                    None
                }
            });
            found.ok_or(LibraryError::Nowhere(refused))?
        }
    };
    let bytes = path.as_os_str().as_bytes();
    if bytes.iter().any(|b| b.is_ascii_whitespace() || *b == b':') {
        return Err(LibraryError::Path(path));
    }
    // LD_PRELOAD has the name of a link, and /proc/PID/maps that of the file.
    let is_marked = |path: &Path| path.file_name().is_some_and(|name| is_library_name(&name.to_string_lossy()));
    let file = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    if let Some(unmarked) = [&path, &file].into_iter().find(|path| !is_marked(path)) {
        return Err(LibraryError::Name(unmarked.clone()));
    }
    Ok(path)
}

/// Whether a file of this name is the library, as far as a name tells. /proc/PID/maps marks a file that was replaced as
/// deleted.
pub fn is_library_name(name: &str) -> bool {
    name.contains(MARK) && name.trim_end_matches(" (deleted)").ends_with(ENDING)
}

/// The loader's variable with the library first, then what it had before, without other copies of the library: each
/// copy would carry every connection.
pub fn preload(library: &Path) -> OsString {
    let had = env::var_os(PRELOAD).unwrap_or_default();
    let library = library.as_os_str().as_bytes();
    let is_copy = |e: &[u8]| e != library && Path::new(OsStr::from_bytes(e)).file_name() == Some(OsStr::new(NAME));
    let entries = had.as_bytes().split(|b| matches!(b, b' ' | b':')).filter(|e| !e.is_empty() && !is_copy(e));
    let mut entries: Vec<&[u8]> = entries.collect();
    if !entries.contains(&library) {
        entries.insert(0, library);
    }
    OsString::from_vec(entries.join(&b':'))
}

/// The loader's variable without any copy of the library.
pub fn without() -> OsString {
    let had = env::var_os(PRELOAD).unwrap_or_default();
    let is_ours = |e: &[u8]| {
        Path::new(OsStr::from_bytes(e)).file_name().is_some_and(|name| name.to_string_lossy().contains(MARK))
    };
    let entries = had.as_bytes().split(|b| matches!(b, b' ' | b':')).filter(|e| !e.is_empty() && !is_ours(e));
    OsString::from_vec(entries.collect::<Vec<_>>().join(&b':'))
}

/// Tells the library from another library, from a text, and from the part of a library that a broken copy left: the
/// loader would pass these over, or load a library that carries no connection.
fn is_library(path: &Path) -> io::Result<()> {
    // To open what is no file may take for ever.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = ReadCache::new(File::open(path)?);
    if (&file).read_bytes_at(0, 4) != Ok(b"\x7fELF") {
        return Err(io::Error::other("it is not a library"));
    }
    let is_whole = || {
        let header = FileHeader64::<Endianness>::parse(&file).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &file).ok()?;
        // The sections' table is what a file ends with.
        let sections = header.sections(endian, &file).ok()?;
        let length = (&file).len().ok()?;
        let ends = segments.iter().map(|s| s.p_offset(endian).saturating_add(s.p_filesz(endian)));
        if segments.is_empty() || ends.max() > Some(length) {
            return None;
        }
        let symbols = sections.symbols(endian, &file, SHT_DYNSYM).ok()?;
        let is_ours = |symbol: &Sym64<Endianness>| {
            !symbol.is_undefined(endian) && symbols.symbol_name(endian, symbol) == Ok(SYMBOL)
        };
        Some(symbols.iter().any(is_ours))
    };
    match is_whole() {
        Some(true) => Ok(()),
        Some(false) => Err(io::Error::other("it is another library or program, or one of before this version")),
        None => Err(io::Error::other("it is a part of a library, or one for another kind of processor")),
    }
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

fn list(places: &[(PathBuf, io::Error)]) -> String {
    let lines = places.iter().map(|(path, error)| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => format!("  {}", path.display()),
        _ => format!("  {} ({error})", path.display()),
    });
    lines.collect::<Vec<_>>().join("\n")
}

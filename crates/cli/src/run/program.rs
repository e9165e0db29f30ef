//! Finding the program as a shell would, and the file that the kernel will run in the end.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::{settings, sys};

/// Where programs are when PATH is not set: glibc's own choice (confstr(3), `_CS_PATH`).
const USUAL_PATH: &str = "/bin:/usr/bin";
/// The shell that runs a script without a first line of its own, as execvp(3) has it.
const SHELL: &str = "/bin/sh";
/// What the kernel reads of a file to see what it is (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
/// Interpreters that are scripts themselves, one after another; the kernel gives up at five.
const DEPTH: usize = 5;

/// Why a program cannot be run. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No directory of PATH has it.
    #[error("{name}: there is no such program in PATH{}", hint(.suggestion.as_deref()))]
    NotInPath {
        /// As it was written.
        name: String,
        /// A program that exists and whose name looks like this one.
        suggestion: Option<String>,
    },
    /// The path leads nowhere.
    #[error("{0}: there is no such file")]
    NoFile(String),
    /// There is no name.
    #[error("the program's name is empty")]
    Nameless,
    /// The path leads to something else than a file.
    #[error("{name}: not a regular file ({error})")]
    NotRegular {
        /// As it was written.
        name: String,
        /// The system's words.
        error: io::Error,
    },
    /// The path leads to a directory.
    #[error("{0}: that is a directory, not a program")]
    Directory(String),
    /// The file may not be executed.
    #[error("{name}: not executable ({error}); `chmod +x` makes it so, if it is yours")]
    NotExecutable {
        /// As it was written.
        name: String,
        /// The system's words.
        error: io::Error,
    },
    /// The path leads where this user cannot look, or in a circle.
    #[error("{name}: cannot be reached ({error}); `namei -l` shows what is on the way")]
    OutOfReach {
        /// As it was written.
        name: String,
        /// The system's words.
        error: io::Error,
    },
    /// The script's first line names a program that is not there.
    #[error("{name}: its first line asks for {interpreter}, which is not there{}", windows(.interpreter))]
    NoInterpreter {
        /// As it was written.
        name: String,
        /// The missing one.
        interpreter: String,
    },
    /// The kernel would not run it.
    #[error("{name}: the system cannot run it ({error}{})", missing_loader(.error))]
    Refused {
        /// As it was written.
        name: String,
        /// The system's words.
        error: io::Error,
    },
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Failure {
        match error {
            ProgramError::NotInPath { .. }
            | ProgramError::NoFile(_)
            | ProgramError::Nameless
            | ProgramError::NoInterpreter { .. } => Failure::NoProgram(error.into()),
            _ => Failure::NotExecutable(error.into()),
        }
    }
}

/// The file that `name` means: itself if it has a slash, else the first in PATH that may be executed.
pub fn find(name: &OsStr) -> Result<PathBuf, ProgramError> {
    let shown = name.to_string_lossy().into_owned();
    if name.is_empty() {
        return Err(ProgramError::Nameless);
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match usable(&path) {
            Ok(()) => Ok(path),
            Err(_) if path.is_dir() => Err(ProgramError::Directory(shown)),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(ProgramError::NoFile(shown))
            }
            Err(error) => Err(not_executable(&path, shown, error)),
        };
    }
    let mut refused = None;
    for path in directories().into_iter().map(|d| d.join(name)) {
        match usable(&path) {
            Ok(()) => return Ok(path),
            // If several files are refused, the last one is named, as a shell does; a directory is passed over in
            // silence.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = Some((path, error)),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some((path, error)) => not_executable(&path, path.display().to_string(), error),
        None => ProgramError::NotInPath { suggestion: similar(&shown), name: shown },
    })
}

/// What the kernel will run for a program file: itself, or the interpreter of a script.
#[derive(Debug)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// Whether execve(2) would refuse it and a shell has to be called, as execvp(3) does.
    pub needs_shell: bool,
}

/// Follows the first lines of scripts (and `env` in them) to the file that is a program in the machine's own language.
///
/// A file that cannot be read, or of an unknown kind, stands for itself: the kernel may know more (binfmt_misc).
pub fn image(name: &OsStr, path: &Path) -> Result<Image, ProgramError> {
    let mut path = path.to_path_buf();
    for _ in 0..DEPTH {
        let mut buffer = [0; HEAD];
        let Ok(length) = File::open(&path).and_then(|mut f| f.read(&mut buffer)) else { break };
        let head = &buffer[..length];
        // Text is what has no NUL byte in its first line; shells use the same rule.
        let first = head.split(|&b| b == b'\n').next().unwrap_or_default();
        let Some(line) = first.strip_prefix(b"#!").map(|line| line.trim_ascii_start()).filter(|line| !line.is_empty())
        else {
            let text = !head.starts_with(b"\x7fELF") && !first.contains(&0);
            let path = if text { SHELL.into() } else { path };
            return Ok(Image { path, needs_shell: text });
        };
        let name = || name.to_string_lossy().into_owned();
        path = interpreter(line).ok_or_else(|| ProgramError::NoInterpreter {
            name: name(),
            interpreter: String::from_utf8_lossy(line).trim_end_matches([' ', '\t']).replace('\r', "\\r"),
        })?;
        // To open what is no file may take for ever.
        usable(&path).map_err(|error| ProgramError::Refused { name: name(), error })?;
    }
    Ok(Image { path, needs_shell: false })
}

/// Replaces this process by the program; returns only on failure.
pub fn exec(path: &Path, image: &Image, command: &[OsString]) -> ProgramError {
    let arguments: Vec<&OsStr> = command.iter().map(OsString::as_os_str).collect();
    let mut error = sys::exec(path, &arguments);
    if image.needs_shell && error.raw_os_error() == Some(libc::ENOEXEC) {
        let mut arguments = arguments.clone();
        arguments.splice(..1, [OsStr::new(SHELL), path.as_os_str()]);
        error = sys::exec(Path::new(SHELL), &arguments);
    }
    ProgramError::Refused { name: command[0].to_string_lossy().into_owned(), error }
}

fn usable(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    // As execve(2) has it.
    if kind.is_file() { sys::executable(path) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}

fn not_executable(path: &Path, name: String, error: io::Error) -> ProgramError {
    match fs::metadata(path) {
        Err(_) => ProgramError::OutOfReach { name, error },
        Ok(meta) if !meta.is_file() => ProgramError::NotRegular { name, error },
        Ok(_) => ProgramError::NotExecutable { name, error },
    }
}

fn directories() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    env::split_paths(&path).map(|d| if d.as_os_str().is_empty() { ".".into() } else { d }).collect()
}

/// The program named by what follows `#!`; `env` is followed to the program that it looks up.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&b| b == b'\n').next()?;
    let mut words = line.split(|b| matches!(b, b' ' | b'\t')).filter(|w| !w.is_empty());
    let path = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    let path = path.exists().then_some(path)?;
    if path.file_name() == Some(OsStr::new("env")) {
        let sought = words.find(|w| !w.starts_with(b"-") && !w.contains(&b'='));
        if let Some(found) = sought.and_then(|w| find(OsStr::from_bytes(w)).ok()) {
            return Some(found);
        }
    }
    Some(path)
}

/// A program in PATH whose name looks like `name`. Reads all of PATH, so it is for errors only.
fn similar(name: &str) -> Option<String> {
    let entries = directories().into_iter().filter_map(|d| fs::read_dir(d).ok()).flatten().flatten();
    let names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    let nearest = settings::nearest(name, names.iter().map(String::as_str))?;
    // Among thousands of names, some name is always a little alike.
    (strsim::damerau_levenshtein(name, &nearest) <= 2).then_some(nearest)
}

/// The file was there a moment ago, so that it is another one which the system misses.
fn missing_loader(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::NotFound { ": the loader that it asks for is not installed" } else { "" }
}

/// What the interpreter of a script with the line ends of Windows looks like.
fn windows(interpreter: &str) -> &'static str {
    if interpreter.ends_with("\\r") {
        ": the lines end as on Windows, with a carriage return that belongs to the name; `sed -i 's/\\r$//' FILE` \
         removes it"
    } else {
        ""
    }
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map(|s| format!("; did you mean {s}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_followed_through_env() {
        assert_eq!(interpreter(b"/bin/sh -e\nrest"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b" /bin/sh\r\n"), None, "as the kernel has it");
        assert_eq!(interpreter(b"/bin/sh -e\r\n"), Some("/bin/sh".into()));
        let sh = find(OsStr::new("sh")).unwrap();
        assert_eq!(interpreter(b"/usr/bin/env sh\n"), Some(sh.clone()));
        assert_eq!(interpreter(b"/usr/bin/env -S A=1 sh -u\n"), Some(sh));
        assert_eq!(interpreter(b"/usr/bin/env no-such-program\n"), Some("/usr/bin/env".into()));
        assert_eq!(interpreter(b"/no/such/file\n"), None);
        assert_eq!(interpreter(b"\n"), None);
    }
}

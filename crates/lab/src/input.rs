//! Files that a user names to be read: opened at once whatever they are, and read no further than they may be.

use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Largest record that is read: many times the largest that any suite writes.
pub const MOST_OF_RECORD: u64 = 64 << 20;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It may have no end, or none who writes it.
    #[error("it is {0} and no regular file; save in a file what it has to say, and name that")]
    NotRegular(&'static str),
    /// It has more than it may have.
    #[error("it has more than {} MiB", .0 >> 20)]
    TooLarge(u64),
}

/// Opens a regular file.
///
/// # Errors
/// [`InputError`], but for its size.
pub fn open(path: &Path) -> Result<File, InputError> {
    // Merely to open a device may do something, and to open a pipe waits for its writer.
    regular(fs::metadata(path)?.file_type())?;
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    // By now another file may have this name.
    regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a regular file of at most so many bytes.
///
/// # Errors
/// [`InputError`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, InputError> {
    read_from(&open(path)?, most)
}

/// Reads what is left of a file, if that is at most so many bytes.
///
/// # Errors
/// [`InputError`].
pub fn read_from(file: &File, most: u64) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(InputError::TooLarge(most)) } else { Ok(bytes) }
}

fn regular(kind: FileType) -> Result<(), InputError> {
    let name = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(InputError::NotRegular(name))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// Files that have no end, or that nobody writes, with what they are.
    pub(crate) fn endless(folder: &Path) -> [(PathBuf, &'static str); 3] {
        let pipe = folder.join("pipe");
        if !pipe.exists() {
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        }
        [(pipe, "a pipe"), ("/dev/zero".into(), "a device"), (folder.into(), "a folder")]
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for (path, what) in endless(folder.path()) {
            let error = read(&path, 10).unwrap_err().to_string();
            assert!(error.starts_with(&format!("it is {what} and no regular file")), "{error}");
        }
        assert!(matches!(read(&folder.path().join("none"), 10), Err(InputError::System(_))));
    }

    #[test]
    fn no_more_is_read_than_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(read(&path, 10).unwrap(), b"0123456789");
        assert!(matches!(read(&path, 9), Err(InputError::TooLarge(9))));
    }
}

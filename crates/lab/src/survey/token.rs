//! The secret that coordinator and agents share.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::replace::beside;

/// Fewest octets of a token.
const LEAST: usize = 16;
/// Most octets that are read.
const MOST: u64 = 4096;

/// A shared secret. It is never printed, and never sent.
#[derive(Clone)]
pub struct Token(Vec<u8>);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be used.
    #[error("cannot read the token file {}: {error}; `underpass agent` makes it if it is not there", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// Others may read it.
    #[error("the token file {} has the mode {mode:04o}, so that others can read it; run chmod 600, and make a new \
             token if others were here", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user can change it.
    #[error("the token file {} belongs to user {owner}; it must belong to the user who runs this", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// It is too short to be secret, or too long to be one.
    #[error("the token file {} has {length} bytes; a token has from {LEAST} to {MOST}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Octets without blanks around.
        length: usize,
    },
}

impl Token {
    /// What both ends have where the way between them is trusted: standard input and output of a program that the
    /// coordinator started itself.
    pub fn none() -> Token {
        Token(Vec::new())
    }

    /// Reads a token from a file with the mode 0600 that belongs to this user. Blanks around it do not count.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let broken = |error| TokenError::File { path: path.into(), error };
        // A pipe, too, is opened at once, and refused.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(broken)?;
        // The open file is looked at, so that no other file can take its place between the look and the read.
        let meta = file.metadata().map_err(broken)?;
        if !meta.is_file() {
            return Err(broken(io::Error::other("it is not a file")));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(TokenError::Mode { path: path.into(), mode: meta.mode() & 0o7777 });
        }
        if meta.uid() != geteuid().as_raw() {
            return Err(TokenError::Owner { path: path.into(), owner: meta.uid() });
        }
        let mut text = Vec::new();
        file.take(MOST + 1).read_to_end(&mut text).map_err(broken)?;
        let token = text.trim_ascii();
        if token.len() < LEAST || token.len() as u64 > MOST {
            return Err(TokenError::Length { path: path.into(), length: token.len() });
        }
        Ok(Token(token.to_vec()))
    }

    /// Makes a file with a new random token, mode 0600, unless there is a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn make(path: &Path) -> Result<(), TokenError> {
        let make = || {
            let mut file = beside(path, 0o600)?;
            // The umask may have taken away even from that.
            file.as_file().set_permissions(Permissions::from_mode(0o600))?;
            let text: String = random()?.iter().map(|octet| format!("{octet:02x}")).collect();
            writeln!(file, "{text}")?;
            // The file appears whole or not at all, for another agent that is started here now.
            file.persist_noclobber(path).map(drop).map_err(|error| error.error)
        };
        if path.exists() {
            return Ok(());
        }
        match make() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(TokenError::File { path: path.into(), error }),
            Ok(()) => Ok(()),
        }
    }

    pub(super) fn octets(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token")
    }
}

/// Octets that cannot be guessed.
pub(super) fn random() -> io::Result<[u8; 32]> {
    let mut octets = [0; 32];
    let mut filled = 0;
    while filled < octets.len() {
        filled += getrandom(&mut octets[filled..], GetRandomFlags::empty())?;
    }
    Ok(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Agents that are started at once in one folder all have the same.
    #[test]
    fn a_token_that_is_being_made_is_not_read_in_part() {
        for _ in 0..50 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("token");
            let make = || {
                Token::make(&path).unwrap();
                Token::read(&path).unwrap().octets().to_vec()
            };
            std::thread::scope(|scope| {
                let all = [(); 4].map(|()| scope.spawn(make)).map(|thread| thread.join().unwrap());
                assert!(all.iter().all(|token| *token == all[0]));
            });
        }
    }

    #[test]
    fn only_a_file_of_ones_own_that_others_cannot_read_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::read(&path).unwrap_err().to_string().contains("`underpass agent` makes it"));
        Token::make(&path).unwrap();
        let first = Token::read(&path).unwrap();
        assert_eq!(first.octets().len(), 64);
        assert!(!format!("{first:?}").contains(std::str::from_utf8(first.octets()).unwrap()), "never printed");
        Token::make(&path).unwrap();
        assert_eq!(Token::read(&path).unwrap().octets(), first.octets(), "a token that is there stays");

        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let message = Token::read(&path).unwrap_err().to_string();
        assert!(message.contains("mode 0640") && message.contains("chmod 600"), "{message}");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "  short \n").unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::Length { length: 5, .. })));
        std::fs::write(&path, vec![b'x'; 5000]).unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::Length { .. })));
        assert!(matches!(Token::read(folder.path()), Err(TokenError::File { .. })), "a folder");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(Token::read(&pipe).unwrap_err().to_string().contains("it is not a file"));
    }
}

//! What is wrong with a policy.

use std::io;
use std::path::PathBuf;

/// Why there is no policy. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No such file.
    #[error("there is no policy {}; write it (an empty file says the default), or name another by \
             --policy", .0.display())]
    Missing(PathBuf),
    /// It cannot be read.
    #[error("cannot read the policy {}: {error}; let root own it, with mode 0644, in folders that all may \
             enter", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// The path names no regular file.
    #[error("{} is no regular file; write the policy into one", .0.display())]
    NoFile(PathBuf),
    /// A user who is not trusted owns the file, or a folder above it.
    #[error("{} belongs to user {owner}, who could change the policy: chown root {}", path.display(), path.display())]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others than its owner may change it, or replace it in a folder above it.
    #[error("others than its owner could change the policy by {} (mode {mode:04o}): chmod go-w \
             {}", path.display(), path.display())]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is too long.
    #[error("the policy {} has more than 1 MiB; let rules name groups of users", .0.display())]
    TooLong(PathBuf),
    /// It says something else than it may.
    #[error("{place}: {message}")]
    Content {
        /// File and line.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// The policy names a user or group that does not exist.
    #[error("{place}: there is no {what} {name}; make it ({what}add), or correct the name")]
    Nobody {
        /// File and line.
        place: String,
        /// "user" or "group".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The system does not say whom it names.
    #[error("{place}: cannot find out which {what} {name} is ({error}); see to nsswitch.conf, or write the number")]
    LookUp {
        /// File and line.
        place: String,
        /// "user" or "group".
        what: &'static str,
        /// The name.
        name: String,
        /// The system's words.
        error: io::Error,
    },
}

impl PolicyError {
    /// Whether it stays until somebody changes the policy. Users and groups may come from a server that does not answer
    /// yet.
    pub fn is_lasting(&self) -> bool {
        match self {
            PolicyError::Missing(_) | PolicyError::NoFile(_) | PolicyError::TooLong(_) => true,
            PolicyError::Owner { .. } | PolicyError::Writable { .. } | PolicyError::Content { .. } => true,
            PolicyError::Unreadable { .. } | PolicyError::Nobody { .. } | PolicyError::LookUp { .. } => false,
        }
    }
}

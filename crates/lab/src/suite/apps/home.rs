//! Servers that refuse to run as root: root runs them, and what loads them, as another user.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::geteuid;
use tempfile::TempDir;

use super::folder;
use crate::bench::{LIMIT, Lab};
use crate::launcher::{Launcher, Session, Side};
use crate::process::finish;
use crate::witness::User;

/// The user `account`, for a server that refuses to run as root; `None` if this process is not root's and can run the
/// server itself.
///
/// # Errors
/// There is no such account.
pub fn other_than_root(account: &str) -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let number = |option: &str| -> Result<u32> {
        let id = finish(Command::new("id").args([option, account]), LIMIT);
        let id = id.with_context(|| format!("there is no user {account}, and the server refuses to run as root"))?;
        Ok(id.stdout.trim().parse()?)
    };
    Ok(Some(User { id: number("-u")?, group: number("-g")? }))
}

/// A folder of that user's, and a launcher whose library the user can read: it lies there too.
#[derive(Debug)]
pub struct Home {
    user: Option<User>,
    folder: TempDir,
    launcher: Launcher,
}

impl Home {
    /// A folder with the library.
    ///
    /// # Errors
    /// There is no place for it.
    pub fn of(user: Option<User>, lab: &Lab) -> Result<Home> {
        let folder = folder()?;
        let library = folder.path().join("libunderpass.so");
        fs::copy(lab.launcher.library(), &library).context("copying the library for the server's user")?;
        if let Some(User { id, group }) = user {
            chown(folder.path(), Some(id), Some(group))?;
        }
        Ok(Home { user, folder, launcher: lab.launcher.with_library(library) })
    }

    /// The folder, which goes with this.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What one sample on `side` is started in.
    ///
    /// # Errors
    /// There is no shared memory for the counters.
    pub fn session(&self, side: Side) -> Result<Session<'_>> {
        self.launcher.session_of(side, self.user)
    }

    /// `command` as the user, in the folder.
    pub fn owned<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(User { id, group }) = self.user {
            command.uid(id).gid(group);
        }
        command.current_dir(self.path())
    }
}

//! The Unix socket that clients connect.

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, chmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted. One that finds no room is told so, and the library comes back later.
const BACKLOG: i32 = 512;

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another one does.
    #[error("another underpassd listens at {0}; stop it, or choose another path by --socket")]
    InUse(PathBuf),
    /// Something else has that name.
    #[error("{0} is no socket; choose another path by --socket")]
    NoSocket(PathBuf),
    /// What the kernel says.
    #[error("cannot listen at {path} ({error}); the folder must exist, and underpassd must be allowed to write to it")]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        error: Errno,
    },
}

/// A socket that listens, of which the name goes with it.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, in place of a daemon that was killed. Every user may connect: the policy decides what comes of that.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn at(path: &Path) -> Result<Listener, ListenError> {
        let refused = |error| ListenError::Refused { path: path.into(), error };
        let address = SocketAddrUnix::new(path).map_err(refused)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(refused);
        match lstat(path) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(refused(error)),
            Ok(it) if FileType::from_raw_mode(it.st_mode) != FileType::Socket => {
                return Err(ListenError::NoSocket(path.into()));
            }
            Ok(_) => match connect(&socket()?, &address) {
                Err(Errno::CONNREFUSED) => unlink(path).map_err(refused)?,
                Err(Errno::ACCESS | Errno::PERM) => return Err(refused(Errno::ACCESS)),
                _ => return Err(ListenError::InUse(path.into())),
            },
        }
        let socket = socket()?;
        bind(&socket, &address).map_err(refused)?;
        let it = Listener { socket, path: path.into() };
        chmod(path, Mode::from_raw_mode(0o666)).map_err(refused)?;
        listen(&it.socket, BACKLOG).map_err(refused)?;
        Ok(it)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Whoever finds it gone is as well off as whoever finds nobody there.
        let _ = unlink(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_listens_and_the_next_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = Listener::at(&path).unwrap();
        assert!(matches!(Listener::at(&path), Err(ListenError::InUse(_))));
        // As if it had been killed: the name stays.
        let Listener { socket, .. } = &first;
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
        let second = Listener::at(&path).unwrap();
        std::mem::forget(first);
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::at(&path), Err(ListenError::NoSocket(_))));
        let nowhere = folder.path().join("none/socket");
        assert!(matches!(Listener::at(&nowhere), Err(ListenError::Refused { error: Errno::NOENT, .. })));
    }
}

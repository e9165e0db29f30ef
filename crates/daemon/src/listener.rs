//! The Unix socket that clients connect.

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, chmod, fcntl_getfl, fcntl_setfl, lstat, unlink};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with, sockopt,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted. If there is no room for another, its connect fails, and the library tries
/// again later.
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
    /// The service manager hands over something else than one socket that listens.
    #[error(
        "the service manager has handed over {0}; underpassd needs one socket: ListenSequentialPacket= in \
         underpassd.socket, once"
    )]
    Handed(String),
    /// What the kernel says.
    #[error("cannot listen at {path} ({error}); the folder must exist, and underpassd must be allowed to write to it")]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        error: Errno,
    },
}

impl ListenError {
    /// Whether it stays until somebody changes something.
    pub fn is_lasting(&self) -> bool {
        matches!(self, ListenError::NoSocket(_) | ListenError::Handed(_))
    }
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// Its name.
    pub path: PathBuf,
    /// The name goes with it.
    is_own: bool,
}

impl Listener {
    /// Listens at `path`, in place of a daemon that was killed. Every user may connect: the policy decides what comes
    /// of that.
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
        let it = Listener { socket, path: path.into(), is_own: true };
        chmod(path, Mode::from_raw_mode(0o666)).map_err(refused)?;
        listen(&it.socket, BACKLOG).map_err(refused)?;
        Ok(it)
    }

    /// The socket that a service manager has handed over, whose name that manager keeps; `None` if it has handed over
    /// none.
    ///
    /// # Errors
    /// [`ListenError::Handed`].
    pub fn handed(descriptors: Vec<OwnedFd>) -> Result<Option<Listener>, ListenError> {
        let count = descriptors.len();
        let Ok([socket]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            return if count == 0 { Ok(None) } else { Err(ListenError::Handed(format!("{count} descriptors"))) };
        };
        let wrong = |what: &str| ListenError::Handed(what.into());
        let is_ours = sockopt::socket_domain(&socket).is_ok_and(|it| it == AddressFamily::UNIX)
            && sockopt::socket_type(&socket).is_ok_and(|it| it == SocketType::SEQPACKET);
        if !is_ours {
            return Err(wrong("something else than a Unix socket of sequential packets"));
        }
        if !sockopt::socket_acceptconn(&socket).is_ok_and(|it| it) {
            return Err(wrong("a socket that does not listen (Accept=yes is not for underpassd)"));
        }
        let flags = fcntl_getfl(&socket).and_then(|flags| fcntl_setfl(&socket, flags | OFlags::NONBLOCK));
        flags
            .and_then(|()| fcntl_setfd(&socket, FdFlags::CLOEXEC))
            .map_err(|_| wrong("a socket that cannot be set up"))?;
        let address = getsockname(&socket).ok().and_then(|it| SocketAddrUnix::try_from(it).ok());
        let path = address.as_ref().and_then(|it| it.path_bytes()).map(|it| OsStr::from_bytes(it).into());
        Ok(Some(Listener { socket, path: path.unwrap_or_default(), is_own: false }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.is_own {
            // To a client, a socket that is gone means the same as a socket without a listener.
            let _ = unlink(&self.path);
        }
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

    #[test]
    fn a_socket_is_handed_over_and_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = |kind| socket_with(AddressFamily::UNIX, kind, SocketFlags::empty(), None).unwrap();
        let listening = socket(SocketType::SEQPACKET);
        bind(&listening, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let refused = |descriptors| match Listener::handed(descriptors) {
            Err(ListenError::Handed(what)) => what,
            other => panic!("{other:?}"),
        };
        assert!(Listener::handed(vec![]).unwrap().is_none());
        assert_eq!(refused(vec![socket(SocketType::SEQPACKET), socket(SocketType::SEQPACKET)]), "2 descriptors");
        assert!(refused(vec![socket(SocketType::STREAM)]).contains("sequential packets"));
        assert!(refused(vec![listening.try_clone().unwrap()]).contains("does not listen"));
        listen(&listening, 1).unwrap();
        let listener = Listener::handed(vec![listening]).unwrap().unwrap();
        assert_eq!(listener.path, path);
        assert!(fcntl_getfl(&listener.socket).unwrap().contains(OFlags::NONBLOCK));
        drop(listener);
        assert!(path.exists());
    }
}

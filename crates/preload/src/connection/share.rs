//! A connection that several descriptors or several processes have.

use super::Connection;
use super::handle::handle;
use crate::guest::table::{self, Known};
use crate::guest::thread;
use underpass_segment::kernel;
use underpass_segment::switch::Ready;
use underpass_segment::sync::{AtomicU32, Relaxed};

impl Connection {
    /// Whether it has several descriptors in this process.
    pub fn has_duplicates(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.descriptors.load(Relaxed) > 1)
    }

    /// Its descriptors in this process.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        let others = if self.has_duplicates() { table::highest() } else { 0 };
        (0..others).filter(|&fd| fd != self.fd && self.is_at(fd)).chain([self.fd])
    }

    fn is_at(&self, fd: i32) -> bool {
        table::get(fd) == Known::Connection(self.index)
    }

    /// A descriptor of the socket at this time: see [`open_descriptor`].
    pub fn open_descriptor(&self) -> Option<i32> {
        open_descriptor(self.index, self.fd)
    }

    /// The connection by another descriptor of the socket.
    pub fn by(&self, fd: i32) -> Connection {
        Connection { fd, ..*self }
    }

    /// Whether its descriptor is a standard input that this process, or its child of vfork, has made for the program
    /// that it is about to execute. A standard input that the process itself was given means nothing for its children.
    pub fn is_made_input(&self) -> bool {
        // The table is this process's, also for its child of vfork.
        let was_its_own = || table::get(libc::STDIN_FILENO) == Known::Connection(self.index);
        self.fd == libc::STDIN_FILENO && (INPUT.load(Relaxed) == self.index + 1 || !was_its_own())
    }

    /// Learns the cookie of its socket, unless it is known: from then on the connection can be found by the cookie.
    pub fn learn_cookie(&self) {
        let known = &self.end.cookie;
        if known.load(Relaxed) == 0
            && !thread::is_vfork_child()
            && let Ok(cookie) = kernel::cookie(self.fd)
        {
            known.store(cookie, Relaxed);
        }
    }

    /// Whether no other process has it.
    pub fn is_last(&self) -> bool {
        self.end.owners.count() == 1
    }

    /// After a hand-over: whether unread bytes are left that neither end can put on the kernel path.
    pub fn has_unread_out_of_reach(&self) -> bool {
        // An end that has reset the connection finds nothing there. Where both ends have closed it in order, or the
        // other one has reset it, what had come before can still be read, doorbells too.
        let was_reset_here =
            || kernel::poll_now(self.fd, libc::POLLRDHUP) & (libc::POLLHUP | libc::POLLRDHUP) == libc::POLLHUP;
        self.port_even_confined().is_some_and(|port| !port.is_absent()) && !was_reset_here()
    }

    /// Whether something lies unread in its ring, or may.
    pub fn has_unread(&self) -> bool {
        self.joined_port().is_some_and(|port| !port.is_absent() && port.ready() != Ready::No)
    }
}

/// 1 + the index of the connection that this process has made its standard input since it was forked; 0: none.
static INPUT: AtomicU32 = AtomicU32::new(0);

/// Another descriptor of the same connection.
pub fn twin(connection: Connection) -> Option<i32> {
    (0..table::highest()).find(|&fd| fd != connection.fd && connection.is_at(fd))
}

/// A descriptor of the connection at this time: `fd`, or another if that was closed, and may be something else by now.
pub fn open_descriptor(index: u32, fd: i32) -> Option<i32> {
    let is_open = |&fd: &i32| table::get(fd) == Known::Connection(index);
    Some(fd).filter(is_open).or_else(|| (0..table::highest()).find(is_open))
}

/// The connection with this index is the standard input that this process has made, or `None` is.
pub fn set_made_input(index: Option<u32>) {
    INPUT.store(index.map_or(0, |index| index + 1), Relaxed);
}

//! The connections of a process that says which system calls it will make (seccomp(2)).

use super::Connection;
use super::handle::handle;
use super::look::for_each;
use super::state::Attachment;
use crate::guest::{family, thread};
use underpass_segment::raw::Answer;
use underpass_segment::switch::{Port, Ready, Receive};
use underpass_segment::sync::{Acquire, AtomicBool, Relaxed, Release};
use underpass_segment::vector::Cursor;

/// Whether anything was ever left unread in the ring of a confined end.
static RESTS: AtomicBool = AtomicBool::new(false);

/// A thread takes the connections to kernel TCP, before the filter comes.
static CONFINING: AtomicBool = AtomicBool::new(false);
/// Set once a thread has begun to confine the connections.
static ANY_CONFINED: AtomicBool = AtomicBool::new(false);

/// The connections are about to be confined. From now on the library follows what other threads register in sets,
/// because it may have a rest. Whether any connection has had a rest before.
pub fn begin() -> bool {
    ANY_CONFINED.store(true, Release);
    let had_rests = RESTS.swap(true, Relaxed);
    CONFINING.store(true, Release);
    had_rests
}

/// The connections are confined; `have_rests` says whether any has a rest.
pub fn end(have_rests: bool) {
    CONFINING.store(false, Release);
    RESTS.store(have_rests, Relaxed);
}

/// Whether any connection may be confined: a filter has come, or was refused.
pub fn are_any_confined() -> bool {
    ANY_CONFINED.load(Acquire)
}

/// Whether any connection may ever have had a rest: see [`Connection::has_rest`].
pub fn has_rests() -> bool {
    RESTS.load(Relaxed)
}

/// No connection has a rest by now, and none will have one.
pub fn forget_rests() {
    RESTS.store(false, Relaxed);
}

/// Whether the connection whose end has this number has a rest.
pub fn has_rest_of(end: u32) -> bool {
    at(end).is_some_and(|connection| connection.has_rest())
}

/// Whether the connection whose end has this number has a rest, or may have one once the kernel's bytes before it are
/// read.
pub fn may_have_rest(end: u32) -> bool {
    at(end).is_some_and(|connection| connection.may_have_rest())
}

/// Whether any connection of this process may have a rest.
pub fn may_any_have_rest() -> bool {
    let mut may = CONFINING.load(Acquire);
    if let Some(family) = family::existing() {
        for_each(|index, fd| may |= Connection::at(family, index, fd).rest().is_some());
    }
    may
}

/// The connection, by no descriptor.
fn at(end: u32) -> Option<Connection> {
    family::existing().map(|family| Connection::at(family, end, -1))
}

impl Connection {
    /// Whether every call on it is the kernel's own, except for reading what is left in the ring.
    pub fn is_confined(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.attachment.load(Acquire) == Attachment::Confined)
    }

    /// The port of a confined end, for a thread that does not ask for its number.
    pub fn confined_port(&self) -> Option<Port<'static>> {
        let handle = handle(self.index).filter(|_| self.is_confined())?;
        // SAFETY: written before Untouched was stored, which came before Confined.
        let channel = unsafe { (*handle.channel.get()).assume_init() };
        Some(self.port_with(channel, 0))
    }

    /// The port of a confined end, if something is left in the ring, or of it.
    fn rest(&self) -> Option<Port<'static>> {
        self.confined_port().filter(|port| !port.is_plain())
    }

    /// Whether something is left in the ring of a confined end, or of it, or may be.
    pub fn may_have_rest(&self) -> bool {
        self.rest().is_some()
    }

    /// Whether there is something in the ring of a confined end, of which the kernel does not know.
    pub fn has_rest(&self) -> bool {
        self.rest().is_some_and(|port| port.ready() == Ready::Yes)
    }

    /// Receives what is left in the ring of a confined end, without a system call except `call`; `None` if nothing is
    /// left.
    pub fn receive_rest(&self, into: impl FnOnce() -> Cursor, flags: i32, call: Receive<'_>) -> Option<Answer> {
        let mut port = self.rest()?;
        port.me = thread::number();
        port.receive_by(&mut into(), flags, call)
    }

    /// The program's own call on a confined end.
    pub fn by_kernel(&self, plain: impl FnOnce() -> isize) -> isize {
        self.inside().during(|| {}, plain)
    }
}

//! The connections of a process that says which system calls it will make (seccomp(2)).

use super::share::for_each;
use super::{CONFINED, Connection, PRESENT, UNTOUCHED, handle};
use crate::guest::{family, forked, thread};
use underpass_segment::clock;
use underpass_segment::end::Stage;
use underpass_segment::raw::Answer;
use underpass_segment::reason::Reason;
use underpass_segment::switch::{Port, Ready, Receive};
use underpass_segment::sync::{AcqRel, Acquire, AtomicBool, Relaxed, Release};
use underpass_segment::vector::Cursor;

/// All connections together wait no longer for their other ends.
const PATIENCE_NS: u64 = 100_000_000;

/// Whether anything was ever left unread in the ring of a confined end.
static RESTS: AtomicBool = AtomicBool::new(false);

/// A thread is in the middle of [`confine_all`].
static CONFINING: AtomicBool = AtomicBool::new(false);

/// Every connection stays on the kernel path for good, or goes there, while the library may still make system calls.
pub fn confine_all() {
    forked::check();
    let Some(family) = family::existing() else { return };
    let until = clock::nanoseconds() + PATIENCE_NS;
    // What other threads register meanwhile is followed, since it may have a rest.
    let had_rests = RESTS.swap(true, Relaxed);
    CONFINING.store(true, Release);
    let mut have_rests = had_rests;
    for_each(|index, fd| have_rests |= Connection::at(family, index, fd).confine(until));
    CONFINING.store(false, Release);
    RESTS.store(have_rests, Relaxed);
}

/// Whether any connection may ever have had a rest: see [`Connection::has_rest`].
pub fn has_rests() -> bool {
    RESTS.load(Relaxed)
}

/// None has by now, nor will have.
pub fn forget_rests() {
    RESTS.store(false, Relaxed);
}

/// Whether the connection whose end has this number has a rest.
pub fn has_rest_of(end: u32) -> bool {
    at(end).is_some_and(|connection| connection.has_rest())
}

/// Whether it has one, or may have: what lies before it is in the kernel.
pub fn may_have_rest(end: u32) -> bool {
    CONFINING.load(Acquire) || at(end).is_some_and(|connection| connection.rest().is_some())
}

/// The connection, by no descriptor.
fn at(end: u32) -> Option<Connection> {
    family::existing().map(|family| Connection::at(family, end, -1))
}

impl Connection {
    /// Whether something may be left in its ring.
    fn confine(&self, until: u64) -> bool {
        // What was put off would need epoll_ctl.
        crate::watch::epoll::settle_socket(*self, || None);
        self.end.pin(Reason::Seccomp);
        if self.end.stage() != Stage::Joined {
            return false;
        }
        // The kernel's epoll does not know what is in the ring: without address space nobody is told of it who waits by a set.
        // A poll that sleeps is woken by what the other end puts on the kernel path.
        let is_polled = self.descriptors().any(crate::watch::epoll::is_slept_on);
        let is_seen = (crate::watch::epoll::prepare_rests() || self.end.watched.load(Relaxed) == 0) && !is_polled;
        let (Some(port), Some(handle)) = (self.port(), handle(self.index)) else { return false };
        if !port.confine(until, is_seen) {
            return false;
        }
        // At once, since from here on the ring is read in another way. In this order: the one becomes the other.
        for present in [UNTOUCHED, PRESENT] {
            let _ = handle.attached.compare_exchange(present, CONFINED, AcqRel, Acquire);
        }
        let has_rest = !port.is_plain();
        if has_rest {
            crate::watch::epoll::enter_rests(*self);
        }
        crate::watch::epoll::leave_sets(*self);
        if has_rest {
            crate::watch::epoll::wake_for_rests(*self);
        }
        has_rest
    }

    /// Whether every call on it goes as the kernel's own, but for what is unread in the ring.
    pub fn is_confined(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.attached.load(Acquire) == CONFINED)
    }

    /// The port of a confined end, for a thread whose number is not asked for.
    pub(super) fn confined_port(&self) -> Option<Port<'static>> {
        let handle = handle(self.index).filter(|_| self.is_confined())?;
        // SAFETY: written before UNTOUCHED was stored, which came before CONFINED.
        let link = unsafe { (*handle.link.get()).assume_init() };
        Some(self.port_with(link, 0))
    }

    /// The same, if something is left in the ring, or of it.
    fn rest(&self) -> Option<Port<'static>> {
        self.confined_port().filter(|port| !port.is_plain())
    }

    /// Whether there is something in the ring of a confined end, of which the kernel does not know.
    pub fn has_rest(&self) -> bool {
        self.rest().is_some_and(|port| port.ready() == Ready::Yes)
    }

    /// Receives what is left in the ring of a confined end, by no system call but `call`; `None` if there is nothing.
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

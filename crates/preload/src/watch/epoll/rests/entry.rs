//! One registration on the list.

use crate::connection::confined;
use crate::watch::epoll::register::register;
use crate::watch::epoll::{IN, ONCE, OVER};
use core::ffi::c_int;
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;

/// In place of an end's number: the registered descriptor is a set.
pub(super) const SET: u32 = u32::MAX;
/// In place of a set's descriptor: the entry only says that its own descriptor is a set.
pub(super) const NO_SET: c_int = -1;
/// In place of the registered descriptor: it was closed, and the connection has another.
pub(super) const CLOSED: c_int = -2;

/// What an entry says. Zeroed memory is an unused one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Nothing.
    Free = 0,
    /// What is left is to be reported.
    Armed,
    /// What is left was reported, and is not reported again (edge-triggered, one-shot). A one-shot registration is
    /// still armed in the kernel.
    Told,
    /// One-shot: the kernel has disarmed it by an event, or nothing is to be reported before it is armed again. An
    /// event of an earlier arming may still be on its way.
    Spent,
    /// One-shot: no event of it is on its way. An event with the same data is of another registration.
    Silent,
}

/// Which registration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) set: c_int,
    pub(super) fd: c_int,
    /// The number of the connection's end, which may also have other descriptors; or [`SET`].
    pub(super) end: u32,
}

/// A registration in a set.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) events: u32,
    pub(super) data: u64,
    pub(super) state: State,
    /// The library has asked the kernel for room that the program did not ask for, to wake threads that sleep on the
    /// set.
    pub(super) kicked: bool,
}

impl Entry {
    pub(super) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Whether the kernel alone reports it from now on, as the program has asked. A thread may still be about to report
    /// the last event of a one-shot registration.
    pub(super) fn is_over(&self) -> bool {
        self.is_free()
            || self.events & ONCE == 0 && !self.kicked && self.key.end != SET && !confined::may_have_rest(self.key.end)
    }

    /// Whether the event `told` of the kernel's was a doorbell, which was taken before the filter came.
    pub(super) fn was_doorbell(&self, told: u32) -> bool {
        let is_there = || kernel::poll_now(self.key.fd, libc::POLLIN) != 0;
        told & (IN | OVER) == libc::EPOLLIN as u32 && self.key.end != SET && !is_quiet() && !is_there()
    }

    /// Gives the kernel the program's registration back. The program has called epoll_ctl itself before, so the filter
    /// allows it.
    pub(super) fn calm(&self) {
        register(self.key.set, self.key.fd, self.events, self.data);
    }
}

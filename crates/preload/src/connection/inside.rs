//! Threads that are inside a call on a connection while another closes its last descriptor. In the kernel each of them has
//! the socket until it returns.
//!
//! A call that is one call of the kernel's has that by itself, and needs the end alone: it is kept until the last of them
//! comes out, since it may be the next connection's otherwise, as the number may. A receive that sleeps goes on with the socket
//! when it wakes: for such, the close makes a descriptor of the library's own, which the last of them closes. To the rest of the
//! library it is one of the connection's like any other.

use super::ending::{forget, release};
use super::look::look_at_all;
use super::share::{duplicate, open_descriptor};
use super::{Connection, handle};
use crate::guest::cancellation::{cancellable, unless_left};
use crate::guest::errno::{self, from_c};
use crate::guest::table::{self, Known};
use crate::guest::{deadline, family, thread};
use crate::watch::epoll;
use core::cell::Cell;
use underpass_segment::end::Stage;
use underpass_segment::lock::Lock;
use underpass_segment::raw::{Answer, is_quiet};
use underpass_segment::switch::{Patience, Port, Waiting};
use underpass_segment::sync::{AtomicU64, SeqCst, fence};
use underpass_segment::{clock, kernel};

/// How many threads of this process are inside, and what is kept for them: in one word, so that the last of them knows.
pub(super) struct Insiders(AtomicU64);

/// What is kept for those inside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Nothing,
    /// A descriptor of the library's own.
    Descriptor(i32),
    /// The end, of which this process has no descriptor any more.
    End,
}

impl Insiders {
    const KEPT_AT: u32 = 32;
    const END: u32 = u32::MAX;

    fn count(word: u64) -> u32 {
        word as u32
    }

    fn kept(word: u64) -> Kept {
        match (word >> Self::KEPT_AT) as u32 {
            0 => Kept::Nothing,
            Self::END => Kept::End,
            above => Kept::Descriptor(above as i32 - 1),
        }
    }

    pub(super) fn any(&self) -> bool {
        Self::count(self.0.load(SeqCst)) > 0
    }

    fn enter(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// One less: what the last one has to let go of.
    fn leave(&self) -> Kept {
        let less = |word| match Self::count(word) {
            // In a child that was forked by a signal handler on top of the call, it is not counted.
            0 => None,
            1 => Some(0),
            _ => Some(word - 1),
        };
        let before = self.0.fetch_update(SeqCst, SeqCst, less).unwrap_or(0);
        if Self::count(before) == 1 { Self::kept(before) } else { Kept::Nothing }
    }

    /// Keeps this for those inside, in place of what was kept; false if there are none.
    pub(super) fn keep(&self, kept: Kept) -> bool {
        let kept = match kept {
            Kept::Nothing => 0,
            Kept::Descriptor(fd) => fd as u32 + 1,
            Kept::End => Self::END,
        };
        let kept = u64::from(kept) << Self::KEPT_AT;
        let keep = |word| (Self::count(word) > 0).then_some(kept | u64::from(Self::count(word)));
        self.0.fetch_update(SeqCst, SeqCst, keep).is_ok()
    }

    fn keeps(&self, fd: i32) -> bool {
        Self::kept(self.0.load(SeqCst)) == Kept::Descriptor(fd)
    }

    /// Nobody is inside; what was kept.
    pub(super) fn clear(&self) -> Kept {
        Self::kept(self.0.swap(0, SeqCst))
    }
}

/// A call that may go on inside the kernel.
pub struct Inside {
    index: u32,
    entered: Cell<bool>,
}

impl Inside {
    /// It does: until this value is dropped.
    pub fn enter(&self) {
        if !self.entered.replace(true)
            && let Some(handle) = handle(self.index)
        {
            handle.inside.enter();
        }
    }

    /// It does, in `call`. If this thread does not come back from there, `undo` is done, and it is inside no more: see
    /// [`unless_left`].
    pub fn during<T>(&self, undo: impl Fn(), call: impl FnOnce() -> T) -> T {
        self.enter();
        let undo = || {
            undo();
            self.leave();
        };
        unless_left(undo, call)
    }

    #[inline]
    fn leave(&self) {
        if self.entered.replace(false) {
            come_out(self.index);
        }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}

/// This thread is inside no more.
#[cold]
fn come_out(index: u32) {
    let Some(kept) = handle(index).map(|handle| handle.inside.leave()) else { return };
    let before = errno::get();
    match kept {
        Kept::Nothing => {}
        Kept::Descriptor(fd) => shut(fd),
        Kept::End => {
            if let Some(family) = family::existing() {
                let end = family.end(index);
                outlast(&end.reading.lock, || false);
                outlast(&end.sending.lock, || false);
            }
            release(index, None);
        }
    }
    errno::set(before);
}

/// Closes a descriptor of the library's own.
fn shut(kept: i32) {
    forget(kept);
    kernel::close(kept);
}

impl Connection {
    /// For a call that may go on inside the kernel; costs nothing if it does not.
    #[inline]
    pub fn inside(&self) -> Inside {
        Inside { index: self.index, entered: Cell::new(false) }
    }

    /// The descriptor is about to be closed: if it is the last one, another is kept for calls that are several of the kernel's.
    pub(super) fn keep_open(&self) {
        /// Above what most programs have, and below what costs memory to know of.
        const FIRST: i32 = 960;
        const FIRST_AMONG_FEW: i32 = 3;
        let Some(handle) = handle(self.index) else { return };
        if is_quiet() || self.has_duplicates() || self.end.stage() > Stage::Joined {
            return;
        }
        let (reading, sending) = (&self.end.reading.lock, &self.end.sending.lock);
        // Whoever polls in the ring will soon have something, or sleep.
        outlast(reading, || handle.inside.any());
        outlast(sending, || handle.inside.any());
        // Below a signal handler, in this very thread, the kernel's call has returned.
        if !handle.inside.any() || reading.owner() == thread::number() {
            return;
        }
        let copy = |first| kernel::duplicate(self.fd, first);
        if let Some(kept) = copy(FIRST).or_else(|| copy(FIRST_AMONG_FEW)) {
            duplicate(self.fd, kept);
            if !handle.inside.keep(Kept::Descriptor(kept)) {
                shut(kept);
            }
        }
    }

    /// Nobody finds the connection by this descriptor any more, which is about to be closed: returns once no call goes on by
    /// its number but inside the kernel, and nobody looks at it.
    pub(super) fn outlast_calls(&self) {
        self.outlast_lookers();
        // A receive says that it sleeps before it looks at the table; here it is the other way round.
        fence(SeqCst);
        let lock = &self.end.reading.lock;
        outlast(lock, || lock.is_asleep() && kernel::thread_sleeps(lock.owner()));
        outlast(&self.end.sending.lock, || false);
    }
}

/// Whether `fd` is a descriptor of the library's own, of which the program does not know.
pub fn is_kept(fd: i32) -> bool {
    match table::get(fd) {
        Known::Connection(index) => handle(index).is_some_and(|handle| handle.inside.keeps(fd)),
        _ => false,
    }
}

/// Returns when no other thread of this process holds the lock, when `enough`, or when that takes too long.
fn outlast(lock: &Lock, enough: impl Fn() -> bool) {
    // Nobody sleeps there, but a thread may have to wait long for a processor.
    const PATIENCE_NS: u64 = 200_000_000;
    let is_held = || match lock.owner() {
        0 => false,
        owner => owner != thread::number() && kernel::is_thread_of_this_process(owner) && !enough(),
    };
    if is_quiet() || !is_held() {
        return;
    }
    let deadline = clock::nanoseconds() + PATIENCE_NS;
    while is_held() && clock::nanoseconds() < deadline {
        clock::give_way();
    }
}

pub(super) static WAITING: Waiting = Waiting {
    hold,
    recv: sleeping_recv,
    call: sleeping_call,
    attend_all,
    looks: epoll::looks_for_room,
    refused: epoll::await_room,
};

/// Gives back on all connections of this process; false if the kernel has no room for all of it yet.
fn attend_all() -> bool {
    // Of each, also behind one that has no room.
    let mut all = true;
    look_at_all(|it| all &= it.attend());
    all
}

/// Counts the receive as inside, and finds it a descriptor of the socket.
fn hold(port: &mut Port<'_>) {
    let Some(handle) = handle(port.token) else { return };
    // Before the table is looked at; whoever closes looks at the count afterwards.
    if !core::mem::replace(&mut port.is_held, true) {
        handle.inside.enter();
    }
    fence(SeqCst);
    // There is none if the call had hardly begun, or there was no room for one.
    port.fd = open_descriptor(port.token, port.fd).unwrap_or(-1);
}

/// A receive that was held is over.
#[cold]
pub fn let_go(port: &mut Port<'_>) {
    if core::mem::take(&mut port.is_held) {
        come_out(port.token);
    }
}

/// Makes a system call that sleeps, for a receive.
fn sleeping_call(port: &Port<'_>, call: &dyn Fn() -> Answer) -> Answer {
    let undo = || {
        port.abandon_sleep();
        come_out(port.token);
    };
    cancellable(undo, call)
}

/// Sleeps in libc's own recv: a cancellation point, and restarted after signals as the program asked.
unsafe fn sleeping_recv(port: &Port<'_>, to: *mut u8, len: usize, flags: i32, patience: Patience) -> Answer {
    let undo = || {
        port.abandon_sleep();
        come_out(port.token);
    };
    if port.end.reading.resting.is_stray() {
        crate::watch::epoll::take_back(port.fd);
    }
    let before = errno::get();
    // SAFETY: passed on to the caller.
    let recv = |flags| from_c(unsafe { crate::guest::real::recv(port.fd, to.cast(), len, flags) });
    let call = || match patience {
        Patience::Socket => recv(flags),
        Patience::Until(deadline) => {
            let recv = |_| recv(flags | libc::MSG_DONTWAIT);
            deadline::try_until(deadline, libc::POLLIN, || Some(port.fd), recv)
        }
    };
    let answer = unless_left(undo, call);
    errno::set(before);
    answer
}

//! Threads that are inside a call on a connection while another thread closes the last descriptor. In the kernel each
//! of them keeps the socket until its call returns.
//!
//! Where the library's call is a single call of the kernel's, the kernel keeps the socket, and the library has to keep
//! only the end: until the last such thread comes out, since another connection might get the end otherwise, as it
//! might get the descriptor's number. A receive that sleeps goes on with the socket when it wakes. For such receives
//! the close makes a descriptor of the library's own, which the last of them closes. The rest of the library treats it
//! as any other descriptor of the connection.

use super::Connection;
use super::handle::{Handle, handle};
use super::insiders::Kept;
use super::lines::{self, Owner};
use super::look::look_at_all;
use super::references::release;
use super::share::open_descriptor;
use super::watchers::watchers;
use crate::guest::cancellation::{cancellable, unless_left};
use crate::guest::errno::{self, from_c};
use crate::guest::given::Given;
use crate::guest::table::{self, Known};
use crate::guest::{deadline, family, thread};
use core::cell::Cell;
use underpass_segment::lock::Lock;
use underpass_segment::raw::{Answer, Errno, is_quiet};
use underpass_segment::switch::{Patience, Port, Waiting};
use underpass_segment::sync::{SeqCst, fence};
use underpass_segment::{clock, kernel, of_each_thread};

/// How a descriptor that was kept is closed.
pub struct Closing {
    /// Closes a kept descriptor as the program closes its own, so that the connection may end by that.
    pub close_kept: fn(i32),
}

static NOTHING: Closing = Closing { close_kept: |_| {} };
/// Given by the constructor, before there is a connection.
pub static CLOSING: Given<Closing> = Given::new(&NOTHING);

of_each_thread! {
    /// The connection, by its index, that this thread is inside of in a child of vfork, and how often.
    static INSIDE_IN_CHILD: (u32, u32) = (0, 0);
}

/// A child of vfork has executed a program, or ended. If it was killed inside a call, it is inside no more.
pub fn after_vfork() {
    let (index, times) = INSIDE_IN_CHILD.get();
    INSIDE_IN_CHILD.set((0, 0));
    (0..times).for_each(|_| come_out(index));
}

/// A call that may go on inside the kernel.
pub struct Inside {
    index: u32,
    entered: Cell<bool>,
}

impl Inside {
    /// This thread goes on inside the kernel's call until this value is dropped.
    pub fn enter(&self) {
        if !self.entered.replace(true)
            && let Some(handle) = handle(self.index)
        {
            enter(handle, self.index);
        }
    }

    /// Makes `call`, inside of which this thread is meanwhile. If the thread does not come back from there, `undo` is
    /// called, and the thread is inside no more: see [`unless_left`].
    pub fn during<T>(&self, undo: impl Fn(), call: impl FnOnce() -> T) -> T {
        self.enter();
        let undo = || {
            undo();
            self.come_out();
        };
        unless_left(undo, call)
    }

    #[inline]
    fn come_out(&self) {
        if self.entered.replace(false) {
            come_out(self.index);
        }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        self.come_out();
    }
}

fn enter(handle: &Handle, index: u32) {
    handle.inside.enter();
    if thread::is_vfork_child() {
        let (before, times) = INSIDE_IN_CHILD.get();
        INSIDE_IN_CHILD.set((index, if before == index { times + 1 } else { 1 }));
    }
}

/// This thread is inside no more.
#[cold]
fn come_out(index: u32) {
    if thread::is_vfork_child()
        && let (inside, times @ 1..) = INSIDE_IN_CHILD.get()
        && inside == index
    {
        INSIDE_IN_CHILD.set((index, times - 1));
    }
    let Some(kept) = handle(index).map(|handle| handle.inside.come_out()) else { return };
    let before = errno::get();
    match kept {
        Kept::Nothing => {}
        Kept::Descriptor(fd) => (CLOSING.get().close_kept)(fd),
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

impl Connection {
    /// For a call that may go on inside the kernel; costs nothing if it does not.
    #[inline]
    pub fn inside(&self) -> Inside {
        Inside { index: self.index, entered: Cell::new(false) }
    }

    /// This descriptor is about to be closed, and no thread finds the connection by it any more. Returns once no call
    /// uses its number outside of the kernel, and no thread looks at the connection.
    pub fn outlast_calls(&self) {
        self.outlast_lookers();
        // A receive says that it sleeps, and then looks at the table. This thread has changed the table, and looks now.
        fence(SeqCst);
        let lock = &self.end.reading.lock;
        outlast(lock, || lock.is_asleep() && kernel::own(lock.owner()).is_none_or(kernel::thread_sleeps));
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

/// Returns when no other thread of this process holds the lock, when `enough` says so, or when that takes too long.
pub fn outlast(lock: &Lock, enough: impl Fn() -> bool) {
    // No thread sleeps with the lock, but a thread may have to wait long for a processor.
    const PATIENCE_NS: u64 = 200_000_000;
    let is_held = || match lock.owner() {
        0 => false,
        owner => {
            let is_here = || kernel::own(owner).is_some_and(kernel::is_thread_of_this_process);
            owner != thread::number() && is_here() && !enough()
        }
    };
    if is_quiet() || !is_held() {
        return;
    }
    let deadline = clock::nanoseconds() + PATIENCE_NS;
    while is_held() && clock::nanoseconds() < deadline {
        clock::give_way();
    }
}

pub static WAITING: Waiting = Waiting {
    keep_socket,
    recv: sleeping_recv,
    call: sleeping_call,
    give_back_everywhere,
    looks: |port| (watchers().looks_for_room)(port),
    ring: |_| lines::ring(),
    refused: |port| (watchers().await_room)(port),
};

/// Gives back on all connections of this process; false if the kernel has no room for all of it yet.
fn give_back_everywhere() -> bool {
    // On every connection, also after one for which the kernel has no room.
    let mut all = true;
    look_at_all(|it| all &= it.joined_port().is_none_or(|port| port.give_back_unless_busy()));
    all
}

/// Counts the receive as inside, and finds it a descriptor of the socket.
fn keep_socket(port: &mut Port<'_>) {
    let Some(handle) = handle(port.token) else { return };
    // Before the table is looked at: a thread that closes the descriptor looks at this count after changing the table.
    if !core::mem::replace(&mut port.keeps_socket, true) {
        enter(handle, port.token);
    }
    fence(SeqCst);
    // No descriptor is left if the close came before this call was counted, or if there was no room to keep one.
    port.fd = open_descriptor(port.token, port.fd).unwrap_or(-1);
}

/// A receive that was held is over.
#[cold]
pub fn let_go(port: &mut Port<'_>) {
    if core::mem::take(&mut port.keeps_socket) {
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

/// Sleeps until something comes by the kernel, or the daemon rings. Whether it rang.
fn sleep_by_line(port: &Port<'_>, patience: Patience) -> Result<bool, Errno> {
    let line = lines::of(Owner::thread());
    // The daemon has rung by another line, of which this thread does not hear.
    if !lines::be_rung(Owner::thread(), port) {
        return Ok(true);
    }
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [entry(port.fd), entry(line.and_then(|it| it.fd()).unwrap_or(-1))];
    let deadline = match patience {
        Patience::Socket => kernel::timeout(port.fd, libc::SO_RCVTIMEO).map(|it| clock::nanoseconds() + it),
        Patience::Until(deadline) => deadline,
    };
    let left = deadline::left(deadline, if line.is_some() { lines::LONGEST_NS } else { lines::BRIEFLY_NS });
    let left = left.as_ref().map_or(core::ptr::null(), |it| it as *const libc::timespec);
    // SAFETY: two entries; no mask.
    match unsafe { crate::guest::real::ppoll(both.as_mut_ptr(), 2, left, core::ptr::null()) } {
        0 if deadline.is_none_or(|it| clock::nanoseconds() < it) => Ok(true),
        0 => Err(Errno(libc::EAGAIN)),
        ..0 => Err(Errno(errno::get())),
        _ if both[1].revents == 0 => Ok(false),
        _ => {
            line.map(lines::hear);
            Ok(true)
        }
    }
}

/// Sleeps in libc's own recv: a cancellation point, and restarted after signals as the program asked.
unsafe fn sleeping_recv(port: &Port<'_>, to: *mut u8, len: usize, flags: i32, patience: Patience) -> Answer {
    let undo = || {
        port.abandon_sleep();
        come_out(port.token);
    };
    if port.end.reading.resting.is_stray() {
        (watchers().take_back)(port.fd);
    }
    let before = errno::get();
    if port.end.is_remote() {
        let answer = unless_left(undo, || sleep_by_line(port, patience));
        errno::set(before);
        return answer.and_then(|is_rung| {
            // SAFETY: passed on to the caller.
            let got = unsafe { kernel::recv(port.fd, to, len, flags | libc::MSG_DONTWAIT) };
            if is_rung && got == Err(Errno(libc::EAGAIN)) { Ok(1) } else { got }
        });
    }
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

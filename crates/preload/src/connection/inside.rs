//! Threads that are inside a call on a connection while another closes its last descriptor. As the kernel keeps the socket
//! for them, the end is kept until they come out: it and the number may be the next connection's otherwise.

use super::ending::release;
use super::{CLOSED, Connection, handle};
use crate::process;
use crate::table::{self, Known};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use underpass_segment::clock;
use underpass_segment::kernel;
use underpass_segment::lock::Lock;
use underpass_segment::raw::{Answer, is_quiet};
use underpass_segment::switch::{Port, Waiting};
use underpass_segment::sync::SeqCst;

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
            handle.inside.fetch_add(1, SeqCst);
        }
    }
}

impl Inside {
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

/// Does `call`, and `undo` if this thread leaves that without coming back here: because it is cancelled, or because a
/// signal handler jumps away (siglongjmp). Then nothing is dropped on the way.
pub fn unless_left<T>(undo: impl Fn(), call: impl FnOnce() -> T) -> T {
    /// As <pthread.h> has it.
    #[repr(C)]
    struct Buffer {
        routine: Option<extern "C" fn(*mut c_void)>,
        argument: *mut c_void,
        kind: c_int,
        previous: *mut Buffer,
    }
    // What the macros of <pthread.h> came to before they were made for compilers that unwind: longjmp heeds these.
    unsafe extern "C" {
        fn _pthread_cleanup_push(buffer: *mut Buffer, routine: extern "C" fn(*mut c_void), argument: *mut c_void);
        fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
    }
    extern "C" fn run<U: Fn()>(undo: *mut c_void) {
        // SAFETY: what was given with this function, in a frame that is being left.
        unsafe { (*(undo as *const U))() }
    }
    fn routine<U: Fn()>(_: &U) -> extern "C" fn(*mut c_void) {
        run::<U>
    }
    let mut buffer = MaybeUninit::uninit();
    // SAFETY: the buffer and `undo` stay where they are until the buffer is taken off again, or this frame is left.
    unsafe {
        _pthread_cleanup_push(buffer.as_mut_ptr(), routine(&undo), (&raw const undo).cast_mut().cast());
        let result = call();
        _pthread_cleanup_pop(buffer.as_mut_ptr(), 0);
        result
    }
}

#[cold]
fn come_out(index: u32) {
    one_less(index);
    let_go_if_left(index);
}

fn one_less(index: u32) {
    if let Some(handle) = handle(index) {
        // In a child that was forked by a signal handler on top of the call, it is not counted.
        let _ = handle.inside.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
    }
}

/// Lets go of an end whose last descriptor was closed while threads were inside, if none is any more. Whether that was so.
fn let_go_if_left(index: u32) -> bool {
    let Some(handle) = handle(index) else { return false };
    let left = handle.inside.load(SeqCst) == 0 && handle.left.swap(false, SeqCst);
    if left {
        if let Some(family) = process::existing_family() {
            let end = family.end(index);
            outlast([&end.reading.lock, &end.sending.lock], || false);
        }
        release(index);
    }
    left
}

impl Connection {
    /// For a call that may go on inside the kernel; costs nothing if it does not.
    #[inline]
    pub fn inside(&self) -> Inside {
        Inside { index: self.index, entered: Cell::new(false) }
    }

    /// The last descriptor is closed, and nobody finds the connection any more: whether threads are still inside, of whom
    /// the last lets go of it.
    pub(super) fn leave_to_those_inside(&self) -> bool {
        let Some(handle) = handle(self.index) else { return false };
        if handle.descriptors.load(SeqCst) > 1 {
            return false;
        }
        let is_any = || handle.inside.load(SeqCst) > 0;
        // Whoever polls in the ring will soon have something, or be inside the kernel.
        outlast([&self.end.reading.lock, &self.end.sending.lock], is_any);
        if !is_any() {
            return false;
        }
        handle.left.store(true, SeqCst);
        self.end.reading.resting.set_stray(true);
        // They may have come out meanwhile.
        is_any() || !handle.left.swap(false, SeqCst)
    }

    /// After a receive that found the waiting flag down for others, or its last descriptor closed.
    #[cold]
    pub fn after_stray(&self) {
        if !let_go_if_left(self.index) {
            crate::epoll::take_back(self.fd);
        }
    }
}

/// Returns when no other thread of this process holds one of the locks, when `enough`, or when that takes too long.
fn outlast(locks: [&Lock; 2], enough: impl Fn() -> bool) {
    // Nobody sleeps there, but a thread may have to wait long for a processor.
    const PATIENCE_NS: u64 = 200_000_000;
    if is_quiet() {
        return;
    }
    let me = process::thread();
    let is_held = |owner| owner != 0 && owner != me && !enough() && kernel::is_thread_of_this_process(owner);
    for lock in locks {
        if !is_held(lock.owner()) {
            continue;
        }
        let deadline = clock::nanoseconds() + PATIENCE_NS;
        while is_held(lock.owner()) && clock::nanoseconds() < deadline {
            clock::give_way();
        }
    }
}

pub(super) static WAITING: Waiting = Waiting { recv: sleeping_recv, call: sleeping_call };

/// Makes a system call that sleeps as libc makes its own: as a cancellation point.
fn sleeping_call(port: &Port<'_>, call: &dyn Fn() -> Answer) -> Answer {
    unsafe extern "C" {
        fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    }
    const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
    let inside = Inside { index: port.token, entered: Cell::new(false) };
    let at_any_time = || {
        let mut before = 0;
        // SAFETY: an int of this frame, or none. Nothing is held meanwhile that a cancelled thread would have to give back.
        unsafe {
            pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &mut before);
            let answer = call();
            pthread_setcanceltype(before, core::ptr::null_mut());
            answer
        }
    };
    inside.during(|| {}, at_any_time)
}

/// Sleeps in libc's own recv: a cancellation point, and restarted after signals as the program asked.
unsafe fn sleeping_recv(port: &Port<'_>, to: *mut u8, len: usize, flags: i32) -> Answer {
    let handle = handle(port.token).ok_or(CLOSED)?;
    // Counted before the table is looked at; whoever closes looks at the count afterwards.
    handle.inside.fetch_add(1, SeqCst);
    let undo = || {
        port.abandon_sleep();
        come_out(port.token);
    };
    if port.end.reading.resting.is_stray() {
        crate::epoll::take_back(port.fd);
    }
    let answer = if table::get(port.fd) == Known::Connection(port.token) {
        let before = crate::errno();
        // SAFETY: passed on to the caller.
        let call = || crate::from_c(unsafe { crate::real::recv(port.fd, to.cast(), len, flags) });
        let answer = unless_left(undo, call);
        crate::set_errno(before);
        answer
    } else {
        // Closed, or another's by now, while this thread was on its way.
        Err(CLOSED)
    };
    // If the end was left to this thread, it finds so when it comes out of the receive.
    one_less(port.token);
    answer
}

//! Threads that are cancelled, or that a signal handler takes out of a call by siglongjmp.

use super::thread::is_vfork_child;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use underpass_segment::raw::Answer;

/// The calls that this library replaces are cancellation points, also when they make no system call.
#[inline]
pub fn test_cancel() {
    unsafe extern "C" {
        fn pthread_testcancel();
    }
    // SAFETY: no arguments; nothing here holds what a cancelled thread would have to give back.
    unsafe { pthread_testcancel() }
}

/// Does `call`, and `undo` if this thread leaves that without coming back here: because it is cancelled, or because a
/// signal handler jumps away (siglongjmp). Then nothing is dropped on the way.
///
/// A child of vfork does neither, and leaves nothing in its parent's thread: if it was killed here, that thread would
/// have a frame of the child's among those that it heeds when it ends.
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
    if is_vfork_child() {
        return call();
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

/// Makes a system call that sleeps as libc makes its own: as a cancellation point. `undo` as in [`unless_left`].
pub fn cancellable(undo: impl Fn(), call: &dyn Fn() -> Answer) -> Answer {
    unsafe extern "C" {
        fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    }
    const DEFERRED: c_int = 0;
    const ASYNCHRONOUS: c_int = 1;
    let set = |kind| {
        let mut before = 0;
        // SAFETY: an int of this frame. A call that is made while the type is asynchronous has nothing that a cancelled
        // thread would have to give back.
        unsafe { pthread_setcanceltype(kind, &mut before) };
        before
    };
    if is_vfork_child() {
        return call();
    }
    let before = Cell::new(DEFERRED);
    let undo = || {
        set(before.get());
        undo();
    };
    unless_left(undo, || {
        before.set(set(ASYNCHRONOUS));
        let answer = call();
        set(before.get());
        answer
    })
}

/// Does `call`, in which there may be cancellation points, for a call of the program's that is not one.
pub fn uncancelled<T>(call: impl FnOnce() -> T) -> T {
    const PTHREAD_CANCEL_DISABLE: c_int = 1;
    if is_vfork_child() {
        return call();
    }
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = 0;
    // SAFETY: `before` is valid; no state but this thread's own changes.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
    // SAFETY: as above.
    let undo = || unsafe { _ = pthread_setcancelstate(before, core::ptr::null_mut()) };
    let answer = unless_left(undo, call);
    undo();
    answer
}

//! The process ends: it lets go of its connections, whose family may live on.

use crate::connection;
use crate::guest::{forked, thread};
use crate::watch::set;
use core::ffi::{c_int, c_void};
use underpass_segment::sync::{Acquire, AtomicBool};

/// The destructors of all libraries run in a function that libc registers for exit(3) once the constructors have run. They may
/// still send; so what the constructor registers is called behind them. quick_exit(3) has a list of its own.
pub fn leave_at_exit() {
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
    }
    extern "C" fn at_exit(_status: c_int, _: *mut c_void) {
        leave();
    }
    extern "C" fn at_quick_exit(_: *mut c_void) {
        leave();
    }
    // SAFETY: this library is not unloaded.
    unsafe {
        on_exit(at_exit, core::ptr::null_mut());
        __cxa_at_quick_exit(at_quick_exit, core::ptr::null_mut());
    }
}

/// The process ends: lets go of its connections, whose family may live on.
pub fn leave() {
    static LEFT: AtomicBool = AtomicBool::new(false);
    forked::check();
    if thread::is_vfork_child() || LEFT.swap(true, Acquire) {
        return;
    }
    connection::leave_all();
    set::leave();
}

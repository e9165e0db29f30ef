//! A program that installs a seccomp filter says which system calls it will make, and may be killed for any other.
//! Before the filter comes, its connections go to the kernel path for good; from then on the library makes no system
//! call of its own for them.
//!
//! Filters that were there before the program began (a container's) are made for all programs and answer with an error.
//! The library notices such a filter when shared memory is refused.

use crate::guest::{filter, real, thread};
use crate::lifecycle::confine;
use core::ffi::{c_int, c_long};
use underpass_segment::raw::be_quiet;
use underpass_segment::tap;

/// Installs a filter by `call`. The library is quiet before other threads are under it.
fn confined(call: impl FnOnce() -> c_long) -> c_long {
    // A child of vfork has its parent's memory, and is about to be another program.
    if thread::is_vfork_child() {
        return call();
    }
    let before = filter::begin();
    if !before {
        confine::confine_all();
        tap::let_go();
        be_quiet(true);
    }
    let answer = call();
    if answer < 0 && !before {
        be_quiet(false);
        filter::end();
    }
    answer
}

/// Whether these arguments install a filter. Without a filter the kernel is only asked whether it knows of them.
fn installs(mode: usize, filter: usize) -> bool {
    mode == libc::SECCOMP_MODE_STRICT as usize || mode == libc::SECCOMP_MODE_FILTER as usize && filter != 0
}

/// # Safety
/// As prctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: passed on to the caller.
    let call = || unsafe { real::prctl(option, a, b, c, d) };
    if option == libc::PR_SET_SECCOMP && installs(a, b) { confined(|| call().into()) as c_int } else { call() }
}

/// seccomp(2), for which libc has no function.
///
/// # Safety
/// As seccomp(2).
pub unsafe fn seccomp(operation: usize, flags: usize, arguments: usize) -> c_long {
    // SAFETY: passed on to the caller.
    let call = || unsafe { real::syscall(libc::SYS_seccomp, operation, flags, arguments, 0, 0, 0) };
    // prctl(2) counts these operations from one more.
    if installs(operation.wrapping_add(1), arguments) { confined(call) } else { call() }
}

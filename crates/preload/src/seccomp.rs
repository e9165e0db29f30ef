//! A program that installs a seccomp filter says which system calls it will make, and may be killed for any other. From
//! then on the library makes none of its own for connections that have no segment yet.
//!
//! Filters that were there before the program began (a container's) are the rule for all programs alike and answer with
//! an error; that is seen when shared memory is refused.

use crate::real;
use core::ffi::{c_int, c_long};
use underpass_segment::sync::{AcqRel, Acquire, AtomicBool, Release};

/// Kept over fork, as the filter is.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether the program has installed a filter.
#[inline]
pub fn is_confined() -> bool {
    CONFINED.load(Acquire)
}

/// Installs a filter by `call`. The library is quiet before other threads are under it.
fn confined(call: impl FnOnce() -> c_long) -> c_long {
    let before = CONFINED.swap(true, AcqRel);
    let answer = call();
    if answer < 0 {
        CONFINED.store(before, Release);
    }
    answer
}

/// # Safety
/// As prctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: passed on to the caller.
    let call = || unsafe { real::prctl(option, a, b, c, d) };
    if option == libc::PR_SET_SECCOMP { confined(|| call().into()) as c_int } else { call() }
}

/// seccomp(2), for which libc has no function.
///
/// # Safety
/// As seccomp(2).
pub unsafe fn seccomp(operation: usize, flags: usize, arguments: usize) -> c_long {
    // SAFETY: passed on to the caller.
    let call = || unsafe { real::syscall(libc::SYS_seccomp, operation, flags, arguments, 0, 0, 0) };
    let installs = [libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER].contains(&(operation as u32));
    if installs { confined(call) } else { call() }
}

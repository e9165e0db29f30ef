//! mlockall and munlockall: where a process locks all that it maps, the library's System V segments are left out.

use crate::guest::real;
use core::ffi::c_int;
use underpass_segment::sysv;

/// # Safety
/// As mlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let answer = unsafe { real::mlockall(flags) };
    if answer == 0 {
        sysv::set_locking(flags & (libc::MCL_FUTURE | libc::MCL_ONFAULT) == libc::MCL_FUTURE);
    }
    answer
}

/// # Safety
/// As munlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    // SAFETY: no arguments.
    let answer = unsafe { real::munlockall() };
    if answer == 0 {
        sysv::set_locking(false);
    }
    answer
}

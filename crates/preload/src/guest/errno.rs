//! The answers of C functions: a value, or -1 with errno set.

use underpass_segment::raw::{Answer, Errno};

/// The error of every call on a broken connection.
pub const BROKEN: Errno = Errno(libc::ECONNRESET);
/// The error of a call that had not begun when its descriptor was closed.
pub const CLOSED: Errno = Errno(libc::EBADF);

/// What a C function returns for `answer`: the value, or -1 with errno set.
#[inline]
pub fn to_c(answer: Answer) -> isize {
    match answer {
        Ok(n) => n as isize,
        Err(Errno(e)) => {
            set(e);
            -1
        }
    }
}

/// What a C function's return value means.
#[inline]
pub fn from_c(value: isize) -> Answer {
    if value < 0 { Err(Errno(get())) } else { Ok(value as usize) }
}

/// errno.
pub fn get() -> i32 {
    // SAFETY: libc's errno of this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets errno.
pub fn set(e: i32) {
    // SAFETY: libc's errno of this thread.
    unsafe { *libc::__errno_location() = e }
}

//! `libunderpass.so`: the libc calls by which a program reaches a TCP socket, one file per family.
//!
//! Each call asks the `table` whether its descriptor is a TCP connection; if not, it is libc's own call and nothing
//! else. If it is, `connection` says how the call has to go: plainly, with the connection's counters kept, or through
//! its segment. The library is a guest: no thread, no signal handler, no output; any doubt ends in the plain call.
#![allow(
    unsafe_code,
    reason = "every function here is a C function or serves one; each unsafe block says why it holds"
)]

mod calls;
mod connection;
mod guest;
mod lifecycle;
mod watch;

use underpass_segment::raw::{Answer, Errno};

/// What the command knows this library by.
#[unsafe(no_mangle)]
static UNDERPASS_LIBRARY: u8 = 1;

/// What a C function returns for `answer`: the value, or -1 with errno set.
#[inline]
fn to_c(answer: Answer) -> isize {
    match answer {
        Ok(n) => n as isize,
        Err(Errno(e)) => {
            set_errno(e);
            -1
        }
    }
}

/// What a C function's return value means.
#[inline]
fn from_c(value: isize) -> Answer {
    if value < 0 { Err(Errno(errno())) } else { Ok(value as usize) }
}

fn errno() -> i32 {
    // SAFETY: libc's errno of this thread.
    unsafe { *libc::__errno_location() }
}

fn set_errno(e: i32) {
    // SAFETY: libc's errno of this thread.
    unsafe { *libc::__errno_location() = e }
}

/// The calls that this library stands for are cancellation points, also when they have nothing to ask of the kernel.
#[inline]
fn test_cancel() {
    unsafe extern "C" {
        fn pthread_testcancel();
    }
    // SAFETY: no arguments; nothing here holds what a cancelled thread would have to give back.
    unsafe { pthread_testcancel() }
}

//! The buffers and flags that a program names in sends and receives, and which of them the kernel refuses.

use super::access::is_readable;
use core::ffi::{c_int, c_void};
use libc::{iovec, off_t, size_t};
use underpass_segment::kernel;
use underpass_segment::vector::{MOST, length};

/// Most buffers of one call, and most messages that sendmmsg takes.
pub const UIO_MAXIOV: usize = 1024;

/// Addresses below this are possible in every process on every processor.
pub const SURE: usize = (1 << 47) - 4096;

/// The buffer of read or write: refused when it is longer than what the process can have, as the kernel does with
/// arrays of more than one.
pub fn whole(buffer: *const c_void, len: size_t) -> [iovec; 2] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: len }, iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }]
}

/// The buffer of recv or send, cut to the most bytes that such a call moves.
pub fn one(buffer: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: len.min(MOST) }
}

/// Whether the kernel refuses the buffers before it looks at the stream.
///
/// # Safety
/// `vector` must point to `count` buffers.
#[inline]
pub unsafe fn refuses(fd: c_int, vector: *const iovec, count: usize) -> bool {
    let unsure = (0..count).any(|index| {
        // SAFETY: the caller vouches for `count` elements.
        let buffer = unsafe { *vector.add(index) };
        (buffer.iov_base as usize).checked_add(buffer.iov_len).is_none_or(|end| end > SURE)
    });
    // SAFETY: passed on to the caller.
    unsure && unsafe { kernel::refuses(fd, vector, count) }
}

/// Whether the kernel refuses an array of the program's, which may be a bad pointer, before it looks at the stream.
#[inline]
pub fn refuses_array(fd: c_int, vector: *const iovec, count: usize) -> bool {
    // SAFETY: there are `count` elements to read.
    count > UIO_MAXIOV || !is_readable(vector, count) || unsafe { refuses(fd, vector, count) }
}

/// Whether the kernel refuses such an array, or finds it empty and answers that without a look at the stream.
#[inline]
pub fn refuses_array_or_empty(fd: c_int, vector: *const iovec, count: c_int) -> bool {
    // SAFETY: an array that was not refused can be read.
    count < 0 || refuses_array(fd, vector, count as usize) || unsafe { length(vector, count as usize) == 0 }
}

/// The flags of pwritev2 and preadv2, all of which a socket takes and one of which it heeds, as send and recv have
/// them; `None` for what the kernel refuses: a place in a stream, or a flag that it does not know.
#[inline]
pub fn flags_as_send(offset: off_t, flags: c_int) -> Option<c_int> {
    const TAKEN: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | libc::RWF_NOAPPEND;
    if offset != -1 || flags & !(TAKEN | libc::RWF_NOWAIT) != 0 {
        return None;
    }
    Some(if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 })
}

/// What glibc's fortified calls check: ends the process when the buffer is known to be too small.
pub fn check_room(len: size_t, room: size_t) {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    if len > room {
        // SAFETY: does not return.
        unsafe { __chk_fail() }
    }
}

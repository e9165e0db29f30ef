//! aio_read, aio_write, lio_listio and io_submit: asynchronous calls, which libc's own threads or the kernel carry out
//! past this library. A connection goes to the kernel path for good before its first such call.

use crate::connection::Connection;
use crate::guest::access::is_readable;
use crate::guest::cancellation::uncancelled;
use crate::guest::{errno, real};
use crate::lifecycle::adopt;
use core::ffi::{c_int, c_long, c_void};
use libc::{aiocb, iocb, size_t, ssize_t};
use underpass_segment::reason::Reason;

/// An aiocb with what libc's own calls keep in it, which its binary interface fixes (<aio.h>).
#[repr(C)]
struct Request {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: size_t,
    event: libc::sigevent,
    next: *mut c_void,
    level: [c_int; 2],
    error: c_int,
    value: ssize_t,
}

const _: () = assert!(core::mem::offset_of!(Request, event) == core::mem::offset_of!(aiocb, aio_sigevent));

/// What aio_error(3) says of a request that has gone well.
const DONE: c_int = 0;

/// The connection is about to be read past the library. If bytes of its stream are left in the ring, they answer this
/// request at once, and the next request may be the first that the kernel answers. Only their sender could put those
/// bytes on the kernel path, and it may be gone.
///
/// # Safety
/// As aio_read(3).
unsafe fn is_answered_here(request: &mut Request) -> bool {
    const PRIORITIES: core::ops::RangeInclusive<c_int> = 0..=20;
    let Some(connection) = adopt::of(request.fd) else { return false };
    if has_some_here(&connection) && request.len > 0 && PRIORITIES.contains(&request.priority) {
        let before = errno::get();
        // SAFETY: the program vouches for its buffer.
        let receive =
            || unsafe { crate::calls::receive::recv(request.fd, request.buffer, request.len, libc::MSG_DONTWAIT) };
        let value = uncancelled(receive);
        let error = if value < 0 { errno::get() } else { DONE };
        errno::set(before);
        if error != libc::EAGAIN {
            (request.error, request.value) = (error, value);
            return true;
        }
    }
    connection.hand_over(Reason::Asynchronous);
    false
}

/// Whether part of the stream may lie in the ring.
fn has_some_here(connection: &Connection) -> bool {
    connection.has_rest() || connection.ready_port().is_some_and(|port| !port.reads_plainly())
}

/// # Safety
/// As aio_read(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_read(block: *mut aiocb) -> c_int {
    // SAFETY: the program vouches for the request; libc tells it that there is an answer as it tells of a list's.
    unsafe {
        let request = &mut *block.cast::<Request>();
        if is_answered_here(request) {
            return real::lio_listio(libc::LIO_NOWAIT, core::ptr::null(), 0, &mut request.event);
        }
        real::aio_read(block)
    }
}

/// # Safety
/// As aio_read(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_read64(block: *mut aiocb) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { aio_read(block) }
}

/// # Safety
/// As aio_write(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_write(block: *mut aiocb) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        adopt::give_up_sends((*block).aio_fildes, Reason::Asynchronous);
        real::aio_write(block)
    }
}

/// # Safety
/// As aio_write(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_write64(block: *mut aiocb) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { aio_write(block) }
}

/// # Safety
/// As lio_listio(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut libc::sigevent,
) -> c_int {
    if !matches!(mode, libc::LIO_WAIT | libc::LIO_NOWAIT) {
        // SAFETY: passed on to the caller; refused before the list is looked at.
        return unsafe { real::lio_listio(mode, list, count, event) };
    }
    let requests = count.max(0) as usize;
    let mut rest = Vec::new();
    if rest.try_reserve_exact(requests).is_err() {
        errno::set(libc::EAGAIN);
        return -1;
    }
    let mut failed = false;
    for index in 0..requests {
        // SAFETY: the program vouches for `count` requests, some of which may be null.
        unsafe {
            let mut block = *list.add(index);
            if let Some(request) = block.cast::<Request>().as_mut() {
                if request.operation == libc::LIO_WRITE {
                    adopt::give_up_sends(request.fd, Reason::Asynchronous);
                } else if request.operation == libc::LIO_READ && is_answered_here(request) {
                    failed |= request.error != DONE;
                    real::lio_listio(libc::LIO_NOWAIT, core::ptr::null(), 0, &mut request.event);
                    block = core::ptr::null_mut();
                }
            }
            rest.push(block);
        }
    }
    // SAFETY: passed on to the caller.
    let answer = unsafe { real::lio_listio(mode, rest.as_ptr(), count, event) };
    if answer == 0 && failed && mode == libc::LIO_WAIT {
        errno::set(libc::EIO);
        return -1;
    }
    answer
}

/// # Safety
/// As lio_listio(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lio_listio64(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut libc::sigevent,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { lio_listio(mode, list, count, event) }
}

/// The connections that requests for io_submit(2) name leave their rings. The kernel stops at the first request that
/// cannot be read.
///
/// # Safety
/// As io_submit(2), where a bad pointer is an error.
pub unsafe fn submitting(count: c_long, requests: *const *const iocb) {
    for index in 0..count.max(0) as usize {
        let at = requests.wrapping_add(index);
        // SAFETY: there is something to read, here and below.
        let request = if is_readable(at, 1) { unsafe { *at } } else { return };
        if !is_readable(request, 1) {
            return;
        }
        // SAFETY: as above.
        if let Some(connection) = adopt::of(unsafe { (*request).aio_fildes } as c_int) {
            connection.hand_over(Reason::Asynchronous);
        }
    }
}

//! sendfile and splice: a file is read straight into the ring, and a splice goes the kernel path.

use super::send::{goes_in_pieces, in_pieces};
use crate::connection::Connection;
use crate::connection::way::Way;
use crate::guest::access::{is_readable, is_writable};
use crate::guest::errno::{self, BROKEN, CLOSED, from_c, to_c};
use crate::guest::real;
use crate::lifecycle::adopt;
use core::ffi::{c_int, c_uint};
use libc::{off_t, size_t, ssize_t};
use underpass_segment::end::Stage;
use underpass_segment::kernel;
use underpass_segment::raw::{Answer, Errno, syscall};
use underpass_segment::reason::Reason;
use underpass_segment::ring::Source;
use underpass_segment::switch::Port;
use underpass_segment::vector::MOST;

/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: passed on to the caller.
    let plain = || unsafe { real::sendfile(out, input, offset, count) };
    if offset.is_null() && moves_from_ring(input, out, count) {
        return splice_out(input, out, count, 0);
    }
    let Some(connection) = adopt::of(out) else { return plain() };
    // Where there is nothing to send, the kernel does not look at the connection.
    if count == 0 || !offset.is_null() && !is_readable(offset, 1) {
        return plain();
    }
    // SAFETY: passed on to the caller.
    let send = |connection, size, _| unsafe { send_file(connection, input, offset, size) };
    if goes_in_pieces(connection, count, 0) {
        return in_pieces(connection, count.min(MOST), send);
    }
    send(connection, count, true)
}

/// # Safety
/// As sendfile(2).
unsafe fn send_file(connection: Connection, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: passed on to the caller.
    let plain = || kernel::letting_signals_in(|| unsafe { real::sendfile(connection.fd, input, offset, count) });
    // SAFETY: passed on to the caller.
    if connection.end.keeps_error() && unsafe { is_at_end(input, offset) } {
        return plain();
    }
    loop {
        let way = connection.way();
        if way == Way::Joined
            && let Some(port) = connection.port()
        {
            // SAFETY: the program vouches for `offset`.
            let answer = unsafe { file_through_channel(connection, &port, input, offset, count) };
            // SAFETY: passed on to the caller.
            let is_at_end = || unsafe { is_at_end(input, offset) };
            if let Err(error) = answer
                && is_at_end()
            {
                // EPIPE need not be kept: the direction stays shut down, so the next call reports it again.
                if error.0 != libc::EPIPE {
                    connection.end.keep_error(error);
                }
                return plain();
            }
            return to_c(answer);
        }
        match way {
            Way::Broken => return to_c(Err(BROKEN)),
            Way::Closed => return to_c(Err(CLOSED)),
            Way::Settled => return plain(),
            Way::Confined => return connection.by_kernel(plain),
            Way::Joined | Way::Plain => {}
        }
        if let Some(answer) = connection.send_plainly(plain) {
            return answer;
        }
    }
}

/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { sendfile(out, input, offset, count) }
}

/// Whether there is nothing to send behind `offset`: then the kernel does not come to look at the connection.
///
/// # Safety
/// As sendfile(2).
unsafe fn is_at_end(input: c_int, offset: *const off_t) -> bool {
    let mut byte = 0u8;
    // SAFETY: passed on to the caller; one byte of this frame.
    unsafe {
        let at = place_in(input, offset) as usize;
        syscall(libc::SYS_pread64, [input as usize, &raw mut byte as usize, 1, at, 0, 0]) == Ok(0)
    }
}

/// The offset in the file from which is sent; negative if it has none. Leaves errno as it was.
///
/// # Safety
/// As sendfile(2).
unsafe fn place_in(input: c_int, offset: *const off_t) -> off_t {
    if !offset.is_null() {
        // SAFETY: passed on to the caller.
        return unsafe { *offset };
    }
    // SAFETY: no pointer among the arguments.
    let at = unsafe { syscall(libc::SYS_lseek, [input as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]) };
    at.map_or(-1, |at| at as off_t)
}

/// A part of a file, read straight into the ring.
struct Part {
    file: c_int,
    at: off_t,
    left: usize,
    failed: bool,
}

impl Source for Part {
    fn left(&self) -> usize {
        self.left
    }

    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
        // Not libc's: this thread holds the lock of the direction, and must not be cancelled here.
        // SAFETY: passed on to the caller.
        let got = unsafe { syscall(libc::SYS_pread64, [self.file as usize, to as usize, len, self.at as usize, 0, 0]) };
        self.failed = got.is_err();
        let got = got.unwrap_or(0);
        self.at += got as off_t;
        self.left = if got == 0 { 0 } else { self.left - got };
        got
    }
}

/// Sends part of a file; its offset moves by what was sent.
///
/// # Safety
/// As sendfile(2).
unsafe fn file_through_channel(
    connection: Connection,
    port: &Port<'_>,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Answer {
    // A failed attempt here must not change errno in a call that succeeds.
    let before = errno::get();
    // SAFETY: passed on to the caller.
    let begin = unsafe { place_in(input, offset) };
    // SAFETY: passed on to the caller.
    let plain = || kernel::letting_signals_in(|| from_c(unsafe { real::sendfile(port.fd, input, offset, count) }));
    let inside = connection.inside();
    let mut part = Part { file: input, at: begin, left: count.min(MOST), failed: begin < 0 };
    let sent = if part.failed {
        0
    } else {
        port.send_from(&mut part, 0, |done| {
            let mut rest = begin + done as off_t;
            // SAFETY: an offset of this frame.
            let mut send = |fd| from_c(unsafe { real::sendfile(fd, input, &mut rest, count - done) });
            let call = |fd| kernel::letting_signals_in(|| send(fd));
            inside.during(|| port.end_kernel_send(), || connection.open_descriptor().ok_or(CLOSED).and_then(call))
        })?
    };
    if sent == 0 && part.failed {
        // The input cannot be read at an offset: it is a pipe, or the call is a mistake for which the kernel has an
        // error.
        errno::set(before);
        return port.send_by_kernel(Reason::Splice, || inside.during(|| port.end_kernel_send(), plain));
    }
    // SAFETY: as above.
    unsafe {
        if offset.is_null() {
            libc::lseek(input, begin + sent as off_t, libc::SEEK_SET);
        } else if is_writable(offset, 1) {
            *offset = begin + sent as off_t;
        } else {
            return Err(Errno(libc::EFAULT));
        }
    }
    errno::set(before);
    Ok(sent)
}

/// # Safety
/// As splice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    input: c_int,
    input_offset: *mut off_t,
    out: c_int,
    out_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    const KNOWN: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    let no_offset = input_offset.is_null() && out_offset.is_null();
    if no_offset && flags & !KNOWN == 0 && moves_from_ring(input, out, len) {
        return splice_out(input, out, len, flags);
    }
    // SAFETY: passed on to the caller.
    let plain = || unsafe { real::splice(input, input_offset, out, out_offset, len, flags) };
    if let Some(connection) = adopt::of(out) {
        connection.pin_once_read(Reason::Splice);
        if connection.end.stage() == Stage::Joined
            && let Some(port) = connection.port()
        {
            let inside = connection.inside();
            let call = || inside.during(|| port.end_kernel_send(), || from_c(plain()));
            return to_c(port.send_by_kernel(Reason::Splice, call));
        }
    }
    plain()
}

/// The stream of `input`, if it is a connection, is to be moved inside the kernel. Whether part of it may still be in
/// the ring, from which the kernel cannot move it. The kernel moves it into a pipe only.
fn moves_from_ring(input: c_int, out: c_int, len: size_t) -> bool {
    let Some(connection) = adopt::of(input) else { return false };
    connection.pin(Reason::Splice);
    connection.ready_port().is_some_and(|port| !port.reads_plainly()) && len > 0 && kernel::is_pipe_to_write(out)
}

/// Copies to the pipe, and takes from the stream what the pipe has taken.
fn splice_out(input: c_int, out: c_int, len: size_t, flags: c_uint) -> ssize_t {
    let mut piece = [0u8; libc::PIPE_BUF];
    // A writable pipe has room for this much. (The socket's own O_NONBLOCK says whether the socket waits.)
    if flags & libc::SPLICE_F_NONBLOCK != 0 && kernel::poll_now(out, libc::POLLOUT) & libc::POLLOUT == 0 {
        errno::set(libc::EAGAIN);
        return -1;
    }
    let most = len.min(piece.len());
    // SAFETY: the piece is valid for its length; a null buffer with MSG_TRUNC is written to by nobody.
    unsafe {
        let seen = crate::calls::receive::recv(input, piece.as_mut_ptr().cast(), most, libc::MSG_PEEK);
        if seen <= 0 {
            return seen;
        }
        let written = real::write(out, piece.as_ptr().cast(), seen as usize);
        if written > 0 {
            crate::calls::receive::recv(
                input,
                core::ptr::null_mut(),
                written as usize,
                libc::MSG_TRUNC | libc::MSG_DONTWAIT,
            );
        }
        written
    }
}

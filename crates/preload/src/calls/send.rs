//! write, writev, pwritev2, send, sendto, sendmsg, sendmmsg, and their aliases.

use super::passed;
use crate::connection::Connection;
use crate::connection::way::Way;
use crate::guest::access::{are_bytes_readable, is_readable, is_writable};
use crate::guest::buffers::{UIO_MAXIOV, flags_as_send, one, refuses, refuses_array, refuses_array_or_empty, whole};
use crate::guest::cancellation::test_cancel;
use crate::guest::errno::{self, BROKEN, CLOSED, from_c, to_c};
use crate::guest::{deadline, real};
use crate::lifecycle::adopt;
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, pollfd, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use underpass_segment::clock;
use underpass_segment::end::Stage;
use underpass_segment::kernel::{self, HeldBack};
use underpass_segment::raw::{Answer, Errno, is_quiet};
use underpass_segment::reason::Reason;
use underpass_segment::sync::Relaxed;
use underpass_segment::vector::{Cursor, MAX_BUFFERS, length};

/// Flags that a send through the channel honours; MSG_MORE may be ignored.
const CARRIED: c_int = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_MORE
    | libc::MSG_EOR
    | libc::MSG_CONFIRM
    | libc::MSG_DONTROUTE
    | libc::MSG_WAITALL;

/// Sends `count` buffers, or has `plain` do it: also if the call is `refused` before the kernel looks at the
/// connection.
///
/// # Safety
/// The buffers must be valid for reading, unless the call is refused.
#[inline]
unsafe fn send_vector(
    fd: c_int,
    refused: impl FnOnce() -> bool,
    vector: *const iovec,
    count: usize,
    flags: c_int,
    plain: impl Fn() -> ssize_t,
) -> ssize_t {
    let Some(connection) = adopt::of(fd) else { return plain() };
    if refused() {
        return plain();
    }
    if flags & !CARRIED != 0 {
        pin_for_flags(connection, flags);
    }
    // SAFETY: passed on to the caller.
    unsafe {
        send_buffers(connection, vector, count, flags, false, plain, |connection, len| {
            count <= MAX_BUFFERS && goes_in_pieces(connection, len, flags)
        })
    }
}

/// Sends `count` buffers on `connection`, in pieces if `is_large` says so. `has_part`: the call has sent something
/// before.
///
/// # Safety
/// The buffers must be valid for reading.
#[inline]
unsafe fn send_buffers(
    connection: Connection,
    vector: *const iovec,
    count: usize,
    flags: c_int,
    has_part: bool,
    plain: impl Fn() -> ssize_t,
    is_large: impl Fn(Connection, usize) -> bool,
) -> ssize_t {
    loop {
        let way = connection.way();
        if way == Way::Joined
            && let Some(port) = connection.port()
        {
            test_cancel();
            // SAFETY: passed on to the caller.
            let cursor = unsafe { Cursor::new(vector, count) };
            if is_large(connection, cursor.left()) {
                return send_buffers_in_pieces(connection, cursor, flags);
            }
            let inside = connection.inside();
            let by_kernel = |done| {
                if done == 0 && !has_part && connection.open_descriptor() == Some(connection.fd) {
                    return from_c(kernel::letting_signals_in(&plain));
                }
                // SAFETY: as above; `done` bytes of them are sent.
                let mut rest = unsafe { Cursor::new(vector, count) };
                rest.skip(done);
                send_rest(&connection, rest, flags, has_part || done > 0)
            };
            let answer = port.send(cursor, flags, |done| inside.during(|| port.end_kernel_send(), || by_kernel(done)));
            return to_c(answer);
        }
        match way {
            Way::Broken => return to_c(Err(BROKEN)),
            Way::Closed => return to_c(Err(CLOSED)),
            Way::Settled => return plain(),
            Way::Confined => return connection.by_kernel(&plain),
            // SAFETY: as above.
            Way::Plain if is_large(connection, unsafe { length(vector, count) }) => {
                // SAFETY: as above.
                return send_buffers_in_pieces(connection, unsafe { Cursor::new(vector, count) }, flags);
            }
            Way::Joined | Way::Plain => {}
        }
        if let Some(answer) = connection.send_plainly(&plain) {
            return answer;
        }
    }
}

/// Larger sends go in pieces of this size. Before the ends have met, the first piece is smaller and each other as large
/// as all before it: where they never meet, most of the send is the kernel's own.
const LARGE: usize = 1 << 20;
const FIRST_PIECE: usize = 256 << 10;

/// Whether a send of `len` bytes is to choose its path more than once: a single call of the kernel's would keep a
/// connection that is worth a channel by now on kernel TCP for all that is left. A call with a time for all its waits
/// (SO_SNDTIMEO) is left whole.
#[inline]
pub fn goes_in_pieces(connection: Connection, len: usize, flags: c_int) -> bool {
    #[cold]
    fn may(connection: Connection, flags: c_int) -> bool {
        let end = connection.end;
        flags & (libc::MSG_DONTWAIT | !CARRIED) == 0
            && end.nonblocking.load(Relaxed) == 0
            && end.stage() <= Stage::Joined
            && !end.is_pinned()
            && kernel::timeout(connection.fd, libc::SO_SNDTIMEO).is_none()
    }
    len > LARGE && may(connection, flags)
}

/// A large send of `len` bytes in pieces of a size, each sent by `send`, which is told whether it is the first. It is
/// one call to the program: once a part is sent, a signal ends it, and an error is for the next call.
pub fn in_pieces(
    connection: Connection,
    len: usize,
    mut send: impl FnMut(Connection, usize, bool) -> ssize_t,
) -> ssize_t {
    let before = errno::get();
    let (mut by, mut done, mut size) = (connection, 0, FIRST_PIECE);
    let _held_back = HeldBack::new();
    // As in the kernel, the call has the socket until it returns.
    connection.inside().during(
        || {},
        || loop {
            size = size.min(len - done);
            let sent = send(by, size, done == 0);
            if sent < 0 && done == 0 {
                return sent;
            }
            done += sent.max(0) as usize;
            // Where there is room, the next call sends something at once, so whatever ends it, it returns what was
            // sent.
            if sent < size as ssize_t || done == len || !has_room(&mut by) {
                errno::set(before);
                return done as ssize_t;
            }
            size = if connection.end.stage() == Stage::Joined { LARGE } else { done };
        },
    )
}

/// Waits until there is room for something, and finds a descriptor of the connection for it; false if a signal or the
/// end of the connection comes before.
fn has_room(connection: &mut Connection) -> bool {
    let Some(fd) = connection.open_descriptor() else { return false };
    let is_writable = || {
        let mut it = pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd; no limit.
        let poll = |mask| unsafe { real::ppoll(&mut it, 1, core::ptr::null(), mask) };
        let count = deadline::with_own_mask(poll);
        count == 1 && it.revents & (libc::POLLERR | libc::POLLHUP) == 0
    };
    let has_room = connection.end.sending.is_fast() || is_writable();
    // It may have been closed meanwhile, and the number given to something else.
    let Some(fd) = connection.open_descriptor() else { return false };
    *connection = connection.by(fd);
    has_room
}

#[cold]
fn send_buffers_in_pieces(connection: Connection, mut rest: Cursor, flags: c_int) -> ssize_t {
    in_pieces(connection, rest.left(), |connection, size, is_first| {
        let mut message = rest.message(size);
        let header = message.header();
        let (vector, count) = (header.msg_iov.cast_const(), header.msg_iovlen);
        // SAFETY: the message names what is left of the program's buffers.
        let sent = unsafe {
            let plain = || to_c(send_rest(&connection, Cursor::new(vector, count), flags, !is_first));
            send_buffers(connection, vector, count, flags, !is_first, plain, |_, _| false)
        };
        if sent >= 0 {
            rest.skip(sent as usize);
        } else if !is_first && errno::get() != libc::EPIPE {
            connection.end.keep_error(Errno(errno::get()));
        }
        sent
    })
}

/// Pins the connection because of flags that the ring does not carry. The connection by value: by reference, every send
/// would copy it into memory.
#[cold]
fn pin_for_flags(connection: Connection, flags: c_int) {
    connection.pin_once_read(not_carried(flags));
}

fn not_carried(flags: c_int) -> Reason {
    match flags {
        f if f & libc::MSG_OOB != 0 => Reason::Urgent,
        f if f & libc::MSG_ZEROCOPY != 0 => Reason::ZeroCopy,
        f if f & libc::MSG_FASTOPEN != 0 => Reason::FastOpen,
        _ => Reason::Unsupported,
    }
}

/// Sends what is left under `rest` on the kernel path, by calls that do not wait and polls, which let in signals that
/// are held back. As in the kernel, the call has the socket until it returns, its time is that of all its waits
/// (SO_SNDTIMEO), and once a part is sent a signal ends it, and an error is for the next call.
fn send_rest(connection: &Connection, mut rest: Cursor, flags: c_int, has_part: bool) -> Answer {
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || connection.end.nonblocking.load(Relaxed) != 0;
    let timeout = if nonblocking { Some(0) } else { kernel::timeout(connection.fd, libc::SO_SNDTIMEO) };
    let deadline = timeout.map(|timeout| clock::nanoseconds().saturating_add(timeout));
    let before = errno::get();
    let mut total = 0;
    while rest.left() > 0 {
        let mut message = rest.message(usize::MAX);
        let header = message.header();
        // SAFETY: the message names what is left of the program's buffers.
        let send = |fd, flags| from_c(unsafe { real::sendmsg(fd, &header, flags) });
        let descriptor = || connection.open_descriptor();
        let answer = if has_part || total > 0 {
            let send = |fd| send(fd, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
            deadline::try_until(deadline, libc::POLLOUT, descriptor, send)
        } else {
            // The kernel itself waits for the first part, and goes on after a signal where the program wants that.
            descriptor().ok_or(CLOSED).and_then(|fd| match send(fd, flags | libc::MSG_DONTWAIT) {
                Err(Errno(libc::EAGAIN)) => kernel::letting_signals_in(|| send(fd, flags)),
                answer => answer,
            })
        };
        match answer {
            Ok(n) => {
                total += n;
                rest.skip(n);
            }
            Err(e) if !has_part && total == 0 => return Err(e),
            Err(e) => {
                if e.0 != libc::EPIPE {
                    connection.end.keep_error(e);
                }
                break;
            }
        }
    }
    errno::set(before);
    Ok(total)
}

/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    let vector = whole(buffer, len);
    // SAFETY: the program vouches for its buffer, here and below.
    unsafe {
        send_vector(fd, || refuses(fd, vector.as_ptr(), 2), vector.as_ptr(), 1, 0, || real::write(fd, buffer, len))
    }
}

/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { write(fd, buffer, len) }
}

/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as in `write`.
    unsafe {
        let refused = || refuses_array_or_empty(fd, vector, count);
        send_vector(fd, refused, vector, count as usize, 0, || real::writev(fd, vector, count))
    }
}

/// # Safety
/// As pwritev2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(as_send) = flags_as_send(offset, flags) else {
        // SAFETY: passed on to the caller.
        return unsafe { real::pwritev2(fd, vector, count, offset, flags) };
    };
    // SAFETY: as in `write`.
    unsafe {
        let refused = || refuses_array_or_empty(fd, vector, count);
        send_vector(fd, refused, vector, count as usize, as_send, || real::pwritev2(fd, vector, count, offset, flags))
    }
}

/// # Safety
/// As pwritev2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { pwritev2(fd, vector, count, offset, flags) }
}

/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let vector = one(buffer, len);
    // SAFETY: as in `write`.
    unsafe { send_vector(fd, || refuses(fd, &vector, 1), &vector, 1, flags, || real::send(fd, buffer, len, flags)) }
}

/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { send(fd, buffer, len, flags) }
}

/// # Safety
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    let vector = one(buffer, len);
    // SAFETY: as in `write`. A connected TCP socket ignores the address.
    unsafe {
        let plain = || real::sendto(fd, buffer, len, flags, address, address_len);
        let is_bad = |len: usize| len > size_of::<sockaddr_storage>() || !are_bytes_readable(address.cast(), len);
        let refused = || !address.is_null() && is_bad(address_len as usize) || refuses(fd, &vector, 1);
        send_vector(fd, refused, &vector, 1, flags, plain)
    }
}

/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for the message and what it points to.
    unsafe {
        if !is_readable(message, 1) {
            return real::sendmsg(fd, message, flags);
        }
        if (*message).msg_controllen != 0 {
            return passed::send_control(fd, message, flags);
        }
        let (vector, count) = ((*message).msg_iov.cast_const(), (*message).msg_iovlen);
        let name = (*message).msg_name;
        let is_bad = |len: socklen_t| {
            (len as c_int) < 0 || !are_bytes_readable(name, (len as usize).min(size_of::<sockaddr_storage>()))
        };
        let refused = || !name.is_null() && is_bad((*message).msg_namelen) || refuses_array(fd, vector, count);
        send_vector(fd, refused, vector, count, flags, || real::sendmsg(fd, message, flags))
    }
}

/// Whether everything that a confined process sends on the connection goes by libc's calls.
fn goes_by_kernel(connection: Connection) -> bool {
    matches!(connection.way(), Way::Confined | Way::Settled | Way::Plain)
}

/// # Safety
/// As sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program vouches for the messages.
    unsafe {
        let count = count.min(UIO_MAXIOV as c_uint);
        let plain = || real::sendmmsg(fd, messages, count, flags);
        match adopt::of(fd) {
            None if !passed::pass_any(messages, count as usize) => return plain(),
            None if is_quiet() && passed::lend_all(fd, messages, count as usize) => return plain(),
            // Behind a seccomp filter, the program's own call.
            Some(connection) if is_quiet() && goes_by_kernel(connection) => {
                return connection.by_kernel(|| plain() as ssize_t) as c_int;
            }
            _ => {}
        }
        let before = errno::get();
        let mut done = 0;
        while done < count {
            let message = messages.wrapping_add(done as usize);
            let mut answer = sendmsg(fd, &raw const (*message).msg_hdr, flags);
            if answer >= 0 && !is_writable(message, 1) {
                // As in the kernel, the message is sent all the same.
                answer = to_c(Err(Errno(libc::EFAULT)));
            }
            if answer < 0 {
                if done == 0 {
                    return -1;
                }
                errno::set(before);
                break;
            }
            (*message).msg_len = answer as c_uint;
            done += 1;
            // After a message that was sent in part, the next one would leave a hole.
            if (answer as usize) < length((*message).msg_hdr.msg_iov, (*message).msg_hdr.msg_iovlen) {
                break;
            }
        }
        done as c_int
    }
}

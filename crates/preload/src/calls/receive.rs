//! read, readv, preadv2, recv, recvfrom, recvmsg, recvmmsg, and their aliases.

use super::passed;
use crate::connection::way::Way;
use crate::connection::{self, inside};
use crate::guest::access::{is_readable, is_writable};
use crate::guest::buffers::{check_room, flags_as_send, one, refuses, refuses_array, refuses_array_or_empty, whole};
use crate::guest::cancellation::test_cancel;
use crate::guest::errno::{self, BROKEN, CLOSED, from_c, to_c};
use crate::guest::{deadline, real};
use crate::lifecycle::adopt;
use crate::watch::epoll;
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use underpass_segment::clock;
use underpass_segment::raw::Errno;
use underpass_segment::switch::{ANEW, Port};
use underpass_segment::vector::{Cursor, length};

/// Flags that a receive through the channel honours. TCP ignores the others.
const CARRIED: c_int = libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_DONTWAIT
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Receives into `cursor`, or has `plain` do it: also if the call is `refused` before the kernel looks at the stream.
/// `call` is the same call with other buffers and flags.
#[inline]
fn receive(
    fd: c_int,
    refused: impl FnOnce() -> bool,
    mut cursor: impl FnMut() -> Cursor,
    flags: c_int,
    plain: impl Fn() -> ssize_t,
    call: impl Fn(&mut msghdr, c_int) -> ssize_t,
) -> ssize_t {
    let Some(connection) = adopt::of(fd) else { return plain() };
    // These receives take no bytes of the stream.
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 || refused() {
        return plain();
    }
    loop {
        let way = connection.way();
        if way == Way::Joined
            && let Some(mut port) = connection.port()
        {
            if port.reads_plainly() {
                return connection.receive_past(flags, &plain);
            }
            if port.become_ready() {
                test_cancel();
                let answer = port.receive(cursor(), flags & CARRIED);
                if port.end.reading.resting.is_stray() {
                    epoll::take_back(port.fd);
                }
                if port.keeps_socket {
                    inside::let_go(&mut port);
                }
                if answer == Err(ANEW) {
                    continue;
                }
                return to_c(answer);
            }
        }
        match way {
            Way::Broken => return to_c(Err(BROKEN)),
            Way::Closed => return to_c(Err(CLOSED)),
            Way::Settled => return plain(),
            Way::Confined => {
                let call = |message: &mut msghdr, flags| from_c(call(message, flags));
                let answer = connection.by_kernel(|| match connection.receive_rest(&mut cursor, flags, &call) {
                    Some(answer) => to_c(answer),
                    None => plain(),
                });
                return answer;
            }
            Way::Joined | Way::Plain => {}
        }
        if let Some(answer) = connection.receive_plainly(flags, &plain) {
            return answer;
        }
    }
}

/// The only buffer of `message`.
///
/// # Safety
/// It must have one.
unsafe fn first(message: &msghdr) -> iovec {
    // SAFETY: passed on to the caller.
    unsafe { *message.msg_iov }
}

/// A cursor for `count` buffers, or for throwing their length away.
///
/// # Safety
/// As for [`Cursor::new`].
unsafe fn cursor(vector: *const iovec, count: usize, flags: c_int) -> Cursor {
    // SAFETY: passed on to the caller.
    unsafe {
        match flags & libc::MSG_TRUNC {
            0 => Cursor::new(vector, count),
            _ => Cursor::discarding(length(vector, count)),
        }
    }
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    let vector = whole(buffer, len);
    // SAFETY: the program vouches for its buffer, here and below.
    unsafe {
        receive(
            fd,
            || len == 0 || refuses(fd, vector.as_ptr(), 2),
            || cursor(vector.as_ptr(), 1, 0),
            0,
            || real::read(fd, buffer, len),
            |it, _| real::read(fd, first(it).iov_base, first(it).iov_len),
        )
    }
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { read(fd, buffer, len) }
}

/// # Safety
/// As read(2); `room` is the size of the buffer as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check_room(len, room);
    // SAFETY: passed on to the caller.
    unsafe { read(fd, buffer, len) }
}

/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as in `read`.
    unsafe {
        receive(
            fd,
            || refuses_array_or_empty(fd, vector, count),
            || cursor(vector, count as usize, 0),
            0,
            || real::readv(fd, vector, count),
            |it, _| real::readv(fd, it.msg_iov, it.msg_iovlen as c_int),
        )
    }
}

/// # Safety
/// As preadv2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let Some(as_recv) = flags_as_send(offset, flags) else {
        // SAFETY: passed on to the caller.
        return unsafe { real::preadv2(fd, vector, count, offset, flags) };
    };
    // SAFETY: as in `read`.
    unsafe {
        receive(
            fd,
            || refuses_array_or_empty(fd, vector, count),
            || cursor(vector, count as usize, 0),
            as_recv,
            || real::preadv2(fd, vector, count, offset, flags),
            |it, _| real::preadv2(fd, it.msg_iov, it.msg_iovlen as c_int, offset, flags),
        )
    }
}

/// # Safety
/// As preadv2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { preadv2(fd, vector, count, offset, flags) }
}

/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let vector = one(buffer, len);
    // SAFETY: as in `read`.
    unsafe {
        receive(
            fd,
            || refuses(fd, &vector, 1),
            || cursor(&vector, 1, flags),
            flags,
            || real::recv(fd, buffer, len, flags),
            |it, flags| real::recv(fd, first(it).iov_base, first(it).iov_len, flags),
        )
    }
}

/// # Safety
/// As recv(2); `room` is the size of the buffer as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check_room(len, room);
    // SAFETY: passed on to the caller.
    unsafe { recv(fd, buffer, len, flags) }
}

/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let vector = one(buffer, len);
    // SAFETY: as in `read`. TCP leaves the address alone and sets its length to 0.
    unsafe {
        let answer = receive(
            fd,
            || refuses(fd, &vector, 1),
            || cursor(&vector, 1, flags),
            flags,
            || real::recvfrom(fd, buffer, len, flags, address, address_len),
            |it, flags| {
                let nobody = core::ptr::null_mut();
                real::recvfrom(fd, first(it).iov_base, first(it).iov_len, flags, nobody, core::ptr::null_mut())
            },
        );
        if answer >= 0 && !address.is_null() && connection::known(fd).is_some() {
            // As in the kernel, what was received is lost.
            if !is_writable(address_len, 1) {
                return to_c(Err(Errno(libc::EFAULT)));
            }
            if (*address_len as c_int) < 0 {
                return to_c(Err(Errno(libc::EINVAL)));
            }
            *address_len = 0;
        }
        answer
    }
}

/// # Safety
/// As recvfrom(2); `room` is the size of the buffer as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    check_room(len, room);
    // SAFETY: passed on to the caller.
    unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
}

/// # Safety
/// recvmsg(2) must have filled in the message.
unsafe fn take_passed_sockets(message: *const msghdr, flags: c_int) {
    // SAFETY: passed on to the caller.
    unsafe {
        if !(*message).msg_control.is_null() {
            passed::received_control(message, flags & libc::MSG_PEEK != 0);
        }
    }
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { receive_message(fd, message, flags, |it, flags| real::recvmsg(fd, it, flags)) }
}

/// recvmsg(2), where the kernel's part is made by `call`.
///
/// # Safety
/// As recvmsg(2).
#[inline]
unsafe fn receive_message(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
    call: impl Fn(*mut msghdr, c_int) -> ssize_t,
) -> ssize_t {
    const MSG_CMSG_COMPAT: c_int = 1 << 31;
    // SAFETY: the program vouches for the message and what it points to.
    unsafe {
        crate::calls::options::pin_if_stamps_are_wanted(fd, message);
        let (mut carried, mut is_fixed) = (false, false);
        let answer = receive(
            fd,
            || {
                is_fixed = !is_writable(message, 1);
                is_fixed && !is_readable(message, 1)
                    || flags & MSG_CMSG_COMPAT != 0
                    || !(*message).msg_name.is_null() && ((*message).msg_namelen as c_int) < 0
                    || refuses_array(fd, (*message).msg_iov, (*message).msg_iovlen)
            },
            || {
                carried = true;
                cursor((*message).msg_iov, (*message).msg_iovlen, flags)
            },
            flags,
            || {
                let answer = call(message, flags);
                if answer >= 0 {
                    take_passed_sockets(message, flags);
                }
                answer
            },
            |it, flags| call(it, flags),
        );
        if carried && answer >= 0 {
            // As in the kernel, what was received is lost.
            if is_fixed {
                return to_c(Err(Errno(libc::EFAULT)));
            }
            if !(*message).msg_name.is_null() {
                (*message).msg_namelen = 0;
            }
            (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            let room = core::mem::take(&mut (*message).msg_controllen);
            if room > 0 {
                crate::calls::options::tell_unread(fd, message, room);
            }
        }
        answer
    }
}

/// One message by recvmmsg(2): a seccomp filter may allow nothing else.
///
/// # Safety
/// As recvmsg(2).
unsafe fn receive_one_of_many(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut one = mmsghdr { msg_hdr: *message, msg_len: 0 };
        if real::recvmmsg(fd, &mut one, 1, flags, core::ptr::null_mut()) != 1 {
            return -1;
        }
        *message = one.msg_hdr;
        one.msg_len as ssize_t
    }
}

/// # Safety
/// As recvmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program vouches for the messages.
    unsafe {
        let mut answer = -1;
        let mut plain = || {
            answer = real::recvmmsg(fd, messages, count, flags, timeout);
            let mut bytes = 0;
            for index in 0..answer.max(0) as usize {
                let message = &*messages.add(index);
                take_passed_sockets(&message.msg_hdr, flags);
                bytes += message.msg_len as ssize_t;
            }
            if answer < 0 { -1 } else { bytes }
        };
        if count > 0 {
            crate::calls::options::pin_if_stamps_are_wanted(fd, messages.cast());
        }
        let is_bad = || count > 0 && !is_readable(messages, 1) || deadline::invalid(timeout);
        let by_itself = flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0;
        let Some(connection) = adopt::of(fd).filter(|_| !by_itself && !is_bad()) else {
            plain();
            return answer;
        };
        let way = connection.way();
        if way == Way::Settled {
            plain();
            return answer;
        }
        let port = if way == Way::Joined { connection.port() } else { None };
        if port.is_some_and(|port| port.reads_plainly()) {
            connection.receive_past(flags, plain);
            return answer;
        }
        if way == Way::Confined && !connection.may_have_rest() {
            connection.by_kernel(plain);
            return answer;
        }
        if way == Way::Plain && connection.receive_plainly(flags, plain).is_some() {
            return answer;
        }
        receive_each(fd, port, messages, count, flags, timeout)
    }
}

/// recvmmsg(2) on a connection that has a ring, by the port if there is one: message by message.
///
/// # Safety
/// As recvmmsg(2), of messages the first of which can be read.
unsafe fn receive_each(
    fd: c_int,
    port: Option<Port<'_>>,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        // As in the kernel, an error is reported before the bytes that can be read, and a later error is kept for the
        // next call.
        if let Some(error) = port.and_then(|port| port.take_error()) {
            return to_c(Err(error)) as c_int;
        }
        let before = errno::get();
        // As in the kernel, the clock is read only after each message.
        let deadline = deadline::after(timeout);
        let mut done = 0;
        while done < count {
            let message = messages.wrapping_add(done as usize);
            let wait = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
            let (header, flags) = (&raw mut (*message).msg_hdr, flags & !libc::MSG_WAITFORONE | wait);
            let mut answer = match port {
                Some(_) => recvmsg(fd, header, flags),
                None => receive_message(fd, header, flags, |it, flags| receive_one_of_many(fd, it, flags)),
            };
            if answer >= 0 && !is_writable(message, 1) {
                answer = to_c(Err(Errno(libc::EFAULT)));
            }
            if answer < 0 {
                if done == 0 {
                    return -1;
                }
                if let Some(port) = port {
                    port.end.keep_error(Errno(errno::get()));
                }
                errno::set(before);
                break;
            }
            (*message).msg_len = answer as c_uint;
            done += 1;
            if deadline.is_some_and(|at| clock::nanoseconds() >= at) {
                break;
            }
        }
        if let Some(left) = deadline::left(deadline, u64::MAX) {
            if !is_writable(timeout, 1) {
                return to_c(Err(Errno(libc::EFAULT))) as c_int;
            }
            *timeout = left;
        }
        done as c_int
    }
}

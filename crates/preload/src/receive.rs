//! read, readv, preadv2, recv, recvfrom, recvmsg, recvmmsg, and their aliases.

use crate::connection::{self, BROKEN, CLOSED, Way};
use crate::{from_c, real, to_c};
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use underpass_segment::raw::Errno;
use underpass_segment::switch::ANEW;
use underpass_segment::vector::Cursor;

/// Flags that a receive through the segment honours. TCP ignores the others.
const CARRIED: c_int = libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_DONTWAIT
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Receives into `cursor`, or has `plain` do it. `call` is the same call with other buffers and flags.
#[inline]
fn receive(
    fd: c_int,
    mut cursor: impl FnMut() -> Cursor,
    flags: c_int,
    plain: impl Fn() -> ssize_t,
    call: impl Fn(&mut msghdr, c_int) -> ssize_t,
) -> ssize_t {
    let Some(connection) = connection::of(fd) else { return plain() };
    // Neither takes any byte of the stream.
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
        return plain();
    }
    loop {
        let way = connection.way();
        if way == Way::Joined
            && let Some(mut port) = connection.port()
        {
            if port.reads_plainly() {
                return connection.receive_past(flags, plain);
            }
            if port.become_ready() {
                crate::test_cancel();
                let answer = port.receive(cursor(), flags & CARRIED);
                if port.end.reading.resting.is_stray() {
                    crate::epoll::take_back(port.fd);
                }
                if port.is_held {
                    connection::let_go(&mut port);
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

fn one(buffer: *mut c_void, len: size_t) -> iovec {
    iovec { iov_base: buffer, iov_len: len.min(isize::MAX as usize) }
}

/// The only buffer of `message`.
///
/// # Safety
/// It must have one.
unsafe fn first(message: &msghdr) -> iovec {
    // SAFETY: passed on to the caller.
    unsafe { *message.msg_iov }
}

/// Whether no process can have such a buffer: the kernel refuses it before it looks at the stream.
pub fn impossible(buffer: *const c_void, len: size_t) -> bool {
    const USER_SPACE: usize = 1 << 56;
    (buffer as usize).checked_add(len).is_none_or(|end| end > USER_SPACE)
}

/// Whether the kernel refuses the array of buffers before it looks at the stream, or finds it empty.
///
/// # Safety
/// `vector` must point to `count` buffers.
pub unsafe fn impossible_vector(vector: *const iovec, count: usize) -> bool {
    let mut total = 0usize;
    for index in 0..count {
        // SAFETY: the caller vouches for `count` elements.
        let buffer = unsafe { *vector.add(index) };
        if buffer.iov_len > isize::MAX as usize || impossible(buffer.iov_base, buffer.iov_len) {
            return true;
        }
        total = total.saturating_add(buffer.iov_len);
    }
    total == 0
}

/// Whether the buffers hold nothing.
///
/// # Safety
/// `vector` must point to `count` buffers.
unsafe fn empty(vector: *const iovec, count: usize) -> bool {
    // SAFETY: the caller vouches for `count` elements.
    (0..count).all(|index| unsafe { (*vector.add(index)).iov_len == 0 })
}

/// A cursor for `count` buffers, or for throwing their length away.
///
/// # Safety
/// As for [`Cursor::new`].
unsafe fn cursor(vector: *const iovec, count: usize, flags: c_int) -> Cursor {
    // SAFETY: passed on to the caller.
    let cursor = unsafe { Cursor::new(vector, count) };
    if flags & libc::MSG_TRUNC != 0 { Cursor::discarding(cursor.left()) } else { cursor }
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    if len == 0 || impossible(buffer, len) {
        // The kernel's answer does not depend on the stream.
        // SAFETY: passed on to the caller.
        return unsafe { real::read(fd, buffer, len) };
    }
    let vector = one(buffer, len);
    // SAFETY: the program vouches for its buffer, here and below.
    unsafe {
        receive(
            fd,
            || cursor(&vector, 1, 0),
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
    crate::descriptor::check_room(len, room);
    // SAFETY: passed on to the caller.
    unsafe { read(fd, buffer, len) }
}

/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its array.
    if !(0..=1024).contains(&count) || unsafe { impossible_vector(vector, count as usize) } {
        // SAFETY: passed on to the caller.
        return unsafe { real::readv(fd, vector, count) };
    }
    // SAFETY: as in `read`.
    unsafe {
        receive(
            fd,
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
    const RWF_NOWAIT: c_int = 8;
    let foreign = offset != -1 || flags & !RWF_NOWAIT != 0;
    // SAFETY: the program vouches for its array.
    if foreign || !(0..=1024).contains(&count) || unsafe { impossible_vector(vector, count as usize) } {
        // SAFETY: passed on to the caller.
        return unsafe { real::preadv2(fd, vector, count, offset, flags) };
    }
    let as_recv = if flags & RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: as in `read`.
    unsafe {
        receive(
            fd,
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
    crate::descriptor::check_room(len, room);
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
            || cursor(&vector, 1, flags),
            flags,
            || real::recvfrom(fd, buffer, len, flags, address, address_len),
            |it, flags| {
                let nobody = core::ptr::null_mut();
                real::recvfrom(fd, first(it).iov_base, first(it).iov_len, flags, nobody, core::ptr::null_mut())
            },
        );
        if answer >= 0 && !address.is_null() && !address_len.is_null() && connection::known(fd).is_some() {
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
    crate::descriptor::check_room(len, room);
    // SAFETY: passed on to the caller.
    unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
}

/// # Safety
/// The message must be one that recvmsg(2) has filled in.
unsafe fn heed_control(message: *const msghdr, flags: c_int) {
    // What is only peeked at comes again, under other numbers.
    // SAFETY: passed on to the caller.
    unsafe {
        if !(*message).msg_control.is_null() && flags & libc::MSG_PEEK == 0 {
            crate::descriptor::received_control(message);
        }
    }
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    const MSG_CMSG_COMPAT: c_int = 1 << 31;
    // SAFETY: the program vouches for the message and what it points to.
    unsafe {
        let (vector, count) = if message.is_null() {
            (core::ptr::null(), 0)
        } else {
            ((*message).msg_iov.cast_const(), (*message).msg_iovlen)
        };
        let refused = message.is_null() || count > 1024 || flags & MSG_CMSG_COMPAT != 0;
        if refused || (count > 0 && impossible_vector(vector, count) && !empty(vector, count)) {
            return real::recvmsg(fd, message, flags);
        }
        let mut carried = false;
        let answer = receive(
            fd,
            || {
                carried = true;
                cursor(vector, count, flags)
            },
            flags,
            || {
                let answer = real::recvmsg(fd, message, flags);
                if answer >= 0 {
                    heed_control(message, flags);
                }
                answer
            },
            |it, flags| real::recvmsg(fd, it, flags),
        );
        if carried && answer >= 0 {
            (*message).msg_namelen = 0;
            (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            let room = core::mem::take(&mut (*message).msg_controllen);
            if room > 0 {
                crate::options::tell_unread(fd, message, room);
            }
        }
        answer
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
                heed_control(&message.msg_hdr, flags);
                bytes += message.msg_len as ssize_t;
            }
            if answer < 0 { -1 } else { bytes }
        };
        let by_itself = crate::poll::invalid(timeout) || flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0;
        let Some(connection) = connection::of(fd).filter(|_| !by_itself) else {
            plain();
            return answer;
        };
        let way = connection.way();
        let port = connection.port().filter(|_| way == Way::Joined);
        if port.is_some_and(|port| port.reads_plainly()) {
            connection.receive_past(flags, plain);
            return answer;
        }
        if way == Way::Plain && connection.receive_plainly(flags, plain).is_some() {
            return answer;
        }
        // As in the kernel, an error comes before what there is to read, and one behind it is kept for the next call.
        if let Some(error) = port.and_then(|port| port.take_error()) {
            return to_c(Err(error)) as c_int;
        }
        let before = crate::errno();
        // As in the kernel, the time is looked at after each message only.
        let deadline = crate::poll::after(timeout);
        let mut done = 0;
        while done < count {
            let message = messages.add(done as usize);
            let wait = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
            let answer = recvmsg(fd, &mut (*message).msg_hdr, flags & !libc::MSG_WAITFORONE | wait);
            if answer < 0 {
                if done == 0 {
                    return -1;
                }
                if let Some(port) = port {
                    port.keep_error(Errno(crate::errno()));
                }
                crate::set_errno(before);
                break;
            }
            (*message).msg_len = answer as c_uint;
            done += 1;
            if deadline.is_some_and(|at| underpass_segment::clock::nanoseconds() >= at) {
                break;
            }
        }
        if let Some(left) = crate::poll::left(deadline, u64::MAX) {
            *timeout = left;
        }
        done as c_int
    }
}

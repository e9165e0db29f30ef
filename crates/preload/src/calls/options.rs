//! getsockopt, setsockopt, ioctl: options that the fast path has to know of, and queues that it has to count.

use crate::connection::options::{
    SMALL_BUFFER, STAMPS, TCP_INQ, TIMESTAMPING, is_rare, is_stamped, note_rare, set_nonblocking,
};
use crate::connection::{self, Connection};
use crate::guest::access::{are_bytes_readable, is_readable, is_writable};
use crate::guest::real;
use crate::lifecycle::adopt;
use core::ffi::{c_int, c_ulong, c_void};
use libc::{msghdr, socklen_t};
use underpass_segment::kernel;
use underpass_segment::raw::Errno;
use underpass_segment::reason::Reason;
use underpass_segment::switch::Ready;
use underpass_segment::sync::{AtomicU8, Relaxed};

/// See linux/tcp.h: a getsockopt that receives, by mapping pages.
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// `message` is about to be received. If it has room for control data, the program may want the time at which the bytes
/// came, which only the kernel knows. Programs that set SO_TIMESTAMP on all sockets and do not ask for it with TCP
/// (iperf) are carried.
///
/// # Safety
/// As recvmsg(2), where a bad pointer is an error.
#[inline]
pub unsafe fn pin_if_stamps_are_wanted(fd: c_int, message: *const msghdr) {
    if is_rare() {
        // SAFETY: passed on to the caller.
        unsafe { pin_if_stamped(fd, message) };
    }
}

#[cold]
unsafe fn pin_if_stamped(fd: c_int, message: *const msghdr) {
    if let Some(connection) = adopt::of(fd).filter(|it| it.end.stamped.load(Relaxed) != 0)
        && is_readable(message, 1)
        // SAFETY: there is something to read.
        && unsafe { (*message).msg_controllen > 0 }
    {
        connection.pin(Reason::SocketOption);
    }
}

/// The control message of TCP_INQ, for a receive through the channel that the program has given `room` bytes for it.
///
/// # Safety
/// A receive must have been given `message`, with such room at its control data.
#[cold]
pub unsafe fn tell_unread(fd: c_int, message: *mut msghdr, room: usize) {
    let Some(connection) = connection::named(fd).filter(|it| it.end.tells_unread.load(Relaxed) != 0) else { return };
    let Some(port) = connection.port() else { return };
    let asked = if port.ready() == Ready::No { libc::POLLRDHUP } else { libc::POLLRDHUP | libc::POLLIN };
    let unread = match port.unread().min(c_int::MAX as u64) as c_int {
        // The end of the stream, or bytes behind a change of path, can be read too.
        0 => (kernel::poll_now(fd, asked) != 0).into(),
        unread => unread,
    };
    // SAFETY: the caller vouches for the message; cmsg(3) says whether its room is enough for a header and an int.
    unsafe {
        let (needed, taken) = (libc::CMSG_LEN(4) as usize, libc::CMSG_SPACE(4) as usize);
        if room < needed {
            (*message).msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        if !is_writable((*message).msg_control.cast::<u8>(), needed) {
            return;
        }
        let header = (*message).msg_control as *mut libc::cmsghdr;
        header.write_unaligned(libc::cmsghdr { cmsg_len: needed, cmsg_level: libc::IPPROTO_TCP, cmsg_type: TCP_INQ });
        (header.add(1) as *mut c_int).write_unaligned(unread);
        (*message).msg_controllen = taken.min(room);
    }
}

/// # Safety
/// As setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    const TCP_ULP: c_int = 31;
    const TCP_REPAIR: c_int = 19;
    if !are_bytes_readable(value, (len as usize).min(size_of::<c_int>())) {
        // SAFETY: passed on to the caller.
        return unsafe { real::setsockopt(fd, level, name, value, len) };
    }
    let number = || {
        // SAFETY: so many bytes can be read.
        if len < 4 { 0 } else { unsafe { (value as *const c_int).read_unaligned() } }
    };
    let reason = match (level, name) {
        // The urgent byte is part of the stream then. Only the kernel says where it is (SIOCATMARK, and where a receive
        // or a look stops), and the kernel does not know what lies in the ring before it.
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) if number() != 0 => Some(Reason::Urgent),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if number() > 1 => Some(Reason::SocketOption),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) if number() >= 0 => Some(Reason::SocketOption),
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) => Some(Reason::SocketOption),
        (libc::SOL_SOCKET, name) if TIMESTAMPING.contains(&name) && number() != 0 => Some(Reason::SocketOption),
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF | libc::SO_SNDBUFFORCE | libc::SO_RCVBUFFORCE)
            if (0..SMALL_BUFFER).contains(&number()) =>
        {
            Some(Reason::SocketOption)
        }
        (libc::IPPROTO_TCP, TCP_ULP | TCP_REPAIR) => Some(Reason::SocketOption),
        _ => None,
    };
    let is_stamp = level == libc::SOL_SOCKET && STAMPS.contains(&name);
    if reason == Some(Reason::SocketOption) || is_stamp || (level, name) == (libc::IPPROTO_TCP, TCP_INQ) {
        note_rare();
    }
    match (reason, connection::named(fd)) {
        // A sender goes down by itself before it sends an urgent byte.
        (Some(Reason::Urgent), Some(connection)) => connection.pin_once_read(Reason::Urgent),
        (Some(reason), Some(connection)) => connection.pin(reason),
        _ => {}
    }
    if let Some(kept) = kept(fd, level, name).filter(|_| len as usize >= size_of::<c_int>()) {
        kept.store((number() != 0).into(), Relaxed);
        return 0;
    }
    // SAFETY: passed on to the caller.
    let answer = unsafe { real::setsockopt(fd, level, name, value, len) };
    if answer == 0
        && let Some(connection) = connection::named(fd)
    {
        if is_stamp {
            connection.end.stamped.store(is_stamped(fd).into(), Relaxed);
        } else if (level, name) == (libc::IPPROTO_TCP, TCP_INQ) {
            connection.end.tells_unread.store((number() != 0).into(), Relaxed);
        } else if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            connection.tell_of_close();
        }
    }
    answer
}

/// Where the library keeps what the program has set, for the options that the fast path needs for itself.
fn kept(fd: c_int, level: c_int, name: c_int) -> Option<&'static AtomicU8> {
    if level != libc::IPPROTO_TCP || !matches!(name, libc::TCP_NODELAY | libc::TCP_CORK) {
        return None;
    }
    let end = connection::named(fd)?.end;
    if !end.was_sent_fast() {
        return None;
    }
    Some(if name == libc::TCP_NODELAY { &end.no_delay } else { &end.cork })
}

/// # Safety
/// As getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE)
        && let Some(connection) = adopt::of(fd)
    {
        connection.pin(Reason::SocketOption);
        // SAFETY: passed on to the caller.
        if unsafe { is_to_be_copied(connection, value, len) } {
            return 0;
        }
    }
    // SAFETY: passed on to the caller.
    let answer = unsafe { real::getsockopt(fd, level, name, value, len) };
    if answer == 0
        && let Some(kept) = kept(fd, level, name)
    {
        // SAFETY: the kernel has just written `len` bytes there, four at most.
        unsafe {
            let bytes = c_int::from(kept.load(Relaxed)).to_ne_bytes();
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), (*len as usize).min(bytes.len()));
        }
    }
    if answer == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(connection) = connection::named(fd)
    {
        let mut error = 0i32.to_ne_bytes();
        // SAFETY: as above.
        unsafe {
            let len = (*len as usize).min(error.len());
            core::ptr::copy_nonoverlapping(value.cast(), error.as_mut_ptr(), len);
            let error = Errno(i32::from_ne_bytes(error));
            let told = connection
                .end
                .take_kept_error()
                .unwrap_or_else(|| connection.ready_port().map_or(error, |port| port.as_told(error)));
            let bytes = told.0.to_ne_bytes();
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), len);
        }
    }
    answer
}

/// Whether part of the stream may lie in the ring, from which no page can be mapped. If so, tells the program to
/// receive that much by other calls, as the kernel does with less than a page.
///
/// # Safety
/// As getsockopt(2) with TCP_ZEROCOPY_RECEIVE.
unsafe fn is_to_be_copied(connection: Connection, value: *mut c_void, len: *const socklen_t) -> bool {
    /// The fields of struct tcp_zerocopy_receive that are used here, by 32-bit words: an address of two words, and
    /// these.
    const LENGTH: usize = 2;
    const SKIP: usize = 3;
    const COPIED: usize = 8;
    let Some(port) = connection.ready_port().filter(|port| !port.reads_plainly()) else { return false };
    // SAFETY: what is read and written is there.
    unsafe {
        if !is_readable(len, 1)
            || (*len as usize) < (SKIP + 1) * size_of::<u32>()
            || !is_writable(value.cast::<u8>(), (*len as usize).min((COPIED + 1) * size_of::<u32>()))
        {
            return false;
        }
        let words = value.cast::<u32>();
        words.add(LENGTH).write_unaligned(0);
        words.add(SKIP).write_unaligned(port.unread().min(c_int::MAX as u64) as u32);
        if *len as usize >= (COPIED + 1) * size_of::<u32>() {
            words.add(COPIED).write_unaligned(0);
        }
    }
    true
}

/// The kernel is about to send a signal whenever something comes or goes (O_ASYNC), so everything has to go through the
/// kernel.
#[cold]
pub fn expect_signals(fd: c_int) {
    note_rare();
    if let Some(connection) = adopt::of(fd) {
        connection.pin(Reason::Signals);
    }
}

/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let number = argument as *const c_int;
    // SAFETY: there is something to read.
    if request == libc::FIOASYNC && is_readable(number, 1) && unsafe { *number } != 0 {
        expect_signals(fd);
    }
    // SAFETY: passed on to the caller.
    let answer = unsafe { real::ioctl(fd, request, argument) };
    if answer != 0 || !matches!(request, libc::FIONREAD | libc::TIOCOUTQ | libc::FIONBIO) {
        return answer;
    }
    let value = argument as *mut c_int;
    if request == libc::FIONBIO {
        // SAFETY: a pointer to an int, which the kernel has just accepted.
        set_nonblocking(fd, unsafe { *value } != 0);
        return answer;
    }
    let Some(connection) = connection::named(fd) else { return answer };
    // SAFETY: as above.
    unsafe {
        if request == libc::TIOCOUTQ {
            // SIOCOUTQ: what is in the ring has arrived at the other end, and what the kernel still has are doorbells.
            if connection.end.sending.is_fast()
                && let Some(port) = connection.port()
            {
                *value = (*value as u64).saturating_sub(port.bells_since_up()) as c_int;
            }
        } else if let Some(port) = connection.ready_port() {
            *value = port.unread().min(c_int::MAX as u64) as c_int;
        }
    }
    answer
}

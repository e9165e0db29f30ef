//! The library's own system calls on a TCP socket.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use crate::raw::{Answer, Errno, is_quiet, syscall};
use core::mem::MaybeUninit;

/// TCP states as the kernel numbers them (include/net/tcp_states.h).
pub const ESTABLISHED: u8 = 1;
/// This end has asked for a connection.
pub const SYN_SENT: u8 = 2;
/// This end was asked for a connection (by both ends at once, or with TCP Fast Open).
pub const SYN_RECEIVED: u8 = 3;
/// This end has sent its FIN, and it may not have been acknowledged.
pub const FIN_WAIT1: u8 = 4;
/// This end's FIN has been acknowledged.
pub const FIN_WAIT2: u8 = 5;
/// No connection, or none any more.
pub const CLOSED: u8 = 7;
/// The other end has sent its FIN.
pub const CLOSE_WAIT: u8 = 8;
/// Both ends have sent their FIN, this end last.
pub const LAST_ACK: u8 = 9;
/// Both ends have sent their FIN at once.
pub const CLOSING: u8 = 11;

/// Whether a connection in this TCP state still carries bytes, one way at least.
pub const fn carries(state: u8) -> bool {
    matches!(state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2 | CLOSE_WAIT)
}

/// Whether the other end's FIN has come to a connection in this TCP state. The kernel counts it as a byte received.
pub const fn has_fin(state: u8) -> bool {
    matches!(state, CLOSE_WAIT | LAST_ACK | CLOSING)
}

/// Whether a socket in this TCP state carries bytes, or may once it is connected: not a listener.
pub const fn may_carry(state: u8) -> bool {
    carries(state) || matches!(state, SYN_SENT | SYN_RECEIVED | CLOSED)
}

fn option<T: Copy>(fd: i32, level: i32, name: i32) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes; callers name plain integers only, or structures of them.
    unsafe {
        syscall(
            libc::SYS_getsockopt,
            [fd as usize, level as usize, name as usize, value.as_mut_ptr() as usize, &raw mut len as usize, 0],
        )?;
        Ok(value.assume_init())
    }
}

/// An integer option of the socket.
///
/// # Errors
/// ENOTSOCK, EBADF, ENOPROTOOPT.
pub fn int_option(fd: i32, level: i32, name: i32) -> Result<i32, Errno> {
    option(fd, level, name)
}

/// An option of the socket that is no integer, and its length.
///
/// # Errors
/// ENOTSOCK, EBADF, ENOPROTOOPT and what the option has of its own.
pub fn bytes_option(fd: i32, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let mut len = value.len() as libc::socklen_t;
    let (to, len_at) = (value.as_mut_ptr() as usize, &raw mut len as usize);
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { syscall(libc::SYS_getsockopt, [fd as usize, level as usize, name as usize, to, len_at, 0]) }?;
    Ok(len as usize)
}

/// Whether a filter looks at what arrives at the socket.
pub fn has_filter(fd: i32) -> bool {
    match bytes_option(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []) {
        Ok(instructions) => instructions > 0,
        // An eBPF program cannot be shown.
        Err(e) => e.0 == libc::EACCES,
    }
}

/// Sets an integer option of the socket.
///
/// # Errors
/// ENOTSOCK, EBADF, ENOPROTOOPT.
pub fn set_int_option(fd: i32, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    // SAFETY: the kernel reads four bytes.
    unsafe {
        syscall(
            libc::SYS_setsockopt,
            [fd as usize, level as usize, name as usize, &raw const value as usize, size_of::<i32>(), 0],
        )
    }
    .map(|_| ())
}

/// How long receives (SO_RCVTIMEO) or sends (SO_SNDTIMEO) on the socket wait, in nanoseconds; `None`: for ever.
pub fn timeout(fd: i32, name: i32) -> Option<u64> {
    let it: libc::timeval = option(fd, libc::SOL_SOCKET, name).ok()?;
    let nanoseconds = (it.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(it.tv_usec as u64 * 1000);
    (nanoseconds > 0).then_some(nanoseconds)
}

/// Whether `fd` is a TCP socket.
pub fn is_tcp(fd: i32) -> bool {
    int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

/// The socket's cookie: unique on this host since it booted, the same in every process that has the socket.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn cookie(fd: i32) -> Result<u64, Errno> {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// The counters of TCP_INFO that fix positions in the kernel stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// TCP state.
    pub state: u8,
    /// Data was carried in the SYN, which the counters below treat specially.
    pub fast_open: bool,
    /// Bytes acknowledged by the other end (RFC 4898 tcpEStatsAppHCThruOctetsAcked; an active opener's SYN counts one).
    pub acked: u64,
    /// Bytes received in order.
    pub received: u64,
    /// Bytes sent, less those sent again.
    pub sent_once: u64,
    /// Bytes that wait to be sent for the first time.
    pub unsent: u32,
    /// Bytes that the other end takes at present, those that it has not acknowledged included. 0 if the kernel, older
    /// than 5.4, does not tell.
    pub window: u32,
}

/// Reads the counters.
///
/// # Errors
/// ENOTSOCK, EBADF; ENOSYS when the kernel is older than 4.19 and has no such counters.
pub fn counters(fd: i32) -> Result<Counters, Errno> {
    const ENOUGH: usize = 216;
    let mut info = [0u64; 32];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the array.
    unsafe {
        syscall(
            libc::SYS_getsockopt,
            [
                fd as usize,
                libc::IPPROTO_TCP as usize,
                libc::TCP_INFO as usize,
                info.as_mut_ptr() as usize,
                &raw mut len as usize,
                0,
            ],
        )?;
    }
    if (len as usize) < ENOUGH {
        return Err(Errno(libc::ENOSYS));
    }
    // Offsets of struct tcp_info (include/uapi/linux/tcp.h): options 5, bytes_acked 120, bytes_received 128,
    // notsent_bytes 144, bytes_sent 200, bytes_retrans 208, snd_wnd 228.
    const SYN_DATA: u8 = 32;
    let first = info[0].to_ne_bytes();
    Ok(Counters {
        state: first[0],
        fast_open: first[5] & SYN_DATA != 0,
        acked: info[15],
        received: info[16],
        sent_once: info[25].wrapping_sub(info[26]),
        unsent: u32::from_ne_bytes(info[18].to_ne_bytes()[..4].try_into().unwrap_or_default()),
        window: u32::from_ne_bytes(info[28].to_ne_bytes()[4..].try_into().unwrap_or_default()),
    })
}

fn queue(fd: i32, request: libc::c_ulong) -> Result<u32, Errno> {
    let mut bytes = 0i32;
    // SAFETY: FIONREAD and TIOCOUTQ write one int.
    unsafe { syscall(libc::SYS_ioctl, [fd as usize, request as usize, &raw mut bytes as usize, 0, 0, 0])? };
    Ok(bytes as u32)
}

/// Bytes that wait in the kernel to be read (SIOCINQ).
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn inq(fd: i32) -> Result<u32, Errno> {
    queue(fd, libc::FIONREAD)
}

/// Whether the next byte is the urgent one, at which a receive ends (sockatmark(3)).
pub fn is_at_mark(fd: i32) -> bool {
    const SIOCATMARK: libc::c_ulong = 0x8905;
    queue(fd, SIOCATMARK).is_ok_and(|it| it != 0)
}

/// Bytes that the other end's kernel has not acknowledged (SIOCOUTQ).
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn outq(fd: i32) -> Result<u32, Errno> {
    queue(fd, libc::TIOCOUTQ)
}

/// Whether a few single bytes can be sent without waiting, however long it takes until what was sent before, and may
/// have been read already, is acknowledged.
pub fn has_room_for_bells(fd: i32) -> bool {
    // SOCK_MIN_SNDBUF, which is room for two segments.
    const ROOM: u64 = 4608;
    send_buffer(fd).map_or_else(|| can_send(fd), |(size, queued)| queued == 0 || queued + ROOM <= size)
}

/// Whether so many bytes can be sent while the other end reads nothing, with what the kernel counts beside them.
pub fn has_room_for(fd: i32, bytes: u64) -> bool {
    bytes == 0 || send_buffer(fd).is_some_and(|(size, queued)| queued + 2 * bytes <= size)
}

fn can_send(fd: i32) -> bool {
    poll_now(fd, libc::POLLOUT) & libc::POLLOUT != 0
}

/// The size of the send buffer and what of it is used.
pub(super) fn send_buffer(fd: i32) -> Option<(u64, u64)> {
    // SK_MEMINFO_SNDBUF and SK_MEMINFO_WMEM_QUEUED.
    const SNDBUF: usize = 3;
    const QUEUED: usize = 5;
    let mut info = [0; 36];
    bytes_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info).ok()?;
    let word = |at: usize| u64::from(u32::from_ne_bytes(core::array::from_fn(|i| info[4 * at + i])));
    Some((word(SNDBUF), word(QUEUED)))
}

/// recv, straight into `len` bytes at `to` (null with MSG_TRUNC discards).
///
/// # Safety
/// `to` must be valid for writing `len` bytes, or null with MSG_TRUNC.
#[inline]
pub unsafe fn recv(fd: i32, to: *mut u8, len: usize, flags: i32) -> Answer {
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_recvfrom, [fd as usize, to as usize, len, flags as usize, 0, 0]) }
}

/// recvmsg.
///
/// # Safety
/// The message's buffers must be valid for writing.
pub unsafe fn recv_message(fd: i32, message: &mut libc::msghdr, flags: i32) -> Answer {
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_recvmsg, [fd as usize, &raw mut *message as usize, flags as usize, 0, 0, 0]) }
}

/// Whether the kernel refuses such buffers for a call on this socket before it looks at the stream (EFAULT, EINVAL):
/// those that no process can have.
///
/// # Safety
/// `vector` must point to `count` buffers; nothing is written to these.
#[cold]
pub unsafe fn refuses(fd: i32, vector: *const libc::iovec, count: usize) -> bool {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector.cast_mut(), count as _);
    // The queue of errors is empty, because the program has not asked for errors.
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message names the caller's buffers.
    !is_quiet() && unsafe { recv_message(fd, &mut message, flags) } != Err(Errno(libc::EAGAIN))
}

/// Sends one doorbell without waiting.
///
/// # Errors
/// EAGAIN, EPIPE, ECONNRESET.
#[inline]
pub fn send_bell(fd: i32) -> Answer {
    send(fd, &[0u8])
}

/// Sends without waiting.
///
/// # Errors
/// EAGAIN, EPIPE, ECONNRESET.
#[inline]
pub fn send(fd: i32, bytes: &[u8]) -> Answer {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are readable.
    unsafe { syscall(libc::SYS_sendto, [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags as usize, 0, 0]) }
}

/// poll's answer for one socket, at once. It reports a reset as a whole. The kernel sets the error first, the end when
/// it has freed what was not sent, and a moment later that nothing more will come. It wakes a sleeper after that, so a
/// program that sleeps in poll never sees one without the others.
pub fn poll_now(fd: i32, events: i16) -> i16 {
    let revents = poll_once(fd, events);
    if is_half_told(events, revents) {
        // The kernel has the socket's lock until it is done, and the counters wait for that.
        let _ = counters(fd);
        return poll_once(fd, events);
    }
    revents
}

/// Whether poll reports an error without the other events of a connection that an error has ended: a reset may be under
/// way.
pub fn is_half_told(asked: i16, revents: i16) -> bool {
    let beside = asked & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP) | libc::POLLHUP;
    revents & libc::POLLERR != 0 && revents & beside != beside
}

fn poll_once(fd: i32, events: i16) -> i16 {
    let mut it = libc::pollfd { fd, events, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one pollfd and one timespec; no signal mask.
    let _ = unsafe { syscall(libc::SYS_ppoll, [&raw mut it as usize, 1, &raw const now as usize, 0, 0, 0]) };
    it.revents
}

/// A TCP socket without a connection, which an executed program does not inherit.
pub fn unconnected_socket() -> Option<i32> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let socket = unsafe { syscall(libc::SYS_socket, [libc::AF_INET as usize, kind as usize, 0, 0, 0, 0]) };
    socket.ok().map(|fd| fd as i32)
}

/// Default of `net.core.wmem_max` in Linux 6.12 and older.
const OLD_WMEM_MAX: u64 = 212_992;

/// Gives the socket the largest send buffer that a program may ask for (`net.core.wmem_max`), unless it has more.
pub fn enlarge_send_buffer(fd: i32) {
    // The kernel takes no more than it allows, and doubles that: socket(7).
    let ask_for_most = |fd| _ = set_int_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, i32::MAX / 2);
    let size = |fd| send_buffer(fd).map_or(0, |(size, _)| size);
    if let Some(other) = unconnected_socket() {
        // Another socket tells how much that is: this one's buffer may be larger, and would become smaller.
        ask_for_most(other);
        let most = size(other);
        super::close(other);
        if most > size(fd) {
            ask_for_most(fd);
        }
    } else if size(fd) < 2 * OLD_WMEM_MAX {
        // No descriptor is free.
        ask_for_most(fd);
    }
}

/// Ends the connection in both directions.
pub fn shut_down(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall(libc::SYS_shutdown, [fd as usize, libc::SHUT_RDWR as usize, 0, 0, 0, 0]) };
}

/// Ends the connection by a reset at once; the socket stays, without a connection.
pub fn reset(fd: i32) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let (at, len) = (&raw const nowhere as usize, size_of_val(&nowhere));
    // SAFETY: the kernel reads one address.
    let _ = unsafe { syscall(libc::SYS_connect, [fd as usize, at, len, 0, 0, 0]) };
}

/// Whether the last close of the socket is a reset (SO_LINGER with 0).
pub fn resets_at_close(fd: i32) -> bool {
    option::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER).is_ok_and(|it| it.l_onoff != 0 && it.l_linger == 0)
}

/// Makes the last close of the socket a reset, as unread data does.
pub fn reset_at_close(fd: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let value = (&raw const linger).cast::<u8>() as usize;
    // SAFETY: the kernel reads the structure.
    let _ = unsafe {
        syscall(
            libc::SYS_setsockopt,
            [fd as usize, libc::SOL_SOCKET as usize, libc::SO_LINGER as usize, value, size_of_val(&linger), 0],
        )
    };
}

/// Number of the process that connected the other end of a Unix socket, listened there, or made the pair; 0 if none
/// did.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn maker_of_peer(fd: i32) -> Result<i32, Errno> {
    Ok(option::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?.pid)
}

/// An address of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Address {
    /// AF_INET or AF_INET6.
    pub family: u16,
    /// In the host's order.
    pub port: u16,
    /// As on the wire; an IPv4 address has the first four.
    pub bytes: [u8; 16],
}

/// The addresses of the socket and of its other end; `None` unless they are of the internet.
pub fn addresses(fd: i32) -> Option<[Address; 2]> {
    Some([address(fd, libc::SYS_getsockname)?, address(fd, libc::SYS_getpeername)?])
}

fn address(fd: i32, call: libc::c_long) -> Option<Address> {
    let mut raw = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut len = raw.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { syscall(call, [fd as usize, raw.as_mut_ptr() as usize, &raw mut len as usize, 0, 0, 0]) }.ok()?;
    let family = u16::from_ne_bytes([raw[0], raw[1]]);
    let (from, count) = match family.into() {
        libc::AF_INET => (core::mem::offset_of!(libc::sockaddr_in, sin_addr), 4),
        libc::AF_INET6 => (core::mem::offset_of!(libc::sockaddr_in6, sin6_addr), 16),
        _ => return None,
    };
    let mut bytes = [0; 16];
    bytes[..count].copy_from_slice(&raw[from..from + count]);
    Some(Address { family, port: u16::from_be_bytes([raw[2], raw[3]]), bytes })
}

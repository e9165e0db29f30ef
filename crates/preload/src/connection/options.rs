//! Options of a socket that say why its connection cannot be carried, or that the fast path has to know of.

use super::{Connection, io_uring, known};
use crate::guest::table::{self, Socket};
use crate::guest::thread;
use core::ffi::c_int;
use underpass_segment::kernel;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AtomicBool, Relaxed};

/// See tcp(7): a receive says how many bytes are left, in a control message of the same number.
pub const TCP_INQ: c_int = 36;
/// Options by which a recvmsg says when the received bytes came, old and new.
pub const STAMPS: [c_int; 4] =
    [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS, libc::SO_TIMESTAMP_NEW, libc::SO_TIMESTAMPNS_NEW];
/// Options by which a recvmsg says when the received bytes came, and also when something was sent, which comes as an
/// error of the socket.
pub const TIMESTAMPING: [c_int; 2] = [libc::SO_TIMESTAMPING, libc::SO_TIMESTAMPING_NEW];

/// A buffer that a program makes smaller is to press back early; a ring would not. The kernel doubles what is set.
pub const SMALL_BUFFER: c_int = 8 << 10;

/// Whether this process has ever set one of the options that [`set_before`] looks for, on whatever socket.
static RARE: AtomicBool = AtomicBool::new(false);

/// The program sets one.
pub fn note_rare() {
    RARE.store(true, Relaxed);
}

/// Whether it ever has.
#[inline]
pub fn is_rare() -> bool {
    RARE.load(Relaxed)
}

/// Why the connection of `fd` cannot be carried, as its options or the process say.
pub fn unsuitable(fd: i32) -> Option<Reason> {
    if io_uring::is_known() {
        return Some(Reason::Asynchronous);
    }
    let set = |level, name| kernel::int_option(fd, level, name);
    if set(libc::SOL_SOCKET, libc::SO_OOBINLINE).is_ok_and(|v| v != 0) {
        return Some(Reason::Urgent);
    }
    if set(libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(|v| v > 1) {
        return Some(Reason::SocketOption);
    }
    const TCP_ULP: i32 = 31;
    let mut name = [0; 16];
    let ulp = kernel::bytes_option(fd, libc::IPPROTO_TCP, TCP_ULP, &mut name);
    (ulp.is_ok_and(|len| len > 0) && name[0] != 0).then_some(Reason::SocketOption)
}

/// Looks for options that were set on the socket, or on its listener, before it was known as a connection, and returns
/// the reason if the connection cannot be carried. The kernel is asked only if the process has set such an option at
/// all.
pub fn set_before(connection: Connection) -> Option<Reason> {
    if !RARE.load(Relaxed) {
        return None;
    }
    let fd = connection.fd;
    if kernel::has_flag(fd, libc::O_ASYNC) {
        return Some(Reason::Signals);
    }
    let set = |level, name| kernel::int_option(fd, level, name).unwrap_or(0);
    connection.end.tells_unread.store((set(libc::IPPROTO_TCP, TCP_INQ) != 0).into(), Relaxed);
    connection.end.stamped.store(is_stamped(fd).into(), Relaxed);
    let special = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_ok_and(|offset| offset >= 0)
        || kernel::has_filter(fd)
        || TIMESTAMPING.iter().any(|&name| set(libc::SOL_SOCKET, name) != 0)
        || has_small_buffer(fd);
    special.then_some(Reason::SocketOption)
}

/// Whether the program asks for the time at which received bytes came.
pub fn is_stamped(fd: c_int) -> bool {
    STAMPS.iter().any(|&name| kernel::int_option(fd, libc::SOL_SOCKET, name).is_ok_and(|on| on != 0))
}

/// Whether the program has made a buffer small: the kernel's own choice, which may be as small, does not count.
fn has_small_buffer(fd: c_int) -> bool {
    const SO_BUF_LOCK: c_int = 72;
    let value = |name| kernel::int_option(fd, libc::SOL_SOCKET, name);
    let locked = value(SO_BUF_LOCK).unwrap_or(0);
    let small = |lock, name| locked & lock != 0 && value(name).is_ok_and(|size| size < 2 * SMALL_BUFFER);
    small(1, libc::SO_SNDBUF) || small(2, libc::SO_RCVBUF)
}

/// The program has cleared or set O_NONBLOCK of `fd`, whatever that is.
pub fn set_nonblocking(fd: c_int, nonblocking: bool) {
    if !thread::is_vfork_child() {
        table::note(fd, |socket| Socket { nonblocking: nonblocking.into(), ..socket });
    }
    // The number may be something else in a child of vfork.
    let is_ours = |it: &Connection| !thread::is_vfork_child() || kernel::cookie(fd) == Ok(it.end.cookie.load(Relaxed));
    if let Some(connection) = known(fd).filter(is_ours) {
        connection.end.nonblocking.store(nonblocking.into(), Relaxed);
    }
}

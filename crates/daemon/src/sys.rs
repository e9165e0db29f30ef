//! System calls that rustix does not have.
#![allow(unsafe_code, reason = "getsockopt with buffers of our own, and descriptors that come by number")]

use rustix::event::Timespec;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::io;

/// `SO_PEERGROUPS`, `SO_NETNS_COOKIE` and `SO_PEERPIDFD` (include/uapi/asm-generic/socket.h).
const PEER_GROUPS: i32 = 59;
const NETWORK_NAMESPACE_COOKIE: i32 = 71;
const PEER_PIDFD: i32 = 77;

/// So many nanoseconds, for a wait.
pub fn timespec(nanoseconds: u64) -> Timespec {
    Timespec { tv_sec: (nanoseconds / 1_000_000_000) as i64, tv_nsec: (nanoseconds % 1_000_000_000) as _ }
}

/// Reads an option into `value`, a slice of integers; how many octets the kernel has written.
fn option<T: Copy + Default>(socket: impl AsFd, level: i32, name: i32, value: &mut [T]) -> io::Result<usize> {
    let mut len = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` octets, all of them into `value`, whose elements are plain integers.
    let result =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(len as usize) }
}

/// Process, user and group that connected the Unix socket. The process is 0 where this PID namespace does not see it.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_credentials(socket: impl AsFd) -> io::Result<[u32; 3]> {
    let mut value = [0u32; 3];
    option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut value)?;
    Ok(value)
}

/// The supplementary groups that the process had when it connected the Unix socket; `None` if there are more than
/// `most`. The kernel takes 1.7 ms to tell 65,536 (NGROUPS_MAX). Any user with as many subordinate groups can have it
/// do that for each connection.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_groups(socket: impl AsFd, most: usize) -> io::Result<Option<Vec<u32>>> {
    for room in [most.min(32), most] {
        let mut groups = vec![0u32; room];
        match option(&socket, libc::SOL_SOCKET, PEER_GROUPS, &mut groups) {
            Ok(len) => {
                groups.truncate(len / size_of::<u32>());
                return Ok(Some(groups));
            }
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// A descriptor of the process that connected the Unix socket (Linux 6.5).
///
/// # Errors
/// ENOPROTOOPT where the kernel is older; otherwise those of getsockopt(2).
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut value = [-1i32];
    option(socket, libc::SOL_SOCKET, PEER_PIDFD, &mut value)?;
    if value[0] < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(value[0]) })
}

/// How many packets that were sent by this Unix socket are not read yet, at most.
pub fn unread_packets(socket: impl AsFd) -> usize {
    /// What the kernel counts for a packet at least: room for the data, and what describes it.
    const LEAST: usize = 512;
    let mut octets: libc::c_int = 0;
    // SAFETY: the kernel writes an integer.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    if result < 0 { 0 } else { (octets as usize).div_ceil(LEAST) }
}

/// The cookie of the socket's network namespace (Linux 5.14).
///
/// # Errors
/// ENOPROTOOPT where the kernel is older; otherwise those of getsockopt(2).
pub fn network_namespace(socket: impl AsFd) -> io::Result<u64> {
    let mut value = [0u64];
    option(socket, libc::SOL_SOCKET, NETWORK_NAMESPACE_COOKIE, &mut value)?;
    Ok(value[0])
}

/// The TCP state of the socket, as include/net/tcp_states.h numbers it.
///
/// # Errors
/// Those of getsockopt(2).
pub fn tcp_state(socket: impl AsFd) -> io::Result<u8> {
    // struct tcp_info begins with it, and the kernel writes no more than is asked for.
    let mut value = [0u8; 8];
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut value)?;
    Ok(value[0])
}

/// The sockets that a service manager has handed over (sd_listen_fds(3)); none where there is no such one. For the
/// first call alone.
///
/// # Errors
/// What LISTEN_FDS names is not there.
pub fn handed_over() -> io::Result<Vec<OwnedFd>> {
    let numbers = sd_notify::listen_fds()?;
    // SAFETY: they were opened for this process, before it began, and nobody else in it takes them.
    Ok(numbers.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
}

/// Makes an eventfd readable.
pub fn ring(bell: impl AsFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes it readable no more.
pub fn quiet(bell: impl AsFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

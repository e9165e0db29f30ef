//! The tag of a socket: something of its stream may lie in a ring that is gone with the processes that had it.
//!
//! The socket itself has to carry it, because nothing else outlives these processes. The tag is the option
//! IP_MULTICAST_LOOP, off: the kernel keeps it for a TCP socket of either family, which has no use for it (ip(7)).

use super::{int_option, set_int_option};

/// Tags the socket, or takes its tag away. Every kernel of those that the library knows can do so.
pub fn set_tagged(fd: i32, is_tagged: bool) {
    let _ = set_int_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, (!is_tagged).into());
}

/// Whether the socket is tagged.
pub fn is_tagged(fd: i32) -> bool {
    int_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP) == Ok(0)
}

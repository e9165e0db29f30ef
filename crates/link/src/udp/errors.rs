//! What the kernel says of datagrams that did not get where they were to (`IP_RECVERR` of ip(7)).

use super::calls::{Described, take_error};
use rustix::fd::AsFd;
use std::net::SocketAddr;

/// An error that the kernel reports about a datagram that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The peer that it was sent to.
    pub peer: SocketAddr,
    /// The error's number.
    pub errno: i32,
}

/// Takes the next error from a socket: `Some(None)` if it cannot be read, `None` if there are no more.
pub fn next(socket: impl AsFd) -> Option<Option<Complaint>> {
    let (name, described) = take_error(socket.as_fd())?;
    Some(name.address().and_then(|peer| Some(Complaint { peer, errno: errno(&described)? })))
}

/// The first number of `struct sock_extended_err` (linux/errqueue.h).
fn errno(described: &Described) -> Option<i32> {
    let is_error = |level, kind| {
        (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    };
    let entry = described.entries().find(|it| is_error(it.level, it.kind))?;
    entry.number(0).map(|it| it as i32)
}

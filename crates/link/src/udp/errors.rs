//! What the kernel says of datagrams that did not get where they were to (`IP_RECVERR` of ip(7)).

use super::calls::{Described, take_error};
use rustix::fd::AsFd;
use std::net::SocketAddr;

/// Of a datagram that was sent to somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The peer that it was sent to.
    pub peer: SocketAddr,
    /// By its number.
    pub errno: i32,
}

/// Takes the next one from a socket: one that cannot be read is none. `None` when there are no more.
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

//! A UDP socket with what the link needs of it, and one beside it that asks the kernel for ways to peers.

use crate::error::OpenError;
use crate::ip;
use crate::option::{get, set};
use crate::udp::name::Name;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Octets that the kernel is asked to hold for a socket that does not read, and of what it has not sent yet.
const BACKLOG: i32 = 8 << 20;
/// How many numbers of `SO_MEMINFO` (linux/sock_diag.h) are read; the last is the number of datagrams that were thrown
/// away.
const MEMINFO: usize = libc::SK_MEMINFO_DROPS as usize + 1;

/// A socket that is bound to one address.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    /// Asks for ways: it is connected to one peer after the other, and never carries anything.
    ask: OwnedFd,
    local: SocketAddr,
    scope: u32,
}

/// What a socket can do, of which not every kernel is capable.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// The socket takes many datagrams as segments of one message (`UDP_SEGMENT`, Linux 4.18).
    pub segments: bool,
    /// The socket gives many datagrams as segments of one message (`UDP_GRO`, Linux 5.0).
    pub joins: bool,
}

impl Socket {
    /// Opens one in this thread's network namespace. Where `shared`, others of this user may be bound to the same
    /// address; without `offload` nothing goes in segments.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(local: SocketAddr, shared: bool, offload: bool) -> Result<(Socket, Abilities), OpenError> {
        if local.ip().is_unspecified() || local.ip().is_multicast() {
            return Err(OpenError::Unspecific { address: local.ip() });
        }
        let refused = |doing| {
            move |error: io::Error| match error.raw_os_error() {
                Some(libc::EADDRNOTAVAIL) => OpenError::NoAddress { address: local.ip() },
                Some(libc::EADDRINUSE) => OpenError::PortTaken { address: local },
                Some(libc::EACCES) => OpenError::Reserved { port: local.port() },
                _ => OpenError::System { doing, error },
            }
        };
        let [socket, ask] = [(); 2].map(|()| fresh(local).map_err(refused("opening a UDP socket")));
        let (socket, ask) = (socket?, ask?);
        let abilities = configure(&socket, local, shared, offload).map_err(refused("setting a UDP socket"))?;
        bind(&socket, &local).map_err(|errno| refused("binding a UDP socket")(errno.into()))?;
        // With its scope: a link-local address is one of an interface.
        let mut any_port = local;
        any_port.set_port(0);
        bind(&ask, &any_port).map_err(|errno| refused("binding a UDP socket")(errno.into()))?;
        let scope = match local {
            SocketAddr::V6(local) => local.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let bound = getsockname(&socket).ok().and_then(|it| SocketAddr::try_from(it).ok());
        // Without a scope, as packets have it.
        let local = SocketAddr::new(local.ip(), bound.map_or(local.port(), |it| it.port()));
        Ok((Socket { socket, ask, local, scope }, abilities))
    }

    /// Where it is bound.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Where it is bound, with the number of the interface that a link-local address is of.
    pub fn scoped(&self) -> SocketAddr {
        self.with_scope(self.local)
    }

    /// The number of the interface that a link-local address is of; 0 for others.
    pub fn scope(&self) -> u32 {
        self.scope
    }

    /// An address with the number of the interface, if it is one of an interface.
    fn with_scope(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V6(mut it) if it.ip().is_unicast_link_local() => {
                it.set_scope_id(self.scope);
                it.into()
            }
            it => it,
        }
    }

    /// A peer's address, as the kernel has it.
    pub fn name(&self, peer: SocketAddr) -> Name {
        Name::new(peer, self.scope)
    }

    /// Octets of the longest IP packet that goes to a peer, as the kernel knows the way (IP_MTU of ip(7)).
    ///
    /// # Errors
    /// There is no way.
    pub fn mtu(&self, peer: SocketAddr) -> io::Result<usize> {
        connect(&self.ask, &self.with_scope(peer))?;
        let (level, option) = match self.local.ip() {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let [mtu] = get(&self.ask, level, option)?;
        Ok((mtu as usize).min(ip::LONGEST))
    }

    /// Datagrams that came and were thrown away, since the socket has no room for them or their sum is wrong; counted
    /// up to 2^32.
    pub fn drops(&self) -> u32 {
        get::<MEMINFO>(&self.socket, libc::SOL_SOCKET, libc::SO_MEMINFO).map_or(0, |it| it[MEMINFO - 1])
    }

    /// Forgets an error that the socket has noted, but had no room to describe (SO_ERROR of socket(7)). The socket
    /// would report it until something is received.
    pub fn forget_error(&self) {
        let _ = get::<1>(&self.socket, libc::SOL_SOCKET, libc::SO_ERROR);
    }

    /// Octets that the kernel keeps for the socket until they are read.
    pub fn backlog(&self) -> usize {
        get(&self.socket, libc::SOL_SOCKET, libc::SO_RCVBUF).map_or(0, |[it]| it as usize)
    }

    /// Takes the time at which a message is to leave beside it from now on, by the monotonic clock.
    ///
    /// # Errors
    /// The kernel knows no such thing (Linux 4.19).
    pub fn take_times(&self) -> io::Result<()> {
        let times = libc::sock_txtime { clockid: libc::CLOCK_MONOTONIC, flags: 0 };
        set(&self.socket, libc::SOL_SOCKET, libc::SO_TXTIME, &times)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn fresh(local: SocketAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

fn configure(socket: &OwnedFd, local: SocketAddr, shared: bool, offload: bool) -> io::Result<Abilities> {
    let options: &[(i32, i32, i32)] = match local.ip() {
        // Packets are never fragmented, here or on the way; a packet that is too long is an error, whose cause is
        // reported.
        IpAddr::V4(_) => &[
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            (libc::IPPROTO_IP, libc::IP_RECVERR, 1),
            (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        ],
        IpAddr::V6(_) => &[
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
        ],
    };
    options.iter().try_for_each(|(level, option, value)| set(socket, *level, *option, value))?;
    if shared {
        set(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1i32)?;
    }
    // More than the user's limit if that is permitted.
    for (forced, option) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        set(socket, libc::SOL_SOCKET, forced, &BACKLOG).or_else(|_| set(socket, libc::SOL_SOCKET, option, &BACKLOG))?;
    }
    let has = |option, value: i32| match set(socket, libc::SOL_UDP, option, &value) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    };
    if !offload {
        return Ok(Abilities { segments: false, joins: false });
    }
    // No size for all that is sent: each message says its own.
    Ok(Abilities { segments: has(libc::UDP_SEGMENT, 0)?, joins: has(libc::UDP_GRO, 1)? })
}

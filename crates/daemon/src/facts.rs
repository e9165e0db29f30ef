//! What the kernel says of a socket that a client has handed over. The client may have handed over anything.
//!
//! Any of these calls may wait for as long as the client likes: another thread of it may be inside a call on the socket
//! that waits for its memory (userfaultfd). So may the close of a descriptor: of a socket that lingers, or of a file
//! whose file system is a program. [`crate::lanes`] keeps that from everybody else.

use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::net::{IpAddr, SocketAddr};

const ESTABLISHED: u8 = 1;

/// An established TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its cookie, unique on this host since it booted.
    pub cookie: u64,
    /// The cookie of its network namespace; `None` before Linux 5.14.
    pub namespace: Option<u64>,
    /// Its own address.
    pub local: SocketAddr,
    /// The address that it is connected with.
    pub remote: SocketAddr,
}

/// Why a descriptor is not the socket of an established TCP connection.
#[derive(Debug, thiserror::Error)]
pub enum NotConnection {
    /// It is something else.
    #[error("it is no TCP socket")]
    NotTcp,
    /// It is not connected, or not any more.
    #[error("its TCP state is {state}, and not 1 (established)")]
    State {
        /// The state.
        state: u8,
        /// The socket's cookie: it may have been a connection that has met.
        cookie: u64,
    },
    /// The kernel does not say.
    #[error("the kernel does not tell of it: {0}")]
    Unknown(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for NotConnection {
    fn from(error: rustix::io::Errno) -> NotConnection {
        match error {
            rustix::io::Errno::NOTSOCK => NotConnection::NotTcp,
            other => NotConnection::Unknown(other.into()),
        }
    }
}

impl Facts {
    /// Asks the kernel.
    ///
    /// # Errors
    /// See [`NotConnection`].
    pub fn of(socket: BorrowedFd<'_>) -> Result<Facts, NotConnection> {
        let is_tcp = matches!(sockopt::socket_domain(socket)?, AddressFamily::INET | AddressFamily::INET6)
            && sockopt::socket_type(socket)? == SocketType::STREAM
            && sockopt::socket_protocol(socket)? == Some(ipproto::TCP);
        if !is_tcp {
            return Err(NotConnection::NotTcp);
        }
        let state = sys::tcp_state(socket)?;
        if state != ESTABLISHED {
            return Err(NotConnection::State { state, cookie: sockopt::socket_cookie(socket)? });
        }
        Ok(Facts {
            cookie: sockopt::socket_cookie(socket)?,
            namespace: sys::network_namespace(socket).ok(),
            local: address(rustix::net::getsockname(socket)?)?,
            remote: address(rustix::net::getpeername(socket)?.ok_or(NotConnection::NotTcp)?)?,
        })
    }
}

/// An IPv4 address that an IPv6 socket has, as the IPv4 socket at the other end has it.
fn address(it: rustix::net::SocketAddrAny) -> Result<SocketAddr, NotConnection> {
    let address = SocketAddr::try_from(it)?;
    let ip = match address.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    #[test]
    fn the_ends_of_a_connection_have_mirrored_addresses() {
        for host in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = listener.accept().unwrap().0;
            let ends = [&client, &server].map(|end| Facts::of(end.as_fd()).unwrap());
            assert_eq!((ends[0].local, ends[0].remote), (ends[1].remote, ends[1].local));
            assert_eq!(ends[0].namespace, ends[1].namespace);
            assert_ne!(ends[0].cookie, ends[1].cookie);
        }
    }

    #[test]
    fn nothing_else_is_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(Facts::of(listener.as_fd()), Err(NotConnection::State { state: 10, .. })));
        for it in [udp.as_fd(), file.as_fd(), unix.as_fd()] {
            assert!(matches!(Facts::of(it), Err(NotConnection::NotTcp)));
        }
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        drop(client);
        // Until the FIN has come.
        while !matches!(Facts::of(server.as_fd()), Err(NotConnection::State { state: 8, .. })) {
            std::thread::yield_now();
        }
    }
}

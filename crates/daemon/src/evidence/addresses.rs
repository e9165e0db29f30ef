//! The socket with the mirrored addresses in the daemon's own network namespace (sock_diag(7)).

use super::{Evidence, Other};
use crate::facts::Facts;
use crate::sys;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;

const ESTABLISHED: u8 = 1;
/// Octets of the longest answer: an error repeats the question.
const ANSWER: usize = 4096;

/// Asks the kernel for sockets by their addresses.
#[derive(Debug)]
pub struct Addresses {
    socket: Socket,
    /// Cookie of the network namespace that it asks about.
    namespace: u64,
    /// Number of the last question.
    asked: Cell<u32>,
}

impl Addresses {
    /// Opens the way to the kernel.
    ///
    /// # Errors
    /// ENOPROTOOPT where the kernel has no cookies for network namespaces (before 5.14); otherwise what it says to
    /// netlink(7).
    pub fn open() -> io::Result<Addresses> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddress::new(0, 0))?;
        // The kernel answers within the question, so nothing has to be waited for.
        socket.set_non_blocking(true)?;
        // Any socket of this process has it.
        let namespace = sys::network_namespace(UnixDatagram::unbound()?)?;
        Ok(Addresses { socket, namespace, asked: Cell::new(0) })
    }

    /// The cookie of the established socket with these addresses; `None` where there is none.
    fn socket_at(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u64>> {
        let number = self.asked.get().wrapping_add(1);
        self.asked.set(number);
        self.socket.send(&question(number, local, remote), 0)?;
        let mut buffer = [0; ANSWER];
        loop {
            let len = self.socket.recv(&mut &mut buffer[..], 0)?.min(ANSWER);
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(&buffer[..len]).map_err(io::Error::other)?;
            if message.header.sequence_number != number {
                continue;
            }
            return match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(it)) => {
                    let is_it = it.header.state == ESTABLISHED
                        && it.header.socket_id.source_port == local.port()
                        && it.header.socket_id.destination_port == remote.port();
                    Ok(is_it.then(|| u64::from_ne_bytes(it.header.socket_id.cookie)))
                }
                NetlinkPayload::Error(error) if error.raw_code() == -libc::ENOENT => Ok(None),
                NetlinkPayload::Error(error) => Err(error.to_io()),
                _ => Err(io::Error::other("the kernel answers something else than it was asked")),
            };
        }
    }
}

impl Evidence for Addresses {
    fn other_end(&self, of: &Facts) -> Other {
        if of.namespace != Some(self.namespace) {
            return Other::Unknown;
        }
        // The socket itself must be what its addresses lead to: the same ones may exist once for each interface
        // (SO_BINDTODEVICE).
        match (self.socket_at(of.local, of.remote), self.socket_at(of.remote, of.local)) {
            (Ok(Some(own)), Ok(Some(other))) if own == of.cookie => Other::End(other),
            (Ok(Some(own)), Ok(None)) if own == of.cookie => Other::Nowhere,
            (Ok(_), Ok(_)) => Other::Several,
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "the kernel does not answer questions about sockets");
                Other::Unknown
            }
        }
    }
}

fn question(number: u32, local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let socket_id = SocketId {
        source_port: local.port(),
        destination_port: remote.port(),
        source_address: local.ip(),
        destination_address: remote.ip(),
        interface_id: 0,
        // INET_DIAG_NOCOOKIE
        cookie: [0xff; 8],
    };
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        // Nothing for which the kernel would take the lock of a socket.
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id,
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    header.sequence_number = number;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut octets = vec![0; message.buffer_len()];
    message.serialize(&mut octets);
    octets
}

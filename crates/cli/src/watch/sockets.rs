//! The TCP connections of this network namespace, as the kernel lists them (sock_diag(7)).

use std::io;
use std::net::SocketAddr;

use anyhow::Context;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket as Netlink, SocketAddr as NetlinkAddress};

/// The longest datagram of a list.
const MOST: usize = 64 << 10;
/// States in which a socket carries a connection, by number (include/net/tcp_states.h), as `ss` calls them.
const STATES: [(u8, &str); 6] =
    [(1, "ESTAB"), (4, "FIN-WAIT-1"), (5, "FIN-WAIT-2"), (8, "CLOSE-WAIT"), (9, "LAST-ACK"), (11, "CLOSING")];

/// A socket that carries a connection.
#[derive(Clone, Debug)]
pub struct Socket {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    pub state: &'static str,
    pub cookie: u64,
    pub inode: u64,
    /// Its owner.
    pub user: u32,
    /// Bytes in the kernel that were not received yet, doorbells included, and that were not acknowledged yet.
    pub queues: [u32; 2],
    /// Bytes that were sent, and that were received, doorbells included.
    pub carried: [u64; 2],
}

/// All of them.
pub fn connections() -> anyhow::Result<Vec<Socket>> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        list(family, &mut found).context(
            "the kernel does not list its TCP connections (sock_diag; is the module inet_diag missing, or a seccomp \
             filter in the way?)",
        )?;
    }
    Ok(found)
}

fn list(family: u8, to: &mut Vec<Socket>) -> io::Result<()> {
    let mut socket = Netlink::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    socket.send(&request(family), 0)?;
    let mut buffer = vec![0; MOST];
    loop {
        let size = socket.recv(&mut &mut buffer[..], 0)?.min(MOST);
        let mut rest = &buffer[..size];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => to.extend(parse(&response)),
                NetlinkPayload::Done(_) => return Ok(()),
                // No IPv6 in this kernel.
                NetlinkPayload::Error(error) if error.raw_code() == -libc::ENOENT && family == AF_INET6 => {
                    return Ok(());
                }
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            let length = (message.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

fn request(family: u8) -> Vec<u8> {
    let states = STATES.iter().fold(0, |states, (number, _)| states | 1 << number);
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states: StateFlags::from_bits_truncate(states),
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn parse(response: &InetResponse) -> Option<Socket> {
    let (header, id) = (&response.header, &response.header.socket_id);
    let state = STATES.iter().find(|(number, _)| *number == header.state)?.1;
    Some(Socket {
        local: SocketAddr::new(id.source_address, id.source_port),
        peer: SocketAddr::new(id.destination_address, id.destination_port),
        state,
        cookie: u64::from_ne_bytes(id.cookie),
        inode: header.inode.into(),
        user: header.uid,
        queues: [header.recv_queue, header.send_queue],
        carried: response.nlas.iter().find_map(carried).unwrap_or_default(),
    })
}

/// The bytes carried, from struct tcp_info (include/uapi/linux/tcp.h): tcpi_bytes_sent without tcpi_bytes_retrans, and
/// tcpi_bytes_received.
fn carried(attribute: &Nla) -> Option<[u64; 2]> {
    let Nla::TcpInfo(info) = attribute else { return None };
    let field = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
    Some([field(200)?.saturating_sub(field(208)?), field(128)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_of_a_connection_are_listed() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = listener.accept().unwrap().0;
            let all = connections().unwrap();
            for end in [&client, &server] {
                let cookie = underpass_segment::kernel::cookie(end.as_raw_fd()).unwrap();
                let found: Vec<_> = all.iter().filter(|it| it.cookie == cookie).collect();
                assert_eq!((found.len(), found[0].state), (1, "ESTAB"));
                assert_eq!((found[0].local, found[0].peer), (end.local_addr().unwrap(), end.peer_addr().unwrap()));
                let link = std::fs::read_link(format!("/proc/self/fd/{}", end.as_raw_fd())).unwrap();
                assert_eq!(link.to_str().unwrap(), format!("socket:[{}]", found[0].inode));
            }
            assert!(all.iter().all(|it| it.local != listener.local_addr().unwrap() || it.peer.port() != 0));
        }
    }
}

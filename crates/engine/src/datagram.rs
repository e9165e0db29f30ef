//! Network over IP: each packet is a UDP datagram between two sockets' addresses, behind CLNP's inactive subset, as
//! over a link whose packets begin with the headers of IP and UDP.

use crate::layer::{Layer, Outbox, no_packet};
use crate::service::{Fate, Indication, Peer, Request, Time};
use crate::wire::Writer;
use crate::wire::clnp::Clnp;
use std::net::SocketAddr;
use underpass_link::arena::Arena;
use underpass_link::ip::{self, Ecn, Header, Template};
use underpass_link::table::Table;

/// Octets of the longest headers: IPv6, UDP and the inactive subset.
pub const HEADERS: usize = ip::IPV6 + INACTIVE;
/// Octets of the inactive subset.
const INACTIVE: usize = 1;

/// What has happened, in numbers since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets from an address that is no peer's, for another address, or of another protocol.
    pub unknown: u64,
    /// Packets of peers that a router has marked, since it was congested (RFC 3168).
    pub marked: u64,
}

/// A network entity at one address.
#[derive(Debug)]
pub struct Datagram {
    arena: Arena,
    own: SocketAddr,
    /// The peers by their addresses, each with the headers in front of packets to it.
    peers: Table<SocketAddr, Template>,
    counters: Counters,
}

impl Datagram {
    /// An entity at this address.
    pub fn new(arena: Arena, own: SocketAddr) -> Datagram {
        Datagram { arena, own, peers: Table::default(), counters: Counters::default() }
    }

    /// Octets of headers in front of what the layer above sends.
    pub fn headers(&self) -> usize {
        ip::headers(self.own) + INACTIVE
    }

    /// The peer with that address, which is known from now on. None where the address is of another version of IP than
    /// this entity's. Peers may be added at any time.
    pub fn peer(&mut self, address: SocketAddr) -> Option<Peer> {
        // As packets have it, without flow information and scope.
        let address = SocketAddr::new(address.ip(), address.port());
        if let Some(number) = self.peers.find(address) {
            return Some(Peer(number));
        }
        let template = Template::new(Header { source: self.own, destination: address, class: 0 })?;
        Some(Peer(self.peers.add(address, template)))
    }

    /// What has happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The header of a packet that is for us, and octets of its data.
    #[inline]
    fn read(&self, octets: &[u8]) -> Option<(Header, usize)> {
        let (header, data) = Header::parse(octets).ok().filter(|(header, _)| header.destination == self.own)?;
        match Clnp::parse(data) {
            Ok((Clnp::Inactive, tpdus)) => Some((header, tpdus.len())),
            _ => None,
        }
    }
}

impl Layer for Datagram {
    #[inline]
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        match request {
            Request::Unitdata { to, mut buffer } => {
                let Some(template) = self.peers.get(to.0) else {
                    return out.up(Indication::complete(buffer, Fate::Refused));
                };
                let data = INACTIVE + buffer.len();
                if template.size() + data > ip::LONGEST {
                    return out.up(Indication::complete(buffer, Fate::Refused));
                }
                let may_be_marked = buffer.may_be_marked();
                let headers = self.arena.push(&mut buffer, template.size() + INACTIVE);
                let (datagram, inactive) = headers.split_at_mut(template.size());
                template.write(datagram, data);
                if may_be_marked {
                    ip::set_ecn(datagram, Ecn::Capable);
                }
                if Clnp::Inactive.emit(&mut Writer::new(inactive)).is_err() {
                    unreachable!("it is an octet");
                }
                out.down(Request::Unitdata { to, buffer });
            }
            request => no_packet(request, out),
        }
    }

    #[inline]
    fn indication(&mut self, indication: Indication, _: Time, out: &mut Outbox) {
        match indication {
            Indication::Unitdata { mut buffer, .. } => {
                let read = self.read(self.arena.octets(&buffer));
                let known = read.and_then(|(header, len)| Some((self.peers.find(header.source)?, header, len)));
                let Some((from, header, len)) = known else {
                    self.counters.unknown += 1;
                    return out.down(Request::Return { buffer });
                };
                let marked = Ecn::of(header.class) == Ecn::Congested;
                self.counters.marked += u64::from(marked);
                buffer.mark(marked);
                buffer.pull(self.headers());
                buffer.truncate(len);
                out.up(Indication::Unitdata { from: Peer(from), buffer });
            }
            Indication::Complete { mut buffer, fate, .. } => {
                buffer.pull(self.headers());
                out.up(Indication::complete(buffer, fate));
            }
            _ => {}
        }
    }

    fn settle(&mut self, _: Time, _: &mut Outbox) {}

    fn due(&self) -> Option<Time> {
        None
    }

    fn expire(&mut self, _: Time, _: &mut Outbox) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use underpass_link::arena::{Buffer, Geometry};

    const GEOMETRY: Geometry = Geometry { frames: 4, frame_size: 512, headroom: 128 };

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A packet from one address to another that carries these octets.
    fn packet(arena: &Arena, mut buffer: Buffer, [from, to]: [&str; 2], class: u8, data: &[u8]) -> Buffer {
        let header = Header { source: address(from), destination: address(to), class };
        let template = Template::new(header).unwrap();
        let octets = arena.room(&mut buffer);
        template.write(&mut octets[..template.size()], data.len());
        octets[template.size()..][..data.len()].copy_from_slice(data);
        arena.fill(&mut buffer, template.size() + data.len());
        buffer
    }

    #[test]
    fn packets_go_to_peers_and_come_from_them_alone() {
        for [own, other, stranger] in
            [["10.0.0.1:7", "10.0.0.2:7", "10.0.0.2:8"], ["[fd00::1]:7", "[fd00::2]:7", "[fd00::2]:8"]]
        {
            let (arena, mut free) = Arena::new(GEOMETRY);
            let mut network = Datagram::new(arena.clone(), address(own));
            let peer = network.peer(address(other)).unwrap();
            assert_eq!(network.peer(address(other)), Some(peer));
            let version = if address(own).is_ipv4() { "[fd00::2]:7" } else { "10.0.0.2:7" };
            assert_eq!(network.peer(address(version)), None);
            let mut up = |from: [&str; 2], class, data: &[u8]| {
                let buffer = packet(&arena, free.pop().unwrap(), from, class, data);
                let mut out = Outbox::default();
                network.indication(Indication::Unitdata { from: Peer(0), buffer }, Time(0), &mut out);
                match (out.up.pop_front(), out.down.pop_front()) {
                    (Some(Indication::Unitdata { from, buffer }), None) => {
                        let octets = arena.octets(&buffer).to_vec();
                        assert_eq!(buffer.is_marked(), class == 3);
                        free.push(buffer);
                        Some((from, octets))
                    }
                    (None, Some(Request::Return { buffer })) => {
                        free.push(buffer);
                        None
                    }
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(up([other, own], 3, b"\0tpdu"), Some((peer, b"tpdu".to_vec())));
            assert_eq!(up([other, own], 2, b"\0"), Some((peer, vec![])));
            assert_eq!(up([stranger, own], 3, b"\0tpdu"), None);
            assert_eq!(up([other, stranger], 0, b"\0tpdu"), None);
            assert_eq!((up([other, own], 0, b"tpdu"), up([other, own], 0, b"")), (None, None));
            assert_eq!(network.counters(), Counters { unknown: 4, marked: 1 });
            let mut buffer = free.pop().unwrap();
            arena.fill(&mut buffer, 4);
            buffer.let_be_marked(true);
            arena.octets_mut(&mut buffer).copy_from_slice(b"tpdu");
            let mut out = Outbox::default();
            network.request(Request::Unitdata { to: peer, buffer }, Time(0), &mut out);
            let Some(Request::Unitdata { buffer, .. }) = out.down.pop_front() else { panic!("{out:?}") };
            let (header, data) = Header::parse(arena.octets(&buffer)).unwrap();
            assert_eq!((header.source, header.destination, data), (address(own), address(other), &b"\0tpdu"[..]));
            assert_eq!(Ecn::of(header.class), Ecn::Capable);
            // It comes back as it was lent.
            network.indication(Indication::complete(buffer, Fate::Sent), Time(0), &mut out);
            let Some(Indication::Complete { buffer, fate: Fate::Sent, .. }) = out.up.pop_front() else {
                panic!("{out:?}")
            };
            assert_eq!(arena.octets(&buffer), b"tpdu");
        }
    }
}

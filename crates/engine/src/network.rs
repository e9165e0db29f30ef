//! Network: CLNP over LLC (ISO 8473, ISO 8802-2), as much of it as two hosts on one link need.

use crate::layer::{Layer, Outbox, no_packet};
use crate::service::{Fate, Indication, Peer, Request, Time};
use crate::wire::Writer;
use crate::wire::clnp::Clnp;
use crate::wire::llc::{Llc, Mac};
use std::hash::{BuildHasherDefault, Hasher};
use underpass_link::arena::Arena;
use underpass_link::table::Table;

/// A network entity by the inactive subset: both ends share a link, and the link's addresses are enough.
#[derive(Debug)]
pub struct Inactive {
    arena: Arena,
    own: Mac,
    /// The peers by their addresses as numbers, each with the headers in front of packets to it, without the length.
    peers: Table<u64, [u8; HEADERS], BuildHasherDefault<Spread>>,
    unknown: u64,
}

/// Octets of both headers.
pub const HEADERS: usize = Llc::LEN + 1;

impl Inactive {
    /// An entity with this address.
    pub fn new(arena: Arena, own: Mac) -> Inactive {
        Inactive { arena, own, peers: Table::default(), unknown: 0 }
    }

    /// The peer with that address, which is known from now on. Peers may be added at any time.
    pub fn peer(&mut self, address: Mac) -> Peer {
        let known = self.peers.find(key(address));
        Peer(known.unwrap_or_else(|| self.peers.add(key(address), self.headers(address))))
    }

    fn headers(&self, destination: Mac) -> [u8; HEADERS] {
        let mut headers = [0; HEADERS];
        let mut to = Writer::new(&mut headers);
        let llc = Llc { destination, source: self.own, len: 0 };
        if llc.emit(&mut to).and_then(|()| Clnp::Inactive.emit(&mut to)).is_err() {
            unreachable!("the headers are as long as they say");
        }
        headers
    }
}

/// An address as a number.
#[inline]
fn key(Mac([a, b, c, d, e, f]): Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Spreads addresses by one multiplication (Knuth, The Art of Computer Programming, 6.4). It needs no secret, because
/// only the caller that adds peers chooses what is in the table.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, octets: &[u8]) {
        octets.iter().for_each(|octet| self.write_u64(self.0 ^ u64::from(*octet)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Tables go by the low bits and by the high ones.
        self.0 = spread ^ spread >> 32;
    }
}

impl Layer for Inactive {
    #[inline]
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        match request {
            Request::Unitdata { to, mut buffer } => {
                let Some(&(mut headers)) = self.peers.get(to.0) else {
                    return out.up(Indication::complete(buffer, Fate::Refused));
                };
                headers[Llc::LENGTH].copy_from_slice(&Llc::length(buffer.len() + 1));
                self.arena.push(&mut buffer, HEADERS).copy_from_slice(&headers);
                out.down(Request::Unitdata { to, buffer });
            }
            request => no_packet(request, out),
        }
    }

    #[inline]
    fn indication(&mut self, indication: Indication, _: Time, out: &mut Outbox) {
        match indication {
            Indication::Unitdata { mut buffer, .. } => {
                let octets = self.arena.octets(&buffer);
                let parsed = Llc::parse(octets).ok().and_then(|(llc, packet)| match Clnp::parse(packet) {
                    Ok((Clnp::Inactive, tpdus)) if llc.destination == self.own => Some((llc.source, tpdus.len())),
                    _ => None,
                });
                let known = parsed.and_then(|(source, len)| Some((self.peers.find(key(source))?, len)));
                let Some((from, len)) = known else {
                    self.unknown += 1;
                    return out.down(Request::Return { buffer });
                };
                buffer.pull(HEADERS);
                buffer.truncate(len);
                out.up(Indication::Unitdata { from: Peer(from), buffer });
            }
            Indication::Complete { mut buffer, fate, .. } => {
                buffer.pull(HEADERS);
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
    use underpass_link::arena::Geometry;

    #[test]
    fn peers_are_found_among_many_and_no_others_are() {
        const PEERS: u32 = if cfg!(miri) { 100 } else { 10_000 };
        let (arena, mut free) = Arena::new(Geometry { frames: 1, frame_size: 256, headroom: 64 });
        let address = |number: u32| {
            let [_, a, b, c] = number.to_be_bytes();
            Mac([2, 0, 0, a, b, c])
        };
        let own = Mac([6; 6]);
        let mut network = Inactive::new(arena.clone(), own);
        // Each is known from when it was added on, also while packets come.
        for number in 0..PEERS {
            assert_eq!(network.peers.find(key(address(number))), None);
            assert_eq!((network.peer(address(number)), network.peer(address(number))), (Peer(number), Peer(number)));
            assert_eq!(network.peers.find(key(address(number / 2))), Some(number / 2));
        }
        for number in [0, 1, PEERS - 1, PEERS, 77] {
            let mut buffer = free.pop().unwrap();
            let llc = Llc { destination: own, source: address(number), len: 5 };
            let mut octets = [0; HEADERS + 4];
            llc.emit(&mut Writer::new(&mut octets)).unwrap();
            arena.room(&mut buffer)[..octets.len()].copy_from_slice(&octets);
            arena.fill(&mut buffer, octets.len());
            let mut out = Outbox::default();
            network.indication(Indication::Unitdata { from: Peer(0), buffer }, Time(0), &mut out);
            match (out.up.pop_front(), out.down.pop_front()) {
                (Some(Indication::Unitdata { from, buffer }), None) if number < PEERS => {
                    assert_eq!(from, Peer(number));
                    free.push(buffer);
                }
                (None, Some(Request::Return { buffer })) if number == PEERS => free.push(buffer),
                other => panic!("{number}: {other:?}"),
            }
        }
    }
}

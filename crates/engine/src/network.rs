//! Network: CLNP over LLC (ISO 8473, ISO 8802-2), as much of it as two hosts on one link need.

use crate::layer::{Layer, Outbox};
use crate::service::{Indication, Peer, Request, Time};
use crate::wire::Writer;
use crate::wire::clnp::Clnp;
use crate::wire::llc::{Llc, Mac};
use underpass_link::arena::Arena;

/// A network entity by the inactive subset: both ends share a link, and the link's addresses are enough.
#[derive(Debug)]
pub struct Inactive {
    arena: Arena,
    own: Mac,
    /// Their addresses, and what goes in front of packets to them but for the length.
    peers: Vec<(Mac, [u8; HEADERS])>,
    unknown: u64,
}

/// Octets of both headers.
pub const HEADERS: usize = Llc::LEN + 1;

impl Inactive {
    /// An entity with this address.
    pub fn new(arena: Arena, own: Mac) -> Inactive {
        Inactive { arena, own, peers: Vec::new(), unknown: 0 }
    }

    /// Whoever has that address: known from now on.
    pub fn peer(&mut self, address: Mac) -> Peer {
        let known = self.find(address);
        Peer(known.unwrap_or_else(|| {
            self.peers.push((address, self.headers(address)));
            self.peers.len() - 1
        }) as u32)
    }

    #[inline]
    fn find(&self, address: Mac) -> Option<usize> {
        self.peers.iter().position(|it| it.0 == address)
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

impl Layer for Inactive {
    #[inline]
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        match request {
            Request::Unitdata { to, mut buffer } => {
                let Some((_, headers)) = self.peers.get(to.0 as usize) else {
                    return out.up(Indication::Complete { buffer });
                };
                let mut headers = *headers;
                headers[Llc::LENGTH].copy_from_slice(&Llc::length(buffer.len() + 1));
                self.arena.push(&mut buffer, HEADERS).copy_from_slice(&headers);
                out.down(Request::Unitdata { to, buffer });
            }
            Request::Return { .. } => out.down(request),
            Request::Data { buffer, .. } | Request::Expedited { buffer, .. } => out.up(Indication::Complete { buffer }),
            Request::Connect { .. } | Request::Accept { .. } | Request::Disconnect { .. } => {}
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
                let known = parsed.and_then(|(source, len)| Some((self.find(source)?, len)));
                let Some((from, len)) = known else {
                    self.unknown += 1;
                    return out.down(Request::Return { buffer });
                };
                buffer.pull(HEADERS);
                buffer.truncate(len);
                out.up(Indication::Unitdata { from: Peer(from as u32), buffer });
            }
            Indication::Complete { mut buffer } => {
                buffer.pull(HEADERS);
                out.up(Indication::Complete { buffer });
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

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
    peers: Vec<Mac>,
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
        let known = self.peers.iter().position(|&it| it == address);
        Peer(known.unwrap_or_else(|| {
            self.peers.push(address);
            self.peers.len() - 1
        }) as u32)
    }
}

impl Layer for Inactive {
    #[inline]
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        match request {
            Request::Unitdata { to, mut buffer } => {
                let Some(&destination) = self.peers.get(to.0 as usize) else {
                    return out.up(Indication::Complete { buffer });
                };
                let len = buffer.len() + 1;
                let mut header = Writer::new(self.arena.push(&mut buffer, HEADERS));
                let llc = Llc { destination, source: self.own, len };
                if llc.emit(&mut header).and_then(|()| Clnp::Inactive.emit(&mut header)).is_err() {
                    unreachable!("the headers are as long as they say");
                }
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
                let known =
                    parsed.and_then(|(source, len)| Some((self.peers.iter().position(|&it| it == source)?, len)));
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

//! Transport as the network of another transport: the sub-network-dependent convergence between them.
//!
//! Each NSDU of the layer above is one TSDU of the layer below, in one DT TPDU, so that its octets stay where they are. The
//! connection that it goes over is made when the first one is there to be sent, and is used by both ends; when it is gone, the
//! next one makes another. What is lost with it is for the layer above to notice, as with any network without connections.

use crate::layer::{Layer, Outbox};
use crate::service::{Cep, Details, Indication, Peer, Request, Time};
use std::collections::VecDeque;
use underpass_link::arena::Buffer;

/// A network of connections.
#[derive(Debug, Default)]
pub struct Convergence {
    /// The way to each peer, by its number.
    ways: Vec<Way>,
    /// Who is at the other end of a connection, by the connection's number.
    peers: Vec<Option<Peer>>,
    unfit: u64,
}

#[derive(Debug, Default)]
struct Way {
    /// The connection, and octets of a data request at most.
    connection: Option<(Cep, u32)>,
    /// Whether one was asked for.
    asked: bool,
    /// NSDUs that wait for it.
    waiting: VecDeque<Buffer>,
}

impl Convergence {
    /// NSDUs that were too long for the connection below, or came in pieces.
    pub fn unfit(&self) -> u64 {
        self.unfit
    }

    fn way(&mut self, peer: Peer) -> &mut Way {
        let at = peer.0 as usize;
        if self.ways.len() <= at {
            self.ways.resize_with(at + 1, Way::default);
        }
        &mut self.ways[at]
    }

    /// There is a connection to `peer`: what has waited for it goes. The first one is kept where both ends have asked.
    fn open(&mut self, peer: Peer, cep: Cep, most: u32, out: &mut Outbox) {
        let at = cep.0 as usize;
        if self.peers.len() <= at {
            self.peers.resize(at + 1, None);
        }
        self.peers[at] = Some(peer);
        let way = self.way(peer);
        way.connection.get_or_insert((cep, most));
        for buffer in std::mem::take(&mut way.waiting) {
            self.unitdata(peer, buffer, out);
        }
    }

    #[inline]
    fn unitdata(&mut self, to: Peer, buffer: Buffer, out: &mut Outbox) {
        let way = self.way(to);
        match way.connection {
            Some((cep, most)) if buffer.len() <= most as usize => out.down(Request::Data { cep, buffer, end: true }),
            Some(_) => {
                self.unfit += 1;
                out.up(Indication::Complete { buffer });
            }
            None => {
                way.waiting.push_back(buffer);
                if !std::mem::replace(&mut way.asked, true) {
                    out.down(Request::Connect { tag: to.0, to, details: Box::new(Details::default()) });
                }
            }
        }
    }
}

impl Layer for Convergence {
    #[inline]
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        match request {
            Request::Unitdata { to, buffer } => self.unitdata(to, buffer, out),
            Request::Return { .. } => out.down(request),
            Request::Data { buffer, .. } | Request::Expedited { buffer, .. } => out.up(Indication::Complete { buffer }),
            Request::Connect { .. } | Request::Accept { .. } | Request::Disconnect { .. } => {}
        }
    }

    #[inline]
    fn indication(&mut self, indication: Indication, _: Time, out: &mut Outbox) {
        match indication {
            Indication::Data { cep, buffer, end } => match self.peers.get(cep.0 as usize) {
                Some(&Some(from)) if end => out.up(Indication::Unitdata { from, buffer }),
                _ => {
                    self.unfit += 1;
                    out.down(Request::Return { buffer });
                }
            },
            Indication::Complete { .. } => out.up(indication),
            Indication::Connect { cep, from, most, .. } => {
                out.down(Request::Accept { cep, user_data: Vec::new() });
                self.open(from, cep, most, out);
            }
            Indication::Confirm { tag, cep, most, .. } => {
                let peer = Peer(tag);
                self.way(peer).asked = false;
                self.open(peer, cep, most, out);
            }
            Indication::Refused { tag, .. } => {
                let way = self.way(Peer(tag));
                way.asked = false;
                way.waiting.drain(..).for_each(|buffer| out.up(Indication::Complete { buffer }));
            }
            Indication::Disconnect { cep, .. } => {
                if let Some(peer) = self.peers.get_mut(cep.0 as usize).and_then(Option::take) {
                    self.way(peer).connection.take_if(|it| it.0 == cep);
                }
            }
            Indication::Expedited { buffer, .. } | Indication::Unitdata { buffer, .. } => {
                out.down(Request::Return { buffer })
            }
        }
    }

    fn settle(&mut self, _: Time, _: &mut Outbox) {}

    fn due(&self) -> Option<Time> {
        None
    }

    fn expire(&mut self, _: Time, _: &mut Outbox) {}
}

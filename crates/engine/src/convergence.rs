//! Transport as the network of another transport: the sub-network-dependent convergence between them.
//!
//! Each NSDU of the layer above is one TSDU of the layer below, in one DT TPDU, so that its octets stay where they are.
//! The first NSDU to a peer makes the connection, which both ends use. A connection that no end uses is released, and
//! the next NSDU makes another one. The layer above has to notice what is lost with a connection, as over any network
//! without connections.

use crate::layer::{Layer, Outbox, no_packet};
use crate::service::{Cep, Details, Fate, Indication, Peer, Request, Time};
use crate::wire::tpdu::Reason;
use std::collections::VecDeque;
use underpass_link::arena::Buffer;

/// Most NSDUs that wait for a connection; further ones are lost, as in any network.
const MOST: usize = 1024;

/// A network of connections.
#[derive(Debug)]
pub struct Convergence {
    /// The way to each peer, by its number.
    ways: Vec<Way>,
    /// Connections, by their numbers.
    connections: Vec<Option<Connection>>,
    /// How long a connection may be idle, in ns.
    idle: Option<u64>,
    /// When connections are looked at, if there are any.
    look: Option<Time>,
    unfit: u64,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    peer: Peer,
    /// Something went over it, either way, since it was looked at.
    used: bool,
    /// The last DT did not end its TSDU, so that the next one is a part of the same.
    in_parts: bool,
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
    /// A network that releases a connection over which nothing has gone for `idle` nanoseconds, at the latest after
    /// twice that time. What the other end sends just then may be lost: this is for users that repair losses.
    pub fn new(idle: Option<u64>) -> Convergence {
        Convergence { ways: Vec::new(), connections: Vec::new(), idle, look: None, unfit: 0 }
    }

    /// NSDUs that were too long for the connection below, came in pieces, or were too many while there was no
    /// connection.
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

    /// A connection to `peer` is open: NSDUs that have waited for it go. Where both ends have asked, the first
    /// connection is kept.
    fn open(&mut self, peer: Peer, cep: Cep, most: u32, now: Time, out: &mut Outbox) {
        let at = cep.0 as usize;
        if self.connections.len() <= at {
            self.connections.resize(at + 1, None);
        }
        self.connections[at] = Some(Connection { peer, used: true, in_parts: false });
        self.look = self.look.or(self.idle.map(|idle| now.after(idle)));
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
            Some((cep, most)) if buffer.len() <= most as usize => {
                self.used(cep);
                out.down(Request::Data { cep, buffer, end: true });
            }
            Some(_) => {
                self.unfit += 1;
                out.up(Indication::complete(buffer, Fate::Refused));
            }
            None if way.waiting.len() >= MOST => {
                self.unfit += 1;
                out.up(Indication::complete(buffer, Fate::Refused));
            }
            None => {
                way.waiting.push_back(buffer);
                if !std::mem::replace(&mut way.asked, true) {
                    out.down(Request::Connect { tag: to.0, to, details: Box::new(Details::default()) });
                }
            }
        }
    }

    /// Something goes over a connection.
    #[inline]
    fn used(&mut self, cep: Cep) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(cep.0 as usize)?.as_mut()?;
        connection.used = true;
        Some(connection)
    }

    /// A DT has come, which ends its TSDU or does not. Returns the peer that sent the NSDU if the DT is all of the
    /// TSDU.
    #[inline]
    fn whole(&mut self, cep: Cep, end: bool) -> Option<Peer> {
        let connection = self.used(cep)?;
        let whole = end && !connection.in_parts;
        connection.in_parts = !end;
        whole.then_some(connection.peer)
    }

    /// A connection is gone.
    fn forget(&mut self, cep: Cep) {
        if let Some(it) = self.connections.get_mut(cep.0 as usize).and_then(Option::take) {
            self.way(it.peer).connection.take_if(|it| it.0 == cep);
        }
    }
}

impl Layer for Convergence {
    #[inline]
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        match request {
            Request::Unitdata { to, buffer } => self.unitdata(to, buffer, out),
            request => no_packet(request, out),
        }
    }

    #[inline]
    fn indication(&mut self, indication: Indication, now: Time, out: &mut Outbox) {
        match indication {
            Indication::Data { cep, buffer, end } => match self.whole(cep, end) {
                Some(from) => out.up(Indication::Unitdata { from, buffer }),
                None => {
                    self.unfit += 1;
                    out.down(Request::Return { buffer });
                }
            },
            Indication::Complete { buffer, fate, .. } => out.up(Indication::complete(buffer, fate)),
            Indication::Connect { cep, from, most, .. } => {
                out.down(Request::Accept { cep, user_data: Vec::new() });
                self.open(from, cep, most, now, out);
            }
            Indication::Confirm { tag, cep, most, .. } => {
                let peer = Peer(tag);
                self.way(peer).asked = false;
                self.open(peer, cep, most, now, out);
            }
            Indication::Refused { tag, .. } => {
                let way = self.way(Peer(tag));
                way.asked = false;
                way.waiting.drain(..).for_each(|buffer| out.up(Indication::complete(buffer, Fate::Refused)));
            }
            Indication::Disconnect { cep, .. } => self.forget(cep),
            // The layer above has timers of its own.
            Indication::Stalled { .. } | Indication::Resumed { .. } => {}
            Indication::Expedited { buffer, .. } | Indication::Unitdata { buffer, .. } => {
                out.down(Request::Return { buffer })
            }
        }
    }

    fn settle(&mut self, _: Time, _: &mut Outbox) {}

    fn due(&self) -> Option<Time> {
        self.look
    }

    fn expire(&mut self, now: Time, out: &mut Outbox) {
        let (Some(idle), Some(_)) = (self.idle, self.look.take_if(|it| *it <= now)) else { return };
        for at in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[at] else { continue };
            if std::mem::take(&mut connection.used) {
                self.look = Some(now.after(idle));
                continue;
            }
            let cep = Cep(at as u32);
            self.forget(cep);
            out.down(Request::Disconnect { cep, reason: Reason::NORMAL });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underpass_link::arena::{Arena, Geometry};

    const IDLE: u64 = 1000;

    fn packet() -> Buffer {
        let (arena, mut all) = Arena::new(Geometry { frames: 1, frame_size: 64, headroom: 32 });
        arena.fill(&mut all[0], 8);
        all.remove(0)
    }

    fn down(network: &mut Convergence, now: u64) -> Vec<String> {
        let mut out = Outbox::default();
        network.request(Request::Unitdata { to: Peer(1), buffer: packet() }, Time(now), &mut out);
        names(&mut out)
    }

    fn expire(network: &mut Convergence) -> Vec<String> {
        let mut out = Outbox::default();
        let due = network.due().expect("a connection that may be idle");
        network.expire(due, &mut out);
        names(&mut out)
    }

    /// The names of what is said to the layer below.
    fn names(out: &mut Outbox) -> Vec<String> {
        let name = |it: Request| format!("{it:?}").split(' ').next().unwrap_or_default().to_owned();
        out.down.drain(..).map(name).collect()
    }

    fn open(network: &mut Convergence, cep: u32, now: u64) -> Vec<String> {
        let confirm = Indication::Confirm { tag: 1, cep: Cep(cep), most: 32, user_data: Vec::new() };
        let mut out = Outbox::default();
        network.indication(confirm, Time(now), &mut out);
        names(&mut out)
    }

    #[test]
    fn an_idle_connection_is_released_and_made_again() {
        let mut network = Convergence::new(Some(IDLE));
        assert_eq!((network.due(), down(&mut network, 0)), (None, vec!["Connect".to_owned()]));
        assert_eq!(open(&mut network, 7, 10), ["Data"]);
        assert_eq!(network.due(), Some(Time(10 + IDLE)));
        // The connection is used in the first period by its opening, in the second by a receipt, in the third by a
        // send.
        assert!(expire(&mut network).is_empty());
        let data = Indication::Data { cep: Cep(7), buffer: packet(), end: true };
        network.indication(data, Time(1500), &mut Outbox::default());
        assert!(expire(&mut network).is_empty());
        assert_eq!(down(&mut network, 2500), ["Data"]);
        assert!(expire(&mut network).is_empty());
        assert_eq!(expire(&mut network), ["Disconnect"]);
        assert_eq!(network.due(), None);
        assert_eq!(down(&mut network, 6000), ["Connect"]);
        assert_eq!(open(&mut network, 7, 6010), ["Data"]);
    }

    /// The end of a TSDU whose beginning was discarded is not an NSDU.
    #[test]
    fn no_part_of_a_longer_tsdu_passes() {
        let mut network = Convergence::new(None);
        down(&mut network, 0);
        open(&mut network, 7, 10);
        let passes = [false, false, true, true, false, true, true].map(|end| {
            let mut out = Outbox::default();
            network.indication(Indication::Data { cep: Cep(7), buffer: packet(), end }, Time(20), &mut out);
            assert_eq!(out.up.len() + out.down.len(), 1, "the buffer goes one way or the other");
            !out.up.is_empty()
        });
        assert_eq!(passes, [false, false, false, true, false, false, true]);
        assert_eq!(network.unfit(), 5);
    }

    /// Where no layer above repairs losses, no connection is released.
    #[test]
    fn without_a_time_none_is_released() {
        let mut network = Convergence::new(None);
        down(&mut network, 0);
        open(&mut network, 7, 10);
        assert_eq!(network.due(), None);
    }
}

//! Layers over a link, run to completion: each primitive goes as far as it gets before the next one. And the
//! configuration of a transport that stands on itself, by which numbers of layers are compared.

use crate::column::{Column, ROOM};
use crate::convergence::Convergence;
use crate::layer::Layer;
use crate::service::{Fate, Indication, Peer, Request, Time};
use crate::transport::{Config, Times, Transport};
use crate::wire::tpdu::Class;
use std::collections::VecDeque;
use underpass_link::arena::{Arena, Buffer};
use underpass_link::{Link, Returned};

/// Packets that are taken from the link at a time: they go through a layer together (vector processing).
const BATCH: usize = 32;

/// Layers from the link up to the user.
pub struct Stack<L> {
    link: L,
    column: Column,
    packets: VecDeque<Buffer>,
    buffers: Vec<Buffer>,
    batch: usize,
    backlog: Backlog,
    in_pieces: u64,
}

impl<L: Link> Stack<L> {
    /// These layers, the lowest first, over `link`.
    ///
    /// # Panics
    /// If there is no layer.
    pub fn new(link: L, layers: Vec<Box<dyn Layer>>) -> Stack<L> {
        let column = Column::new(layers);
        let (packets, buffers) = (VecDeque::with_capacity(ROOM), Vec::with_capacity(ROOM));
        Stack { link, column, packets, buffers, batch: BATCH, backlog: Backlog::default(), in_pieces: 0 }
    }

    /// These layers, which take `batch` packets from the link at a time: with 1, each packet goes through all layers
    /// before the next.
    pub fn in_batches_of(self, batch: usize) -> Stack<L> {
        Stack { batch, ..self }
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The link, to change it. A caller that takes packets or buffers from it takes them away from the layers.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// The lowest layer of this kind, to be asked or told something that no primitive says: of a network, to take
    /// another peer.
    pub fn layer<T: Layer>(&mut self) -> Option<&mut T> {
        self.column.layer()
    }

    /// Goes on over another link of the same arena, and gives back the buffers that wrappers of the old link had for
    /// themselves. Packets that were lent to the old link may have been sent or not: class 4 sends them again when T1
    /// runs out. Buffers that were given to it to receive into are given to the new one.
    pub fn replace(&mut self, link: L, now: Time) -> Vec<Buffer> {
        let Returned { lent, given, own } = Box::new(std::mem::replace(&mut self.link, link)).close();
        given.into_iter().for_each(|buffer| self.link.fill(buffer));
        let back = |buffer| Indication::complete(buffer, Fate::Abandoned);
        lent.into_iter().map(back).for_each(|it| self.column.indication(it, now));
        self.settle(now);
        own
    }

    /// Ends it: the layers, which keep their connections, the buffers of the link, and those of packets that it had not
    /// taken.
    pub fn close(self) -> (Vec<Box<dyn Layer>>, Returned) {
        let mut returned = Box::new(self.link).close();
        returned.lent.extend(self.packets);
        (self.column.into_layers(), returned)
    }

    /// Packets that came in pieces and were thrown away.
    pub fn in_pieces(&self) -> u64 {
        self.in_pieces
    }

    /// The layers, the lowest first.
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        self.column.layers()
    }

    /// When a layer wants to be called even if nothing comes.
    pub fn due(&self) -> Option<Time> {
        self.column.due()
    }

    /// The user says something.
    #[inline]
    pub fn request(&mut self, request: Request, now: Time) {
        self.requests([request], now);
    }

    /// The user says several things: they go through the layers together.
    #[inline]
    pub fn requests(&mut self, requests: impl IntoIterator<Item = Request>, now: Time) {
        requests.into_iter().for_each(|request| self.column.request(request, now));
        self.settle(now);
    }

    /// What the layers say to the user, in order.
    #[inline]
    pub fn indication(&mut self) -> Option<Indication> {
        self.column.up().pop_front()
    }

    /// Takes what has come over the link and what has run out; whether there was anything.
    ///
    /// What has come goes up before timers run out, since it may be what they wait for: a host that was kept from
    /// running finds its timers over and the acknowledgements in the link.
    pub fn poll(&mut self, now: Time) -> bool {
        let taken = take(&mut self.link, &mut self.buffers, self.batch, |it| self.column.indication(it, now));
        let mut any = taken.any;
        self.in_pieces += taken.in_pieces;
        if self.backlog.is_over(taken.packets, self.batch) {
            self.column.rise(now);
            any |= self.column.expire(now);
        }
        self.settle(now);
        any
    }

    /// Takes primitives to where they are meant for until none is left.
    fn settle(&mut self, now: Time) {
        self.column.settle(now);
        give(&mut self.link, self.column.down().drain(..), &mut self.packets);
    }
}

/// Whether the link may still have what timers wait for: as long as full batches come. That has a limit, or a flood
/// would stop all timers.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// What was taken in full batches, one after the other.
    taken: usize,
}

impl Backlog {
    /// Primitives after which timers run out even if there are more.
    const MOST: usize = ROOM;

    /// Notes how many packets were taken, of `batch` at most. Whether timers may run out.
    #[inline]
    pub fn is_over(&mut self, taken: usize, batch: usize) -> bool {
        self.taken += taken;
        let is_over = taken < batch || self.taken >= Backlog::MOST;
        if is_over {
            self.taken = 0;
        }
        is_over
    }
}

/// What a link had to say.
#[derive(Default)]
pub(crate) struct Taken {
    /// Whether there was anything.
    pub any: bool,
    /// How many packets there were, those that were thrown away counted.
    pub packets: usize,
    /// Packets that were thrown away, since they came in pieces.
    pub in_pieces: u64,
}

/// Tells `say` what a link has to say: buffers that it does not need any more, and at most `most` packets. A packet in
/// pieces is thrown away: no layer knows of any, and a piece by itself would pass for the whole. `buffers` is empty
/// before and after.
pub(crate) fn take(
    link: &mut (impl Link + ?Sized),
    buffers: &mut Vec<Buffer>,
    most: usize,
    mut say: impl FnMut(Indication),
) -> Taken {
    link.complete(buffers);
    let any = !buffers.is_empty();
    for mut buffer in buffers.drain(..) {
        let fate = if buffer.is_refused() { Fate::Refused } else { Fate::Sent };
        buffer.refuse(false);
        say(Indication::complete(buffer, fate));
    }
    let packets = link.receive(buffers, most);
    let (mut is_piece, mut in_pieces) = (false, 0);
    for buffer in buffers.drain(..) {
        let goes_on = buffer.goes_on();
        if goes_on || is_piece {
            in_pieces += u64::from(!goes_on);
            link.fill(buffer);
        } else {
            say(Indication::Unitdata { from: Peer(0), buffer });
        }
        is_piece = goes_on;
    }
    Taken { any: any || packets > 0, packets, in_pieces }
}

/// Gives a link what it is to do. `packets` are those that it has not taken yet.
pub(crate) fn give(
    link: &mut (impl Link + ?Sized),
    requests: impl Iterator<Item = Request>,
    packets: &mut VecDeque<Buffer>,
) {
    for request in requests {
        match request {
            Request::Unitdata { buffer, .. } => packets.push_back(buffer),
            Request::Return { buffer } => link.fill(buffer),
            _ => {}
        }
    }
    if !packets.is_empty() {
        link.transmit(packets);
    }
}

/// Octets by which a TPDU has to be longer than a TPDU that it carries: what size goes by in X.224, and more than a
/// header.
const STEP: u32 = 128;
/// What layer number `level` of `layers` is configured with, counted from the lowest, where the uppermost has `top`.
///
/// - A TPDU of a layer has room for one of the layer above.
/// - A layer takes more at a time than the one above, or a user that reads nothing would keep its own acknowledgements
///   out. It is not much more: a layer acknowledges at half of what it takes, and buffers are lent until all layers
///   have.
/// - Upper layers have longer timeouts, because the layer below may be about to repair what is late.
/// - Only the lowest layer controls the network's congestion.
pub fn config(top: Config, level: usize, layers: usize) -> Config {
    let (below, above) = ((layers - 1 - level) as u32, level as u32);
    let Times { t1, t1_least, slack, stall, .. } = top.times;
    Config {
        tpdu_size: top.tpdu_size + STEP * below,
        credit: top.credit.saturating_add((top.credit / 4).max(2).saturating_mul(below as u16)),
        congestion_control: top.congestion_control && level == 0,
        times: Times {
            t1: t1 << above,
            t1_least: t1_least << above,
            slack: slack << above,
            stall: stall << above,
            ..top.times
        },
        ..top
    }
}

/// One transport layer of a stack: an entity, above the lowest one with the convergence that it stands on.
pub fn transport(config: Config, level: usize, arena: &Arena, pool: Vec<Buffer>, now: Time) -> Vec<Box<dyn Layer>> {
    let transport = Box::new(Transport::new(config, arena.clone(), pool.into_iter().collect(), now));
    // A connection that is silent for I has no connection of class 4 above it. Class 2 has no timers, and must not lose
    // anything.
    let idle = (config.class == Class::Four).then_some(config.times.i);
    match level {
        0 => vec![transport],
        _ => vec![Box::new(Convergence::new(idle)), transport],
    }
}

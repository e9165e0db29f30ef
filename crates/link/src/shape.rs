//! A slower wire: over any link, packets leave at a rate and arrive with a delay that do not vary.

use crate::arena::Buffer;
use crate::error::Fault;
use crate::{Counters, Guarantees, LOOK, Link, Readiness, Returned, Watch};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What the wire is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Octets that leave in a second, or no limit.
    pub rate: Option<u64>,
    /// From when a packet has left to when it arrives.
    pub latency: Duration,
    /// Octets that may be under way or wait for it; what is more is not taken.
    pub room: usize,
}

/// A link over such a wire. It moves only when it is used: a sender has to look for what is transmitted, as over any
/// link.
#[derive(Debug)]
pub struct Shape<L> {
    link: L,
    wire: Wire,
    /// When each packet arrives, and of how many buffers and octets it is.
    under_way: VecDeque<(Instant, usize, usize)>,
    buffers: VecDeque<Buffer>,
    octets: usize,
    /// When the last one has left.
    left: Instant,
    /// What has arrived, for the link below.
    out: VecDeque<Buffer>,
}

impl<L: Link> Shape<L> {
    /// A link over another one.
    pub fn new(link: L, wire: Wire) -> Shape<L> {
        let (under_way, buffers, out) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Shape { link, wire, under_way, buffers, octets: 0, left: Instant::now(), out }
    }

    /// Ends it, and gives back the link and what was still under way.
    pub fn take_apart(self) -> (L, Vec<Buffer>) {
        (self.link, self.buffers.into_iter().chain(self.out).collect())
    }

    fn advance(&mut self, now: Instant) {
        while let Some((_, buffers, octets)) = self.under_way.pop_front_if(|(due, ..)| *due <= now) {
            self.out.extend(self.buffers.drain(..buffers));
            self.octets -= octets;
        }
        if !self.out.is_empty() {
            self.link.transmit(&mut self.out);
        }
    }

    /// Takes what there is room for.
    fn take(&mut self, packets: &mut VecDeque<Buffer>, now: Instant) {
        while let Some(last) = packets.iter().position(|it| !it.goes_on()) {
            let octets = packets.iter().take(last + 1).map(Buffer::len).sum();
            if self.octets > 0 && self.octets + octets > self.wire.room {
                return;
            }
            // After the one before.
            self.left = self.left.max(now) + self.lasts(octets);
            self.under_way.push_back((self.left + self.wire.latency, last + 1, octets));
            self.buffers.extend(packets.drain(..=last));
            self.octets += octets;
        }
    }

    fn lasts(&self, octets: usize) -> Duration {
        let nanoseconds = |rate| octets as u128 * 1_000_000_000 / u128::from(rate);
        self.wire.rate.map_or(Duration::ZERO, |rate: u64| Duration::from_nanos(nanoseconds(rate.max(1)) as u64))
    }
}

impl<L: Link> Link for Shape<L> {
    fn guarantees(&self) -> Guarantees {
        self.link.guarantees()
    }

    fn mtu(&self) -> usize {
        self.link.mtu()
    }

    fn pieces(&self) -> usize {
        self.link.pieces()
    }

    fn whole(&self) -> usize {
        self.link.whole()
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        let now = Instant::now();
        self.advance(now);
        self.take(packets, now);
        self.advance(now);
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        self.advance(Instant::now());
        self.link.complete(done);
    }

    fn holds_back(&self) -> bool {
        !self.buffers.is_empty() || !self.out.is_empty() || self.link.holds_back()
    }

    fn fill(&mut self, buffer: Buffer) {
        self.link.fill(buffer);
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        self.advance(Instant::now());
        self.link.receive(packets, most)
    }

    fn watch(&mut self) -> Watch {
        self.advance(Instant::now());
        match self.link.watch() {
            // No descriptor reports that the time of a delayed packet has come.
            Watch::Armed if !self.under_way.is_empty() => Watch::Unheard,
            watch => watch,
        }
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        let now = Instant::now();
        let arrives = self.under_way.front().map(|(due, ..)| due.saturating_duration_since(now));
        let again = (!self.out.is_empty()).then_some(LOOK);
        self.link.readiness().map(|it| it.look_after(arrives).look_after(again))
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.link.check()
    }

    fn close(self: Box<Self>) -> Returned {
        let Shape { link, buffers, out, .. } = *self;
        let mut returned = Box::new(link).close();
        returned.lent.extend(buffers.into_iter().chain(out));
        returned
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::{Arena, Geometry};
    use crate::loopback::Loopback;

    const GEOMETRY: Geometry = Geometry { frames: 64, frame_size: 1024, headroom: 0 };

    fn pair(wire: Wire) -> (Arena, Vec<Buffer>, Shape<Loopback>, Loopback) {
        let (arena, mut free) = Arena::new(GEOMETRY);
        free.iter_mut().for_each(|buffer| arena.fill(buffer, 1000));
        let [one, two] = Loopback::passing(&arena, 1024);
        (arena, free, Shape::new(one, wire), two)
    }

    /// In virtual time: when each of so many packets that are sent at once arrives, in microseconds.
    #[test]
    fn packets_arrive_when_the_wire_lets_them() {
        let latency = Duration::from_micros(500);
        let (_arena, free, mut from, mut to) = pair(Wire { rate: Some(1_000_000), latency, room: 1 << 20 });
        let begin = from.left + Duration::from_secs(1);
        from.take(&mut free.into_iter().take(3).collect(), begin);
        let mut come = Vec::new();
        let mut arrived = |from: &mut Shape<Loopback>, at: u64| {
            from.advance(begin + Duration::from_micros(at));
            to.receive(&mut come, 64)
        };
        // A millisecond each, one after the other, and then the way.
        let counts = [0, 1499, 1500, 2499, 2500, 3499, 3500].map(|at| arrived(&mut from, at));
        assert_eq!(counts, [0, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn what_there_is_no_room_for_is_not_taken() {
        let (_arena, free, mut from, mut to) = pair(Wire { rate: Some(1), latency: Duration::ZERO, room: 2500 });
        let mut packets: VecDeque<Buffer> = free.into();
        from.transmit(&mut packets);
        assert_eq!((packets.len(), to.receive(&mut Vec::new(), 64)), (62, 0));
        let (_, under_way) = from.take_apart();
        assert_eq!(under_way.len(), 2);
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let (_arena, free, mut from, mut to) = pair(Wire { rate: None, latency: Duration::ZERO, room: 1 << 20 });
        from.transmit(&mut free.into());
        assert_eq!(to.receive(&mut Vec::new(), 100), 64);
    }
}

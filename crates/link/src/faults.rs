//! Faults on the way, from a seed: over any link, packets that come are lost, repeated, put out of order, changed and
//! delayed. What is sent is left alone, since its buffers come back as they were lent. So is what has come, since it
//! may be the sender's: what is changed or repeated is a copy in a frame of this link's own.

use crate::arena::{Arena, Buffer};
use crate::error::Fault;
use crate::{Counters, Guarantees, Link, Readiness, Returned, Watch};
use fastrand::Rng;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often what happens: shares of the packets that come, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Odds {
    /// The packet does not arrive.
    pub loss: f64,
    /// The packet arrives twice, if there is a frame for that.
    pub duplication: f64,
    /// One bit of the packet is changed, if there is a frame for that.
    pub corruption: f64,
    /// Up to eight packets that come behind the packet overtake it.
    pub reordering: f64,
    /// Each is late by some time up to this.
    pub delay: Duration,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// Packets that did not arrive.
    pub lost: u64,
    /// Packets that came once more.
    pub repeated: u64,
    /// Packets of which a bit was changed.
    pub changed: u64,
    /// Packets that were held back for others.
    pub overtaken: u64,
}

/// Packets that may overtake one.
const OVERTAKING: u32 = 8;
/// How long a packet that may be overtaken waits for others.
const PATIENCE: Duration = Duration::from_millis(10);

/// A link on which something happens.
#[derive(Debug)]
pub struct Faults<L> {
    link: L,
    arena: Arena,
    odds: Odds,
    random: Rng,
    held: VecDeque<Held>,
    /// Frames to copy into: the unused ones, and which frames these are.
    free: Vec<Buffer>,
    own: Box<[bool]>,
    come: Vec<Buffer>,
    happened: Happened,
}

/// A packet that has come and is not passed on yet.
#[derive(Debug)]
struct Held {
    pieces: Vec<Buffer>,
    due: Instant,
    /// How many packets are to overtake it yet.
    behind: u32,
}

impl Held {
    fn is_due(&self, now: Instant) -> bool {
        now >= self.passes()
    }

    /// When it is passed on at the latest.
    fn passes(&self) -> Instant {
        if self.behind == 0 { self.due } else { self.due + PATIENCE }
    }
}

impl<L: Link> Faults<L> {
    /// A link over another one, with frames of its arena to copy into. The same seed does the same to the same packets.
    pub fn new(link: L, arena: &Arena, frames: Vec<Buffer>, odds: Odds, seed: u64) -> Faults<L> {
        let (arena, random) = (arena.clone(), Rng::with_seed(seed));
        let mut own = vec![false; arena.geometry().frames as usize].into_boxed_slice();
        frames.iter().for_each(|frame| own[frame.frame() as usize] = true);
        let (held, come) = (VecDeque::new(), Vec::new());
        Faults { link, arena, odds, random, held, free: frames, own, come, happened: Happened::default() }
    }

    /// What has happened.
    pub fn happened(&self) -> Happened {
        self.happened
    }

    /// Ends it, and gives back the link and the buffers that it has.
    pub fn take_apart(self) -> (L, Vec<Buffer>) {
        let held = self.held.into_iter().flat_map(|it| it.pieces);
        (self.link, held.chain(self.free).collect())
    }

    fn happens(&mut self, share: f64) -> bool {
        self.random.f64() < share
    }

    /// A packet has come.
    fn suffer(&mut self, mut pieces: Vec<Buffer>, now: Instant) {
        let Odds { loss, duplication, corruption, reordering, delay } = self.odds;
        if self.happens(loss) {
            self.happened.lost += 1;
            return pieces.into_iter().for_each(|buffer| self.fill(buffer));
        }
        let again = self.happens(duplication).then(|| self.copy(&pieces)).flatten();
        self.happened.repeated += u64::from(again.is_some());
        if self.happens(corruption)
            && let Some(changed) = self.changed(&pieces)
        {
            self.happened.changed += 1;
            std::mem::replace(&mut pieces, changed).into_iter().for_each(|buffer| self.fill(buffer));
        }
        for pieces in [Some(pieces), again].into_iter().flatten() {
            let behind = if self.happens(reordering) { self.random.u32(1..=OVERTAKING) } else { 0 };
            self.happened.overtaken += u64::from(behind > 0);
            let due = now + delay.mul_f64(self.random.f64());
            self.held.push_back(Held { pieces, due, behind });
        }
    }

    fn copy(&mut self, pieces: &[Buffer]) -> Option<Vec<Buffer>> {
        let from = self.free.len().checked_sub(pieces.len())?;
        let mut copies: Vec<Buffer> = self.free.drain(from..).collect();
        for (copy, piece) in copies.iter_mut().zip(pieces) {
            self.arena.restore(copy, piece.offset(), piece.len() as u32);
            self.arena.octets_mut(copy).copy_from_slice(self.arena.octets(piece));
            copy.go_on(piece.goes_on());
        }
        Some(copies)
    }

    /// A copy of which a bit is another.
    fn changed(&mut self, pieces: &[Buffer]) -> Option<Vec<Buffer>> {
        let piece = self.random.usize(..pieces.len());
        if pieces[piece].is_empty() {
            return None;
        }
        let mut copies = self.copy(pieces)?;
        let octets = self.arena.octets_mut(&mut copies[piece]);
        octets[self.random.usize(..octets.len())] ^= 1 << self.random.u32(..8);
        Some(copies)
    }
}

impl<L: Link> Link for Faults<L> {
    fn guarantees(&self) -> Guarantees {
        let Odds { loss, duplication, corruption, reordering, .. } = self.odds;
        let Guarantees { delivery, integrity } = self.link.guarantees();
        let delivers = loss == 0.0 && duplication == 0.0 && reordering == 0.0 && self.odds.delay.is_zero();
        Guarantees { delivery: delivery && delivers, integrity: integrity && corruption == 0.0 }
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
        self.link.transmit(packets);
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        self.link.complete(done);
    }

    fn holds_back(&self) -> bool {
        self.link.holds_back()
    }

    fn fill(&mut self, buffer: Buffer) {
        if self.own[buffer.frame() as usize] {
            self.free.push(buffer);
        } else {
            self.link.fill(buffer);
        }
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let now = Instant::now();
        self.link.receive(&mut self.come, most);
        let mut come = std::mem::take(&mut self.come);
        let mut pieces = Vec::new();
        for buffer in come.drain(..) {
            let last = !buffer.goes_on();
            pieces.push(buffer);
            if last {
                self.suffer(std::mem::take(&mut pieces), now);
            }
        }
        self.come = come;
        let mut count = 0;
        while count < most
            && let Some(at) = self.held.iter().position(|it| it.is_due(now))
            && let Some(held) = self.held.remove(at)
        {
            packets.extend(held.pieces);
            count += 1;
            // It has overtaken the packets in front of it.
            self.held.iter_mut().take(at).for_each(|it| it.behind = it.behind.saturating_sub(1));
        }
        count
    }

    fn watch(&mut self) -> Watch {
        let now = Instant::now();
        match self.link.watch() {
            _ if self.held.iter().any(|it| it.is_due(now)) => Watch::Ready,
            Watch::Armed if !self.held.is_empty() => Watch::Unheard,
            watch => watch,
        }
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        let now = Instant::now();
        let due = self.held.iter().map(|it| it.passes().saturating_duration_since(now)).min();
        self.link.readiness().map(|it| it.look_after(due))
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.link.check()
    }

    fn close(self: Box<Self>) -> Returned {
        let Faults { link, held, come, free, own, .. } = *self;
        let mut returned = Box::new(link).close();
        returned.own.extend(free);
        for buffer in held.into_iter().flat_map(|it| it.pieces).chain(come) {
            if own[buffer.frame() as usize] { returned.own.push(buffer) } else { returned.given.push(buffer) }
        }
        returned
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::Geometry;
    use crate::loopback::Loopback;

    const PACKETS: u32 = 20_000;
    const OWN: usize = 16;

    /// Sends numbered packets over faults: the numbers that came, in their order, and what happened.
    fn run(odds: Odds, seed: u64) -> (Vec<u32>, Happened) {
        let geometry = Geometry { frames: 128, frame_size: 64, headroom: 0 };
        let [(arena, mut free), (other, mut room)] = [Arena::new(geometry), Arena::new(geometry)];
        let [mut from, to] = Loopback::copying([&arena, &other], 64);
        let own = room.split_off(room.len() - OWN);
        let mut to = Faults::new(to, &other, own, odds, seed);
        room.into_iter().for_each(|buffer| to.fill(buffer));
        let (mut numbers, mut come, mut sent) = (Vec::new(), Vec::new(), 0);
        loop {
            from.complete(&mut free);
            if let Some(mut buffer) = (sent < PACKETS).then(|| free.pop()).flatten() {
                arena.fill(&mut buffer, 4);
                arena.octets_mut(&mut buffer).copy_from_slice(&u32::to_be_bytes(sent));
                from.transmit(&mut [buffer].into());
                sent += 1;
            }
            to.receive(&mut come, 4);
            for buffer in come.drain(..) {
                numbers.push(other.octets(&buffer).try_into().map(u32::from_be_bytes).unwrap());
                to.fill(buffer);
            }
            if sent == PACKETS && to.held.is_empty() && free.len() == 128 {
                break;
            }
        }
        let happened = to.happened();
        let (_, kept) = to.take_apart();
        assert_eq!(kept.len(), OWN);
        (numbers, happened)
    }

    fn near(count: u64, share: f64) {
        let expected = f64::from(PACKETS) * share;
        assert!((count as f64 - expected).abs() < 6.0 * expected.sqrt(), "{count} instead of {expected}");
    }

    #[test]
    fn without_odds_nothing_happens() {
        let (numbers, happened) = run(Odds::default(), 1);
        assert_eq!(happened, Happened::default());
        assert!(numbers.into_iter().eq(0..PACKETS));
    }

    #[test]
    fn what_is_lost_or_repeated_is_counted() {
        let (numbers, happened) = run(Odds { loss: 0.1, duplication: 0.05, ..Odds::default() }, 2);
        near(happened.lost, 0.1);
        near(happened.repeated, 0.9 * 0.05);
        assert_eq!(numbers.len() as u64, u64::from(PACKETS) - happened.lost + happened.repeated);
        assert!(numbers.is_sorted());
        assert_eq!(numbers.windows(2).filter(|it| it[0] == it[1]).count() as u64, happened.repeated);
    }

    #[test]
    fn what_is_changed_differs_in_a_bit() {
        let (numbers, happened) = run(Odds { corruption: 0.1, ..Odds::default() }, 3);
        near(happened.changed, 0.1);
        let different: Vec<u32> = numbers.into_iter().zip(0..).map(|(came, sent): (u32, u32)| came ^ sent).collect();
        assert!(different.iter().all(|it| it.count_ones() <= 1));
        assert_eq!(different.iter().filter(|it| **it != 0).count() as u64, happened.changed);
    }

    /// Over a link that passes buffers from end to end what has come is the sender's: it is retained, and may have to
    /// go again.
    #[test]
    fn what_the_sender_retains_stays_as_it_was() {
        let (arena, mut free) = Arena::new(Geometry { frames: 8, frame_size: 64, headroom: 0 });
        let own = free.split_off(4);
        let [mut from, to] = Loopback::passing(&arena, 64);
        let mut to = Faults::new(to, &arena, own, Odds { corruption: 1.0, duplication: 1.0, ..Odds::default() }, 1);
        for round in 0..100 {
            let mut buffer = free.pop().expect("it comes back");
            arena.fill(&mut buffer, 40);
            arena.octets_mut(&mut buffer).fill(round);
            from.transmit(&mut [buffer].into());
            let mut come = Vec::new();
            to.receive(&mut come, 8);
            let different = |it: &&Buffer| arena.octets(it) != [round; 40];
            assert_eq!((come.len(), come.iter().filter(different).count()), (2, 1));
            come.into_iter().for_each(|buffer| to.fill(buffer));
            // Lets the other end see what was given back.
            to.receive(&mut Vec::new(), 8);
            from.complete(&mut free);
            let back = free.last().map(|it| arena.octets(it));
            assert_eq!(back, Some(&[round; 40][..]));
        }
        assert_eq!((free.len(), to.happened().changed, to.happened().repeated), (4, 100, 100));
    }

    #[test]
    fn what_is_overtaken_comes_all_the_same() {
        let (mut numbers, happened) = run(Odds { reordering: 0.1, ..Odds::default() }, 4);
        near(happened.overtaken, 0.1);
        let displaced = numbers.iter().zip(0..).filter(|(came, sent)| **came != *sent).count();
        assert!(displaced > PACKETS as usize / 10, "{displaced}");
        let farthest = numbers.iter().zip(0..).map(|(came, sent): (&u32, u32)| came.abs_diff(sent)).max().unwrap();
        assert!(farthest <= 2 * OVERTAKING, "{farthest}");
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..PACKETS));
    }

    #[test]
    fn delay_puts_off_and_loses_nothing() {
        let (mut numbers, _) = run(Odds { delay: Duration::from_micros(200), ..Odds::default() }, 5);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..PACKETS));
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let odds = Odds { loss: 0.1, corruption: 0.1, ..Odds::default() };
        assert_eq!(run(odds, 6), run(odds, 6));
        assert_ne!(run(odds, 6), run(odds, 7));
    }
}

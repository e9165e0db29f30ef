//! How fast packets go to a peer: each has its time, before which it does not leave.
//!
//! The kernel keeps that time where the interface's queueing discipline does (fq), so that packets may be given to it
//! ahead. Elsewhere the link holds them. A link that was not used for a while catches up, but for no more than a
//! millisecond: what is due then goes at once.

use crate::arena::Buffer;
use std::collections::VecDeque;
use std::num::NonZeroU64;

const SECOND: u64 = 1_000_000_000;
/// How late packets may be and still be caught up with.
const BURST: u64 = SECOND / 1000;
/// How far ahead of their time packets are given to the kernel.
const AHEAD: u64 = SECOND / 100;
/// For so long packets of one message may take.
const MESSAGE: u64 = SECOND / 4000;
/// Packets of one message at most.
const PACKETS: usize = 64;

/// What makes packets leave at their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timekeeper {
    /// The kernel: the interface has the queueing discipline fq (tc-fq(8)).
    Kernel,
    /// The link, when it is used: [`crate::Readiness::look`] says when.
    Link,
}

/// The pace of a way. Times are those of the monotonic clock, in nanoseconds.
#[derive(Debug)]
pub struct Pace {
    /// Octets in a second.
    rate: NonZeroU64,
    pub keeper: Timekeeper,
    /// When the next packet may leave, and when the last message leaves that was given to the kernel.
    next: u64,
    last: u64,
    /// It only lasts until what the kernel was given ahead has left.
    ends: bool,
    /// Packets that wait for that.
    held: VecDeque<Buffer>,
}

impl Pace {
    /// A pace of so many octets in a second, from now on.
    pub fn new(rate: NonZeroU64, keeper: Timekeeper, now: u64) -> Pace {
        Pace { rate, keeper, next: now, last: 0, ends: false, held: VecDeque::new() }
    }

    /// Whether the kernel still keeps packets whose time has not come.
    pub fn is_ahead(&self, now: u64) -> bool {
        (self.ends || self.keeper == Timekeeper::Kernel) && self.next > now
    }

    /// Has packets go as fast as they can, once all that the kernel was given ahead has left: without times beside them
    /// they would overtake those.
    pub fn end(&mut self) {
        (self.rate, self.keeper, self.ends) = (NonZeroU64::MAX, Timekeeper::Link, true);
    }

    /// Whether it is about to end.
    pub fn ends(&self) -> bool {
        self.ends
    }

    /// Whether it has ended, and nothing waits any more.
    pub fn is_over(&self, now: u64) -> bool {
        self.ends && self.next <= now && self.held.is_empty()
    }

    /// Goes on at another rate, if it was about to end.
    pub fn go_on(&mut self, rate: NonZeroU64, keeper: impl FnOnce() -> Timekeeper) {
        if std::mem::take(&mut self.ends) {
            (self.rate, self.keeper) = (rate, keeper());
        }
    }

    /// Another rate from now on: what is left to wait for is as long as it would be at that rate. No packet leaves
    /// before those that the kernel was given ahead, whose times stay.
    pub fn change(&mut self, rate: NonZeroU64, now: u64) {
        let left = u128::from(self.next.saturating_sub(now)) * u128::from(self.rate.get()) / u128::from(rate.get());
        let next = now.saturating_add(u64::try_from(left).unwrap_or(u64::MAX));
        self.next = self.next.min(next.max(self.last));
        self.rate = rate;
    }

    /// A packet that waits for its time, behind all others.
    pub fn hold(&mut self, packet: Buffer) {
        self.held.push_back(packet);
    }

    /// When packets that wait may go on, if there are any.
    pub fn due(&self) -> Option<u64> {
        let ahead = if self.keeper == Timekeeper::Kernel { AHEAD } else { 0 };
        (!self.held.is_empty()).then_some(self.next.saturating_sub(ahead))
    }

    /// Takes packets whose time has come, as one message may have them, and says when they leave. Those that do not go
    /// are put back.
    pub fn take(&mut self, now: u64, out: &mut VecDeque<Buffer>) -> Option<u64> {
        self.due().filter(|due| *due <= now)?;
        let begin = self.next.max(now.saturating_sub(BURST));
        let (mut end, mut packets) = (begin, 0);
        while let Some(packet) =
            self.held.pop_front_if(|_| packets == 0 || (packets < PACKETS && end - begin < MESSAGE))
        {
            end += self.lasts(packet.len());
            packets += 1;
            out.push_back(packet);
        }
        (self.next, self.last) = (end, begin.max(now));
        Some(self.last)
    }

    /// Puts packets back that have not gone.
    pub fn put_back(&mut self, out: &mut VecDeque<Buffer>) {
        while let Some(packet) = out.pop_back() {
            self.next = self.next.saturating_sub(self.lasts(packet.len()));
            self.held.push_front(packet);
        }
    }

    /// All packets that wait.
    pub fn into_held(self) -> VecDeque<Buffer> {
        self.held
    }

    fn lasts(&self, octets: usize) -> u64 {
        (octets as u128 * u128::from(SECOND) / u128::from(self.rate.get())) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::{Arena, Geometry};

    const MS: u64 = SECOND / 1000;

    /// A megabyte a second, so that a packet lasts a millisecond.
    fn paced(keeper: Timekeeper, packets: usize) -> Pace {
        let (arena, mut all) = Arena::new(Geometry { frames: 256, frame_size: 1000, headroom: 0 });
        let mut pace = Pace::new(NonZeroU64::new(1_000_000).unwrap(), keeper, 0);
        for mut packet in all.drain(..packets) {
            arena.fill(&mut packet, 1000);
            pace.hold(packet);
        }
        pace
    }

    #[test]
    fn packets_go_at_their_rate_and_catch_up_with_little() {
        let mut pace = paced(Timekeeper::Link, 100);
        let mut sent = |now: u64| {
            let mut out = VecDeque::new();
            while let Some(departure) = pace.take(now, &mut out) {
                assert_eq!(departure, now);
            }
            out.len()
        };
        let counts = [0, MS / 2, MS, 2 * MS - 1, 2 * MS, 4 * MS, 50 * MS].map(&mut sent);
        assert_eq!(counts, [1, 0, 1, 0, 1, 2, 2]);
    }

    #[test]
    fn the_kernel_is_given_packets_ahead_with_their_times() {
        let mut pace = paced(Timekeeper::Kernel, 100);
        let mut departures = Vec::new();
        let mut out = VecDeque::new();
        while let Some(departure) = pace.take(0, &mut out) {
            departures.push(departure);
        }
        assert_eq!(departures, (0..=10).map(|it| it * MS).collect::<Vec<_>>());
        assert_eq!(pace.due(), Some(MS));
    }

    #[test]
    fn another_rate_is_for_what_waits_too() {
        let mut pace = paced(Timekeeper::Link, 3);
        assert_eq!(pace.take(0, &mut VecDeque::new()), Some(0));
        assert_eq!(pace.due(), Some(MS));
        pace.change(NonZeroU64::new(1_000_000_000).unwrap(), MS / 2);
        assert_eq!(pace.due(), Some(MS / 2 + 500));
        pace.change(NonZeroU64::new(1).unwrap(), MS / 2);
        assert_eq!(pace.due(), Some(MS / 2 + 500), "what was allowed stays so");
    }

    /// The kernel sorts what it keeps by time: what follows at a higher rate must not come before it.
    #[test]
    fn a_higher_rate_overtakes_nothing_that_the_kernel_has() {
        let mut pace = paced(Timekeeper::Kernel, 100);
        let departures = |pace: &mut Pace, now| {
            let mut out = VecDeque::new();
            std::iter::from_fn(|| pace.take(now, &mut out)).collect::<Vec<_>>()
        };
        assert_eq!(departures(&mut pace, 0).last(), Some(&(10 * MS)));
        pace.change(NonZeroU64::new(10_000_000).unwrap(), MS / 2);
        assert_eq!(departures(&mut pace, MS / 2)[..2], [10 * MS, 10 * MS + 3 * MS / 10]);
        // Nothing is to be overtaken when it has left.
        pace.change(NonZeroU64::new(100_000_000).unwrap(), 20 * MS);
        assert_eq!(departures(&mut pace, 20 * MS)[0], 20 * MS);
    }

    #[test]
    fn short_packets_go_together_and_what_does_not_go_keeps_its_place() {
        let mut pace = paced(Timekeeper::Link, 256);
        pace.change(NonZeroU64::new(100_000_000).unwrap(), 0);
        let mut out = VecDeque::new();
        assert_eq!((pace.take(0, &mut out), out.len()), (Some(0), 25));
        let last = out.back().unwrap().frame();
        let mut rest = out.split_off(20);
        pace.put_back(&mut rest);
        assert_eq!((pace.due(), rest.len()), (Some(200_000), 0));
        out.clear();
        assert_eq!(pace.take(200_000, &mut out), Some(200_000));
        assert_eq!(out[4].frame(), last);
        assert_eq!((out.len(), pace.into_held().len()), (25, 211));
    }
}

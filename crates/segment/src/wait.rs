//! How long to poll before sleeping.
//!
//! Polling pays when what is awaited comes sooner than a sleep and a wake-up would take. How soon it comes is learnt
//! from the last waits of the same direction. Where both ends share a processor, nothing comes while this thread polls:
//! the processor number that the other end publishes shows that. What giving way is worth is learnt from how long the
//! processor was away.

use crate::clock::{Here, here, ticks, ticks_per_microsecond};
use crate::company::{self, Company};
use crate::sync::{AtomicU32, AtomicU64, Relaxed, pause};

/// How many polls lie between two looks at the clock.
const POLLS: u32 = 32;
/// After this many microseconds of polling, the processor is offered to other threads between polls.
const ALONE_US: u64 = 4;
/// A poll during which other threads had the processor lasts no longer than this.
const GIVEN_US: u64 = 1000;
/// A direction whose waits are long polls once in this many waits, to find out whether they still are.
const PROBE_EVERY: u32 = 64;
/// A direction whose waits are [`FAR`] times as long as the longest poll polls once in this many waits: no wake-ups
/// that polls would save can make that much.
const PROBE_RARELY: u32 = 4 * PROBE_EVERY;
const FAR: u64 = 3;

/// What waking a sleeper takes, in microseconds: a wait in which this end slept, or the other end had to be woken
/// first, would have been shorter by so much had both been polling.
const WAKE_US: u64 = 40;

/// A longer wait counts in the mean as this many microseconds.
const LONGEST_LEARNT_US: u64 = 1000;

/// A stream whose waits are shorter than this on average is let run ahead for [`GATHER_NS`] before it is looked at.
const BRIEF_NS: u64 = 1000;
/// How far a stream is let run ahead.
const GATHER_NS: u64 = 500;

/// Doorbells that this process has sent.
static BELLS: AtomicU32 = AtomicU32::new(0);

/// A doorbell was sent: the other end was asleep.
pub fn rang() {
    BELLS.fetch_add(1, Relaxed);
}

/// What a direction remembers of its waits.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// Mean wait in ticks, times 8.
    pub mean: &'a AtomicU64,
    /// Number of waits.
    pub waits: &'a AtomicU32,
    /// Doorbells that the process had sent when the last wait began.
    pub bells: &'a AtomicU32,
}

/// How a spell of polling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// What was waited for has arrived.
    Arrived,
    /// The slice is over; polling still pays.
    Slice,
    /// Polling does not pay any more.
    Enough,
}

/// A wait in progress.
#[derive(Clone, Copy)]
pub struct Wait {
    began: Here,
    budget: u64,
    shared: bool,
    woke_peer: bool,
    brief: bool,
    /// Ticks for which others had the processor.
    given: u64,
    /// Whether nothing was polled yet, or what was waited for came within the first polls.
    prompt: bool,
}

impl Wait {
    /// Begins to wait. `peer_cpu` is 1 + the processor on which the other end last waited, 0 if unknown; `longest` the
    /// longest poll allowed, in microseconds.
    #[inline]
    pub fn begin(memory: Memory<'_>, peer_cpu: u32, longest: u32) -> Wait {
        let began = here();
        let shared = peer_cpu == began.cpu + 1;
        let longest = u64::from(longest) * ticks_per_microsecond();
        let mean = memory.mean.load(Relaxed);
        let waits = memory.waits.load(Relaxed).wrapping_add(1);
        memory.waits.store(waits, Relaxed);
        let bells = BELLS.load(Relaxed);
        let woke_peer = memory.bells.load(Relaxed) != bells;
        if woke_peer {
            memory.bells.store(bells, Relaxed);
        }
        let budget = budget(mean, waits, longest);
        let brief = mean / 8 < BRIEF_NS * ticks_per_microsecond() / 1000;
        Wait { began, budget, shared, woke_peer, brief, given: 0, prompt: true }
    }

    /// Lets several messages of a stream come together before the first is looked at. A reader that looks at the very
    /// line being written takes it from the writer at every message, which costs the writer more than the message does.
    #[inline]
    pub fn gather(&self) {
        if self.brief && !self.shared {
            let enough = GATHER_NS * ticks_per_microsecond() / 1000;
            while ticks().wrapping_sub(self.began.ticks) < enough {
                pause();
            }
        }
    }

    /// Processor on which the wait began, plus 1.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.began.cpu + 1
    }

    /// Whether polling may pay at all.
    pub fn polls(&self) -> bool {
        self.budget > 0
    }

    /// Says whether all the peers that are awaited last waited on this very processor.
    #[inline]
    pub fn share(&mut self, shared: bool) {
        self.shared = shared;
    }

    /// Polls until `arrived` or until polling stops to pay; true when it arrived.
    #[inline]
    pub fn poll(&mut self, arrived: impl FnMut() -> bool) -> bool {
        self.poll_for(u64::MAX, arrived) == Polled::Arrived
    }

    /// Polls until `arrived`, until polling stops to pay, or for `slice` ticks.
    #[inline]
    pub fn poll_for(&mut self, slice: u64, mut arrived: impl FnMut() -> bool) -> Polled {
        if self.budget == 0 {
            return if arrived() { Polled::Arrived } else { Polled::Enough };
        }
        let company = company::expected();
        // On one processor the other end can do nothing before this one gives way. A peer that was just woken may well
        // have been put on this processor.
        let at_once = self.shared || company == Company::Brief;
        let (alone, polls) = match (at_once, self.woke_peer) {
            (true, _) => (0, 1),
            (false, true) => (0, POLLS),
            (false, false) => (ALONE_US * ticks_per_microsecond(), POLLS),
        };
        let budget = if company == Company::Greedy { self.budget.min(alone) } else { self.budget };
        let until = ticks().wrapping_sub(self.began.ticks).saturating_add(slice);
        loop {
            for _ in 0..polls {
                if arrived() {
                    return Polled::Arrived;
                }
                pause();
            }
            self.prompt = false;
            let waited = ticks().wrapping_sub(self.began.ticks);
            // The time for which other threads had the processor was not lost.
            if waited.saturating_sub(self.given) > budget || waited > budget.max(GIVEN_US * ticks_per_microsecond()) {
                return if arrived() { Polled::Arrived } else { Polled::Enough };
            }
            if waited >= alone {
                self.given += company::give_way();
            }
            if waited > until {
                return Polled::Slice;
            }
        }
    }

    /// Ends the wait: what was waited for has arrived, after a sleep or not.
    #[inline]
    pub fn end(&self, memory: Memory<'_>, slept: bool) {
        let mean = memory.mean.load(Relaxed);
        if self.prompt && !slept && !self.woke_peer {
            // Too short to be worth a look at the clock.
            memory.mean.store(learnt(mean, 0, 1), Relaxed);
            return;
        }
        let wakes = u64::from(slept) + u64::from(self.woke_peer);
        let waited = ticks()
            .wrapping_sub(self.began.ticks + self.given)
            .saturating_sub(wakes * WAKE_US * ticks_per_microsecond());
        memory.mean.store(learnt(mean, waited, ticks_per_microsecond()), Relaxed);
    }
}

/// How long wait number `waits` of a direction polls, in ticks, where `mean` is 8 times the mean of the last waits and
/// `longest` the longest poll allowed.
fn budget(mean: u64, waits: u32, longest: u64) -> u64 {
    let probe_every = if mean / 8 > FAR * longest { PROBE_RARELY } else { PROBE_EVERY };
    if mean / 8 <= longest || waits.is_multiple_of(probe_every) { longest } else { 0 }
}

/// The mean, times 8, with one wait more. One very long wait must not outweigh many short ones.
fn learnt(mean: u64, waited: u64, ticks_per_microsecond: u64) -> u64 {
    mean - mean / 8 + waited.min(LONGEST_LEARNT_US * ticks_per_microsecond)
}

/// The policy in a model of costs, in which a tick is a microsecond of processor time: a poll costs what it lasts, and
/// a sleep what it costs both ends to wake a sleeper.
#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u64 = 100;
    const SLEEP: u64 = LONGEST;

    /// What waits of these durations cost one after another, and how many of them polled.
    fn cost(durations: impl IntoIterator<Item = u64>) -> (u64, u32) {
        let (mut mean, mut cost, mut polled) = (0, 0, 0);
        for (waits, duration) in (1..).zip(durations) {
            let budget = budget(mean, waits, LONGEST);
            let slept = duration > budget;
            polled += u32::from(budget > 0);
            cost += duration.min(budget) + if slept { SLEEP } else { 0 };
            mean = learnt(mean, duration, 1);
        }
        (cost, polled)
    }

    /// What they cost if it is known beforehand how long each lasts.
    fn least(durations: impl IntoIterator<Item = u64>) -> u64 {
        durations.into_iter().map(|duration| duration.min(SLEEP)).sum()
    }

    /// Miri takes a thousand times as long.
    const WAITS: usize = if cfg!(miri) { 100 } else { 10_000 };

    #[test]
    fn no_sequence_of_waits_costs_more_than_twice_the_least() {
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            random >> 33
        };
        for longest in [10, 50, 101, 150, 300, 2000, 100_000] {
            for share_of_short in 0..=10 {
                let mut durations = Vec::new();
                for _ in 0..WAITS {
                    durations.push(if next() % 10 < share_of_short { next() % 20 } else { 1 + next() % longest });
                }
                let (cost, least) = (cost(durations.iter().copied()), least(durations.iter().copied()));
                // Short waits between long ones are slept through where the mean is long: for each of them a sleep.
                let slept = durations.iter().filter(|it| **it <= LONGEST).count() as u64 * SLEEP;
                assert!(cost.0 <= 2 * least + slept, "{longest}, {share_of_short} of 10: {cost:?}, {least}");
            }
        }
    }

    #[test]
    fn long_waits_are_slept_through_but_for_the_probes() {
        for (duration, probe_every) in [(2 * LONGEST, PROBE_EVERY), (10 * LONGEST, PROBE_RARELY)] {
            let (cost, polled) = cost([duration; 6400]);
            // The first probes, by which it learns, and the later ones.
            let probes = 6 + 6400 / probe_every;
            assert!(polled <= probes, "{duration}: {polled}");
            assert!(cost <= 6400 * SLEEP + u64::from(probes) * LONGEST, "{duration}: {cost}");
        }
    }

    #[test]
    fn short_waits_are_polled_and_found_again_behind_long_ones() {
        assert_eq!(cost([10; 1000]), (10 * 1000, 1000));
        let (_, polled) = cost([1_000_000; 1000].into_iter().chain([10; 1000]));
        let (_, before) = cost([1_000_000; 1000]);
        // A mean of the longest that is learnt is below the longest poll after ln(10) / ln(8 / 7) waits.
        assert!(polled - before >= 1000 - 18, "{}", polled - before);
    }
}

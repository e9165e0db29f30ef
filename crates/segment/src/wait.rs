//! How long to poll before sleeping.
//!
//! Polling pays when what is waited for comes sooner than a sleep and a wake-up would take. How soon it comes is learnt
//! from the last waits of the same direction; where it will not come at all while this thread polls (both ends on one
//! processor) is learnt from the processor number that the other end publishes.

use crate::clock::{Here, give_way, here, ticks, ticks_per_microsecond};
use crate::sync::{AtomicU32, AtomicU64, Relaxed, pause};

/// Polls so many times between two looks at the clock.
const POLLS: u32 = 32;
/// After so many microseconds of polling the processor is offered to others between polls.
const ALONE_US: u64 = 4;
/// A direction whose waits are long polls again once in so many waits, to find out whether they still are.
const PROBE_EVERY: u32 = 64;

/// What a direction remembers of its waits.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// Mean wait in ticks, times 8.
    pub mean: &'a AtomicU64,
    /// Number of waits.
    pub waits: &'a AtomicU32,
}

/// A wait in progress.
#[derive(Clone, Copy)]
pub struct Wait {
    began: Here,
    budget: u64,
    shared: bool,
}

impl Wait {
    /// Begins to wait. `peer_cpu` is 1 + the processor on which the other end last waited, 0 if unknown; `longest` the
    /// longest poll allowed, in microseconds.
    #[inline]
    pub fn begin(memory: Memory<'_>, peer_cpu: u32, longest: u32) -> Wait {
        let began = here();
        let shared = peer_cpu == began.cpu + 1;
        let longest = u64::from(longest) * ticks_per_microsecond();
        let mean = memory.mean.load(Relaxed) / 8;
        let waits = memory.waits.load(Relaxed).wrapping_add(1);
        memory.waits.store(waits, Relaxed);
        let budget = if mean <= longest || waits.is_multiple_of(PROBE_EVERY) { longest } else { 0 };
        Wait { began, budget, shared }
    }

    /// Processor on which the wait began, plus 1.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.began.cpu + 1
    }

    /// The other end last waited on this processor, plus 1 (if that was not known at the beginning).
    #[inline]
    pub fn meet(&mut self, peer_cpu: u32) {
        self.shared = peer_cpu == self.cpu();
    }

    /// Polls until `arrived` or until polling stops to pay; true when it arrived.
    #[inline]
    pub fn poll(&self, mut arrived: impl FnMut() -> bool) -> bool {
        if self.budget == 0 {
            return arrived();
        }
        let alone = if self.shared { 0 } else { ALONE_US * ticks_per_microsecond() };
        loop {
            for _ in 0..POLLS {
                if arrived() {
                    return true;
                }
                pause();
            }
            let waited = ticks().wrapping_sub(self.began.ticks);
            if waited > self.budget {
                return arrived();
            }
            if waited >= alone {
                give_way();
            }
        }
    }

    /// Ends the wait: what was waited for has arrived.
    #[inline]
    pub fn end(&self, memory: Memory<'_>) {
        // One very long wait must not outweigh many short ones.
        let cap = 1000 * ticks_per_microsecond();
        let waited = ticks().wrapping_sub(self.began.ticks).min(cap);
        let mean = memory.mean.load(Relaxed);
        memory.mean.store(mean - mean / 8 + waited, Relaxed);
    }
}

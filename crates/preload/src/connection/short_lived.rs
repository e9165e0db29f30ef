//! A busy service of short connections: a process whose connections come fast, one after another, and end before any of them is
//! worth a channel.
//!
//! To follow a connection costs a process some microseconds, mostly in cold code. Where [`ROW`] connections in a row were short and
//! more than [`ROW`] begin within [`ROW_NS`], that is a share of its processor time that can be measured, and it buys nothing.
//! Such a process follows one new connection each [`SAMPLE_NS`] and leaves the others to kernel TCP. One followed connection that
//! proves to be worth a channel ends that at once, and so does a pause: what comes at a lower rate is followed always.

use super::Connection;
use crate::guest::settings;
use underpass_segment::clock;
use underpass_segment::end::{End, Stage};
use underpass_segment::sync::{AtomicBool, AtomicU32, AtomicU64, Relaxed};

/// So many short connections in a row make a service of short connections, if they also come fast.
const ROW: u32 = 64;
/// The time in which so many have to begin.
const ROW_NS: u64 = 128_000_000;
/// So often one is followed that could be left to kernel TCP. By time, not by number: of many connections at once the epoll set
/// would always hold a followed one, and each wait on it would look for that.
const SAMPLE_NS: u64 = 8_000_000;

/// What this process has seen of its latest connections. Threads may count past each other: every answer is a safe one.
struct Latest {
    /// Connections that have begun.
    begun: AtomicU32,
    /// When the last full row of them had begun, in nanoseconds.
    row_began: AtomicU64,
    /// When one was followed that could have been left.
    sampled: AtomicU64,
    /// The last full row took less than [`ROW_NS`].
    is_fast: AtomicBool,
    /// Short connections that have ended since the last one that was worth a channel.
    short: AtomicU32,
}

static LATEST: Latest = Latest::new();

impl Latest {
    const fn new() -> Latest {
        Latest {
            begun: AtomicU32::new(0),
            row_began: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            is_fast: AtomicBool::new(false),
            short: AtomicU32::new(0),
        }
    }

    /// A connection begins at the time `now`. Whether it is to be left to kernel TCP.
    fn leaves_next(&self, now: impl Fn() -> u64) -> bool {
        let number = self.begun.fetch_add(1, Relaxed).wrapping_add(1);
        if number.is_multiple_of(ROW) {
            let now = now();
            let began = self.row_began.swap(now, Relaxed);
            self.is_fast.store(now.saturating_sub(began) < ROW_NS, Relaxed);
        }
        if self.short.load(Relaxed) < ROW || !self.is_fast.load(Relaxed) {
            return false;
        }
        let now = now();
        if now.saturating_sub(self.row_began.load(Relaxed)) >= ROW_NS {
            self.is_fast.store(false, Relaxed);
            return false;
        }
        let is_sample = now.saturating_sub(self.sampled.load(Relaxed)) >= SAMPLE_NS;
        if is_sample {
            self.sampled.store(now, Relaxed);
        }
        !is_sample
    }

    fn one_was_short(&self) {
        if self.short.load(Relaxed) < ROW {
            self.short.fetch_add(1, Relaxed);
        }
    }

    fn one_was_worth_it(&self) {
        if self.short.load(Relaxed) != 0 {
            self.short.store(0, Relaxed);
        }
    }
}

/// A connection begins. Whether the process leaves it to kernel TCP, without following it.
pub fn leaves_next() -> bool {
    LATEST.leaves_next(clock::nanoseconds) && !settings::config().goes_up_at_once()
}

/// The last reference to `end` is gone.
pub fn ended(end: &End) {
    if end.stage() == Stage::Plain && !is_worth_a_channel(end, end.calls.load(Relaxed)) {
        LATEST.one_was_short();
    }
}

/// Whether it has carried enough, with so many `calls`, to be worth a channel.
fn is_worth_a_channel(end: &End, calls: u32) -> bool {
    let config = settings::config();
    calls > config.go_up_messages || end.bytes.load(Relaxed) >= config.go_up_bytes
}

impl Connection {
    /// Whether it has carried enough, with this as its call of number `calls`, to be worth a channel.
    pub fn is_worth_a_channel(&self, calls: u32) -> bool {
        let is = is_worth_a_channel(self.end, calls);
        if is {
            LATEST.one_was_worth_it();
        }
        is
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// Begins `count` connections, one every `gap_ns`; how many of them are left to kernel TCP.
    fn begin(latest: &Latest, clock: &Cell<u64>, count: u32, gap_ns: u64) -> u32 {
        let begin = |_| {
            clock.set(clock.get() + gap_ns);
            u32::from(latest.leaves_next(|| clock.get()))
        };
        (0..count).map(begin).sum()
    }

    fn busy_with_short_ones() -> (Latest, Cell<u64>) {
        let (latest, clock) = (Latest::new(), Cell::new(1 << 40));
        for _ in 0..2 * ROW {
            assert_eq!(begin(&latest, &clock, 1, 100_000), 0);
            latest.one_was_short();
        }
        (latest, clock)
    }

    #[test]
    fn a_fast_row_of_short_ones_is_left_to_the_kernel_but_for_a_sample() {
        let (latest, clock) = busy_with_short_ones();
        // The first of all, and one each 80 connections.
        assert_eq!(begin(&latest, &clock, 160, 100_000), 158);
    }

    #[test]
    fn what_comes_slowly_is_always_followed() {
        let (latest, clock) = (Latest::new(), Cell::new(1 << 40));
        for _ in 0..10 * ROW {
            assert_eq!(begin(&latest, &clock, 1, ROW_NS / u64::from(ROW) + 1), 0);
            latest.one_was_short();
        }
    }

    #[test]
    fn long_ones_that_come_fast_are_followed() {
        let (latest, clock) = (Latest::new(), Cell::new(1 << 40));
        assert_eq!(begin(&latest, &clock, 10 * ROW, 1_000), 0);
    }

    #[test]
    fn one_that_is_worth_it_has_all_followed() {
        let (latest, clock) = busy_with_short_ones();
        latest.one_was_worth_it();
        assert_eq!(begin(&latest, &clock, 160, 100_000), 0);
    }

    #[test]
    fn the_first_after_a_pause_is_followed() {
        let (latest, clock) = busy_with_short_ones();
        assert!(begin(&latest, &clock, 20, 100_000) > 0);
        clock.set(clock.get() + ROW_NS);
        assert_eq!(begin(&latest, &clock, ROW - 1, 1_000), 0);
    }
}

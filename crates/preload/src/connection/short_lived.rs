//! A busy service of short connections: a process whose connections come fast and end before they are worth a channel.
//!
//! Following a connection costs a process some microseconds, mostly in cold code. If connections come and go fast, that
//! is a measurable share of its processor time, and gains nothing. So the process counts its connections in rows of
//! [`ROW`]. If a row begins within [`ROW_NS`], and [`ENOUGH`] connections end short meanwhile, the next row is not
//! worth following: the process follows one connection each [`SAMPLE_NS`], and leaves the others to kernel TCP. All are
//! followed again as soon as a row is slower or has fewer short connections, after a pause, and once a followed
//! connection proves to be worth a channel.
//!
//! Accepted and connected connections are counted apart: a proxy may have short clients and long connections behind it.

use super::Connection;
use crate::guest::settings;
use crate::guest::table::Origin;
use underpass_segment::clock;
use underpass_segment::end::{End, Stage};
use underpass_segment::sync::{AtomicBool, AtomicU32, AtomicU64, Relaxed};

/// Connections in a row.
const ROW: u32 = 64;
/// A row that begins within this time is a fast one.
const ROW_NS: u64 = 128_000_000;
/// So many connections have to end short while a row begins. In a burst of connections that stay open, none does.
const ENOUGH: u32 = 48;
/// How often a connection is followed that could be left to kernel TCP. By time, not by number: with many connections
/// at once an epoll set would always contain a followed one, and each wait on the set would look at it.
const SAMPLE_NS: u64 = 8_000_000;

/// What this process has seen of its latest connections of one origin. Threads may count past each other: then some
/// connections more or fewer are followed.
struct Latest {
    /// Connections that have begun.
    begun: AtomicU32,
    /// When the last full row of them had begun, in nanoseconds.
    row_began: AtomicU64,
    /// Connections that have ended since then and were not worth a channel, as far as was seen.
    ended: AtomicU32,
    /// The last full row was not worth following.
    leaves: AtomicBool,
    /// When a connection was last followed that could have been left.
    sampled: AtomicU64,
}

static ACCEPTED: Latest = Latest::new();
static CONNECTED: Latest = Latest::new();

fn latest(origin: Origin) -> Option<&'static Latest> {
    match origin {
        Origin::Accepted => Some(&ACCEPTED),
        Origin::Connected => Some(&CONNECTED),
        Origin::Unknown => None,
    }
}

impl Latest {
    const fn new() -> Latest {
        Latest {
            begun: AtomicU32::new(0),
            row_began: AtomicU64::new(0),
            ended: AtomicU32::new(0),
            leaves: AtomicBool::new(false),
            sampled: AtomicU64::new(0),
        }
    }

    /// A connection begins at the time `now`. Whether it is to be left to kernel TCP.
    fn begin(&self, now: impl Fn() -> u64) -> bool {
        let number = self.begun.fetch_add(1, Relaxed).wrapping_add(1);
        if number.is_multiple_of(ROW) {
            let now = now();
            let is_fast = now.saturating_sub(self.row_began.swap(now, Relaxed)) < ROW_NS;
            let is_short = self.ended.swap(0, Relaxed) >= ENOUGH;
            self.leaves.store(is_fast && is_short, Relaxed);
        }
        if !self.leaves.load(Relaxed) {
            return false;
        }
        let now = now();
        if now.saturating_sub(self.row_began.load(Relaxed)) >= ROW_NS {
            self.leaves.store(false, Relaxed);
            return false;
        }
        let is_sample = now.saturating_sub(self.sampled.load(Relaxed)) >= SAMPLE_NS;
        if is_sample {
            self.sampled.store(now, Relaxed);
        }
        !is_sample
    }

    fn one_was_short(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    fn one_was_worth_it(&self) {
        self.ended.store(0, Relaxed);
        if self.leaves.load(Relaxed) {
            self.leaves.store(false, Relaxed);
        }
    }
}

/// A connection of this origin begins. Whether the process leaves it to kernel TCP, without following it.
pub fn begin(origin: Origin) -> bool {
    !settings::config().goes_up_at_once() && latest(origin).is_some_and(|latest| latest.begin(clock::nanoseconds))
}

/// A connection of this origin that was left to kernel TCP is closed.
pub fn left_one_ended(origin: Origin) {
    if let Some(latest) = latest(origin) {
        latest.one_was_short();
    }
}

/// The last reference to `end` is gone. (What a killed process had is not counted.)
pub fn ended(end: &End) {
    if end.stage() == Stage::Plain
        && !is_worth_a_channel(end, end.calls.load(Relaxed))
        && let Some(latest) = latest(Origin::of(end))
    {
        latest.one_was_short();
    }
}

fn is_worth_a_channel(end: &End, calls: u32) -> bool {
    let config = settings::config();
    calls > config.go_up_messages || end.bytes.load(Relaxed) >= config.go_up_bytes
}

impl Connection {
    /// Whether it has carried enough, with this as its call of number `calls`, to be worth a channel. If so, those like
    /// it are followed from now on.
    pub fn proves_itself(&self, calls: u32) -> bool {
        let does = is_worth_a_channel(self.end, calls);
        if does && let Some(latest) = latest(Origin::of(self.end)) {
            latest.one_was_worth_it();
        }
        does
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    struct Process {
        latest: Latest,
        clock: Cell<u64>,
    }

    impl Process {
        fn new() -> Process {
            Process { latest: Latest::new(), clock: Cell::new(1 << 40) }
        }

        /// Begins `count` connections, one every `gap_ns`, each of which is ended at once if it `ends`; how many of
        /// them are left to kernel TCP.
        fn begin(&self, count: u32, gap_ns: u64, ends: bool) -> u32 {
            let begin = |_| {
                self.clock.set(self.clock.get() + gap_ns);
                let is_left = self.latest.begin(|| self.clock.get());
                if ends {
                    self.latest.one_was_short();
                }
                u32::from(is_left)
            };
            (0..count).map(begin).sum()
        }

        fn busy_with_short_ones() -> Process {
            let process = Process::new();
            assert_eq!(process.begin(2 * ROW - 1, 100_000, true), 0);
            process.begin(1, 100_000, true);
            process
        }
    }

    #[test]
    fn fast_short_ones_are_left_to_the_kernel_but_for_a_sample() {
        assert_eq!(Process::busy_with_short_ones().begin(160, 100_000, true), 158);
    }

    #[test]
    fn what_comes_slowly_is_always_followed() {
        assert_eq!(Process::new().begin(10 * ROW, ROW_NS / u64::from(ROW) + 1, true), 0);
    }

    #[test]
    fn a_burst_of_connections_that_stay_open_is_followed() {
        let process = Process::new();
        assert_eq!(process.begin(1000, 20_000_000, true), 0, "short ones, long ago");
        assert_eq!(process.begin(10 * ROW, 1_000, false), 0);
    }

    #[test]
    fn a_burst_beside_short_ones_is_followed_but_for_its_first_row() {
        let process = Process::busy_with_short_ones();
        assert!(process.begin(10 * ROW, 1_000, false) < ROW);
    }

    #[test]
    fn one_that_is_worth_it_has_the_next_row_followed() {
        let process = Process::busy_with_short_ones();
        process.latest.one_was_worth_it();
        assert_eq!(process.begin(ROW - 1, 100_000, true), 0);
    }

    #[test]
    fn the_first_after_a_pause_is_followed() {
        let process = Process::busy_with_short_ones();
        assert!(process.begin(20, 100_000, true) > 0);
        process.clock.set(process.clock.get() + ROW_NS);
        assert_eq!(process.begin(ROW - 20, 1_000, true), 0);
    }
}

//! Waiting for packets: polling while they come quickly, asleep while they do not.

use crate::{Link, Watch};
use rustix::event::{Timespec, poll};
use rustix::io::{self, Errno};
use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// Roughly the time that a sleep and a wake-up take: a poll of this length costs no more than it could have gained.
const LONGEST_POLL: Duration = Duration::from_micros(50);
/// Looks at the link between two looks at the clock.
const LOOKS: u32 = 16;

/// One in so many sleeps is preceded by polling.
const PROBE: u64 = 16;

/// What recent waits have taught.
#[derive(Debug)]
pub struct Wait {
    /// How long a wait is expected to take: each wait counts for a quarter, and what is longer than a sleep for no
    /// more.
    expected: Duration,
    longest_poll: Duration,
    sleeps: u64,
}

impl Default for Wait {
    fn default() -> Wait {
        Wait::polling(LONGEST_POLL)
    }
}

impl Wait {
    /// A wait that polls for so long at most; with zero it never polls.
    pub fn polling(longest_poll: Duration) -> Wait {
        Wait { expected: Duration::ZERO, longest_poll, sleeps: 0 }
    }

    /// Until something has come over the link, or for so long: whether something has.
    ///
    /// # Errors
    /// The system does not let it sleep.
    pub fn wait(&mut self, link: &mut (impl Link + ?Sized), limit: Duration) -> io::Result<bool> {
        let begin = Instant::now();
        let mut polled = Duration::ZERO;
        if self.polls() {
            while polled < self.longest_poll.min(limit) {
                for _ in 0..LOOKS {
                    if link.watch() == Watch::Ready {
                        self.learn(polled);
                        return Ok(true);
                    }
                    spin_loop();
                }
                polled = begin.elapsed();
            }
        }
        self.sleeps += 1;
        let came = sleep(link, limit.saturating_sub(polled))?;
        self.learn(begin.elapsed());
        Ok(came)
    }

    /// A wait that is expected to take longer is not worth the polling. But a sleep shows how long it takes to sleep
    /// and wake up, and not how soon something has come. So every few sleeps there is a poll all the same.
    fn polls(&self) -> bool {
        self.expected < self.longest_poll || self.sleeps.is_multiple_of(PROBE)
    }

    /// How often it has slept.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    fn learn(&mut self, took: Duration) {
        let took = took.min(4 * self.longest_poll);
        self.expected = (3 * self.expected + took) / 4;
    }
}

fn sleep(link: &mut (impl Link + ?Sized), limit: Duration) -> io::Result<bool> {
    let begin = Instant::now();
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        match link.watch() {
            Watch::Ready => return Ok(true),
            Watch::Armed => {
                thread::park_timeout(left);
                return Ok(link.watch() == Watch::Ready);
            }
            Watch::Unheard if left.is_zero() => return Ok(false),
            Watch::Unheard => {}
        }
        let Some(readiness) = link.readiness() else {
            // This link wakes no thread.
            thread::sleep(left.min(Duration::from_micros(100)));
            continue;
        };
        let left = readiness.look.map_or(left, |look| look.min(left));
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [readiness.poll()], Some(&left)) {
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Buffer;
    use crate::{Guarantees, Returned};
    use std::collections::VecDeque;

    /// A link on which a packet has come at the look with this number, and which no thread can sleep on.
    struct Looks(u32);

    impl Link for Looks {
        fn guarantees(&self) -> Guarantees {
            Guarantees { delivery: true, integrity: true }
        }
        fn mtu(&self) -> usize {
            0
        }
        fn transmit(&mut self, _: &mut VecDeque<Buffer>) {}
        fn complete(&mut self, _: &mut Vec<Buffer>) {}
        fn fill(&mut self, _: Buffer) {}
        fn receive(&mut self, _: &mut Vec<Buffer>, _: usize) -> usize {
            0
        }
        fn watch(&mut self) -> Watch {
            self.0 = self.0.saturating_sub(1);
            if self.0 == 0 { Watch::Ready } else { Watch::Unheard }
        }
        fn close(self: Box<Self>) -> Returned {
            Returned::default()
        }
    }

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn what_comes_while_it_polls_costs_no_sleep() {
        let mut wait = Wait::polling(LONG);
        assert!(wait.wait(&mut Looks(10_000), LONG).unwrap());
        assert_eq!(wait.sleeps(), 0);
    }

    #[test]
    fn a_wait_that_never_polls_sleeps() {
        let mut wait = Wait::polling(Duration::ZERO);
        assert!(wait.wait(&mut Looks(4), LONG).unwrap(), "it looks behind each sleep");
        assert_eq!(wait.sleeps(), 1);
        assert!(!wait.wait(&mut Looks(1000), Duration::from_micros(300)).unwrap());
    }

    #[test]
    fn after_long_waits_it_polls_seldom_and_after_short_ones_always() {
        let mut wait = Wait::default();
        assert!(wait.polls());
        (0..20).for_each(|_| wait.learn(Duration::from_millis(2)));
        let polls = (1..=160).filter(|sleeps| {
            wait.sleeps = *sleeps;
            wait.polls()
        });
        assert_eq!(polls.count(), 10);
        (0..20).for_each(|_| wait.learn(Duration::from_micros(1)));
        wait.sleeps = 1;
        assert!(wait.polls());
    }
}

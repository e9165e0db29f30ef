//! What a connection has carried, and what it has since it was last looked at.

use std::collections::HashMap;

use super::Connection;
use super::ss::ways;

/// What is counted at an end. Any value may stand there: sums stop at the largest number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes by the ring and by kernel TCP.
    pub sent: [u64; 2],
    pub received: [u64; 2],
    pub bells: u64,
    pub sleeps: u64,
}

impl Counters {
    /// Nothing as long as the program has not used the connection.
    pub fn of(it: &Connection) -> Counters {
        let [sent, received] = ways(it).map(|way| way.map_or([0; 2], |way| [way.ring_bytes, way.kernel_bytes]));
        let [bells, sleeps] = it.end.as_ref().map_or([0; 2], |end| [end.bells, end.sleeps]);
        Counters { sent, received, bells, sleeps }
    }

    /// What has come since `before`. A counter that fell has been told of in the statistics of `run --stats`, which
    /// takes it off; what came since that is not known then.
    pub fn since(&self, before: &Counters) -> Counters {
        self.with(before, u64::saturating_sub)
    }

    pub fn plus(&self, other: &Counters) -> Counters {
        self.with(other, u64::saturating_add)
    }

    /// What this comes to in one second, if it was counted over so many.
    pub fn per(&self, seconds: f64) -> Counters {
        self.with(self, |count, _| (count as f64 / seconds).round() as u64)
    }

    fn with(&self, other: &Counters, both: impl Fn(u64, u64) -> u64) -> Counters {
        let ways = |a: [u64; 2], b: [u64; 2]| [both(a[0], b[0]), both(a[1], b[1])];
        Counters {
            sent: ways(self.sent, other.sent),
            received: ways(self.received, other.received),
            bells: both(self.bells, other.bells),
            sleeps: both(self.sleeps, other.sleeps),
        }
    }
}

/// The counters of all connections at the last look, by the cookies of their sockets.
#[derive(Debug, Default)]
pub struct Before {
    last: HashMap<u64, Counters>,
    /// Connections that the last look did not find: the kernel's list may leave out a socket and have it the next time.
    missed: HashMap<u64, Counters>,
}

impl Before {
    /// What each connection has carried since the last look, or since it began.
    pub fn step(&mut self, connections: &[Connection]) -> HashMap<u64, Counters> {
        let mut since = HashMap::new();
        let mut now = HashMap::new();
        for it in connections {
            let cookie = it.socket.cookie;
            let before = self.last.remove(&cookie).or_else(|| self.missed.remove(&cookie)).unwrap_or_default();
            // Without an end nothing is known, rather than that there is nothing.
            let counters = if it.end.is_some() { Counters::of(it) } else { before };
            since.insert(cookie, counters.since(&before));
            now.insert(cookie, counters);
        }
        self.missed = std::mem::replace(&mut self.last, now);
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_since_never_wraps() {
        let of = |sent, bells| Counters { sent, bells, ..Counters::default() };
        assert_eq!(of([10, 4], 2).since(&of([3, 9], 2)), of([7, 0], 0));
        assert_eq!(of([u64::MAX, 1], 2).plus(&of([3, 1], u64::MAX)), of([u64::MAX, 2], u64::MAX));
    }
}

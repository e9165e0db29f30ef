//! What one user may cost the host.

/// Limits of each user.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processes that are known, and connections to the daemon, together: each takes a descriptor of the daemon.
    pub descriptors: usize,
    /// Pools, each of which takes a descriptor of the daemon.
    pub pools: usize,
    /// Bytes of pools. Memory is used, and charged to the user's own cgroups, as it is touched.
    pub memory: u64,
    /// Asks that wait for their other end.
    pub asks: usize,
    /// Answers with memory that the user's clients have not read. The descriptor in each counts as the daemon's own
    /// user's, who may have as many on their way as descriptors (unix(7), ETOOMANYREFS).
    pub unread: usize,
    /// Packets that are read, and connections that are accepted, in a second.
    pub packets: u32,
}

impl Limits {
    /// The usual ones, where the daemon may have so many descriptors: eight users take all of these.
    pub fn within(descriptors: u64) -> Limits {
        let share = usize::try_from(descriptors / 16).unwrap_or(usize::MAX);
        let (descriptors, pools) = (share.min(8192), share.min(8192));
        Limits { descriptors, pools, memory: 128 << 30, asks: 1 << 16, unread: share, packets: 5000 }
    }
}

/// Tokens that come back with time.
#[derive(Debug)]
pub struct Bucket {
    /// What may be read now, in nanoseconds of the rate; what was read too early is negative.
    credit: i64,
    filled: u64,
}

/// A user that was silent may send as many packets at once as otherwise in this time.
const BURST_NS: i64 = 200_000_000;

impl Bucket {
    /// A full one at the time `now`, in nanoseconds.
    pub fn new(now: u64) -> Bucket {
        Bucket { credit: BURST_NS, filled: now }
    }

    /// Takes one packet of `rate` in a second. How many nanoseconds the user has to wait before the next.
    pub fn take(&mut self, now: u64, rate: u32) -> u64 {
        let cost = 1_000_000_000 / i64::from(rate.max(1));
        self.credit = (self.credit_at(now) - cost).max(-BURST_NS);
        self.filled = now;
        self.credit.min(0).unsigned_abs()
    }

    /// Whether so much was taken too early that no more is to be counted.
    pub fn is_overdrawn(&self, now: u64) -> bool {
        self.credit_at(now) <= -BURST_NS / 2
    }

    /// Whether it is full again.
    pub fn is_full(&self, now: u64) -> bool {
        self.credit_at(now) == BURST_NS
    }

    fn credit_at(&self, now: u64) -> i64 {
        self.credit.saturating_add_unsigned(now.saturating_sub(self.filled)).min(BURST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_held_to_its_rate_and_others_are_not() {
        let mut bucket = Bucket::new(0);
        let free = (0..10_000).take_while(|_| bucket.take(0, 5000) == 0).count();
        assert_eq!(free, 1000);
        // A user who is read later is not turned away.
        assert!(!bucket.is_overdrawn(0));
        let further = (0..10_000).take_while(|_| bucket.take(0, 5000) > 0 && !bucket.is_overdrawn(0)).count();
        assert!((400..600).contains(&further), "{further}");
        assert!(!bucket.is_overdrawn(100_000_000));
        let mut bucket = Bucket::new(0);
        (0..1000).for_each(|_| assert_eq!(bucket.take(0, 5000), 0));
        // In the next second as many pass as the rate allows, however many try.
        let mut now = 0;
        let mut taken = 0;
        while now < 1_000_000_000 {
            now += bucket.take(now, 5000).max(1);
            taken += 1;
        }
        assert!((4900..=5200).contains(&taken), "{taken}");
    }
}

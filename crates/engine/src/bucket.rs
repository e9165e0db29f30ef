//! Limits how often an entity answers packets that belong to no connection, which any host can send.

use crate::service::Time;

/// Most answers at once.
const BURST: u64 = 32;
/// Nanoseconds between answers in the long run.
const INTERVAL: u64 = 1_000_000;

/// A bucket of tokens, kept as the time at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    full: Time,
}

impl Bucket {
    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Time) -> bool {
        let full = self.full.max(now).after(INTERVAL);
        let has = full.since(now) <= BURST * INTERVAL;
        if has {
            self.full = full;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_in_a_while() {
        let mut bucket = Bucket::default();
        let mut taken = |at: u64| (0..1000).filter(|_| bucket.take(Time(at))).count() as u64;
        let begin = 7 * INTERVAL;
        assert_eq!(taken(begin), BURST);
        assert_eq!(taken(begin + INTERVAL - 1), 0);
        assert_eq!((taken(begin + INTERVAL), taken(begin + 4 * INTERVAL)), (1, 3));
        assert_eq!(taken(begin + 1_000_000 * INTERVAL), BURST);
    }
}

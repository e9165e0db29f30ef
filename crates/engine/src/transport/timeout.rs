//! T1: how long an acknowledgement is awaited before a TPDU is sent again (X.224 §12.2.1.2; RFC 6298).

use super::config::Times;
use super::ways::WIDE;
use crate::service::Time;

/// Attempts after which T1 does not get longer.
const PATIENCE: u8 = 6;
/// AKs for what was sent again, or took longer than T1, behind which T1 itself is taken for too short (Karn): where a
/// round trip has become longer than T1, everything is sent again, and no round trip would be measured ever after.
const DOUBTS: u8 = 4;

/// What T1 follows from, and what has become of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout {
    pub round_trip: RoundTrip,
    /// How often T1 is doubled, since it has run out; and AKs since one has shown that it is long enough.
    backoff: u8,
    doubts: u8,
    /// How often T1 has run out since anything was acknowledged, and when it first did.
    pub attempts: u8,
    pub stalled: Time,
    /// The user was told that nothing is acknowledged.
    pub told: bool,
}

impl Timeout {
    /// Of a connection that has sent nothing.
    pub const NEW: Timeout = Timeout {
        round_trip: RoundTrip { smoothed: 0, deviation: 0, least: 0 },
        backoff: 0,
        doubts: DOUBTS,
        attempts: 0,
        stalled: Time(0),
        told: false,
    };

    /// T1 for a CR, CC or DR, for which no round trip was measured.
    pub fn for_setup(&self, times: &Times) -> u64 {
        times.t1 << self.attempts.min(PATIENCE)
    }

    /// The connection is open. The CR or the CC may have been sent again too soon, so T1 stays as long as it became.
    pub fn open(&mut self) {
        self.backoff = core::mem::take(&mut self.attempts);
    }

    /// T1, where the other end may put its AK off by `theirs`, in ns.
    #[inline]
    pub fn current(&self, times: &Times, theirs: u64) -> u64 {
        self.undoubled(times, theirs) << self.backoff.min(PATIENCE)
    }

    /// T1 at its longest.
    pub fn longest(&self, times: &Times, theirs: u64) -> u64 {
        self.undoubled(times, theirs) << PATIENCE
    }

    /// T1 from the round trip where it is known, however often it has run out.
    fn undoubled(&self, times: &Times, theirs: u64) -> u64 {
        let RoundTrip { smoothed, deviation, .. } = self.round_trip;
        if smoothed == 0 {
            // Which counts this end's acknowledgement time for the other end's.
            return times.t1 + theirs.saturating_sub(times.al);
        }
        let smoothed = u64::from(smoothed);
        let measured = smoothed + 4 * u64::from(deviation);
        // In a wide network it changes as others come and go.
        let measured = if smoothed < WIDE { measured } else { measured.max(2 * smoothed) };
        (measured + theirs).max(times.t1_least)
    }

    /// Within what time the acknowledgement of a DT shows that T1 is long enough; 0 where that is known.
    #[inline]
    pub fn in_time(&self, times: &Times, theirs: u64) -> u64 {
        if self.backoff > 0 || self.doubts > 0 { self.undoubled(times, theirs) } else { 0 }
    }

    /// An AK has come: whether it shows that T1 is long enough, and whether it acknowledges anything in order.
    #[inline]
    pub fn answered(&mut self, is_timely: bool, acknowledges: bool) {
        if is_timely {
            (self.backoff, self.doubts) = (0, 0);
        } else if acknowledges && self.doubts < DOUBTS {
            (self.backoff, self.doubts) = (0, self.doubts + 1);
        }
    }

    /// T1 has run out: the next one is twice as long.
    pub fn ran_out(&mut self, now: Time) {
        if self.attempts == 0 {
            self.stalled = now;
        }
        self.attempts = self.attempts.saturating_add(1);
        self.backoff = self.backoff.saturating_add(1);
    }
}

/// How long acknowledgements take (RFC 6298 §2; Karn).
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// Smoothed, in ns; 0 while nothing was measured.
    pub smoothed: u32,
    /// Mean deviation, in ns.
    pub deviation: u32,
    /// The shortest, in ns, or what one under way alone took since; 0 while nothing was measured.
    pub least: u32,
}

impl RoundTrip {
    /// A round trip that was not measured yet, on a way on which other connections' round trips take this long.
    pub fn as_others(nanoseconds: u64) -> RoundTrip {
        let smoothed = u32::try_from(nanoseconds).unwrap_or(u32::MAX);
        RoundTrip { smoothed, deviation: smoothed / 2, least: 0 }
    }

    pub fn sample(&mut self, nanoseconds: u64) {
        let sample = u32::try_from(nanoseconds).unwrap_or(u32::MAX).max(1);
        if self.smoothed == 0 {
            *self = RoundTrip { smoothed: sample, deviation: sample / 2, least: sample };
            return;
        }
        let off = self.smoothed.abs_diff(sample);
        self.deviation = self.deviation - self.deviation / 4 + off / 4;
        self.smoothed = self.smoothed - self.smoothed / 8 + sample / 8;
        self.least = if self.least == 0 { sample } else { self.least.min(sample) };
    }
}

//! How many TPDUs may be under way to a peer, whatever the credit: a window that doubles with each round trip until a
//! queue grows, or the network objects. The credit stays what the receiver has room for.
//!
//! In a network of short round trips the window then grows by one with each, and shrinks in proportion to how far a
//! round trip is beyond a target (after Swift, SIGCOMM 2020), by a fifth for a mark (RFC 8511) and by half for a loss:
//! queues stay short. In a network of long round trips others fill the queues in any case, and a sender that gives way
//! to the delay gets nothing. There the window is as TCP's (CUBIC, RFC 9438): a delay only ends the doubling, and a
//! loss shrinks the window by three tenths.

use crate::service::Time;

/// The window in 1/256 of a TPDU.
const ONE: u32 = 256;
const MS: u64 = 1_000_000;
/// How much Reno's window grows with each round trip if it shrinks by only three tenths: 3 · (1 − 0.7) / (1 + 0.7) =
/// 0.53, in 1/256. In RFC 9438 it grows by one from the size at which it was cut last. Linux does not do so, and a
/// sender that does gets more than Linux.
const RENO: u64 = 136;
/// How far from its middle the cubic curve is looked at, in ms.
const REACH: i64 = 100_000;

/// A sender's view of the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Congestion {
    window: u32,
    /// The window before it was cut for a loss, which may prove to be none, and its threshold then.
    before: [u32; 2],
    /// Below it the window doubles with each round trip: however large it gets while the network has not objected yet,
    /// and up to where a loss would have left it once nothing has come back for T1.
    threshold: u32,
    cubic: Cubic,
}

/// Where CUBIC's window is on its curve.
#[derive(Clone, Copy, Debug)]
struct Cubic {
    /// The window at which the network objected last: the middle of the curve.
    middle: u32,
    /// When the window began to grow from where it is, and after how many ms it comes to the middle; none after a cut.
    origin: Option<(Time, i64)>,
    /// What Reno's window would be.
    reno: u32,
}

impl Congestion {
    /// As much as it begins with.
    pub const BEGIN: u32 = 16;
    /// As large as it gets.
    const MOST: u32 = 1 << 16;
    /// The threshold while the network has not objected.
    const NONE: u32 = u32::MAX;

    pub fn new() -> Congestion {
        let window = Congestion::BEGIN * ONE;
        let cubic = Cubic { middle: window, origin: None, reno: window };
        Congestion { window, before: [0; 2], threshold: Congestion::NONE, cubic }
    }

    /// TPDUs that may be under way.
    #[inline]
    pub fn window(&self) -> u32 {
        self.window / ONE
    }

    /// Whether it still doubles with each round trip.
    pub fn begins(&self) -> bool {
        self.window < self.threshold
    }

    /// `acknowledged` TPDUs of a window that was in use were acknowledged, and the round trip was below the target.
    #[inline]
    pub fn grow(&mut self, acknowledged: u32) {
        let step = if self.begins() {
            // TPDUs are not spread in time here, so an AK for many of them must not release a burst (RFC 3465).
            u64::from(acknowledged.min(2)) * u64::from(ONE)
        } else {
            u64::from(acknowledged) * u64::from(ONE * ONE) / u64::from(self.window)
        };
        self.set(u64::from(self.window) + step.max(1));
        (self.cubic.middle, self.cubic.origin) = (self.window, None);
    }

    /// So many DTs were acknowledged, the window was in use, and the network has long round trips.
    pub fn compete(&mut self, acknowledged: u32, round_trip: u64, now: Time) {
        let (window, acknowledged) = (u64::from(self.window), u64::from(acknowledged));
        if self.begins() {
            return self.set((window + acknowledged * u64::from(ONE)).min(self.threshold.into()));
        }
        let Cubic { middle, origin, reno } = &mut self.cubic;
        let (begin, way) = *origin.get_or_insert_with(|| {
            *reno = self.window;
            // K = ³√((middle − window) / 0.4) seconds.
            let below = f64::from(middle.saturating_sub(self.window)) / f64::from(ONE);
            (now, ((below / 0.4).cbrt() * 1000.0) as i64)
        });
        // 0.4 · t³, with t in seconds from the middle: where the window is to be a round trip from now.
        let t = (((now.since(begin) + round_trip) / MS) as i64 - way).clamp(-REACH, REACH);
        let wanted = i64::from(*middle) + t * t * t / 10_000_000 * i64::from(ONE) * 4 / 1000;
        let wanted = wanted.clamp(window as i64, (window + window / 2) as i64) as u64;
        *reno = (u64::from(*reno) + RENO * acknowledged * u64::from(ONE) / u64::from((*reno).max(1)))
            .min(u64::from(Congestion::MOST * ONE)) as u32;
        let cubic = window + (wanted - window) * acknowledged * u64::from(ONE) / window;
        self.set(cubic.max(u64::from(self.cubic.reno)));
    }

    /// A round trip shows that a queue grows: the window doubles no more. After a silence, it was larger before than it
    /// will be now.
    pub fn settle(&mut self) {
        if self.threshold == Congestion::NONE {
            self.threshold = self.window;
            (self.cubic.middle, self.cubic.origin) = (self.window, None);
        }
    }

    /// The round trip took so much longer than its target.
    pub fn delayed(&mut self, round_trip: u64, target: u64) {
        // Longer round trips, of four seconds and more, make no difference, and so no product overflows.
        let round_trip = round_trip.clamp(1, u32::MAX.into());
        let excess = round_trip.saturating_sub(target);
        // max(1 − 0.8 · excess / round trip, 0.5)
        let cut = (u64::from(self.window) * 4 * excess / (5 * round_trip)).min(u64::from(self.window / 2));
        self.cut(self.window - cut as u32);
    }

    /// A router has marked a TPDU.
    pub fn marked(&mut self) {
        self.cut(self.window - self.window / 5);
    }

    /// A TPDU was lost, as those behind it show, in a network of long round trips or of short ones. Whether the window
    /// was cut for that.
    pub fn lost(&mut self, is_wide: bool) -> bool {
        // The smallest window is the result of a silence: then the window before the silence is what counts.
        let cuts = self.window > ONE;
        if cuts {
            self.before = [self.window, self.threshold];
            self.cut(self.after_loss(is_wide));
        }
        cuts
    }

    fn after_loss(&self, is_wide: bool) -> u32 {
        if is_wide { self.window - self.window / 10 * 3 } else { self.window / 2 }
    }

    /// What was taken for lost was late.
    pub fn late(&mut self) {
        let [before, threshold] = std::mem::take(&mut self.before);
        if before > self.window {
            (self.window, self.threshold) = (before, threshold);
            (self.cubic.middle, self.cubic.origin) = (before, None);
        }
    }

    /// Nothing has come back for the whole of T1: the window gets as small as it can be, and doubles up to where a loss
    /// would have left it. If nothing has ever come back, nothing is known of the network, and the window is as in the
    /// beginning. Whether the silence begins with that.
    pub fn silent(&mut self, is_wide: bool, is_known: bool) -> bool {
        // After a longer silence, the window before its beginning counts.
        let begins = self.window > ONE;
        if begins {
            self.before = [self.window, self.threshold];
            let threshold = if is_known { self.after_loss(is_wide).max(2 * ONE) } else { self.threshold };
            self.cut(self.after_loss(is_wide));
            self.threshold = threshold;
        }
        self.window = ONE;
        begins
    }

    fn cut(&mut self, window: u32) {
        // A window that is cut before it has grown back to the size of its last cut leaves room for others.
        let middle = if self.window < self.cubic.middle { self.window - self.window / 20 * 3 } else { self.window };
        (self.cubic.middle, self.cubic.origin) = (middle, None);
        self.window = window.max(ONE);
        self.threshold = self.window;
    }

    fn set(&mut self, window: u64) {
        self.window = window.clamp(ONE.into(), u64::from(Congestion::MOST * ONE)) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_cuts_the_window_by_half_at_most() {
        for (round_trip, target, left) in
            [(100, 100, 16), (100, 90, 14), (200, 100, 9), (400, 100, 8), (u64::MAX, 1, 8)]
        {
            let mut congestion = Congestion::new();
            congestion.delayed(round_trip, target);
            assert_eq!(congestion.window(), left, "{round_trip} and {target}");
        }
        // As large as it gets, after a host has slept for days.
        let mut congestion = Congestion { window: Congestion::MOST * ONE, ..Congestion::new() };
        congestion.delayed(1 << 48, 1 << 20);
        assert_eq!(congestion.window(), Congestion::MOST / 2);
    }

    #[test]
    fn it_doubles_until_the_network_objects_and_then_grows_by_one() {
        let mut congestion = Congestion::new();
        (0..16).for_each(|_| congestion.grow(1));
        assert_eq!(congestion.window(), 32);
        congestion.marked();
        assert_eq!((congestion.window(), congestion.begins()), (25, false));
        congestion.grow(25);
        assert_eq!(congestion.window(), 26);
        congestion.lost(false);
        assert_eq!(congestion.window(), 13);
        congestion.late();
        assert_eq!(congestion.window(), 26);
        congestion.silent(false, true);
        assert_eq!(congestion.window(), 1);
        congestion.silent(false, true);
        (0..12).for_each(|_| congestion.grow(1));
        assert_eq!((congestion.window(), congestion.begins()), (13, true));
        congestion.grow(1);
        congestion.grow(1);
        assert_eq!((congestion.window(), congestion.begins()), (14, false));
        (0..40).for_each(|_| congestion.grow(u32::MAX));
        assert_eq!(congestion.window(), Congestion::MOST);
    }

    /// Where T1 was too short nothing is lost, and the window is as it was.
    #[test]
    fn a_silence_that_was_none_leaves_the_window_as_it_was() {
        let mut congestion = Congestion::new();
        congestion.silent(false, false);
        assert_eq!((congestion.window(), congestion.begins()), (1, true));
        (0..100).for_each(|_| congestion.grow(1));
        assert_eq!((congestion.window(), congestion.begins()), (101, true));
        congestion.late();
        assert_eq!(congestion.window(), 101);
        let mut congestion = Congestion { window: 100 * ONE, threshold: 50 * ONE, ..Congestion::new() };
        congestion.silent(true, true);
        congestion.silent(true, true);
        assert_eq!((congestion.window(), congestion.begins()), (1, true));
        congestion.late();
        assert_eq!((congestion.window(), congestion.begins()), (100, false));
        congestion.silent(true, true);
        // A round trip for each: as TCP, up to seven tenths, whatever others make it wait meanwhile.
        let mut windows = Vec::new();
        for round in 0..8 {
            congestion.settle();
            congestion.compete(congestion.window(), 20 * MS, Time(round * 20 * MS));
            windows.push(congestion.window());
        }
        assert_eq!(windows[..7], [2, 4, 8, 16, 32, 64, 70]);
        assert!(windows[7] < 75, "{windows:?}");
    }

    /// RFC 9438, figure 1: from seven tenths the window comes back to where it was in K, and stays there for a while.
    #[test]
    fn a_wide_network_is_filled_as_tcp_does() {
        const ROUND_TRIP: u64 = 100 * MS;
        let mut congestion = Congestion { window: 1000 * ONE, ..Congestion::new() };
        congestion.lost(true);
        assert_eq!(congestion.window(), 700);
        // K = ³√(300 / 0.4) = 9.1 s.
        let (mut now, mut windows) = (Time(0), Vec::new());
        for _ in 0..150 {
            congestion.compete(congestion.window(), ROUND_TRIP, now);
            windows.push(congestion.window());
            now = now.after(ROUND_TRIP);
        }
        let at = |seconds: usize| windows[seconds * 10];
        assert!(windows.is_sorted() && (960..1000).contains(&at(5)) && (995..1005).contains(&at(9)), "{windows:?}");
        assert!((1040..1060).contains(&at(14)), "{windows:?}");
        // Where the way is short, Reno is faster: half a TPDU with each round trip.
        let mut congestion = Congestion { window: 100 * ONE, ..Congestion::new() };
        congestion.lost(true);
        for round in 0..20 {
            congestion.compete(congestion.window(), 2 * MS, Time(round * 2 * MS));
        }
        assert!((79..82).contains(&congestion.window()), "{}", congestion.window());
    }
}

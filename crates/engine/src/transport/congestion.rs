//! How many TPDUs may be under way, whatever the credit: a window that grows while the round trip is short and shrinks in
//! proportion to how far it is beyond a target (after Swift, SIGCOMM 2020). The credit stays what the receiver has room for.

/// The window in 1/256 of a TPDU.
const ONE: u32 = 256;

/// A sender's view of the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Congestion {
    window: u32,
    /// The window is not cut again before this TPDU is acknowledged: once a round trip.
    pub cut_until: Option<u32>,
    /// The window before it was cut for a loss, which may prove to be none.
    before: u32,
}

impl Congestion {
    /// As much as a class 4 connection begins with.
    pub const BEGIN: u32 = 16;

    pub fn new() -> Congestion {
        Congestion { window: Congestion::BEGIN * ONE, cut_until: None, before: 0 }
    }

    /// TPDUs that may be under way.
    #[inline]
    pub fn window(&self) -> u32 {
        self.window / ONE
    }

    /// So many were acknowledged, and the round trip was below the target.
    #[inline]
    pub fn grow(&mut self, acknowledged: u32, most: u32) {
        let step = acknowledged.saturating_mul(ONE).saturating_mul(ONE) / self.window.max(1);
        // Never far beyond what the credit lets be used.
        self.window = (self.window + step.max(1)).min((most + Congestion::BEGIN).saturating_mul(ONE));
    }

    /// The round trip took so much longer than its target.
    pub fn delayed(&mut self, round_trip: u64, target: u64) {
        // Of four seconds and more nothing is left to tell, and no product of them is too large.
        let round_trip = round_trip.clamp(1, u32::MAX.into());
        let excess = round_trip.saturating_sub(target);
        // max(1 − 0.8 · excess / round trip, 0.5)
        let cut = (u64::from(self.window) * 4 * excess / (5 * round_trip)).min(u64::from(self.window / 2));
        self.window = (self.window - cut as u32).max(ONE);
    }

    /// A TPDU was lost, as those behind it show.
    pub fn lost(&mut self) {
        self.before = self.window;
        self.window = (self.window / 2).max(ONE);
    }

    /// What was taken for lost was late.
    pub fn late(&mut self) {
        self.window = self.window.max(std::mem::take(&mut self.before));
    }

    /// Nothing has come back for the whole of T1.
    pub fn silent(&mut self) {
        (self.window, self.before) = (ONE, 0);
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
        let mut congestion = Congestion { window: (65_535 + Congestion::BEGIN) * ONE, ..Congestion::new() };
        congestion.delayed(1 << 48, 1 << 20);
        assert_eq!(congestion.window(), (65_535 + Congestion::BEGIN) / 2);
    }
}

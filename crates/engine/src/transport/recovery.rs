//! Whether DTs are missing at the other end, and how long they are awaited (after RFC 6675 and RFC 8985 §7).

use super::number::Space;

/// What is done about DTs that are missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    pub phase: Phase,
    /// How much longer than a round trip a missing DT may take, in ns, before it is taken for lost.
    pub tolerance: u32,
    /// The number of the last cut of its way's window that this connection has caused; 0 where none is, or where it was
    /// none's fault.
    pub blamed: u32,
}

/// Whether DTs are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// None is, as far as the other end has said.
    InOrder,
    /// Some are that may be late and not lost: T1 runs for that.
    Waiting,
    /// DTs are sent again because of a gap, until this one is acknowledged.
    Recovering(u32),
}

impl Recovery {
    /// Of a connection that has sent nothing.
    pub const NEW: Recovery = Recovery { phase: Phase::InOrder, tolerance: 0, blamed: 0 };

    #[inline]
    pub fn is_recovering(&self) -> bool {
        matches!(self.phase, Phase::Recovering(_))
    }

    /// DTs were acknowledged in order, up to `lower_edge`.
    #[inline]
    pub fn advance(&mut self, space: Space, lower_edge: u32) {
        match self.phase {
            // Once it is reached it must be forgotten: numbers come again.
            Phase::Recovering(until) if space.is_before(lower_edge, until) => {}
            _ => self.phase = Phase::InOrder,
        }
    }

    /// What was taken for lost was late: what is missing next is awaited longer. Round trips take `round_trip` at
    /// least, and T1 is `t1_least` at least.
    pub fn late(&mut self, round_trip: u32, t1_least: u64) {
        let most = u32::try_from(t1_least).unwrap_or(u32::MAX);
        let least = (round_trip / 4).min(most);
        self.tolerance = self.tolerance.saturating_mul(2).clamp(least, most);
    }

    /// What is missing is taken for lost. `next` is the number of the DT that is sent next.
    pub fn lost(&mut self, next: u32) {
        self.phase = Phase::Recovering(next);
        // Where something is late time and again, it shows time and again.
        self.tolerance -= self.tolerance.div_ceil(16);
    }
}

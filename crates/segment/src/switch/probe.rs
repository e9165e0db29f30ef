//! Whether the kernel path of a connection still carries what is sent on it.
//!
//! Between users and containers, a firewall rule or a network policy may come to forbid a connection that is fast.
//! Memory does not carry on what the administrator forbids: a busy sender sends a doorbell every few seconds, and goes
//! down if the kernel of the other end does not acknowledge it. A reader that sleeps is woken by doorbells anyway.

use super::{Port, micros};
use crate::kernel;
use crate::reason::Reason;
use crate::sync::Relaxed;

/// How often a doorbell is sent, which has to be acknowledged before the next.
const EVERY_US: u64 = 3_000_000;

impl Port<'_> {
    /// Called by a busy sender, with the time in ticks.
    pub(super) fn probe_kernel_path(&self, now: u64) {
        let [when, acknowledged] = &self.end.sending.probed;
        if !self.end.is_brokered() || now.wrapping_sub(when.load(Relaxed)) < micros(EVERY_US) {
            return;
        }
        if when.swap(now, Relaxed) == 0 {
            return;
        }
        let (Ok(waiting), Ok(counters)) = (kernel::outq(self.fd), kernel::counters(self.fd)) else { return };
        let before = acknowledged.swap(counters.acked, Relaxed);
        if waiting == 0 {
            self.send_bell_unless_away(|| true);
        } else if before == counters.acked {
            self.end.set_silent(true);
            self.end.set_reason(Reason::PathSilent);
        }
    }

    /// Whether the kernel path was silent, and has not answered since.
    pub(super) fn is_path_silent(&self) -> bool {
        if !self.end.is_silent() {
            return false;
        }
        let is_silent = kernel::outq(self.fd) != Ok(0);
        self.end.set_silent(is_silent);
        is_silent
    }
}

//! Positions in the kernel stream, from the kernel's own counters: how far an end has sent, and how far it has read.

use super::Port;
use crate::kernel;
use crate::sync::{Relaxed, Release};

impl Port<'_> {
    /// Bytes that this end has put into the kernel stream. `None` if the kernel's two counts of them disagree. No
    /// kernel send is in progress meanwhile. What was sent may still be on its way.
    pub(super) fn send_position(&self) -> Option<u64> {
        for _ in 0..8 {
            let queued = kernel::outq(self.fd).ok()?;
            let counters = kernel::counters(self.fd).ok()?;
            if kernel::outq(self.fd).ok()? != queued {
                // Some of it was acknowledged between the looks.
                continue;
            }
            let established = matches!(counters.state, kernel::ESTABLISHED | kernel::CLOSE_WAIT);
            let position = counters.sent_once + u64::from(counters.unsent);
            // An active opener's SYN counts as one acknowledged byte.
            let agree = (counters.acked + u64::from(queued)).wrapping_sub(position) <= 1;
            return (established && agree && !counters.fast_open).then_some(position);
        }
        None
    }

    /// Bytes that went into the kernel stream since the direction went up and are neither doorbells nor counted, modulo
    /// 2^32. The number is below 0 where announced doorbells are missing. `None` as for [`Port::send_position`].
    pub(super) fn given_since(&self) -> Option<u32> {
        let sent = (self.send_position()? as u32).wrapping_sub(self.end.sending.position.load(Relaxed));
        Some(sent.wrapping_sub(self.bells_since_up() as u32))
    }

    /// Bytes that were read from the kernel since the connection began, and whether more may come. `None` if the kernel
    /// does not tell.
    pub(super) fn read_position(&self) -> Option<(u64, bool)> {
        for _ in 0..16 {
            let before = kernel::counters(self.fd).ok()?;
            let queued = kernel::inq(self.fd).ok()?;
            let after = kernel::counters(self.fd).ok()?;
            if before.received == after.received {
                let more = matches!(after.state, kernel::ESTABLISHED | kernel::FIN_WAIT1 | kernel::FIN_WAIT2);
                let ended = kernel::has_fin(after.state);
                // The other end's FIN counts as a byte.
                let read = after.received.checked_sub(u64::from(queued) + u64::from(ended))?;
                return (more || ended).then_some((read, more && !after.fast_open));
            }
        }
        None
    }

    /// Whether nobody else has read the socket. The connection may be over.
    pub(super) fn is_untouched(&self) -> bool {
        let position = self.kernel_position();
        if let Some((read, _)) = self.read_position() {
            return read == position;
        }
        let (counters, queued) = (kernel::counters(self.fd), kernel::inq(self.fd));
        let (Ok(counters), Ok(queued)) = (counters, queued) else { return false };
        // Nothing tells whether the other end's FIN is counted.
        counters.state == kernel::CLOSED && counters.received.wrapping_sub(u64::from(queued) + position) <= 1
    }

    /// Position in the kernel stream: bytes taken from the kernel so far, doorbells included.
    pub(super) fn kernel_position(&self) -> u64 {
        self.end.reading.kernel_position()
    }

    /// Tells the sender how much of what it sent on the kernel path was read.
    pub(super) fn publish_position(&self) {
        self.channel.incoming().flags.position.store(self.kernel_position(), Release);
    }
}

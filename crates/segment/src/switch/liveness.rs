//! Whether the other end lives, was stopped, is gone, or lies.
//!
//! A sender asks the kernel rarely. After the other end's FIN only a doorbell tells an end that has shut down its half
//! from an end that is gone.

use super::{CHECK_EVERY_US, OVER, Port, micros};
use crate::clock::{nap, ticks};
use crate::end::Probed;
use crate::raw::is_quiet;
use crate::sync::{Relaxed, SeqCst};
use crate::words::NO_MORE_BELLS;
use crate::{kernel, ring};

/// A reader that tells nothing any more comes out of a receive within this time, even if its thread waits for a
/// processor beside heavy load.
const SILENT_US: u64 = 2_000_000;

/// The kernel of an end that lives acknowledges a doorbell within this time, unless it waits for more.
const ACKNOWLEDGED_WITHIN_US: u64 = 2_000;

/// The kernel has closed a socket whose process is gone within this time, if it gets a processor.
const CLOSED_WITHIN_US: u64 = 100_000;

impl Port<'_> {
    /// Whether the kernel still holds the connection for whole.
    pub(super) fn connected(&self) -> bool {
        kernel::poll_now(self.fd, 0) & OVER == 0
    }

    /// Whether the reader lives, if its head does not move. The kernel is asked rarely.
    #[inline]
    pub(super) fn reader_lives(&self) -> bool {
        let [head, when] = &self.end.sending.progress;
        // Small messages are not checked each: the clock would be a tenth of what they cost.
        let stretch = self.end.sending.tail.load(Relaxed) >> 8;
        let looked = &self.end.sending.looked;
        if looked.load(Relaxed) == stretch {
            return true;
        }
        looked.store(stretch, Relaxed);
        let now = ticks();
        let since = now.wrapping_sub(when.load(Relaxed));
        if since < micros(CHECK_EVERY_US) {
            return true;
        }
        when.store(now, Relaxed);
        self.probe_kernel_path(now);
        self.take_bell_of_departure();
        let sender = self.sender();
        let Ok(used) = sender.used(true) else { return true };
        let seen = sender.seen_head.load(Relaxed);
        let moved = head.swap(seen, Relaxed) != seen;
        // The reader read a moment ago. Records from before its death cannot be told from records just after it.
        if moved && since < 4 * micros(CHECK_EVERY_US) {
            self.note_life();
        }
        used == 0 || moved || self.kernel_says_alive()
    }

    #[cold]
    pub(super) fn kernel_says_alive(&self) -> bool {
        let events = kernel::poll_now(self.fd, libc::POLLRDHUP);
        if events & OVER == 0 && events & libc::POLLRDHUP != 0 && !self.reader_has_shut() {
            // The other end has sent its FIN: it has shut down its half, or it is gone. A doorbell tells which. An end
            // with nothing unread may just be closing in order, unless it is inside a receive.
            let in_kernel = &self.channel.outgoing().flags.in_kernel;
            self.send_bell_unless_away(|| self.has_unread() || in_kernel.load(SeqCst) != 0);
            return self.connected();
        }
        if events & (OVER | libc::POLLRDHUP) == 0 {
            self.note_life();
        }
        events & OVER == 0
    }

    /// Whether a reader will not come out that the channel says to be inside a receive, or about to leave, since
    /// `began`. No honest reader stays there beyond `patience_us`. A reader that has sent its FIN, and has shut down
    /// both ways or refuses doorbells, comes out soon or lies. Of any other reader a doorbell tells whether it is
    /// there, stopped or not.
    pub(super) fn is_stuck(&self, began: u64, patience_us: u64) -> bool {
        let us = ticks().wrapping_sub(began) / micros(1);
        let silent =
            || self.reader_has_shut() || self.channel.outgoing().sender.announced.load(Relaxed) & NO_MORE_BELLS != 0;
        let has_ended = || kernel::poll_now(self.fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
        us > patience_us || us > SILENT_US && silent() && has_ended()
    }

    /// Notes that the reader has lived since the last record was published.
    pub(super) fn note_life(&self) {
        let sending = &self.end.sending;
        sending.alive.store(sending.tail.load(Relaxed), Relaxed);
    }

    /// Whether the reader, if it is gone, has certainly left something unread that was sent before its death. Kernel
    /// TCP would have reset the connection. What is sent to a reader that had read everything, or had shut down its
    /// half, is lost behind its FIN.
    pub(super) fn is_gone_with_unread(&self) -> bool {
        self.give_back_if_due();
        let (sending, sender) = (&self.end.sending, self.sender());
        let Ok(unread @ 1..) = sender.used(true) else { return false };
        let sent_since = ring::distance(sending.alive.load(Relaxed), sending.tail.load(Relaxed));
        // The FIN of an end that has said that it sends no more is as on kernel TCP.
        let shut = self.reader_has_shut()
            || self.channel.incoming().sender.ended.load(Relaxed) != 0
            || self.end.probed() == Probed::Lives;
        sent_since < unread && !shut && self.is_data_ahead()
    }

    /// Whether the other end is gone and has left data in the ring. Kernel TCP resets such a connection at once. But
    /// the other end's kernel knows nothing of that data and has sent a FIN, as for a half that was shut down. A
    /// doorbell tells the two apart: a kernel whose process is gone answers it with a reset, and from then on this
    /// kernel says what kernel TCP would have said. A living end is asked once. An end that has shut down both ways
    /// says so itself.
    pub fn reader_is_gone(&self) -> bool {
        self.give_back_if_due();
        let sending = &self.end.sending;
        if self.end.is_remote()
            || !self.has_unread()
            || self.end.probed() != Probed::NotYet
            || self.reader_has_shut()
            || kernel::poll_now(self.fd, libc::POLLRDHUP) & (libc::POLLRDHUP | OVER) != libc::POLLRDHUP
        {
            return false;
        }
        let entered = self.enter_sending();
        // Another thread may have taken the direction down meanwhile. Behind that mark a doorbell would be data.
        let asked = self.sends_fast() && self.send_bell_unless_away(|| self.has_unread());
        let gone = asked && self.answers_bell_by_reset();
        if asked {
            self.end.set_probed(if gone { Probed::Gone } else { Probed::Lives });
        }
        if gone {
            sending.fast.store(0, Relaxed);
            self.end.pin_sending();
        }
        sending.lock.exit(entered);
        gone
    }

    /// A doorbell was sent behind the other end's FIN. Whether the other end's kernel answers it by a reset. A kernel
    /// that is in the middle of the close does so a moment later, and that of a living end may acknowledge it later. An
    /// end that reads on lives.
    fn answers_bell_by_reset(&self) -> bool {
        let head = &self.channel.outgoing().head.head;
        let (began, read) = (ticks(), head.load(Relaxed));
        let within = |us| ticks().wrapping_sub(began) < micros(us);
        let is_closing = || within(CLOSED_WITHIN_US) && kernel::peer(self.fd).is_ok_and(|it| it.inode == 0);
        while !is_quiet() && head.load(Relaxed) == read && self.connected() && kernel::outq(self.fd) != Ok(0) {
            if !within(ACKNOWLEDGED_WITHIN_US) && !is_closing() {
                break;
            }
            // The other end's process may need this processor for its close.
            nap(50);
        }
        !self.connected()
    }

    /// Whether the other end has sent its FIN, or worse.
    pub(super) fn has_ended(&self) -> bool {
        kernel::poll_now(self.fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }
}

//! Errors of the connection: what the kernel says, what it means, and what the program is told.

use super::take::Taken;
use super::{BROKEN, Port};
use crate::end::{IN_COPY, Probed, Stage};
use crate::kernel;
use crate::raw::{Answer, Errno, is_quiet};
use crate::reason::Reason;
use crate::ring::{self, Fault, Record};
use crate::sync::{Acquire, Relaxed};
use crate::words::{Direction, NO_MORE_BELLS};

impl Port<'_> {
    pub(super) fn fault(&self) -> Taken {
        self.break_off();
        Taken::Failed(BROKEN)
    }

    /// The other end broke the rules. This ends the connection.
    pub(super) fn break_off(&self) {
        if self.end.advance(Stage::Broken) {
            self.end.set_reason(Reason::PeerFault);
            if !is_quiet() {
                kernel::shut_down(self.fd);
            }
        }
    }

    /// What an error of the kernel's means for the stream.
    pub(super) fn verdict(&self, e: Errno) -> Taken {
        let by_bell = match e.0 {
            libc::ECONNRESET => self.judge_reset(),
            // The reset came behind the other end's FIN, before which all came that it had sent.
            libc::EPIPE => self.judge(true),
            _ => false,
        };
        if by_bell { Taken::EndOfStream } else { Taken::Failed(e) }
    }

    /// The kernel says that the stream has ended. If it told the reason before, perhaps to a send of the library's, and
    /// the program does not know it, the program is told that first. What lies in the ring behind bytes that the kernel
    /// has lost never comes.
    pub(super) fn end_of_stream(&self, total: usize) -> Answer {
        if total == 0
            && let Some(error) = self.end.take_kept_error()
        {
            return Err(error);
        }
        if total == 0 && self.is_cut_short() {
            return Err(BROKEN);
        }
        let gone = total == 0 && (self.reader_is_gone() || self.end.probed() == Probed::Gone);
        // Behind a FIN the kernel tells no receive of the error. On kernel TCP there would have been no FIN.
        if gone && kernel::int_option(self.fd, libc::SOL_SOCKET, libc::SO_ERROR).is_ok_and(|error| error != 0) {
            return Err(BROKEN);
        }
        Ok(total)
    }

    /// Takes the socket's pending error.
    pub fn take_error(&self) -> Option<Errno> {
        if let Some(error) = self.end.take_kept_error() {
            return Some(error);
        }
        let error = kernel::int_option(self.fd, libc::SOL_SOCKET, libc::SO_ERROR).ok().filter(|&error| error != 0)?;
        match self.verdict(Errno(error)) {
            Taken::Failed(error) => Some(self.as_told(error)),
            _ => None,
        }
    }

    /// The error that the program is to see. For a reset behind a FIN the kernel says EPIPE.
    pub fn as_told(&self, error: Errno) -> Errno {
        let is_reset = error.0 == libc::EPIPE && self.is_gone_with_unread();
        if is_reset { BROKEN } else { error }
    }

    /// Fails with an error of which the program does not know yet. The kernel tells an error only once, to the first
    /// call; a call that has `sent` a part reports that part instead.
    pub(super) fn check_untold(&self, sent: usize) -> Result<(), Errno> {
        let kept = self.end.reading.error.load(Relaxed) != 0;
        if !kept && (!self.is_gone_with_unread() || self.connected()) {
            return Ok(());
        }
        let untold = if sent > 0 {
            Some(BROKEN)
        } else if kept {
            self.end.take_kept_error()
        } else {
            self.take_error()
        };
        untold.map_or(Ok(()), Err)
    }

    /// A send of the library's own has failed. The kernel says so once, so the error is kept for the program. A reset
    /// that a doorbell may have caused, and by which nothing was lost, is not kept.
    pub(super) fn keep_failure(&self, error: Errno) {
        if error == BROKEN && !(self.is_whole() && self.awaits_answer()) {
            self.end.keep_error(error);
        }
    }

    /// The kernel has reported a reset: whether a doorbell alone is the cause. A process that is killed with a doorbell
    /// unread resets the connection. If it had read all that was sent to it, kernel TCP would have ended the stream
    /// instead. If another cause is found, sends go to the kernel from now on and learn there that the connection is
    /// over. An end that had asked for a reset is believed.
    pub fn judge_reset(&self) -> bool {
        self.judge(self.is_whole())
    }

    /// As [`Port::judge_reset`], where a reset loses nothing that the other end has sent if `is_whole`.
    fn judge(&self, is_whole: bool) -> bool {
        let has_all = || {
            if self.sends_fast() { !self.end.is_pinned() && !self.has_unread() } else { self.has_taken_all() }
        };
        let in_copy = self.end.reading.copied.load(Relaxed) & IN_COPY != 0;
        let is_cause = || match in_copy {
            true => self.is_reset_by_bell(),
            false => !self.reader_resets() && self.awaits_answer() && has_all(),
        };
        let by_bell = is_whole && is_cause();
        if !by_bell {
            self.end.pin_sending();
        }
        by_bell
    }

    /// This end has gone down. Whether the other end has taken all that this end has sent, by either path, but for
    /// doorbells.
    fn has_taken_all(&self) -> bool {
        self.sender().has_only_marks() && self.has_taken_all_but_bells()
    }

    /// This end has gone down. Whether the other end has taken all that this end has sent by the kernel path, but for
    /// doorbells.
    pub(super) fn has_taken_all_but_bells(&self) -> bool {
        let Direction { flags, head, sender } = self.channel.outgoing();
        let announced = sender.announced.load(Relaxed) & !NO_MORE_BELLS;
        let bells = announced.saturating_sub(head.bells_taken.load(Relaxed));
        let sent = kernel::counters(self.fd).map(|it| it.sent_once + u64::from(it.unsent));
        sent == Ok(flags.position.load(Acquire).wrapping_add(bells))
    }

    /// Whether all that the other end has sent is in the ring, so that a reset loses nothing of it. On the kernel path
    /// a reset loses what was not sent yet.
    fn is_whole(&self) -> bool {
        let (ring, begin) = (self.incoming(), self.place().head);
        let mut position = begin;
        while self.receives_fast() && ring::distance(begin, position) < ring.capacity() {
            match ring.record(position) {
                Ok(Record::Empty) => return true,
                Ok(Record::Down(_)) | Err(Fault) => return false,
                Ok(record) => position = ring.behind(position, record),
            }
        }
        false
    }
}

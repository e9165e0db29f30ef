//! A thread repairs what the last owner of a lock left in the middle of a call.
//!
//! That owner was killed, or its thread has executed another program. A signal handler finishes what the call below it
//! in the same thread cannot finish.

use super::entering::Beside;
use super::give::PIECE;
use super::{Port, ReaderState};
use crate::kernel;
use crate::lock::Entered;
use crate::ring::{Place, Record};
use crate::sync::{Acquire, Relaxed, Release};
use crate::words::{BY_READER, Direction, Flag, NO_MORE_BELLS, RINGING};

impl Port<'_> {
    #[inline]
    pub(super) fn repair_after(&self, entered: Entered) {
        match entered {
            Entered::Alone | Entered::Asleep => {}
            Entered::AfterDeath => kernel::undisturbed(|| self.repair_reading()),
            Entered::Nested | Entered::AboveSleep => self.count_for_below(),
        }
    }

    /// Repairs what a killed reader was in the middle of: passes a mark that it had half passed, and counts what it had
    /// taken from the kernel. Data that it had received is lost with it, as on kernel TCP.
    #[cold]
    fn repair_reading(&self) {
        let reading = &self.end.reading;
        let Direction { flags, head, .. } = self.channel.incoming();
        flags.in_kernel.store(0, Release);
        // A child of vfork has its number from a thread that goes on.
        reading.receiver.store(0, Relaxed);
        let state = self.reader_state();
        if matches!(state, ReaderState::Leaving | ReaderState::Absent) {
            self.count_for_killed();
            if state == ReaderState::Leaving {
                self.forget_ring(Beside::Nobody, u64::MAX);
            }
            return;
        }
        // The reader may have been about to leave: see `leave`.
        flags.consumed.store(0, Relaxed);
        if self.receives_fast() {
            // The reader did not come to the mark behind which these bytes are data.
            reading.mistaken.fetch_sub(reading.stash.swap(0, Relaxed).into(), Relaxed);
        }
        match self.front() {
            // A reader moves the head on last.
            Ok((at, mark @ Record::Down(_))) if !self.receives_fast() => self.put_behind(at, mark),
            Ok((at, mark @ Record::Up(_))) if self.receives_fast() => self.put_behind(at, mark),
            _ => {}
        }
        head.head.store(self.place().head, Release);
        self.count_for_killed();
        if let Ok((_, Record::Up(up))) = self.front()
            && !self.receives_fast()
            && !self.is_given_first()
            && let Some(bells @ 1..) = self.kernel_position().checked_sub(up)
        {
            reading.kernel.fetch_sub(bells, Relaxed);
            self.enter_fast(bells);
        }
        // The reader may have been about to do so for a mark that it had passed.
        self.give_back_if_due();
    }

    /// The reader stands behind the record at `at`.
    pub(super) fn put_behind(&self, at: u64, mark: Record) {
        let head = self.incoming().behind(at, mark);
        self.end.reading.place.store(Place { head, consumed: 0 }.pack(), Relaxed);
    }

    /// Counts what a killed reader had taken from the kernel and not counted. An absent end counts doorbells alone.
    fn count_for_killed(&self) {
        let reading = &self.end.reading;
        if reading.taking.load(Relaxed) != 0 {
            reading.taking.store(self.me, Relaxed);
            self.count_for_below();
            reading.taking.store(0, Relaxed);
            self.count_bells(0);
        } else if (!self.is_absent() || reading.to_discard() > 0)
            && let Some((position, _)) = self.read_position()
        {
            // These bytes are doorbells behind a mark of going up or down, or data.
            let taken = position.saturating_sub(self.kernel_position());
            let bells = if self.receives_fast() { taken } else { reading.to_discard().min(taken) };
            self.count_bells(bells);
            reading.kernel.fetch_add(taken - bells, Relaxed);
            if self.receives_fast() && bells > 0 {
                reading.kept_from.store(reading.all_bells.load(Relaxed), Relaxed);
            }
        }
    }

    /// Under a signal handler: if the call below in this thread was taking doorbells, counts what it took and could not
    /// count yet. Only the kernel tells how many that were.
    pub(super) fn count_for_below(&self) {
        let reading = &self.end.reading;
        if reading.taking.load(Relaxed) != self.me {
            return;
        }
        let Some((read, _)) = self.read_position() else { return };
        let got = read.wrapping_sub(self.kernel_position()) as usize;
        if (1..=reading.fresh.len()).contains(&got) {
            self.count_taken(got);
            reading.taking.store(0, Relaxed);
        }
    }

    /// Repairs what a killed sender was in the middle of. It closes the sender's record, and keeps to a mark that the
    /// sender has published. It sends the doorbells that the sender had announced, because the sender may have taken
    /// the flag for them already, or takes them back where the reader refuses them. It passes what the sender has given
    /// back to the kernel path.
    #[cold]
    pub(super) fn repair_sending(&self) {
        const MOST: u32 = 16;
        let Direction { flags, sender, .. } = self.channel.outgoing();
        self.sender().close_hole();
        if sender.switching.load(Relaxed) != 0 {
            self.repair_switch();
            sender.switching.store(0, Release);
        }
        // The sender may have taken the waiting flag for a kernel send that it did not come to.
        self.restore_flag(false);
        if Flag(flags.waiting.load(Acquire)).is_ringing() {
            // The doorbell is announced before the bit goes down: a reader that closes waits for the bit, and then for
            // the doorbell.
            if self.sends_fast() {
                self.send_bell();
            }
            flags.waiting.fetch_and(!RINGING, Release);
        }
        if !self.end.was_sent_fast() {
            return;
        }
        // Since the direction went up, the kernel has had doorbells and what was given back. If it has had more, the
        // direction has gone down.
        let Some(given) = self.given_since() else { return };
        // This look comes second: a reader says first that it gives.
        if flags.giver.load(Acquire) & BY_READER != 0 {
            // No doorbell is missing then, and the next giver counts the rest.
            return;
        }
        let unsent = given.wrapping_neg();
        if (1..=MOST).contains(&unsent) {
            if sender.announced.load(Acquire) & NO_MORE_BELLS != 0 {
                sender.announced.fetch_sub(unsent.into(), Release);
            } else {
                self.send_surely(&[0; MOST as usize][..unsent as usize]);
            }
        } else if unsent != 0
            && self.sends_fast()
            && self.reader_is_absent()
            && (given as usize > PIECE || self.note_piece(given as usize).is_err())
        {
            self.break_off();
        }
    }

    /// Repairs what a killed sender was in the middle of, if it was switching the path. A sender publishes the mark
    /// before any other word says so.
    fn repair_switch(&self) {
        let sending = &self.end.sending;
        match self.sender().last() {
            Ok(Record::Up(_)) if !self.sends_fast() => self.has_gone_up(),
            Ok(Record::Down(_)) if self.sends_fast() && !self.reader_is_absent() => sending.fast.store(0, Relaxed),
            _ => {}
        }
    }
}

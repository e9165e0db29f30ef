//! A thread repairs what the last owner of a lock left in the middle of a call.
//!
//! That owner was killed, or its thread has executed another program. A signal handler finishes what the call below it in the
//! same thread cannot finish.

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

    /// What a killed reader was in the middle of: a mark that was half passed is passed, and what it had taken from the
    /// kernel is counted. Data that it had received is its own, as on kernel TCP.
    #[cold]
    fn repair_reading(&self) {
        let reading = &self.end.reading;
        let Direction { flags, head, .. } = self.link.incoming();
        flags.in_kernel.store(0, Release);
        let state = self.reader_state();
        if matches!(state, ReaderState::Leaving | ReaderState::Absent) {
            self.count_for_killed();
            if state == ReaderState::Leaving {
                self.forget_ring(Beside::Nobody, u64::MAX);
            }
            return;
        }
        // It may have been about to leave: see `leave`.
        flags.consumed.store(0, Relaxed);
        if self.receives_fast() {
            // It has not come to the mark behind which these are data.
            reading.mistaken.fetch_sub(reading.stash.swap(0, Relaxed).into(), Relaxed);
        }
        match self.front() {
            // The head is moved on last.
            Ok((at, mark @ Record::Down(_))) if !self.receives_fast() => self.put_behind(at, mark),
            Ok((at, mark @ Record::Up(_))) if self.receives_fast() => self.put_behind(at, mark),
            _ => {}
        }
        head.head.store(self.place().head, Release);
        self.count_for_killed();
        if let Ok((_, Record::Up(up))) = self.front()
            && !self.receives_fast()
            && let Some(bells @ 1..) = self.kernel_position().checked_sub(up)
        {
            reading.kernel.fetch_sub(bells, Relaxed);
            self.enter_fast(bells);
        }
        // It may have been about to do so for a mark that it has passed.
        self.give_back_if_due();
    }

    fn put_behind(&self, at: u64, mark: Record) {
        let head = self.incoming().behind(at, mark);
        self.end.reading.place.store(Place { head, consumed: 0 }.pack(), Relaxed);
    }

    /// What a killed reader had taken from the kernel and not counted. An end that has left counts doorbells alone.
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
            // Doorbells behind the mark of going up, or behind that of going down, or data.
            let taken = position.saturating_sub(self.kernel_position());
            let bells = if self.receives_fast() { taken } else { reading.to_discard().min(taken) };
            self.count_bells(bells);
            reading.kernel.fetch_add(taken - bells, Relaxed);
            if self.receives_fast() && bells > 0 {
                reading.kept_from.store(reading.all_bells.load(Relaxed), Relaxed);
            }
        }
    }

    /// On top of a taking of doorbells of this thread: counts what it has taken and could not count yet. Nothing else tells
    /// but the kernel.
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

    /// What a killed sender was in the middle of: its record is closed, a mark of the path that it has published is kept to,
    /// and doorbells that it had announced are sent, since it may have taken the flag for them already, or taken back where
    /// none is wanted any more. What it has given back to the kernel path is not given back again.
    #[cold]
    pub(super) fn repair_sending(&self) {
        const MOST: u32 = 16;
        let Direction { flags, sender, .. } = self.link.outgoing();
        self.sender().close_hole();
        if sender.switching.load(Relaxed) != 0 {
            self.repair_switch();
            sender.switching.store(0, Release);
        }
        // It may have taken the waiting flag for a kernel send that it did not come to.
        self.restore_flag(false);
        if Flag(flags.waiting.load(Acquire)).is_ringing() {
            // Announced before: a reader that closes waits for the one and then for the other.
            if self.sends_fast() {
                self.send_bell();
            }
            flags.waiting.fetch_and(!RINGING, Release);
        }
        if !self.end.was_sent_fast() {
            return;
        }
        // Since it went up the kernel has had doorbells and what was given back; or more, since it went down.
        let Some(given) = self.given_since() else { return };
        // Behind that: a reader says first that it gives.
        if flags.giver.load(Acquire) & BY_READER != 0 {
            // No doorbell is missing then, and who gives next counts the rest.
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

    /// The same for one that was about to switch its path: the mark is published before anything else says that it has.
    fn repair_switch(&self) {
        let sending = &self.end.sending;
        match self.sender().last() {
            Ok(Record::Up(_)) if !self.sends_fast() => self.has_gone_up(),
            Ok(Record::Down(_)) if self.sends_fast() && !self.reader_is_absent() => sending.fast.store(0, Relaxed),
            _ => {}
        }
    }
}

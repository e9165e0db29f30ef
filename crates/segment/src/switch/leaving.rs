//! A reader leaves its ring for good, so that a program without the library can read the socket.
//!
//! The reader says so by the bit [`LEFT`] and takes the last doorbells. The sender puts on the kernel path what is
//! unread then (`give`).

use super::doorbell::BELL_WITHIN_US;
use super::entering::Beside;
use super::{Port, micros};
use crate::clock::{give_way, nanoseconds, nap, ticks};
use crate::end::{IMAGE_WITHIN_NS, Stage, Whereabouts};
use crate::kernel;
use crate::raw::is_quiet;
use crate::ring::Record;
use crate::sync::{AcqRel, Relaxed, Release, SeqCst, fence};
use crate::words::{ABSENT, ALONE, Direction, Flag, GIVING, LEAVING, LEFT, NO_MORE_BELLS, Presence, Raised};

/// A sender that is about to switch its path has done so within this time, if it is neither stopped nor killed.
const SWITCHED_WITHIN_US: u64 = 100_000;

/// A reader that is about to leave its ring has left it within this time, if it is neither stopped nor killed.
const LEFT_WITHIN_US: u64 = 100_000;

/// What has become of a ring that its reader was to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftRing {
    /// The reader goes on with the ring: its sender could not put on the kernel path what is unread.
    No,
    /// The reader has left the ring, and nothing that its sender would have to put on the kernel path.
    Empty,
    /// The reader has left the ring, and its sender has to put on the kernel path what is unread.
    Unread,
}

impl LeftRing {
    /// The ring was left, with something unread or not.
    pub(super) fn with(is_unread: bool) -> LeftRing {
        if is_unread { LeftRing::Unread } else { LeftRing::Empty }
    }
}

/// How much a reader wants to leave its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// If its sender can put on the kernel path what is unread.
    IfGivenBack,
    /// If its sender can put on the kernel path what is unread, once the image is there that the sender's process is
    /// about to execute.
    OnceGivenBack,
    /// Unless its sender never can, nor an image of it.
    UnlessLost,
}

/// What is to become of what is unread in a ring that its reader leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The sender can put it on the kernel path, or there is nothing.
    Open,
    /// The sender has gone down behind it because its process executes an image, which takes that mark back if it comes
    /// (see [`Port::go_away`]).
    Awaited,
    /// The sender can never put it on the kernel path: it has gone down behind that for good, or has ended its
    /// direction. A sender that is about to end it may still be able to, and is not waited for.
    Lost,
}

impl Port<'_> {
    /// Leaves the incoming ring for good, so that a process without the library can read the socket. No doorbell is on
    /// its way then, and the sender puts on the kernel path what it finds unread.
    pub(super) fn leave(&self, how: Leave, until: u64) -> LeftRing {
        let began = ticks();
        let within = |us| ticks().wrapping_sub(began) < micros(us);
        // A thread that sleeps in a receive takes the doorbell that comes with the mark of going up, and comes to the
        // ring, if it may wake.
        let comes_to_ring = |beside| {
            beside == Beside::Sleeper
                && how == Leave::UnlessLost
                && self.has_bells_behind_data()
                && within(BELL_WITHIN_US)
        };
        let awaits_image = || how != Leave::IfGivenBack && within(IMAGE_WITHIN_NS / 1000);
        let leave = |beside| {
            if comes_to_ring(beside) { None } else { self.leave_beside(beside, how, until, awaits_image()) }
        };
        let mut pause_us = 50;
        loop {
            if let Some(left) = self.with_all_reading(leave) {
                return left;
            }
            nap(pause_us);
            pause_us = (2 * pause_us).min(1000);
        }
    }

    /// `None`, if `awaits_image`: the other end has gone down behind what is unread because it executes an image, which
    /// may take the mark back, or has just taken it back.
    fn leave_beside(&self, beside: Beside, how: Leave, until: u64, awaits_image: bool) -> Option<LeftRing> {
        let flags = &self.channel.incoming().flags;
        if self.is_absent() {
            return Some(LeftRing::Empty);
        }
        if self.may_take(beside) {
            self.pass_marks();
        }
        flags.consumed.store(self.place().consumed as u32, Relaxed);
        if !kernel::undisturbed(|| self.leave_what_can_be_given_back(LEFT)) {
            let fate = self.fate_of_unread();
            let is_back = || fate == Fate::Open && self.can_leave() && !self.sender_switches();
            if awaits_image && (fate == Fate::Awaited || is_back()) {
                flags.consumed.store(0, Relaxed);
                return None;
            }
            let is_lost = matches!(fate, Fate::Awaited | Fate::Lost) || self.has_bells_behind_data();
            if how != Leave::UnlessLost || is_lost {
                // If the reader leaves later, then at the beginning of a record.
                flags.consumed.store(0, Relaxed);
                if how == Leave::UnlessLost {
                    // A process without the library never gets what is unread. Threads with the library read on without
                    // a gap: other threads until the new image is there, or this one if the image never comes.
                    self.await_bells(beside, self.refuse_bells(), until);
                }
                return Some(LeftRing::No);
            }
            flags.waiting.fetch_or(LEFT, SeqCst);
        }
        fence(SeqCst);
        let unread = self.incoming().published(self.place().head);
        self.forget_ring(beside, until);
        // This comes last: a sender that goes down by itself does so behind what is unread.
        self.ask_for_down();
        Some(LeftRing::with(unread))
    }

    /// Leaves the ring for good if everything in it was read.
    pub(super) fn leave_if_read(&self, until: u64) {
        let began = ticks();
        let is_over = || ticks().wrapping_sub(began) > micros(BELL_WITHIN_US) || nanoseconds() > until;
        // A doorbell is on its way to the sleeper that may come with no other sign than the marks. The sleeper passes
        // these.
        let is_being_woken = |beside| beside == Beside::Sleeper && self.has_bells_behind_data() && !is_over();
        let leave = |beside| (!is_being_woken(beside)).then(|| self.leave_if_read_beside(beside, until));
        while self.with_all_reading(leave).is_none() {
            nap(50);
        }
    }

    fn leave_if_read_beside(&self, beside: Beside, until: u64) {
        if beside == Beside::Sleeper {
            // The sleeper has raised the flag and seen the ring empty. Until then a doorbell is what wakes it,
            // unless it dozes.
            self.await_bells(beside, self.announced(), until);
        }
        let alone = self.may_take(beside);
        if alone {
            self.pass_marks();
        }
        // The flag was up when the ring was last seen empty. If the sender has not taken it since, it finds with
        // its next record that this end has left. A mark of going up leaves the flag as it is, and so does the doorbell
        // that may come behind it.
        let is_up = |flag: Flag| !flag.is_absent() && matches!(flag.raised(), Raised::Alone | Raised::Dozing);
        let is_read = |flag| match self.ahead() {
            Ok(Record::Empty) => is_up(flag),
            Ok(Record::Down(_)) => is_up(flag) && self.receives_fast(),
            _ => false,
        };
        // A raised flag has the sender go on in the ring, and send a doorbell behind what is unread in the kernel.
        let is_before_ring = !self.receives_fast() && matches!(self.ahead(), Ok(Record::Up(_)));
        // A thread that dozes is not woken: it would sleep by a call of the library's, which a filter may be about
        // to forbid.
        let left = !is_before_ring
            && (!alone || self.arm(ALONE))
            && kernel::undisturbed(|| self.leave_beside_switch(|flag| is_read(flag).then(|| flag.raised_to(LEFT))));
        if left {
            self.forget_ring(beside, until);
        }
    }

    /// Says that this end has left ([`LEFT`]), or is away ([`AWAY`]), if the sender can put on the kernel path what is
    /// unread in the ring, and no doorbell lies behind unread data there.
    ///
    /// [`AWAY`]: crate::words::AWAY
    pub(super) fn leave_what_can_be_given_back(&self, how: u32) -> bool {
        self.leave_beside_switch(|flag| self.can_leave().then_some(flag.0 | how))
    }

    fn can_leave(&self) -> bool {
        self.can_be_given_back() && !self.has_bells_behind_data()
    }

    /// Changes the flag to what `leave` makes of it, if the sender does not switch the path meanwhile.
    pub(super) fn leave_beside_switch(&self, leave: impl Fn(Flag) -> Option<u32>) -> bool {
        let waiting = &self.channel.incoming().flags.waiting;
        self.beside_switch(|is_switching| {
            // Other threads and the sender change the flag a few times meanwhile.
            (0..8).any(|_| {
                // A sender announces a doorbell and takes the flag before it sends the doorbell. If the flag is as it
                // was, no doorbell has come meanwhile.
                let word = waiting.load(SeqCst);
                !is_switching()
                    && leave(Flag(word)).is_some_and(|to| waiting.compare_exchange(word, to, SeqCst, Relaxed).is_ok())
                    && !self.comes_back_for_bell(word)
            })
        })
    }

    /// Does `what`, during which the sender does not begin to switch the path. `what` asks whether the sender was about
    /// to switch it before, and has not finished in time.
    pub(super) fn beside_switch<T>(&self, what: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
        let Direction { flags, sender, .. } = self.channel.incoming();
        // SeqCst: the reader says that it is about to leave, then looks. A sender that is about to switch the path or
        // to end its direction says so, then looks.
        let before = flags.in_kernel.swap(LEAVING, SeqCst);
        let began = ticks();
        let is_switching = || sender.switching.load(SeqCst) != 0;
        while is_switching() && ticks().wrapping_sub(began) < micros(SWITCHED_WITHIN_US) {
            give_way();
        }
        let done = what(&is_switching);
        flags.in_kernel.store(before, Release);
        done
    }

    /// A sender that asks whether this end lives does not take the flag for its doorbell. If it has announced one
    /// behind unread data in the kernel, this end cannot leave, and takes the change of the flag, which was `word`,
    /// back. The sender does not begin to give back meanwhile ([`Port::await_departure`]).
    fn comes_back_for_bell(&self, word: u32) -> bool {
        let flags = &self.channel.incoming().flags;
        let announced = self.refuse_bells();
        let is_before_ring = matches!(self.front_from(self.place().head), Ok((_, Record::Up(_))));
        if self.receives_fast() || !is_before_ring || announced <= self.bells() {
            return false;
        }
        let back = |now| (Flag(now).0 & GIVING == 0).then_some(now & !(ABSENT & !word));
        if flags.waiting.fetch_update(SeqCst, SeqCst, back).is_err() {
            // This thread had no processor for so long that the sender did not wait any more.
            self.break_off();
            return false;
        }
        // A sender that was refused meanwhile woke nobody. The doorbell that is announced does.
        self.channel.incoming().sender.announced.fetch_and(!NO_MORE_BELLS, AcqRel);
        true
    }

    /// The sender has found that the reader is absent: waits until the reader's thread has come out of
    /// `leave_beside_switch`, where it may take that back. A reader that stays there is awaited once.
    pub(super) fn await_departure(&self) {
        let late = &self.end.sending.reader_is_late;
        let is_leaving = || self.channel.outgoing().flags.in_kernel.load(SeqCst) == LEAVING;
        let began = ticks();
        while is_leaving() && late.load(Relaxed) == 0 && ticks().wrapping_sub(began) < micros(LEFT_WITHIN_US) {
            give_way();
        }
        late.store(is_leaving().into(), Relaxed);
    }

    /// The reader is back, or has all that it had left: its next departure is awaited again.
    pub(super) fn forget_departure(&self) {
        self.end.sending.reader_is_late.store(0, Relaxed);
    }

    /// Whether the sender can put on the kernel path what is unread: it has not gone down behind that, and does not end
    /// its direction.
    fn can_be_given_back(&self) -> bool {
        let Ok((at, record)) = self.front() else { return false };
        matches!(record, Record::Empty) || self.mark_behind(at, record).is_none() && !self.sender_has_ended()
    }

    /// Where the sender has gone down behind `record`, which lies at `at`.
    fn mark_behind(&self, at: u64, record: Record) -> Option<u64> {
        let behind = if matches!(record, Record::Up(_)) { self.incoming().behind(at, record) } else { at };
        self.down_behind(behind).map(|(mark, _)| mark)
    }

    pub(super) fn sender_has_ended(&self) -> bool {
        self.channel.incoming().sender.ended.load(SeqCst) != 0 || self.has_ended()
    }

    /// What is to become of what is unread, where this end leaves the ring.
    pub(super) fn fate_of_unread(&self) -> Fate {
        let mark = || self.front().ok().and_then(|(at, record)| self.mark_behind(at, record));
        let seen = mark();
        let is_unread = self.front().is_ok_and(|(_, record)| !matches!(record, Record::Empty | Record::Down(_)));
        // In this order: a sender is away when it goes down, and is back only once it has taken that mark back. It may
        // be away again by now, behind another mark.
        let executes = || self.reader_is_to_return() || self.other_executes();
        let may_return = || executes() && !self.asks_for_down_at_once() && !self.has_data_behind_ring();
        let is_awaited = || may_return() || mark() != seen;
        match (seen, self.sender_has_ended()) {
            (Some(_), false) if is_awaited() && !self.sender_is_gone() => Fate::Awaited,
            (None, false) => Fate::Open,
            _ if is_unread => Fate::Lost,
            _ => Fate::Open,
        }
    }

    /// Whether data lies in the kernel while this end reads the ring: the sender has sent it behind a mark of going
    /// down, which it can take back no more.
    fn has_data_behind_ring(&self) -> bool {
        // In this order: a doorbell is announced before it is sent, and counted once it is taken.
        let bells = self.bells();
        let queued = if is_quiet() { 0 } else { kernel::inq(self.fd).unwrap_or(0) };
        self.receives_fast() && u64::from(queued) > self.announced().saturating_sub(bells)
    }

    fn sender_switches(&self) -> bool {
        self.channel.incoming().sender.switching.load(SeqCst) != 0
    }

    /// Whether a doorbell lies, or may come to lie, behind data that was sent on the kernel path before the direction
    /// went up.
    fn has_bells_behind_data(&self) -> bool {
        !self.receives_fast() && matches!(self.ahead(), Ok(Record::Up(_))) && self.owed() > 0
    }

    /// This end has said that it has left: it takes the last doorbells, and never looks at the ring again.
    pub(super) fn forget_ring(&self, beside: Beside, until: u64) {
        let last = self.refuse_bells();
        let missing = self.await_bells(beside, last, until);
        if self.receives_fast() && self.may_take(beside) {
            self.end.reading.discard(missing);
            self.keep_early_data();
        } else if self.receives_fast() && missing > 0 {
            // The sleeper may count one of them meanwhile.
            self.end.reading.discard_up_to(last.min(self.announced()));
        }
        let left = self.until_given();
        if left > 0 {
            let begin = self.kernel_position() + self.end.reading.to_discard();
            self.end.reading.vain_looks.store(0, Relaxed);
            self.end.reading.given_at.store(begin.saturating_add(left), Relaxed);
        }
        self.end.reading.armed.store(0, Relaxed);
        self.end.reading.fast.store(0, Relaxed);
        self.end.reading.set_whereabouts(Whereabouts::Left);
    }

    /// Whether this end has left the ring for good, and has taken all that the library had of the stream. Then the
    /// kernel has the rest, and any error. A pinned end that could not leave the ring at first leaves it here once it
    /// has read it. An end that is away may come back beside a plain receive, which would take a doorbell for data.
    #[inline]
    pub fn reads_plainly(&self) -> bool {
        !self.receives_fast() && self.has_only_kernel()
    }

    #[cold]
    fn has_only_kernel(&self) -> bool {
        let reading = &self.end.reading;
        self.return_to_ring();
        if !self.is_absent() && self.asks_for_down() {
            self.leave_if_read(u64::MAX);
        }
        let owed = !reading.is_where_kernel_is() || self.awaits_given();
        // The flag alone does not tell the two apart where a thread is just leaving, or going away.
        let has_left = self.is_absent() && reading.whereabouts() == Whereabouts::Left;
        has_left && !owed && reading.error.load(Relaxed) == 0 && self.end.stage() != Stage::Broken
    }

    /// Whether what this end has left in its ring for good has not all been read.
    pub(super) fn awaits_given(&self) -> bool {
        let given_at = &self.end.reading.given_at;
        if given_at.load(Relaxed) <= self.kernel_position() {
            given_at.store(0, Relaxed);
        }
        given_at.load(Relaxed) != 0
    }

    /// Whether the sender is gone, and has not given back all that this end has left in its ring for good: it was
    /// killed before.
    pub(super) fn is_cut_short(&self) -> bool {
        // In this order: a sender gives back before its end.
        self.end.reading.given_at.load(Relaxed) > 0 && self.sender_is_gone() && !self.is_all_given()
    }

    /// Whether the kernel has all that this end has left in its ring for good, as far as the kernel tells.
    fn is_all_given(&self) -> bool {
        let given_at = self.end.reading.given_at.load(Relaxed);
        // The other end's FIN counts as a byte.
        let received = |it: kernel::Counters| it.received.saturating_sub(u64::from(kernel::has_fin(it.state)));
        given_at == 0 || kernel::counters(self.fd).map_or(true, |it| received(it) >= given_at)
    }

    /// Whether both directions are on the kernel path, and each process that has the socket finds there all that is
    /// left of the stream.
    pub fn leaves_all_to_kernel(&self) -> bool {
        let reading = &self.end.reading;
        let is_there = match self.presence() {
            Presence::Here => false,
            Presence::Left => self.is_all_given(),
            Presence::Away | Presence::Giving => {
                self.left_behind() == 0 || self.end.was_given(self.fd, self.until_given())
            }
            Presence::Given => true,
        };
        is_there && reading.is_where_kernel_is() && !self.sends_fast()
    }

    /// Whether the sender has sent its FIN, or closed its socket: the FIN may have to wait for room here.
    pub(super) fn sender_is_gone(&self) -> bool {
        let is_closed = || !is_quiet() && kernel::peer(self.fd).is_ok_and(|it| it.inode == 0);
        self.has_ended() || is_closed()
    }
}

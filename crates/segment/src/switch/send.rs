//! Sending: into the ring while the direction is fast, else on the kernel path; going up and going down.

use super::away::{another_departs, departing};
use super::path::{Descent, GoUp};
use super::room::Room;
use super::{AGAIN, BROKEN, LIES_US, Port, STOPPED_US, micros};
use crate::clock::{nap, ticks};
use crate::end::Stage;
use crate::kernel::{self, HeldBack};
use crate::lock::Entered;
use crate::raw::{Answer, Errno, is_quiet};
use crate::reason::Reason;
use crate::ring::{Fault, Push, Source};
use crate::sync::{AcqRel, Relaxed, own};
use crate::tap;
use crate::vector::Cursor;

/// A longer send holds signals back from its beginning, a shorter one from its first wait. Until then the reader cannot
/// have answered with a signal.
const LONG: usize = 64 << 10;
/// A send awaits a thread that executes a program for this long at most. Then it goes the kernel path, as do all that
/// follow.
const EXECUTED_WITHIN_US: u64 = 1_000_000;

impl Port<'_> {
    /// Sends what is under `from` as send(2) does with `flags`. `plain` sends on the kernel path what is left after so
    /// many bytes.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    pub fn send(&self, mut from: Cursor, flags: i32, plain: impl FnOnce(usize) -> Answer) -> Answer {
        if from.faults() {
            // The kernel says how much of it can be sent.
            return self.send_by_kernel(Reason::Unsupported, || plain(0));
        }
        if from.left() == 0 {
            self.end.sending.kernel_sends.fetch_add(1, AcqRel);
            return self.count_plain(0, || plain(0));
        }
        self.send_from(&mut from, flags, plain)
    }

    /// Sends what any source of at least one byte has, as [`Port::send`] does. It ends early when the source has no
    /// more.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    pub fn send_from(&self, from: &mut impl Source, flags: i32, plain: impl FnOnce(usize) -> Answer) -> Answer {
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || self.end.nonblocking.load(Relaxed) != 0;
        let entered = self.enter_sending_to_send();
        let (mut sent, mut held_back) = (0, None);
        let outcome = self.send_inside(from, &mut sent, &mut held_back, nonblocking, entered == Entered::Nested);
        self.exit_sending(entered, matches!(outcome, Outcome::Plain));
        if sent == 0 {
            drop(held_back.take());
        }
        match outcome {
            Outcome::Done => Ok(sent),
            Outcome::Failed(e) if sent == 0 => Err(e),
            Outcome::Failed(_) => Ok(sent),
            Outcome::Refused => {
                if !is_quiet() {
                    (self.waiting.refused)(self);
                }
                if sent > 0 { Ok(sent) } else { Err(AGAIN) }
            }
            Outcome::Plain => {
                match self.count_plain(from.left(), || self.check_untold(sent).and_then(|()| plain(sent))) {
                    Ok(n) => Ok(sent + n),
                    Err(_) if sent > 0 => Ok(sent),
                    Err(e) => Err(e),
                }
            }
        }
    }

    /// Goes down and sends by `plain`, which takes its bytes from where this library cannot.
    ///
    /// # Errors
    /// What `plain` says.
    pub fn send_by_kernel(&self, reason: Reason, plain: impl FnOnce() -> Answer) -> Answer {
        let entered = self.enter_sending_to_send();
        if entered == Entered::Nested && self.sends_fast() {
            // A send of this thread, below this one, has chosen the ring.
            return Err(AGAIN);
        }
        let began = ticks();
        while self.sends_fast()
            && let descent = self.go_down(reason)
            && descent != Descent::Down
            && self.connected()
            && !self.reader_is_gone()
        {
            if descent == Descent::ReaderInside && self.is_stuck(began, LIES_US) {
                self.break_off();
                break;
            }
            nap(50);
        }
        self.exit_sending(entered, true);
        self.count_plain(1, || self.check_untold(0).and_then(|()| plain()))
    }

    /// Enters the lock. While another thread executes a program, for which this end went down, this waits for a moment:
    /// the execution may fail, and behind what is sent on the kernel path meanwhile the mark of going down could not be
    /// taken back.
    #[inline]
    fn enter_sending_to_send(&self) -> Entered {
        let entered = self.enter_sending();
        if self.sends_fast() || entered == Entered::Nested || departing() == 0 {
            return entered;
        }
        self.await_execution(entered)
    }

    #[cold]
    fn await_execution(&self, mut entered: Entered) -> Entered {
        let began = ticks();
        while entered != Entered::Nested
            && !self.sends_fast()
            && another_departs(self.me)
            && matches!(self.sender().used(true), Ok(1..))
            && self.given_since() == Some(0)
            && ticks().wrapping_sub(began) < micros(EXECUTED_WITHIN_US)
        {
            self.end.sending.lock.exit(entered);
            nap(50);
            entered = self.enter_sending();
        }
        entered
    }

    /// Makes and counts a kernel send of `wanted` bytes. Until it is over it counts as refused, because the kernel
    /// reports only once that there is room again.
    fn count_plain(&self, wanted: usize, plain: impl FnOnce() -> Answer) -> Answer {
        let (sending, refused) = (&self.end.sending, &self.end.refused);
        let before = refused.load(Relaxed);
        refused.store(1, Relaxed);
        let answer = plain();
        self.restore_flag(matches!(answer, Ok(1..)));
        self.end_kernel_send();
        if let Ok(n) = answer {
            sending.kernel_bytes.fetch_add(n as u64, Relaxed);
            if n >= wanted {
                refused.store(before, Relaxed);
            }
        }
        answer
    }

    /// Ends a kernel send from which its thread does not come back.
    pub fn end_kernel_send(&self) {
        self.restore_flag(false);
        self.end.sending.kernel_sends.fetch_sub(1, AcqRel);
    }

    /// `nested`: a signal handler sends on top of another send of this thread. Then the path is not switched, because
    /// that send has chosen it.
    #[inline]
    fn send_inside(
        &self,
        from: &mut impl Source,
        sent: &mut usize,
        held_back: &mut Option<HeldBack>,
        nonblocking: bool,
        nested: bool,
    ) -> Outcome {
        let sending = &self.end.sending;
        let mut since = None;
        if from.left() > LONG && !nonblocking && !nested {
            *held_back = Some(HeldBack::new());
        }
        loop {
            if !sending.is_fast() && (nested || !self.try_up_to_send()) {
                return Outcome::Plain;
            }
            if self.end.stage() == Stage::Broken {
                return Outcome::Failed(BROKEN);
            }
            // Not by `sender_state`, which reads more words, a word of another line among them.
            if self.reader_has_closed() || !self.reader_lives() {
                // No process will read the ring any more. The kernel has the right answer for the program.
                self.give_back_fully();
                sending.fast.store(0, Relaxed);
                self.end.pin_sending();
                return Outcome::Plain;
            }
            if !sending.is_fast() {
                // The look at the reader took a doorbell, and what an absent reader has left was given back.
                continue;
            }
            let heeds = self.reader_wants_down() || self.end.heed() != 0;
            let heeded = if heeds { self.push_heeding(from, sent, nested) } else { None };
            let enough = match heeded.unwrap_or_else(|| self.push_all(from, sent)) {
                Err(Fault) => {
                    self.break_off();
                    return Outcome::Failed(BROKEN);
                }
                Ok(Pushed::All) => return Outcome::Done,
                Ok(Pushed::Down) => return Outcome::Plain,
                Ok(Pushed::Left) if from.left() == 0 => {
                    if !nonblocking && !nested {
                        // As a send that blocks waits for room.
                        self.give_back_fully();
                    }
                    return Outcome::Done;
                }
                Ok(Pushed::Left) if !sending.is_fast() => return Outcome::Plain,
                // The rest goes the kernel path once the send below in this thread is done, or the kernel has room.
                Ok(Pushed::Left) => 0,
                Ok(Pushed::Until(enough)) => enough,
            };
            // Not for a handler's send, which goes on in the middle of another.
            if !nonblocking && !nested {
                if *sent > 0 && held_back.is_some() && kernel::is_signalled() {
                    return Outcome::Done;
                }
                held_back.get_or_insert_with(HeldBack::new);
            }
            match self.wait_for_room(enough, from.left(), nonblocking) {
                Room::Some => since = None,
                Room::None if nonblocking && nested => return Outcome::Failed(AGAIN),
                Room::None => {
                    // The kernel's buffer is so large that part of a call is seldom taken, and not all programs expect
                    // it: iperf3 3.12 with -F loses what is left.
                    let whole = *sent > 0 && sending.only_sends.load(Relaxed) != 0;
                    if let Some(outcome) = self.find_full(&mut since, nonblocking, nested, whole) {
                        return outcome;
                    }
                }
                Room::Fault => {
                    self.break_off();
                    return Outcome::Failed(BROKEN);
                }
            }
        }
    }

    fn try_up_to_send(&self) -> bool {
        if self.end.is_remote() { self.try_up_by_statement() } else { self.try_up(GoUp::ToSend) }
    }

    /// The ring has stayed full. `None`: the send tries again. `since` is when it first did so. `whole`: the rest goes
    /// the kernel path.
    #[cold]
    fn find_full(&self, since: &mut Option<u64>, nonblocking: bool, nested: bool, whole: bool) -> Option<Outcome> {
        let sending = &self.end.sending;
        // This comes first: behind the FIN of a killed end the kernel would accept the rest.
        if self.reader_is_gone() {
            return Some(Outcome::Plain);
        }
        // Either the library tells the program later that the ring has room, or the rest goes the kernel path. If that
        // has no room either, the kernel will say when it has.
        if nonblocking && !nested && !whole && self.refuse() {
            return Some(Outcome::Refused);
        }
        let descent = if nested { Descent::ReaderInside } else { self.go_down(Reason::RingFull) };
        if descent == Descent::Down {
            return Some(Outcome::Plain);
        }
        // The reader is inside a receive that does not wait. If it lives, it will soon be out.
        if !self.connected() {
            sending.fast.store(0, Relaxed);
            return Some(Outcome::Plain);
        }
        let began = *since.get_or_insert_with(ticks);
        let is_over = || ticks().wrapping_sub(began) > micros(STOPPED_US);
        if nonblocking && (self.reader_is_absent() || self.end.is_remote() || is_over()) {
            self.end.refused.store(1, Relaxed);
            return Some(Outcome::Refused);
        }
        if !nested && descent == Descent::ReaderInside && self.is_stuck(began, u64::MAX) {
            self.break_off();
            return Some(Outcome::Failed(BROKEN));
        }
        nap(50);
        None
    }

    /// As `push_all`, where something is to be heeded: the direction may have to go down first, or a tap wants a copy.
    /// `None`: nothing is to be heeded after all.
    #[cold]
    fn push_heeding(&self, from: &mut impl Source, sent: &mut usize, nested: bool) -> Option<Result<Pushed, Fault>> {
        let down = self.has_to_go_down() || self.end.sends_by_kernel();
        if down && (self.has_sent_fin() || !nested && self.go_down(self.reason_to_go_down()) == Descent::Down) {
            return Some(Ok(Pushed::Down));
        }
        if !self.end.is_tapped() {
            return None;
        }
        let Some(name) = self.end.tap() else {
            self.end.forget_tap(None);
            tap::let_go();
            return None;
        };
        self.push_tapped(name, from, sent)
    }

    /// The reason of a held connection is not noted here: the end derives it as long as it is held.
    #[cold]
    fn reason_to_go_down(&self) -> Reason {
        let for_good = self.end.is_pinned() || self.reader_wants_down();
        match (for_good, self.end.is_silent()) {
            (true, _) => Reason::Unsupported,
            (false, true) => Reason::PathSilent,
            (false, false) => Reason::Met,
        }
    }

    /// Publishes what fits into the ring, as long as a reader looks there.
    #[inline]
    pub(super) fn push_all(&self, from: &mut impl Source, sent: &mut usize) -> Result<Pushed, Fault> {
        let place = self.end.reading.place.load(Relaxed);
        let in_turn = self.end.sending.read_before.load(Relaxed) != place;
        self.end.sending.read_before.store(place, Relaxed);
        let sender = self.sender_in(in_turn);
        while from.left() > 0 {
            match sender.push(from)? {
                Push::Took(0) => return Ok(Pushed::All),
                Push::Took(n) => {
                    *sent += n;
                    own::add(&self.end.sending.fast_bytes, n as u64);
                    own::add(&self.end.sending.put, n as u64);
                    if !self.wake_reader() {
                        return Ok(Pushed::Left);
                    }
                }
                Push::Full(enough) => return Ok(Pushed::Until(enough)),
            }
        }
        Ok(Pushed::All)
    }
}

enum Outcome {
    Done,
    Plain,
    Failed(Errno),
    /// The ring has no room for the rest, and the program is told so.
    Refused,
}

pub(super) enum Pushed {
    All,
    /// The direction has gone down, and nothing was published.
    Down,
    /// The reader is absent: the rest goes the kernel path.
    Left,
    /// The ring has no room until so many bytes are free.
    Until(u64),
}

//! The sender switches the path of its direction: it goes up and down, and writes the marks.

use super::give::Gave;
use super::{LIES_US, Port};
use crate::clock::{nanoseconds, nap, ticks};
use crate::end::{NO_PIECE, Stage};
use crate::kernel;
use crate::lock::Entered;
use crate::reason::Reason;
use crate::ring::{self, Fault, Record};
use crate::sync::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::words::{Flag, LEAVING, NO_MORE_BELLS};

/// A direction that has outrun its reader goes up again when so few bytes are unread in the kernel.
const NEAR: u64 = 64 << 10;

/// What has become of a direction that was to go down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descent {
    /// It is down.
    Down,
    /// The kernel has no room yet for all that the absent reader has left.
    NoRoom,
    /// The reader has not passed the mark of going up and receives from the kernel at this moment, or is about to leave
    /// its ring.
    ReaderInside,
}

/// Why a direction is to go up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GoUp {
    /// For a send. The connection must be neither pinned nor held, and the doorbell for what comes next must not lie
    /// behind unread data.
    ToSend,
    /// For a doorbell alone, which tells the other end of something. The direction goes down again at once, or soon.
    ToWake,
}

impl Port<'_> {
    /// Goes up if everything is in place: the reader is ready and has passed the last mark, and no plain write is in
    /// progress.
    #[cold]
    pub(super) fn try_up(&self, why: GoUp) -> bool {
        let end = self.end;
        if end.is_remote() {
            return false;
        }
        let sending = &end.sending;
        if why == GoUp::ToSend && (self.is_path_silent() || end.sends_by_kernel()) {
            // A connection that is no longer held tries with its next send.
            sending.tries.store(0, Relaxed);
            return false;
        }
        let tries = sending.tries.fetch_add(1, Relaxed);
        let every = if self.has_outrun() { 256 } else { 8 };
        if why == GoUp::ToSend && tries > 16 && !tries.is_multiple_of(every) {
            return false;
        }
        if !self.can_go_up() || sending.kernel_sends.load(Acquire) != 0 || !end.shut_gate(&end.write_gate) {
            return false;
        }
        // What a handler sends between the look at the position and the mark would be neither before nor behind the
        // mark.
        kernel::undisturbed(|| {
            let words = self.channel.outgoing();
            // SeqCst: the sender says so, then looks. A reader that begins later to receive from the kernel finds it.
            words.sender.switching.swap(1, SeqCst);
            // A reader that has just gone away may not have said yet that it is not ready.
            let up = words.flags.in_kernel.load(SeqCst) == 0 && !self.reader_is_away() && self.go_up(why);
            words.sender.switching.store(0, Release);
            up
        })
    }

    fn go_up(&self, why: GoUp) -> bool {
        let end = self.end;
        let sending = &end.sending;
        let sender = self.sender();
        match sender.used(true) {
            Ok(0) => {}
            Ok(_) => return false,
            Err(Fault) => {
                self.break_off();
                return false;
            }
        }
        let Some(position) = self.send_position() else { return false };
        let read = self.channel.outgoing().flags.position.load(Acquire);
        if position < read {
            end.set_reason(Reason::Counters);
            return false;
        }
        if why == GoUp::ToSend && self.has_outrun() && position - read > NEAR {
            return false;
        }
        if !kernel::has_room_for_bells(self.fd) || why == GoUp::ToSend && read < position && !self.is_reader_awake() {
            return false;
        }
        if !end.was_sent_fast() {
            self.let_bells_pass();
        } else if read < position {
            // No doorbell follows that would push out what MSG_MORE may have held back.
            let _ = kernel::set_int_option(self.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        }
        sending
            .announced_before_up
            .store(self.channel.outgoing().sender.announced.load(Relaxed) & !NO_MORE_BELLS, Relaxed);
        sending.position.store(position as u32, Relaxed);
        sender.mark(Record::Up(position));
        self.has_gone_up();
        true
    }

    /// Whether the direction went down last because its ring was full before the reader had read what lay before it in
    /// the kernel. It would be full again: most of a stream goes up and down then, and the reader pays for each mark.
    fn has_outrun(&self) -> bool {
        self.end.sending.outran.load(Relaxed) != 0
    }

    /// Notes that the direction has gone up: the mark was published last.
    pub(super) fn has_gone_up(&self) {
        let sending = &self.end.sending;
        sending.mark.store(sending.tail.load(Relaxed), Relaxed);
        sending.piece.store(NO_PIECE, Relaxed);
        sending.full.store(0, Relaxed);
        sending.fast.store(1, Relaxed);
        self.end.note_sent_fast();
    }

    /// Whether the waiting flag is down. If not, what the caller is about to send on the kernel path wakes the reader
    /// that has raised it. Then this takes the flag for that send, and the next send tries to go up again.
    fn is_reader_awake(&self) -> bool {
        let (sending, waiting) = (&self.end.sending, &self.channel.outgoing().flags.waiting);
        let word = waiting.load(Acquire);
        if word != 0 && !Flag(word).is_absent() && !Flag(word).is_ringing() {
            // This comes first: if the thread is killed or cancelled in between, a sleeper must not be without its
            // flag.
            sending.flag_taken.store(word, Relaxed);
            let _ = waiting.compare_exchange(word, 0, AcqRel, Relaxed);
            sending.tries.store(0, Relaxed);
        }
        word == 0
    }

    /// A kernel send is over. If the waiting flag was taken for it, and it has `sent` nothing, the flag goes up again.
    pub(super) fn restore_flag(&self, sent: bool) {
        let took = &self.end.sending.flag_taken;
        if took.load(Relaxed) != 0
            && let word @ 1.. = took.swap(0, AcqRel)
            && !sent
        {
            let _ = self.channel.outgoing().flags.waiting.compare_exchange(0, word, AcqRel, Relaxed);
        }
    }

    /// Turns off Nagle's algorithm and TCP_CORK, which would hold doorbells back. The program still sees what it has
    /// set.
    fn let_bells_pass(&self) {
        for (name, kept, value) in [(libc::TCP_NODELAY, &self.end.no_delay, 1), (libc::TCP_CORK, &self.end.cork, 0)] {
            let before = kernel::int_option(self.fd, libc::IPPROTO_TCP, name).unwrap_or(0);
            kept.store((before != 0).into(), Relaxed);
            let _ = kernel::set_int_option(self.fd, libc::IPPROTO_TCP, name, value);
        }
    }

    /// Whether a doorbell can tell the other end that this end goes down. The other end takes no doorbell as long as it
    /// has not received since it got its channel, and if it goes down itself.
    pub(super) fn can_wake(&self) -> bool {
        let entered = self.enter_sending();
        let can = self.sends_fast() || entered != Entered::Nested && self.try_up(GoUp::ToWake);
        self.end.sending.lock.exit(entered);
        can
    }

    /// Goes down for good. If that does not succeed until `until` (CLOCK_MONOTONIC, ns), the next send does it. With
    /// `wake`, or while something is unread here, the other end finds out at once, however it waits.
    pub(super) fn go_down_for_good(&self, reason: Reason, wake: bool, until: u64) {
        // If this end leaves something unread later, the other end has to be woken to give it back. That takes a
        // direction that is up, or whose mark of going down the other end has passed: a sleeper passes it now.
        let wake = wake || self.has_something();
        self.step_down(reason, wake, || self.end.pin_sending(), until);
    }

    /// Goes down for good without a doorbell, for an end whose process has the other end as well.
    pub(super) fn go_down_unnoticed(&self, reason: Reason) {
        self.step_down(reason, false, || self.end.pin_sending(), u64::MAX);
    }

    /// Goes down as [`Port::go_down_for_good`] does, but the direction may go up again.
    pub(super) fn go_down_for_now(&self, reason: Reason, wake: bool) {
        self.step_down(reason, wake, || {}, u64::MAX);
    }

    /// Goes down. `pin` is called inside the lock, once the doorbell is announced.
    fn step_down(&self, reason: Reason, wake: bool, pin: impl Fn(), until: u64) {
        let sending = &self.end.sending;
        let entered = self.enter_sending();
        // On top of a send of this thread the path stays as it is. That send, or the next, finds that the connection is
        // pinned.
        let nested = entered == Entered::Nested;
        // The mark counts the doorbell that wakes. So the reader throws it away, however late it comes. Behind the FIN
        // none comes.
        let mut is_bell_due = wake
            && !nested
            && !self.has_sent_fin()
            && (self.sends_fast() || self.try_up(GoUp::ToWake))
            && self.announce_bell_unless_away();
        pin();
        let (began, mut has_made_room) = (ticks(), false);
        while !nested && self.sends_fast() {
            let descent = self.go_down_and_wake(reason, &mut is_bell_due);
            if descent == Descent::Down {
                break;
            }
            if descent == Descent::NoRoom && !core::mem::replace(&mut has_made_room, true) {
                self.make_kernel_room();
                continue;
            }
            // The reader is inside a receive that does not wait: it will soon be out, if it lives.
            if !self.kernel_says_alive() {
                sending.fast.store(0, Relaxed);
            } else if descent == Descent::ReaderInside && self.is_stuck(began, LIES_US) {
                self.break_off();
                break;
            }
            if nanoseconds() > until {
                break;
            }
            nap(50);
        }
        if is_bell_due {
            self.send_surely(&[0]);
        }
        if self.end.stage() != Stage::Broken {
            self.end.set_reason(reason);
        }
        sending.lock.exit(entered);
    }

    /// Goes down.
    pub(super) fn go_down(&self, reason: Reason) -> Descent {
        self.go_down_and_wake(reason, &mut false)
    }

    /// Goes down, with an announced doorbell behind the mark if `is_bell_due`.
    fn go_down_and_wake(&self, reason: Reason, is_bell_due: &mut bool) -> Descent {
        if self.end.is_remote() {
            return self.fall(reason);
        }
        let sending = &self.end.sending;
        let sender = self.sender();
        if sender.used(true).is_err() {
            self.break_off();
            return Descent::Down;
        }
        if self.reader_is_absent() && !*is_bell_due {
            match self.give_back() {
                Gave::Nothing => {}
                Gave::Part => return Descent::NoRoom,
                Gave::All => return Descent::Down,
            }
        }
        // The tail is read last, because a handler's send moves it on.
        let (mark, head) = (sending.mark.load(Relaxed), sending.seen_head.load(Acquire));
        let passed = ring::distance(mark, head) <= ring::distance(mark, sending.tail.load(Relaxed));
        // What a handler sends behind the mark must not go into the ring.
        let left = kernel::undisturbed(|| {
            let words = self.channel.outgoing();
            words.sender.switching.swap(1, SeqCst);
            // SeqCst: the mark of going up was published before. A reader that raises `in_kernel` later has seen it.
            let left = match words.flags.in_kernel.load(SeqCst) {
                LEAVING => None,
                1.. if !passed => None,
                _ => {
                    sender.mark(Record::Down(self.bells_since_up()));
                    let left = self.reader_is_absent();
                    // The doorbell goes before any data: the reader tells data from doorbells by their number alone.
                    *is_bell_due = *is_bell_due
                        && kernel::send(self.fd, &[0]).inspect_err(|&error| self.keep_failure(error)).is_err();
                    if !left {
                        sending.fast.store(0, Relaxed);
                    }
                    Some(left)
                }
            };
            words.sender.switching.store(0, Release);
            left
        });
        let Some(left) = left else { return Descent::ReaderInside };
        if core::mem::take(is_bell_due) {
            self.send_surely(&[0]);
        }
        if left && self.give_back() != Gave::Nothing {
            return if self.sends_fast() { Descent::NoRoom } else { Descent::Down };
        }
        if left {
            // The reader was away, and is back: behind the mark the stream goes on in the kernel.
            sending.fast.store(0, Relaxed);
        }
        sending.tries.store(0, Relaxed);
        sending.outran.store(u32::from(!passed && reason == Reason::RingFull), Relaxed);
        self.end.set_reason(reason);
        // No doorbell is sent for the mark itself: the data that follows wakes sleepers, but not those that doze.
        self.rouse_other();
        Descent::Down
    }
}

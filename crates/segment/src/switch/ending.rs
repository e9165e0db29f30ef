//! An end shuts down or is closed. What lies in the rings, and doorbells on their way, must not change how the
//! connection ends.

use super::doze::wake_dozers;
use super::entering::Beside;
use super::{Port, micros};
use crate::clock::{give_way, nap, ticks};
use crate::end::{SHUT_OUT, Stage};
use crate::kernel;
use crate::lock::Entered;
use crate::sync::{AcqRel, Relaxed, SeqCst, fence};
use crate::words::{ABSENT, ALONE, GIVEN, GIVING, SHUT};

/// How long a close waits for a doorbell that is on its way. A sender that was stopped at that point never sends it.
const BELL_PATIENCE_US: u64 = 1_000_000;

/// How long the close waits without a sleep.
const BELL_PROMPT_US: u64 = 100;

impl Port<'_> {
    /// The program is about to shut down this direction, or to close the socket. What an absent reader has left in the
    /// ring is given back now, because nothing can follow behind the FIN.
    pub fn end_sending(&self) {
        // SeqCst: this end says that it ends, then looks. A reader that leaves says so, then looks.
        self.channel.outgoing().sender.ended.swap(1, SeqCst);
        self.rouse_other();
        if self.end.is_remote() {
            self.fall_before_end();
        }
        self.await_departure();
        self.give_back_at_end();
        self.tap_end();
    }

    /// Whether this end has [said](Port::end_sending) that it ends this direction.
    pub fn has_said_end(&self) -> bool {
        self.channel.outgoing().sender.ended.load(SeqCst) != 0
    }

    /// Shuts down this direction, by `shut`, while no thread sends. What is in the ring comes before the FIN, and the
    /// kernel refuses what is sent afterwards. Beside a send that was stopped this is done all the same.
    pub fn between_sends(&self, shut: impl FnOnce() -> i32) -> i32 {
        let lock = &self.end.sending.lock;
        kernel::undisturbed(|| {
            let entered = lock.owner() != self.me && lock.enter_if_free(self.me);
            let answer = shut();
            if answer == 0 {
                self.end.pin_sending();
            }
            if entered {
                lock.exit(Entered::Alone);
            }
            answer
        })
    }

    /// Whether the kernel has sent this direction's FIN. What is put into the ring then comes too late.
    pub(super) fn has_sent_fin(&self) -> bool {
        self.end.shut.load(Relaxed) & SHUT_OUT != 0
            && kernel::counters(self.fd).is_ok_and(|it| !matches!(it.state, kernel::ESTABLISHED | kernel::CLOSE_WAIT))
    }

    /// The program is about to shut down the second of both directions. What is sent to it from now on goes to its
    /// kernel.
    pub fn prepare_to_shut(&self) {
        let flags = &self.channel.incoming().flags;
        let _ = flags.closed.compare_exchange(0, SHUT, AcqRel, Relaxed);
        self.ask_for_down();
        self.await_arrivals();
    }

    /// The socket is about to be closed here. If everything was read, no doorbell may lie unread in the kernel, which
    /// would answer the close with a reset. `last`: no other process has the socket. Otherwise the flag stays up for
    /// the others. There may be none: a process that was killed, or executed a program, may still be counted.
    pub fn prepare_to_close(&self, last: bool) {
        // Another process goes on with the socket, so nothing of this has to be.
        if !last && self.end.reading.lock.may_await_this_process(self.me) {
            return;
        }
        self.with_reading(|beside| {
            // A process that comes for the end meanwhile counts its reference before it takes this lock.
            let last = last && !self.end.owners.are_several();
            // Another family may have taken the end over meanwhile.
            if beside == Beside::Nobody && self.end.stage() == Stage::Joined {
                self.pass_marks();
                self.await_last_bells(last);
            }
        });
    }

    fn await_last_bells(&self, last: bool) {
        let reading = &self.end.reading;
        // No process comes for the end any more, so no process wants doorbells.
        let ends = last && !self.end.owners.is_lent();
        if ends {
            // From now on no doorbell is sent, except a doorbell that was announced before.
            self.refuse_bells();
            self.pass_marks();
        }
        let is_anothers = !last && reading.resting.number() > ALONE;
        if self.receives_fast() && (self.has_something() || is_anothers) {
            return;
        }
        if last {
            self.quit_group();
        }
        if self.receives_fast() && last {
            let waiting = &self.channel.incoming().flags.waiting;
            wake_dozers(waiting, waiting.fetch_and(ABSENT | GIVING | GIVEN, AcqRel));
            reading.armed.store(0, Relaxed);
        }
        self.await_last(|| {
            if ends {
                // A doorbell that tells of a mark is announced before the mark is there.
                self.pass_marks();
            }
            if self.receives_fast() {
                if last {
                    self.clear_bells()
                } else {
                    self.clear_bells_beside()
                }
                self.owed() > 0 && !self.has_something()
            } else {
                self.discard_bells_aside();
                reading.to_discard() > 0
            }
        });
    }

    /// This end has said that it shuts down both ways. It awaits the doorbells that are on their way, before its kernel
    /// answers them with a reset.
    fn await_arrivals(&self) {
        self.await_last(|| {
            let owed = self.owed();
            let before = || if self.receives_fast() { 0 } else { self.kernel_limit().ok().flatten().unwrap_or(0) };
            owed > 0 && kernel::inq(self.fd).is_ok_and(|queued| (queued as usize) < owed.saturating_add(before()))
        });
    }

    /// Waits as long as an announced doorbell `is_missing`, if its sender lives.
    fn await_last(&self, is_missing: impl Fn() -> bool) {
        // This end publishes what it has read, and what it says, before it looks for doorbells: see `send_bell_if`.
        fence(SeqCst);
        let began = ticks();
        loop {
            // This comes before the last look: what came before the end of the stream is there by then.
            let waited = ticks().wrapping_sub(began);
            let over = waited > micros(BELL_PATIENCE_US) || waited > micros(BELL_PROMPT_US) && self.has_ended();
            if !is_missing() || over {
                break;
            }
            if waited > micros(BELL_PROMPT_US) { nap(20) } else { give_way() }
        }
    }
}

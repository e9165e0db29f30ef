//! A thread sleeps until something arrives: a receive, which has the lock meanwhile, or a poll of the kernel's.
#![allow(unsafe_code, reason = "takes a doorbell from the kernel, or looks at a byte there")]

use super::entering::Beside;
use super::take::Taken;
use super::{Patience, Port, ReaderState, Ready};
use crate::clock::nap;
use crate::lock::Entered;
use crate::raw::{Answer, is_quiet};
use crate::sync::{Relaxed, Release, pause};
use crate::words::ALONE;
use crate::{kernel, tap};

/// A receive that has to put something on the kernel path before it sleeps tries so often.
const GIVE_EVERY_US: u32 = 100;

/// Whether a poll of the kernel's may sleep on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// All that arrives wakes it.
    Yes,
    /// There is something already.
    No,
    /// Another thread sleeps in a receive on the same socket and may take the doorbell. The poll has to look again
    /// soon.
    Briefly,
}

impl Port<'_> {
    /// A receive that first slept at `since` sleeps in the kernel until something arrives, or as long as `patience`
    /// says.
    pub(super) fn sleep(&mut self, patience: Patience, since: u64) -> Taken {
        let reading = &self.end.reading;
        // The other end may have left unread the very bytes that it is to answer, and the thread that was to give them
        // back may have been killed.
        if !self.give_back_before_sleep() {
            // The kernel has no room for the rest, and does not say here when it has.
            nap(GIVE_EVERY_US);
            return Taken::Nothing;
        }
        if let Some(taken) = self.doze_in_receive(patience) {
            return taken;
        }
        if self.end.is_away() && !is_quiet() && !self.has_been_given_all() {
            (self.waiting.keep_socket)(self);
            // Its descriptor may have been closed.
            if self.fd >= 0 {
                return self.wait_while_away(patience, since);
            }
        }
        if !self.arm(ALONE) && !self.awaits_rest() {
            return Taken::Nothing;
        }
        self.end.sleeps.fetch_add(1, Relaxed);
        tap::let_go();
        // If the bytes that come may be data, or a doorbell for which a poll of the kernel's or a sleep below in this
        // thread waits too, then this only looks at them and leaves them there.
        let above = reading.lock.fall_asleep();
        (self.waiting.keep_socket)(self);
        let takes = self.receives_fast() && !above && !self.end.is_watched() && !self.end.is_remote();
        // A signal handler may have received, before it could know that this thread is about to sleep.
        let got = if takes {
            // SAFETY: the buffer is `take_bells`'.
            let sleep = |_, to, len| unsafe { (self.waiting.recv)(self, to, len, 0, patience) };
            self.in_kernel(|| {
                let got = self.is_armed().then(|| self.take_bells(1, sleep));
                reading.lock.wake(above);
                got
            })
        } else {
            let got = self.is_armed().then(|| {
                let mut byte = 0u8;
                // SAFETY: one writable byte.
                unsafe { (self.waiting.recv)(self, &mut byte, 1, libc::MSG_PEEK, patience) }
            });
            reading.lock.wake(above);
            got
        };
        (self.waiting.keep_socket)(self);
        if takes {
            self.note_flag();
        }
        match self.reader_state() {
            // The thread that set out to leave beside this sleep was killed.
            ReaderState::Leaving => self.forget_ring(Beside::Nobody, u64::MAX),
            ReaderState::Absent if takes => kernel::undisturbed(|| self.keep_early_data()),
            ReaderState::Ring | ReaderState::Kernel | ReaderState::Absent => {}
        }
        match got {
            Some(Ok(n)) if self.end.is_remote() && self.receives_fast() => self.wake_in_remote(n),
            Some(Ok(0)) => Taken::EndOfStream,
            Some(Ok(_)) => {
                if !takes && self.receives_fast() && !self.has_something() {
                    // The doorbell was for what has been read already.
                    if above {
                        self.arm(ALONE);
                    } else {
                        self.take_over_bells();
                    }
                }
                Taken::Nothing
            }
            Some(Err(e)) => self.verdict(e),
            None => Taken::Nothing,
        }
    }

    /// Ends a sleep from which this thread does not come back: it is cancelled, or a signal handler jumps away.
    pub fn abandon_sleep(&self) {
        let reading = &self.end.reading;
        if reading.lock.owner() != self.me {
            return;
        }
        self.count_for_below();
        reading.taking.store(0, Relaxed);
        reading.lock.wake(false);
        reading.receiver.store(0, Relaxed);
        self.channel.incoming().flags.in_kernel.store(0, Release);
        reading.lock.exit(Entered::Alone);
    }

    /// Before the caller sleeps in a poll of the kernel's, makes sure that all that arrives wakes it: by a doorbell
    /// ([`ALONE`]), or by the group of this number.
    pub fn prepare_to_sleep(&self, number: u32) -> Sleep {
        self.return_to_ring();
        self.end.watch();
        self.asks_again(false);
        let given = self.give_back_before_sleep();
        self.with_reading(|beside| {
            if beside == Beside::Sleeper {
                return if self.ready() == Ready::Yes { Sleep::No } else { Sleep::Briefly };
            }
            self.pass_marks();
            match self.arm_or_ask(number) {
                true if given && !self.end.is_away() => Sleep::Yes,
                // An end that is away may come back to something unread, of which nothing tells.
                true => Sleep::Briefly,
                false => Sleep::No,
            }
        })
    }

    /// Before this thread sleeps on the connection, it gives back what readers have left unread in this ring and in
    /// those of its process's other connections. False if the kernel has no room for all of it yet, or another thread
    /// is sending there, or this end itself awaits what is given back: the thread has to come again.
    pub(super) fn give_back_before_sleep(&self) -> bool {
        if self.end.is_remote() {
            return self.fall_before_sleep();
        }
        let (now, seen) = (self.channel.departures(), &self.end.departures);
        if seen.load(Relaxed) != now {
            if !(self.waiting.give_back_everywhere)() {
                return false;
            }
            seen.store(now, Relaxed);
        }
        self.give_back_unless_busy() && self.has_what_was_left()
    }

    /// Waits until the thread that sleeps in a receive wakes. To the program this is a sleep in a receive, too.
    #[cold]
    pub(super) fn wait_behind_sleeper(&mut self, deadline: Option<u64>) -> Answer {
        if is_quiet() {
            pause();
            return Ok(0);
        }
        (self.waiting.keep_socket)(self);
        (self.waiting.call)(self, &|| self.end.reading.lock.sleep_behind(deadline))
    }
}

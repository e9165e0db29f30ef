//! The waiting flag at the reader. A thread raises it before it sleeps, and for other threads that sleep.

use super::doze::wake_dozers;
use super::{Port, Ready, micros};
use crate::clock::{give_way, ticks};
use crate::kernel;
use crate::sync::{Acquire, Relaxed, SeqCst, fence};
use crate::words::{ALONE, Flag, RINGING, Raised};

impl Port<'_> {
    /// Raises the waiting flag to `number`, so that a doorbell comes for what is published next. True if the ring is
    /// still empty then. Earlier doorbells have done their work then, and are taken, unless they woke a group: the
    /// group takes its own.
    pub(super) fn arm(&self, number: u32) -> bool {
        let reading = &self.end.reading;
        let waiting = &self.channel.incoming().flags.waiting;
        let number = if reading.lock.is_asleep() { ALONE } else { number };
        let mut owed = self.owed();
        self.note_flag();
        let armed = reading.armed.load(Relaxed);
        let flag = Flag(waiting.load(Relaxed));
        // A flag that is neither down nor as it was raised would keep a sleep from beginning for ever.
        let is_lie = armed == ALONE && !flag.is_absent() && !matches!(flag.raised(), Raised::Down | Raised::Alone);
        let number = if is_lie { ALONE } else { number };
        // A doorbell of a reader's own wakes a group as well. A group's doorbell may go to another socket, and does not
        // wake a single reader.
        if is_lie || armed != number && armed != ALONE {
            reading.armed.store(number, Relaxed);
            let raise = |now| Some(Flag(now)).filter(|now| !now.is_absent()).map(|now| now.raised_to(number));
            if let Ok(before) = waiting.fetch_update(SeqCst, Relaxed, raise) {
                wake_dozers(waiting, before);
            }
        }
        // The flag is up before this end looks at the ring. The sender publishes before it looks at the flag.
        fence(SeqCst);
        if self.has_something() {
            return false;
        }
        while self.receives_fast() && owed > 0 && reading.resting.number() <= ALONE {
            match self.take_bells_of_idle(owed) {
                Ok(taken @ 1..) => owed -= taken.min(owed),
                _ => break,
            }
        }
        !self.has_something()
    }

    /// Raises the waiting flag to `number`. True if nothing can be read then, but what the kernel reports itself.
    pub(super) fn arm_or_ask(&self, number: u32) -> bool {
        self.arm(number) || (!self.receives_fast() && self.ready() == Ready::AskKernel)
    }

    /// Whether a doorbell comes for what is published from now on, and the ring is empty.
    pub(super) fn is_armed(&self) -> bool {
        let flag = Flag(self.channel.incoming().flags.waiting.load(SeqCst));
        (flag.raised() == Raised::Alone || flag.is_absent()) && !self.has_something() || self.awaits_rest()
    }

    /// Notes whether the sender has taken the waiting flag.
    pub(super) fn note_flag(&self) {
        let reading = &self.end.reading;
        let flag = self.flag();
        // A reader that dozes raises the flag only where it was down.
        let is_taken = || !flag.is_absent() && matches!(flag.raised(), Raised::Down | Raised::Dozing);
        if reading.armed.load(Relaxed) != 0 && is_taken() {
            reading.armed.store(0, Relaxed);
        }
    }

    /// The number to which the flag is raised for the sleepers that rely on it; 0 if there are none. If a signal
    /// handler runs on top of a sleep of this thread, that sleep relies on the flag: the kernel goes on with it without
    /// a look at the ring.
    pub(super) fn resting(&self) -> u32 {
        let reading = &self.end.reading;
        if reading.lock.is_asleep() { ALONE } else { reading.resting.number() }
    }

    /// Other sleepers rely on the waiting flag, which this receive may have used up.
    #[cold]
    pub(super) fn rest_again(&self) {
        let reading = &self.end.reading;
        self.note_flag();
        let number = self.resting();
        if number != 0 && reading.armed.load(Relaxed) == 0 && !self.arm(number) && reading.resting.number() != 0 {
            reading.resting.set_stray(true);
        }
    }

    /// A receive that does not wait is about to say that there is nothing. If no call of the library watches the
    /// socket, the program may wait by system calls of its own, and needs a doorbell for what comes. False if something
    /// has come.
    pub(super) fn is_still_nothing(&self) -> bool {
        if !self.end.is_watched() {
            self.end.watch_unseen();
        }
        if !self.end.is_watched_unseen() {
            return true;
        }
        self.asks_again(true);
        // While the flag stays up, a doorbell comes for what is published.
        let armed = self.end.reading.armed.load(Relaxed) == ALONE;
        armed && self.channel.incoming().flags.waiting.load(Relaxed) == ALONE || self.arm_or_ask(ALONE)
    }

    /// Says whether this end may ask again and again rather than sleep.
    pub(super) fn asks_again(&self, again: bool) {
        let word = &self.channel.incoming().flags.asks_again;
        if (word.load(Relaxed) != 0) != again {
            word.store(again.into(), Relaxed);
        }
    }

    /// No set of this process asks for this connection any more. A doorbell of the group's on this socket would wake no
    /// thread, and the sender would take the group for woken. This takes the group's number out of the flag, and
    /// returns once no such doorbell is on its way.
    ///
    /// The group of another process that has the socket too, such as the parent, goes on relying on its number.
    pub fn quit_group(&self) {
        /// A sender that is stopped at this point sends no doorbell. A sender that waits for room has it sooner.
        const PATIENCE_US: u64 = 300_000;
        let waiting = &self.channel.incoming().flags.waiting;
        let began = ticks();
        let mut word = waiting.load(SeqCst);
        let is_anothers = |number| self.channel.is_anothers_group(number, kernel::marked_process_id());
        let is_in_group = |flag: Flag| match flag.raised() {
            Raised::Group(number) => !is_anothers(number),
            Raised::Down | Raised::Alone | Raised::Dozing => flag.is_ringing(),
        };
        while !Flag(word).is_absent() && is_in_group(Flag(word)) {
            let alone = if Flag(word).raised() == Raised::Alone { ALONE } else { 0 };
            let over = ticks().wrapping_sub(began) > micros(PATIENCE_US);
            let down = if over { alone } else { alone | word & RINGING };
            if down == word {
                give_way();
                word = waiting.load(Acquire);
            } else {
                word = waiting.compare_exchange(word, down, SeqCst, Acquire).map_or_else(|now| now, |_| down);
            }
        }
    }
}

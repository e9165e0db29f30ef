//! The reader passes the marks by which the sender switches the path.
//!
//! The mark of going up is passed once everything was read that comes before it on the kernel path. The mark of going
//! down is passed once the ring was read up to it.

use super::Port;
use super::entering::Beside;
use crate::kernel;
use crate::lock::Entered;
use crate::reason::Reason;
use crate::ring::{self, Fault, Place, Record};
use crate::sync::{Acquire, Relaxed, Release, SeqCst};
use crate::words::{ALONE, RECEIVING};

impl Port<'_> {
    /// The next record at or behind `position` that is no filler, and where it lies.
    pub(super) fn front_from(&self, mut position: u64) -> Result<(u64, Record), Fault> {
        let ring = self.incoming();
        // An honest sender writes at most a few fillers in a row.
        for _ in 0..8 {
            match ring.record(position)? {
                filler @ (Record::Skip | Record::Pad(_)) => position = ring.behind(position, filler),
                record => return Ok((position, record)),
            }
        }
        Err(Fault)
    }

    /// The next record from the head on that is no filler, and where it lies. Once this end is absent, it finds
    /// nothing, whatever the sender may have left there.
    pub(super) fn front(&self) -> Result<(u64, Record), Fault> {
        let head = self.place().head;
        if self.is_absent() { Ok((head, Record::Empty)) } else { self.front_from(head) }
    }

    pub(super) fn ahead(&self) -> Result<Record, Fault> {
        Ok(self.front()?.1)
    }

    pub(super) fn has_something(&self) -> bool {
        let published = self.incoming().published(self.place().head);
        published && !matches!(self.ahead(), Ok(Record::Empty)) || self.end.reading.stash.load(Relaxed) > 0
    }

    /// Bytes of the kernel stream that come before the ring. `None`: no mark says how many.
    pub(super) fn kernel_limit(&self) -> Result<Option<usize>, Fault> {
        if self.end.is_remote() {
            return Ok(None);
        }
        match self.ahead()? {
            Record::Empty => Ok(None),
            Record::Up(up) => {
                let position = self.kernel_position();
                up.checked_sub(position).map(|n| Some(n as usize)).ok_or(Fault)
            }
            _ => Err(Fault),
        }
    }

    /// Passes the mark of going up if everything was read that comes before it.
    fn pass_up(&self) -> bool {
        kernel::undisturbed(|| {
            let stash = self.end.reading.stash.load(Relaxed);
            let reached = !self.receives_fast() && stash == 0 && matches!(self.kernel_limit(), Ok(Some(0)));
            if reached {
                self.enter_fast(0);
            }
            reached
        })
    }

    /// Passes the mark of going down that lies next, unless a signal handler of this thread has, or the sender has
    /// taken it back.
    pub(super) fn pass_down(&self) -> Result<(), Fault> {
        kernel::undisturbed(|| {
            if let (head, Record::Down(bells)) = self.front_from(self.place().head)?
                && self.receives_fast()
            {
                self.enter_kernel(head, bells);
            }
            Ok(())
        })
    }

    /// Passes the mark of going up, having read the kernel up to it and `bells` doorbells beyond.
    pub(super) fn enter_fast(&self, bells: u64) {
        let reading = &self.end.reading;
        let mut head = self.front().map_or(self.place().head, |(head, record)| self.incoming().behind(head, record));
        if self.is_given_first() {
            head = self.pass_given_first(head);
        }
        self.begin_counting_bells();
        if self.end.is_remote() {
            self.note_entrance();
        }
        reading.fast.store(1, Relaxed);
        reading.place.store(Place { head, consumed: 0 }.pack(), Relaxed);
        self.channel.incoming().head.head.store(head, Release);
        self.count_bells(bells);
        reading.kept_from.store(reading.all_bells.load(Relaxed), Relaxed);
        self.end.note_received_fast();
    }

    /// Passes a mark of going up: the mark of going down says how many doorbells come from here on.
    pub(super) fn begin_counting_bells(&self) {
        let reading = &self.end.reading;
        reading.bells_before_up.store(reading.all_bells.load(Relaxed), Relaxed);
    }

    /// Passes the mark of going down at `head`, unless the sender has taken it back: `bells` doorbells come before the
    /// data in the kernel.
    pub(super) fn enter_kernel(&self, head: u64, bells: u64) {
        let reading = &self.end.reading;
        let ring = self.incoming();
        if !ring.pass_down(head) {
            return;
        }
        let taken = self.bells_taken();
        if let Some(data) = taken.checked_sub(bells).filter(|&n| n > 0) {
            // What is not kept was taken by a receive of another thread, which an execution of a program ended. It
            // belongs to that receive.
            let kept = data.min(self.kept() as u64);
            reading.mistaken.fetch_add(data - kept, Relaxed);
            self.stash_last(kept);
        } else {
            reading.discard(bells - taken);
        }
        reading.fast.store(0, Relaxed);
        let head = ring.behind(head, Record::Down(0));
        reading.place.store(Place { head, consumed: 0 }.pack(), Relaxed);
        self.channel.incoming().head.head.store(head, Release);
        // The other end may have gone down because it left its own ring. A thread that sends meanwhile finds that out
        // itself.
        self.give_back_unless_busy();
    }

    /// Passes the marks under the head, and throws away the doorbells before kernel data. Then the kernel's own
    /// readiness is the truth.
    pub(super) fn pass_marks(&self) {
        if self.end.is_remote() {
            return self.pass_remote_marks();
        }
        for _ in 0..4 {
            let word = self.end.reading.place.load(Relaxed);
            match self.front() {
                // The direction is up already. A poll would find neither something to read nor nothing.
                Ok((_, Record::Up(_))) if self.receives_fast() && self.is_at(word) => {
                    self.fault();
                    break;
                }
                Ok((_, Record::Down(_))) if self.receives_fast() => {
                    if self.pass_down().is_err() {
                        self.fault();
                    }
                }
                Ok((_, Record::Up(_))) if !self.receives_fast() && self.pass_up() => {}
                _ => break,
            }
        }
        if !self.receives_fast() && self.end.reading.stash.load(Relaxed) == 0 {
            self.discard_bells_aside();
        }
    }

    /// Passes the marks under the head, for a thread outside the lock, before it asks the kernel for readiness.
    pub fn pass_due_marks(&self) {
        self.with_reading(|beside| {
            if beside == Beside::Nobody {
                self.pass_marks();
            }
        });
    }

    /// If the sender has gone down behind what lies in the ring from `from` on: where its mark lies, and how many
    /// doorbells it names.
    pub(super) fn down_behind(&self, from: u64) -> Option<(u64, u64)> {
        let ring = self.incoming();
        let mut position = from;
        while ring::distance(from, position) <= ring.capacity() {
            position = match ring.record(position).ok()? {
                Record::Down(bells) => return Some((position, bells)),
                Record::Empty | Record::Up(_) => return None,
                record => ring.behind(position, record),
            };
        }
        None
    }

    /// Whether everything was read that comes before the ring, which begins at position `up` of the kernel stream.
    pub(super) fn has_reached(&self, up: u64) -> bool {
        let reading = &self.end.reading;
        if self.end.is_remote() {
            return !self.receives_fast() && up == self.end.remote.awaited.load(Relaxed) && up != 0;
        }
        !self.receives_fast() && up == self.kernel_position() && reading.to_discard() == 0
    }

    /// Whether doorbells, or data that was sent before the sender went up, are still to come by the kernel. If a mark
    /// lies, they never come.
    pub(super) fn awaits_rest(&self) -> bool {
        let reading = &self.end.reading;
        if self.end.is_remote() {
            return self.receives_fast() && matches!(self.ahead(), Ok(Record::Up(_)));
        }
        let awaits = || reading.to_discard() > 0 || matches!(self.kernel_limit(), Ok(Some(1..)));
        !self.receives_fast() && reading.stash.load(Relaxed) == 0 && awaits()
    }

    /// Does `what`, which receives from the kernel, with `in_kernel` raised: meanwhile the sender does not switch the
    /// path unseen.
    pub(super) fn in_kernel<T>(&self, what: impl FnOnce() -> T) -> T {
        let (reading, flag) = (&self.end.reading, &self.channel.incoming().flags.in_kernel);
        // On top of another receive of this thread, the flag stays up for that receive.
        let nested = reading.receiver.load(Relaxed) == self.me;
        reading.receiver.store(self.me, Relaxed);
        flag.swap(RECEIVING, SeqCst);
        let done = what();
        if !nested {
            reading.receiver.store(0, Relaxed);
            flag.store(0, Release);
        }
        done
    }

    /// Whether the direction is about to change its path, or has changed it just now.
    pub(super) fn is_at_switch(&self) -> bool {
        let reading = &self.end.reading;
        // The order matters: the mark is published before `switching` is 0 again.
        self.channel.incoming().sender.switching.load(Acquire) != 0
            || !matches!(self.ahead(), Ok(Record::Empty))
            || reading.stash.load(Relaxed) > 0
            || reading.to_discard() > 0
    }

    /// Makes all reads go through the library from now on, if no plain read is in progress. True if they do.
    pub fn become_ready(&self) -> bool {
        if self.end.read_gate.is_shut() {
            return true;
        }
        let reading = &self.end.reading;
        let entered = self.enter_reading();
        if entered == Entered::Asleep {
            return self.end.read_gate.is_shut();
        }
        // A handler must not receive between the looks at the position.
        let ready = self.end.read_gate.is_shut()
            || kernel::undisturbed(|| self.end.shut_gate(&self.end.read_gate) && self.declare_ready());
        reading.lock.exit(entered);
        ready
    }

    fn declare_ready(&self) -> bool {
        let flags = &self.channel.incoming().flags;
        self.end.reading.armed.store(ALONE, Relaxed);
        if self.end.is_remote() && self.end.is_pinned() {
            // A process without the library may have the socket, to which statements would be data.
        } else if let Some((position, true)) = self.read_position() {
            self.end.reading.kernel.store(position, Relaxed);
            self.publish_position();
            // SeqCst: this end says that it is ready, then looks whether the other end has left. The other end leaves,
            // then looks.
            flags.ready.swap(1, SeqCst);
            self.give_back_if_due();
        } else if !self.has_ended() {
            self.end.set_reason(Reason::Counters);
        }
        true
    }
}

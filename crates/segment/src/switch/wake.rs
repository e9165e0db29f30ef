//! The sender wakes the reader: it looks at the waiting flag after it has published, and sends a doorbell.
//!
//! The sender announces a doorbell before it sends it, and takes it back if nobody needs it. The reader takes doorbells
//! in `doorbell`.

use super::give::Gave;
use super::{AGAIN, Port, micros};
use crate::clock::{nap, ticks};
use crate::ring::{Fault, Record};
use crate::sync::{AcqRel, Relaxed, Release, SeqCst, fence, pause};
use crate::words::{DOZING, Direction, Flag, NO_MORE_BELLS, RINGING, Raised};
use crate::{kernel, wait};

/// A kernel acknowledges within 200 ms what it has received. What it does not acknowledge, it has no room for.
const ACKNOWLEDGED_WITHIN_US: u64 = 250_000;

/// A reader that asks again and again takes what is published within this time, if it is awake.
const AWAKE_US: u64 = 2;

impl Port<'_> {
    /// Wakes the reader if it sleeps. False if the reader is absent: then what is in the ring has gone the kernel path.
    #[inline]
    pub(super) fn wake_reader(&self) -> bool {
        // SeqCst: after the record was published, see `Sender::put`.
        self.channel.outgoing().flags.waiting.load(SeqCst) == 0 || self.is_taken_at_once() || self.wake()
    }

    /// Whether a reader that raised the flag was awake and has emptied the ring. It looks once more before it sleeps.
    #[cold]
    fn is_taken_at_once(&self) -> bool {
        let flags = &self.channel.outgoing().flags;
        if flags.asks_again.load(Relaxed) == 0 || flags.waiting.load(Relaxed) == DOZING || self.reader_is_absent() {
            return false;
        }
        let (sender, began) = (self.sender(), ticks());
        while sender.used(true) != Ok(0) {
            if ticks().wrapping_sub(began) > micros(AWAKE_US) {
                return false;
            }
            pause();
        }
        true
    }

    #[cold]
    fn wake(&self) -> bool {
        if self.end.is_remote() {
            self.rouse_daemon();
            return true;
        }
        let waiting = &self.channel.outgoing().flags.waiting;
        let mut rang = false;
        // Threads of an honest reader change its flag a few times meanwhile.
        for _ in 0..8 {
            let word = waiting.load(SeqCst);
            let ringing = word & RINGING;
            let take = |to| waiting.compare_exchange(word, to, AcqRel, Relaxed).is_ok();
            match Flag(word).raised() {
                _ if Flag(word).is_absent() => {
                    if self.give_back() != Gave::Nothing {
                        return false;
                    }
                }
                Raised::Down => return true,
                Raised::Dozing => {
                    if take(ringing) {
                        self.knock();
                        return true;
                    }
                }
                Raised::Alone => {
                    if !self.send_bell_if(|| self.is_awaited() && take(ringing)) && !self.is_awaited() {
                        return true;
                    }
                }
                // The woken thread may have run before this one: it has read all, and sleeps again.
                Raised::Group(_) if rang && !self.is_awaited() => return true,
                Raised::Group(number) => {
                    self.ring_group(number, ringing, take);
                    rang = true;
                }
            }
        }
        // A doorbell too many does no harm.
        self.send_bell_if(|| self.is_awaited());
        true
    }

    /// `ringing`: [`RINGING`] if a send below in this thread does the same, or 0.
    fn ring_group(&self, number: u32, ringing: u32, take: impl Fn(u32) -> bool) {
        // No honest reader uses a number that no group has.
        let Some(group) = self.channel.their_group(number) else {
            take(ringing);
            return;
        };
        let ring = || group.rung.fetch_or(1 << (self.channel.slot() & 63), SeqCst);
        // The flag is taken before the group is rung. A reader that was rung may have read, and sleep again with its
        // flag still up. A sender that took the flag only then would leave it down for what comes next. A set that goes
        // to sleep says so, and then looks whether a slot was rung. A sender does the two the other way round.
        if take(RINGING) {
            ring();
            // The set was awake when the flag was taken. It may have read and fallen asleep since, and rely on the
            // flag.
            if group.asleep.load(SeqCst) != 0 && group.asleep.swap(0, SeqCst) != 0 && !self.send_bell() {
                // Others ring the set for their connections.
                group.asleep.store(1, SeqCst);
            }
            if ringing == 0 {
                self.channel.outgoing().flags.waiting.fetch_and(!RINGING, Release);
            }
        }
    }

    /// Whether a doorbell is of use: something is unread, and the reader's kernel would not answer with a reset.
    fn is_awaited(&self) -> bool {
        !self.reader_has_shut() && self.has_unread()
    }

    /// Whether the other end may sleep in the kernel, and no doorbell is on its way there. A doze ends by itself.
    pub(super) fn reader_may_sleep(&self) -> bool {
        let flag = Flag(self.channel.outgoing().flags.waiting.load(SeqCst));
        let is_raised = matches!(flag.raised(), Raised::Alone | Raised::Group(_));
        is_raised && !flag.is_absent() && !self.awaits_answer()
    }

    /// Whether the other end has left something in the ring.
    pub(super) fn has_unread(&self) -> bool {
        self.sends_fast() && matches!(self.sender().used(true), Ok(1..)) && self.is_data_ahead()
    }

    pub(super) fn is_data_ahead(&self) -> bool {
        let sender = self.sender();
        let mut position = sender.seen_head.load(Relaxed);
        // The bytes in use may be a mark that the reader has not passed, or a few fillers in a row.
        for _ in 0..16 {
            match sender.ring.record(position) {
                Ok(Record::Data(_)) => return true,
                Ok(Record::Empty | Record::Down(_)) | Err(Fault) => break,
                Ok(record) => position = sender.ring.behind(position, record),
            }
        }
        false
    }

    /// Sends a doorbell. False when the reader [refuses](Port::announce_bell) it.
    #[cold]
    pub(super) fn send_bell(&self) -> bool {
        let announced = self.announce_bell();
        if announced {
            self.send_announced_bell();
        }
        announced
    }

    /// Announces a doorbell, then asks whether it `is_wanted`, and sends it or takes it back. A reader that is about to
    /// close does it the other way round (`prepare_to_close`): it publishes what it has read, and then waits for
    /// doorbells that are announced. So no doorbell comes to a socket that was closed with everything read. That
    /// socket's kernel would answer with a reset, and drop what it has sent.
    pub(super) fn send_bell_if(&self, is_wanted: impl FnOnce() -> bool) -> bool {
        let announced = self.announce_bell();
        fence(SeqCst);
        let wanted = is_wanted();
        match (wanted, announced) {
            (true, true) => self.send_announced_bell(),
            (false, true) => self.take_bell_back(),
            (_, false) => {}
        }
        wanted
    }

    /// As [`Port::send_bell_if`], but sends nothing to a reader that is away: see [`Port::announce_bell_unless_away`].
    pub(super) fn send_bell_unless_away(&self, is_wanted: impl FnOnce() -> bool) -> bool {
        let mut wanted = false;
        self.send_bell_if(|| {
            wanted = is_wanted();
            wanted && !self.reader_is_away()
        });
        wanted
    }

    /// Counts one more doorbell before it is sent. False when the reader wants no more, or has shut down both ways: its
    /// kernel would answer with a reset.
    pub(super) fn announce_bell(&self) -> bool {
        if self.end.is_remote() {
            return false;
        }
        let is_refused = self.channel.outgoing().sender.announced.fetch_add(1, AcqRel) & NO_MORE_BELLS != 0;
        // A reader says that it has shut down, and then waits for doorbells that are announced.
        fence(SeqCst);
        let wanted = !is_refused && !self.reader_has_shut();
        if !wanted {
            self.take_bell_back();
        }
        wanted
    }

    /// As [`Port::announce_bell`], unless the reader is away. A reader that comes back allows doorbells before it says
    /// that it is back, and may find then that this end gives back. It stays away, and would take the doorbell for
    /// data.
    pub(super) fn announce_bell_unless_away(&self) -> bool {
        // In this order: the reader allows doorbells first.
        if !self.announce_bell() {
            return false;
        }
        let is_away = self.reader_is_away();
        if is_away {
            self.take_bell_back();
        }
        !is_away
    }

    fn send_announced_bell(&self) {
        let began = ticks();
        loop {
            match kernel::send_bell(self.fd) {
                Ok(1) => {
                    self.end.bells_sent.fetch_add(1, Relaxed);
                    wait::rang();
                    return;
                }
                // The other end may have read what fills the buffer. Then the acknowledgement brings room.
                Err(AGAIN)
                    if ticks().wrapping_sub(began) < micros(ACKNOWLEDGED_WITHIN_US) && self.is_all_delivered() =>
                {
                    nap(50);
                }
                // Either the reader has plenty to wake up for, or it is gone.
                Ok(_) | Err(AGAIN) => return self.take_bell_back(),
                Err(error) => {
                    self.take_bell_back();
                    self.keep_failure(error);
                    return;
                }
            }
        }
    }

    fn take_bell_back(&self) {
        self.channel.outgoing().sender.announced.fetch_sub(1, Release);
    }

    /// Whether the other end's kernel was sent all that was put on the kernel path, and so refuses nothing for want of
    /// room.
    fn is_all_delivered(&self) -> bool {
        kernel::counters(self.fd).is_ok_and(|counters| counters.unsent == 0)
    }

    /// Doorbells announced since the direction last went up.
    pub fn bells_since_up(&self) -> u64 {
        let all = self.channel.outgoing().sender.announced.load(Relaxed) & !NO_MORE_BELLS;
        all.wrapping_sub(self.end.sending.announced_before_up.load(Relaxed))
    }

    /// Whether a doorbell is on its way, or lies unread. If the reader is killed then, its kernel resets the
    /// connection, which kernel TCP may not have done.
    pub(super) fn awaits_answer(&self) -> bool {
        let Direction { head, sender, .. } = self.channel.outgoing();
        sender.announced.load(Relaxed) & !NO_MORE_BELLS > head.bells_taken.load(Relaxed)
    }

    /// Sends on the kernel path, whether the socket blocks or not.
    pub(super) fn send_surely(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match kernel::send(self.fd, bytes) {
                Ok(n) => bytes = &bytes[n.min(bytes.len())..],
                Err(AGAIN) => nap(100),
                Err(error) => {
                    self.keep_failure(error);
                    return;
                }
            }
        }
    }
}

//! The sender wakes the reader: it looks at the waiting flag after it has published, and sends a doorbell.
//!
//! The sender announces a doorbell before it sends it, and takes it back if nobody needs it. The reader takes doorbells in
//! `doorbell`.

use super::give::Gave;
use super::{AGAIN, Port, micros};
use crate::clock::{nap, ticks};
use crate::ring::{Fault, Record};
use crate::sync::{AcqRel, Relaxed, Release, SeqCst, fence, pause};
use crate::words::{DOZING, Direction, Flag, NO_MORE_BELLS, RINGING, Raised};
use crate::{kernel, wait};

/// The kernel acknowledges what it has received within 200 ms. What it does not, its reader has no room for.
const ACKNOWLEDGED_WITHIN_US: u64 = 250_000;

/// A reader that asks again and again takes what is published within this time, if it is awake.
const AWAKE_US: u64 = 2;

impl Port<'_> {
    /// Wakes the reader if it sleeps. False when it has left the ring: then what is in it has gone the kernel path.
    #[inline]
    pub(super) fn wake_reader(&self) -> bool {
        // SeqCst: after the record was published, see `Sender::put`.
        self.link.outgoing().flags.waiting.load(SeqCst) == 0 || self.is_taken_at_once() || self.wake()
    }

    /// Whether the reader, having raised the flag, was awake and has emptied the ring: then it will look once more before it
    /// sleeps.
    #[cold]
    fn is_taken_at_once(&self) -> bool {
        let flags = &self.link.outgoing().flags;
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
        let waiting = &self.link.outgoing().flags.waiting;
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
                // Where the woken runs before its waker it may have read all, and rest again.
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

    /// `ringing`: [`RINGING`] if a send below in this very thread is doing the same, or 0.
    fn ring_group(&self, number: u32, ringing: u32, take: impl Fn(u32) -> bool) {
        // One that no reader has a number for is a hostile reader's.
        let Some(group) = self.link.their_group(number) else {
            take(ringing);
            return;
        };
        let ring = || group.rung.fetch_or(1 << (self.link.slot() & 63), SeqCst);
        // The flag is taken before the group is rung. A reader that was rung may have read, and rest again with its flag
        // still up: a sender that took it only then would leave nobody to ring for what comes next.
        // Who goes to sleep says so before it looks whether any was rung; here it is the other way round.
        if take(RINGING) {
            ring();
            // Awake when the flag was taken, it may have read and have fallen asleep since, and rely on the flag.
            if group.asleep.load(SeqCst) != 0 && group.asleep.swap(0, SeqCst) != 0 {
                self.send_bell();
            }
            if ringing == 0 {
                self.link.outgoing().flags.waiting.fetch_and(!RINGING, Release);
            }
        }
    }

    /// Whether anybody may have to be woken: something is unread, and the reader's kernel would not answer with a reset.
    fn is_awaited(&self) -> bool {
        !self.reader_has_shut() && self.has_unread()
    }

    /// Whether the other end has left something in the ring.
    pub(super) fn has_unread(&self) -> bool {
        self.sends_fast() && matches!(self.sender().used(true), Ok(1..)) && self.is_data_ahead()
    }

    pub(super) fn is_data_ahead(&self) -> bool {
        let sender = self.sender();
        let mut position = sender.seen_head.load(Relaxed);
        // What is in use may be a mark that the reader has not passed, or fillers: a few in a row.
        for _ in 0..16 {
            match sender.ring.record(position) {
                Ok(Record::Data(_)) => return true,
                Ok(Record::Empty | Record::Down(_)) | Err(Fault) => break,
                Ok(record) => position = sender.ring.behind(position, record),
            }
        }
        false
    }

    #[cold]
    pub(super) fn send_bell(&self) {
        if self.announce_bell() {
            self.send_announced_bell();
        }
    }

    /// Sends a doorbell if one `is_wanted`, which is asked once it is announced. A reader that is about to close looks the
    /// other way round (`prepare_to_close`): it says what it has read, and waits for what is announced then. So no doorbell comes to a
    /// socket that was closed with everything read, whose kernel would answer with a reset, and would drop what it has sent.
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

    /// Counts one more doorbell, before it is sent; false when the reader wants no more.
    pub(super) fn announce_bell(&self) -> bool {
        let wanted = self.link.outgoing().sender.announced.fetch_add(1, AcqRel) & NO_MORE_BELLS == 0;
        if !wanted {
            self.take_bell_back();
        }
        wanted
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
                // What fills the buffer may have been read: then its acknowledgement comes, and with it room.
                Err(AGAIN)
                    if ticks().wrapping_sub(began) < micros(ACKNOWLEDGED_WITHIN_US) && self.is_all_delivered() =>
                {
                    nap(50);
                }
                // Either the reader has plenty to wake up for, or it is gone. The kernel tells a reset once.
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
        self.link.outgoing().sender.announced.fetch_sub(1, Release);
    }

    /// Whether the other end's kernel was sent all that was put on the kernel path: it refuses nothing for want of room.
    fn is_all_delivered(&self) -> bool {
        kernel::counters(self.fd).is_ok_and(|counters| counters.unsent == 0)
    }

    /// Doorbells announced since the direction last went up.
    pub fn bells_since_up(&self) -> u64 {
        let all = self.link.outgoing().sender.announced.load(Relaxed) & !NO_MORE_BELLS;
        all.wrapping_sub(self.end.sending.announced_before_up.load(Relaxed))
    }

    /// Whether a doorbell is on its way, or lies unread. A reader that is killed then resets the connection, and nobody can
    /// tell whether kernel TCP would have done so.
    pub(super) fn awaits_answer(&self) -> bool {
        let Direction { head, sender, .. } = self.link.outgoing();
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

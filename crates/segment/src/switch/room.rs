//! Room in the ring: what a sender does that finds none.
//!
//! A send that blocks waits for room, and goes down when its reader has not moved for a while. A send that does not
//! block does the same, as long as the library does not know how the program waits for room. If the program waits by
//! calls of this library (poll, select, epoll), and the reader reads, such a send says EAGAIN, as on kernel TCP, and
//! the direction stays in the ring. A program that waits only for room, by poll or select, gets that answer only at the
//! beginning of a send: a send that has begun goes on by the kernel, whose buffer is larger. The reader does not report
//! the room that it makes: those calls look by themselves, at first every 100 us, then later and later. If the reader
//! has stopped, the direction goes down, because the kernel wakes without a look.

use super::{CHECK_EVERY_US, OVER, Port, micros};
use crate::clock::{give_way, nap, ticks, ticks_per_microsecond};
use crate::kernel;
use crate::lock::Entered;
use crate::raw::is_quiet;
use crate::reason::Reason;
use crate::ring::Fault;
use crate::sync::{Acquire, Relaxed, pause};

/// A send that blocks and finds the ring full goes down when the reader has not moved for so long.
const PATIENCE_US: u64 = 1000;
/// A send that does not block, or is about to say EAGAIN, goes down when the reader has not moved for so long.
const SHORT_PATIENCE_US: u64 = 20;

/// A send whose reader is on another host goes down when the reader has not moved for so long: its news travels.
const REMOTE_PATIENCE_US: u64 = if cfg!(test) { 20 } else { 5000 };

/// A send that blocks polls for room for so long. Then it naps, until half of the ring is free: a reader that is slower
/// than its sender makes room all the time, and a sender that polled for each message would have a processor for
/// itself.
const POLLS_US: u64 = 100;
/// A nap takes half of the time that the send has waited, but not less and not more than these.
const NAP_US: [u32; 2] = [50, 500];
/// A send that blocks goes down when it has waited for so long, whether the reader moves or not: the kernel then
/// answers for timeouts and signals.
const WAITS_US: u64 = 20_000;

/// A reader that has made no room for so long has stopped.
const STANDS_STILL_US: u64 = 100_000;
/// A wait for room looks again after half the time that it has lasted, but not before and not after these.
const LOOK_AFTER_US: [u64; 2] = [100, 5000];

pub(super) enum Room {
    Some,
    None,
    Fault,
}

impl Port<'_> {
    /// Waits until `enough` bytes are free; or until all that is `wanted` fits, unless that is more than a quarter of
    /// the ring.
    pub(super) fn wait_for_room(&self, enough: u64, wanted: usize, nonblocking: bool) -> Room {
        let sender = self.sender();
        let mut enough = enough.max((wanted as u64).min(sender.ring.capacity() / 4));
        let patience = match nonblocking {
            _ if self.end.is_remote() => micros(REMOTE_PATIENCE_US),
            true if self.is_full() => 0,
            true => micros(SHORT_PATIENCE_US),
            false => micros(PATIENCE_US),
        };
        let began = ticks();
        let mut since = began;
        let mut last = self.reader_at();
        let (mut alone, mut asked) = (since, false);
        loop {
            for _ in 0..16 {
                pause();
            }
            match sender.free(true) {
                Err(Fault) => return Room::Fault,
                Ok(free) if free >= enough => {
                    self.note_life();
                    return Room::Some;
                }
                Ok(_) => {}
            }
            let now = ticks();
            let at = self.reader_at();
            if at != last {
                (last, since) = (at, now);
                self.note_life();
            } else if now.wrapping_sub(since) > patience {
                return Room::None;
            } else if !asked && now.wrapping_sub(since) > micros(CHECK_EVERY_US) {
                asked = true;
                if kernel::poll_now(self.fd, libc::POLLRDHUP) & (OVER | libc::POLLRDHUP) == 0 {
                    self.note_life();
                }
            }
            let waited = now.wrapping_sub(began);
            if !nonblocking && waited > micros(POLLS_US) {
                if waited > micros(WAITS_US) {
                    return Room::None;
                }
                enough = enough.max(sender.ring.capacity() / 2);
                nap(((waited / ticks_per_microsecond() / 2) as u32).clamp(NAP_US[0], NAP_US[1]));
            } else if now.wrapping_sub(alone) > micros(10) {
                give_way();
                alone = ticks();
            }
        }
    }

    /// The ring is full for a send that does not block. Whether the program may be told so, and be told of room later.
    pub(super) fn refuse(&self) -> bool {
        if !self.is_full() {
            self.begin_refusing();
        }
        let may = (self.waiting.looks)(self) && self.is_looked_for() && self.stays_in_ring() && !self.has_stopped();
        if !may {
            self.told_of_room();
        }
        may
    }

    /// Whether the program was refused room and has put nothing into the ring since.
    fn is_full(&self) -> bool {
        let sending = &self.end.sending;
        sending.full.load(Relaxed) != 0 && sending.full_at.load(Relaxed) == sending.tail.load(Relaxed)
    }

    /// Whether a single poll, select or set watches the connection, which looks for room.
    fn is_looked_for(&self) -> bool {
        self.end.is_watched_by_one() && self.end.read_gate.is_shut() && !is_quiet()
    }

    /// Whether the direction is in the ring and has room again for a program that was refused some.
    pub fn has_room_again(&self) -> bool {
        self.stays_in_ring() && self.is_half_free()
    }

    /// Whether the direction is in the ring and has no such room.
    fn awaits_room(&self) -> bool {
        self.stays_in_ring() && !self.is_half_free()
    }

    /// Whether a program that asks for room is told of some. The ring has room if the next send puts something there,
    /// or, once the program was refused room, if half of the ring is free. On the kernel path the kernel tells.
    pub fn offers_room(&self) -> bool {
        if !self.is_full() {
            if !self.stays_in_ring() || self.is_free(self.sender().ring.enough_for_any()) {
                return true;
            }
            self.begin_refusing();
        }
        let offers = !self.keeps_waiting();
        if offers {
            self.told_of_room();
        }
        offers
    }

    /// Whether a program that was refused room in the ring has to wait on. If no call looks for room, or the reader has
    /// stopped, the direction goes down.
    pub fn keeps_waiting(&self) -> bool {
        if self.awaits_room() && (!self.is_looked_for() || self.has_stopped()) {
            self.go_down_for_room();
        }
        self.awaits_room()
    }

    /// The program is told of room.
    pub fn told_of_room(&self) {
        let full = &self.end.sending.full;
        if full.load(Relaxed) != 0 {
            full.store(0, Relaxed);
        }
    }

    fn is_half_free(&self) -> bool {
        self.is_free(self.sender().ring.capacity() / 2)
    }

    /// Whether so many bytes of the ring are free.
    fn is_free(&self, enough: u64) -> bool {
        let sender = self.sender();
        // The reader's published head is read only if the head that was last seen is not enough.
        [false, true].into_iter().any(|fresh| sender.free(fresh).is_ok_and(|free| free >= enough))
    }

    /// In how many nanoseconds a wait for room looks again; `None` if the direction has left the ring, or does so now,
    /// since the reader has stopped.
    pub fn looks_for_room_in(&self) -> Option<u64> {
        if !self.stays_in_ring() || self.reader_is_gone() {
            return None;
        }
        self.keeps_waiting();
        if !self.stays_in_ring() {
            return None;
        }
        let waited = ticks().saturating_sub(self.end.sending.full_since.load(Relaxed)) / ticks_per_microsecond();
        Some((waited / 2).clamp(LOOK_AFTER_US[0], LOOK_AFTER_US[1]) * 1000)
    }

    /// Goes down, because a thread waits for room and no call of this library can report room to it: the kernel has
    /// room. If another thread sends, this does nothing.
    #[cold]
    pub fn go_down_for_room(&self) {
        let lock = &self.end.sending.lock;
        if lock.owner() != self.me && lock.enter_if_free(self.me) {
            if self.sends_fast() {
                let _ = self.go_down(Reason::RingFull);
            }
            lock.exit(Entered::Alone);
        }
    }

    /// The program is refused room. From now on the library looks whether the reader moves.
    fn begin_refusing(&self) {
        let sending = &self.end.sending;
        let now = ticks();
        sending.full.store(1, Relaxed);
        sending.full_at.store(sending.tail.load(Relaxed), Relaxed);
        sending.full_since.store(now, Relaxed);
        sending.full_progress[0].store(self.reader_at(), Relaxed);
        sending.full_progress[1].store(now, Relaxed);
    }

    /// Where the reader is, as far as was seen: a number that changes when it reads from the ring, or from the kernel
    /// what comes before the ring.
    fn reader_at(&self) -> u64 {
        let head = self.end.sending.seen_head.load(Acquire);
        head.wrapping_add(self.channel.outgoing().flags.position.load(Acquire))
    }

    /// Whether no look has seen the reader move for long.
    fn has_stopped(&self) -> bool {
        let [before, when] = &self.end.sending.full_progress;
        // This reads the published head and keeps it.
        let _ = self.sender().used(true);
        let (at, now) = (self.reader_at(), ticks());
        if before.swap(at, Relaxed) != at {
            when.store(now, Relaxed);
        }
        now.saturating_sub(when.load(Relaxed)) > micros(STANDS_STILL_US)
    }
}

//! Giving back: what a reader has left in the ring, its sender puts on the kernel path.
#![allow(unsafe_code, reason = "copies what a reader has left in the ring into a buffer of its own")]

use super::{AGAIN, Port};
use crate::clock::nap;
use crate::kernel;
use crate::link::{ABSENT, AWAY, GIVEN, GIVING};
use crate::ring::{self, Fault, Place, Record};
use crate::sync::{Acquire, Relaxed, Release, SeqCst};
use crate::vector::Cursor;

/// So many bytes at most of what a reader has left in the ring are put on the kernel path at once.
pub(super) const PIECE: usize = 4096;

impl Port<'_> {
    /// If the reader has left the ring, it gets what it left there on the kernel path: it cannot come for it. False if the
    /// kernel has no room for all of it yet: then somebody has to ask again.
    pub fn attend(&self) -> bool {
        if !self.sends_fast() || !self.reader_left() || self.is_awaited_empty() {
            return true;
        }
        let entered = self.enter_sending();
        let given = !self.sends_fast() || self.give_back() != Gave::Part;
        self.end.sending.lock.leave(entered);
        given
    }

    /// The same before this direction ends: what is in the ring could not follow.
    pub(super) fn attend_surely(&self) {
        while !self.attend() && self.connected() {
            nap(100);
        }
    }

    /// Whether the reader is away and has left nothing.
    fn is_awaited_empty(&self) -> bool {
        self.link.outgoing().flags.waiting.load(SeqCst) & ABSENT == AWAY && !self.has_unread()
    }

    /// Puts what the reader has left in the ring on the kernel path, as much as that has room for; all that follows goes there
    /// too.
    #[cold]
    pub(super) fn give_back(&self) -> Gave {
        if !self.begin_giving() {
            return Gave::Nothing;
        }
        loop {
            // A handler's send would give the same again before it is counted.
            match kernel::undisturbed(|| self.give_piece()) {
                Ok(Given::Piece) => {}
                Ok(Given::NoRoom) => return Gave::Part,
                Ok(Given::All) => return Gave::All,
                Err(Fault) => {
                    self.break_off();
                    return Gave::All;
                }
            }
        }
    }

    /// What the reader has left is this sender's to give back. False if it is back.
    fn begin_giving(&self) -> bool {
        let begin = |word: u32| match word & ABSENT {
            0 => None,
            AWAY => Some(word | GIVING),
            _ => Some(word),
        };
        self.link.outgoing().flags.waiting.fetch_update(SeqCst, SeqCst, begin).is_ok()
    }

    /// All of it is given back.
    fn end_giving(&self) {
        self.end.sending.fast.store(0, Relaxed);
        // Behind that: a reader that finds it says that this end may go up again.
        let end = |word: u32| (word & ABSENT == AWAY).then_some(word | GIVEN);
        if self.link.outgoing().flags.waiting.fetch_update(SeqCst, SeqCst, end).is_err() {
            self.end.pin_sending();
        }
    }

    /// One piece of it, as much as the kernel has room for. Should this process be killed on the way, the kernel's own count
    /// tells whether the piece was sent: see `note_piece`.
    fn give_piece(&self) -> Result<Given, Fault> {
        let sending = &self.end.sending;
        let sender = self.sender();
        if sender.used(true)? == 0 {
            self.end_giving();
            return Ok(Given::All);
        }
        let head = sender.seen_head.load(Relaxed);
        let place = Place { head, consumed: self.link.outgoing().flags.taken.load(Acquire) as usize };
        let mut bytes = [0u8; PIECE];
        let one = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the array is writable for its length, and used through the cursor alone while that lives.
        let mut into = unsafe { Cursor::new(&one, 1) };
        let (mut next, n) = ring::copy_out(&sender.ring, place, &mut into)?;
        if n == 0 {
            match sender.ring.record(next.head)? {
                // In the making, below in this very thread, which will do the rest.
                Record::Empty if next.head != sending.tail.load(Relaxed) => return Ok(Given::All),
                record => next.head = sender.ring.behind(next.head, record),
            }
            self.publish_given(next);
            return Ok(Given::Piece);
        }
        sending.giving.store(place.pack(), Relaxed);
        match kernel::send(self.fd, &bytes[..n]) {
            Ok(sent) => self.note_piece(sent).map(|()| Given::Piece),
            Err(AGAIN) => Ok(Given::NoRoom),
            Err(error) => {
                self.keep_failure(error);
                sending.fast.store(0, Relaxed);
                Ok(Given::All)
            }
        }
    }

    /// So much of the piece that was last begun was sent. The position says so last: until then whoever mends does it again.
    pub(super) fn note_piece(&self, sent: usize) -> Result<(), Fault> {
        let sending = &self.end.sending;
        let mut passed = Cursor::discarding(sent);
        let begin = Place::unpack(sending.giving.load(Relaxed));
        self.publish_given(ring::copy_out(&self.sender().ring, begin, &mut passed)?.0);
        sending.position.store(sending.position.load(Relaxed).wrapping_add(sent as u32), Release);
        Ok(())
    }

    /// What lies before `place` has gone the kernel path.
    fn publish_given(&self, place: Place) {
        let words = self.link.outgoing();
        words.flags.taken.store(place.consumed as u32, Relaxed);
        words.head.head.store(place.head, Release);
    }
}

/// What a sender has given back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gave {
    /// Nothing: the reader is back.
    Nothing,
    /// As much as the kernel had room for.
    Part,
    All,
}

/// What became of a piece of what a reader has left in the ring.
enum Given {
    Piece,
    NoRoom,
    /// There is none, or none can be given.
    All,
}

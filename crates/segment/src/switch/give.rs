//! What a reader has left in its ring is given back: it goes the kernel path.
//!
//! The sender puts it there with its next call on the connection. A program may not make a call for long, because it
//! waits for something else, or computes. So a reader that hands its socket to a process without the library gives back
//! itself, where the kernel allows a copy of the sender's socket ([`kernel::copy_of_peer`]). Only one end gives at a
//! time: its thread is in [`ReaderFlags::giver`]. The sender learns from the kernel's count of its own socket how much
//! the reader has given. So it does not matter where a reader was killed.
//!
//! [`ReaderFlags::giver`]: crate::words::ReaderFlags::giver
#![allow(unsafe_code, reason = "copies what a reader has left in the ring into a buffer of its own")]

use super::{AGAIN, LIES_US, Port, micros};
use crate::clock::{nap, ticks};
use crate::end::NO_PIECE;
use crate::kernel;
use crate::lock::Entered;
use crate::raw::is_quiet;
use crate::ring::{self, Fault, Place, Record, Ring};
use crate::sync::{Acquire, AtomicU32, Relaxed, Release, SeqCst};
use crate::vector::Cursor;
use crate::words::{BY_READER, Direction, Flag, GIVEN, GIVING, Presence, ReaderFlags};

/// Largest number of bytes that are given back by one send.
pub(super) const PIECE: usize = 4096;

/// How long a giver of another PID namespace is awaited, because nothing tells whether its thread lives. Such a giver
/// is rare: a reader gives only where it sees the sender's process, so processes in two namespaces then share the end.
const FOREIGN_US: u64 = 100_000;

/// How long a giver of this [number](kernel::marked) is awaited.
fn patience_us(giver: u32) -> u64 {
    if kernel::own(giver).is_some() { LIES_US } else { FOREIGN_US }
}

/// Whether no thread of this [number](kernel::marked) is left, as far as it can be asked.
fn is_gone(giver: u32) -> bool {
    kernel::own(giver).is_some_and(|tid| !kernel::thread_lives(tid))
}

impl Port<'_> {
    /// If the reader is absent, puts on the kernel path what is unread in the ring. False if the kernel has no room for
    /// all of it yet: the caller has to come again.
    pub fn give_back_if_due(&self) -> bool {
        if self.owes_nothing_back() {
            return true;
        }
        let entered = self.enter_sending();
        self.give_back_inside(entered)
    }

    /// Gives back as [`Port::give_back_if_due`] does, but does not wait for another thread that sends: false then. That
    /// thread may have to wait for what the caller does next.
    pub fn give_back_unless_busy(&self) -> bool {
        if self.owes_nothing_back() {
            return true;
        }
        self.try_enter_sending().is_some_and(|entered| self.give_back_inside(entered))
    }

    /// Whether the reader is at its ring, or nothing in it has to be given back.
    fn owes_nothing_back(&self) -> bool {
        !self.sends_fast() || !self.reader_is_absent() || self.is_awaited_empty()
    }

    /// Gives back inside the lock, and exits it.
    fn give_back_inside(&self, entered: Entered) -> bool {
        let given = !self.sends_fast() || self.give_back() != Gave::Part;
        self.end.sending.lock.exit(entered);
        given
    }

    /// Gives back what is unread, and waits for room.
    pub(super) fn give_back_fully(&self) {
        while !self.give_back_if_due() && self.connected() {
            nap(100);
        }
    }

    /// Gives back before this direction ends, behind which nothing can follow: has the kernel make room first.
    pub(super) fn give_back_at_end(&self) {
        if !self.give_back_if_due() {
            self.make_kernel_room();
            self.give_back_fully();
        }
    }

    /// The caller waits until the kernel has taken what an absent reader has left. That reader's program may read it
    /// much later, or never.
    pub(super) fn make_kernel_room(&self) {
        if !is_quiet() {
            kernel::enlarge_send_buffer(self.fd);
        }
    }

    /// Whether the reader is away and has left nothing.
    fn is_awaited_empty(&self) -> bool {
        self.reader_is_away() && !self.has_unread()
    }

    /// Puts on the kernel path what is unread in the ring, as much as there is room for. All that follows goes there
    /// too.
    #[cold]
    pub(super) fn give_back(&self) -> Gave {
        if !self.begin_giving() {
            return Gave::Nothing;
        }
        let giver = &self.channel.outgoing().flags.giver;
        let Some(became) = self.become_giver(giver) else {
            self.break_off();
            return Gave::All;
        };
        let gave = self.give_pieces(became & BY_READER != 0);
        if became & !BY_READER != self.me {
            // This comes first: the reader may go on behind what this end has given.
            self.end.sending.piece.store(NO_PIECE, Relaxed);
            giver.store(0, Release);
        }
        self.take_bell_of_departure();
        gave
    }

    /// A reader rings when it leaves its ring. This end's program may never receive again, and if its process is killed
    /// with the doorbell unread, its kernel resets the connection.
    pub(super) fn take_bell_of_departure(&self) {
        let lock = &self.end.reading.lock;
        if self.owed() > 0 && !is_quiet() && lock.enter_at_once(self.me) {
            self.pass_marks();
            lock.exit(Entered::Alone);
        }
    }

    fn give_pieces(&self, is_begun: bool) -> Gave {
        if is_begun && !kernel::undisturbed(|| self.count_given()) {
            self.break_off();
            return Gave::All;
        }
        // Each round passes a byte at least. A reader that takes back what this end publishes would keep it here for
        // ever.
        for _ in 0..self.sender().ring.capacity() {
            // A handler's send would give the same again before it is counted.
            match kernel::undisturbed(|| self.give_piece()) {
                Ok(PieceOutcome::Sent) => {}
                Ok(PieceOutcome::NoRoom) => return Gave::Part,
                Ok(PieceOutcome::NoneLeft) => return Gave::All,
                Err(Fault) => break,
            }
        }
        self.break_off();
        Gave::All
    }

    /// Becomes the only giver, of both ends, in the name of this thread. Returns the word that was there before; `None`
    /// if the reader does not stop in time.
    fn become_giver(&self, giver: &AtomicU32) -> Option<u32> {
        let began = ticks();
        loop {
            let word = giver.load(Acquire);
            let other = word & !BY_READER;
            if self.end.is_brokered() && word & BY_READER != 0 {
                // Such a reader never gives: whether its thread lives cannot be told.
                return None;
            }
            // This thread has the senders' lock: another sender whose number stands there is gone.
            let is_senders = word & BY_READER == 0;
            let is_free = is_senders || other == 0 || other == self.me || is_gone(other);
            if is_free && giver.compare_exchange(word, word & BY_READER | self.me, SeqCst, Relaxed).is_ok() {
                return Some(word);
            }
            if ticks().wrapping_sub(began) > micros(patience_us(other)) {
                return None;
            }
            nap(50);
        }
    }

    /// The reader becomes the only giver, once no thread gives and all that was given is counted. False if that does
    /// not happen: the sender does not know yet what the reader gave before, or a sender that was killed, or that is
    /// below in this thread, has given something that is not counted.
    fn become_giver_as_reader(&self, giver: &AtomicU32) -> bool {
        let began = ticks();
        loop {
            let Err(word) = giver.compare_exchange(0, BY_READER | self.me, SeqCst, Acquire) else { return true };
            let is_giving = word & BY_READER == 0 && word != self.me && !is_gone(word);
            if !is_giving || ticks().wrapping_sub(began) > micros(patience_us(word)) {
                return false;
            }
            nap(50);
        }
    }

    /// Passes what the reader has put on the kernel path itself. False if that cannot be.
    fn count_given(&self) -> bool {
        let sending = &self.end.sending;
        let Some(given) = self.given_since() else {
            // The connection is over, or this direction is: nothing is given any more.
            sending.fast.store(0, Relaxed);
            return !self.connected() || self.has_sent_fin();
        };
        // An honest reader gives no more than the ring takes. For a liar about doorbells the number is below 0.
        if u64::from(given) > self.sender().ring.capacity() {
            return false;
        }
        if given != 0 {
            if sending.piece.load(Relaxed) == NO_PIECE {
                sending.piece.store(self.published_place(self.channel.outgoing()).pack(), Relaxed);
            }
            if self.note_piece(given as usize).is_err() {
                return false;
            }
        }
        sending.piece.store(NO_PIECE, Relaxed);
        self.channel.outgoing().flags.giver.fetch_and(!BY_READER, Release);
        true
    }

    /// Whether something lies in the ring that this end has left, now or before, and did not give back itself.
    pub(super) fn has_left_unread(&self) -> bool {
        let direction = self.channel.incoming();
        direction.flags.giver.load(Acquire) & BY_READER == 0
            && self.incoming().published(direction.head.head.load(Acquire))
    }

    /// The reader puts on the kernel path what it has left unread in its ring, if it can. Whether it has put all of it
    /// there.
    pub(super) fn give_itself(&self) -> bool {
        let Some(socket) = self.copy_of_peer() else { return false };
        let all = self.give_itself_by(socket);
        kernel::close(socket);
        all
    }

    /// A copy of the other end's socket, if this process may make the system calls for it. `None` for an end of another
    /// namespace or user: neither end could tell whether the other one's giving thread lives.
    pub(super) fn copy_of_peer(&self) -> Option<i32> {
        if is_quiet() || self.end.is_brokered() { None } else { kernel::copy_of_peer(self.fd) }
    }

    /// As [`Port::give_itself`], by `socket`, a copy of the other end's.
    pub(super) fn give_itself_by(&self, socket: i32) -> bool {
        let flags = &self.channel.incoming().flags;
        // A doorbell that was announced and has not come would be missing from what the sender counts.
        if !self.begin_giving_of(flags) || self.owed() > 0 || !self.become_giver_as_reader(&flags.giver) {
            return false;
        }
        // Meanwhile the sender may have given back all, and another reader may have come back to the ring.
        let is_absent = !matches!(self.presence(), Presence::Here | Presence::Given);
        let all = is_absent && kernel::undisturbed(|| self.give_ring(socket)) == Ok(true);
        flags.giver.store(if is_absent { BY_READER } else { 0 }, Release);
        all
    }

    /// A child of vfork that had this thread's number was killed. If it gave back what it had left in its ring, it does
    /// so no more: the sender counts what it has given, and goes on.
    pub fn stop_giving(&self) {
        let giver = &self.channel.incoming().flags.giver;
        let _ = giver.compare_exchange(BY_READER | self.me, BY_READER, SeqCst, Relaxed);
    }

    /// Whether all that lies in the incoming ring has gone through `socket`.
    fn give_ring(&self, socket: i32) -> Result<bool, Fault> {
        let ring = self.incoming();
        let begin = self.published_place(self.channel.incoming());
        let (mut place, mut bytes) = (begin, [0u8; PIECE]);
        // No honest sender has more there, nor adds to it.
        while ring::distance(begin.head, place.head) <= ring.capacity() {
            let one = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            // SAFETY: the array is writable for its length, and used through the cursor alone while that lives.
            let mut into = unsafe { Cursor::new(&one, 1) };
            let (_, n) = copy_past_marks(&ring, place, &mut into)?;
            if n == 0 {
                return Ok(true);
            }
            let Ok(sent) = kernel::send(socket, &bytes[..n]) else { return Ok(false) };
            place = copy_past_marks(&ring, place, &mut Cursor::discarding(sent))?.0;
        }
        Err(Fault)
    }

    /// How far the reader of `direction` had read when it became absent, or its sender has given back since.
    fn published_place(&self, direction: &Direction) -> Place {
        let head = direction.head.head.load(Acquire);
        Place { head, consumed: direction.flags.consumed.load(Acquire) as usize }
    }

    /// Says that what is unread is given back from now on. False if the reader is back.
    fn begin_giving(&self) -> bool {
        self.await_departure();
        let is_absent = self.begin_giving_of(&self.channel.outgoing().flags);
        if !is_absent {
            self.forget_departure();
        }
        is_absent
    }

    /// Says that what is unread in the direction of these flags is given back from now on. False if the reader is back.
    fn begin_giving_of(&self, flags: &ReaderFlags) -> bool {
        let begin = |word| match Flag(word).presence() {
            Presence::Here => None,
            Presence::Left => Some(word),
            Presence::Away | Presence::Giving | Presence::Given => Some(word | GIVING),
        };
        flags.waiting.fetch_update(SeqCst, SeqCst, begin).is_ok()
    }

    /// Says that all of it is given back.
    fn end_giving(&self) {
        self.forget_departure();
        self.end.sending.fast.store(0, Relaxed);
        // This comes last: a reader that finds it lets this end go up again.
        let end = |word| match Flag(word).presence() {
            Presence::Here | Presence::Left => None,
            Presence::Away | Presence::Giving | Presence::Given => Some(word | GIVEN),
        };
        if self.channel.outgoing().flags.waiting.fetch_update(SeqCst, SeqCst, end).is_err() {
            self.end.pin_sending();
        }
    }

    /// Gives back one piece, as much as the kernel has room for. If this process is killed meanwhile, the kernel's
    /// count tells whether the piece was sent: see `note_piece`.
    fn give_piece(&self) -> Result<PieceOutcome, Fault> {
        let sending = &self.end.sending;
        let sender = self.sender();
        if sender.used(true)? == 0 {
            self.end_giving();
            return Ok(PieceOutcome::NoneLeft);
        }
        let place = Place { head: sender.seen_head.load(Relaxed), ..self.published_place(self.channel.outgoing()) };
        let mut bytes = [0u8; PIECE];
        let one = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the array is writable for its length, and used through the cursor alone while that lives.
        let mut into = unsafe { Cursor::new(&one, 1) };
        let (mut next, n) = ring::copy_out(&sender.ring, place, &mut into)?;
        if n == 0 {
            match sender.ring.record(next.head)? {
                // A send below in this thread is making this record, and will give back the rest.
                Record::Empty if next.head != sending.tail.load(Relaxed) => return Ok(PieceOutcome::NoneLeft),
                record => next.head = sender.ring.behind(next.head, record),
            }
            self.publish_given(next);
            return Ok(PieceOutcome::Sent);
        }
        sending.piece.store(place.pack(), Relaxed);
        match kernel::send(self.fd, &bytes[..n]) {
            Ok(sent) => self.note_piece(sent).map(|()| PieceOutcome::Sent),
            Err(AGAIN) => Ok(PieceOutcome::NoRoom),
            Err(error) => {
                self.keep_failure(error);
                sending.fast.store(0, Relaxed);
                Ok(PieceOutcome::NoneLeft)
            }
        }
    }

    /// Notes that so many bytes of the piece that was last begun were sent. The position is changed last: until then a
    /// repair does this again.
    pub(super) fn note_piece(&self, sent: usize) -> Result<(), Fault> {
        let sending = &self.end.sending;
        let mut passed = Cursor::discarding(sent);
        let begin = Place::unpack(sending.piece.load(Relaxed));
        let (next, n) = copy_past_marks(&self.sender().ring, begin, &mut passed)?;
        if n != sent {
            return Err(Fault);
        }
        self.publish_given(next);
        sending.position.store(sending.position.load(Relaxed).wrapping_add(sent as u32), Release);
        Ok(())
    }

    /// What lies before `place` has gone the kernel path.
    fn publish_given(&self, place: Place) {
        let words = self.channel.outgoing();
        words.flags.consumed.store(place.consumed as u32, Relaxed);
        words.head.head.store(place.head, Release);
    }
}

/// As [`ring::copy_out`], past marks of the path: the reader has passed them, or passes what comes before them.
pub(super) fn copy_past_marks(ring: &Ring, from: Place, into: &mut Cursor) -> Result<(Place, usize), Fault> {
    let (mut place, mut total) = (from, 0);
    while ring::distance(from.head, place.head) <= ring.capacity() {
        let (next, n) = ring::copy_out(ring, place, into)?;
        (place, total) = (next, total + n);
        match ring.record(place.head)? {
            mark @ (Record::Up(_) | Record::Down(_)) if into.left() > 0 => place.head = ring.behind(place.head, mark),
            _ => return Ok((place, total)),
        }
    }
    Err(Fault)
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
enum PieceOutcome {
    Sent,
    NoRoom,
    /// There is none, or none can be given.
    NoneLeft,
}

//! One direction's bytes in shared memory: a ring of records.
//!
//! Everything that the sender says is in the ring, in order: data, and the two marks of the path switch. A record is a
//! header word and its bytes. The reader looks at one place only, the header under its head; the bytes of a small
//! message lie in the same cache line, so that a message costs one transfer of a line between processors.
//!
//! The sender keeps the header *after* its last record zero, and publishes a record by storing its header last. Nothing
//! that the reader owns lies in the lines that carry data. Every few messages the sender goes back to the start if the
//! ring is empty, so a connection of small messages lives in one page. The bytes of larger records begin a line.
//!
//! Neither side trusts the other: the reader checks every header against the ring's bounds before it uses it
//! ([`Fault`]), the sender checks the head that the reader publishes, and both keep their own positions in memory that
//! the other does not have.
#![allow(unsafe_code, reason = "lays records over shared memory")]

use crate::kernel;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, SeqCst, about_to_write, own, written_for_another};
use crate::vector::Cursor;

/// Largest data record, in bytes: large enough to make headers free, small enough that copying in and copying out
/// overlap.
pub const MAX_RECORD: usize = 32 << 10;

/// Positions count bytes of ring since its beginning, modulo 2^50.
pub const POSITION_BITS: u32 = 50;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

/// Bytes kept free so that a mark can always be written behind a full ring (a skip, a mark, the zero after it).
const RESERVE: u64 = 64;
const HEADER: u64 = 8;
/// An empty ring goes back to its start after about 16 messages, and where a message would cross such a boundary: what
/// is in use then stays in the caches, and the reader's head is seldom looked at. At least a page.
const SMALLEST_SPAN: u64 = 4096;
/// At most so many bytes, so that both directions stay in the second-level cache.
const LARGEST_SPAN: u64 = 128 << 10;
/// A data record is not split for the sake of a remainder of the lap smaller than this.
const MIN_SPLIT: u64 = 256;

/// The other side broke the rules of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// What lies at a position of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing is published here yet.
    Empty,
    /// So many bytes of the stream.
    Data(usize),
    /// The ring goes on at the start of the next lap.
    Skip,
    /// So many bytes of nothing (a sender was killed here).
    Pad(u64),
    /// The stream goes on in this ring once the kernel path has been read up to this position.
    Up(u64),
    /// The stream goes on on the kernel path, behind so many doorbells.
    Down(u64),
}

const DATA: u64 = 1;
const SKIP: u64 = 2;
const PAD: u64 = 3;
const UP: u64 = 4;
const DOWN: u64 = 5;

/// Bytes of a cache line.
const LINE: u64 = 64;
/// The bytes of records from this size on begin a cache line: copies that cross lines at every step take longer. A smaller
/// record would take more lines for it than its bytes do.
const ALIGNED: u64 = 128;
/// Most lines that are asked for ahead of a record of a stream, and of a message that is answered.
const MOST_AHEAD: [u64; 2] = [32, 256];
/// Most lines of a record that are handed over: of more, the reader has the first before the last is written.
const MOST_HANDED_OVER: u64 = 32;

/// Header of a mark of going down that the reader has not come to. The sender may take it back.
const DOWN_AHEAD: u64 = header(DOWN, HEADER);
/// The same, once the reader passes it.
const DOWN_PASSED: u64 = header(DOWN, 0);

const fn header(kind: u64, len: u64) -> u64 {
    kind << 56 | len
}

const fn round8(n: u64) -> u64 {
    (n + 7) & !7
}

/// `position + n`.
#[inline]
pub const fn step(position: u64, n: u64) -> u64 {
    (position + n) & POSITION_MASK
}

/// How far `to` lies beyond `from`.
#[inline]
pub const fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & POSITION_MASK
}

/// The memory of a ring as this process sees it.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    base: *mut u8,
    capacity: u64,
}

impl Ring {
    /// A ring over `capacity` bytes at `base`.
    ///
    /// # Safety
    /// `base` must be 8-byte aligned and valid for `capacity` bytes while the ring is used; `capacity` a power of two
    /// of at least 4,096.
    pub unsafe fn new(base: *mut u8, capacity: u64) -> Ring {
        debug_assert!(capacity.is_power_of_two() && capacity >= 4096);
        Ring { base, capacity }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Where so many bytes are free, a send of any size puts something there: see [`Sender::push`].
    pub fn enough_for_any(&self) -> u64 {
        // A record at the begin of a line, behind the rest of a lap that is too short for one.
        let around = LINE + HEADER;
        (around + MAX_RECORD as u64).min(self.capacity / 8) + around + MIN_SPLIT
    }

    #[inline]
    fn offset(&self, position: u64) -> u64 {
        position & (self.capacity - 1)
    }

    /// Bytes from `position` to the end of its lap; a multiple of 8, at least 8.
    #[inline]
    fn lap(&self, position: u64) -> u64 {
        self.capacity - self.offset(position)
    }

    #[inline]
    fn word(&self, position: u64) -> &AtomicU64 {
        debug_assert!(position.is_multiple_of(8));
        // SAFETY: the offset is below the capacity and a multiple of 8; shared memory is only ever read as atomics or
        // copied out.
        unsafe { &*(self.base.add((self.offset(position) & !7) as usize) as *const AtomicU64) }
    }

    #[inline]
    fn data(&self, position: u64) -> *mut u8 {
        // SAFETY: the header's offset is at most capacity - 8; the result is at most one past the end, and `record` and
        // `reserve` bound what is copied there.
        unsafe { self.base.add((self.offset(position) + HEADER) as usize) }
    }

    /// Asks for the lines into which the next record of `size` bytes at `position` will go, except the first, which the
    /// reader is looking at. So the lines come over from the reader, which had them a lap ago, while the sender awaits
    /// the answer.
    #[inline]
    fn fetch_ahead(&self, position: u64, size: u64, most: u64) {
        let from = self.offset(position) & !(LINE - 1);
        for line in 1..=(size / LINE + 1).min(most) {
            // SAFETY: the offset is within the ring.
            about_to_write(unsafe { self.base.add(((from + line * LINE) & (self.capacity - 1)) as usize) });
        }
    }

    /// Hands the lines of the record of `size` bytes at `position` over to the reader.
    #[inline]
    fn hand_over(&self, position: u64, size: u64) {
        let from = self.offset(position) & !(LINE - 1);
        for line in 0..=(size / LINE).min(MOST_HANDED_OVER) {
            // SAFETY: the offset is within the ring.
            written_for_another(unsafe { self.base.add(((from + line * LINE) & (self.capacity - 1)) as usize) });
        }
    }

    /// The threads of a model share its first `bytes`.
    #[cfg(all(test, loom))]
    pub(crate) fn share(&self, bytes: u64) {
        (0..bytes).step_by(8).for_each(|at| self.word(at).share());
    }

    /// Whether something is published at `position`.
    #[inline]
    pub fn published(&self, position: u64) -> bool {
        self.word(position).load(Acquire) != 0
    }

    /// What lies at `position`, checked against the bounds of the ring.
    ///
    /// # Errors
    /// [`Fault`] when no honest sender writes such a header.
    #[inline]
    pub fn record(&self, position: u64) -> Result<Record, Fault> {
        let word = self.word(position).load(Acquire);
        let (kind, len) = (word >> 56, word & ((1 << 56) - 1));
        let lap = self.lap(position);
        match kind {
            0 if word == 0 => Ok(Record::Empty),
            DATA if len >= 1 && len <= MAX_RECORD as u64 && HEADER + round8(len) <= lap => {
                Ok(Record::Data(len as usize))
            }
            SKIP => Ok(Record::Skip),
            PAD if len.is_multiple_of(8) && len >= HEADER && len <= lap => Ok(Record::Pad(len)),
            UP if len == HEADER && lap >= 2 * HEADER => Ok(Record::Up(self.word(position + HEADER).load(Relaxed))),
            DOWN if (word == DOWN_AHEAD || word == DOWN_PASSED) && lap >= 2 * HEADER => {
                Ok(Record::Down(self.word(position + HEADER).load(Relaxed)))
            }
            _ => Err(Fault),
        }
    }

    /// Header of a data record of `len` bytes at `position`, where `room` were reserved for it; what it leaves over is
    /// padded. 0 for no bytes.
    #[inline]
    fn data_header(&self, position: u64, len: u64, room: u64) -> u64 {
        let over = round8(room) - round8(len);
        if len == 0 {
            return 0;
        }
        if over > 0 {
            self.word(position + HEADER + round8(len)).store(header(PAD, over), Relaxed);
        }
        header(DATA, len)
    }

    /// The reader is about to pass the mark of going down at `position`. False if the sender has taken the mark back.
    pub fn pass_down(&self, position: u64) -> bool {
        let word = self.word(position).compare_exchange(DOWN_AHEAD, DOWN_PASSED, SeqCst, Acquire);
        matches!(word, Ok(_) | Err(DOWN_PASSED))
    }

    /// The memory from position `from` to position `to`, in two pieces, because it may go around the end of the lap.
    pub fn pieces(&self, from: u64, to: u64) -> [(*const u8, usize); 2] {
        let len = distance(from, to).min(self.capacity);
        let first = len.min(self.lap(from));
        // SAFETY: the offset is below the capacity.
        let begin = unsafe { self.base.add(self.offset(from) as usize) };
        [(begin, first as usize), (self.base, (len - first) as usize)]
    }

    /// Lays `bytes`, a whole number of words, from position `from` on, with nothing published behind. False if there are
    /// more than the ring takes.
    ///
    /// # Safety
    /// Nobody else may know of the ring yet.
    pub unsafe fn lay(&self, from: u64, bytes: &[u8]) -> bool {
        let to = step(from, bytes.len() as u64);
        let fits = (bytes.len() as u64) < self.capacity && from.is_multiple_of(8) && bytes.len().is_multiple_of(8);
        if fits {
            let [(first, len), (second, rest)] = self.pieces(from, to);
            // SAFETY: the pieces lie in the ring, and are as long together as the bytes.
            unsafe {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), first.cast_mut(), len);
                core::ptr::copy_nonoverlapping(bytes[len..].as_ptr(), second.cast_mut(), rest);
            }
            self.word(to).store(0, Release);
        }
        fits
    }

    /// Position behind `record`, which lies at `position`.
    #[inline]
    pub fn behind(&self, position: u64, record: Record) -> u64 {
        let size = match record {
            Record::Empty => 0,
            Record::Data(len) => HEADER + round8(len as u64),
            Record::Skip => self.lap(position),
            Record::Pad(len) => len,
            Record::Up(_) | Record::Down(_) => 2 * HEADER,
        };
        step(position, size)
    }
}

/// Where a reader stands: the record under its head and how much of it is consumed, in one word, so that one
/// compare-and-swap commits a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the record.
    pub head: u64,
    /// Bytes of it that are consumed, less than its length.
    pub consumed: usize,
}

impl Place {
    const CONSUMED_BITS: u32 = 16;

    /// From the word in which it is kept.
    #[inline]
    pub fn unpack(word: u64) -> Place {
        Place {
            head: (word >> Self::CONSUMED_BITS) << 3 & POSITION_MASK,
            consumed: (word & ((1 << Self::CONSUMED_BITS) - 1)) as usize,
        }
    }

    /// Into one word.
    #[inline]
    pub fn pack(self) -> u64 {
        self.head >> 3 << Self::CONSUMED_BITS | self.consumed as u64
    }
}

/// Copies data from `place` on into `into`, until it is full, the ring is empty or a mark of the path switch is
/// reached. Commits nothing: returns where the reader then stands and how many bytes were copied.
///
/// # Errors
/// [`Fault`] when the sender broke the rules.
#[inline]
pub fn copy_out(ring: &Ring, place: Place, into: &mut Cursor) -> Result<(Place, usize), Fault> {
    let Place { mut head, mut consumed } = place;
    let mut total = 0;
    let mut empties = 0;
    while into.left() > 0 {
        let record = ring.record(head)?;
        match record {
            Record::Data(len) => {
                if consumed >= len {
                    return Err(Fault);
                }
                empties = 0;
                let n = (len - consumed).min(into.left());
                // SAFETY: `record` checked that the whole record lies inside the ring, and n <= into.left().
                unsafe { into.copy_from(ring.data(head).add(consumed), n) };
                total += n;
                consumed += n;
                if consumed == len {
                    head = ring.behind(head, record);
                    consumed = 0;
                }
            }
            Record::Skip | Record::Pad(_) => {
                // An honest sender writes at most a few in a row.
                empties += 1;
                if consumed != 0 || empties > 8 {
                    return Err(Fault);
                }
                head = ring.behind(head, record);
            }
            Record::Empty | Record::Up(_) | Record::Down(_) => break,
        }
    }
    Ok((Place { head, consumed }, total))
}

/// Bytes of data from `place` to the last published record or the next mark.
///
/// # Errors
/// [`Fault`] when the sender broke the rules.
pub fn unread(ring: &Ring, place: Place) -> Result<u64, Fault> {
    let (mut position, mut consumed, mut total) = (place.head, place.consumed, 0u64);
    while distance(place.head, position) <= ring.capacity() {
        let record = ring.record(position)?;
        match record {
            Record::Data(len) => {
                total += len.checked_sub(consumed).ok_or(Fault)? as u64;
                consumed = 0;
            }
            Record::Skip | Record::Pad(_) => {}
            Record::Empty | Record::Up(_) | Record::Down(_) => break,
        }
        position = ring.behind(position, record);
    }
    Ok(total)
}

/// A sender's own view of its ring. The words that it keeps (`tail`, `seen_head`, `hole`) lie in memory that the reader
/// does not have; `head` is the reader's.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    /// The ring.
    pub ring: Ring,
    /// Position behind the last record, published or in the making.
    pub tail: &'a AtomicU64,
    /// The last head that was seen.
    pub seen_head: &'a AtomicU64,
    /// Begin and end of the outermost record in the making, for the thread that finds its writer dead. They are equal
    /// when no record is in the making.
    pub hole: &'a [AtomicU64; 2],
    /// Header of the record that a signal handler has put behind the outermost one in the making.
    pub behind: &'a AtomicU64,
    /// Where the reader publishes its head.
    pub head: &'a AtomicU64,
    /// Both ends send by turns: the reader waits for what is sent now, and the sender for the answer. In a stream the
    /// same care for the cache lines would delay what comes next.
    pub in_turn: bool,
}

/// Where the bytes of a record come from.
pub trait Source {
    /// Bytes that are to be sent.
    fn left(&self) -> usize;

    /// Puts the next `len` bytes at `to`, or as many as there turn out to be, and steps over them.
    ///
    /// # Safety
    /// `to` must be valid for writing `len` bytes, and `len <= self.left()`.
    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize;
}

impl Source for Cursor {
    #[inline]
    fn left(&self) -> usize {
        Cursor::left(self)
    }

    #[inline]
    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
        // SAFETY: passed on to the caller.
        unsafe { self.copy_to(to, len) };
        len
    }
}

/// Outcome of [`Sender::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// So many bytes are published; none when the source had none after all.
    Took(usize),
    /// The ring has no room until so much of it is free.
    Full(u64),
}

impl Sender<'_> {
    /// Bytes in use as far as known; refreshed from the reader when `fresh`.
    ///
    /// # Errors
    /// [`Fault`] when the published head lies outside what was sent.
    #[inline]
    pub fn used(&self, fresh: bool) -> Result<u64, Fault> {
        // In this order: a signal handler that interrupts this call, or a thread that only asks, moves all three on.
        let seen = self.seen_head.load(Acquire);
        if !fresh {
            return Ok(distance(seen, self.tail.load(Relaxed)));
        }
        // Acquire: the reader has finished copying what lies before its head.
        let head = self.head.load(Acquire);
        let tail = self.tail.load(Relaxed);
        // The old head bounds the new one: a head may only move forward, up to the tail.
        if distance(seen, head) > distance(seen, tail) {
            // An older head is there for an instant where a signal handler has interrupted a reader that was about to
            // publish its own head.
            return if distance(head, seen) <= self.ring.capacity() { Ok(distance(seen, tail)) } else { Err(Fault) };
        }
        // Release: another thread that sees it writes where this reader has read.
        self.seen_head.store(head, Release);
        Ok(distance(head, tail))
    }

    /// Publishes one record of the bytes under `from`, as many as fit.
    ///
    /// # Errors
    /// [`Fault`] when the reader broke the rules.
    #[inline]
    pub fn push(&self, from: &mut impl Source) -> Result<Push, Fault> {
        debug_assert!(from.left() > 0);
        let want = from.left().min(MAX_RECORD) as u64;
        loop {
            let tail = self.tail.load(Relaxed);
            let lap = self.ring.lap(tail);
            let span = (want * 16).next_power_of_two().clamp(SMALLEST_SPAN, LARGEST_SPAN);
            let offset = self.ring.offset(tail);
            let pad = if want >= ALIGNED { (LINE - HEADER).wrapping_sub(offset) % LINE } else { 0 };
            let size = pad + HEADER + round8(want);
            let crosses = offset / span != (offset + size) / span;
            if crosses && offset != 0 && self.used(true)? == 0 && lap < self.ring.capacity() {
                self.put(tail, lap, |_| header(SKIP, 0));
                continue;
            }
            let mut free = self.free(false)?;
            if free < size {
                free = self.free(true)?;
            }
            // A nearly full ring counts as full, unless the whole message fits.
            let enough = size.min(self.ring.capacity() / 8);
            if free < enough {
                return Ok(Push::Full(enough));
            }
            if lap - pad - HEADER < want.min(MIN_SPLIT) {
                let enough = lap + HEADER + 8;
                if free < enough {
                    return Ok(Push::Full(enough));
                }
                self.put(tail, lap, |_| header(SKIP, 0));
                continue;
            }
            let n = want.min(lap - pad - HEADER).min((free - pad - HEADER) & !7);
            let mut took = 0;
            let put = self.put(tail, pad + HEADER + round8(n), |ring| {
                // SAFETY: `n` was chosen within the lap and within what is left to send.
                took = unsafe { from.fill(ring.data(tail + pad), n as usize) }.min(n as usize);
                let word = ring.data_header(tail + pad, took as u64, n);
                if pad == 0 || word == 0 {
                    return word;
                }
                ring.word(tail + pad).store(word, Relaxed);
                header(PAD, pad)
            });
            if put {
                return Ok(Push::Took(took));
            }
        }
    }

    /// Publishes a mark of the path switch. Room for it is always kept.
    pub fn mark(&self, record: Record) {
        let (kind, value) = match record {
            Record::Up(position) => (UP, position),
            Record::Down(bells) => (DOWN, bells),
            _ => return,
        };
        loop {
            let tail = self.tail.load(Relaxed);
            if self.ring.lap(tail) < 2 * HEADER {
                self.put(tail, self.ring.lap(tail), |_| header(SKIP, 0));
                continue;
            }
            if self.put(tail, 2 * HEADER, |ring| {
                ring.word(tail + HEADER).store(value, Relaxed);
                header(kind, HEADER)
            }) {
                return;
            }
        }
    }

    /// What was last put into the ring, or begun and closed as a hole, but for what a signal handler has put behind it.
    ///
    /// # Errors
    /// [`Fault`] when the reader has written over it.
    pub fn last(&self) -> Result<Record, Fault> {
        self.ring.record(self.hole[0].load(Relaxed))
    }

    /// Whether nothing is in the ring but, at most, the mark of going down that was put there last.
    pub fn has_only_mark(&self) -> bool {
        let (head, tail, last) = (self.head.load(Acquire), self.tail.load(Relaxed), self.hole[0].load(Relaxed));
        head == tail || head == last && step(last, 2 * HEADER) == tail
    }

    /// Takes back a mark of going down behind which nothing was put. False if the reader passes it.
    pub fn take_mark_back(&self) -> bool {
        let at = self.hole[0].load(Relaxed);
        let is_last = step(at, 2 * HEADER) == self.tail.load(Relaxed);
        let filler = header(PAD, 2 * HEADER);
        is_last && self.ring.word(at).compare_exchange(DOWN_AHEAD, filler, SeqCst, Relaxed).is_ok()
    }

    /// Closes the hole that a killed writer left: nothing of it was published.
    pub fn close_hole(&self) {
        let (from, to) = (self.hole[0].load(Relaxed), self.hole[1].load(Relaxed));
        let tail = self.tail.load(Relaxed);
        let in_the_making = distance(from, to);
        if in_the_making != 0
            && in_the_making <= self.ring.lap(from)
            && distance(from, tail) >= in_the_making
            && distance(from, tail) <= self.ring.capacity()
            && !self.ring.published(from)
        {
            self.end_behind(to, tail);
            self.ring.word(from).store(header(PAD, in_the_making), Release);
        }
        self.hole[1].store(from, Relaxed);
    }

    /// Room for data; some more is kept for marks.
    ///
    /// # Errors
    /// As [`Sender::used`].
    pub fn free(&self, fresh: bool) -> Result<u64, Fault> {
        Ok((self.ring.capacity() - RESERVE).saturating_sub(self.used(fresh)?))
    }

    /// Reserves `size` bytes at `tail`, has `fill` fill them, and publishes them with the header that it returns; takes
    /// the reservation back for a header of 0. False when a signal handler of this very thread has put its own record
    /// there first.
    #[inline]
    fn put(&self, tail: u64, size: u64, fill: impl FnOnce(&Ring) -> u64) -> bool {
        if self.hole[0].load(Relaxed) != self.hole[1].load(Relaxed) {
            return kernel::undisturbed(|| self.put_nested(tail, size, fill));
        }
        let next = step(tail, size);
        self.hole[0].store(tail, Relaxed);
        self.hole[1].store(next, Relaxed);
        let reserved = own::replace(self.tail, tail, next);
        if reserved {
            self.end_behind(next, self.tail.load(Relaxed));
            let word = fill(&self.ring);
            let nothing = word == 0 && own::replace(self.tail, next, tail);
            // SeqCst, as a full barrier: the record is visible before the sender looks whether the reader sleeps; the
            // reader raises its flag before it looks at the ring once more. One of them sees the other.
            if !nothing {
                self.ring.word(tail).swap(if word == 0 { header(PAD, size) } else { word }, SeqCst);
                if self.in_turn {
                    self.ring.hand_over(tail, size);
                }
                self.ring.fetch_ahead(next, size, MOST_AHEAD[usize::from(self.in_turn)]);
            }
        }
        self.hole[1].store(tail, Relaxed);
        reserved
    }

    /// The same for a signal handler that has interrupted a `put` of its thread. No further handler interrupts this.
    #[cold]
    fn put_nested(&self, tail: u64, size: u64, fill: impl FnOnce(&Ring) -> u64) -> bool {
        if self.tail.load(Relaxed) != tail {
            return false;
        }
        let next = step(tail, size);
        let first = tail == self.hole[1].load(Relaxed);
        let publish = |word| {
            if first {
                self.behind.store(word, Relaxed);
            }
            word
        };
        // Padding, in case this process is killed before the record is whole.
        publish(header(PAD, size));
        self.ring.word(next).store(0, Relaxed);
        self.tail.store(next, Relaxed);
        let word = match fill(&self.ring) {
            0 => header(PAD, size),
            word => word,
        };
        self.ring.word(tail).swap(publish(word), SeqCst);
        true
    }

    /// Ends the ring at `next`, behind the outermost record in the making; or, when the tail is beyond, lets what a
    /// handler has put there stand. The reader cannot have come there before that record is published.
    #[inline]
    fn end_behind(&self, next: u64, tail: u64) {
        let end = self.ring.word(next);
        end.store(0, Relaxed);
        if tail != next || self.tail.load(Relaxed) != next {
            end.store(self.behind.load(Relaxed), Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod properties;
#[cfg(test)]
mod tests;

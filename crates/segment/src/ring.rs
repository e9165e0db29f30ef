//! One direction's bytes in shared memory: a ring of records.
//!
//! Everything that the sender says is in the ring, in order: data, and the two marks of the path switch. A record is a
//! header word and its bytes. The reader looks at one place only, the header under its head; the bytes of a small
//! message lie in the same cache line, so that a message costs one transfer of a line between processors.
//!
//! The sender keeps the header *after* its last record zero, and publishes a record by storing its header last. Nothing
//! that the reader owns lies in the lines that carry data. When a small record would cross into another page and the
//! ring is empty, the sender goes back to the start, so a connection of small messages lives in one page.
//!
//! Neither side trusts the other: the reader checks every header against the ring's bounds before it uses it
//! ([`Fault`]), the sender checks the head that the reader publishes, and both keep their own positions in memory that
//! the other does not have.
#![allow(unsafe_code, reason = "lays records over shared memory")]

use crate::kernel;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, SeqCst, about_to_write, own};
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
/// Records up to this size go back to the start of the ring at every page, larger ones every [`LARGE_SPAN`].
const SMALL: usize = 1024;
const SMALL_SPAN: u64 = 4096;
const LARGE_SPAN: u64 = 128 << 10;
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
/// Most lines that are asked for ahead of a record.
const MOST_LINES: u64 = 32;

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

    /// Asks for the lines into which the next record of `size` bytes at `position` will go, all but the first, which
    /// the reader is looking at: while the answer is awaited they are taken from the reader, which had them a lap ago.
    #[inline]
    fn fetch_ahead(&self, position: u64, size: u64) {
        let from = self.offset(position) & !(LINE - 1);
        for line in 1..=(size / LINE + 1).min(MOST_LINES) {
            // SAFETY: the offset is within the ring.
            about_to_write(unsafe { self.base.add(((from + line * LINE) & (self.capacity - 1)) as usize) });
        }
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
            UP | DOWN if lap >= 16 => {
                let value = self.word(position + HEADER).load(Relaxed);
                Ok(if kind == UP { Record::Up(value) } else { Record::Down(value) })
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
    /// Begin and end of the outermost record in the making, for whoever finds its writer dead; equal when none is.
    pub hole: &'a [AtomicU64; 2],
    /// Header of the record that a signal handler has put behind the outermost one in the making.
    pub behind: &'a AtomicU64,
    /// Where the reader publishes its head.
    pub head: &'a AtomicU64,
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
    /// The ring has no room.
    Full,
}

impl Sender<'_> {
    /// Bytes in use as far as known; refreshed from the reader when `fresh`.
    ///
    /// # Errors
    /// [`Fault`] when the published head lies outside what was sent.
    #[inline]
    pub fn used(&self, fresh: bool) -> Result<u64, Fault> {
        // In this order: a signal handler on top of this call, or a thread that only asks, moves all three on.
        let seen = self.seen_head.load(Acquire);
        if !fresh {
            return Ok(distance(seen, self.tail.load(Relaxed)));
        }
        // Acquire: the reader has finished copying whatever lies before its head.
        let head = self.head.load(Acquire);
        let tail = self.tail.load(Relaxed);
        // The old head bounds the new one: a head may only move forward, up to the tail.
        if distance(seen, head) > distance(seen, tail) {
            return Err(Fault);
        }
        self.seen_head.store(head, Relaxed);
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
            let span = if want <= SMALL as u64 { SMALL_SPAN } else { LARGE_SPAN };
            let offset = self.ring.offset(tail);
            let crosses = offset / span != (offset + HEADER + round8(want)) / span;
            if crosses && offset != 0 && self.used(true)? == 0 && lap < self.ring.capacity() {
                self.put(tail, lap, |_| header(SKIP, 0));
                continue;
            }
            let mut free = self.free(false)?;
            if free < HEADER + round8(want) {
                free = self.free(true)?;
            }
            // No crumbs: a nearly full ring is full, unless the whole message fits.
            if free < HEADER + round8(want) && free < self.ring.capacity() / 8 {
                return Ok(Push::Full);
            }
            if lap - HEADER < want.min(MIN_SPLIT) {
                if free < lap + HEADER + 8 {
                    return Ok(Push::Full);
                }
                self.put(tail, lap, |_| header(SKIP, 0));
                continue;
            }
            let n = want.min(lap - HEADER).min((free - HEADER) & !7);
            let mut took = 0;
            let put = self.put(tail, HEADER + round8(n), |ring| {
                // SAFETY: `n` was chosen within the lap and within what is left to send.
                took = unsafe { from.fill(ring.data(tail), n as usize) }.min(n as usize);
                ring.data_header(tail, took as u64, n)
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

    fn free(&self, fresh: bool) -> Result<u64, Fault> {
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
                self.ring.fetch_ahead(next, size);
            }
        }
        self.hole[1].store(tail, Relaxed);
        reserved
    }

    /// The same on top of a `put` of this thread, which no other comes on top of.
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
        // Should this process be killed before the record is whole.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A ring of its own, with the words that each side keeps.
    struct Bench {
        memory: Vec<u64>,
        tail: AtomicU64,
        seen_head: AtomicU64,
        hole: [AtomicU64; 2],
        behind: AtomicU64,
        head: AtomicU64,
        place: Place,
    }

    impl Bench {
        fn new(capacity: usize) -> Bench {
            let zero = || AtomicU64::new(0);
            Bench {
                memory: vec![0; capacity / 8],
                tail: zero(),
                seen_head: zero(),
                hole: [zero(), zero()],
                behind: zero(),
                head: zero(),
                place: Place { head: 0, consumed: 0 },
            }
        }

        fn ring(&mut self) -> Ring {
            let capacity = self.memory.len() as u64 * 8;
            // SAFETY: the vector is 8-byte aligned, as long as said, and outlives the ring in each test.
            unsafe { Ring::new(self.memory.as_mut_ptr().cast(), capacity) }
        }

        fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
            let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            // SAFETY: one buffer, only read.
            let mut from = unsafe { Cursor::new(&vector, 1) };
            let ring = self.ring();
            let sender = Sender {
                ring,
                tail: &self.tail,
                seen_head: &self.seen_head,
                hole: &self.hole,
                behind: &self.behind,
                head: &self.head,
            };
            let mut sent = 0;
            while from.left() > 0 {
                match sender.push(&mut from)? {
                    Push::Took(n) => sent += n,
                    Push::Full => break,
                }
            }
            Ok(sent)
        }

        fn receive(&mut self, most: usize) -> Result<Vec<u8>, Fault> {
            let mut bytes = vec![0u8; most];
            let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
            // SAFETY: one buffer, writable.
            let mut into = unsafe { Cursor::new(&vector, 1) };
            let ring = self.ring();
            let (place, n) = copy_out(&ring, self.place, &mut into)?;
            if n > 0 {
                self.place = Place::unpack(place.pack());
                self.head.store(place.head, Release);
            }
            bytes.truncate(n);
            Ok(bytes)
        }
    }

    /// A generator that needs no crate: xorshift64*.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for (seed, capacity) in [(1, 4096), (2, 4096), (3, 65536), (4, 1 << 20)] {
            let mut random = Random(seed);
            let mut bench = Bench::new(capacity);
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for _ in 0..20_000 {
                let most = [1, 8, 64, 700, 5000, 40_000][random.below(6)];
                if random.below(2) == 0 {
                    let bytes: Vec<u8> = (0..1 + random.below(most)).map(|i| next.wrapping_add(i as u8)).collect();
                    let sent = bench.send(&bytes).unwrap();
                    next = next.wrapping_add(sent as u8);
                    model.extend(&bytes[..sent]);
                    assert!(sent > 0 || !model.is_empty(), "an empty ring has room");
                } else {
                    let got = bench.receive(1 + random.below(most)).unwrap();
                    assert!(!got.is_empty() || model.is_empty(), "what was published is there");
                    assert!(got.iter().copied().eq(model.drain(..got.len())));
                }
                let (ring, place) = (bench.ring(), bench.place);
                assert_eq!(unread(&ring, place).unwrap(), model.len() as u64);
            }
        }
    }

    /// A source that says that it has more than it then has.
    struct Boaster(usize, Vec<u8>);

    impl Source for Boaster {
        fn left(&self) -> usize {
            self.0
        }

        unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
            let n = self.1.len().min(len);
            for (at, byte) in self.1.drain(..n).enumerate() {
                // SAFETY: at < len.
                unsafe { to.add(at).write(byte) };
            }
            self.0 -= n;
            n
        }
    }

    #[test]
    fn a_short_source_leaves_no_trace() {
        let mut random = Random(7);
        let mut bench = Bench::new(4096);
        for round in 0..20_000u32 {
            let bytes: Vec<u8> = (0..random.below(400)).map(|i| (round as usize + i) as u8).collect();
            let mut boaster = Boaster(bytes.len() + 1 + random.below(600), bytes.clone());
            let ring = bench.ring();
            let sender = Sender {
                ring,
                tail: &bench.tail,
                seen_head: &bench.seen_head,
                hole: &bench.hole,
                behind: &bench.behind,
                head: &bench.head,
            };
            let mut sent = 0;
            while let Ok(Push::Took(n @ 1..)) = sender.push(&mut boaster) {
                sent += n;
            }
            assert_eq!(bench.receive(4096), Ok(bytes[..sent].to_vec()));
            assert!(sent == bytes.len() || sent > 0);
        }
    }

    #[test]
    fn small_messages_stay_in_one_page() {
        let mut bench = Bench::new(1 << 20);
        for _ in 0..10_000 {
            assert_eq!(bench.send(&[7; 100]), Ok(100));
            assert_eq!(bench.receive(100), Ok(vec![7; 100]));
        }
        assert!(bench.memory[1024..].iter().all(|&word| word == 0), "two pages are enough");
    }

    #[test]
    fn a_mark_finds_room_behind_a_full_ring() {
        let mut bench = Bench::new(4096);
        while bench.send(&[1; 300]).unwrap() == 300 {}
        while bench.send(&[1]).unwrap() == 1 {}
        let ring = bench.ring();
        let sender = Sender {
            ring,
            tail: &bench.tail,
            seen_head: &bench.seen_head,
            hole: &bench.hole,
            behind: &bench.behind,
            head: &bench.head,
        };
        sender.mark(Record::Down(5));
        assert!(sender.used(true).unwrap() <= ring.capacity());
        while !bench.receive(1000).unwrap().is_empty() {}
        let mut position = bench.place.head;
        while let Ok(skip @ (Record::Skip | Record::Pad(_))) = ring.record(position) {
            position = ring.behind(position, skip);
        }
        assert_eq!(ring.record(position), Ok(Record::Down(5)));
    }

    #[test]
    fn a_hole_of_a_killed_writer_is_passed_over() {
        let mut bench = Bench::new(4096);
        assert_eq!(bench.send(b"before"), Ok(6));
        // Killed after the reservation, before the record was published.
        let from = bench.tail.load(Relaxed);
        bench.hole[0].store(from, Relaxed);
        bench.hole[1].store(step(from, 64), Relaxed);
        bench.tail.store(step(from, 64), Relaxed);
        bench.memory[(from + 64) as usize / 8] = 0;
        let ring = bench.ring();
        Sender {
            ring,
            tail: &bench.tail,
            seen_head: &bench.seen_head,
            hole: &bench.hole,
            behind: &bench.behind,
            head: &bench.head,
        }
        .close_hole();
        assert_eq!(bench.send(b"after"), Ok(5));
        assert_eq!(bench.receive(100), Ok(b"beforeafter".to_vec()));
    }

    /// A source in the middle of which a signal handler sends, as `nested` does.
    struct Interrupted<'a>(&'a mut dyn FnMut(), usize, u8);

    impl Source for Interrupted<'_> {
        fn left(&self) -> usize {
            self.1
        }

        unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
            (self.0)();
            // SAFETY: the caller vouches for `len` bytes.
            unsafe { to.write_bytes(self.2, len) };
            self.1 -= len;
            len
        }
    }

    #[test]
    fn a_handlers_sends_stand_behind_the_one_below() {
        let mut random = Random(11);
        let mut bench = Bench::new(1 << 14);
        for round in 0..20_000u32 {
            let (outer, count) = (1 + random.below(100), random.below(3));
            let mut expected = vec![round as u8; outer];
            let ring = bench.ring();
            let sender = Sender {
                ring,
                tail: &bench.tail,
                seen_head: &bench.seen_head,
                hole: &bench.hole,
                behind: &bench.behind,
                head: &bench.head,
            };
            let mut inner = vec![];
            let mut nested = || {
                for at in 0..count {
                    let bytes = vec![!(round as u8) ^ at as u8; 1 + (round as usize * 7 + at * 31) % 900];
                    let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                    // SAFETY: one buffer, only read.
                    let mut from = unsafe { Cursor::new(&vector, 1) };
                    while from.left() > 0 {
                        assert!(matches!(sender.push(&mut from), Ok(Push::Took(1..))));
                    }
                    inner.extend(bytes);
                }
            };
            let mut from = Interrupted(&mut nested, outer, round as u8);
            assert_eq!(sender.push(&mut from), Ok(Push::Took(outer)));
            expected.extend(inner);
            assert_eq!(bench.receive(1 << 14), Ok(expected), "round {round}");
        }
    }

    /// Fails if a killed process's hole is closed without a look at what its handler had put behind it.
    #[test]
    fn a_handlers_record_outlives_the_process_below() {
        for whole in [true, false] {
            let mut bench = Bench::new(4096);
            // What the lap before has left.
            bench.memory.fill(u64::MAX);
            bench.memory[0] = 0;
            assert_eq!(bench.send(b"before"), Ok(6));
            let from = bench.tail.load(Relaxed);
            let to = step(from, 64);
            bench.hole[0].store(from, Relaxed);
            bench.hole[1].store(to, Relaxed);
            bench.tail.store(to, Relaxed);
            if whole {
                assert_eq!(bench.send(b"handler"), Ok(7));
                bench.memory[to as usize / 8] = 0;
            }
            let ring = bench.ring();
            let (tail, seen_head, hole) = (&bench.tail, &bench.seen_head, &bench.hole);
            Sender { ring, tail, seen_head, hole, behind: &bench.behind, head: &bench.head }.close_hole();
            assert_eq!(bench.send(b"after"), Ok(5));
            let expected: &[u8] = if whole { b"beforehandlerafter" } else { b"beforeafter" };
            assert_eq!(bench.receive(100), Ok(expected.to_vec()));
        }
    }

    #[test]
    fn lies_are_found_out() {
        let mut random = Random(9);
        for round in 0..20_000 {
            let mut bench = Bench::new(4096);
            bench.send(&vec![3; 1 + random.below(3000)]).unwrap();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bench.memory.len());
                let kind = (random.below(8) as u64) << 56;
                bench.memory[at] = if round % 2 == 0 { kind | random.below(9000) as u64 } else { random.0 };
            }
            // Whatever it finds, it stays inside the ring and comes to an end.
            for _ in 0..50 {
                match bench.receive(1 + random.below(500)) {
                    Ok(bytes) if !bytes.is_empty() => {}
                    _ => break,
                }
            }
            let (ring, place) = (bench.ring(), bench.place);
            let _ = unread(&ring, place);
            // A head that moves back, or beyond what was sent.
            bench.head.store(random.0 & POSITION_MASK, Relaxed);
            let _ = bench.send(&[1; 100]);
        }
        let mut bench = Bench::new(4096);
        bench.send(&[1; 100]).unwrap();
        bench.head.store(step(bench.tail.load(Relaxed), 8), Relaxed);
        let ring = bench.ring();
        let sender = Sender {
            ring,
            tail: &bench.tail,
            seen_head: &bench.seen_head,
            hole: &bench.hole,
            behind: &bench.behind,
            head: &bench.head,
        };
        assert_eq!(sender.used(true), Err(Fault));
    }
}

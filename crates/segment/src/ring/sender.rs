//! Sending: what a sender keeps, and how it puts records and marks into the ring.

use super::{
    DOWN, DOWN_AHEAD, Fault, HEADER, LINE, MAX_RECORD, PAD, Record, Ring, SKIP, UP, distance, header, round8, step,
};
use crate::kernel;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, SeqCst, own};
use crate::vector::Cursor;

/// Bytes kept free so that a mark can always be written behind a full ring.
pub(super) const RESERVE: u64 = 64;
/// The bytes that a mark takes at most: a skip, the mark, the zero after it.
const LARGEST_MARK: u64 = HEADER + 2 * HEADER + HEADER;
const _: () = assert!(LARGEST_MARK <= RESERVE);
/// An empty ring goes back to its start after about 16 messages, and where a message would cross such a boundary: what
/// is in use then stays in the caches, and the reader's head is seldom looked at. At least a page.
pub(super) const SMALLEST_SPAN: u64 = 4096;
/// At most so many bytes, so that both directions stay in the second-level cache.
pub(super) const LARGEST_SPAN: u64 = 128 << 10;
/// A data record is not split for the sake of a remainder of the lap smaller than this.
const MIN_SPLIT: u64 = 256;

/// The bytes of records from this size on begin a cache line: copies that cross lines at every step take longer. A
/// smaller record would take more lines for it than its bytes do.
pub(super) const ALIGNED: u64 = 128;
/// Most lines that are asked for ahead of a record of a stream, and of a message that is answered.
const MOST_AHEAD: [u64; 2] = [32, 256];

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

impl Ring {
    /// Where so many bytes are free, a send of any size puts something there: see [`Sender::push`].
    pub fn enough_for_any(&self) -> u64 {
        // A record at the begin of a line, behind the rest of a lap that is too short for one.
        let around = LINE + HEADER;
        (around + MAX_RECORD as u64).min(self.capacity / 8) + around + MIN_SPLIT
    }
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
        // The first try apart from the others: in a loop the compiler keeps on the stack what only the others need.
        match self.try_push(from)? {
            Some(done) => Ok(done),
            None => self.push_again(from),
        }
    }

    #[cold]
    fn push_again(&self, from: &mut impl Source) -> Result<Push, Fault> {
        loop {
            if let Some(done) = self.try_push(from)? {
                return Ok(done);
            }
        }
    }

    /// `None`: the tail has moved on, and the record goes elsewhere.
    #[inline]
    fn try_push(&self, from: &mut impl Source) -> Result<Option<Push>, Fault> {
        let want = from.left().min(MAX_RECORD) as u64;
        let tail = self.tail.load(Relaxed);
        let lap = self.ring.lap(tail);
        let span = (want * 16).next_power_of_two().clamp(SMALLEST_SPAN, LARGEST_SPAN);
        let offset = self.ring.offset(tail);
        let pad = if want >= ALIGNED { (LINE - HEADER).wrapping_sub(offset) % LINE } else { 0 };
        let size = pad + HEADER + round8(want);
        let crosses = offset / span != (offset + size) / span;
        if crosses && offset != 0 && self.used(true)? == 0 && lap < self.ring.capacity() {
            self.skip(tail, lap);
            return Ok(None);
        }
        let mut free = self.free(false)?;
        if free < size {
            free = self.free(true)?;
        }
        // A nearly full ring counts as full, unless the whole message fits.
        let enough = size.min(self.ring.capacity() / 8);
        if free < enough {
            return Ok(Some(Push::Full(enough)));
        }
        if lap - pad - HEADER < want.min(MIN_SPLIT) {
            let enough = lap + HEADER + 8;
            if free < enough {
                return Ok(Some(Push::Full(enough)));
            }
            self.skip(tail, lap);
            return Ok(None);
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
        Ok(put.then_some(Push::Took(took)))
    }

    /// Passes over the rest of the lap.
    #[cold]
    fn skip(&self, tail: u64, lap: u64) {
        self.put(tail, lap, |_| header(SKIP, 0));
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
                self.skip(tail, self.ring.lap(tail));
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

    /// Whether nothing is in the ring but, at most, the mark of going down that was put there last. Does not look into
    /// the ring.
    pub fn has_only_mark(&self) -> bool {
        let (head, tail, last) = (self.head.load(Acquire), self.tail.load(Relaxed), self.hole[0].load(Relaxed));
        head == tail || head == last && step(last, 2 * HEADER) == tail
    }

    /// Whether nothing is in the ring but marks.
    pub fn has_only_marks(&self) -> bool {
        self.walk(self.tail.load(Relaxed), |_, record| !matches!(record, Record::Data(_)))
    }

    /// Shows `look` the records from the reader's head to position `end`, as long as it says that it goes on, and
    /// whether it has come there.
    fn walk(&self, end: u64, mut look: impl FnMut(u64, Record) -> bool) -> bool {
        let head = self.head.load(Acquire);
        let (used, mut position) = (distance(head, end), head);
        while distance(head, position) < used && used <= self.ring.capacity() {
            match self.ring.record(position) {
                Ok(Record::Empty) | Err(Fault) => return false,
                Ok(record) if look(position, record) => position = self.ring.behind(position, record),
                Ok(_) => return false,
            }
        }
        position == end
    }

    /// Takes back a mark of going down behind which nothing was put: it is a filler from then on. False if the reader
    /// passes it, or if no room would be left for the next mark.
    pub fn take_mark_back(&self) -> bool {
        let at = self.hole[0].load(Relaxed);
        let is_last = step(at, 2 * HEADER) == self.tail.load(Relaxed);
        let has_room = || self.used(true).is_ok_and(|used| used + LARGEST_MARK <= self.ring.capacity());
        let filler = header(PAD, 2 * HEADER);
        let taken =
            is_last && has_room() && self.ring.word(at).compare_exchange(DOWN_AHEAD, filler, SeqCst, Relaxed).is_ok();
        if taken {
            self.join_fillers(at);
        }
        taken
    }

    /// Makes one filler of the one at `at` and those right before it: the reader takes but a few in a row. A reader
    /// that has seen the first of them as it was passes the others, which stay as they are.
    fn join_fillers(&self, at: u64) {
        let mut first = None;
        let is_known = self.walk(at, |position, record| {
            first = if matches!(record, Record::Pad(_)) { first.or(Some(position)) } else { None };
            true
        });
        if is_known && let Some(first) = first {
            let len = distance(first, at) + 2 * HEADER;
            if len <= self.ring.lap(first) {
                self.ring.word(first).store(header(PAD, len), Release);
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
                    self.ring.demote(tail, size);
                }
                self.ring.fetch_ahead(next, size, MOST_AHEAD[usize::from(self.in_turn)]);
            }
        }
        self.hole[1].store(tail, Relaxed);
        reserved
    }

    /// Puts a record for a signal handler that has interrupted a `put` of its thread. No further handler interrupts
    /// this.
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

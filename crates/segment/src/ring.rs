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

mod reader;
mod sender;

use crate::sync::{Acquire, AtomicU64, Relaxed, Release, SeqCst, about_to_write, written_for_another};
pub use reader::{Place, copy_out, unread};
pub use sender::{Push, Sender, Source};

/// Largest data record, in bytes: large enough to make headers free, small enough that copying in and copying out
/// overlap.
pub const MAX_RECORD: usize = 32 << 10;

/// Positions count bytes of ring since its beginning, modulo 2^50.
pub const POSITION_BITS: u32 = 50;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

/// Bytes of a record's header.
const HEADER: u64 = 8;

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
/// Most lines of a record that are handed over: of more, the reader has the first before the last is written.
const MOST_DEMOTED: u64 = 32;

/// Header of a mark of going down that the reader has not come to. The sender may take it back.
const DOWN_AHEAD: u64 = header(DOWN, HEADER);
/// Header of a mark of going down once the reader passes it.
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
        for line in 1..(size / LINE + 1).min(most) + 1 {
            // SAFETY: the offset is within the ring.
            about_to_write(unsafe { self.base.add(((from + line * LINE) & (self.capacity - 1)) as usize) });
        }
    }

    /// Moves the cache lines of the record of `size` bytes at `position` to where the reader gets them sooner.
    #[inline]
    fn demote(&self, position: u64, size: u64) {
        let from = self.offset(position) & !(LINE - 1);
        for line in 0..(size / LINE).min(MOST_DEMOTED) + 1 {
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

    /// Lays `bytes`, a whole number of words, from position `from` on, with nothing published behind. False if there
    /// are more than the ring takes.
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

#[cfg(all(test, not(loom)))]
mod properties;
#[cfg(test)]
mod tests;

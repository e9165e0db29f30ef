//! Reading: where a reader stands, and what it copies out.

use super::{Fault, POSITION_MASK, Record, Ring, distance};
use crate::vector::Cursor;

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

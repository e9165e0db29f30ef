//! What the library asks.

use crate::error::WireError;
use crate::header::{self, Header};
use crate::shape::{self, Shape};

/// Kind of an [`Ask`].
const KIND: u16 = 1;
/// Octets of an [`Ask`].
pub const LEN: usize = header::LEN + 24;

/// Who is at the other end of the TCP connection whose socket comes with this record (SCM_RIGHTS, exactly one), and
/// which memory may this process share with it?
///
/// | Octets | Field |
/// |---|---|
/// | 24..28 | bytes of a ring |
/// | 28..32 | the free slot |
/// | 32..40 | number of the pool of which a slot is free; 0: none |
/// | 40..48 | cookie of the maker's socket, of the connection that had the slot |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Number by which the asking process knows the answer.
    pub token: u64,
    /// Mark of the layout that the asking library gives to shared memory. Two that differ never share any.
    pub mark: u64,
    /// Bytes of each ring that this process would make: a power of two from [`Shape::MIN_RING`] to [`Shape::MAX_RING`].
    /// A new pool has the smaller rings of those that its two processes would make.
    pub ring_bytes: u32,
    /// A slot that both ends have closed.
    pub freed: Option<Freed>,
}

/// A slot of a pool of this process that both ends have closed. One is enough: an ask takes one slot at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// Number of the pool, not 0.
    pub pool: u64,
    /// Its slot, below [`Shape::MAX_SLOTS`].
    pub slot: u32,
    /// The cookie of the maker's socket, not 0. The slot may be another connection's by now.
    pub maker: u64,
}

impl Ask {
    /// The record.
    ///
    /// # Errors
    /// [`WireError::Value`] where a field has a value that it never has.
    pub fn emit(&self) -> Result<[u8; LEN], WireError> {
        self.check()?;
        let mut to = Header::begin::<LEN>(LEN, KIND, self.mark, self.token);
        to.u32(self.ring_bytes);
        to.u32(self.freed.map_or(0, |it| it.slot));
        to.u64(self.freed.map_or(0, |it| it.pool));
        to.u64(self.freed.map_or(0, |it| it.maker));
        Ok(to.finish().0)
    }

    /// What a packet asks.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(packet: &[u8]) -> Result<Ask, WireError> {
        let (header, mut from) = Header::parse_as(packet, KIND, LEN)?;
        let ring_bytes = from.u32()?;
        let freed = match (from.u32()?, from.u64()?, from.u64()?) {
            (0, 0, 0) => None,
            (slot, pool, maker) => Some(Freed { pool, slot, maker }),
        };
        let ask = Ask { token: header.token, mark: header.mark, ring_bytes, freed };
        ask.check()?;
        Ok(ask)
    }

    fn check(&self) -> Result<(), WireError> {
        if !shape::is_ring(self.ring_bytes) {
            return Err(WireError::Value("ring_bytes"));
        }
        match self.freed {
            Some(Freed { pool: 0, .. }) => Err(WireError::Value("pool")),
            Some(Freed { maker: 0, .. }) => Err(WireError::Value("maker")),
            Some(Freed { slot: Shape::MAX_SLOTS.., .. }) => Err(WireError::Value("slot")),
            _ => Ok(()),
        }
    }
}

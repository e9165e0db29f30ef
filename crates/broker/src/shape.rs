//! How large a pool of channels is.

use crate::error::WireError;

/// Shape of a pool: how many connections it has room for, and how large their rings are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    ring_bytes: u32,
    slots: u32,
}

impl Shape {
    /// Most slots of a pool.
    pub const MAX_SLOTS: u32 = 64;
    /// The smallest ring, in bytes.
    pub const MIN_RING: u32 = 1 << 16;
    /// The largest ring, in bytes.
    pub const MAX_RING: u32 = 1 << 24;
    /// Bytes of the page of control words that the pool and each of its slots begin with.
    const PAGE: u64 = 4096;

    /// A shape of `slots` slots (1 to [`Shape::MAX_SLOTS`]) with rings of `ring_bytes` bytes, a power of two from
    /// [`Shape::MIN_RING`] to [`Shape::MAX_RING`].
    ///
    /// # Errors
    /// [`WireError::Value`] for any other.
    pub const fn new(ring_bytes: u32, slots: u32) -> Result<Shape, WireError> {
        if !is_ring(ring_bytes) {
            return Err(WireError::Value("ring_bytes"));
        }
        if slots == 0 || slots > Self::MAX_SLOTS {
            return Err(WireError::Value("slots"));
        }
        Ok(Shape { ring_bytes, slots })
    }

    /// Bytes of each ring.
    pub const fn ring_bytes(self) -> u32 {
        self.ring_bytes
    }

    /// Number of slots.
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Bytes of a pool of this shape: a page for the pool, and a page and two rings for each slot.
    pub const fn pool_bytes(self) -> u64 {
        Self::PAGE + self.slots as u64 * (Self::PAGE + 2 * self.ring_bytes as u64)
    }
}

/// Whether a ring may have so many bytes.
pub(crate) const fn is_ring(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= Shape::MIN_RING && bytes <= Shape::MAX_RING
}

// Both sides of the wire keep a bit for each slot of a pool.
const _: () = assert!(Shape::MAX_SLOTS <= u64::BITS);

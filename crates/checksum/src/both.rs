//! The Internet checksum and Fletcher's in one pass: for a packet of the one protocol that carries one of the other.
//!
//! As 65,535 = 255 · 257, Fletcher's c0 is the Internet sum modulo 255. That saves the one pass nothing, which needs c0
//! before each block for c1; it is a check of both.

use crate::variant::{self, Variant};
use crate::vector::{Accumulator, Kind, Vector};
use crate::{fletcher, internet};

/// Both sums of the same octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Both {
    /// RFC 1071's.
    pub internet: internet::Sum,
    /// ISO's.
    pub fletcher: fletcher::Sums,
}

impl Both {
    /// The sums of these octets, by the fastest variant of this processor.
    #[inline]
    pub fn of(octets: &[u8]) -> Both {
        variant::sum(octets)
    }

    /// The sums of these octets by a certain variant. A variant that is not available is replaced by
    /// [`Variant::Scalar`].
    pub fn by(variant: Variant, octets: &[u8]) -> Both {
        variant::sum_by(variant, octets)
    }

    /// The sums of what lies in these pieces, of any lengths, one behind the other.
    pub fn gather<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Both {
        variant::gather(pieces)
    }

    /// Copies these octets to as many others, and sums them in the same pass, by the fastest variant of this processor.
    ///
    /// # Panics
    /// If the lengths differ, before anything is written.
    #[inline]
    pub fn copying(from: &[u8], to: &mut [u8]) -> Both {
        variant::copy(from, to)
    }

    /// As [`copying`](Self::copying), by a certain variant.
    ///
    /// # Panics
    /// If the lengths differ, before anything is written.
    pub fn copying_by(variant: Variant, from: &[u8], to: &mut [u8]) -> Both {
        variant::copy_by(variant, from, to)
    }
}

/// Words and octets of the same rows.
pub(crate) struct Pair<A, B>(A, B);

impl<V, const K: usize, A, B> Accumulator<V, K> for Pair<A, B>
where
    V: Vector,
    A: Accumulator<V, K, Sum = internet::Sum>,
    B: Accumulator<V, K, Sum = fletcher::Sums>,
{
    type Sum = Both;

    #[inline(always)]
    fn new(vector: V) -> Self {
        Pair(A::new(vector), B::new(vector))
    }

    #[inline(always)]
    fn add(&mut self, vector: V, row: [V::Octets; K]) {
        self.0.add(vector, row);
        self.1.add(vector, row);
    }

    #[inline(always)]
    fn conclude(self, vector: V, len: usize, rows: usize) -> Both {
        Both { internet: self.0.conclude(vector, len, rows), fletcher: self.1.conclude(vector, len, rows) }
    }
}

impl Kind for Both {
    type Accumulator<V: Vector, const K: usize> =
        Pair<<internet::Sum as Kind>::Accumulator<V, K>, <fletcher::Sums as Kind>::Accumulator<V, K>>;

    fn reference(octets: &[u8]) -> Both {
        Both { internet: Kind::reference(octets), fletcher: Kind::reference(octets) }
    }

    #[inline(always)]
    fn join(self, next: Both, at: usize, len: usize) -> Both {
        Both {
            internet: self.internet.join(next.internet, at, len),
            fletcher: self.fletcher.join(next.fletcher, at, len),
        }
    }
}

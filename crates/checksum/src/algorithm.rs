//! Either checksum of one packet, by the processor.

use crate::{Variant, fletcher, internet};

/// Which sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 1071's.
    Internet,
    /// ISO's.
    Fletcher,
}

impl Algorithm {
    /// A packet's sums, by the processor.
    #[inline]
    pub fn sums(self, variant: Variant, octets: &[u8], before: internet::Sum) -> Outcome {
        match self {
            Algorithm::Internet => Outcome::Internet(before.then(internet::Sum::by(variant, octets), 0)),
            Algorithm::Fletcher => Outcome::Fletcher(fletcher::Sums::by(variant, octets)),
        }
    }
}

/// A packet's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No sum was computed, because the link guarantees the octets.
    Skipped,
    /// The sum of [`Algorithm::Internet`].
    Internet(internet::Sum),
    /// The sums of [`Algorithm::Fletcher`].
    Fletcher(fletcher::Sums),
}

impl Outcome {
    /// Whether the packet is as it was sent.
    #[inline]
    pub fn is_intact(self) -> bool {
        match self {
            Outcome::Skipped => true,
            Outcome::Internet(sum) => sum.is_intact(),
            Outcome::Fletcher(sums) => sums.is_zero(),
        }
    }
}

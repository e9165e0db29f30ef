//! Fletcher's checksum as ISO uses it: two sums modulo 255 over a PDU, and two octets in its header that bring both to
//! zero.
//!
//! The sums of a PDU that lies in pieces are those of its pieces, joined ([`Sums::then`]), so that user data can be
//! summed where it is touched anyway and the header added later.
//!
//! ```
//! use underpass_checksum::fletcher::{Sums, check_octets};
//!
//! // An AK TPDU whose checksum parameter is still zero; the octets go to positions 8 and 9, counted from 1.
//! let mut pdu = [0x08, 0x68, 0x12, 0x34, 0x06, 0xc3, 0x02, 0x00, 0x00];
//! [pdu[7], pdu[8]] = check_octets(Sums::of(&pdu), pdu.len(), 8);
//! assert_eq!(pdu[7..], [0x0c, 0x71]);
//! assert!(Sums::of(&pdu).is_zero());
//! ```

use crate::variant::{self, Variant};
use crate::vector::{Accumulator, Kind, Scalar, Vector};

/// The modulus. 0 and 255 are the same residue.
pub const MODULUS: u64 = 255;

/// Both sums over some octets `a₁ … a_L`, modulo 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Σ aᵢ, below 255.
    pub c0: u8,
    /// Σ (L − i + 1) · aᵢ, below 255.
    pub c1: u8,
}

impl Sums {
    /// The sums of these octets, by the fastest variant of this processor.
    #[inline]
    pub fn of(octets: &[u8]) -> Sums {
        variant::sum(octets)
    }

    /// The sums of these octets by a certain variant. A variant that is not available is replaced by
    /// [`Variant::Scalar`].
    #[inline]
    pub fn by(variant: Variant, octets: &[u8]) -> Sums {
        variant::sum_by(variant, octets)
    }

    /// The sums of what lies in these pieces, of any lengths, one behind the other.
    pub fn gather<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Sums {
        variant::gather(pieces)
    }

    /// Copies these octets to as many others, and sums them in the same pass, by the fastest variant of this processor.
    ///
    /// # Panics
    /// If the lengths differ, before anything is written.
    #[inline]
    pub fn copying(from: &[u8], to: &mut [u8]) -> Sums {
        variant::copy(from, to)
    }

    /// As [`copying`](Self::copying), by a certain variant.
    ///
    /// # Panics
    /// If the lengths differ, before anything is written.
    pub fn copying_by(variant: Variant, from: &[u8], to: &mut [u8]) -> Sums {
        variant::copy_by(variant, from, to)
    }

    /// The sums of these octets followed by `len` others whose sums are `next`.
    #[inline]
    #[must_use]
    pub fn then(self, next: Sums, len: usize) -> Sums {
        let len = len as u64 % MODULUS;
        let c1 = u64::from(self.c1) + len * u64::from(self.c0) + u64::from(next.c1);
        Sums::reduced(u64::from(self.c0) + u64::from(next.c0), c1)
    }

    /// Whether a PDU with these sums is as it was sent (RFC 905 Annex B.4).
    #[inline]
    pub fn is_zero(self) -> bool {
        self == Sums::default()
    }

    #[inline]
    fn reduced(c0: u64, c1: u64) -> Sums {
        Sums { c0: (c0 % MODULUS) as u8, c1: (c1 % MODULUS) as u8 }
    }
}

/// The sums of few octets, not reduced.
#[inline]
fn unreduced(octets: &[u8]) -> (u64, u64) {
    let (words, rest) = octets.as_chunks();
    let (mut c0, mut c1) = (0, 0);
    for &word in words {
        c1 = Scalar.add_weighted(c1 + 8 * c0, word);
        c0 = Scalar.add_octets(c0, word);
    }
    for &octet in rest {
        c0 += u64::from(octet);
        c1 += c0;
    }
    (c0, c1)
}

/// c1 = Σ (the weighted sum of each block) + `BLOCK` · Σ (c0 of all blocks before it): of those in earlier rows, and in
/// its own.
pub(crate) struct Weighted<V: Vector, const K: usize> {
    c0: [V::Lanes; K],
    before: V::Lanes,
    weighted: [V::Lanes; K],
}

impl<V: Vector, const K: usize> Accumulator<V, K> for Weighted<V, K> {
    type Sum = Sums;

    #[inline(always)]
    fn new(vector: V) -> Self {
        let zero = vector.zero();
        Weighted { c0: [zero; K], before: zero, weighted: [zero; K] }
    }

    #[inline(always)]
    fn add(&mut self, vector: V, row: [V::Octets; K]) {
        for ((c0, weighted), octets) in self.c0.iter_mut().zip(&mut self.weighted).zip(row) {
            self.before = vector.add(self.before, *c0);
            *c0 = vector.add_octets(*c0, octets);
            *weighted = vector.add_weighted(*weighted, octets);
        }
    }

    #[inline(always)]
    fn conclude(self, vector: V, len: usize, rows: usize) -> Sums {
        let zero = vector.zero();
        let (mut all, mut within, mut all_weighted) = (zero, zero, zero);
        for (c0, weighted) in self.c0.into_iter().zip(self.weighted) {
            within = vector.add(within, all);
            all = vector.add(all, c0);
            all_weighted = vector.add(all_weighted, weighted);
        }
        let (row, block) = (K * V::BLOCK, V::BLOCK as u64);
        let [c0, before, within, weighted] = vector.totals([all, self.before, within, all_weighted]);
        let c1 = row as u64 * before + block * within + weighted;
        // The zeros behind the octets have added all octets to c1 once more each.
        Sums::reduced(c0, c1 - (rows * row - len) as u64 * c0)
    }
}

impl Kind for Sums {
    type Accumulator<V: Vector, const K: usize> = Weighted<V, K>;

    fn reference(octets: &[u8]) -> Sums {
        reference(octets)
    }

    #[inline(always)]
    fn join(self, next: Sums, _: usize, len: usize) -> Sums {
        self.then(next, len)
    }
}

/// The two octets that bring both sums of a PDU of `len` octets to zero, where `sums` are those of the PDU with zeros
/// in their place, and the first of them is octet number `at`, counted from 1 (RFC 905 Annex B.3).
///
/// An octet of value 0 is given as 255, which is the same residue: in CLNP a checksum of 0 means that there is none
/// (RFC 994 §6.11).
///
/// # Panics
/// If the PDU has no two octets there.
#[inline]
pub fn check_octets(sums: Sums, len: usize, at: usize) -> [u8; 2] {
    assert!((1..len).contains(&at), "check octets lie in their PDU");
    octets(sums.c0.into(), sums.c1.into(), len - at)
}

/// Writes the check octets into the header of a PDU: at octet number `at`, counted from 1, where there are zeros.
/// Behind the header follow `len` octets with the sums `behind`.
///
/// # Panics
/// If the header is longer than 255 octets or does not reach so far.
#[inline]
pub fn seal(header: &mut [u8], at: usize, behind: Sums, len: usize) {
    assert!(header.len() <= 255, "a header of ISO's is at most 255 octets long");
    let (c0, c1) = unreduced(header);
    let (joined, len_residue) = (c0 + u64::from(behind.c0), len as u64 % MODULUS);
    let octets = octets(joined, c1 + len_residue * c0 + u64::from(behind.c1), header.len() + len - at);
    header[at - 1..=at].copy_from_slice(&octets);
}

/// The check octets where so many octets lie behind the first of them; sums are below 2³² and need not be reduced.
#[inline]
fn octets(c0: u64, c1: u64, behind: usize) -> [u8; 2] {
    /// A multiple of the modulus that is more than what is subtracted.
    const ZERO: u64 = MODULUS << 40;
    let behind = behind as u64 % MODULUS;
    let (x, y) = (ZERO + behind * c0 - c1, ZERO + c1 - (behind + 1) * c0);
    [x, y].map(|sum| if sum % MODULUS == 0 { 255 } else { (sum % MODULUS) as u8 })
}

/// The words of RFC 905 Annex B, reduced after every octet.
fn reference(octets: &[u8]) -> Sums {
    let (mut c0, mut c1) = (0, 0);
    for &octet in octets {
        c0 = (c0 + u64::from(octet)) % MODULUS;
        c1 = (c1 + c0) % MODULUS;
    }
    Sums::reduced(c0, c1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn check_octets_lie_in_their_pdu() {
        for (len, at, is_taken) in [(2, 1, true), (2, 2, false), (2, 0, false), (1, 1, false), (0, 1, false)] {
            let octets = std::panic::catch_unwind(|| check_octets(Sums::default(), len, at));
            assert_eq!(octets.is_ok(), is_taken, "octet {at} of {len}");
        }
    }

    /// What the checksum cannot see (RFC 905 Annex B): 0 and 255 are the same residue.
    #[test]
    fn zero_for_255_goes_unseen() {
        let (one, other) = ([1, 0, 2], [1, 255, 2]);
        assert_eq!(Sums::of(&one), Sums::of(&other));
    }

    proptest! {
        #[test]
        fn a_sealed_pdu_has_sums_of_zero(
            mut header in proptest::collection::vec(any::<u8>(), 2..=255),
            at in any::<prop::sample::Index>(),
            data in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            let at = at.index(header.len() - 1);
            header[at..at + 2].fill(0);
            let all = [&header[..], &data].concat();
            let wanted = check_octets(Sums::of(&all), all.len(), at + 1);
            seal(&mut header, at + 1, Sums::of(&data), data.len());
            prop_assert_eq!(&header[at..at + 2], &wanted);
            prop_assert!(Sums::of(&header).then(Sums::of(&data), data.len()).is_zero());
        }

        #[test]
        fn check_octets_bring_the_sums_to_zero(
            mut all in proptest::collection::vec(any::<u8>(), 2..2000),
            at in any::<prop::sample::Index>(),
        ) {
            let at = at.index(all.len() - 1);
            all[at..at + 2].fill(0);
            let octets = check_octets(Sums::of(&all), all.len(), at + 1);
            all[at..at + 2].copy_from_slice(&octets);
            prop_assert!(Sums::of(&all).is_zero());
            prop_assert!(octets.iter().all(|&octet| octet != 0));
        }
    }
}

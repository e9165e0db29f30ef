//! The Internet checksum (RFC 1071): the ones' complement of the ones' complement sum of 16-bit words in network order.
//!
//! The sums of what lies in pieces are those of its pieces, joined ([`Sum::then`]): a pseudo-header, a header and user
//! data.
//!
//! ```
//! use underpass_checksum::internet::Sum;
//!
//! // RFC 1071 §3's example.
//! let octets = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
//! assert_eq!(Sum::of(&octets).value(), 0xddf2);
//! let checksum = Sum::of(&octets).checksum();
//! assert!(Sum::of(&octets).then(Sum::of(&checksum.to_be_bytes()), octets.len()).is_intact());
//! ```

use crate::variant::{self, Variant};
use crate::vector::{Accumulator, Kind, Vector, few};

/// The ones' complement sum of some octets, of which the first is the high one of a word. Zero only if all of them are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u16);

impl Sum {
    /// The sum of these octets, by the fastest variant of this processor.
    #[inline]
    pub fn of(octets: &[u8]) -> Sum {
        if octets.len() <= SHORT { short(octets) } else { variant::sum(octets) }
    }

    /// The sum of these octets by a certain variant. A variant that is not available is replaced by
    /// [`Variant::Scalar`].
    #[inline]
    pub fn by(variant: Variant, octets: &[u8]) -> Sum {
        variant::sum_by(variant, octets)
    }

    /// The sum of what lies in these pieces, of any lengths, one behind the other.
    pub fn gather<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Sum {
        variant::gather(pieces)
    }

    /// Copies these octets to as many others, and sums them in the same pass, by the fastest variant of this processor.
    ///
    /// # Panics
    /// If the lengths differ, before anything is written.
    #[inline]
    pub fn copying(from: &[u8], to: &mut [u8]) -> Sum {
        variant::copy(from, to)
    }

    /// As [`copying`](Self::copying), by a certain variant.
    ///
    /// # Panics
    /// If the lengths differ, before anything is written.
    pub fn copying_by(variant: Variant, from: &[u8], to: &mut [u8]) -> Sum {
        variant::copy_by(variant, from, to)
    }

    /// The sum of what has this value as its own, such as a pseudo-header's that was kept.
    #[inline]
    pub fn from_value(value: u16) -> Sum {
        Sum(value)
    }

    /// The sum of these octets and of others that begin `at` octets behind the first of these.
    #[inline]
    #[must_use]
    pub fn then(self, next: Sum, at: usize) -> Sum {
        let next = if at.is_multiple_of(2) { next.0 } else { next.0.swap_bytes() };
        Sum(fold(u64::from(self.0) + u64::from(next)))
    }

    /// The sum once some octets that begin `at` octets behind the first have given way to as many others: `old` and
    /// `new` are the sums of both (RFC 1624, equation 3). Never zero, as the RFC wants it, not even where only zeros
    /// are left.
    #[inline]
    #[must_use]
    pub fn replacing(self, old: Sum, new: Sum, at: usize) -> Sum {
        self.then(Sum(!old.0), at).then(new, at)
    }

    /// The sum as a number.
    #[inline]
    pub fn value(self) -> u16 {
        self.0
    }

    /// What a header's checksum field gets, where the sum is that of all it covers with zeros in the field.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.0
    }

    /// Whether what has this sum, its checksum field and pseudo-header included, is as it was sent.
    #[inline]
    pub fn is_intact(self) -> bool {
        self.0 == 0xffff
    }
}

/// The sums of words as the processor reads them.
pub(crate) struct Words<V: Vector, const K: usize>([V::Lanes; K]);

impl<V: Vector, const K: usize> Accumulator<V, K> for Words<V, K> {
    type Sum = Sum;

    #[inline(always)]
    fn new(vector: V) -> Self {
        Words([vector.zero(); K])
    }

    #[inline(always)]
    fn add(&mut self, vector: V, row: [V::Octets; K]) {
        for (sums, octets) in self.0.iter_mut().zip(row) {
            *sums = vector.add_words(*sums, octets);
        }
    }

    #[inline(always)]
    fn conclude(self, vector: V, _: usize, rows: usize) -> Sum {
        let mut all = vector.zero();
        for sums in self.0 {
            all = vector.add(all, sums);
        }
        // RFC 1071 §2 (B): the sum does not mind the order of octets.
        Sum(u16::from_be(fold(vector.words(all, rows * K * V::BLOCK / 2))))
    }
}

impl Kind for Sum {
    type Accumulator<V: Vector, const K: usize> = Words<V, K>;

    fn reference(octets: &[u8]) -> Sum {
        Sum(reference(octets))
    }

    #[inline(always)]
    fn join(self, next: Sum, at: usize, _: usize) -> Sum {
        self.then(next, at)
    }
}

/// The ones' complement sum of the four 16-bit words of a number. Zero only for zero.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    // At most 2³³ − 2, hence at most 2¹⁷ − 2, and no carry is left behind the last addition.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Octets up to which words of the processor are summed sooner than a register is: headers and the shortest packets.
const SHORT: usize = 64;

/// The sum of few octets, where no processor needs to be asked what it has.
#[inline]
fn short(octets: &[u8]) -> Sum {
    let (words, part) = octets.as_chunks();
    let mut sums = [u128::from(u64::from_ne_bytes(few(part).to_le_bytes())), 0];
    let (pairs, last) = words.as_chunks::<2>();
    for [a, b] in pairs {
        sums[0] += u128::from(u64::from_ne_bytes(*a));
        sums[1] += u128::from(u64::from_ne_bytes(*b));
    }
    for word in last {
        sums[1] += u128::from(u64::from_ne_bytes(*word));
    }
    let sum = sums[0] + sums[1];
    // 2⁶⁴ − 1 is a multiple of 2¹⁶ − 1; there are fewer than 16 carries.
    let (sum, carry) = (sum as u64).overflowing_add((sum >> 64) as u64);
    Sum(u16::from_be(fold(sum + u64::from(carry))))
}

/// RFC 1071 §4.1, with the fold after every addition.
fn reference(octets: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in octets.chunks(2) {
        let low = word.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([word[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples_of_the_rfc() {
        let octets = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        for variant in Variant::available() {
            assert_eq!(Sum::by(variant, &octets).value(), 0xddf2, "{variant}");
            // §3's table once more, in the two odd pieces in which it adds them up.
            let (head, tail) = octets.split_at(3);
            assert_eq!(Sum::by(variant, head).then(Sum::by(variant, tail), 3).value(), 0xddf2, "{variant}");
        }
    }

    /// An IPv4 header, as it is in many places given as an example.
    #[test]
    fn a_header_with_its_checksum_is_intact() {
        let mut header = [69, 0, 0, 115, 0, 0, 64, 0, 64, 17, 0, 0, 192, 168, 0, 1, 192, 168, 0, 199];
        for variant in Variant::available() {
            header[10..12].fill(0);
            let checksum = Sum::by(variant, &header).checksum();
            assert_eq!(checksum, 0xb861, "{variant}");
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            assert!(Sum::by(variant, &header).is_intact(), "{variant}");
            header[3] ^= 1;
            assert!(!Sum::by(variant, &header).is_intact(), "{variant}");
            header[3] ^= 1;
        }
    }

    /// What a sum of 0 and one of 0xffff say apart: whether anything was there but zeros.
    #[test]
    fn only_zeros_have_the_sum_zero() {
        for variant in Variant::available() {
            assert_eq!(Sum::by(variant, &[0; 999]), Sum::default());
            assert_eq!(Sum::by(variant, &[0xff; 998]).value(), 0xffff);
        }
    }

    /// RFC 1624 §4: the case in which RFC 1141's equation gives 0xffff.
    #[test]
    fn example_of_the_incremental_update() {
        let sum = Sum::from_value(!0xdd2f).replacing(Sum::from_value(0x5555), Sum::from_value(0x3285), 0);
        assert_eq!(sum.checksum(), 0x0000);
    }

    /// RFC 1071 §2 (B) once more: at an odd offset, sums of old and new octets are swapped.
    #[test]
    fn any_range_may_be_replaced() {
        for (at, len) in (0..6).flat_map(|at| (0..6).map(move |len| (at, len))) {
            for (old, new) in [(0x00, 0xff), (0xff, 0x00), (0x12, 0xed), (0x00, 0x00)] {
                let mut all = [0x35; 12];
                all[at..at + len].fill(old);
                let (before, old) = (Sum::of(&all), Sum::of(&all[at..at + len]));
                all[at..at + len].fill(new);
                let after = before.replacing(old, Sum::of(&all[at..at + len]), at);
                assert_eq!(after, Sum::of(&all), "{len} octets at {at}");
            }
        }
        let all = Sum::of(&[1, 2, 3]);
        assert_eq!(all.replacing(all, Sum::default(), 0).value(), 0xffff, "never zero, although only zeros are left");
    }

    proptest! {
        #[test]
        fn a_replaced_range_leaves_the_sum_of_what_is_there_now(
            mut all in proptest::collection::vec(any::<u8>(), 1..600),
            new in proptest::collection::vec(1u8.., 1..600),
            at in any::<prop::sample::Index>(),
        ) {
            let at = at.index(all.len());
            let len = new.len().min(all.len() - at);
            let (before, old) = (Sum::of(&all), Sum::of(&all[at..at + len]));
            all[at..at + len].copy_from_slice(&new[..len]);
            prop_assert_eq!(before.replacing(old, Sum::of(&new[..len]), at), Sum::of(&all));
        }
    }
}

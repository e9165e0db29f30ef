//! Eight octets at a time in 64-bit words, which every processor has.

use super::{Kind, Vector, few, walk};
use crate::internet::fold;

/// Any processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Scalar {
    #[inline]
    pub(crate) fn walk<S: Kind, const COPY: bool>(self, from: &[u8], to: &mut [u8]) -> S {
        if from.len() < 64 { walk::<_, S, 1, COPY>(self, from, to) } else { walk::<_, S, 4, COPY>(self, from, to) }
    }
}

impl Vector for Scalar {
    const BLOCK: usize = 8;
    type Block = [u8; 8];
    type Octets = [u8; 8];
    type Lanes = u64;

    #[inline(always)]
    fn blocks(octets: &[u8]) -> (&[[u8; 8]], &[u8]) {
        octets.as_chunks()
    }

    #[inline(always)]
    fn blocks_mut(octets: &mut [u8]) -> (&mut [[u8; 8]], &mut [u8]) {
        octets.as_chunks_mut()
    }

    #[inline(always)]
    fn load(self, from: &[u8; 8]) -> [u8; 8] {
        *from
    }

    #[inline(always)]
    fn store(self, octets: [u8; 8], to: &mut [u8; 8]) {
        *to = octets;
    }

    #[inline(always)]
    fn load_part(self, from: &[u8]) -> [u8; 8] {
        few(from).to_le_bytes()
    }

    #[inline(always)]
    fn zero(self) -> u64 {
        0
    }

    /// The carry is added at the low end: 2⁶⁴ − 1 is a multiple of 2¹⁶ − 1. Only words have one.
    #[inline(always)]
    fn add(self, a: u64, b: u64) -> u64 {
        let (sum, carry) = a.overflowing_add(b);
        sum + u64::from(carry)
    }

    #[inline(always)]
    fn add_octets(self, sums: u64, octets: [u8; 8]) -> u64 {
        let [a, b, c, d, e, f, g, h] = octets.map(u64::from);
        sums + ((a + b + c + d) + (e + f + g + h))
    }

    #[inline(always)]
    fn add_weighted(self, sums: u64, octets: [u8; 8]) -> u64 {
        let [a, b, c, d, e, f, g, h] = octets.map(u64::from);
        sums + ((8 * a + 7 * b + 6 * c + 5 * d) + (4 * e + 3 * f + 2 * g + h))
    }

    #[inline(always)]
    fn add_words(self, sums: u64, octets: [u8; 8]) -> u64 {
        self.add(sums, u64::from_ne_bytes(octets))
    }

    #[inline(always)]
    fn total(self, sums: u64) -> u64 {
        sums
    }

    #[inline(always)]
    fn words(self, sums: u64, _: usize) -> u64 {
        fold(sums).into()
    }
}

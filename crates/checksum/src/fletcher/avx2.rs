//! Thirty-two octets at a time in AVX2 registers.
#![allow(unsafe_code, reason = "calls intrinsics of an instruction set that is looked for first")]

use super::{Sums, scalar};
use std::arch::x86_64::*;

/// Octets in a register.
const BLOCK: usize = 32;
/// Octets after which the 32-bit lanes of the weighted sum are emptied: each grows by at most 2 · 2 · 255 · 32 a block.
const STRETCH: usize = BLOCK << 15;

/// The sums; the caller has seen that the processor has AVX2.
#[inline]
pub(super) fn sums(octets: &[u8]) -> Sums {
    // SAFETY: the processor has AVX2, as the caller has seen.
    Sums::of_stretches(octets, STRETCH, |stretch| unsafe { stretch_sums(stretch) })
}

/// c1 = 32 · Σ (c0 before each block) + Σ (the weighted sum of each block).
#[target_feature(enable = "avx2")]
fn stretch_sums(octets: &[u8]) -> Sums {
    let (blocks, rest) = octets.as_chunks::<BLOCK>();
    let weights = _mm256_setr_epi8(
        32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4,
        3, 2, 1,
    );
    let (zero, ones) = (_mm256_setzero_si256(), _mm256_set1_epi16(1));
    let (mut c0, mut before, mut weighted) = (zero, zero, zero);
    for block in blocks {
        // SAFETY: a block is 32 readable octets; the load asks for no alignment.
        let octets = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        before = _mm256_add_epi64(before, c0);
        c0 = _mm256_add_epi64(c0, _mm256_sad_epu8(octets, zero));
        // Two products of at most 255 · 32 each fit in 16 bits.
        let pairs = _mm256_maddubs_epi16(octets, weights);
        weighted = _mm256_add_epi32(weighted, _mm256_madd_epi16(pairs, ones));
    }
    let (low, high) = (_mm256_unpacklo_epi32(weighted, zero), _mm256_unpackhi_epi32(weighted, zero));
    let weighted = lanes(_mm256_add_epi64(low, high));
    let sums = Sums::reduced(lanes(c0), BLOCK as u64 * lanes(before) + weighted);
    sums.then(scalar::sums(rest), rest.len())
}

/// The sum of the four 64-bit lanes.
#[target_feature(enable = "avx2")]
fn lanes(register: __m256i) -> u64 {
    let halves = _mm_add_epi64(_mm256_castsi256_si128(register), _mm256_extracti128_si256::<1>(register));
    (_mm_cvtsi128_si64(halves) as u64).wrapping_add(_mm_extract_epi64::<1>(halves) as u64)
}

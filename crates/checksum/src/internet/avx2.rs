//! Thirty-two octets at a time in AVX2 registers.
#![allow(unsafe_code, reason = "calls intrinsics of an instruction set that is looked for first")]

use super::{fold, scalar};
use std::arch::x86_64::*;

/// Octets in a register.
const BLOCK: usize = 32;
/// Registers that are loaded before the next are waited for.
const ROW: usize = 4;
/// Octets after which the 64-bit lanes are emptied, each of which grows by less than 2³² a register.
const STRETCH: usize = 1 << 30;

/// The sum; the caller has seen that the processor has AVX2.
pub(super) fn sum(octets: &[u8]) -> u16 {
    let sums = octets.chunks(STRETCH).map(|stretch| {
        // SAFETY: the processor has AVX2, as the caller has seen.
        u64::from(unsafe { stretch_sum(stretch) })
    });
    fold(sums.sum())
}

#[target_feature(enable = "avx2")]
fn stretch_sum(octets: &[u8]) -> u16 {
    let (blocks, rest) = octets.as_chunks::<BLOCK>();
    let (rows, more) = blocks.as_chunks::<ROW>();
    let (low, zero) = (_mm256_set1_epi64x(0xffff_ffff), _mm256_setzero_si256());
    let (mut lows, mut highs) = ([zero; ROW], [zero; ROW]);
    for row in rows {
        for (at, block) in row.iter().enumerate() {
            // SAFETY: a block is 32 readable octets; the load asks for no alignment.
            let words = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
            lows[at] = _mm256_add_epi64(lows[at], _mm256_and_si256(words, low));
            highs[at] = _mm256_add_epi64(highs[at], _mm256_srli_epi64::<32>(words));
        }
    }
    let mut all = zero;
    for at in 0..ROW {
        all = _mm256_add_epi64(all, _mm256_add_epi64(lows[at], highs[at]));
    }
    for block in more {
        // SAFETY: as above.
        let words = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        all = _mm256_add_epi64(all, _mm256_add_epi64(_mm256_and_si256(words, low), _mm256_srli_epi64::<32>(words)));
    }
    let halves = _mm_add_epi64(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
    let lanes = _mm_cvtsi128_si64(halves) as u64 + _mm_extract_epi64::<1>(halves) as u64;
    fold(u64::from(u16::from_be(fold(lanes))) + u64::from(scalar::sum(rest)))
}

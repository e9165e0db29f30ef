//! Sixty-four octets at a time in AVX-512 registers, as in [`avx2`](super::avx2), with one product (VNNI) for its two.
#![allow(unsafe_code, reason = "calls intrinsics of an instruction set that is looked for first")]

use super::Sums;
use std::arch::x86_64::*;

/// Octets in a register.
const BLOCK: usize = 64;
/// A product waits five cycles for the one before it in the same register, so they go to as many as fit that.
const CHAINS: usize = 4;
/// Octets after which the 32-bit lanes of the weighted sums are emptied: each grows by at most 4 · 255 · 64 a block.
const STRETCH: usize = BLOCK << 14;

/// 64, 63 … 1, and zeros: from `BLOCK - n` on, the weights of `n` octets.
const WEIGHTS: [i8; 2 * BLOCK] = {
    let mut weights = [0; 2 * BLOCK];
    let mut at = 0;
    while at < BLOCK {
        weights[at] = (BLOCK - at) as i8;
        at += 1;
    }
    weights
};

/// The sums; the caller has seen that the processor has AVX-512 with its VNNI and BW.
#[inline]
pub(super) fn sums(octets: &[u8]) -> Sums {
    // SAFETY: the processor has these instructions, as the caller has seen.
    Sums::of_stretches(octets, STRETCH, |stretch| unsafe { stretch_sums(stretch) })
}

/// c1 = 64 · Σ (c0 before each block) + Σ (the weighted sum of each block). The short block comes first, so that every other one
/// has the same weights.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn stretch_sums(octets: &[u8]) -> Sums {
    let (short, blocks) = octets.as_rchunks::<BLOCK>();
    let zero = _mm512_setzero_si512();
    // SAFETY: the octets of `short` alone are read, as the mask says.
    let first = unsafe { _mm512_maskz_loadu_epi8((1 << short.len()) - 1, short.as_ptr().cast()) };
    // SAFETY: `short` has fewer than 64 octets, so that 64 weights follow; the load asks for no alignment.
    let weights = unsafe { _mm512_loadu_si512(WEIGHTS.as_ptr().add(BLOCK - short.len()).cast()) };
    let (mut c0, mut before, mut weighted) = (_mm512_sad_epu8(first, zero), zero, [zero; CHAINS]);
    weighted[0] = _mm512_dpbusd_epi32(zero, first, weights);
    // SAFETY: as above.
    let weights = unsafe { _mm512_loadu_si512(WEIGHTS.as_ptr().cast()) };
    let mut block = |block: &[u8; BLOCK], weighted: &mut __m512i| {
        // SAFETY: 64 readable octets.
        let octets = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        before = _mm512_add_epi64(before, c0);
        c0 = _mm512_add_epi64(c0, _mm512_sad_epu8(octets, zero));
        *weighted = _mm512_dpbusd_epi32(*weighted, octets, weights);
    };
    let (groups, rest) = blocks.as_chunks::<CHAINS>();
    for group in groups {
        group.iter().zip(&mut weighted).for_each(|(it, weighted)| block(it, weighted));
    }
    rest.iter().zip(&mut weighted).for_each(|(it, weighted)| block(it, weighted));
    let wide = |it: __m512i| {
        let (low, high) = (_mm512_castsi512_si256(it), _mm512_extracti64x4_epi64::<1>(it));
        _mm512_add_epi64(_mm512_cvtepu32_epi64(low), _mm512_cvtepu32_epi64(high))
    };
    let [a, b, c, d] = weighted.map(wide);
    let weighted = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    // Before the lanes are added up, so that two sums are left to be.
    let c1 = _mm512_add_epi64(_mm512_slli_epi64::<6>(before), weighted);
    Sums::reduced(_mm512_reduce_add_epi64(c0) as u64, _mm512_reduce_add_epi64(c1) as u64)
}

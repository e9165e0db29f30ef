//! Sixty-four octets at a time in AVX-512 registers, as in [`avx2`](super::avx2), with one product (VNNI) for its two.
#![allow(unsafe_code, reason = "calls intrinsics of an instruction set that is looked for first")]

use super::{Sums, scalar};
use std::arch::x86_64::*;

/// Octets in a register.
const BLOCK: usize = 64;
/// Blocks after which the 32-bit lanes of the weighted sum are emptied: each grows by at most 4 · 255 · 64 a block.
const BLOCKS: usize = 1 << 14;

/// 64, 63 … 1.
const WEIGHTS: [i8; BLOCK] = {
    let mut weights = [0; BLOCK];
    let mut at = 0;
    while at < BLOCK {
        weights[at] = (BLOCK - at) as i8;
        at += 1;
    }
    weights
};

/// The sums; the caller has seen that the processor has AVX-512 with its VNNI and BW.
pub(super) fn sums(octets: &[u8]) -> Sums {
    let (blocks, rest) = octets.as_chunks::<BLOCK>();
    let mut all = Sums::default();
    for stretch in blocks.chunks(BLOCKS) {
        // SAFETY: the processor has these instructions, as the caller has seen.
        all = all.then(unsafe { stretch_sums(stretch) }, stretch.len() * BLOCK);
    }
    all.then(scalar::sums(rest), rest.len())
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn stretch_sums(blocks: &[[u8; BLOCK]]) -> Sums {
    let zero = _mm512_setzero_si512();
    // SAFETY: 64 readable octets; the load asks for no alignment.
    let weights = unsafe { _mm512_loadu_si512(WEIGHTS.as_ptr().cast()) };
    let (mut c0, mut before, mut weighted) = (zero, zero, zero);
    for block in blocks {
        // SAFETY: as above.
        let octets = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        before = _mm512_add_epi64(before, c0);
        c0 = _mm512_add_epi64(c0, _mm512_sad_epu8(octets, zero));
        weighted = _mm512_dpbusd_epi32(weighted, octets, weights);
    }
    let (low, high) = (_mm512_castsi512_si256(weighted), _mm512_extracti64x4_epi64::<1>(weighted));
    let weighted = _mm512_add_epi64(_mm512_cvtepu32_epi64(low), _mm512_cvtepu32_epi64(high));
    let [c0, before, weighted] = [c0, before, weighted].map(|it| _mm512_reduce_add_epi64(it) as u64);
    Sums::reduced(c0, BLOCK as u64 * before + weighted)
}

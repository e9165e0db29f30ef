//! Sixty-four octets at a time in AVX-512 registers: one product (VNNI) adds up the even octets, one the odd ones.
#![allow(unsafe_code, reason = "calls intrinsics of an instruction set that is looked for first")]

use super::fold;
use std::arch::x86_64::*;

/// Octets in a register.
const BLOCK: usize = 64;
/// Registers that are loaded before the next are waited for.
const ROW: usize = 4;
/// Octets after which the 32-bit lanes are emptied, each of which grows by at most 2 · 255 a register.
const STRETCH: usize = 1 << 25;

/// The sum; the caller has seen that the processor has AVX-512 with its VNNI and BW.
pub(super) fn sum(octets: &[u8]) -> u16 {
    let sums = octets.chunks(STRETCH).map(|stretch| {
        // SAFETY: the processor has these instructions, as the caller has seen.
        u64::from(unsafe { stretch_sum(stretch) })
    });
    fold(sums.sum())
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn stretch_sum(octets: &[u8]) -> u16 {
    let (blocks, rest) = octets.as_chunks::<BLOCK>();
    let (rows, more) = blocks.as_chunks::<ROW>();
    let (even, odd, zero) = (_mm512_set1_epi16(1), _mm512_set1_epi16(1 << 8), _mm512_setzero_si512());
    let (mut evens, mut odds) = ([zero; ROW], [zero; ROW]);
    for row in rows {
        for (at, block) in row.iter().enumerate() {
            // SAFETY: a block is 64 readable octets; the load asks for no alignment.
            let octets = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
            evens[at] = _mm512_dpbusd_epi32(evens[at], octets, even);
            odds[at] = _mm512_dpbusd_epi32(odds[at], octets, odd);
        }
    }
    for (at, block) in more.iter().enumerate() {
        // SAFETY: as above.
        let octets = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        evens[at] = _mm512_dpbusd_epi32(evens[at], octets, even);
        odds[at] = _mm512_dpbusd_epi32(odds[at], octets, odd);
    }
    // SAFETY: no octet is read that the mask leaves out.
    let rest = unsafe { _mm512_maskz_loadu_epi8((1 << rest.len()) - 1, rest.as_ptr().cast()) };
    evens[ROW - 1] = _mm512_dpbusd_epi32(evens[ROW - 1], rest, even);
    odds[ROW - 1] = _mm512_dpbusd_epi32(odds[ROW - 1], rest, odd);
    // The first octet of a word is the high one.
    fold((lanes(evens) << 8) + lanes(odds))
}

/// The sum of all lanes.
#[target_feature(enable = "avx512f")]
fn lanes(registers: [__m512i; ROW]) -> u64 {
    let mut all = _mm512_setzero_si512();
    for register in registers {
        let (low, high) = (_mm512_castsi512_si256(register), _mm512_extracti64x4_epi64::<1>(register));
        all = _mm512_add_epi64(all, _mm512_add_epi64(_mm512_cvtepu32_epi64(low), _mm512_cvtepu32_epi64(high)));
    }
    _mm512_reduce_add_epi64(all) as u64
}

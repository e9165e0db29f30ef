//! Sixty-four octets at a time in AVX-512 registers: products of octets or words and their sum in one instruction
//! (VNNI), and masks for what is shorter.
#![allow(unsafe_code, reason = "uses instructions that not every processor has, and memory behind a mask")]

use super::{Accumulator, Kind, Vector, walk};
use std::arch::x86_64::*;

/// A processor with AVX-512, its VNNI and BW.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn new() -> Option<Avx512> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        all.then_some(Avx512(()))
    }

    #[inline]
    pub(crate) fn walk<S: Kind, const COPY: bool>(self, from: &[u8], to: &mut [u8]) -> S {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        fn inner<S: Kind, const COPY: bool>(vector: Avx512, from: &[u8], to: &mut [u8]) -> S {
            // A product waits five cycles for the one before it in the same chain. What is short is summed before that
            // counts.
            match from.len() {
                0..=64 => vector.block::<S, COPY>(from, to),
                65..=128 => walk::<_, S, 1, COPY>(vector, from, to),
                _ => walk::<_, S, 4, COPY>(vector, from, to),
            }
        }
        // SAFETY: `self` is the proof that the processor has these instructions.
        unsafe { inner::<S, COPY>(self, from, to) }
    }

    /// The walk over no more than a block: nothing but a mask depends on the length.
    #[inline(always)]
    fn block<S: Kind, const COPY: bool>(self, from: &[u8], to: &mut [u8]) -> S {
        let octets = self.load_part(from);
        if COPY {
            self.store_part(from, octets, to);
        }
        let mut accumulator = S::Accumulator::<Avx512, 1>::new(self);
        accumulator.add(self, [octets]);
        accumulator.conclude(self, from.len(), 1)
    }

    /// The first `len` octets of a register, all 64 at most.
    #[inline(always)]
    fn mask(len: usize) -> u64 {
        u64::MAX.checked_shr(64 - len as u32).unwrap_or(0)
    }
}

/// 64, 63 … 1.
static WEIGHTS: [u8; 64] = {
    let mut weights = [0; 64];
    let mut at = 0;
    while at < 64 {
        weights[at] = 64 - at as u8;
        at += 1;
    }
    weights
};

impl Vector for Avx512 {
    const BLOCK: usize = 64;
    type Block = [u8; 64];
    type Octets = __m512i;
    type Lanes = __m512i;

    #[inline(always)]
    fn blocks(octets: &[u8]) -> (&[[u8; 64]], &[u8]) {
        octets.as_chunks()
    }

    #[inline(always)]
    fn blocks_mut(octets: &mut [u8]) -> (&mut [[u8; 64]], &mut [u8]) {
        octets.as_chunks_mut()
    }

    #[inline(always)]
    fn load(self, from: &[u8; 64]) -> __m512i {
        // SAFETY: 64 readable octets, which need no alignment; `self` is the proof of AVX-512.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, octets: __m512i, to: &mut [u8; 64]) {
        // SAFETY: 64 writable octets, which need no alignment; `self` is the proof of AVX-512.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), octets) }
    }

    #[inline(always)]
    fn load_part(self, from: &[u8]) -> __m512i {
        // SAFETY: no octet is read that the mask leaves out; `self` is the proof of AVX-512.
        unsafe { _mm512_maskz_loadu_epi8(Avx512::mask(from.len()), from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_part(self, _: &[u8], octets: __m512i, to: &mut [u8]) {
        // SAFETY: no octet is written that the mask leaves out; `self` is the proof of AVX-512.
        unsafe { _mm512_mask_storeu_epi8(to.as_mut_ptr().cast(), Avx512::mask(to.len()), octets) }
    }

    #[inline(always)]
    fn zero(self) -> __m512i {
        // SAFETY: `self` is the proof of AVX-512.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` is the proof of AVX-512.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn add_octets(self, sums: __m512i, octets: __m512i) -> __m512i {
        // SAFETY: `self` is the proof of AVX-512.
        unsafe { _mm512_dpbusd_epi32(sums, octets, _mm512_set1_epi8(1)) }
    }

    #[inline(always)]
    fn add_weighted(self, sums: __m512i, octets: __m512i) -> __m512i {
        // SAFETY: `self` is the proof of AVX-512; the weights are 64 octets.
        unsafe { _mm512_dpbusd_epi32(sums, octets, _mm512_loadu_si512(WEIGHTS.as_ptr().cast())) }
    }

    /// The product is of signed words: 2¹⁵ less each.
    #[inline(always)]
    fn add_words(self, sums: __m512i, octets: __m512i) -> __m512i {
        // SAFETY: `self` is the proof of AVX-512.
        unsafe {
            _mm512_dpwssd_epi32(sums, _mm512_xor_si512(octets, _mm512_set1_epi16(i16::MIN)), _mm512_set1_epi16(1))
        }
    }

    #[inline(always)]
    fn total(self, sums: __m512i) -> u64 {
        // SAFETY: `self` is the proof of AVX-512.
        let total = unsafe { _mm512_reduce_add_epi32(sums) };
        u64::from(total as u32)
    }

    /// Transposes the registers, which takes half of the instructions that four separate sums take.
    #[inline(always)]
    fn totals(self, [a, b, c, d]: [__m512i; 4]) -> [u64; 4] {
        // SAFETY: `self` is the proof of AVX-512.
        let [low, high] = unsafe {
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
            let all = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
            let all = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
            [_mm_cvtsi128_si64(all) as u64, _mm_extract_epi64::<1>(all) as u64]
        };
        [low & 0xffff_ffff, low >> 32, high & 0xffff_ffff, high >> 32]
    }

    #[inline(always)]
    fn words(self, sums: __m512i, count: usize) -> u64 {
        ((count as i64) << 15).wrapping_add((self.total(sums) as i32).into()) as u64
    }
}

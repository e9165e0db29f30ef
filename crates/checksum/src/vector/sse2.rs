//! Sixteen octets at a time in SSE2 registers, which every x86-64 has.
#![allow(unsafe_code, reason = "uses instructions by name")]

use super::{Kind, Vector, part, walk};
use std::arch::x86_64::*;

/// A processor with SSE2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sse2(());

impl Sse2 {
    pub(crate) fn new() -> Option<Sse2> {
        is_x86_feature_detected!("sse2").then_some(Sse2(()))
    }

    #[inline]
    pub(crate) fn walk<S: Kind, const COPY: bool>(self, from: &[u8], to: &mut [u8]) -> S {
        walk::<_, S, 2, COPY>(self, from, to)
    }
}

impl Vector for Sse2 {
    const BLOCK: usize = 16;
    type Block = [u8; 16];
    type Octets = __m128i;
    type Lanes = __m128i;

    #[inline(always)]
    fn blocks(octets: &[u8]) -> (&[[u8; 16]], &[u8]) {
        octets.as_chunks()
    }

    #[inline(always)]
    fn blocks_mut(octets: &mut [u8]) -> (&mut [[u8; 16]], &mut [u8]) {
        octets.as_chunks_mut()
    }

    #[inline(always)]
    fn load(self, from: &[u8; 16]) -> __m128i {
        // SAFETY: 16 readable octets, which need no alignment; `self` is the proof of SSE2.
        unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, octets: __m128i, to: &mut [u8; 16]) {
        // SAFETY: 16 writable octets, which need no alignment; `self` is the proof of SSE2.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), octets) }
    }

    #[inline(always)]
    fn load_part(self, from: &[u8]) -> __m128i {
        // SAFETY: `self` is the proof of SSE2.
        unsafe { registered(part(from)) }
    }

    #[inline(always)]
    fn zero(self) -> __m128i {
        // SAFETY: `self` is the proof of SSE2.
        unsafe { _mm_setzero_si128() }
    }

    #[inline(always)]
    fn add(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: `self` is the proof of SSE2.
        unsafe { _mm_add_epi32(a, b) }
    }

    #[inline(always)]
    fn add_octets(self, sums: __m128i, octets: __m128i) -> __m128i {
        // SAFETY: `self` is the proof of SSE2.
        unsafe { _mm_add_epi32(sums, _mm_sad_epu8(octets, _mm_setzero_si128())) }
    }

    #[inline(always)]
    fn add_weighted(self, sums: __m128i, octets: __m128i) -> __m128i {
        // SAFETY: `self` is the proof of SSE2.
        unsafe {
            let zero = _mm_setzero_si128();
            let (low, high) = (_mm_unpacklo_epi8(octets, zero), _mm_unpackhi_epi8(octets, zero));
            let low = _mm_madd_epi16(low, _mm_setr_epi16(16, 15, 14, 13, 12, 11, 10, 9));
            let high = _mm_madd_epi16(high, _mm_setr_epi16(8, 7, 6, 5, 4, 3, 2, 1));
            _mm_add_epi32(sums, _mm_add_epi32(low, high))
        }
    }

    /// The product is of signed words: 2¹⁵ less each.
    #[inline(always)]
    fn add_words(self, sums: __m128i, octets: __m128i) -> __m128i {
        // SAFETY: `self` is the proof of SSE2.
        unsafe {
            let words = _mm_xor_si128(octets, _mm_set1_epi16(i16::MIN));
            _mm_add_epi32(sums, _mm_madd_epi16(words, _mm_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn total(self, sums: __m128i) -> u64 {
        // SAFETY: `self` is the proof of SSE2.
        let total = unsafe {
            let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_00_11_10>(sums));
            _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32::<0b10_11_00_01>(sums)))
        };
        u64::from(total as u32)
    }

    #[inline(always)]
    fn words(self, sums: __m128i, count: usize) -> u64 {
        ((count as i64) << 15).wrapping_add((self.total(sums) as i32).into()) as u64
    }
}

/// Two numbers in a register, the first at its low end.
#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn registered([low, high]: [u64; 2]) -> __m128i {
    _mm_set_epi64x(high as i64, low as i64)
}

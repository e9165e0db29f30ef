//! Thirty-two octets at a time in AVX2 registers.
#![allow(unsafe_code, reason = "uses instructions that not every processor has")]

use super::{Kind, Vector, part, sse2::registered, walk};
use std::arch::x86_64::*;

/// A processor with AVX2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn new() -> Option<Avx2> {
        is_x86_feature_detected!("avx2").then_some(Avx2(()))
    }

    #[inline]
    pub(crate) fn walk<S: Kind, const COPY: bool>(self, from: &[u8], to: &mut [u8]) -> S {
        #[target_feature(enable = "avx2")]
        fn inner<S: Kind, const COPY: bool>(vector: Avx2, from: &[u8], to: &mut [u8]) -> S {
            walk::<_, S, 2, COPY>(vector, from, to)
        }
        // SAFETY: `self` is the proof that the processor has these instructions.
        unsafe { inner::<S, COPY>(self, from, to) }
    }
}

impl Vector for Avx2 {
    const BLOCK: usize = 32;
    type Block = [u8; 32];
    type Octets = __m256i;
    type Lanes = __m256i;

    #[inline(always)]
    fn blocks(octets: &[u8]) -> (&[[u8; 32]], &[u8]) {
        octets.as_chunks()
    }

    #[inline(always)]
    fn blocks_mut(octets: &mut [u8]) -> (&mut [[u8; 32]], &mut [u8]) {
        octets.as_chunks_mut()
    }

    #[inline(always)]
    fn load(self, from: &[u8; 32]) -> __m256i {
        // SAFETY: 32 readable octets, which need no alignment; `self` is the proof of AVX2.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, octets: __m256i, to: &mut [u8; 32]) {
        // SAFETY: 32 writable octets, which need no alignment; `self` is the proof of AVX2.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), octets) }
    }

    #[inline(always)]
    fn load_part(self, from: &[u8]) -> __m256i {
        // SAFETY: sixteen readable octets; `self` is the proof of AVX2, which has SSE2's registers.
        unsafe {
            match from.split_first_chunk::<16>() {
                Some((low, high)) => _mm256_set_m128i(registered(part(high)), _mm_loadu_si128(low.as_ptr().cast())),
                None => _mm256_zextsi128_si256(registered(part(from))),
            }
        }
    }

    #[inline(always)]
    fn zero(self) -> __m256i {
        // SAFETY: `self` is the proof of AVX2.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` is the proof of AVX2.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn add_octets(self, sums: __m256i, octets: __m256i) -> __m256i {
        // SAFETY: `self` is the proof of AVX2.
        unsafe { _mm256_add_epi32(sums, _mm256_sad_epu8(octets, _mm256_setzero_si256())) }
    }

    #[inline(always)]
    fn add_weighted(self, sums: __m256i, octets: __m256i) -> __m256i {
        // SAFETY: `self` is the proof of AVX2.
        unsafe {
            let weights = _mm256_setr_epi8(
                32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6,
                5, 4, 3, 2, 1,
            );
            // Two products of at most 255 · 32 each fit in 16 bits.
            let pairs = _mm256_maddubs_epi16(octets, weights);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    /// The product is of signed words: 2¹⁵ less each.
    #[inline(always)]
    fn add_words(self, sums: __m256i, octets: __m256i) -> __m256i {
        // SAFETY: `self` is the proof of AVX2.
        unsafe {
            let words = _mm256_xor_si256(octets, _mm256_set1_epi16(i16::MIN));
            _mm256_add_epi32(sums, _mm256_madd_epi16(words, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn total(self, sums: __m256i) -> u64 {
        // SAFETY: `self` is the proof of AVX2.
        let total = unsafe {
            let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_00_11_10>(sums));
            _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32::<0b10_11_00_01>(sums)))
        };
        u64::from(total as u32)
    }

    #[inline(always)]
    fn words(self, sums: __m256i, count: usize) -> u64 {
        ((count as i64) << 15).wrapping_add((self.total(sums) as i32).into()) as u64
    }
}

//! Sixteen octets at a time in NEON registers (Advanced SIMD), which every AArch64 with an operating system has.
#![allow(unsafe_code, reason = "uses instructions by name")]

use super::{Kind, Vector, part, walk};
use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

/// A processor with NEON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    pub(crate) fn new() -> Option<Neon> {
        is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }

    #[inline]
    pub(crate) fn walk<S: Kind, const COPY: bool>(self, from: &[u8], to: &mut [u8]) -> S {
        walk::<_, S, 4, COPY>(self, from, to)
    }
}

static WEIGHTS: [u8; 16] = [16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1];

impl Vector for Neon {
    const BLOCK: usize = 16;
    type Block = [u8; 16];
    type Octets = uint8x16_t;
    type Lanes = uint32x4_t;

    #[inline(always)]
    fn blocks(octets: &[u8]) -> (&[[u8; 16]], &[u8]) {
        octets.as_chunks()
    }

    #[inline(always)]
    fn blocks_mut(octets: &mut [u8]) -> (&mut [[u8; 16]], &mut [u8]) {
        octets.as_chunks_mut()
    }

    #[inline(always)]
    fn load(self, from: &[u8; 16]) -> uint8x16_t {
        // SAFETY: 16 readable octets; `self` is the proof of NEON.
        unsafe { vld1q_u8(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, octets: uint8x16_t, to: &mut [u8; 16]) {
        // SAFETY: 16 writable octets; `self` is the proof of NEON.
        unsafe { vst1q_u8(to.as_mut_ptr(), octets) }
    }

    #[inline(always)]
    fn load_part(self, from: &[u8]) -> uint8x16_t {
        let [low, high] = part(from);
        // SAFETY: `self` is the proof of NEON.
        unsafe { vcombine_u8(vcreate_u8(low), vcreate_u8(high)) }
    }

    #[inline(always)]
    fn zero(self) -> uint32x4_t {
        // SAFETY: `self` is the proof of NEON.
        unsafe { vdupq_n_u32(0) }
    }

    #[inline(always)]
    fn add(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        // SAFETY: `self` is the proof of NEON.
        unsafe { vaddq_u32(a, b) }
    }

    #[inline(always)]
    fn add_octets(self, sums: uint32x4_t, octets: uint8x16_t) -> uint32x4_t {
        // SAFETY: `self` is the proof of NEON.
        unsafe { vpadalq_u16(sums, vpaddlq_u8(octets)) }
    }

    #[inline(always)]
    fn add_weighted(self, sums: uint32x4_t, octets: uint8x16_t) -> uint32x4_t {
        // SAFETY: `self` is the proof of NEON; the weights are 16 octets.
        unsafe {
            let weights = vld1q_u8(WEIGHTS.as_ptr());
            // Two products of at most 255 · 16 each fit in 16 bits.
            let low = vmull_u8(vget_low_u8(octets), vget_low_u8(weights));
            vpadalq_u16(sums, vmlal_high_u8(low, octets, weights))
        }
    }

    #[inline(always)]
    fn add_words(self, sums: uint32x4_t, octets: uint8x16_t) -> uint32x4_t {
        // SAFETY: `self` is the proof of NEON.
        unsafe { vpadalq_u16(sums, vreinterpretq_u16_u8(octets)) }
    }

    #[inline(always)]
    fn total(self, sums: uint32x4_t) -> u64 {
        // SAFETY: `self` is the proof of NEON.
        unsafe { vaddlvq_u32(sums) }
    }

    #[inline(always)]
    fn words(self, sums: uint32x4_t, _: usize) -> u64 {
        self.total(sums)
    }
}

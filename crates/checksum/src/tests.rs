//! What every kind of sum has to pass in every variant of this processor; the reference is the standards' own words.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use crate::both::Both;
use crate::vector::Kind;
use crate::{Variant, fletcher, internet};

/// Octets without a pattern that a faulty variant could share.
pub(crate) fn test_octets(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// The public face of a kind.
trait Face: Kind + Debug + PartialEq {
    fn of(octets: &[u8]) -> Self;
    fn by(variant: Variant, octets: &[u8]) -> Self;
    fn gather(pieces: &[&[u8]]) -> Self;
    fn copying(from: &[u8], to: &mut [u8]) -> Self;
    fn copying_by(variant: Variant, from: &[u8], to: &mut [u8]) -> Self;
}

macro_rules! face {
    ($kind:ty) => {
        impl Face for $kind {
            fn of(octets: &[u8]) -> Self {
                <$kind>::of(octets)
            }

            fn by(variant: Variant, octets: &[u8]) -> Self {
                <$kind>::by(variant, octets)
            }

            fn gather(pieces: &[&[u8]]) -> Self {
                <$kind>::gather(pieces.iter().copied())
            }

            fn copying(from: &[u8], to: &mut [u8]) -> Self {
                <$kind>::copying(from, to)
            }

            fn copying_by(variant: Variant, from: &[u8], to: &mut [u8]) -> Self {
                <$kind>::copying_by(variant, from, to)
            }
        }
    };
}

face!(internet::Sum);
face!(fletcher::Sums);
face!(Both);

/// One in so many lengths and offsets is tried in Miri, which takes a thousand times as long.
const fn every(in_miri: usize) -> usize {
    if cfg!(miri) { in_miri } else { 1 }
}

/// Octets around a destination, which have to stay as they are.
const FENCE: usize = 80;
const UNTOUCHED: u8 = 0xa5;

/// Sums octets and copies them to so many octets behind an address that 64 divides, in every way there is.
fn check<S: Face>(from: &[u8], offset: usize) {
    let wanted = S::reference(from);
    let says = |what: &str| format!("{what}, {} octets to offset {offset}", from.len());
    assert_eq!(S::of(from), wanted, "{}", says("the fastest"));
    let mut memory = vec![UNTOUCHED; from.len() + 2 * FENCE + 64];
    let at = memory.as_ptr().align_offset(64) + FENCE + offset;
    let mut copied = |copy: &dyn Fn(&mut [u8]) -> S, what: &str| {
        memory.fill(UNTOUCHED);
        assert_eq!(copy(&mut memory[at..at + from.len()]), wanted, "{}", says(what));
        let (before, rest) = memory.split_at(at);
        let (to, behind) = rest.split_at(from.len());
        assert!(to == from, "{}: another copy", says(what));
        assert!(before.iter().chain(behind).all(|it| *it == UNTOUCHED), "{}: written outside", says(what));
    };
    copied(&|to| S::copying(from, to), "copied by the fastest");
    for variant in Variant::available() {
        assert_eq!(S::by(variant, from), wanted, "{}", says(&variant.to_string()));
        copied(&|to| S::copying_by(variant, from, to), &format!("copied by {variant}"));
    }
}

fn every_length_and_offset<S: Face>() {
    let all = test_octets(257 + 64);
    for len in (0..=257).step_by(every(61)) {
        for offset in [0, 1, 3, 7, 8, 31, 33, 63].into_iter().step_by(every(3)) {
            check::<S>(&all[offset..offset + len], offset);
            check::<S>(&all[offset..offset + len], 0);
        }
    }
}

/// 64 KiB more or less is more than a stretch of some variants, as is 1 MiB of all.
fn nothing_overflows<S: Face>() {
    for len in [2047, 2048, 65_535, 65_536, 65_537, 1 << 20] {
        for octet in [0x00, 0x01, 0xfe, 0xff] {
            check::<S>(&vec![octet; len], 1);
        }
    }
}

/// Each stretch of each variant, an octet less and one more.
fn stretches_are_joined<S: Face>() {
    let all = test_octets(200_000);
    for row in [32usize, 64, 128, 256] {
        let stretch = row * ((1 << 25) / row).isqrt();
        for len in [stretch - 1, stretch, stretch + 1, 2 * stretch + 1] {
            check::<S>(&all[3..3 + len], 7);
        }
    }
}

fn an_aligned_copy_begins_anywhere<S: Face>() {
    let all = test_octets(2300);
    for offset in (0..64).step_by(every(21)) {
        check::<S>(&all[..2048 / every(8) + 3 * offset], offset);
    }
}

/// Any octets; now and then more than a stretch of any variant, and few but zeros or ones.
fn any_octets() -> impl Strategy<Value = Vec<u8>> {
    let long = (0..200_000usize, any::<u64>(), any::<[u8; 4]>()).prop_map(|(len, seed, few)| {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..len).map(|_| few[usize::from(random.u8(..)) % 4]).collect()
    });
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..5000),
        2 => prop::collection::vec(prop::sample::select(vec![0x00, 0xff]), 0..5000),
        1 => long,
    ]
}

/// The fuzz target: any octets, whole and cut into any pieces, summed and copied in every variant.
fn random<S: Face>(all: &[u8], cuts: &[prop::sample::Index], offset: usize) {
    check::<S>(all, offset);
    let wanted = S::reference(all);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len() + 1)).collect();
    cuts.extend([0, all.len()]);
    cuts.sort_unstable();
    let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &all[ends[0]..ends[1]]).collect();
    assert_eq!(S::gather(&pieces), wanted, "cut at {cuts:?}");
    let mut memory = vec![UNTOUCHED; all.len() + 2 * FENCE];
    for variant in Variant::available() {
        let (mut summed, mut copied) = (S::default(), S::default());
        memory.fill(UNTOUCHED);
        for (piece, &at) in pieces.iter().zip(&cuts) {
            let to = &mut memory[FENCE + at..FENCE + at + piece.len()];
            copied = copied.join(S::copying_by(variant, piece, to), at, piece.len());
            summed = summed.join(S::by(variant, piece), at, piece.len());
        }
        assert_eq!((summed, copied), (wanted, wanted), "{variant}, cut at {cuts:?}");
        let (before, rest) = memory.split_at(FENCE);
        let (to, behind) = rest.split_at(all.len());
        assert!(to == all, "{variant}, cut at {cuts:?}: another copy");
        assert!(before.iter().chain(behind).all(|it| *it == UNTOUCHED), "{variant}, cut at {cuts:?}: written outside");
    }
}

fn other_lengths_are_refused<S: Face>() {
    for variant in Variant::available() {
        for (len, room) in [(0, 1), (64, 63), (64, 65), (3000, 2999), (1, 0)] {
            let mut to = vec![UNTOUCHED; room];
            let refused = catch_unwind(AssertUnwindSafe(|| S::copying_by(variant, &vec![1; len], &mut to)));
            assert!(refused.is_err(), "{variant}: {len} octets to {room}");
            assert!(to.iter().all(|it| *it == UNTOUCHED), "{variant}: {len} octets to {room}");
        }
    }
}

macro_rules! suite {
    ($name:ident, $kind:ty) => {
        mod $name {
            use super::*;

            #[test]
            fn every_length_and_offset() {
                super::every_length_and_offset::<$kind>();
            }

            #[test]
            fn nothing_overflows() {
                super::nothing_overflows::<$kind>();
            }

            #[test]
            fn stretches_are_joined() {
                super::stretches_are_joined::<$kind>();
            }

            #[test]
            fn an_aligned_copy_begins_anywhere() {
                super::an_aligned_copy_begins_anywhere::<$kind>();
            }

            #[test]
            fn other_lengths_are_refused() {
                super::other_lengths_are_refused::<$kind>();
            }

            proptest! {
                #[test]
                fn random(
                    all in any_octets(),
                    cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
                    offset in 0usize..64,
                ) {
                    super::random::<$kind>(&all, &cuts, offset);
                }
            }
        }
    };
}

suite!(internet_alone, internet::Sum);
suite!(fletcher_alone, fletcher::Sums);
suite!(both_in_one_pass, Both);

proptest! {
    /// 65,535 = 255 · 257.
    #[test]
    fn c0_is_the_internet_sum_modulo_255(all in prop::collection::vec(any::<u8>(), 0..5000)) {
        let both = Both::of(&all);
        prop_assert_eq!(u16::from(both.fletcher.c0), both.internet.value() % 255);
    }
}

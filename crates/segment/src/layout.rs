//! A mark of how the structures in shared memory are laid out, computed by the compiler from their definitions. Two
//! builds of the library share memory only if their marks agree, so a moved field never needs a new version number.
//!
//! `laid_out!` wraps the definition of such a structure. Every field's type must be [`LaidOut`] itself, so the mark of
//! a structure covers everything inside it. A compiler does not see what the words *mean*: `PROTOCOL` counts that.

use crate::sync::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

/// Raised when the meaning of a shared word changes and its place does not.
const PROTOCOL: u64 = 3;

/// A type whose layout has a mark.
pub trait LaidOut {
    /// The mark: the same in two builds if name, type, place and size of every field are.
    const LAYOUT: u64;
}

/// The mark of an empty list of fields.
pub const START: u64 = fold(0xcbf2_9ce4_8422_2325, PROTOCOL);

/// Adds a number to a mark (FNV-1a, 64 bits at a time).
pub const fn fold(mark: u64, number: u64) -> u64 {
    let mixed = (mark ^ number).wrapping_mul(0x0000_0100_0000_01b3);
    mixed ^ mixed >> 29
}

/// Adds a text to a mark.
pub const fn fold_text(mut mark: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        mark = fold(mark, bytes[at] as u64);
        at += 1;
    }
    fold(mark, bytes.len() as u64)
}

macro_rules! words {
    ($($word:ty),+) => {$(
        impl LaidOut for $word {
            const LAYOUT: u64 = fold(START, size_of::<$word>() as u64);
        }
    )+};
}

words!(u8, AtomicI32, AtomicU8, AtomicU32, AtomicU64);

impl<T: LaidOut, const N: usize> LaidOut for [T; N] {
    const LAYOUT: u64 = fold(T::LAYOUT, N as u64);
}

/// Defines a structure and its mark.
macro_rules! laid_out {
    ($(#[$about:meta])* $seen:vis struct $name:ident {
        $($(#[$field_about:meta])* $field_seen:vis $field:ident: $kind:ty,)+
    }) => {
        $(#[$about])* $seen struct $name {
            $($(#[$field_about])* $field_seen $field: $kind,)+
        }

        impl $crate::layout::LaidOut for $name {
            const LAYOUT: u64 = {
                use $crate::layout::{LaidOut, START, fold, fold_text};
                let mut mark = fold(fold_text(START, stringify!($name)), size_of::<$name>() as u64);
                $(
                    mark = fold(fold_text(mark, stringify!($field)), core::mem::offset_of!($name, $field) as u64);
                    mark = fold(mark, <$kind as LaidOut>::LAYOUT);
                )+
                mark
            };
        }
    };
    ($(#[$about:meta])* $seen:vis struct $name:ident($kind:ty);) => {
        $(#[$about])* $seen struct $name($kind);

        impl $crate::layout::LaidOut for $name {
            const LAYOUT: u64 =
                $crate::layout::fold($crate::layout::START, <$kind as $crate::layout::LaidOut>::LAYOUT);
        }
    };
}
pub(crate) use laid_out;

/// Room that only a build for tests has, which stands for another version of the library:
/// `RUSTFLAGS="--cfg underpass_other_layout"`.
pub type Spare = [AtomicU8; if cfg!(underpass_other_layout) { 64 } else { 0 }];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_a_structure_changes_its_mark() {
        macro_rules! mark {
            ($($definition:tt)+) => {{
                laid_out! { #[repr(C)] #[allow(dead_code, reason = "only its layout \
                                                                    matters")] struct It { $($definition)+ } }
                It::LAYOUT
            }};
        }
        laid_out! { #[repr(C)] #[allow(dead_code, reason = "only its layout \
        matters")] struct Inner { a: AtomicU32, b: AtomicU32, } }
        mod other {
            use super::super::*;
            laid_out! { #[repr(C)] #[allow(dead_code, reason = "only its layout \
            matters")] pub struct Inner { b: AtomicU32, a: AtomicU32, } }
        }
        let marks = [
            mark! { a: AtomicU32, b: AtomicU32, },
            mark! { b: AtomicU32, a: AtomicU32, },
            mark! { a: AtomicU32, },
            mark! { a: AtomicU32, b: AtomicU32, c: AtomicU32, },
            mark! { a: AtomicU64, },
            mark! { a: [AtomicU32; 2], },
            mark! { a: [AtomicU8; 8], },
            mark! { a: Inner, },
            mark! { a: other::Inner, },
        ];
        for (at, mark) in marks.iter().enumerate() {
            assert!(!marks[..at].contains(mark), "definition {at} has the mark of an earlier one");
        }
        assert_eq!(marks[0], mark! { a: AtomicU32, b: AtomicU32, });
    }
}

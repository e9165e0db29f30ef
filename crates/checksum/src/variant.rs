//! The ways of computing the same sums, picked once at run time or by name.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::OnceLock;

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
use crate::vector::Neon;
#[cfg(target_arch = "x86_64")]
use crate::vector::{Avx2, Avx512, Sse2};
use crate::vector::{Kind, Scalar};

/// One way of computing a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The words of the standard: an addition at a time, reduced each time.
    Reference,
    /// Eight octets at a time in 64-bit words, reduced once.
    Scalar,
    /// Sixteen octets at a time in SSE2 registers: on every x86-64.
    Sse2,
    /// Sixteen octets at a time in NEON registers: on every AArch64.
    Neon,
    /// Thirty-two octets at a time in AVX2 registers.
    Avx2,
    /// Sixty-four octets at a time in AVX-512 registers, by its products of octets (VNNI).
    Avx512,
}

/// A variant that this processor has.
#[derive(Clone, Copy)]
enum Proven {
    Reference,
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Sse2(Sse2),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon(Neon),
}

impl Variant {
    /// All variants, whether this processor has them or not, the slowest first.
    pub const ALL: [Variant; 6] =
        [Variant::Reference, Variant::Scalar, Variant::Sse2, Variant::Neon, Variant::Avx2, Variant::Avx512];

    /// Whether this processor has what it takes.
    pub fn is_available(self) -> bool {
        self.proven().is_some()
    }

    /// The fastest that this processor has.
    #[inline]
    pub fn fastest() -> Variant {
        fastest().0
    }

    /// The variants that this processor has, the slowest first.
    pub fn available() -> impl Iterator<Item = Variant> {
        Variant::ALL.into_iter().filter(|it| it.is_available())
    }

    fn proven(self) -> Option<Proven> {
        match self {
            Variant::Reference => Some(Proven::Reference),
            Variant::Scalar => Some(Proven::Scalar),
            #[cfg(target_arch = "x86_64")]
            Variant::Sse2 => Sse2::new().map(Proven::Sse2),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => Avx2::new().map(Proven::Avx2),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512 => Avx512::new().map(Proven::Avx512),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Variant::Neon => Neon::new().map(Proven::Neon),
            #[allow(unreachable_patterns, reason = "each kind of processor leaves out some")]
            _ => None,
        }
    }
}

#[inline]
fn fastest() -> (Variant, Proven) {
    static FASTEST: OnceLock<(Variant, Proven)> = OnceLock::new();
    *FASTEST.get_or_init(|| {
        let mut proven = Variant::ALL.into_iter().filter_map(|it| Some((it, it.proven()?)));
        proven.next_back().unwrap_or((Variant::Scalar, Proven::Scalar))
    })
}

/// Sums octets by the fastest variant.
#[inline]
pub(crate) fn sum<S: Kind>(octets: &[u8]) -> S {
    fastest().1.walk::<S, false>(octets, &mut [])
}

/// Sums octets by this variant, or by the scalar one.
pub(crate) fn sum_by<S: Kind>(variant: Variant, octets: &[u8]) -> S {
    Proven::of(variant).walk::<S, false>(octets, &mut [])
}

/// Sums pieces of any lengths.
pub(crate) fn gather<'a, S: Kind>(pieces: impl IntoIterator<Item = &'a [u8]>) -> S {
    let (mut all, mut len) = (S::default(), 0);
    for piece in pieces {
        all = all.join(sum(piece), len, piece.len());
        len += piece.len();
    }
    all
}

/// Copies octets and sums them by the fastest variant.
#[inline]
pub(crate) fn copy<S: Kind>(from: &[u8], to: &mut [u8]) -> S {
    fastest().1.copy(from, to)
}

/// Copies octets and sums them by this variant, or by the scalar one.
pub(crate) fn copy_by<S: Kind>(variant: Variant, from: &[u8], to: &mut [u8]) -> S {
    Proven::of(variant).copy(from, to)
}

impl Proven {
    /// The proof of this variant, or of the scalar one. Processors are asked again for others than the fastest alone.
    #[inline]
    fn of(variant: Variant) -> Proven {
        let (fastest, proven) = fastest();
        if variant == fastest { proven } else { variant.proven().unwrap_or(Proven::Scalar) }
    }

    #[inline]
    fn copy<S: Kind>(self, from: &[u8], to: &mut [u8]) -> S {
        assert_eq!(from.len(), to.len(), "octets are copied to as many others");
        self.walk::<S, true>(from, to)
    }

    #[inline]
    fn walk<S: Kind, const COPY: bool>(self, from: &[u8], to: &mut [u8]) -> S {
        match self {
            Proven::Reference => {
                if COPY {
                    to.copy_from_slice(from);
                }
                S::reference(from)
            }
            Proven::Scalar => Scalar.walk::<S, COPY>(from, to),
            #[cfg(target_arch = "x86_64")]
            Proven::Sse2(it) => it.walk::<S, COPY>(from, to),
            #[cfg(target_arch = "x86_64")]
            Proven::Avx2(it) => it.walk::<S, COPY>(from, to),
            #[cfg(target_arch = "x86_64")]
            Proven::Avx512(it) => it.walk::<S, COPY>(from, to),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Proven::Neon(it) => it.walk::<S, COPY>(from, to),
        }
    }
}

impl Display for Variant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Reference => "reference",
            Variant::Scalar => "scalar",
            Variant::Sse2 => "sse2",
            Variant::Neon => "neon",
            Variant::Avx2 => "avx2",
            Variant::Avx512 => "avx512",
        })
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(name: &str) -> Result<Variant, String> {
        Variant::ALL.into_iter().find(|it| it.to_string() == name).ok_or_else(|| {
            format!(
                "there is no variant {name:?} of the checksum: {}",
                Variant::ALL.map(|it| it.to_string()).join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_they_are_shown() {
        for variant in Variant::ALL {
            assert_eq!(variant.to_string().parse(), Ok(variant));
        }
        assert!("sse9".parse::<Variant>().unwrap_err().contains("scalar"));
    }

    #[test]
    fn the_fastest_is_available() {
        assert!(Variant::fastest().is_available());
        assert_ne!(Variant::fastest(), Variant::Reference);
    }
}

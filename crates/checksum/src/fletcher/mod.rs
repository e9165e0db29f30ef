//! Fletcher's checksum as ISO uses it: two sums modulo 255 over a PDU, and two octets in its header that bring both to zero.
//!
//! The sums of a PDU that lies in pieces are those of its pieces, joined ([`Sums::then`]), so that user data can be summed
//! where it is touched anyway and the header added later.
//!
//! ```
//! use underpass_checksum::fletcher::{Sums, check_octets};
//!
//! // An AK TPDU whose checksum parameter is still zero; the octets go to positions 8 and 9, counted from 1.
//! let mut pdu = [0x08, 0x68, 0x12, 0x34, 0x06, 0xc3, 0x02, 0x00, 0x00];
//! [pdu[7], pdu[8]] = check_octets(Sums::of(&pdu), pdu.len(), 8);
//! assert_eq!(pdu[7..], [0x0c, 0x71]);
//! assert!(Sums::of(&pdu).is_zero());
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::OnceLock;

/// The modulus. 0 and 255 are the same residue.
pub const MODULUS: u64 = 255;

/// Both sums over some octets `a₁ … a_L`, modulo 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Σ aᵢ, below 255.
    pub c0: u8,
    /// Σ (L − i + 1) · aᵢ, below 255.
    pub c1: u8,
}

impl Sums {
    /// The sums of these octets, by the fastest variant of this processor.
    #[inline]
    pub fn of(octets: &[u8]) -> Sums {
        // Below this the sums are done before a vector variant has begun.
        if octets.len() < 32 { scalar::sums(octets) } else { Variant::fastest().sums(octets) }
    }

    /// The sums of these octets followed by `len` others whose sums are `next`.
    #[inline]
    #[must_use]
    pub fn then(self, next: Sums, len: usize) -> Sums {
        let len = len as u64 % MODULUS;
        let c1 = u64::from(self.c1) + len * u64::from(self.c0) + u64::from(next.c1);
        Sums::reduced(u64::from(self.c0) + u64::from(next.c0), c1)
    }

    /// Whether a PDU with these sums is as it was sent (RFC 905 Annex B.4).
    #[inline]
    pub fn is_zero(self) -> bool {
        self == Sums::default()
    }

    #[inline]
    fn reduced(c0: u64, c1: u64) -> Sums {
        Sums { c0: (c0 % MODULUS) as u8, c1: (c1 % MODULUS) as u8 }
    }
}

/// The two octets that bring both sums of a PDU of `len` octets to zero, where `sums` are those of the PDU with zeros in their
/// place, and the first of them is octet number `at`, counted from 1 (RFC 905 Annex B.3).
///
/// An octet of value 0 is given as 255, which is the same residue: in CLNP a checksum of 0 means that there is none
/// (RFC 994 §6.11).
#[inline]
pub fn check_octets(sums: Sums, len: usize, at: usize) -> [u8; 2] {
    let (c0, c1) = (u64::from(sums.c0), u64::from(sums.c1));
    let behind = (len - at) as u64 % MODULUS;
    let x = (MODULUS - c1 + behind * c0) % MODULUS;
    let y = (c1 + MODULUS * MODULUS - (behind + 1) * c0) % MODULUS;
    [x, y].map(|octet| if octet == 0 { 255 } else { octet as u8 })
}

/// One way of computing the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// An addition to either sum per octet, reduced each time: the words of RFC 905 Annex B.
    Reference,
    /// Eight octets at a time in 64-bit words, reduced once.
    Scalar,
    /// Thirty-two octets at a time in AVX2 registers.
    Avx2,
}

impl Variant {
    /// All variants, whether this processor has them or not.
    pub const ALL: [Variant; 3] = [Variant::Reference, Variant::Scalar, Variant::Avx2];

    /// Whether this processor has what it takes.
    pub fn is_available(self) -> bool {
        match self {
            Variant::Reference | Variant::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(not(target_arch = "x86_64"))]
            Variant::Avx2 => false,
        }
    }

    /// The fastest that this processor has.
    #[inline]
    pub fn fastest() -> Variant {
        static FASTEST: OnceLock<Variant> = OnceLock::new();
        *FASTEST.get_or_init(|| if Variant::Avx2.is_available() { Variant::Avx2 } else { Variant::Scalar })
    }

    /// The sums of these octets. A variant that is not available is replaced by [`Variant::Scalar`].
    #[inline]
    pub fn sums(self, octets: &[u8]) -> Sums {
        match self {
            Variant::Reference => reference(octets),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 if self.is_available() => avx2::sums(octets),
            _ => scalar::sums(octets),
        }
    }
}

impl Display for Variant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Reference => "reference",
            Variant::Scalar => "scalar",
            Variant::Avx2 => "avx2",
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

fn reference(octets: &[u8]) -> Sums {
    let (mut c0, mut c1) = (0, 0);
    for &octet in octets {
        c0 = (c0 + u64::from(octet)) % MODULUS;
        c1 = (c1 + c0) % MODULUS;
    }
    Sums::reduced(c0, c1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn available() -> impl Iterator<Item = Variant> {
        Variant::ALL.into_iter().filter(|it| it.is_available())
    }

    /// Octets without a pattern that a faulty variant could share.
    fn octets(len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| (at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }

    #[test]
    fn every_variant_agrees_with_the_reference_at_every_length_and_offset() {
        let all = octets(257 + 64);
        for variant in available() {
            for len in 0..=257 {
                for offset in [0, 1, 3, 7, 8, 31, 33] {
                    let part = &all[offset..offset + len];
                    assert_eq!(variant.sums(part), reference(part), "{variant}, {len} octets at {offset}");
                }
            }
        }
    }

    #[test]
    fn sums_do_not_overflow() {
        for variant in available() {
            for len in [65_535, 65_536, 65_537, 5 << 20] {
                for octet in [0x00, 0xff, 0xfe] {
                    let all = vec![octet; len];
                    assert_eq!(variant.sums(&all), reference(&all), "{variant}, {len} octets of {octet:#x}");
                }
            }
        }
    }

    /// What the checksum cannot see (RFC 905 Annex B): 0 and 255 are the same residue.
    #[test]
    fn zero_for_255_goes_unseen() {
        let (one, other) = ([1, 0, 2], [1, 255, 2]);
        assert_eq!(Sums::of(&one), Sums::of(&other));
    }

    #[test]
    fn names_are_parsed_as_they_are_shown() {
        for variant in Variant::ALL {
            assert_eq!(variant.to_string().parse(), Ok(variant));
        }
        assert!("sse9".parse::<Variant>().unwrap_err().contains("scalar"));
    }

    proptest! {
        #[test]
        fn random_octets(all in proptest::collection::vec(any::<u8>(), 0..5000)) {
            for variant in available() {
                prop_assert_eq!(variant.sums(&all), reference(&all));
            }
        }

        #[test]
        fn sums_of_pieces_are_joined(all in proptest::collection::vec(any::<u8>(), 0..600), cut in any::<prop::sample::Index>()) {
            let (head, tail) = all.split_at(cut.index(all.len() + 1));
            prop_assert_eq!(Sums::of(head).then(Sums::of(tail), tail.len()), Sums::of(&all));
        }

        #[test]
        fn check_octets_bring_the_sums_to_zero(
            mut all in proptest::collection::vec(any::<u8>(), 2..2000),
            at in any::<prop::sample::Index>(),
        ) {
            let at = at.index(all.len() - 1);
            all[at..at + 2].fill(0);
            let octets = check_octets(Sums::of(&all), all.len(), at + 1);
            all[at..at + 2].copy_from_slice(&octets);
            prop_assert!(Sums::of(&all).is_zero());
            prop_assert!(octets.iter().all(|&octet| octet != 0));
        }
    }
}

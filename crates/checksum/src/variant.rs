//! The ways of computing the same sums, picked once at run time or by name.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::OnceLock;

/// One way of computing a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The words of the standard: an addition at a time, reduced each time.
    Reference,
    /// Eight octets at a time in 64-bit words, reduced once.
    Scalar,
    /// Thirty-two octets at a time in AVX2 registers.
    Avx2,
    /// Sixty-four octets at a time in AVX-512 registers, by its products of octets (VNNI).
    Avx512,
}

impl Variant {
    /// All variants, whether this processor has them or not, the slowest first.
    pub const ALL: [Variant; 4] = [Variant::Reference, Variant::Scalar, Variant::Avx2, Variant::Avx512];

    /// Whether this processor has what it takes.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            Variant::Reference | Variant::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Variant::Avx2 | Variant::Avx512 => false,
        }
    }

    /// The fastest that this processor has.
    #[inline]
    pub fn fastest() -> Variant {
        static FASTEST: OnceLock<Variant> = OnceLock::new();
        *FASTEST.get_or_init(|| Variant::available().last().unwrap_or(Variant::Scalar))
    }

    /// Those that this processor has, the slowest first.
    pub fn available() -> impl Iterator<Item = Variant> {
        Variant::ALL.into_iter().filter(|it| it.is_available())
    }
}

impl Display for Variant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Reference => "reference",
            Variant::Scalar => "scalar",
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

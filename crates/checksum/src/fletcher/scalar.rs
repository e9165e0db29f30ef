//! Eight octets at a time in 64-bit words.

use super::Sums;

/// Octets in a word.
const WORD: usize = 8;
/// Octets whose sums stay far below 2⁶⁴ without a reduction: c1 ≤ 255 · L · (L + 1) / 2.
const STRETCH: usize = 1 << 24;

#[inline]
pub(super) fn sums(octets: &[u8]) -> Sums {
    Sums::of_stretches(octets, STRETCH, stretch_sums)
}

fn stretch_sums(octets: &[u8]) -> Sums {
    let (c0, c1) = unreduced(octets);
    Sums::reduced(c0, c1)
}

/// The sums themselves, of not more than a stretch.
#[inline]
pub(super) fn unreduced(octets: &[u8]) -> (u64, u64) {
    let (words, rest) = octets.as_chunks::<WORD>();
    let (mut c0, mut c1) = (0u64, 0u64);
    for word in words {
        // The sum of eight octets, and that of each times its distance to the end: two short chains of additions instead of
        // one addition to c1 that waits for the one to c0, octet by octet.
        let [a, b, c, d, e, f, g, h] = word.map(u64::from);
        c1 += WORD as u64 * c0 + (8 * a + 7 * b + 6 * c + 5 * d) + (4 * e + 3 * f + 2 * g + h);
        c0 += (a + b + c + d) + (e + f + g + h);
    }
    for &octet in rest {
        c0 += u64::from(octet);
        c1 += c0;
    }
    (c0, c1)
}

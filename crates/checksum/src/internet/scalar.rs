//! Eight octets at a time in 64-bit words, the carry added at the low end: 2⁶⁴ − 1 is a multiple of 2¹⁶ − 1.

use super::fold;

/// Words whose additions do not wait for each other.
const CHAINS: usize = 4;

pub(super) fn sum(octets: &[u8]) -> u16 {
    let (words, rest) = octets.as_chunks::<8>();
    let (rows, more) = words.as_chunks::<CHAINS>();
    let mut sums = [0u64; CHAINS];
    for row in rows {
        for (sum, word) in sums.iter_mut().zip(row) {
            *sum = add(*sum, u64::from_ne_bytes(*word));
        }
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = more.iter().fold(u64::from_ne_bytes(last), |sum, word| add(sum, u64::from_ne_bytes(*word)));
    u16::from_be(fold(sums.into_iter().fold(sum, add)))
}

#[inline]
fn add(sum: u64, word: u64) -> u64 {
    let (sum, carry) = sum.overflowing_add(word);
    sum + u64::from(carry)
}

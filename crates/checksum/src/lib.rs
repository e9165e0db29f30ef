//! Checksums of network protocols, in the variants that the processor offers.
//!
//! [`internet`] is that of IP, TCP and UDP (RFC 1071), [`fletcher`] that of ISO's transport and network protocols
//! (X.224 §6.17, RFC 905 Annex B, RFC 994 §6.11). [`batch`] computes either for many packets, also on a GPU ([`gpu`]), which is
//! looked for at run time.

pub mod batch;
pub mod fletcher;
pub mod gpu;
pub mod internet;
mod variant;

pub use variant::Variant;

/// Octets without a pattern that a faulty variant could share.
#[cfg(test)]
fn test_octets(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

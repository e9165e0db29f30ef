//! Checksums of network protocols, in the variants that the processor offers.
//!
//! [`internet`] is the checksum of IP, TCP and UDP (RFC 1071), [`fletcher`] the checksum of ISO's transport and network
//! protocols (X.224 §6.17, RFC 905 Annex B, RFC 994 §6.11). [`batch`] computes either for many packets, also on a GPU
//! ([`gpu`]), which is looked for at run time.

mod algorithm;
pub mod batch;
pub mod both;
pub mod fletcher;
pub mod gpu;
pub mod internet;
#[cfg(test)]
mod tests;
mod variant;
mod vector;

pub use variant::Variant;

//! Checksums of network protocols, in the variants that the processor offers.
//!
//! [`fletcher`] is that of ISO's transport and network protocols (X.224 §6.17, RFC 905 Annex B, RFC 994 §6.11).

pub mod fletcher;

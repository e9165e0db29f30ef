//! Formats of what goes over a link, innermost last: [`llc`] frames, [`clnp`] packets, [`tpdu`]s.
//!
//! Each format is a plain value with `parse` (from octets that may be anything), `emit` (into octets) and `Display`;
//! what is parsed and emitted again is the same value. Octets are numbered from 1 in comments, as the standards number
//! them; on the wire numbers are big-endian throughout, which RFC 905 §13.2 has wrong and every implementation right.

pub mod clnp;
pub mod llc;
pub mod tpdu;
mod writer;

pub use writer::{NoRoom, Writer};

//! What becomes of a connection, and of the process that has it.

pub mod adopt;
mod census;
pub mod child;
pub mod close;
pub mod confine;
pub mod duplicate;
pub mod exit;
pub mod handoff;
mod image;
mod images;
mod relinquish;
pub mod reuse;

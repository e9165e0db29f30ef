//! What becomes of a connection, and of the process that has it.

pub mod child;
pub mod exit;
pub mod handoff;
mod image;

//! What becomes of a connection, and of the process that has it.

pub mod handoff;

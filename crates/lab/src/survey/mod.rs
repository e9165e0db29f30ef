//! The survey: every ordered pair of endpoints, measured by existing tools.
//!
//! [`record`] is what it leaves.

pub mod record;

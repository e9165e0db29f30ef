//! What two processes share: layout, ring, path switch, waiting, meeting.

pub mod config;
pub mod reason;

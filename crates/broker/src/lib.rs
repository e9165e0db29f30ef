//! The wire between the library in a program and `underpassd`, which says who is at the other end of a TCP connection
//! and which memory the two ends may share. Both sides, without sockets or clocks.
//!
//! The library connects to a Unix socket of type SOCK_SEQPACKET and sends an [`Ask`] for each connection, with the TCP
//! socket itself beside it (SCM_RIGHTS, unix(7)). A [`Knock`] before it finds out whether the daemon is at work. The
//! daemon sends an [`Answer`] as soon as it knows one; a [`Verdict::Met`] has the memory beside it, a sealed memfd.
//! Asking again for the same socket is always allowed: the answer is the same as long as it holds.
//!
//! Each packet is one record: a [`header`] and a body, all numbers little-endian. The length of a record follows from
//! its kind. Parsing takes any octets and never panics; a record that parses is the only spelling of its meaning.
//!
//! The command sends an [`Inquiry`] for the administrator, and gets the daemon's [`State`].
//!
//! The library uses this crate inside of programs: it allocates nothing and depends on nothing.

#![no_std]

pub mod answer;
pub mod ask;
pub mod error;
mod fields;
pub mod header;
pub mod knock;
pub mod line;
pub mod refusal;
pub mod shape;
pub mod state;

pub use answer::{Answer, Side, Verdict};
pub use ask::{Ask, Freed};
pub use error::WireError;
pub use knock::Knock;
pub use line::Line;
pub use refusal::Refusal;
pub use shape::Shape;
pub use state::{Abilities, Counts, Inquiry, State};

/// Octets of the longest record that the library sends or gets.
pub const LONGEST: usize = answer::CARRIED;

/// Where the daemon listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/underpass/broker.sock";

//! What two processes share: layout, ring, path switch, waiting, meeting.
//!
//! Along the way of a byte: a program's [`vector`] is copied into the [`ring`] of its connection's [`channel`], which
//! holds the control [`words`] as well; [`switch`] decides for each direction whether the stream is in the ring or in
//! the kernel, [`wait`] how to wait for it. The two ends find each other through the [`directory`] by the rules of
//! [`meeting`], and each keeps its own positions in its [`end`].

pub mod channel;
pub mod clock;
pub mod company;
pub mod config;
pub mod dial;
pub mod directory;
pub mod end;
pub mod family;
pub mod far;
pub mod io_uring;
pub mod kernel;
pub mod layout;
pub mod line;
pub mod local;
pub mod lock;
pub mod meeting;
#[cfg(all(test, loom))]
mod model;
mod parted;
pub mod raw;
pub mod reason;
pub mod ring;
pub mod stats;
pub mod switch;
pub mod sync;
pub mod sysv;
pub mod tap;
pub mod vector;
pub mod wait;
pub mod watch;
pub mod words;

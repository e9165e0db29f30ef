//! Who waits for a connection: polls, selects and epoll sets.

pub mod epoll;
pub mod poll;
pub mod set;

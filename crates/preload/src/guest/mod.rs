//! The process that the library is a guest in: its identity, its descriptors, its memory, and libc's own functions.

pub mod access;
pub mod buffers;
pub mod cancellation;
pub mod deadline;
pub mod departure;
pub mod errno;
pub mod family;
pub mod filter;
pub mod forked;
pub mod given;
pub mod kernel_table;
pub mod memory;
pub mod real;
pub mod settings;
pub mod statistics;
pub mod table;
pub mod thread;
pub mod turn;

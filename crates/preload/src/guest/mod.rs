//! The process that the library is a guest in: who it is, its descriptors, its memory, and libc's own functions.

pub mod access;
pub mod memory;
pub mod process;
pub mod real;
pub mod table;

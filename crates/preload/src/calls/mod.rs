//! The C functions, a file for each family of them.

pub mod aio;
pub mod descriptor;
pub mod epoll;
pub mod exec;
pub mod fork;
pub mod io_uring;
pub mod memory;
pub mod options;
pub mod passed;
pub mod poll;
pub mod receive;
pub mod seccomp;
pub mod select;
pub mod send;
pub mod sendfile;
pub mod shell;
pub mod stdio;
pub mod syscall;

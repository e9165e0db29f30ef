//! `libunderpass.so`: the libc calls by which a program reaches a TCP socket.
//!
//! Each call asks the table of descriptors whether its descriptor is a TCP connection; if not, it is libc's own call
//! and nothing else. If it is, the connection says how the call has to go: plainly, with its counters kept, or through
//! its channel. The library is a guest: no thread, no signal handler, no output; any doubt ends in the plain call.
//!
//! The modules are floors: `calls` above `lifecycle`, `watch`, `connection` and `guest`. A file imports from its own
//! floor and from those below it. Where a floor has one above it do something, the one above has given it a table of
//! functions (`guest::given`).
#![allow(
    unsafe_code,
    reason = "every function here is a C function or serves one; each unsafe block says why it holds"
)]

mod calls;
mod connection;
mod guest;
mod lifecycle;
mod watch;

/// What the command knows this library by.
#[unsafe(no_mangle)]
static UNDERPASS_LIBRARY: u8 = 1;

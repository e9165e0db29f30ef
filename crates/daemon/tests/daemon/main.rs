//! The daemon as programs see it: its socket, real TCP connections, real users and network namespaces.
//!
//! [`actor`] is this very program, run once more as another user or in a namespace of its own, and told what to do.

mod activation;
mod actor;
mod client;
mod daemon;
mod forging;
mod hostile;
mod namespaces;
mod policy;
mod refusals;
mod state;
mod users;

//! Protocol engine: ISO transport (X.224) over links that lose or do not, in layers that stack.
//!
//! Sans-I/O: octets, primitives and time are arguments. Nothing here knows a socket, a clock or an operating system.
//!
//! [`wire`] holds the formats of what goes over a link.

mod bucket;
pub mod clnp;
pub mod column;
pub mod convergence;
pub mod layer;
pub mod network;
pub mod service;
pub mod stack;
pub mod transport;
pub mod wire;

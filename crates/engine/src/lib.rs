//! Protocol engine: ISO transport (X.224) over links that lose or do not, in layers that stack.
//!
//! Sans-I/O: octets, primitives and time are arguments. No layer knows a socket, a clock, a thread or an operating
//! system.
//!
//! [`wire`] holds the formats of what goes over a link, [`layer`] what every layer does. Layers are run by a [`stack`]
//! in line, or by [`threads`], which run the workers of a [`pipeline`].

mod bucket;
pub mod clnp;
pub mod column;
pub mod convergence;
pub mod datagram;
pub mod layer;
pub mod network;
pub mod pipeline;
pub mod service;
pub mod stack;
pub mod threads;
pub mod transport;
pub mod wire;

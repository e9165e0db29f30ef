//! Transport on transport over a link in memory: nothing is copied, and buffers come back when they may, whichever
//! scheduler runs the layers.

mod copies;
mod lateness;
mod lending;
mod pieces;
mod replacing;
mod schedulers;
mod user;
mod watch;
#[path = "../simulation/wire.rs"]
#[allow(dead_code, reason = "the simulation's, which uses all of it")]
mod wire;

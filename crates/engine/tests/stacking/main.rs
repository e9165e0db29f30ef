//! Transport on transport over a link in memory: nothing is copied, buffers come back when they may, whoever runs the layers.

mod copies;
mod lending;
mod user;
mod watch;

//! The drivers, over a veth pair between two namespaces.

mod bounce;
mod delivery;
mod faults;
mod packet;
mod polling;
mod soak;
mod starvation;
mod support;

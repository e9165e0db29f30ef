//! The drivers, over a veth pair between two namespaces.

mod bounce;
mod delivery;
mod ethernet;
mod faults;
mod older;
mod packet;
mod polling;
mod refusals;
mod soak;
mod starvation;
mod support;
mod udp;
mod waiting;

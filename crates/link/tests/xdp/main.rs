//! The driver on AF_XDP, over a veth pair between two namespaces.

mod delivery;
mod faults;
mod starvation;
mod support;

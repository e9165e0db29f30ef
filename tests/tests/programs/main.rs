//! Real, unmodified programs under Underpass: right results, fast connections, nothing left behind.

mod alone;
mod beside_executions;
mod brokered;
mod capturing;
mod containers;
mod databases;
mod deaths;
mod economy;
mod everybody;
mod faults;
mod firewall;
mod forgery;
mod handover;
mod hostile;
mod io_uring;
mod one_sided;
mod passing;
mod pins;
mod runtimes;
mod scarce;
mod services;
mod statistics;
mod tools;
mod upheaval;
mod watching;
mod web;

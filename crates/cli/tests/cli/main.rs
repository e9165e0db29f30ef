//! The command as a user meets it: exit codes, signals, the terminal, messages.

mod capturing;
mod checking;
mod diff;
mod doctor;
mod environment;
mod generated;
mod installation;
mod measuring;
mod obstacles;
mod policy;
mod settings;
mod signals;
mod starters;
mod statistics;
mod support;
mod surveying;
mod transparency;
mod watching;

//! The administrator's policy: whose connections `underpassd` lets share memory. The daemon decides by it and
//! `underpass` explains it, both by this crate, so that they cannot differ.
//!
//! [`read`] takes a file that an administrator has written ([`PolicyError`] says what is wrong with it), `text` makes
//! rules of it, and [`Policy`] decides. [`User`] is what is known of a process, and
//! [`Namespace`] says whether that is all.

mod error;
mod file;
mod groups;
mod names;
mod namespace;
mod process;
mod rules;
mod text;

pub use error::PolicyError;
pub use file::{DEFAULT_FILE, of_group, read, usual};
pub use groups::Groups;
pub use namespace::Namespace;
pub use process::{User, cgroup_of, credentials_of};
pub use rules::{Decision, End, Grounds, Id, Network, Policy, Rule};
pub use text::DEFAULT_GROUP;

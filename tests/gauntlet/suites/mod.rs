//! The suites, a file each.

mod asio;
mod cpython;
mod libevent;
mod libuv;
mod memcached;
mod postgresql;
mod programs;
mod redis;
mod ruby;
mod rust;
mod stress_ng;

use crate::launch::Run;
use crate::place::Place;
use crate::verdict::Verdicts;
use anyhow::Result;

/// A third-party suite.
pub trait Suite: Sync {
    /// What people call it.
    fn name(&self) -> &'static str;
    /// What it judges, in one line.
    fn about(&self) -> &'static str;
    /// What can be run by itself.
    fn parts(&self) -> &'static [&'static str];
    /// Those that are quick enough for every change.
    fn brief(&self) -> &'static [&'static str] {
        &[]
    }
    /// Fetches and builds what `parts` take. An error says what is missing.
    fn prepare(&self, place: &Place, parts: &[&str]) -> Result<()>;
    /// Runs a part.
    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts>;
}

/// All of them, the quick ones first.
pub const SUITES: &[&dyn Suite] = &[
    &stress_ng::StressNg,
    &libevent::Libevent,
    &libuv::Libuv,
    &programs::Programs,
    &ruby::Ruby,
    &rust::Rust,
    &postgresql::PostgreSql,
    &redis::Redis,
    &memcached::Memcached,
    &asio::Asio,
    &cpython::CPython,
];

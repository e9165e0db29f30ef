//! Real servers and their usual load generators, both unmodified, both ends on the same side, unpinned.
//!
//! Every sample starts a fresh server on a free port of 127.0.0.1, in a folder of its own.

mod ab;
mod apache;
mod computing;
mod grpc;
mod gunicorn;
mod home;
mod iperf3;
pub(crate) mod load;
mod mariadb;
mod memcached;
mod mosquitto;
pub(super) mod nginx;
mod php;
mod postgresql;
mod python;
pub(super) mod redis;
mod rsync;
mod zeromq;

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::bench::{Chosen, Lab, skipped};
use crate::record::Skipped;

/// Names the experiments whose programs are installed; the others are `missing`.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    add_popular(chosen, missing);
    apache::add(chosen, missing);
    php::add(chosen, missing);
    gunicorn::add(chosen, missing);
    mariadb::add(chosen, missing);
    mosquitto::add(chosen, missing);
    grpc::add(chosen, missing);
    zeromq::add(chosen, missing);
    rsync::add(chosen, missing);
    iperf3::add(chosen, missing);
}

/// Names the experiments with the four servers that most users run.
pub fn add_popular(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    redis::add(chosen, missing);
    memcached::add(chosen, missing);
    nginx::add(chosen, missing);
    postgresql::add(chosen, missing);
}

/// Where servers lie that are not on a user's `PATH`.
const SERVER_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// The path of an installed program.
pub(super) fn installed(program: &str) -> Option<PathBuf> {
    folders().map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The path of an installed program whose name goes on with its version, as `php-fpm8.2` does.
fn installed_with_version(program: &str) -> Option<PathBuf> {
    let is_version = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let entries = folders().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let named = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(program).map(is_version);
    entries.map(|entry| entry.path()).find(|path| named(path) == Some(true))
}

/// Where programs lie.
fn folders() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    on_path.into_iter().chain(SERVER_FOLDERS.map(PathBuf::from))
}

/// The paths of all these programs, or says which is missing and what would bring it.
pub(super) fn all_installed<const N: usize>(
    name: &str,
    programs: [&str; N],
    package: &str,
) -> Result<[PathBuf; N], Skipped> {
    let mut paths = Vec::new();
    for program in programs {
        let absent = || skipped(name, format!("{program} is not installed (Debian: apt-get install {package})"));
        paths.push(installed(program).ok_or_else(absent)?);
    }
    paths.try_into().map_err(|_| skipped(name, "not installed"))
}

/// The first line in which a program tells its version.
fn version(program: &Path, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).stdin(Stdio::null()).output().ok()?;
    // Some say it on stdout, some on stderr.
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_string)
}

/// What follows `name` on its line.
fn field<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    output.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
}

/// A server's folder; gone on drop.
pub(super) fn folder() -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("underpass-server-").tempdir();
    folder.context("no place for a server's folder; TMPDIR names another one")
}

/// Seconds for which a load generator runs that counts in whole seconds.
pub(super) fn seconds(lab: &Lab) -> u32 {
    if lab.quick { 1 } else { 2 }
}

/// What the first experiment that needs it makes, and all its copies have then.
#[derive(Debug)]
pub(super) struct Shared<T>(Rc<OnceCell<T>>);

impl<T> Shared<T> {
    pub(super) fn get_or_make(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        match self.0.get() {
            Some(made) => Ok(made),
            None => make().map(|made| self.0.get_or_init(|| made)),
        }
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(Rc::default())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(Rc::clone(&self.0))
    }
}

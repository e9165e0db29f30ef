//! Which processes are accelerated, and which of them has which socket (/proc).

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::Names;

/// In the name of every file of the library.
const LIBRARY: &str = "libunderpass";

/// A descriptor of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    pub pid: u32,
    /// As in /proc/PID/comm.
    pub name: String,
    /// `None` where it is not known.
    pub fd: Option<u32>,
}

/// The accelerated processes.
pub struct Processes {
    names: Names,
    by_inode: HashMap<u64, Vec<(u32, u32)>>,
}

impl Processes {
    /// Those of `user` that have the library, and those of `known`.
    pub fn accelerated(user: u32, known: impl Iterator<Item = u32>) -> anyhow::Result<Processes> {
        let mut pids: BTreeSet<u32> = known.collect();
        let listing = fs::read_dir("/proc").context("cannot list processes; is /proc mounted?")?;
        for entry in listing.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if entry.metadata().is_ok_and(|it| it.uid() == user) && has_library(&entry.path()) {
                pids.insert(pid);
            }
        }
        let mut by_inode: HashMap<u64, Vec<(u32, u32)>> = HashMap::new();
        let mut names = Names::new();
        for pid in pids {
            let Some(name) = name_of(pid) else { continue };
            names.insert(pid, name);
            for (fd, inode) in sockets(pid) {
                by_inode.entry(inode).or_default().push((pid, fd));
            }
        }
        by_inode.values_mut().for_each(|holders| holders.sort_unstable());
        Ok(Processes { names, by_inode })
    }

    pub fn names(&self) -> Names {
        self.names.clone()
    }

    /// Those that have the socket of this inode, in order.
    pub fn holders(&self, inode: u64) -> Vec<Holder> {
        let holders = self.by_inode.get(&inode).filter(|_| inode != 0);
        holders.into_iter().flatten().filter_map(|&(pid, fd)| self.holder(pid, Some(fd))).collect()
    }

    /// The process, if it still lives.
    pub fn without_descriptor(&self, pid: u32) -> Option<Holder> {
        self.holder(pid, None)
    }

    fn holder(&self, pid: u32, fd: Option<u32>) -> Option<Holder> {
        Some(Holder { pid, name: self.names.get(&pid)?.clone(), fd })
    }
}

/// What a process is called, if it lives.
pub fn name_of(pid: u32) -> Option<String> {
    Some(printable(&fs::read(of(pid).join("comm")).ok()?))
}

fn of(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn has_library(process: &Path) -> bool {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let mut names = maps.split(|&byte| byte == b'\n').filter_map(|line| line.rsplit(|&byte| byte == b'/').next());
    names.any(|name| name.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes()))
}

/// Descriptors that are sockets, and their inodes.
fn sockets(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    let listing = fs::read_dir(of(pid).join("fd"));
    listing.into_iter().flatten().flatten().filter_map(|entry| {
        let fd = entry.file_name().to_str()?.parse().ok()?;
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((fd, inode))
    })
}

/// What a process calls itself, which may be anything, for a terminal.
fn printable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.trim_end_matches('\n').chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_a_terminal() {
        assert_eq!(printable(b"a\x1b[2J\xff b\n"), "a?[2J\u{fffd} b");
    }

    #[test]
    fn a_process_without_the_library_has_nothing() {
        let me = std::process::id();
        let all = Processes::accelerated(u32::MAX, std::iter::empty()).unwrap();
        assert_eq!((all.names().len(), all.without_descriptor(me)), (0, None));
        let mine = Processes::accelerated(u32::MAX, std::iter::once(me)).unwrap();
        assert_eq!((mine.names().len(), mine.without_descriptor(me).map(|it| it.fd)), (1, Some(None)));
        assert_eq!(mine.holders(0), []);
    }
}

//! Which processes are accelerated, and which of them has which socket (/proc).

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use underpass_segment::watch::Whose;

use super::Names;
use crate::library::is_library_name;

/// A program that was first seen so long ago has loaded its libraries.
const LOADED: Duration = Duration::from_secs(5);

/// A process that has a connection, by its number and name, with its descriptor of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedProcess {
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
    /// These, as far as they live.
    pub fn of(pids: impl Iterator<Item = u32>) -> Processes {
        let pids: BTreeSet<u32> = pids.collect();
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
        Processes { names, by_inode }
    }

    pub fn names(&self) -> Names {
        self.names.clone()
    }

    /// The processes that have the socket of this inode, in order.
    pub fn holders(&self, inode: u64) -> Vec<NamedProcess> {
        let holders = self.by_inode.get(&inode).filter(|_| inode != 0);
        holders.into_iter().flatten().filter_map(|&(pid, fd)| self.holder(pid, Some(fd))).collect()
    }

    /// The process, if it still lives.
    pub fn without_descriptor(&self, pid: u32) -> Option<NamedProcess> {
        self.holder(pid, None)
    }

    fn holder(&self, pid: u32, fd: Option<u32>) -> Option<NamedProcess> {
        Some(NamedProcess { pid, name: self.names.get(&pid)?.clone(), fd })
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
    names.any(|name| is_library_name(&String::from_utf8_lossy(name)))
}

/// What was learnt of processes at earlier looks. What one has mapped is long, and it can map nothing while it is read.
#[derive(Debug, Default)]
pub struct Images {
    known: HashMap<u32, Known>,
    look: u64,
}

/// What a process executes: when it began, and where its code and its stack begin, which differs after an exec.
type Image = [u64; 3];

#[derive(Debug)]
struct Known {
    image: Image,
    has_library: bool,
    since: Instant,
    /// `has_library` will not change while this image runs.
    is_sure: bool,
    /// The last look at which it was there.
    look: u64,
}

impl Images {
    /// The processes of `whose` that have the library.
    pub fn accelerated(&mut self, whose: Whose) -> anyhow::Result<Vec<u32>> {
        let is_meant = |user: u32| whose == Whose::All || whose == Whose::User(user);
        let mut pids = Vec::new();
        self.begin();
        let listing = fs::read_dir("/proc").context("cannot list processes; is /proc mounted?")?;
        for entry in listing.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if entry.metadata().is_ok_and(|it| is_meant(it.uid())) && self.have_library(pid, &entry.path()) {
                pids.push(pid);
            }
        }
        self.end();
        Ok(pids)
    }

    fn begin(&mut self) {
        self.look += 1;
    }

    /// Forgets those that are gone.
    fn end(&mut self) {
        self.known.retain(|_, it| it.look == self.look);
    }

    fn have_library(&mut self, pid: u32, process: &Path) -> bool {
        let Some(image) = image(&fs::read_to_string(process.join("stat")).unwrap_or_default()) else { return false };
        self.learn(pid, image, Instant::now(), || has_library(process))
    }

    fn learn(&mut self, pid: u32, image: Image, now: Instant, read: impl FnOnce() -> bool) -> bool {
        let before = self.known.get_mut(&pid).filter(|it| it.image == image);
        if let Some(it) = before {
            it.look = self.look;
            if !it.is_sure {
                it.has_library = read();
                it.is_sure = it.has_library || now.duration_since(it.since) >= LOADED;
            }
            return it.has_library;
        }
        let has_library = read();
        self.known.insert(pid, Known { image, has_library, since: now, is_sure: has_library, look: self.look });
        has_library
    }
}

/// From /proc/PID/stat, where a name may have anything in it.
fn image(stat: &str) -> Option<Image> {
    // Numbered as in proc_pid_stat(5); the first behind the name is 3.
    let figures: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let figure = |number: usize| figures.get(number - 3)?.parse().ok();
    Some([figure(22)?, figure(26)?, figure(28)?])
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
        assert!(Images::default().accelerated(Whose::User(u32::MAX)).unwrap().is_empty());
        assert!(!Images::default().accelerated(Whose::All).unwrap().contains(&me));
        let all = Processes::of(None.into_iter());
        assert_eq!((all.names().len(), all.without_descriptor(me)), (0, None));
        let mine = Processes::of(Some(me).into_iter());
        assert_eq!((mine.names().len(), mine.without_descriptor(me).map(|it| it.fd)), (1, Some(None)));
        assert_eq!(mine.holders(0), []);
    }

    #[test]
    fn what_a_process_has_mapped_is_read_again_only_while_it_may_change() {
        let mut images = Images::default();
        let start = Instant::now();
        // Whether the mappings were read, and the answer.
        let mut look = |image: Image, seconds: u64, has: bool| {
            let mut was_read = false;
            images.begin();
            let read = || {
                was_read = true;
                has
            };
            let said = images.learn(7, image, start + Duration::from_secs(seconds), read);
            images.end();
            (was_read, said)
        };
        let [shell, program, other] = [[1, 2, 3], [1, 2, 9], [8, 2, 9]];
        // The process may be about to load the library.
        assert_eq!(look(shell, 0, false), (true, false));
        assert_eq!(look(shell, 1, false), (true, false));
        assert_eq!(look(shell, 6, false), (true, false));
        assert_eq!(look(shell, 7, true), (false, false));
        // The process executes another program, which loads the library.
        assert_eq!(look(program, 7, false), (true, false));
        assert_eq!(look(program, 8, true), (true, true));
        assert_eq!(look(program, 8, false), (false, true));
        // The number is another process's.
        assert_eq!(look(other, 9, false), (true, false));
        images.begin();
        images.end();
        assert!(images.known.is_empty(), "who is gone is forgotten");
    }

    #[test]
    fn an_exec_is_told_by_where_code_and_stack_lie() {
        let of = |pid: u32| image(&fs::read_to_string(of(pid).join("stat")).unwrap());
        let mine = of(std::process::id()).unwrap();
        assert!(mine.iter().all(|&it| it > 0));
        let mut shell = std::process::Command::new("sh");
        let mut shell =
            shell.args(["-c", "read a; exec sleep 100"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        // In the middle of an exec, /proc/PID/stat has zeros for the addresses.
        let settled = |pid: u32| {
            loop {
                if let Some(image) = of(pid).filter(|image| image.iter().all(|&it| it > 0)) {
                    break image;
                }
            }
        };
        let before = settled(shell.id());
        drop(shell.stdin.take());
        while fs::read(Path::new("/proc").join(shell.id().to_string()).join("comm")).unwrap() != b"sleep\n" {}
        let after = settled(shell.id());
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(before[0] == after[0] && before != after, "{before:?} {after:?}");
        assert_eq!(image("7 (a) b) S 1"), None);
    }
}

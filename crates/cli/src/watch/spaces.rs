//! The namespaces in which connections are looked for: root sees those of all users in all namespaces, another user
//! only its own, in the namespaces of this command.
//!
//! Tables are found in their IPC namespace alone, and sockets in their network namespace. So root's command looks from
//! a thread that has entered the namespace of a process with the library, once for each namespace that there is. A
//! process in another PID namespace knows itself by another number, which /proc shows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use underpass_segment::kernel;
use underpass_segment::watch::{Seen, Whose, look_at, ordered, users};

use super::processes::Images;
use super::refused;
use super::sockets::{self, Socket};

/// Kinds of namespaces, by the names of /proc/PID/ns.
const IPC: (&str, LinkNameSpaceType) = ("ipc", LinkNameSpaceType::InterProcessCommunication);
const NETWORK: (&str, LinkNameSpaceType) = ("net", LinkNameSpaceType::Network);

/// Whose connections are looked for: this user's, or for root all users'.
pub fn whose() -> Whose {
    match kernel::user_id() {
        0 => Whose::All,
        user => Whose::User(user),
    }
}

/// A user in an IPC namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the IPC namespace; `None`: this command's own.
    pub ipc: Option<u64>,
    pub user: u32,
}

/// The namespaces that are looked at.
#[derive(Debug)]
pub struct Spaces {
    whose: Whose,
    /// A process in each IPC namespace but this command's own, by the namespace's number.
    ipc: BTreeMap<u64, u32>,
    /// A process in each network namespace but this command's own, by the namespace's number.
    network: BTreeMap<u64, u32>,
    /// This command's own, as [`kernel::namespaces`] says it.
    own: Option<u64>,
    /// What processes are numbered here, by the namespaces and the number in which they know themselves.
    numbers: HashMap<(u64, u32), u32>,
    /// Real, effective, saved and file system's user of each of them.
    users: HashMap<u32, [u32; 4]>,
}

impl Spaces {
    /// The namespaces that there are now, as far as this user may look.
    ///
    /// # Errors
    /// /proc is not there.
    pub fn now(images: &mut Images) -> anyhow::Result<Spaces> {
        let processes = if whose() == Whose::All { images.accelerated(Whose::All)? } else { Vec::new() };
        Ok(Spaces::of(whose(), processes.into_iter()))
    }

    /// The namespaces of `processes`, which have the library; for a single user only this command's own.
    pub fn of(whose: Whose, processes: impl Iterator<Item = u32>) -> Spaces {
        let own = kernel::namespaces();
        let (ipc, network) = (BTreeMap::new(), BTreeMap::new());
        let mut spaces = Spaces { whose, ipc, network, own, numbers: HashMap::new(), users: HashMap::new() };
        if whose != Whose::All {
            return spaces;
        }
        for pid in processes {
            for (kind, known) in [(IPC, &mut spaces.ipc), (NETWORK, &mut spaces.network)] {
                if let Some(number) = namespace(&process(pid), kind.0) {
                    known.entry(number).or_insert(pid);
                }
            }
            if let Some((name, users)) = own_name(pid) {
                spaces.numbers.insert(name, pid);
                spaces.users.insert(pid, users);
            }
        }
        for (kind, known) in [(IPC, &mut spaces.ipc), (NETWORK, &mut spaces.network)] {
            if let Some(own) = namespace(Path::new("/proc/self"), kind.0) {
                known.remove(&own);
            }
        }
        spaces
    }

    /// The ends of all tables.
    pub fn ends(&self) -> anyhow::Result<Vec<Seen>> {
        let look = || look_at(self.whose, &|namespaces, number| self.number(namespaces, number));
        let mut ends = look().map_err(refused)?;
        for &pid in self.ipc.values() {
            // The process may be gone by now, and its namespace too; or this root is none there.
            ends.extend(beside(pid, IPC, look).and_then(Result::ok).into_iter().flatten());
        }
        if self.whose == Whose::All {
            // A table is its user's word, and only on that user's processes.
            let is_of = |pid: &u32, user| self.users.get(pid).is_some_and(|users| users.contains(&user));
            ends.iter_mut().for_each(|end| end.processes.retain(|pid| is_of(pid, end.user)));
        }
        Ok(ends)
    }

    /// The cookies among these for which orders wait.
    pub fn ordered(&self, cookies: &[u64]) -> anyhow::Result<Vec<u64>> {
        let look = || ordered(self.whose, cookies);
        let mut all = look().map_err(refused)?;
        for &pid in self.ipc.values() {
            all.extend(beside(pid, IPC, look).and_then(Result::ok).into_iter().flatten());
        }
        Ok(all)
    }

    /// The sockets of all networks.
    pub fn sockets(&self) -> anyhow::Result<Vec<Socket>> {
        let mut all = sockets::connections()?;
        for &pid in self.network.values() {
            all.extend(beside(pid, NETWORK, sockets::connections).and_then(Result::ok).into_iter().flatten());
        }
        Ok(all)
    }

    /// The cookies of all sockets that carry a TCP connection.
    ///
    /// # Errors
    /// The kernel does not list them.
    pub fn cookies(&self) -> anyhow::Result<HashSet<u64>> {
        Ok(self.sockets()?.into_iter().map(|it| it.cookie).collect())
    }

    /// The users that have tables, each with the IPC namespace and a process in it; empty unless all users are looked
    /// at.
    pub fn users(&self) -> Vec<(Place, Option<u32>)> {
        if self.whose != Whose::All {
            return Vec::new();
        }
        let here = users().into_iter().map(|user| (Place { ipc: None, user }, None));
        let there = self.ipc.iter().flat_map(|(&number, &pid)| {
            let users = beside(pid, IPC, users).unwrap_or_default();
            users.into_iter().map(move |user| (Place { ipc: Some(number), user }, Some(pid)))
        });
        here.chain(there).collect()
    }

    /// The number that a process has here which knows itself by another in the PID namespace of this inode number.
    pub fn number_in(&self, space: u32, number: u32) -> Option<u32> {
        let is_it = |namespaces: u64| namespaces >> 32 == u64::from(space);
        let here = self.own.filter(|&own| is_it(own)).map(|_| number);
        let known = || self.numbers.iter().find(|((namespaces, known), _)| *known == number && is_it(*namespaces));
        here.or_else(|| Some(*known()?.1))
    }

    /// The number that a process has here.
    fn number(&self, namespaces: u64, number: u32) -> Option<u32> {
        let here = (self.own == Some(namespaces)).then_some(number);
        here.or_else(|| self.numbers.get(&(namespaces, number)).copied())
    }
}

/// What `what` says from within a namespace of process `pid`; `None` where this process may not enter it, or it is
/// gone.
fn beside<T: Send>(pid: u32, kind: (&str, LinkNameSpaceType), what: impl FnOnce() -> T + Send) -> Option<T> {
    let namespace = File::open(process(pid).join("ns").join(kind.0)).ok()?;
    let inside = || {
        move_into_link_name_space(namespace.as_fd(), Some(kind.1)).ok()?;
        Some(what())
    };
    // The namespace is that thread's alone.
    thread::scope(|scope| scope.spawn(inside).join().ok().flatten())
}

/// Moves this thread into the IPC namespace of process `pid`.
///
/// # Errors
/// What the kernel says.
pub fn enter_ipc(pid: u32) -> std::io::Result<()> {
    let namespace = File::open(process(pid).join("ns").join(IPC.0))?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(IPC.1))?)
}

fn process(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The number of a namespace of `process`, if it may be known.
fn namespace(process: &Path, kind: &str) -> Option<u64> {
    Some(fs::metadata(process.join("ns").join(kind)).ok()?.ino())
}

/// The namespaces and the number in which process `pid` knows itself, as [`kernel::namespaces`] and getpid(2) say it
/// there; and its users.
fn own_name(pid: u32) -> Option<((u64, u32), [u32; 4])> {
    let process = process(pid);
    let namespaces = namespace(&process, "pid")? << 32 | namespace(&process, "time").unwrap_or(0) & u64::from(u32::MAX);
    let status = fs::read_to_string(process.join("status")).ok()?;
    Some(((namespaces, innermost(&status)?), users_in(&status)?))
}

/// From /proc/PID/status as well.
fn users_in(status: &str) -> Option<[u32; 4]> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace();
    let users: Vec<u32> = numbers.filter_map(|it| it.parse().ok()).collect();
    users.try_into().ok()
}

/// From /proc/PID/status: the number in the innermost of its PID namespaces, which comes last.
fn innermost(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_as_it_knows_itself() {
        let me = std::process::id();
        let (name, users) = own_name(me).unwrap();
        assert_eq!((Some(name), users[1]), (kernel::namespaces().map(|it| (it, me)), kernel::user_id()));
        assert_eq!(innermost("Name:\tNSpid:\nNSpid:\t4711\t12\t7\nPid:\t3\n"), Some(7));
        assert_eq!(innermost("Pid:\t3\n"), None);
        let of_one = Spaces::of(Whose::User(1), [me].into_iter());
        assert!(of_one.ipc.is_empty() && of_one.numbers.is_empty());
        let of_all = Spaces::of(Whose::All, [me].into_iter());
        assert!(of_all.ipc.is_empty() && of_all.network.is_empty(), "its own are looked at anyway");
        assert_eq!(of_all.number(kernel::namespaces().unwrap(), 5), Some(5));
        assert_eq!(of_all.number(1, 5), None);
        let space = (kernel::namespaces().unwrap() >> 32) as u32;
        assert_eq!((of_all.number_in(space, 5), of_all.number_in(space + 1, 5)), (Some(5), None));
    }
}

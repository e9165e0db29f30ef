//! The user namespace of this process (user_namespaces(7)): which other processes are in it, and for which users and
//! groups it has numbers.

use crate::groups::Groups;
use std::fs;

/// In place of a group for which this namespace has no number: no group has this one (chown(2)).
const NO_GROUP: u32 = u32::MAX;

/// A user namespace, known by the numbers that it maps. Another one with the same numbers has the same users and
/// groups: only a process with CAP_SETUID and CAP_SETGID in the namespace around it makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// /proc/PID/uid_map and gid_map; `None` where /proc does not show them.
    maps: Option<[String; 2]>,
    /// The numbers of the user and of the group by which the kernel shows all those that have no number here; `None`
    /// where all have one.
    overflow: [Option<u32>; 2],
}

impl Namespace {
    /// That of this process.
    pub fn own() -> Namespace {
        Namespace::with(maps("self"), ["uid", "gid"].map(overflow))
    }

    fn with(maps: Option<[String; 2]>, overflow: [u32; 2]) -> Namespace {
        let is_whole = |at: usize| maps.as_ref().is_some_and(|it| is_whole(&it[at]));
        let overflow = [0, 1].map(|at| (!is_whole(at)).then_some(overflow[at]));
        Namespace { maps, overflow }
    }

    /// Whether the kernel shows one user alone by this number, and not all those that have none here.
    pub fn knows(&self, uid: u32) -> bool {
        Some(uid) != self.overflow[0]
    }

    /// The effective and supplementary groups that the kernel shows as these, without those that have no number here.
    pub fn groups(&self, gid: u32, groups: Vec<u32>) -> (u32, Groups) {
        let is_known = |group: &u32| Some(*group) != self.overflow[1];
        let shown = 1 + groups.len();
        let known: Vec<u32> = groups.into_iter().filter(is_known).collect();
        let gid = if is_known(&gid) { gid } else { NO_GROUP };
        let are_all = usize::from(gid != NO_GROUP) + known.len() == shown;
        let known = Groups::of(known);
        (gid, if are_all { known } else { known.and_perhaps_others() })
    }

    /// Whether process `pid` is in it; false also where /proc does not show it. /proc shows the numbers of this
    /// namespace for other ones, and those of the namespace around for this one.
    pub fn has(&self, pid: u32) -> bool {
        self.maps.is_some() && self.maps == maps(&pid.to_string())
    }
}

/// Whether a map has a number for each user or group: 32 bits but for the last, which is none.
fn is_whole(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() == u64::from(u32::MAX)
}

/// See /proc/sys/kernel/overflowuid in proc_sys_kernel(5).
fn overflow(of: &str) -> u32 {
    let text = fs::read_to_string(format!("/proc/sys/kernel/overflow{of}")).unwrap_or_default();
    text.trim().parse().unwrap_or(65_534)
}

fn maps(process: &str) -> Option<[String; 2]> {
    let map = |file| fs::read_to_string(format!("/proc/{process}/{file}")).ok().filter(|text| !text.is_empty());
    Some([map("uid_map")?, map("gid_map")?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    /// Fails if a user or a group without a number is taken for the one whose number the kernel shows.
    #[test]
    fn who_has_no_number_here_is_nobody_in_particular() {
        let with = |map: &str| Namespace::with(Some([map.into(), map.into()]), [65_534; 2]);
        let whole = with("         0          0 4294967295\n");
        assert!(whole.knows(65_534) && whole.knows(0));
        assert_eq!(whole.groups(65_534, vec![7]), (65_534, Groups::of(vec![7])));
        assert!(with("0 0 1000\n1000 1000 4294966295\n").knows(65_534));
        for part in ["0 0 1\n", "0 100000 65536\n", "0 0 1000\n1000 5000 200\n", "", "x y z\n"] {
            let part = with(part);
            assert!(!part.knows(65_534) && part.knows(1000));
            assert_eq!(part.groups(7, vec![8, 9]), (7, Groups::of(vec![8, 9])));
            assert_eq!(part.groups(7, vec![8, 65_534]), (7, Groups::of(vec![8]).and_perhaps_others()));
            assert_eq!(part.groups(65_534, vec![8]), (NO_GROUP, Groups::of(vec![8]).and_perhaps_others()));
        }
        assert!(!Namespace::with(None, [65_534; 2]).knows(65_534));
    }

    #[test]
    fn a_process_in_a_namespace_of_its_own_is_not_in_this_one() {
        let own = Namespace::own();
        assert!(own.has(std::process::id()) && !own.has(u32::MAX));
        // With a map, and without one.
        for map in [&["--map-root-user"][..], &[]] {
            let mut command = Command::new("unshare");
            command.arg("--user").args(map).args(["sh", "-c", "echo; read end"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let is_there = child.stdout.as_mut().unwrap().read(&mut [0]).unwrap() > 0;
            let is_here = own.has(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            if !is_there {
                return println!("SKIPPED: users may make no namespaces here");
            }
            assert!(!is_here, "{map:?}");
        }
    }
}

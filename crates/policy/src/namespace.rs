//! The user namespace of this process (user_namespaces(7)): which other processes are in it, and for which users and
//! groups it has numbers.

use crate::groups::Groups;
use std::fs;
use std::path::Path;

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
    /// The kernel has no other one.
    is_only: bool,
}

impl Namespace {
    /// That of this process.
    pub fn own() -> Namespace {
        Namespace::shown_by(Path::new("/proc"))
    }

    /// That of this process, as shown by a file system that is like /proc.
    fn shown_by(proc: &Path) -> Namespace {
        let own = proc.join("self");
        // A kernel without user namespaces has no such file.
        if own.join("status").exists() && !own.join("uid_map").exists() {
            return Namespace { maps: None, overflow: [None; 2], is_only: true };
        }
        Namespace::with(maps(&own), ["uid", "gid"].map(overflow))
    }

    fn with(maps: Option<[String; 2]>, overflow: [u32; 2]) -> Namespace {
        let is_whole = |at: usize| maps.as_ref().is_some_and(|it| is_whole(&it[at]));
        let overflow = [0, 1].map(|at| (!is_whole(at)).then_some(overflow[at]));
        Namespace { maps, overflow, is_only: false }
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

    /// Whether process `pid` can have left no group but as processes of this namespace can, with CAP_SETGID here; false
    /// also where /proc does not show it. /proc shows the numbers of this namespace for other ones, and those of the
    /// namespace around for this one.
    ///
    /// So it is with a process of this namespace. It is also so in a namespace that root has made, if setgroups(2) was
    /// never allowed there (/proc/PID/setgroups), as in systemd's of a service with PrivateUsers=. Any user may make
    /// such a one too, but below another one of its own in which it has left groups: setgroups(2) alone says nothing.
    /// But only root gives user 0 a number in a namespace, so one that has a number for it is below none of another
    /// user's.
    pub fn keeps_groups(&self, pid: u32) -> bool {
        let process = Path::new("/proc").join(pid.to_string());
        let Some(its) = maps(&process) else { return self.is_only };
        let is_of_root = || self.maps.is_some() && self.overflow == [None; 2] && has_root(&its[0]);
        self.maps.as_ref() == Some(&its) || is_of_root() && denies_setgroups(&process)
    }
}

/// Whether a map has a number for user 0 of this namespace.
fn has_root(map: &str) -> bool {
    map.lines().any(|line| line.split_whitespace().nth(1) == Some("0"))
}

fn denies_setgroups(process: &Path) -> bool {
    fs::read_to_string(process.join("setgroups")).is_ok_and(|text| text.trim() == "deny")
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

fn maps(process: &Path) -> Option<[String; 2]> {
    let map = |file| fs::read_to_string(process.join(file)).ok().filter(|text| !text.is_empty());
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
    fn a_kernel_without_user_namespaces_has_one() {
        let proc = tempfile::tempdir().unwrap();
        // Nothing is mounted there.
        assert!(!Namespace::shown_by(proc.path()).keeps_groups(u32::MAX));
        fs::create_dir(proc.path().join("self")).unwrap();
        fs::write(proc.path().join("self/status"), "").unwrap();
        let only = Namespace::shown_by(proc.path());
        assert!(only.knows(65_534) && only.keeps_groups(u32::MAX));
        assert_eq!(only.groups(65_534, vec![7]), (65_534, Groups::of(vec![7])));
        // Where there are maps, a process whose maps are not shown may be in any namespace.
        for map in ["uid_map", "gid_map"] {
            fs::write(proc.path().join("self").join(map), "0 0 4294967295\n").unwrap();
        }
        assert!(!Namespace::shown_by(proc.path()).keeps_groups(u32::MAX));
    }

    #[test]
    fn user_0_has_a_number_where_a_map_says_so() {
        assert!(has_root("         0          0          1\n       112        112          1\n"));
        assert!(has_root("0 100000 1\n1 0 1\n"));
        for map in ["0 1000 1\n", "0 1000 1\n1 100000 65536\n", "0 4294967295 1\n", ""] {
            assert!(!has_root(map), "{map:?}");
        }
    }

    /// unshare(1) allows no setgroups(2) where it maps a user. Fails if that is enough in a namespace of any user's.
    #[test]
    fn in_a_namespace_of_its_own_a_process_may_have_left_groups_unless_root_has_made_it() {
        let own = Namespace::own();
        assert!(own.keeps_groups(std::process::id()) && !own.keeps_groups(u32::MAX));
        let is_root = crate::process::credentials_of(std::process::id()).unwrap().0[0] == 0;
        let another = &["setpriv", "--reuid=61001", "--regid=61001", "--clear-groups"][..];
        // With a map, and without one.
        for (by, map, keeps) in [
            (&[][..], &["--map-root-user"][..], is_root),
            (&[], &[], false),
            (if is_root { another } else { &[] }, &["--map-root-user"], false),
        ] {
            let words = [by, &["unshare", "--user"], map, &["sh", "-c", "echo; read end"]].concat();
            let mut command = Command::new(words[0]);
            let command = command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let is_there = child.stdout.as_mut().unwrap().read(&mut [0]).unwrap() > 0;
            let kept = own.keeps_groups(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            if !is_there {
                return println!("SKIPPED: users may make no namespaces here");
            }
            assert_eq!(kept, keeps, "{by:?} {map:?}");
        }
    }
}

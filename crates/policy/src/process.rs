//! What is known of the user of a process.

use crate::groups::Groups;
use crate::namespace::Namespace;
use std::fs;
use std::io;

/// The user, the groups and the control group of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The number of its effective user.
    pub uid: u32,
    /// Whether that is this user's alone. The kernel shows all users as one (overflowuid) that have no number in this
    /// user namespace.
    pub is_known: bool,
    /// Its effective group.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Groups,
    /// Its control group, of cgroup2; `None` where that is not known.
    pub cgroup: Option<String>,
}

impl User {
    /// The user of a process now, as /proc shows it. The daemon instead goes by what the kernel attests when a client
    /// connects.
    ///
    /// # Errors
    /// There is no such process, or /proc does not show it.
    pub fn of_process(pid: u32) -> io::Result<User> {
        let ([uid, gid], groups) = credentials_of(pid)?;
        let namespace = Namespace::own();
        let (gid, groups) = namespace.groups(gid, groups);
        let groups = if namespace.keeps_groups(pid) { groups } else { groups.and_perhaps_others() };
        Ok(User { uid, is_known: namespace.knows(uid), gid, groups, cgroup: cgroup_of(pid) })
    }

    /// Whether it is a member of the group, as far as is known.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.numbers.contains(&group)
    }

    /// Whether it is a member of the group, unless it is known that it is not.
    pub fn may_be_in(&self, group: u32) -> bool {
        !self.groups.are_all || self.is_in(group)
    }
}

/// Effective user and group of a process now, and its supplementary groups, as /proc shows them.
///
/// # Errors
/// There is no such process, or /proc does not show it.
pub fn credentials_of(pid: u32) -> io::Result<([u32; 2], Vec<u32>)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let numbers = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default();
        line.split_whitespace().map_while(|word| word.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    let unknown = || io::Error::other("/proc/PID/status names no user");
    // Real, effective, saved, that of file systems (proc_pid_status(5)).
    let effective = |name| numbers(name).get(1).copied().ok_or_else(unknown);
    Ok(([effective("Uid")?, effective("Gid")?], numbers("Groups")))
}

/// The control group of a process, of cgroup2; `None` where it has none, or /proc does not show it.
pub fn cgroup_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.strip_suffix(" (deleted)").unwrap_or(path).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_of_its_user() {
        let me = User::of_process(std::process::id()).unwrap();
        // A file that this process makes has the same owner.
        let file = tempfile::NamedTempFile::new().unwrap().as_file().metadata().unwrap();
        assert_eq!(me.uid, file.uid());
        assert!(User::of_process(u32::MAX).is_err());
    }

    /// Fails if all are kept, or if room for more is.
    #[test]
    fn of_too_many_groups_none_is_kept_and_they_may_be_any() {
        let many: Vec<u32> = (100..).take(65_536).collect();
        let user = |groups| User { uid: 1, is_known: true, gid: 1, groups: Groups::of(groups), cgroup: None };
        let kept = user(many.clone());
        assert!(kept.groups.numbers.capacity() <= Groups::MOST);
        assert!(!kept.is_in(100) && !kept.is_in(60_000) && kept.may_be_in(60_000) && kept.may_be_in(7));
        let mut few = many;
        few.truncate(Groups::MOST);
        let few = user(few);
        assert!(few.groups.numbers.capacity() <= Groups::MOST && few.is_in(1123) && !few.may_be_in(1124));
    }

    #[test]
    fn another_user_and_its_groups_are_told() {
        let me = User::of_process(std::process::id()).unwrap();
        if me.uid != 0 {
            return println!("SKIPPED: only root can be other users");
        }
        let mut command = Command::new("setpriv");
        let words = ["--reuid=61001", "--regid=61002", "--groups=61003,61004", "sleep", "1000"];
        let mut child = command.args(words).stdout(Stdio::null()).spawn().unwrap();
        // setpriv changes the user before the groups; it has changed all of them once it is `sleep`.
        while fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        let user = User::of_process(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((user.gid, &user.groups, &user.cgroup), (61_002, &Groups::of(vec![61_003, 61_004]), &me.cgroup));
        assert_eq!(user.uid, 61_001);
        assert!(user.is_in(61_002) && user.is_in(61_004) && !user.is_in(61_001));
    }
}

//! The process that has connected to the daemon, as the kernel attests it.

use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::rc::Rc;
use underpass_policy::{Groups, Namespace, Policy, User, cgroup_of, credentials_of};

/// A process that has connected, and a descriptor that tells when it ends.
#[derive(Debug)]
pub struct Process {
    /// Its number in the daemon's PID namespace.
    pub pid: u32,
    /// Becomes readable when the process has ended.
    pub descriptor: OwnedFd,
    /// Whether the kernel attests that this process has connected, and not an earlier one with the same number.
    is_attested: bool,
    /// Whether the kernel has told all groups that it had when it connected.
    has_told_all: bool,
    /// Its user and groups when it connected. They are kept once, here and where it is decided who meets whom.
    pub user: Rc<User>,
}

impl Process {
    /// The process that has connected this Unix socket, with what `policy` asks of it. `namespace` is the user
    /// namespace of the daemon.
    ///
    /// # Errors
    /// ESRCH for a process that has ended, or that the daemon's PID namespace does not see; otherwise what the kernel
    /// says.
    pub fn at(socket: impl AsFd, policy: &Policy, namespace: &Namespace) -> io::Result<Process> {
        let credentials = sys::peer_credentials(&socket)?;
        let number = i32::try_from(credentials[0]).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::Error::from_raw_os_error(libc::ESRCH))?;
        let (descriptor, is_attested) = match sys::peer_process(&socket) {
            // Before Linux 6.5 the number may belong to another process by now.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                (pidfd_open(number, PidfdFlags::empty())?, false)
            }
            result => (result?, true),
        };
        let groups = sys::peer_groups(&socket, Groups::MOST)?;
        let mut it = Process::with(credentials, groups, (descriptor, is_attested), namespace);
        it.look(policy, namespace);
        Ok(it)
    }

    /// The process with this number, user and group, and these groups if the kernel has told them.
    fn with(
        [pid, uid, gid]: [u32; 3],
        groups: Option<Vec<u32>>,
        (descriptor, is_attested): (OwnedFd, bool),
        namespace: &Namespace,
    ) -> Process {
        let is_told = groups.is_some();
        let (gid, groups) = namespace.groups(gid, groups.unwrap_or_default());
        let has_told_all = is_told && groups.are_all();
        let groups = groups.and_perhaps_others();
        let user = Rc::new(User { uid, is_known: namespace.knows(uid), gid, groups, cgroup: None });
        Process { pid, descriptor, is_attested, has_told_all, user }
    }

    /// Looks at what /proc says of it now, as far as `policy` asks for that: its control group, and whether it may have
    /// given up groups.
    ///
    /// The order tells whose words these are. If the process with this number has the right user and groups at first,
    /// and may not have given up groups afterwards, it had not done so before. And the process that its descriptor
    /// stands for had the number as long as it lives, so that comes last.
    pub fn look(&mut self, policy: &Policy, namespace: &Namespace) {
        let (asks_groups, asks_cgroup) = (self.has_told_all && policy.denies_groups(), policy.names_cgroups());
        let is_it = (asks_groups || asks_cgroup) && self.may_be_it(namespace);
        let mut are_all = is_it && asks_groups && namespace.keeps_groups(self.pid);
        let mut cgroup = if is_it && asks_cgroup { cgroup_of(self.pid) } else { None };
        if (are_all || cgroup.is_some()) && self.has_ended() {
            (are_all, cgroup) = (false, None);
        }
        let groups = Groups::of(self.user.groups.numbers().to_vec());
        let groups = if are_all { groups } else { groups.and_perhaps_others() };
        self.user = Rc::new(User { groups, cgroup, ..*self.user });
    }

    /// Whether the process with this number is the one that has connected, as far as /proc shows. Where it may be
    /// another one, it has to have the same user and groups: a process that has given up groups takes the place of none
    /// that has not. Where the kernel has not told the groups, there is nothing to compare, and the kernel is not asked
    /// for those of the process either: it takes long to tell many.
    fn may_be_it(&self, namespace: &Namespace) -> bool {
        let is_same = || {
            credentials_of(self.pid).is_ok_and(|([uid, gid], groups)| {
                let (gid, groups) = namespace.groups(gid, groups);
                (uid, gid, groups.numbers()) == (self.user.uid, self.user.gid, self.user.groups.numbers())
            })
        };
        self.is_attested || self.has_told_all && is_same()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let mut it = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut it, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command, Stdio};

    /// A process of user 61001 with these groups, until it is dropped.
    struct Other(Child);

    impl Other {
        fn with(groups: &str) -> Other {
            let words = ["--reuid=61001", "--regid=61001", groups, "sleep", "1000"];
            let it = Other(Command::new("setpriv").args(words).stdout(Stdio::null()).spawn().unwrap());
            while fs::read_to_string(format!("/proc/{}/comm", it.0.id())).unwrap() != "sleep\n" {
                std::thread::yield_now();
            }
            it
        }

        /// What the daemon takes it for, if a process with these groups has connected that had its number.
        fn taken_for(&self, groups: Option<Vec<u32>>, is_attested: bool, policy: &Policy) -> Process {
            let pid = self.0.id();
            let descriptor = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).unwrap();
            let namespace = Namespace::own();
            let mut it = Process::with([pid, 61_001, 61_001], groups, (descriptor, is_attested), &namespace);
            it.look(policy, &namespace);
            it
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            println!("SKIPPED: only root can be other users");
        }
        is_root
    }

    /// A policy that asks for all that /proc says of a process.
    fn policy() -> Policy {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        fs::write(&path, "[[deny]]\nbetween = [{ group = 61005 }, { cgroup = \"/none.slice\" }]\n").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        underpass_policy::read(&path, &[0, rustix::process::geteuid().as_raw()]).unwrap()
    }

    /// A process that has given up group 61005 connects and ends, and another one of its user gets its number.
    #[test]
    fn another_process_with_the_number_does_not_stand_for_the_one_that_connected() {
        if !is_root() {
            return;
        }
        let (policy, other) = (policy(), Other::with("--groups=61005,61006"));
        let cgroup = cgroup_of(other.0.id());
        for (groups, is_attested, is_it) in [
            (vec![61_006], false, false),
            (vec![61_005, 61_006], false, true),
            // The kernel says that it is this one, whatever it is in by now.
            (vec![61_006], true, true),
        ] {
            let user = other.taken_for(Some(groups.clone()), is_attested, &policy).user;
            assert_eq!(user.may_be_in(61_007), !is_it, "{groups:?}");
            assert_eq!(user.cgroup, cgroup.clone().filter(|_| is_it), "{groups:?}");
        }
        // Groups that the kernel has not told may be any.
        assert!(other.taken_for(None, true, &policy).user.may_be_in(61_007));
    }

    /// A process with more groups than the daemon asks for connects and ends, and one without groups gets its number.
    /// Fails if no groups that were told and no groups that there are count as the same.
    #[test]
    fn groups_that_were_not_told_are_not_those_of_a_process_without_groups() {
        if !is_root() {
            return;
        }
        let (policy, other) = (policy(), Other::with("--clear-groups"));
        let cgroup = cgroup_of(other.0.id());
        assert!(cgroup.is_some());
        assert_eq!(other.taken_for(None, false, &policy).user.cgroup, None);
        assert_eq!(other.taken_for(None, true, &policy).user.cgroup, cgroup);
        assert_eq!(other.taken_for(Some(Vec::new()), false, &policy).user.cgroup, cgroup);
    }

    /// Fails if only what an earlier policy asked for is known of a process.
    #[test]
    fn a_new_policy_asks_for_more() {
        let namespace = Namespace::own();
        let (one, _other) = UnixStream::pair().unwrap();
        let mut it = Process::at(&one, &Policy::of_members(None), &namespace).unwrap();
        assert!(it.user.may_be_in(61_007) && it.user.cgroup.is_none());
        it.look(&policy(), &namespace);
        assert!(!it.user.may_be_in(61_007));
        assert_eq!(it.user.cgroup, cgroup_of(it.pid));
        let asked = it.user.clone();
        it.look(&Policy::of_members(None), &namespace);
        assert!(it.user.may_be_in(61_007) && it.user.cgroup.is_none());
        it.look(&policy(), &namespace);
        assert_eq!(it.user, asked);
        // Of a process that has ended, whose descriptor is readable, nothing is known.
        it.descriptor = File::open("/dev/null").unwrap().into();
        it.look(&policy(), &namespace);
        assert!(it.user.may_be_in(61_007) && it.user.cgroup.is_none());
    }
}

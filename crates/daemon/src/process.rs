//! The process that has connected to the daemon, as the kernel attests it.

use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::rc::Rc;
use underpass_policy::{Groups, Namespace, Policy, User, cgroup_of};

/// A process that has connected, and a descriptor that tells when it ends.
#[derive(Debug)]
pub struct Process {
    /// Its number in the daemon's PID namespace.
    pub pid: u32,
    /// Becomes readable when the process has ended.
    pub descriptor: OwnedFd,
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
        let [pid, uid, gid] = sys::peer_credentials(&socket)?;
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::Error::from_raw_os_error(libc::ESRCH))?;
        let descriptor = match sys::peer_process(&socket) {
            // Before Linux 6.5 the number may belong to another process by now. That process is then taken for the
            // client, but the user is the client's in any case.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => pidfd_open(number, PidfdFlags::empty())?,
            result => result?,
        };
        let told = sys::peer_groups(&socket, Groups::MOST)?;
        let mut are_all = told.is_some() && policy.denies_groups() && namespace.keeps_groups(pid);
        let (gid, mut groups) = namespace.groups(gid, told.unwrap_or_default());
        let mut cgroup = if policy.names_cgroups() { cgroup_of(pid) } else { None };
        // If the process has ended, its number may have been another process's when /proc was read.
        if (cgroup.is_some() || are_all) && has_ended(&descriptor) {
            (cgroup, are_all) = (None, false);
        }
        if !are_all {
            groups = groups.and_perhaps_others();
        }
        let user = User { uid, is_known: namespace.knows(uid), gid, groups, cgroup };
        Ok(Process { pid, descriptor, user: Rc::new(user) })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        has_ended(&self.descriptor)
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut it = [PollFd::new(process, PollFlags::IN)];
    poll(&mut it, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

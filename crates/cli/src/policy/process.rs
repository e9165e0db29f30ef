//! What /proc says of a process whose connections are asked about.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use underpass_policy::User;
use underpass_segment::config::SocketPath;

use crate::doctor::{configuration, loaded};
use crate::watch::name_of;

/// There is no such process.
#[derive(Debug, thiserror::Error)]
#[error("there is no process {0} that this user can see; `ps` and `pgrep` tell the numbers")]
pub struct NoProcess(u32);

/// A process, as far as this user sees it.
#[derive(Debug)]
pub struct Seen {
    pub pid: u32,
    /// As in /proc/PID/comm.
    pub name: String,
    pub user: User,
    /// The port of its end, if it was told.
    pub port: Option<u16>,
    pub namespaces: Namespaces,
    /// The kernel hides its descriptors from its own user, as of a server that has changed its user.
    pub hides: bool,
    /// Whether it has loaded the library.
    pub accelerated: Option<bool>,
    /// The socket at which the process asks the daemon, if it is under Underpass.
    pub broker: Option<SocketPath>,
}

/// Inodes of the namespaces that matter; `None` where they are not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    pub net: Option<u64>,
    pub ipc: Option<u64>,
    pub pid: Option<u64>,
}

impl fmt::Display for Seen {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port.map_or_else(String::new, |port| format!(" at port {port}"));
        write!(to, "{} ({}, user {}){port}", self.name, self.pid, self.user.uid)
    }
}

/// Looks at a process.
pub fn look(pid: u32, port: Option<u16>) -> Result<Seen, NoProcess> {
    let (Ok(user), Some(name)) = (User::of_process(pid), name_of(pid)) else { return Err(NoProcess(pid)) };
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
    let accelerated = read("maps").map(|it| loaded(&String::from_utf8_lossy(&it)).is_some());
    let environment = read("environ").filter(|_| accelerated == Some(true));
    let owner = fs::metadata(format!("/proc/{pid}/fd")).map(|it| it.uid());
    Ok(Seen {
        pid,
        name,
        hides: owner.is_ok_and(|owner| owner != user.uid),
        user,
        port,
        namespaces: Namespaces { net: namespace(pid, "net"), ipc: namespace(pid, "ipc"), pid: namespace(pid, "pid") },
        accelerated,
        broker: environment.map(|it| configuration(&String::from_utf8_lossy(&it)).broker),
    })
}

/// The inode of a namespace of a process.
pub fn namespace(pid: u32, kind: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/{kind}")).ok().map(|it| it.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let me = look(std::process::id(), Some(80)).unwrap();
        assert_eq!((me.accelerated, me.hides, me.broker), (Some(false), false, None));
        assert!(me.namespaces.net.is_some() && me.namespaces.ipc.is_some() && me.namespaces.pid.is_some());
        assert!(me.to_string().ends_with(&format!("({}, user {}) at port 80", me.pid, me.user.uid)));
        assert!(look(u32::MAX, None).is_err());
    }
}

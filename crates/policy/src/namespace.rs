//! The user namespace of this process (user_namespaces(7)): which other processes are in it.

use std::fs;

/// A user namespace, known by the numbers that it maps. Another one with the same numbers has the same users and
/// groups: only a process with CAP_SETUID and CAP_SETGID in the namespace around it makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// /proc/PID/uid_map and gid_map; `None` where /proc does not show them.
    maps: Option<[String; 2]>,
}

impl Namespace {
    /// That of this process.
    pub fn own() -> Namespace {
        Namespace { maps: maps("self") }
    }

    /// Whether process `pid` is in it; false also where /proc does not show it. /proc shows the numbers of this
    /// namespace for other ones, and those of the namespace around for this one.
    pub fn has(&self, pid: u32) -> bool {
        self.maps.is_some() && self.maps == maps(&pid.to_string())
    }
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

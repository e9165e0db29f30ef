//! Containers: processes with namespaces of their own, alone, in a pod, or joined by a bridge.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::broker::User;
use crate::group::Group;
use crate::library;
use crate::stage::{Stage, find};

/// Namespaces, which go with this value and with what runs there.
pub struct Container {
    _holder: Group,
    /// The process that holds them.
    pid: u32,
}

impl Container {
    /// A container with all namespaces of its own, and no interface but an unused loopback.
    pub fn new(stage: &Stage) -> Container {
        Container::of_pod(stage, None, &["--net", "--ipc"])
    }

    /// A container with processes and mounts of its own, and the namespaces that `own` names by options of unshare(1).
    /// Its network and System V memory are otherwise `pod`'s, or the host's.
    pub fn of_pod(stage: &Stage, pod: Option<&Container>, own: &[&str]) -> Container {
        let mut command = Command::new(if pod.is_some() { "nsenter" } else { "unshare" });
        if let Some(pod) = pod {
            command.args(["-t", &pod.process(), "--net", "--ipc", "unshare"]);
        }
        command.args(own).args(["--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"]);
        let mut holder = stage.start(command);
        let children = format!("/proc/{0}/task/{0}/children", holder.pid());
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let child = fs::read_to_string(&children).ok().and_then(|it| it.split_whitespace().next()?.parse().ok());
            if let Some(pid) =
                child.filter(|pid| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|it| it == b"sleep\n"))
            {
                return Container { _holder: holder, pid };
            }
            let ended = holder.wait(Duration::from_millis(1));
            assert!(ended.is_none() && Instant::now() < deadline, "no namespaces: {ended:?}\n{}", holder.said());
        }
    }

    /// Its process as /proc has it.
    pub fn process(&self) -> String {
        self.pid.to_string()
    }

    /// Runs a command in its network namespace, as root; whether that succeeds, and what is said.
    pub fn run(&self, command: &str) -> Result<(), String> {
        let output = Command::new("nsenter")
            .args(["-t", &self.process(), "-n", "sh", "-c", command])
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{command}: {said}")) }
    }

    /// Runs a command in its network namespace, as root, which has to succeed.
    pub fn must(&self, command: &str) {
        self.run(command).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A command of `user` in it, under Underpass with these settings.
    pub fn command(
        &self,
        stage: &Stage,
        user: &User,
        program: &str,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Command {
        self.enter(&["--net", "--ipc", "--pid", "--mount"], stage, user, program, arguments, settings)
    }

    /// A command of a process that has nothing but the network of this container.
    pub fn command_on_network(
        &self,
        stage: &Stage,
        user: &User,
        program: &str,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Command {
        self.enter(&["--net"], stage, user, program, arguments, settings)
    }

    fn enter(
        &self,
        namespaces: &[&str],
        stage: &Stage,
        user: &User,
        program: &str,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Command {
        let [uid, gid] = user.ids().map(|id| id.to_string());
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.process()]).args(namespaces).args(["-S", &uid, "-G", &gid]);
        command.arg(find(program).unwrap_or_else(|| program.into())).args(arguments).current_dir(stage.path(""));
        library::plain(&mut command);
        user.run.accelerate(&mut command, settings);
        command
    }

    /// A user whose programs run here.
    pub fn user(&self, uid: u32, gid: u32) -> User {
        User::beside(&self.process(), uid, gid)
    }
}

/// Two containers on the bridge of a third one.
pub struct Bridge {
    /// At [`HOSTS`].
    pub ends: [Container; 2],
    /// At [`ROUTER`].
    pub router: Container,
}

/// Addresses of the two.
pub const HOSTS: [&str; 2] = ["10.77.0.2", "10.77.0.3"];
/// Address of the third.
pub const ROUTER: &str = "10.77.0.1";

impl Bridge {
    /// Makes them.
    pub fn new(stage: &Stage) -> Bridge {
        let [one, other, router] = [(); 3].map(|()| Container::new(stage));
        router.must("ip link add br0 type bridge");
        router.must(&format!("ip address add {ROUTER}/24 dev br0 && ip link set br0 up && ip link set lo up"));
        for (number, (end, host)) in [&one, &other].into_iter().zip(HOSTS).enumerate() {
            router.must(&format!("ip link add port{number} type veth peer name eth0 netns {}", end.pid));
            router.must(&format!("ip link set port{number} master br0 up"));
            end.must(&format!("ip address add {host}/24 dev eth0 && ip link set eth0 up && ip link set lo up"));
        }
        Bridge { ends: [one, other], router }
    }

    /// Settings with which the stress program `deaths` has its ends in the two containers.
    pub fn deaths(&self) -> [(&'static str, String); 2] {
        let files = self.ends.each_ref().map(|it| format!("/proc/{}/ns/net", it.pid)).join(" ");
        [("DEATHS_NETS", files), ("DEATHS_HOSTS", HOSTS.join(" "))]
    }

    /// Connections to this port of the router go to the same port of the second one, from an address of the router's.
    ///
    /// # Errors
    /// Why the kernel cannot do that.
    pub fn translate(&self, port: u16) -> Result<(), String> {
        self.router.must("echo 1 >/proc/sys/net/ipv4/ip_forward");
        self.router.run(&format!(
            "nft -f - <<'END'
add table ip t
add chain ip t in {{ type nat hook prerouting priority -100 ; }}
add chain ip t out {{ type nat hook postrouting priority 100 ; }}
add rule ip t in ip daddr {ROUTER} tcp dport {port} dnat to {}
add rule ip t out ip daddr {} masquerade random
END",
            HOSTS[1], HOSTS[1]
        ))
    }
}

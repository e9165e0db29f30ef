//! Containers: network namespaces with a bridge between, and a translation of addresses on the way.

use super::actor::{Actor, join, meet};
use super::daemon::{Daemon, GROUP, is_root};
use std::process::Command;

/// Two namespaces on the bridge of a third one, all of which go with the actors in them.
struct Bridge {
    daemon: Daemon,
    ends: [Actor; 2],
    router: Actor,
}

const HOSTS: [&str; 2] = ["10.77.0.2", "10.77.0.3"];
const ROUTER: &str = "10.77.0.1";

/// Runs a command in the network namespace of a process.
fn inside(pid: u32, command: &str) {
    let words = format!("-t {pid} -n {command}");
    let output = Command::new("nsenter").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Sets what /proc/sys/net has of the network namespace of a process.
fn set(pid: u32, path: &str, value: u32) {
    let script = format!("echo {value} >/proc/sys/net/{path}");
    let status = Command::new("nsenter").args(["-t", &pid.to_string(), "-n", "sh", "-c", &script]).status().unwrap();
    assert!(status.success(), "{path}");
}

impl Bridge {
    /// `None`, said aloud, where it cannot be made.
    fn new(arguments: &[&str]) -> Option<Bridge> {
        if !is_root() {
            return None;
        }
        let daemon = Daemon::start(arguments);
        let group = format!("--regid={}", GROUP.1);
        // Namespaces of their own for all but files, as containers have them.
        let container = |uid: &str| {
            let uid = format!("--reuid={uid}");
            let by = ["unshare", "--net", "--ipc", "--mount", "setpriv", &uid, &group, "--clear-groups"];
            let mut actor = Actor::start(&daemon, &by);
            // It is there once it answers.
            assert_eq!(actor.tell("ready"), "");
            actor
        };
        let it = Bridge { ends: [container("61001"), container("61002")], router: container("0"), daemon };
        let router = it.router.pid();
        inside(router, "ip link add br0 type bridge");
        inside(router, &format!("ip address add {ROUTER}/24 dev br0"));
        inside(router, "ip link set br0 up");
        for (number, (end, host)) in it.ends.iter().zip(HOSTS).enumerate() {
            let pid = end.pid();
            inside(router, &format!("ip link add port{number} type veth peer name eth0 netns {pid}"));
            inside(router, &format!("ip link set port{number} master br0 up"));
            inside(pid, &format!("ip address add {host}/24 dev eth0"));
            inside(pid, "ip link set eth0 up");
        }
        Some(it)
    }

    /// Connections to port 8080 of the router go to port 80 of the second end, from an address of the router's: false,
    /// said aloud, where the kernel cannot do that.
    fn translate(&self) -> bool {
        let router = self.router.pid();
        set(router, "ipv4/ip_forward", 1);
        let rules = "add table ip t
            add chain ip t in { type nat hook prerouting priority -100 ; }
            add chain ip t out { type nat hook postrouting priority 100 ; }
            add rule ip t in ip daddr 10.77.0.1 tcp dport 8080 dnat to 10.77.0.3:80
            add rule ip t out ip daddr 10.77.0.3 masquerade random";
        let file = self.daemon.folder.path().join("rules");
        std::fs::write(&file, rules).unwrap();
        let pid = router.to_string();
        let nft = Command::new("nsenter").args(["-t", &pid, "-n", "nft", "-f"]).arg(&file).output();
        match nft {
            Ok(output) if output.status.success() => true,
            Ok(output) => {
                println!("SKIPPED: no translation: {}", String::from_utf8_lossy(&output.stderr));
                false
            }
            Err(error) => {
                println!("SKIPPED: nft ({error})");
                false
            }
        }
    }
}

#[test]
fn two_containers_meet_over_a_bridge() {
    let Some(Bridge { daemon, ends: [mut client, mut server], router: _router }) = Bridge::new(&[]) else { return };
    if daemon.has_numbers() {
        join(&mut server, &mut client, HOSTS[1]);
        meet(&mut server, &mut client);
    }
    daemon.finish();
}

/// The two ends have no address in common.
#[test]
fn two_containers_meet_through_dnat_and_masquerade() {
    let Some(mut it) = Bridge::new(&[]) else { return };
    if it.daemon.has_numbers() && it.translate() {
        let [client, server] = &mut it.ends;
        // Ports below 1024 are free to all here.
        set(server.pid(), "ipv4/ip_unprivileged_port_start", 0);
        server.tell(&format!("listen {}:80", HOSTS[1]));
        for _ in 0..3 {
            client.tell(&format!("connect {ROUTER}:8080"));
            server.tell("accept");
            assert_ne!(client.tell("addresses").split_once(' '), server.tell("addresses").split_once(' '));
            meet(server, client);
        }
    }
    it.daemon.finish();
}

/// A daemon in a user namespace has no numbers for most users, and the kernel shows these as one, as user nobody.
#[test]
fn users_without_a_number_are_not_one_user() {
    if !is_root() {
        return;
    }
    if !Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|it| it.success()) {
        return println!("SKIPPED: no user namespace can be had");
    }
    let daemon = Daemon::start_by(&["unshare", "--user", "--map-root-user"], &["--no-bpf"]);
    let mut ends = [61_001, 61_002].map(|uid| Actor::of_user(&daemon, uid, uid));
    let [server, client] = &mut ends;
    join(server, client, "127.0.0.1");
    assert_eq!([client.ask(), server.ask()], ["refused policy"; 2]);
    // Root has a number there.
    let mut ends = [(); 2].map(|()| Actor::of_user(&daemon, 0, 0));
    let [server, client] = &mut ends;
    join(server, client, "127.0.0.1");
    meet(server, client);
    daemon.finish();
}

/// In the namespace of a client its user may have no number: to the daemon it has one.
#[test]
fn a_user_that_is_nobody_in_its_own_namespace_is_somebody_here() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&["--no-bpf"]);
    let without = |uid: u32| {
        let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={uid}"));
        Actor::start(&daemon, &["setpriv", &uid, &gid, "--clear-groups", "unshare", "--user"])
    };
    if !Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|it| it.success()) {
        return println!("SKIPPED: no user namespace can be had");
    }
    let mut actors = [61_001, 61_002, 61_001].map(without);
    let [one, other, again] = &mut actors;
    join(one, other, "127.0.0.1");
    assert_eq!(other.ask(), "waiting");
    assert_eq!(one.ask(), "refused policy");
    join(one, again, "127.0.0.1");
    meet(one, again);
    daemon.finish();
}

/// Without BPF nothing proves a connection between namespaces, since other ones may have the same addresses.
#[test]
fn without_bpf_containers_stay_on_kernel_tcp() {
    let Some(Bridge { daemon, ends: [mut client, mut server], router: _router }) = Bridge::new(&["--no-bpf"]) else {
        return;
    };
    join(&mut server, &mut client, HOSTS[1]);
    assert_eq!(client.ask(), "refused unproven");
    assert_eq!(server.ask(), "refused unproven");
    daemon.finish();
}

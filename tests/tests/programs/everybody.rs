//! Root sees the connections of all users in all namespaces, and a user his own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use underpass_tests::broker::{GROUP, User};
use underpass_tests::container::Container;
use underpass_tests::library::{self, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{copy_program, skip};
use underpass_tests::yard::{Beats, Place, Yard, guest_of};

use crate::capturing::{capture, end};
use crate::watching::{rows, sum, underpass};

const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

/// Two users, whose connection the daemon has proven.
struct Talk<'a> {
    yard: &'a Yard,
    server: u32,
    client: u32,
    port: u16,
}

impl Talk<'_> {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The rows of both ends, as soon as both are fast.
    fn rows(&self, ask: impl Fn() -> Vec<Value>) -> [Value; 2] {
        let address = self.address();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let all = ask();
            let of = |side: &str| all.iter().find(|it| it[side] == *address).cloned().unwrap_or_default();
            let both = ["local", "peer"].map(of);
            if both.iter().all(|it| it["out"]["path"] == "ring" && it["in"]["path"] == "ring") {
                return both;
            }
            assert!(Instant::now() < deadline, "{all:#?}\n{}", self.yard.broker.said());
        }
    }

    /// Root sees each end with its process, by the number that it has on the host.
    fn assert_seen(&self) {
        for arguments in [&["ss", "--json"][..], &["top", "--once", "--json", "--interval", "0.2"]] {
            let both = self.rows(|| rows(&underpass(arguments)));
            for (row, pid) in both.iter().zip([self.server, self.client]) {
                let holders = row["processes"].as_array().unwrap();
                assert_eq!((holders.len(), &holders[0]["pid"], &holders[0]["name"]), (1, &pid.into(), &"guest".into()));
            }
        }
        let text = String::from_utf8(underpass(&["metrics"]).stdout).unwrap();
        for pid in [self.server, self.client] {
            let of = |name: &str, label: &str| sum(&text, name, &[&format!("pid=\"{pid}\""), label]);
            assert_eq!(of("underpass_connections", "path=\"ring\""), 1.0, "{pid}: {text}");
            assert!(of("underpass_bytes_total", "path=\"ring\"") > 0.0, "{pid}: {text}");
        }
    }

    /// The capture has what both send, and both processes' names.
    fn assert_captured(&self) {
        let file = self.yard.stage.path("captured");
        let capture = capture(&self.yard.stage, &file, &[&format!("port {}", self.port)]);
        let named = |pid: u32| {
            let name = format!("guest {pid}");
            fs::read(&file).unwrap().windows(name.len()).any(|it| it == name.as_bytes())
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !(named(self.server) && named(self.client)) {
            assert!(Instant::now() < deadline, "{}", capture.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = end(capture);
        assert!(said["bytes"].as_u64() > Some(1000) && said["damaged_records"] == 0, "{said}");
    }

    /// What user `uid` sees of it.
    fn seen_by(&self, uid: u32) -> Vec<Value> {
        let copy = self.yard.stage.path("underpass");
        if !copy.exists() {
            copy_program(library::command(), &copy);
            fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
        }
        let seen = Command::new(copy).args(["ss", "--json"]).uid(uid).gid(uid).current_dir("/").output().unwrap();
        assert!(seen.status.success(), "{seen:?}");
        let address = self.address();
        rows(&seen).into_iter().filter(|it| it["local"] == *address || it["peer"] == *address).collect()
    }
}

#[test]
fn root_sees_all_and_a_user_his_own() {
    if is_kernel_only() {
        return skip("nothing is to be seen without the library");
    }
    let Some(yard) = Yard::new(&[]).filter(|it| it.broker.has_numbers()) else { return };
    let pod = Container::new(&yard.stage);
    pod.must("ip link set lo up");
    let containers = [(); 2].map(|()| Container::of_pod(&yard.stage, Some(&pod), &["--ipc"]));
    let users = [ONE, OTHER];
    let inside = [0, 1].map(|at| Place::inside(&containers[at], users[at], GROUP.1));
    let outside = users.map(|uid| Place::host(User::member(uid)));
    for (places, is_outside) in [(inside, false), (outside, true)] {
        let [server, client] = &places;
        let port = free_port();
        let serving = yard.serve(server, "serve", port, &[]);
        let beats = Beats::begin(&yard, client, port, &[]);
        beats.await_more(1000, "at first");
        let talk = Talk { yard: &yard, server: guest_of(&serving), client: guest_of(beats.client()), port };
        talk.assert_seen();
        talk.assert_captured();
        for (uid, pid) in users.into_iter().zip([talk.server, talk.client]) {
            let seen = talk.seen_by(uid);
            let pids: Vec<&Value> =
                seen.iter().flat_map(|it| it["processes"].as_array().unwrap()).map(|it| &it["pid"]).collect();
            let own = [Value::from(pid)];
            let expected: Vec<&Value> = own.iter().filter(|_| is_outside).collect();
            assert_eq!(pids, expected, "user {uid}: {seen:#?}");
        }
        assert!(talk.seen_by(ONE + 100).is_empty());
        beats.end();
        drop(serving);
    }
    yard.stage.finish();
}

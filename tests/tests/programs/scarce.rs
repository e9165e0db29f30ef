//! Resources that run out in the middle: what is fast stays so, what comes is kernel TCP's with a reason, and no byte
//! is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use underpass_segment::reason::Reason;
use underpass_tests::apart::apart;
use underpass_tests::group::Group;
use underpass_tests::library::{AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, skip};

use crate::faults::await_word;

/// Connections that are there when the resource runs out: the last channel of the first 1, 8 and 64 is in use then.
const FIRST: usize = 73;
/// How many connections come then: more than another pool of 64 has room for, which one end may have made if the other
/// was late.
const MORE: usize = 140;
/// Messages to have echoed on each of them, twice.
const MESSAGES: usize = 40;

/// A server, and a client that has made the first of its connections. `begin` makes the command from a guest's
/// arguments.
struct Middle {
    server: Group,
    client: Group,
}

impl Middle {
    fn of(stage: &Stage, begin: impl Fn(&str, &[String]) -> Command) -> Middle {
        let (program, port) = (stage.path("guest"), free_port());
        compile("guest.c", &program, &[]);
        let words = |text: String| text.split(' ').map(String::from).collect::<Vec<_>>();
        let program = program.display().to_string();
        let server = stage.serve(begin(&program, &words(format!("serve {port}"))), port);
        let client = stage.start(begin(&program, &words(format!("hold {port} {FIRST} {MORE} {MESSAGES}"))));
        await_word(&client, "there");
        Middle { server, client }
    }

    /// Sets a limit of prlimit(1) for one of them.
    fn limit(&self, stage: &Stage, group: &Group, limit: &str) {
        assert_eq!(stage.output(stage.plain("prlimit", ["--pid", &group.pid().to_string(), limit])), "");
    }

    /// Lets the client go on to its end.
    fn go_on(self) {
        self.client.signal(libc::SIGUSR1);
        let said = self.client.succeed(Duration::from_secs(60));
        assert!(said.ends_with("every echo as sent\n"), "{said}{}", self.server.said());
        assert_eq!(self.server.stop(libc::SIGTERM), "");
    }
}

/// Some connections are fast at both ends; `of_others` is among the reasons of the others, if that is to be known.
fn assert_some_fast(stage: &Stage, of_others: Option<Reason>) {
    if is_kernel_only() {
        return;
    }
    // And not what has begun them.
    let processes: Vec<_> = stage.run.processes().into_iter().filter(|process| process.connections > 0).collect();
    assert!(processes.iter().all(|process| process.fast > 0), "nothing was fast at one end:\n{}", stage.run.table());
    let told = |reason| processes.iter().any(|process| process.reasons.iter().any(|(it, _)| *it == reason));
    assert!(of_others.is_none_or(told), "nobody tells of {of_others:?}:\n{}", stage.run.table());
}

/// Segments of this IPC namespace, and their pages.
fn segments() -> (usize, usize) {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let sizes: Vec<usize> = table.lines().filter_map(|line| line.split_whitespace().nth(3)?.parse().ok()).collect();
    (sizes.len(), sizes.iter().map(|size| size.div_ceil(4096)).sum())
}

#[test]
fn shared_memory_runs_out() {
    for file in ["shmmni", "shmall"] {
        apart(libc::CLONE_NEWIPC, || {
            let Some(stage) = Stage::with(&["cc"]) else { return };
            let middle = Middle::of(&stage, |program, words| stage.tuned(program, words, AT_ONCE));
            let (count, pages) = segments();
            let limit = if file == "shmmni" { count } else { pages };
            fs::write(format!("/proc/sys/kernel/{file}"), limit.to_string()).unwrap();
            middle.go_on();
            assert_some_fast(&stage, Some(Reason::NoMemory));
            stage.finish();
        });
    }
}

/// A process that has as many descriptors as it may have: those that are fast stay so, and the library needs none of
/// its own.
#[test]
fn descriptors_run_out() {
    let Some(stage) = Stage::with(&["cc", "prlimit"]) else { return };
    let middle = Middle::of(&stage, |program, words| stage.tuned(program, words, AT_ONCE));
    for group in [&middle.client, &middle.server] {
        let open = fs::read_dir(format!("/proc/{}/fd", group.pid())).unwrap().flatten();
        let highest = open.filter_map(|entry| entry.file_name().to_str()?.parse::<usize>().ok()).max().unwrap();
        middle.limit(&stage, group, &format!("--nofile={}", highest + 1 + MORE));
    }
    middle.go_on();
    assert_some_fast(&stage, None);
    stage.finish();
}

/// The address space of a process.
fn kilobytes(group: &Group) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", group.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

/// Mapped memory counts in a program's size, even if it is not used; a program may limit that size or look at it.
#[test]
fn one_connection_takes_little_address_space() {
    const MOST: u64 = 9 << 10;
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (program, port) = (stage.path("guest"), free_port());
    compile("guest.c", &program, &[]);
    let guest = |words: String| stage.tuned(program.to_str().unwrap(), words.split(' '), AT_ONCE);
    let server = stage.serve(guest(format!("serve {port}")), port);
    let before = kilobytes(&server);
    let hold = |first: usize| {
        let client = stage.start(guest(format!("hold {port} {first} 1 {MESSAGES}")));
        await_word(&client, "there");
        client
    };
    let [without, with] = [0, 1].map(hold);
    let grown = [kilobytes(&server) - before, kilobytes(&with) - kilobytes(&without)];
    assert!(grown.iter().all(|it| *it < MOST), "the server and the client have grown by so many kB: {grown:?}");
    for client in [without, with] {
        client.signal(libc::SIGUSR1);
        assert!(client.succeed(Duration::from_secs(60)).ends_with("every echo as sent\n"));
    }
    assert_eq!(server.stop(libc::SIGTERM), "");
    assert_some_fast(&stage, None);
    stage.finish();
}

#[test]
fn address_space_runs_out() {
    let Some(stage) = Stage::with(&["cc", "prlimit"]) else { return };
    let middle = Middle::of(&stage, |program, words| stage.tuned(program, words, AT_ONCE));
    for group in [&middle.client, &middle.server] {
        middle.limit(&stage, group, &format!("--as={}", kilobytes(group) << 10));
    }
    middle.go_on();
    assert_some_fast(&stage, Some(Reason::NoMemory));
    stage.finish();
}

/// A memory cgroup of the test's own.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(limit: u64) -> Option<Cgroup> {
        let root = Path::new("/sys/fs/cgroup");
        let unified = fs::read_to_string(root.join("cgroup.controllers")).is_ok_and(|text| text.contains("memory"));
        let (parent, file) =
            if unified { (root.into(), "memory.max") } else { (root.join("memory"), "memory.limit_in_bytes") };
        let folder = parent.join(format!("underpass-test-{}-{limit}", std::process::id()));
        let made = fs::create_dir(&folder).map(|()| Cgroup(folder));
        let limited = made.and_then(|it| fs::write(it.0.join(file), limit.to_string()).map(|()| it));
        limited.map_err(|e| skip(&format!("no memory cgroup can be made under {}: {e}", parent.display()))).ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The group's last process may not have quite ended.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Both programs in a memory cgroup with this limit, from beginning to end.
fn in_cgroup(limit: u64, check: impl FnOnce(&Stage)) {
    let Some(stage) = Stage::with(&["cc", "sh"]) else { return };
    let Some(cgroup) = Cgroup::new(limit) else { return };
    go_on_behind(&stage, &["sh", "-c", &format!("echo $$ >{}/cgroup.procs; exec \"$0\" \"$@\"", cgroup.0.display())]);
    check(&stage);
    stage.finish();
    drop(cgroup);
}

/// Both programs, each executed by this command.
fn go_on_behind(stage: &Stage, before: &[&str]) {
    let begin = |program: &str, words: &[String]| {
        let words = before[1..].iter().copied().chain([program]).map(String::from).chain(words.iter().cloned());
        stage.tuned(before[0], words, AT_ONCE)
    };
    Middle::of(stage, begin).go_on();
}

/// Enough for four times a pool of 1, not for one of 8.
#[test]
fn little_memory_is_enough() {
    in_cgroup(64 << 20, |stage| assert_some_fast(stage, None));
}

/// Less than that: rings could take all of it, so there are none.
#[test]
fn memory_that_a_cgroup_needs_itself_is_left_to_it() {
    in_cgroup(8 << 20, assert_no_memory);
}

/// Told by files as version 2 has them, whatever this system has: the limit of a group around that of the program.
#[test]
fn cgroups_of_version_2_are_understood() {
    for (limit, is_enough) in [("max", true), ("67108864", true), ("8388608", false)] {
        let Some(stage) = Stage::with(&["cc", "sh", "unshare", "mount"]) else { return };
        if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|it| it.success()) {
            return skip("no mount namespace can be had");
        }
        let root = stage.path("cgroups");
        fs::create_dir_all(root.join("slice/unit")).unwrap();
        for (file, text) in [
            ("slice/memory.max", limit),
            ("slice/memory.current", "4096"),
            ("slice/unit/memory.max", "max"),
            ("slice/unit/memory.current", "4096"),
            ("listing", "0::/slice/unit"),
        ] {
            fs::write(root.join(file), format!("{text}\n")).unwrap();
        }
        let inside = format!(
            "mount --bind {0} /sys/fs/cgroup && mount --bind {0}/listing /proc/$$/cgroup && exec \"$0\" \"$@\"",
            root.display()
        );
        go_on_behind(&stage, &["unshare", "--mount", "sh", "-c", &inside]);
        if is_enough {
            assert_some_fast(&stage, None);
        } else {
            assert_no_memory(&stage);
        }
        stage.finish();
    }
}

fn assert_no_memory(stage: &Stage) {
    let processes = stage.run.processes();
    assert!(processes.iter().all(|process| process.fast == 0), "{}", stage.run.table());
    let told = processes.iter().any(|process| process.reasons.iter().any(|(it, _)| *it == Reason::NoMemory));
    assert!(told || is_kernel_only(), "nobody tells of it:\n{}", stage.run.table());
}

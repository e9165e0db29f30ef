//! Machines and users that give nothing: programs work as on kernel TCP, silently, and fast where it is possible.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use underpass_segment::reason::Reason;
use underpass_tests::apart::apart;
use underpass_tests::broker::is_root;
use underpass_tests::group::Group;
use underpass_tests::library::{AT_ONCE, Run, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, fixture, skip};

use crate::databases::redis_server;

const DONE: &str = "every echo as sent\n";

fn guest(stage: &Stage) -> String {
    let program = stage.path("guest");
    compile("guest.c", &program, &[]);
    program.display().to_string()
}

/// A command line behind `prefix`, as prlimit and setpriv want it.
fn behind(stage: &Stage, prefix: &[&str], program: &str, arguments: &str) -> Command {
    let words = prefix.iter().copied().chain([program]).chain(arguments.split_whitespace());
    let words: Vec<&str> = words.collect();
    stage.tuned(words[0], &words[1..], AT_ONCE)
}

/// Runs two guests, each behind a prefix of its own, and ends the server.
fn echo(stage: &Stage, server: (&[&str], &str), client: (&[&str], &str)) {
    let (program, port) = (guest(stage), free_port());
    let ready = stage.serve(behind(stage, server.0, &program, &format!("{} serve {port}", server.1)), port);
    let words = client.1.replace("PORT", &port.to_string());
    let said = stage.output(behind(stage, client.0, &program, &words));
    assert_eq!(said, DONE, "{:?} {:?}\n{}", server, client, ready.said());
    // Its connections are counted when it has closed them.
    assert_eq!(ready.stop(libc::SIGTERM), "");
}

/// Redis under load, to the right results.
fn redis(stage: &Stage) {
    let port = free_port();
    let server = stage.serve(stage.tuned("redis-server", redis_server(stage, port), AT_ONCE), port);
    let load = ["-p", &port.to_string(), "-t", "set,lrange_300", "-n", "1000", "-c", "10", "-q"].map(String::from);
    let said = stage.output(stage.tuned("redis-benchmark", load, AT_ONCE));
    assert!(said.matches("requests per second").count() >= 2 && !said.contains("rror"), "{said}");
    server.stop(libc::SIGTERM);
}

/// Every connection of every process has this reason, and there are some.
fn assert_reason(run: &Run, reason: Reason) {
    let all: Vec<_> = run.processes().into_iter().flat_map(|process| process.reasons).collect();
    let as_said = !all.is_empty() && all.iter().all(|(it, _)| *it == reason);
    assert!(is_kernel_only() || as_said, "not {reason:?} alone:\n{}", run.table());
}

/// System V segments are no files, so /dev/shm may be as it likes.
#[test]
fn shared_files_are_not_needed() {
    apart(libc::CLONE_NEWNS, || {
        for (options, fill) in [("size=64m", false), ("size=4k", true), ("ro", false)] {
            let Some(stage) = Stage::with(&["redis-server", "redis-benchmark", "mount"]) else { return };
            stage.output(stage.plain("mount", ["--make-rprivate", "/"]));
            stage.output(stage.plain("mount", ["-t", "tmpfs", "-o", options, "none", "/dev/shm"]));
            if fill {
                fs::write("/dev/shm/full", [0; 4096]).unwrap();
            }
            let before = underpass_tests::traces::shared_files();
            redis(&stage);
            stage.run.assert_fast("redis-server");
            stage.run.assert_fast("redis-benchmark");
            assert_eq!(underpass_tests::traces::shared_files(), before, "with {options}");
            stage.output(stage.plain("umount", ["/dev/shm"]));
            stage.finish();
        }
    });
}

/// The loader's lock is taken while a plugin's constructor runs, which may wait for a thread that uses connections.
#[test]
fn a_connection_needs_no_lock_of_the_loader() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (program, plugin) = (stage.path("opener"), stage.path("plugin.so"));
    compile("plugin.c", &program, &[]);
    compile("plugin.c", &plugin, &["-DPLUGIN", "-shared", "-fPIC"]);
    assert_eq!(stage.output(stage.tuned(&program.display().to_string(), [plugin], AT_ONCE)), "opened\n");
    stage.run.assert_fast("opener");
    stage.finish();
}

/// The loader keeps a list of the libraries with variables of each thread, and makes it longer in a thread that next
/// looks for one.
#[test]
fn no_memory_is_allocated_after_libraries_were_opened() {
    const MORE_THAN_THE_LIST_HOLDS: usize = 24;
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (program, library) = (stage.path("allocates"), stage.path("first.so"));
    compile("allocates.c", &program, &[]);
    compile("allocates.c", &library, &["-DLIBRARY", "-shared", "-fPIC"]);
    let libraries: Vec<_> = (0..MORE_THAN_THE_LIST_HOLDS).map(|at| stage.path(&format!("copy-{at}.so"))).collect();
    for copy in &libraries {
        fs::copy(&library, copy).unwrap();
    }
    assert_eq!(stage.output(stage.tuned(&program.display().to_string(), libraries, AT_ONCE)), "talked\n");
    stage.run.assert_fast("allocates");
    stage.finish();
}

/// A reader of the counters must not take bytes that are not counted for no bytes.
#[test]
fn switched_off_connections_are_counted_and_their_bytes_are_not() {
    let Some(stage) = Stage::with(&[]) else { return };
    let (program, port) = (guest(&stage), free_port().to_string());
    let off = |words: &[&str]| stage.tuned(&program, words, &[("UNDERPASS_MODE", "off")]);
    let server = stage.serve(off(&["serve", &port]), port.parse().unwrap());
    assert_eq!(stage.output(off(&["ask", &port, "2", "5"])), DONE);
    server.stop(libc::SIGTERM);
    assert_reason(&stage.run, Reason::Disabled);
    for process in stage.run.processes() {
        assert_eq!(process.unfollowed, process.connections, "{}", stage.run.table());
    }
    stage.finish();
}

/// If a listener's queue is full, the kernel answers with SYN cookies, and knows nothing of a connection's other end
/// before it has taken data from it. That end is on this host all the same.
#[test]
fn a_connection_by_a_syn_cookie_is_on_this_host() {
    apart(libc::CLONE_NEWNET, || {
        let Some(stage) = Stage::with(&["python3", "ip"]) else { return };
        stage.output(stage.plain("ip", ["link", "set", "lo", "up"]));
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "1").expect("a kernel with SYN cookies");
        let program = fixture("crowded.py").display().to_string();
        let said = stage.output(stage.tuned("python3", [program], AT_ONCE));
        let cookies: u64 = said.trim().parse().expect("how many came by a cookie");
        if cookies == 0 {
            return skip("no SYN was repeated in time");
        }
        let reasons = || stage.run.processes().into_iter().flat_map(|process| process.reasons);
        assert!(reasons().all(|(it, _)| it != Reason::Remote), "{cookies} by cookies:\n{}", stage.run.table());
        stage.finish();
    });
}

/// The limits of System V shared memory, which are to Underpass what a full /dev/shm is to other programs.
#[test]
fn without_segments_everything_stays_on_the_kernel() {
    let attempt = |file: &'static str, limit: &'static str| {
        let mut fast = false;
        apart(libc::CLONE_NEWIPC, || {
            let Some(stage) = Stage::with(&["redis-server", "redis-benchmark"]) else { return };
            // The counters have theirs already.
            fs::write(format!("/proc/sys/kernel/{file}"), limit).unwrap();
            redis(&stage);
            fast = stage.run.fast(None).bytes > 0;
            if !fast {
                let known = [Reason::NoMemory, Reason::PeerSilent, Reason::Young, Reason::NotAccepted];
                let reasons = || stage.run.processes().into_iter().flat_map(|process| process.reasons);
                assert!(reasons().all(|(it, _)| known.contains(&it)), "{}", stage.run.table());
                assert!(is_kernel_only() || reasons().any(|(it, _)| it == known[0]), "{}", stage.run.table());
            }
            stage.finish();
        });
        fast
    };
    // Segments are needed for the counters, two tables of ends and the directory, and then for the connections.
    for limit in ["1", "2", "3", "4"] {
        assert!(!attempt("shmmni", limit), "{limit} segments cannot do");
    }
    assert!(attempt("shmmni", "16") || is_kernel_only() || skipped_namespaces());
    assert!(!attempt("shmall", "2000"));
    assert!(!attempt("shmmax", "1000000"));
}

fn skipped_namespaces() -> bool {
    let mut skipped = true;
    apart(libc::CLONE_NEWIPC, || skipped = false);
    skipped
}

/// The program gets the last descriptor, and a connection that could not be asked about for want of one goes up later.
#[test]
fn the_last_descriptor_is_the_programs() {
    let Some(stage) = Stage::with(&["cc", "prlimit"]) else { return };
    let (program, port) = (guest(&stage), free_port());
    let serve = stage.serve(stage.tuned(&program, ["serve", &port.to_string()], AT_ONCE), port);
    let words = ["--nofile=24", &program, "hoard", &port.to_string()].map(String::from);
    let kernel = stage.output(stage.plain("prlimit", words.clone()));
    assert!(kernel.contains("Too many open files\nnext: -1\nnext: 1\n"), "{kernel}");
    assert_eq!(stage.output(stage.tuned("prlimit", words, AT_ONCE)), kernel);
    stage.run.assert_fast("guest");
    serve.stop(libc::SIGTERM);
    stage.finish();
}

/// A connection that the kernel cannot be asked about says so.
#[test]
fn without_a_descriptor_to_ask_by_the_reason_says_so() {
    let Some(stage) = Stage::with(&["cc", "prlimit"]) else { return };
    // Standard input and output, and the connection. What another test leaks to its programs at this moment takes no
    // place.
    let limited = ["sh", "-c", "exec \"$@\" 3>&- 4>&- 5>&- 6>&-", "sh", "prlimit", "--nofile=4"];
    echo(&stage, (&[], ""), (&limited, "ask PORT 1 100"));
    stage.run.assert_not_fast();
    let reasons = || stage.run.processes().into_iter().flat_map(|process| process.reasons);
    assert!(is_kernel_only() || reasons().any(|(it, _)| it == Reason::NoDescriptor), "{}", stage.run.table());
    stage.finish();
}

/// A limit of the address space costs the fast path before it costs the program.
#[test]
fn address_space_is_the_programs() {
    let Some(stage) = Stage::with(&["cc", "prlimit"]) else { return };
    let limited = |megabytes: u64| {
        let limit = format!("--as={}", megabytes << 20);
        echo(&stage, (&["prlimit", &limit], ""), (&["prlimit", &limit], "hungry ask PORT 3 100"));
    };
    // The guest maps 64 MiB and needs 3 more, under Underpass 4; an eighth of the limit may be the library's.
    for megabytes in [70, 80, 200] {
        limited(megabytes);
        stage.run.assert_not_fast();
    }
    limited(4096);
    stage.run.assert_fast("guest");
    stage.finish();
}

/// A program that locks its memory does not bring the library's mapped but unused memory into memory.
#[test]
fn locked_memory_stays_small() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (program, port) = (guest(&stage), free_port());
    let server = stage.serve(stage.tuned(&program, ["locked", "serve", &port.to_string()], AT_ONCE), port);
    // Connections enough for a pool of 64.
    let said = stage.output(stage.tuned(&program, ["ask", &port.to_string(), "30", "100"], AT_ONCE));
    assert_eq!(said, DONE, "{}", server.said());
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let kilobytes = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
    };
    assert!(kilobytes("VmLck:") > 0, "{status}");
    assert!(kilobytes("VmLck:") < 8192 && kilobytes("VmRSS:") < 16384, "{status}");
    server.stop(libc::SIGTERM);
    stage.run.assert_fast("guest");
    stage.finish();
}

/// A user who may lock 8 MiB.
#[test]
fn little_memory_may_be_locked() {
    let Some(stage) = Stage::as_user("nobody", &["cc", "prlimit"]) else { return };
    fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let limit: &[&str] = &["prlimit", "--memlock=8388608"];
    echo(&stage, (limit, "locked"), (limit, "locked ask PORT 3 100"));
    stage.finish();
}

/// A filter that kills for calls which the program does not make, and a filter that refuses shared memory.
#[test]
fn seccomp_filters_are_kept_to() {
    for strait in ["confined", "refused"] {
        let Some(stage) = Stage::with(&["cc"]) else { return };
        echo(&stage, (&[], strait), (&[], &format!("{strait} ask PORT 3 100")));
        stage.run.assert_not_fast();
        assert_reason(&stage.run, Reason::Seccomp);
        stage.finish();
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    // The other end has none; and a filter that comes when the first connection is up.
    echo(&stage, (&[], ""), (&[], "confined ask PORT 3 100"));
    stage.run.assert_not_fast();
    echo(&stage, (&[], ""), (&[], "refused late ask PORT 30 100"));
    stage.run.assert_fast("guest");
    stage.finish();
}

/// Users as Debian numbers them.
const DAEMON: u32 = 1;
const NOBODY: u32 = 65534;
/// Bytes that guest.c has echoed at a time.
const MESSAGE: u64 = 100;

#[test]
fn two_users_share_no_memory() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    if !is_root() {
        return skip("needs root to act as two users");
    }
    fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let (program, port) = (guest(&stage), free_port());
    let runs = [DAEMON, NOBODY].map(Run::of_user);
    let command = |run: &Run, user: u32, words: String| {
        let mut command = stage.plain(&program, words.split_whitespace());
        run.accelerate(&mut command, AT_ONCE);
        command.uid(user).gid(user);
        command
    };
    let server = stage.serve(command(&runs[0], DAEMON, format!("serve {port}")), port);
    assert_eq!(stage.output(command(&runs[1], NOBODY, format!("ask {port} 3 100"))), DONE);
    server.stop(libc::SIGTERM);
    for run in &runs {
        run.assert_not_fast();
        assert_reason(run, Reason::OtherUser);
        // The library counts none of it itself once it knows that the connections stay on kernel TCP.
        let carried: Vec<_> = run.processes().iter().map(|it| (it.kernel_sent, it.kernel_received)).collect();
        let all = 3 * 100 * MESSAGE;
        assert!(is_kernel_only() || carried == [(all, all)], "{}", run.table());
    }
    stage.finish();
}

/// A user who knows the numbers of all System V segments gets into none, and his own that look the same are not used.
#[test]
fn another_user_gets_in_nowhere() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    if !is_root() {
        return skip("needs root to act as another user");
    }
    fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let (program, port) = (guest(&stage), free_port());
    let server = stage.serve(stage.tuned(&program, ["serve", &port.to_string()], AT_ONCE), port);
    let ask = || stage.output(stage.tuned(&program, ["ask", &port.to_string(), "3", "100"], AT_ONCE));
    assert_eq!(ask(), DONE);
    let mut thief = stage.plain(&program, ["steal"]);
    thief.uid(NOBODY).gid(NOBODY);
    let thief = stage.start(thief);
    await_word(&thief, "attached");
    let expected = if is_kernel_only() { thief.said() } else { "seen, attached 0\n".into() };
    assert_eq!(thief.said(), expected);
    // New processes find the right directory beside the copy.
    let before = stage.run.fast(None);
    assert_eq!(ask(), DONE);
    echo(&stage, (&[], ""), (&[], "ask PORT 3 100"));
    assert!(is_kernel_only() || stage.run.fast(None).connections > before.connections, "{}", stage.run.table());
    drop(thief);
    server.stop(libc::SIGTERM);
    stage.finish();
}

pub fn await_word(group: &Group, word: &str) {
    await_word_for(Duration::from_secs(20), group, word);
}

/// As [`await_word`], with this patience.
pub fn await_word_for(patience: Duration, group: &Group, word: &str) {
    let deadline = Instant::now() + patience;
    while !group.said().contains(word) {
        assert!(Instant::now() < deadline, "no {word}:\n{}{}", group.said(), group.where_it_is());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A server does not keep room for clients that were gone before they could come.
#[test]
fn untaken_offers_are_taken_back() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let (script, port) = (fixture("hasty.py").display().to_string(), free_port().to_string());
    let server = stage.serve(stage.command("python3", [&script, "serve", &port]), port.parse().unwrap());
    assert_eq!(stage.output(stage.command("python3", [&script, "ask", &port, "400"])), "all sent\n");
    // The server makes its table of ends, perhaps the directory, a pool of 4 slots and one of 64.
    let made = underpass_tests::traces::segments_of(&[server.pid()]);
    assert!(made.len() <= 4, "{made:#?}");
    server.stop(libc::SIGTERM);
    stage.finish();
}

/// An epoll set goes on seeing sockets that the library has left to the kernel.
#[test]
fn epoll_on_sockets_that_are_not_ours() {
    let Some(stage) = Stage::with(&["redis-server", "redis-benchmark"]) else { return };
    let off = [("UNDERPASS_MODE", "off")];
    for settings in [&off[..], AT_ONCE] {
        let (port, path) = (free_port(), stage.path("socket").display().to_string());
        let arguments = redis_server(&stage, port).into_iter().chain(["--unixsocket".into(), path.clone()]);
        let server = stage.serve(stage.tuned("redis-server", arguments, settings), port);
        for place in [["-p", &port.to_string()], ["-s", &path]] {
            let load = place.into_iter().chain(["-t", "set,lrange_600", "-n", "1000", "-c", "20", "-P", "4", "-q"]);
            let said = stage.output(stage.tuned("redis-benchmark", load, settings));
            assert!(said.matches("requests per second").count() >= 2 && !said.contains("rror"), "{said}");
        }
        server.stop(libc::SIGTERM);
    }
    stage.finish();
}

/// Random moments, the same in every run.
struct Moments(u64);

impl Moments {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

const SEED: u64 = 0x5eed_0001;

fn pump(stage: &Stage) -> PathBuf {
    let program = stage.path("pump");
    compile("pump.c", &program, &[]);
    program
}

/// Two pumps that have met.
fn pumps(stage: &Stage, program: &str, mode: &str) -> (Group, Group) {
    let port = free_port();
    let command = |mode: &str| stage.tuned(program, [mode, &port.to_string()], AT_ONCE);
    let sender = stage.serve(command(mode), port);
    let receiver = stage.start(command("drain"));
    await_word(&sender, "connected");
    await_word(&receiver, "connected");
    (sender, receiver)
}

/// The survivor has what was sent up to some point, then an end, whenever the other end was killed.
#[test]
fn either_end_is_killed_at_any_moment() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = pump(&stage).display().to_string();
    let mut moments = Moments(SEED);
    for round in 0..200 {
        let (sender, receiver) = pumps(&stage, &program, "serve");
        let (sender_dies, after) = (moments.below(2) == 0, moments.below(15_000));
        std::thread::sleep(Duration::from_micros(after));
        let (victim, witness) = if sender_dies { (sender, receiver) } else { (receiver, sender) };
        victim.signal(libc::SIGKILL);
        let said = witness.succeed(Duration::from_secs(30));
        let expected = if sender_dies { ", then the end" } else { "sent some, then gone" };
        assert!(said.contains(expected), "seed {SEED:#x}, round {round}, after {after} µs:\n{said}");
    }
    stage.run.assert_fast("pump");
    // A process that was killed while it made a System V segment leaves it behind; the next process that looks for
    // segments removes it.
    echo(&stage, (&[], ""), (&[], "ask PORT 3 100"));
    stage.finish();
}

/// Two processes share a socket; the process that sends is killed, and the other goes on.
#[test]
fn a_forked_sender_is_killed_and_its_parent_goes_on() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = pump(&stage).display().to_string();
    let mut moments = Moments(SEED);
    for round in 0..40 {
        let (parent, receiver) = pumps(&stage, &program, "relay");
        await_word(&parent, "child");
        let said = parent.said();
        let child: i32 = said.lines().find_map(|line| line.strip_prefix("child ")?.parse().ok()).unwrap();
        let after = moments.below(15_000);
        std::thread::sleep(Duration::from_micros(after));
        let status = stage.output(stage.plain("kill", ["-KILL", &child.to_string()]));
        assert_eq!(status, "");
        let said = receiver.succeed(Duration::from_secs(30));
        assert!(said.contains("all marks, then the end"), "seed {SEED:#x}, round {round}, after {after} µs:\n{said}");
        parent.succeed(Duration::from_secs(30));
    }
    stage.run.assert_fast("pump");
    stage.finish();
}

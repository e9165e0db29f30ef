//! System calls that are not made: once a connection is fast, waiting for its data and its room costs no system call.
//! And a connection on which nothing happens costs no processor time. Code that breaks these rules is correct but slow,
//! which no other test would find.

use std::fs;
use std::time::{Duration, Instant};

use underpass_segment::reason::Reason;
use underpass_tests::group::Group;
use underpass_tests::library::{AT_ONCE, is_kernel_only, path};
use underpass_tests::stage::{Stage, compile, skip};

/// A busy set asks the kernel every 50 µs; even where a message takes as long, that is once.
const ONCE_IN: u64 = 2;
/// With these settings no thread polls before it sleeps.
const UNPOLLED: [(&str, &str); 3] = [AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_SPIN_US", "0")];

fn numbers(said: &str) -> Vec<u64> {
    said.split_whitespace().map(|it| it.parse().expect("a number")).collect()
}

#[test]
fn readiness_is_told_without_the_kernel() {
    if is_kernel_only() {
        return skip("nothing is saved without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (counter, program) = (stage.path("counter.so"), stage.path("frugal"));
    compile("counter.c", &counter, &["-shared", "-fPIC"]);
    compile("frugal.c", &program, &["-pthread"]);
    // With a star: the program reads until there is nothing more.
    for way in ["epoll", "epoll-room", "epoll-changes", "poll", "select", "epoll*", "poll*", "select*"] {
        let mut command = stage.tuned(program.to_str().unwrap(), [way], AT_ONCE);
        command.env("LD_PRELOAD", format!("{}:{}", path().display(), counter.display()));
        let bells_before = doorbells(&stage);
        let said = stage.output(command);
        let [messages, calls] = numbers(&said)[..] else { panic!("{way} said {said:?}") };
        assert!(calls < messages / ONCE_IN, "{way}: {messages} messages took {calls} calls of the kernel");
        let bells = doorbells(&stage) - bells_before;
        assert!(bells < messages / ONCE_IN, "{way}: {messages} messages took {bells} doorbells");
    }
    stage.finish();
}

/// How many doorbells the programs of the stage have rung.
fn doorbells(stage: &Stage) -> u64 {
    stage.run.processes().iter().map(|process| process.bells).sum()
}

/// How many messages `frugal` says that it sent, and what they took: doorbells, sleeps.
fn rung(stage: &Stage, way: &str, settings: &[(&str, &str)]) -> (u64, u64, u64) {
    let program = stage.path("frugal");
    compile("frugal.c", &program, &["-pthread"]);
    let said = stage.output(stage.tuned(program.to_str().unwrap(), [way], settings));
    let messages: u64 = said.trim().parse().expect("a number");
    assert!(stage.run.fast(None).bytes > messages / 2, "{messages} messages:\n{}", stage.run.table());
    stage.run.processes().iter().fold((messages, 0, 0), |(messages, bells, sleeps), process| {
        (messages, bells + process.bells, sleeps + process.sleeps)
    })
}

#[test]
fn only_sleepers_are_rung() {
    if is_kernel_only() {
        return skip("nothing is saved without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (messages, bells, sleeps) = rung(&stage, "receives", AT_ONCE);
    assert!(bells < sleeps + messages / 10, "{messages} messages, {sleeps} sleeps, {bells} doorbells");
    stage.finish();
}

/// Fails if a reader that reads what lies before the ring is taken for a reader that has stopped (`Port::reader_at`),
/// or if polls do not mind the room of a connection that the program only sends by (`mind_room`).
#[test]
fn a_stream_that_is_faster_than_its_reader_stays_in_the_ring() {
    if is_kernel_only() {
        return skip("there is no ring without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("frugal");
    compile("frugal.c", &program, &["-pthread"]);
    let said = stage.output(stage.tuned(program.to_str().unwrap(), ["stream"], &[]));
    let bytes: u64 = said.trim().parse().expect("a number");
    let fast = stage.run.fast(None).bytes;
    assert!(fast > bytes / 2, "{fast} of {bytes} bytes:\n{}", stage.run.table());
    // How a blocking sender gets its bytes across is not counted; they arrive.
    let said = stage.output(stage.tuned(program.to_str().unwrap(), ["stream-blocking"], &[]));
    assert_eq!(said.trim().parse(), Ok(bytes));
    stage.finish();
}

/// Fails if `Port::wake` rings for what was read: it rang eight times for each message.
#[test]
fn a_sleeper_is_rung_once_for_a_message() {
    if is_kernel_only() {
        return skip("nothing is saved without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (messages, bells, _) = rung(&stage, "sets", &UNPOLLED);
    assert!(bells < messages + messages / 10, "{messages} messages, {bells} doorbells");
    // One side is asleep whenever it is written to. The other may not be asleep yet: where both run on one processor,
    // the side that is rung may answer at once.
    assert!(bells > messages / 4, "{messages} messages, {bells} doorbells: who does not sleep is not rung");
    stage.finish();
}

/// Fails if `Port::may_doze` says no: then each message takes a doorbell.
#[test]
fn a_wait_for_one_connection_is_woken_without_the_protocol_stack() {
    if is_kernel_only() {
        return skip("nothing is saved without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("frugal");
    compile("frugal.c", &program, &["-pthread"]);
    let said = stage.output(stage.tuned(program.to_str().unwrap(), ["turns"], &UNPOLLED));
    if said.trim() == "old" {
        return skip("receives do not doze before Linux 5.16");
    }
    let [messages, carried] = numbers(&said)[..] else { panic!("it said {said:?}") };
    let woken = doorbells(&stage);
    assert!(woken > messages / 4, "{messages} messages, {woken} times woken: who does not sleep is not woken");
    assert!(carried < messages / 50, "{messages} messages took {carried} bytes of the kernel's");
    stage.finish();
}

fn told(group: &Group, file: &str) -> String {
    fs::read_to_string(format!("/proc/{}/{file}", group.pid())).expect("a kernel with schedstat")
}

/// Whether `idle.c` has come to its last wait, and sleeps.
fn is_idle(group: &Group) -> bool {
    group.said() == "idle\n" && told(group, "stat").contains(") S ")
}

/// Fails if a poll does not end: `Wait::poll_for` without `return if arrived() { Polled::Arrived } else {
/// Polled::Enough }` behind the look at the clock.
#[test]
fn idle_connections_cost_no_processor_time() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("idle");
    compile("idle.c", &program, &[]);
    for way in ["recv", "poll", "epoll"] {
        let group = stage.start(stage.tuned(program.to_str().unwrap(), [way], AT_ONCE));
        let used = || told(&group, "schedstat");
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // Nanoseconds on a processor, nanoseconds for which it waited for one, and how often it had one.
            let before = used();
            std::thread::sleep(Duration::from_millis(500));
            if is_idle(&group) && used() == before {
                break;
            }
            assert!(Instant::now() < deadline, "{way}: {}{}, {}", group.said(), before, used());
        }
        group.stop(libc::SIGTERM);
    }
    stage.run.assert_fast("idle");
    stage.finish();
}

/// Fails if `kernel::diag` leaves out `syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0])`.
#[test]
fn fast_connections_have_no_descriptors_of_their_own() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("idle");
    compile("idle.c", &program, &[]);
    let program = program.to_str().unwrap();
    let count = |command| {
        let group = stage.start(command);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_idle(&group) {
            assert!(Instant::now() < deadline, "{}", group.where_it_is());
            std::thread::sleep(Duration::from_millis(1));
        }
        let open = fs::read_dir(format!("/proc/{}/fd", group.pid())).expect("its descriptors").count();
        group.stop(libc::SIGTERM);
        open
    };
    assert_eq!(count(stage.tuned(program, ["poll"], AT_ONCE)), count(stage.plain(program, ["poll"])));
    stage.run.assert_fast("idle");
    stage.finish();
}

/// An action of a process on 1,500 connections at once takes a time that grows with their number, not with its square.
/// The process prints how many milliseconds of processor time it took.
fn assert_brief(way: &str) {
    /// Several times what it takes.
    const LIMIT_MS: u64 = 800;
    if is_kernel_only() {
        return skip("there is no library to take time");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("many");
    compile("many.c", &program, &[]);
    let said = stage.output(stage.tuned(program.to_str().unwrap(), [way], AT_ONCE));
    let [took] = numbers(&said)[..] else { panic!("it said {said:?}") };
    assert!(took < LIMIT_MS, "{way} took {took} ms");
    stage.run.assert_fast("many");
    stage.finish();
}

/// Fails if `kernel::copies` searches for each socket (`are_few` says yes): that took 2.5 s.
#[test]
fn many_connections_are_handed_over_at_once() {
    assert_brief("exec");
}

/// Fails if `Connection::confine` prepares the list of registrations for each connection: that took 8 s, and ten
/// times as long where what is unread stays in the ring.
#[test]
fn many_connections_are_confined_at_once() {
    assert_brief("filter");
}

/// Python: a thousand connections of one exchange each, one after another, then one of forty exchanges.
const SHORT_ONES: &str = "
import socket, time
listener = socket.create_server(('127.0.0.1', 0))

def exchange(count):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    for _ in range(count):
        client.sendall(b'?')
        server.sendall(server.recv(1))
        assert client.recv(1) == b'?'

for _ in range(1000):
    exchange(1)
time.sleep(0.2)
exchange(40)
";

/// Fails if `short_lived::begin` always, or never, says yes.
#[test]
fn many_short_connections_are_not_followed() {
    if is_kernel_only() {
        return skip("nothing is followed without the library");
    }
    let Some(stage) = Stage::with(&["python3"]) else { return };
    stage.output(stage.command("python3", ["-c", SHORT_ONES]));
    let processes = stage.run.processes();
    let left: u64 =
        processes.iter().map(|it| it.reasons.iter().find(|(r, _)| *r == Reason::ShortLived).map_or(0, |r| r.1)).sum();
    let [(connections, fast)] = processes.iter().map(|it| (it.connections, it.fast)).collect::<Vec<_>>()[..] else {
        panic!("one process:\n{}", stage.run.table())
    };
    assert_eq!((connections, fast), (2002, 2), "{}", stage.run.table());
    assert!(left > 0 && left < 2000, "{left} were left to the kernel:\n{}", stage.run.table());
    stage.finish();
}

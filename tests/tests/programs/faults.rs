//! Machines and users that give nothing: programs work as on kernel TCP, silently, and fast where it is possible.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use underpass_tests::group::Group;
use underpass_tests::library::AT_ONCE;
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, fixture};

use crate::databases::redis_server;

fn guest(stage: &Stage) -> String {
    let program = stage.path("guest");
    compile("guest.c", &program, &[]);
    program.display().to_string()
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

fn await_word(group: &Group, word: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !group.said().contains(word) {
        assert!(Instant::now() < deadline, "no {word}:\n{}{}", group.said(), group.where_it_is());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A server does not keep room for clients that were gone before they could come.
#[test]
fn offers_that_nobody_takes_are_taken_back() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let (script, port) = (fixture("hasty.py").display().to_string(), free_port().to_string());
    let server = stage.serve(stage.command("python3", [&script, "serve", &port]), port.parse().unwrap());
    assert_eq!(stage.output(stage.command("python3", [&script, "ask", &port, "400"])), "all sent\n");
    // Its table of ends, perhaps the directory, a pool of 4 and one of 64.
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
        let said = witness.succeed(Duration::from_secs(10));
        let expected = if sender_dies { ", then the end" } else { "sent some, then gone" };
        assert!(said.contains(expected), "seed {SEED:#x}, round {round}, after {after} µs:\n{said}");
    }
    stage.run.assert_fast("pump");
    stage.finish();
}

/// Of two processes that share a socket the one that sends is killed, and the other goes on.
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
        let said = receiver.succeed(Duration::from_secs(10));
        assert!(said.contains("all marks, then the end"), "seed {SEED:#x}, round {round}, after {after} µs:\n{said}");
        parent.succeed(Duration::from_secs(10));
    }
    stage.run.assert_fast("pump");
    stage.finish();
}

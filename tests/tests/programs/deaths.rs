//! Ends that die, and connections that come and go: the surviving end sees what was sent, then an end, never a hang.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use underpass_tests::broker::Broker;
use underpass_tests::compiler::cc;
use underpass_tests::container::Bridge;
use underpass_tests::library::{AT_ONCE, is_kernel_only};
use underpass_tests::mode;
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile};

#[test]
fn the_sender_dies() {
    die(|round| (true, Duration::from_millis(3 * round)), "some as sent, then the end");
}

#[test]
fn the_receiver_dies() {
    die(|round| (false, Duration::from_millis(3 * round)), "sent some, then gone");
}

/// The kernel tells a poll that looks at the right moment of the error alone. A program that sleeps never does look
/// then, but this library does for it: without the second look of `kernel::poll_now` a fifth of these polls say so.
#[test]
fn a_reset_is_told_whole() {
    let Some(stage) = Stage::beside_others(&["cc"]) else { return };
    let program = stage.path("reset");
    compile("reset.c", &program, &[]);
    let settings = [AT_ONCE, &[("UNDERPASS_SPIN_US", "10000")]].concat();
    for way in ["poll", "epoll"] {
        let said = stage.output(stage.tuned(program.to_str().unwrap(), [way, "200"], &settings));
        assert_eq!(said, "0\n", "{way}");
    }
    stage.run.assert_fast("reset");
    stage.finish();
}

fn die(plan: impl Fn(u64) -> (bool, Duration), expected: &str) {
    let Some(stage) = Stage::beside_others(&["cc"]) else { return };
    let pump = stage.path("pump");
    compile("pump.c", &pump, &[]);
    for round in 1..=15 {
        let (sender_dies, after) = plan(round);
        let port = free_port();
        let command = |mode: &str| stage.tuned(pump.to_str().unwrap(), [mode, &port.to_string()], AT_ONCE);
        let sender = stage.serve(command("serve"), port);
        let receiver = stage.start(command("drain"));
        while !sender.said().contains("connected") || !receiver.said().contains("connected") {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Later in each round: at any point of the meeting, the switch and the stream.
        std::thread::sleep(after + Duration::from_millis(20));
        let (victim, witness) = if sender_dies { (sender, receiver) } else { (receiver, sender) };
        victim.signal(libc::SIGKILL);
        let said = witness.succeed(Duration::from_secs(20));
        assert!(said.contains(expected), "round {round}:\n{said}");
    }
    stage.run.assert_fast("pump");
    stage.finish();
}

/// A program of `tests/soak`, for as long as a test may take. `make soak` and `make churn` run them for longer.
fn soak(stage: &Stage, name: &str, arguments: &[&str], settings: &[(&str, &str)]) {
    print!("{}", stage.output(soaking(stage, name, arguments, settings)));
    stage.run.assert_fast(name);
}

fn soaking(stage: &Stage, name: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let program = stage.path(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("soak").join(format!("{name}.c"));
    cc(&program, &["-O2"], &[source]);
    stage.tuned(&program.display().to_string(), arguments, settings)
}

/// Killed, stopped, aborted, ended, executing another program, shared with a child: see the program.
#[test]
fn either_end_dies_at_any_point() {
    for mode in mode::tested().filter(|mode| mode.warm > 0) {
        let Some(stage) = Stage::beside_others(&["cc"]) else { return };
        soak(&stage, "deaths", &["1", "4"], mode.settings);
        stage.finish();
    }
}

/// Killed, stopped, aborted and so on between two users, on one host and in two containers.
#[test]
fn either_end_dies_between_users_and_containers() {
    for is_apart in [false, true] {
        let Some(stage) = Stage::with(&["cc", "unshare", "nsenter", "ip"]) else { return };
        let Some(broker) = Broker::start(&stage, &[]) else { return };
        if is_apart && !broker.has_numbers() {
            return;
        }
        let bridge = is_apart.then(|| Bridge::new(&stage));
        let mut command = soaking(&stage, "deaths", &["1", "4"], AT_ONCE);
        command.env("DEATHS_USERS", "61001:61002").envs(bridge.iter().flat_map(Bridge::deaths));
        broker.serves(&mut command);
        let said = stage.output(command);
        // Both ends are told.
        let (met, deaths) = (broker.met() / 2, said.split(' ').nth(2).and_then(|it| it.parse().ok()).unwrap_or(0));
        println!("{met} met; {said}");
        assert!(deaths > 10 && (is_kernel_only() || met > 10), "{met} met; {said}\n{}", broker.said());
        drop((bridge, broker));
        stage.finish();
    }
}

#[test]
fn nothing_grows_with_connections_that_come_and_go() {
    let Some(stage) = Stage::beside_others(&["cc"]) else { return };
    soak(&stage, "churn", &["1", "15", "400"], AT_ONCE);
    stage.finish();
}

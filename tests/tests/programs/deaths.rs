//! kill -9 of either end in the middle of a stream: the other end sees what was sent, then an end, never a hang.

use std::time::Duration;
use underpass_tests::library::AT_ONCE;
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

fn die(plan: impl Fn(u64) -> (bool, Duration), expected: &str) {
    let Some(stage) = Stage::with(&["cc"]) else { return };
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

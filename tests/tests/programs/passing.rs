//! Sockets that are passed over a Unix socket, and images and processes that end beside that: no connection fails, and
//! nobody waits.

use underpass_tests::library::AT_ONCE;
use underpass_tests::stage::{Stage, fixture};

/// A stage with a C program.
fn with_program(name: &str) -> Option<(Stage, String)> {
    let stage = Stage::with(&["cc"])?;
    let program = stage.compiled(name);
    Some((stage, program))
}

/// Fails if a process that is ending, which has the worker's socket for a moment without any memory, is taken for a
/// receiver that cannot come to the ring: then 1 to 20 of a hundred connections are reset.
#[test]
fn a_worker_gets_what_is_passed_beside_processes_that_end() {
    let Some((stage, program)) = with_program("prefork") else { return };
    for bystanders in ["programs", "children"] {
        let said = stage.output(stage.tuned(&program, [bystanders, "150"], AT_ONCE));
        assert_eq!(said.lines().last(), Some("0"), "{bystanders}: {said}");
    }
    stage.run.assert_fast("prefork");
    stage.finish();
}

/// Fails if a descriptor that was only peeked at takes up the loan of a message that is still to be received, or of an
/// image.
#[test]
fn what_is_only_peeked_at_is_still_awaited() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let program = fixture("peeked.py");
    for how in ["message", "image"] {
        let said = stage.output(stage.tuned("python3", [program.to_str().unwrap(), how], AT_ONCE));
        assert_eq!(said.trim(), "9000 bytes", "{how}");
    }
    stage.run.assert_fast("python3");
    stage.finish();
}

/// Fails if others await an image that was killed after it had counted itself, and before it attached the memory with
/// the unread bytes: then one exit in thirty takes 3 s.
#[test]
fn an_image_that_is_killed_on_its_way_delays_no_exit() {
    let Some((stage, program)) = with_program("killed") else { return };
    let said = stage.output(stage.tuned(&program, ["4"], AT_ONCE));
    let slowest: u64 = said.trim().parse().expect("a time in ms");
    assert!(slowest < 1500, "an exit took {slowest} ms");
    stage.run.assert_fast("killed");
    stage.finish();
}

/// One thread closes a socket that another receives. Fails for the same reason as
/// [`a_worker_gets_what_is_passed_beside_processes_that_end`]; images that are killed end in other places than programs
/// that end by themselves.
#[test]
fn a_connection_hops_between_threads_beside_images_that_are_killed() {
    let Some((stage, program)) = with_program("hops") else { return };
    let said = stage.output(stage.tuned(&program, ["5"], AT_ONCE));
    assert_eq!(said.lines().last(), Some("0"), "{said}");
    stage.run.assert_fast("hops");
    stage.finish();
}

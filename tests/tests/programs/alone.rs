//! A connection goes on in a new program image although no process has kept its memory meanwhile.

use std::time::Duration;
use underpass_tests::library::AT_ONCE;
use underpass_tests::stage::{Stage, compile};

const LIMIT: Duration = Duration::from_secs(120);

/// A stage with the program, the program's path, and that of the same program without the library.
fn scene() -> Option<(Stage, [String; 2])> {
    let stage = Stage::beside_others(&["cc"])?;
    let paths = [("alone", &["-std=gnu11"][..]), ("static", &["-std=gnu11", "-static"][..])].map(|(name, flags)| {
        let path = stage.path(name);
        compile("alone.c", &path, flags);
        path.to_str().expect("a plain path").to_owned()
    });
    Some((stage, paths))
}

/// Each end may find that the other still has the memory, and lets go of it. Fails if what is unread does not go along,
/// and if `Port::take_mark_back` takes back a mark that was given back.
#[test]
fn both_ends_execute_at_the_same_moment() {
    let Some((stage, [program, _])) = scene() else { return };
    for delay in ["0", "50", "100", "150", "200", "300", "400"] {
        stage.start(stage.tuned(&program, ["both", delay, "30"], AT_ONCE)).succeed(LIMIT);
    }
    stage.finish();
}

/// What the other end has sent before it ended, or before it executed a program without the library, is read by the
/// second image that takes this process's place.
#[test]
fn the_other_end_is_gone() {
    let Some((stage, [program, without])) = scene() else { return };
    for how in ["exit", "kill", "image"] {
        for count in ["1", "9", "150"] {
            stage.start(stage.tuned(&program, ["left", how, count, &without], AT_ONCE)).succeed(LIMIT);
        }
    }
    stage.finish();
}

/// One end has shut down its half, and the other has read to the end of that. Fails if an end that has left its ring
/// does not go on without a channel.
#[test]
fn both_ends_execute_when_one_has_shut_down_its_half() {
    let Some((stage, [program, _])) = scene() else { return };
    for delay in ["0", "20"] {
        stage.start(stage.tuned(&program, ["half", delay, "100"], AT_ONCE)).succeed(LIMIT);
    }
    stage.finish();
}

/// The other end's kernel resets the connection, because of a doorbell; where this end has shut down its half, the
/// stream ends. Fails if the image takes a reset for other bytes, or if nothing goes along where a half is shut down.
#[test]
fn the_other_end_is_killed_meanwhile() {
    let Some((stage, [program, _])) = scene() else { return };
    for count in ["1", "9", "60"] {
        stage.start(stage.tuned(&program, ["meanwhile", count, "5"], AT_ONCE)).succeed(LIMIT);
    }
    stage.finish();
}

/// The program of which a thread or a process uses the connection beside the execution.
fn beside() -> Option<(Stage, String)> {
    let stage = Stage::beside_others(&["cc"])?;
    let path = stage.path("beside");
    compile("beside.c", &path, &["-std=gnu11", "-pthread"]);
    let path = path.to_str().expect("a plain path").to_owned();
    Some((stage, path))
}

/// What another thread accepts meanwhile is plain TCP to the image. Fails if `Connection::consider` joins such a
/// connection once it was decided what goes along.
#[test]
fn another_thread_accepts_connections() {
    let Some((stage, program)) = beside() else { return };
    stage.start(stage.tuned(&program, ["accept", "12"], AT_ONCE)).succeed(LIMIT);
    stage.finish();
}

/// Of two processes that share a connection one keeps the table of ends. Fails if `Family::begin_departure` looks
/// before it says that its process departs.
#[test]
fn both_processes_of_one_end_execute_at_the_same_moment() {
    let Some((stage, program)) = beside() else { return };
    for delay in ["0", "5", "10", "20"] {
        stage.start(stage.tuned(&program, ["both", delay, "60"], AT_ONCE)).succeed(LIMIT);
    }
    stage.finish();
}

/// A process shares the connection with the image to come, uses it, and is gone before the image is there. Fails if the
/// image goes on with what the end was before (`Carried::restore`), and if the process does not wait for an image that
/// takes long.
#[test]
fn the_process_that_shares_the_end_is_gone() {
    let Some((stage, program)) = beside() else { return };
    for (how, what) in ["kill", "exit"].into_iter().flat_map(|how| ["r", "w", "rw"].map(|what| (how, what))) {
        stage.start(stage.tuned(&program, ["ends", how, what], AT_ONCE)).succeed(LIMIT);
    }
    stage.finish();
}

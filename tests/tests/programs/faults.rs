//! Machines and users that give nothing: programs work as on kernel TCP, silently, and fast where it is possible.

use underpass_tests::library::AT_ONCE;
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, fixture};

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

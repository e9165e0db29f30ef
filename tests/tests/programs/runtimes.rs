//! Languages with runtimes of their own: Python's asyncio and multiprocessing, Node.js, Java.

use std::fs;
use std::time::Duration;
use underpass_tests::library::is_kernel_only;
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, fixture};

use crate::web::noise;

#[test]
fn python_asyncio() {
    python("echo_asyncio.py", "every echo as sent\n");
}

#[test]
fn python_multiprocessing() {
    python("manager.py", "all items on the shelf\n");
}

#[test]
fn python_edges_and_threads() {
    python("edges.py", "every echo as sent\n");
}

/// Connections that are handed on to executed programs are counted by the process that uses them, with what became of
/// them.
#[test]
fn python_hands_connections_on() {
    for mode in ["fork", "spawn", "late", "killed"] {
        let Some(stage) = python_hands_on(mode) else { return };
        for process in stage.run.processes() {
            assert_eq!(process.fast, process.connections, "by {mode}:\n{}", stage.run.table());
        }
        let fast = stage.run.fast(Some("python3"));
        // Three at the server, and three at the client, before and behind the execution; nearly all of both ways'
        // bytes.
        let table = stage.run.table();
        assert!(is_kernel_only() || fast.connections == 6 && fast.bytes > 35_000, "{mode}: {fast:?}\n{table}");
        stage.finish();
    }
}

/// If several processes have a connection from its beginning, it is not known which of them will use it, so it gets no
/// channel.
#[test]
fn python_keeps_connections_that_it_hands_on() {
    let Some(stage) = python_hands_on("keep") else { return };
    stage.run.assert_not_fast();
    let table = stage.run.table();
    assert!(is_kernel_only() || table.contains("Shared") && table.contains("PeerSilent"), "{table}");
    stage.finish();
}

fn python_hands_on(mode: &str) -> Option<Stage> {
    let stage = Stage::with(&["python3"])?;
    let (script, port) = (fixture("handed.py").display().to_string(), free_port());
    let command = |mode: &str| stage.command("python3", [&script, mode, &port.to_string()]);
    let server = stage.start(command(mode));
    assert_eq!(stage.output(command("ask")), "every echo as sent\n");
    server.succeed(Duration::from_secs(20));
    Some(stage)
}

fn python(script: &str, result: &str) {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let (script, port) = (fixture(script).display().to_string(), free_port());
    let command = |mode: &str| stage.command("python3", [&script, mode, &port.to_string()]);
    let server = stage.serve(command("serve"), port);
    assert_eq!(stage.output(command("ask")), result);
    stage.run.assert_fast("python3");
    drop(server);
    stage.finish();
}

#[test]
fn node() {
    let Some(stage) = Stage::with(&["node", "curl"]) else { return };
    let (http, echo) = (free_port(), free_port());
    let script = fixture("node.js").display().to_string();
    let command = |mode: &str| stage.command("node", [&script, mode, &http.to_string(), &echo.to_string()]);
    let mut server = stage.serve(command("serve"), http);
    underpass_tests::net::await_listening(&mut server, echo);
    assert_eq!(stage.output(command("ask")), "every answer as expected\n");
    stage.file("sent", noise(3_000_000));
    let url = format!("http://127.0.0.1:{http}/");
    stage.output(stage.command("curl", ["-sS", "--fail", "--data-binary", "@sent", "-o", "answer", &url]));
    assert!(fs::read(stage.path("answer")).unwrap() == noise(3_000_000), "curl's upload came back changed");
    stage.run.assert_fast("node");
    server.stop(libc::SIGTERM);
    stage.finish();
}

#[test]
fn java() {
    let Some(stage) = Stage::with(&["java"]) else { return };
    let (blocking, nio) = (free_port(), free_port());
    let source = fixture("Echo.java").display().to_string();
    // Without its own file of counters in /tmp, which a killed process would leave there.
    let options = ["-XX:-UsePerfData", "-Xshare:auto", "-XX:TieredStopAtLevel=1", &source];
    let ports = [blocking.to_string(), nio.to_string()];
    let command = |mode: &str| stage.command("java", options.into_iter().chain([mode, &ports[0], &ports[1]]));
    let mut server = stage.serve(command("serve"), blocking);
    underpass_tests::net::await_listening(&mut server, nio);
    assert_eq!(stage.output(command("ask")), "every echo as sent\n");
    stage.run.assert_fast("java");
    drop(server);
    stage.finish();
}

//! The statistics of each process: a process counts each of its connections once, even if other processes have it too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, id};
use std::time::{Duration, Instant};

use serde_json::Value;
use underpass_segment::stats::ProcessStats;
use underpass_tests::library::{self, AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, fixture, skip};

/// Bytes that both ends together send before and after the execution.
const BEFORE: u64 = 2 * 60 * 600;
const AFTER: u64 = 2 * 10 * 600;

/// Connections, those that went fast, bytes sent.
type Row = (u64, u64, u64);

#[test]
fn what_is_left_to_an_executed_program_is_counted_by_that_program() {
    if is_kernel_only() {
        return skip("nothing is counted without the library");
    }
    let ways: [(&str, &[Row]); 5] = [
        ("child-idle", &[(2, 2, BEFORE)]),
        ("system-", &[(2, 2, BEFORE)]),
        ("child-use", &[(2, 2, BEFORE), (2, 2, AFTER)]),
        ("image-idle", &[(2, 2, BEFORE)]),
        ("image-use", &[(2, 2, BEFORE + AFTER)]),
    ];
    for (way, expected) in ways {
        for end in ["open", "close"] {
            let Some(stage) = Stage::with(&["cc"]) else { return };
            let program = stage.path("heirs");
            compile("heirs.c", &program, &[]);
            stage.output(stage.tuned(program.to_str().unwrap(), [way, end], AT_ONCE));
            let processes = stage.run.processes();
            let row = |it: &ProcessStats| (it.connections, it.fast, it.fast_sent + it.kernel_sent);
            let rows: Vec<Row> = processes.iter().map(row).collect();
            assert_eq!(rows, expected, "{way} {end}:\n{}", stage.run.table());
            stage.finish();
        }
    }
}

/// Python: 40 bytes each way over a connection of its own.
const EXCHANGE: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
for _ in range(40):
    client.sendall(b'?')
    server.sendall(server.recv(1))
    assert client.recv(1) == b'?'
";

/// Fails if a process takes a row when it loads the library, or when it is forked.
#[test]
fn processes_without_connections_leave_room_for_others() {
    if is_kernel_only() {
        return skip("nothing is counted without the library");
    }
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let idle = "
import os, socket
for _ in range(1050):
    if (child := os.fork()) == 0:
        socket.socket().close()
        os._exit(0)
    os.waitpid(child, 0)
for _ in range(20):
    os.spawnv(os.P_WAIT, '/bin/true', ['true'])
";
    stage.output(stage.command("python3", ["-c", &format!("{idle}{EXCHANGE}")]));
    let processes = stage.run.processes();
    let rows: Vec<_> = processes.iter().map(|it| (it.command.starts_with("python"), it.connections)).collect();
    assert_eq!((rows, stage.run.uncounted()), (vec![(true, 2)], 0), "{}", stage.run.table());
    stage.finish();
}

/// What `run --stats` says of a program with connections, started by `prefix`.
fn told(stage: &Stage, prefix: &[&str]) -> String {
    let file = stage.path("told");
    let mut command = Command::new(library::command());
    library::plain(&mut command);
    command.arg("run").arg(format!("--stats={}", file.display())).arg("--").args(prefix);
    command.arg(stage.path("heirs")).args(["child-idle", "close"]);
    command.env("UNDERPASS_LIBRARY", library::path()).env("UNDERPASS_CONFIG", "/dev/null");
    let run = command.output().unwrap();
    assert!(run.status.success(), "{prefix:?}: {}", String::from_utf8_lossy(&run.stderr));
    fs::read_to_string(file).unwrap()
}

/// The library cannot attach the counters there, and the command cannot know what it has not been told.
#[test]
fn what_cannot_reach_the_counters_is_not_said_to_have_had_no_connection() {
    if is_kernel_only() {
        return skip("nothing is counted without the library");
    }
    let Some(stage) = Stage::with(&["cc", "unshare", "setpriv"]) else { return };
    compile("heirs.c", &stage.path("heirs"), &[]);
    // For the other user.
    fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let counted = told(&stage, &["env"]);
    assert!(counted.contains(" heirs "), "{counted}");
    let no_library: &[&str] = &["env", "--unset=LD_PRELOAD"];
    let gone: &[&str] = &["env", "UNDERPASS_STATS=2147483647"];
    let elsewhere: &[&str] = &["unshare", "--ipc"];
    let other_user: &[&str] = &["setpriv", "--reuid=65534", "--clear-groups"];
    for prefix in [no_library, gone, elsewhere, other_user] {
        if !Command::new(prefix[0]).args(&prefix[1..]).arg("true").status().unwrap().success() {
            skip(&format!("{prefix:?} needs root"));
            continue;
        }
        let told = told(&stage, prefix);
        let honest = "\nNo TCP connection in 1 program that reached the counters.\nNothing is known of ";
        assert!(told.contains(honest), "{prefix:?}: {told}");
    }
    stage.finish();
}

/// Python: a child answers each of sixty messages once its parent sleeps in a poll of two connections.
const POLLS: &str = "
import os, select, socket, sys
listener = socket.create_server(('127.0.0.1', 0))
parent = os.getpid()
if os.fork() == 0:
    asked, quiet = (socket.create_connection(listener.getsockname()) for _ in range(2))
    while asked.recv(1):
        while open(f'/proc/{parent}/stat').read().rsplit(') ')[1][0] != 'S':
            pass
        asked.sendall(b'!')
    os._exit(0)
both = [listener.accept()[0] for _ in range(2)]
asking = both[0]
if sys.argv[1] == 'select':
    wait = lambda: select.select(both, [], [])
else:
    polled = select.poll() if sys.argv[1] == 'poll' else select.epoll()
    for it in both:
        polled.register(it, select.POLLIN)
    wait = polled.poll
for _ in range(60):
    asking.sendall(b'?')
    wait()
    assert asking.recv(1) == b'!'
asking.shutdown(socket.SHUT_WR)
os.wait()
";

/// Fails without `statistics::count_poll_sleep` in `watch/epoll/wait.rs` or in `watch/poll.rs`.
#[test]
fn sleeps_in_polls_and_sets_are_counted() {
    if is_kernel_only() {
        return skip("nothing is counted without the library");
    }
    for way in ["epoll", "poll", "select"] {
        let Some(stage) = Stage::with(&["python3"]) else { return };
        stage.output(stage.tuned("python3", ["-c", POLLS, way], AT_ONCE));
        let sleeps: u64 = stage.run.processes().iter().map(|it| it.poll_sleeps).sum();
        // The first few go by kernel TCP.
        assert!(sleeps >= 30, "{way}: {sleeps} of 60\n{}", stage.run.table());
        stage.finish();
    }
}

/// What `underpass ss --stats` says, with these arguments.
fn so_far(arguments: &[&str]) -> String {
    let mut command = Command::new(library::command());
    library::plain(&mut command);
    let shown = command.args(["ss", "--stats"]).args(arguments).output().unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn what_is_counted_so_far_is_shown_while_programs_run() {
    if is_kernel_only() {
        return skip("nothing is counted without the library");
    }
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let (port, go) = (free_port(), stage.path("go"));
    let program = |role: &str| {
        let arguments =
            [fixture("watched.py").into(), role.into(), port.to_string().into(), go.clone().into_os_string()];
        stage.command("python3", arguments)
    };
    let server = stage.serve(program("serve"), port);
    let client = stage.start(program("talk"));
    let pid = client.pid();
    let row = || {
        let shown: Value = serde_json::from_str(&so_far(&["--json"])).unwrap();
        let mut rows = shown["runs"].as_array().unwrap().iter().flat_map(|run| {
            let rows = run["processes"].as_array().unwrap();
            rows.iter().map(move |row| (run.clone(), row.clone()))
        });
        rows.find(|(_, row)| row["pid"] == pid)
    };
    let sent = |row: &Value| row["bytes"]["ring"]["sent"].as_u64().unwrap();
    // The connection is open, so that the client has told nothing of it yet.
    let deadline = Instant::now() + Duration::from_secs(30);
    let (run, before) = loop {
        match row() {
            Some((run, row)) if sent(&row) > 1000 => break (run, row),
            other => assert!(Instant::now() < deadline, "{other:#?}\n{}{}", server.said(), client.said()),
        }
    };
    assert_eq!((&before["connections"], &before["fast"], &before["untold"]), (&1.into(), &1.into(), &0.into()));
    assert!(before["bytes"]["kernel"]["sent"].as_u64() > Some(0), "{before:#}");
    // This test is what counts.
    assert_eq!(run["pid"], id(), "{run:#}");
    assert!(run["command_line"][0].as_str().unwrap().contains("programs"), "{run:#}");
    let text = so_far(&[]);
    assert!(text.contains(&format!("Process {} (", id())) && text.contains(&format!("\n{pid} ")), "{text}");

    fs::write(&go, "").unwrap();
    client.succeed(Duration::from_secs(20));
    let (_, after) = row().expect("this test still counts");
    let processes = stage.run.processes();
    let told = processes.iter().find(|it| it.pid == pid).unwrap();
    assert_eq!((sent(&after), after["fast"].as_u64()), (told.fast_sent, Some(1)), "each byte once");
    assert!(sent(&after) >= sent(&before), "{before:#} {after:#}");
    server.stop(libc::SIGTERM);
    stage.finish();
}

//! `underpass ss`, `top` and `metrics` beside programs that run: what they say is so, and those do not notice.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use underpass_tests::library::{self, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, fixture, skip};
use underpass_tests::terminal::Terminal;

/// What lies unread in the ring: see `watched.py`.
const LARGE: u64 = 5000;

#[test]
fn connections_are_listed_and_go_on() {
    if is_kernel_only() {
        return skip("nothing is to be seen without the library");
    }
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let (port, go) = (free_port(), stage.path("go"));
    let program = |role: &str| {
        let arguments =
            [fixture("watched.py").into(), role.into(), port.to_string().into(), go.clone().into_os_string()];
        stage.command("python3", arguments)
    };
    let server = stage.serve(program("serve"), port);
    let client = stage.start(program("ask"));
    let peer = format!("127.0.0.1:{port}");

    let deadline = Instant::now() + Duration::from_secs(30);
    let all = loop {
        let all = rows(&ss(&["--json"]));
        let is_there = |it: &&Value| it["peer"] == *peer && it["out"]["unread"].as_u64() >= Some(LARGE);
        if all.iter().any(|it| is_there(&it)) {
            break all;
        }
        assert!(Instant::now() < deadline, "{all:#?}\n{}{}", server.said(), client.said());
    };
    let theirs = |side: &str| all.iter().filter(|it| it[side] == *peer).collect::<Vec<_>>();
    let (asking, serving) = (theirs("peer"), theirs("local"));
    assert_eq!((asking.len(), serving.len()), (2, 2), "{all:#?}");
    for (rows, pid, full, empty) in [(&asking, client.pid(), "out", "in"), (&serving, server.pid(), "in", "out")] {
        let (fast, young): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|it| it["out"]["path"] == "ring");
        let ([fast], [young]) = (&fast[..], &young[..]) else { panic!("{all:#?}") };
        assert_eq!(fast["in"]["path"], "ring", "{fast:#}");
        assert_eq!(
            (&fast["stage"], &fast["reason"], &fast["state"]),
            (&"joined".into(), &Value::Null, &"ESTAB".into())
        );
        assert!((LARGE..LARGE + 200).contains(&fast[full]["unread"].as_u64().unwrap()), "{fast:#}");
        assert_eq!(fast[empty]["unread"], 0, "{fast:#}");
        let carried =
            |way: &str| fast[way]["ring_bytes"].as_u64().unwrap() + fast[way]["kernel_bytes"].as_u64().unwrap();
        assert_eq!(
            (carried(full), carried(empty)),
            (20_000 + if full == "out" { LARGE } else { 0 }, 20_000),
            "{fast:#}"
        );
        assert!(fast["ring_size"].as_u64() >= Some(65536) && fast["waits"].is_u64() && fast["doorbells"].is_u64());
        assert_eq!((&young["in"]["path"], &young["reason"]), (&"kernel".into(), &"young".into()), "{young:#}");
        for row in [fast, young] {
            let holders = row["processes"].as_array().unwrap();
            assert_eq!((holders.len(), &holders[0]["pid"]), (1, &pid.into()), "{row:#}");
            let fd = fs::read_link(format!("/proc/{pid}/fd/{}", holders[0]["fd"])).unwrap();
            assert!(fd.to_string_lossy().starts_with("socket:["), "{row:#}");
            assert!(holders[0]["name"].as_str().unwrap().starts_with("python"), "{row:#}");
        }
    }
    let text = String::from_utf8(ss(&[]).stdout).unwrap();
    assert!(text.starts_with("LOCAL ") && text.matches(&peer).count() == 4, "{text}");
    others_see_nothing(&stage, &peer);
    let metrics = Metrics::listen();
    for (pid, sent, received) in [(client.pid(), 20_000 + LARGE, 20_000), (server.pid(), 20_000, 20_000)] {
        let text = metrics.scrape();
        let of = |name: &str, label: &str| sum(&text, name, &[&format!("pid=\"{pid}\""), label]);
        let bytes = |direction: &str| of("underpass_bytes_total", &format!("direction=\"{direction}\""));
        assert_eq!((bytes("sent"), bytes("received")), (sent as f64, received as f64), "{text}");
        assert!(
            of("underpass_bytes_total", "path=\"ring\"") > of("underpass_bytes_total", "path=\"kernel\""),
            "{text}"
        );
        let paths = ["ring", "mixed", "kernel"].map(|path| of("underpass_connections", &format!("path=\"{path}\"")));
        assert_eq!(paths, [1.0, 0.0, 1.0], "{text}");
        assert_eq!(of("underpass_kernel_connections", "reason=\"young\""), 1.0, "{text}");
        let unread = of(
            "underpass_unread_bytes",
            if pid == client.pid() { "direction=\"sent\"" } else { "direction=\"received\"" },
        );
        assert!(unread >= LARGE as f64, "{text}");
    }
    let once = Command::new(library::command()).arg("metrics").output().unwrap();
    let once = String::from_utf8(once.stdout).unwrap();
    assert_eq!(
        sum(&once, "underpass_bytes_total", &[&format!("pid=\"{}\"", client.pid()), "direction=\"sent\""]),
        (20_000 + LARGE) as f64
    );

    fs::write(&go, "").unwrap();
    while fs::metadata(format!("/proc/{}", client.pid())).is_ok() && !client.said().contains("all came back") {
        ss(&["--json"]);
    }
    assert_eq!(client.succeed(Duration::from_secs(20)), "all came back\n");
    let text = metrics.scrape();
    let labels = [format!("pid=\"{}\"", server.pid()), "direction=\"sent\"".into()];
    let sent = sum(&text, "underpass_bytes_total", &labels.each_ref().map(String::as_str));
    assert!(sent >= 20_000.0, "never less than before: {text}");
    drop(metrics);
    server.stop(libc::SIGTERM);
    stage.run.assert_fast("python3");
    stage.finish();
}

#[test]
fn top_shows_rates_and_leaves_the_terminal_as_it_was() {
    if is_kernel_only() {
        return skip("nothing is to be seen without the library");
    }
    let Some(stage) = Stage::with(&["python3", "setsid"]) else { return };
    let (port, go) = (free_port(), stage.path("go"));
    let program = |role: &str| {
        let arguments =
            [fixture("watched.py").into(), role.into(), port.to_string().into(), go.clone().into_os_string()];
        stage.command("python3", arguments)
    };
    let server = stage.serve(program("serve"), port);
    let client = stage.start(program("talk"));
    let start = || {
        let mut top = Command::new(library::command());
        top.args(["top", "--interval", "0.2"]);
        Terminal::start(top, 160, 24)
    };

    let mut top = start();
    top.await_screen("the keys", |screen| screen.contains("q quit"));
    top.press(&format!("/:{port}\r"));
    let screen = top.await_screen("both ends and what they carry", |screen| {
        screen.contains("2 shown") && screen.contains("sent ") && screen.contains("(100 % fast); received")
    });
    for pid in [client.pid(), server.pid()] {
        let line = screen.lines().find(|line| line.starts_with("python") && line.contains(&format!(" {pid} fd ")));
        let line = line.unwrap_or_else(|| panic!("{pid} in\n{screen}"));
        assert_eq!(line.split_whitespace().filter(|&word| word == "ring").count(), 2, "{screen}");
        assert!(line.contains("B/s"), "{screen}");
    }
    assert!(screen.contains("Both directions go through shared memory."), "{screen}");
    assert!(screen.contains("by traffic; every 0.2 s"), "{screen}");
    for (keys, shown) in [
        ("s", "by bytes sent; every"),
        ("r", "by bytes sent, least first; every"),
        ("p", "PAUSED: "),
        ("p/\x7f\x7f\x7f\x7f\x7f\x7f\x7fnothing of this name\r", " 0 shown"),
    ] {
        top.press(keys);
        top.await_screen(shown, |screen| screen.contains(shown));
    }
    top.resize(30, 5);
    top.await_screen("too small", |screen| screen.contains("too small: 40 × 8 is needed"));
    top.resize(160, 24);
    top.await_screen("all again", |screen| screen.contains(" 0 shown"));
    top.press("\x1b");
    top.await_screen("all lines", |screen| !screen.contains("shown") && screen.contains(&client.pid().to_string()));
    top.press("q");
    assert_eq!(top.end().code(), Some(0));

    let mut top = start();
    top.await_screen("the keys", |screen| screen.contains("q quit"));
    top.press("\x03");
    assert_eq!(top.end().code(), Some(0));
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let top = start();
        top.await_screen("the keys", |screen| screen.contains("q quit"));
        top.signal(signal);
        assert_eq!(top.end().signal(), Some(signal));
    }

    fs::write(&go, "").unwrap();
    client.succeed(Duration::from_secs(20));
    server.stop(libc::SIGTERM);
    stage.run.assert_fast("python3");
    stage.finish();
}

/// `underpass metrics --listen`, ended when dropped.
struct Metrics(Child, String);

impl Metrics {
    fn listen() -> Metrics {
        let mut command = Command::new(library::command());
        command.args(["metrics", "--listen", "127.0.0.1:0", "--interval", "0.2"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("underpass metrics");
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        let address =
            said.trim().strip_prefix("underpass: metrics at http://").and_then(|it| it.strip_suffix("/metrics"));
        Metrics(child, address.unwrap_or_else(|| panic!("{said}")).to_string())
    }

    fn scrape(&self) -> String {
        let mut connection = TcpStream::connect(&self.1).unwrap();
        write!(connection, "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.1).unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200 ") && text.contains("Content-Type: text/plain; version=0.0.4"),
            "{text}"
        );
        text
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All samples of a metric with these labels, added up.
fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    let lines = text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
    let samples = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn ss(arguments: &[&str]) -> Output {
    let output = Command::new(library::command()).arg("ss").args(arguments).output().expect("underpass ss");
    assert!(output.status.success(), "{output:?}");
    output
}

fn rows(output: &Output) -> Vec<Value> {
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    said["connections"].as_array().expect("a list").clone()
}

/// Another user is told of nothing, and what to do.
fn others_see_nothing(stage: &Stage, peer: &str) {
    const NOBODY: u32 = 65533;
    let copy = stage.path("underpass");
    fs::copy(library::command(), &copy).unwrap();
    fs::set_permissions(copy.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(&copy);
        command.arg("ss").args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").output()
    };
    let Ok(json) = ask(&["--json"]) else { return println!("as one user only: another's view needs root") };
    assert!(rows(&json).iter().all(|it| it["peer"] != *peer && it["local"] != *peer));
    let text = ask(&[]).unwrap();
    let said = String::from_utf8_lossy(&text.stderr).into_owned();
    assert!(said.contains("user 65533 has no program under Underpass here; start one by `underpass run"), "{said}");
    assert!(text.status.success() && text.stdout.is_empty());
}

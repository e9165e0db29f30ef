//! `underpass ss`, `top`, `metrics` and `pin` beside programs that run: what they say is so, and those do not notice.

use std::collections::BTreeMap;
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
use underpass_tests::stage::{Stage, compile, copy_program, fixture, skip};
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
    assert_listed(&asking, client.pid(), "out", "in");
    assert_listed(&serving, server.pid(), "in", "out");
    let text = String::from_utf8(ss(&[]).stdout).unwrap();
    assert!(text.starts_with("LOCAL ") && text.matches(&peer).count() == 4, "{text}");
    others_see_nothing(&stage, &peer);
    let metrics = Metrics::listen();
    assert_counted(&metrics.scrape(), client.pid(), [20_000 + LARGE, 20_000], "sent");
    assert_counted(&metrics.scrape(), server.pid(), [20_000, 20_000], "received");
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

/// The connections of process `pid`, one fast and one young. The fast one has much unread in the direction `full`.
fn assert_listed(rows: &[&Value], pid: u32, full: &str, empty: &str) {
    let (fast, young): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|it| it["out"]["path"] == "ring");
    let ([fast], [young]) = (&fast[..], &young[..]) else { panic!("{rows:#?}") };
    assert_eq!(fast["in"]["path"], "ring", "{fast:#}");
    assert_eq!((&fast["stage"], &fast["reason"], &fast["state"]), (&"joined".into(), &Value::Null, &"ESTAB".into()));
    assert!((LARGE..LARGE + 200).contains(&fast[full]["unread"].as_u64().unwrap()), "{fast:#}");
    assert_eq!(fast[empty]["unread"], 0, "{fast:#}");
    let carried = |way: &str| fast[way]["ring_bytes"].as_u64().unwrap() + fast[way]["kernel_bytes"].as_u64().unwrap();
    assert_eq!((carried(full), carried(empty)), (20_000 + if full == "out" { LARGE } else { 0 }, 20_000), "{fast:#}");
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

/// The connections of the process in the metrics `text`; the process has `sent` and `received` so many bytes, and there
/// is much unread in the direction `full`.
fn assert_counted(text: &str, pid: u32, [sent, received]: [u64; 2], full: &str) {
    let of = |name: &str, label: &str| sum(text, name, &[&format!("pid=\"{pid}\""), label]);
    let bytes = |direction: &str| of("underpass_bytes_total", &format!("direction=\"{direction}\""));
    assert_eq!((bytes("sent"), bytes("received")), (sent as f64, received as f64), "{text}");
    assert!(of("underpass_bytes_total", "path=\"ring\"") > of("underpass_bytes_total", "path=\"kernel\""), "{text}");
    let paths = ["ring", "mixed", "kernel"].map(|path| of("underpass_connections", &format!("path=\"{path}\"")));
    assert_eq!(paths, [1.0, 0.0, 1.0], "{text}");
    assert_eq!(of("underpass_kernel_connections", "reason=\"young\""), 1.0, "{text}");
    let unread = of("underpass_unread_bytes", &format!("direction=\"{full}\""));
    assert!(unread >= LARGE as f64, "{text}");
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
    let start = || Terminal::start(top_command(), 160, 24);

    let mut top = start();
    top.await_screen("the keys", |screen| screen.contains("q quit"));
    top.press(&format!("/:{port}\r"));
    let screen = top.await_screen("both ends and what they carry", |screen| {
        (screen.contains("2 shown") || screen.contains("2 connection ends"))
            && screen.contains("sent ")
            && screen.contains("(100 % fast); received")
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
    stage.finish();
}

/// A terminal's size is whatever the program on its other side says.
#[test]
fn top_takes_no_more_memory_for_a_terminal_of_any_size() {
    let Some(stage) = Stage::with(&["prlimit", "setsid"]) else { return };
    let mut limited = Command::new("prlimit");
    let top = top_command();
    limited.arg("--as=1000000000").arg(top.get_program()).args(top.get_args());
    let mut top = Terminal::start(limited, u16::MAX, u16::MAX);
    top.await_screen("the keys", |screen| screen.contains("q quit"));
    top.press("q");
    assert_eq!(top.end().code(), Some(0));
    stage.finish();
}

/// `top` on a terminal of its own.
fn top_command() -> Command {
    let mut top = Command::new(library::command());
    top.args(["top", "--interval", "0.2"]);
    top
}

#[test]
fn top_ends_with_its_terminal() {
    for start in [Terminal::start, Terminal::start_without_signals] {
        let terminal = start(top_command(), 80, 24);
        terminal.await_screen("the keys", |screen| screen.contains("q quit"));
        assert_eq!(terminal.hang_up().signal(), Some(libc::SIGHUP));
    }
}

/// top is stopped by its key, by a signal to it alone, and by SIGSTOP, which cannot be caught: the shell finds the
/// terminal as it was, and top draws everything again when it is continued.
#[test]
fn top_stops_and_goes_on() {
    let Some(stage) = Stage::with(&["bash", "setsid", "stty"]) else { return };
    let mut shell = stage.plain("bash", ["--norc", "--noprofile", "--noediting", "-i"]);
    shell.env("PS1", "$ ");
    let mut terminal = Terminal::start(shell, 100, 24);
    let top = format!("{} top --interval 0.2", library::command().display());
    // Without and with a shell between, which would not say that top alone has stopped.
    for command in [top.clone(), format!("sh -c '{top}; true'")] {
        terminal.press(&format!("stty -echo; {command}\r"));
        terminal.await_taken(true);
        terminal.press("\x1a");
        terminal.await_screen("the shell", |screen| screen.contains("Stopped"));
        terminal.await_taken(false);
        terminal.press("stty -a | grep -o ' icanon'; clear; fg\r");
        terminal.await_taken(true);
        terminal.await_screen("all of it", |screen| screen.contains("every 0.2 s") && screen.contains("q quit"));
        terminal.press("q");
        terminal.await_taken(false);
    }
    terminal.press(&format!("{top}\r"));
    terminal.await_taken(true);
    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", terminal.pid())).unwrap();
    let pid: i32 = children().trim().parse().expect("one child");
    for signal in ["TSTP", "STOP"] {
        assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
        terminal.await_screen("the shell", |screen| screen.contains("Stopped"));
        terminal.await_taken(signal == "STOP");
        terminal.press("clear; fg\r");
        terminal.await_taken(true);
        terminal.await_screen("all of it", |screen| screen.contains("every 0.2 s") && screen.contains("q quit"));
    }
    terminal.press("q");
    terminal.await_taken(false);
    terminal.press("stty echo; exit\r");
    assert_eq!(terminal.end().code(), Some(0));
    stage.finish();
}

/// Without a shell, no process would continue top.
#[test]
fn top_without_a_shell_does_not_stop() {
    // With room for the order beside any number of connections that other programs have.
    let mut terminal = Terminal::start(top_command(), 160, 24);
    terminal.await_screen("the keys", |screen| screen.contains("q quit"));
    for order in ["by bytes sent", "by bytes received"] {
        terminal.press("\x1a");
        // A key is lost that is pressed before top has the terminal again.
        terminal.press_until("s", order, |screen| screen.contains(order));
    }
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
}

/// All kinds of traffic, in each setting, while connections go down and up from outside, by either end.
#[test]
fn bytes_are_right_while_connections_are_moved() {
    if is_kernel_only() {
        return skip("nothing is moved without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("moved");
    compile("moved.c", &program, &["-std=c11", "-pthread"]);
    const AT_ONCE: [(&str, &str); 2] = [("UNDERPASS_GO_UP_MESSAGES", "0"), ("UNDERPASS_GO_UP_BYTES", "0")];
    let settings = [
        vec![],
        AT_ONCE.to_vec(),
        [&AT_ONCE[..], &[("UNDERPASS_SPIN_US", "0")]].concat(),
        [&AT_ONCE[..], &[("UNDERPASS_RING_BYTES", "65536")]].concat(),
    ];
    for (number, settings) in settings.iter().enumerate() {
        move_all(&stage, &format!("moved-{number}"), settings);
    }
    stage.run.assert_fast("moved");
    stage.finish();
}

/// Times that one connection goes down and up again, in each setting; there are five.
const MOVES: usize = 5;

fn move_all(stage: &Stage, stop: &str, settings: &[(&str, &str)]) {
    let (port, stop) = (free_port(), stage.path(stop));
    let program = stage.path("moved").to_str().unwrap().to_string();
    let start = |role: &str| {
        let mut arguments = vec![role.to_string(), port.to_string()];
        if role == "ask" {
            arguments.push(stop.to_str().unwrap().into());
        }
        stage.tuned(&program, arguments, settings)
    };
    let server = stage.serve(start("serve"), port);
    let client = stage.start(start("ask"));
    let peer = format!("127.0.0.1:{port}");
    let limit = Duration::from_secs(60);
    let await_rows = |what: &str, is_so: &dyn Fn(&[Value]) -> bool| {
        let deadline = Instant::now() + limit;
        loop {
            let all = rows(&ss(&["--json"]));
            if is_so(&all) {
                return all;
            }
            assert!(Instant::now() < deadline, "{what}: {all:#?}\n{}{}", server.said(), client.said());
        }
    };
    // The way that is used in every kind of traffic.
    let asking = |all: &[Value]| all.iter().filter(|it| it["peer"] == *peer).cloned().collect::<Vec<_>>();
    let all = await_rows("not fast", &|all| {
        let serving = all.iter().filter(|it| it["local"] == *peer);
        // The child has closed all others by then.
        let is_shared = serving.clone().filter(|it| it["processes"].as_array().unwrap().len() == 2).count() == 1;
        asking(all).iter().filter(|it| it["out"]["ring_bytes"].as_u64() > Some(0)).count() == 5 && is_shared
    });
    let mut ends = BTreeMap::<String, Vec<[String; 2]>>::new();
    for row in all.iter().filter(|it| it["peer"] == *peer || it["local"] == *peer) {
        let name = if row["peer"] == *peer { &row["local"] } else { &row["peer"] };
        let holders = row["processes"].as_array().unwrap();
        let holders = holders.iter().map(|it| [it["pid"].to_string(), it["fd"].to_string()]);
        ends.entry(name.as_str().unwrap().into()).or_default().extend(holders);
    }
    assert_eq!(ends.len(), 5, "{all:#?}");
    for round in 0..MOVES {
        for (local, holders) in &ends {
            let row = |all: &[Value]| asking(all).into_iter().find(|it| it["local"] == **local).expect("it is there");
            let [pid, fd] = &holders[round % holders.len()];
            let pinned = json(&["pin", pid, fd, "--json", "--wait", "0"]);
            assert_eq!((pinned.len(), &pinned[0]["pinned"], &pinned[0]["for_good"]), (1, &true.into(), &Value::Null));
            assert_eq!(pinned[0]["held"], true);
            // Sometimes it is let go of before it has gone down.
            if round % 4 != 3 {
                let all = await_rows("not down", &|all| row(all)["out"]["path"] == "kernel");
                assert_eq!((&row(&all)["reason"], &row(&all)["held"]), (&"asked".into(), &true.into()), "{all:#?}");
            }
            let [pid, fd] = &holders[(round + 1) % holders.len()];
            let freed = json(&["unpin", pid, fd, "--json"]);
            assert_eq!((freed.len(), &freed[0]["pinned"], &freed[0]["for_good"]), (1, &false.into(), &Value::Null));
            assert_eq!(freed[0]["held"], false);
            if round % 4 != 2 {
                await_rows("not up", &|all| row(all)["out"]["path"] == "ring");
            }
        }
    }
    fs::write(&stop, "").unwrap();
    let (asked, served) = (client.succeed(limit), server.succeed(limit));
    for kind in ["p", "t", "e", "b", "f"] {
        let asked = counts(&asked, &format!("{kind} ask"));
        let [sent, received] = counts(&served, &format!("{kind} serve"));
        assert_eq!(asked, [received, sent], "{kind}");
        assert!(asked[0] > 0);
    }
}

/// What `side` has sent and received.
fn counts(said: &str, side: &str) -> [u64; 2] {
    let line = said.lines().find(|line| line.starts_with(side)).unwrap_or_else(|| panic!("no {side} in {said}"));
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

/// A held connection stays down, whether it was fast, young or never used. It goes down when it sends, and up at once
/// when it is let go of. If that cannot be done, the command says so, and why.
#[test]
fn a_held_connection_stays_down_until_it_is_let_go_of() {
    if is_kernel_only() {
        return skip("nothing is moved without the library");
    }
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let port = free_port();
    let program = stage.serve(stage.command("python3", [fixture("led.py"), port.to_string().into()]), port);
    let pid = program.pid().to_string();
    let mut leader = BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let mut lead = |order: &str| {
        leader.get_mut().write_all(format!("{order}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        leader.read_line(&mut answer).unwrap();
        answer.trim().split(' ').map(String::from).collect::<Vec<_>>()
    };
    let row = |fd: &str| {
        let all = rows(&ss(&["--json"]));
        let (process, fd) = (program.pid(), fd.parse::<u32>().unwrap());
        let has = |it: &Value| it["processes"][0]["pid"] == process && it["processes"][0]["fd"] == fd;
        all.iter().find(|it| has(it)).unwrap_or_else(|| panic!("no {fd} in {all:#?}")).clone()
    };
    let paths = |fd: &str| {
        let it = row(fd);
        ["out", "in", "reason"].map(|key| it[key].get("path").unwrap_or(&it[key]).as_str().unwrap_or("").to_string())
    };

    // Never used.
    let ends = lead("open");
    assert!(said(&["pin", &pid, &ends[0]], 0).contains("on kernel TCP both ways"));
    lead("exchange 0 100");
    assert_eq!(paths(&ends[0]), ["kernel", "kernel", "asked"]);
    assert_eq!(row(&ends[0])["stage"], "plain");
    assert!(said(&["unpin", &pid, &ends[1]], 0).contains("may go up with the next byte that"));
    lead("exchange 0 3");
    assert_eq!(paths(&ends[0]), ["ring", "ring", ""]);

    // Fast, and idle: each direction goes down when it is used, and what lies in the ring comes first.
    lead("say 0 5");
    let pinned = said(&["pin", &pid, &ends[0], "--wait", "0.01"], 0);
    assert_eq!(pinned.matches("will go down with the next byte that python3").count(), 2, "{pinned}");
    assert_eq!(paths(&ends[0]), ["ring", "ring", "asked"]);
    lead("say 0 5");
    assert_eq!(paths(&ends[0]), ["kernel", "ring", "asked"]);
    lead("hear 0 10");
    lead("exchange 0 20");
    assert_eq!(paths(&ends[0]), ["kernel", "kernel", "asked"]);
    assert!(said(&["pin", &pid, &ends[0]], 0).contains("on kernel TCP both ways"));
    assert!(said(&["unpin", "--wait", "0", &pid, &ends[0]], 0).contains("may go up with the next byte that"));
    lead("exchange 0 1");
    assert_eq!(paths(&ends[0]), ["ring", "ring", ""], "with the first message each way");
    assert!(said(&["unpin", &pid, &ends[0]], 0).contains("was not held"));

    // All of a process, and a connection that is on kernel TCP for good.
    let others = lead("open");
    lead("exchange 1 100");
    lead("urgent 1");
    assert!(
        said(&["unpin", &pid, &others[0]], 2).contains("for good, and nothing brings it up: urgent-data (The program")
    );
    assert!(said(&["pin", &pid, &others[0]], 0).contains("on kernel TCP for good: urgent-data"));
    assert!(json(&["pin", "--all", &pid, "--json", "--wait", "0"]).len() >= 4);
    lead("exchange 0 1");
    assert_eq!(paths(&ends[1]), ["kernel", "kernel", "asked"]);
    let all = json(&["unpin", "--all", &pid, "--json"]);
    assert!(all.iter().all(|it| it["pinned"] == false || it["for_good"] == "urgent-data"), "{all:#?}");
    lead("exchange 0 1");
    assert_eq!(paths(&ends[1]), ["ring", "ring", ""]);

    refuse_wrong_use(&pid, &lead("listener")[0]);
    drop(leader);
    assert_eq!(program.succeed(Duration::from_secs(20)), "");
    stage.run.assert_fast("python3");
    stage.finish();
}

/// What `underpass` says when it ends with `code`.
fn said(arguments: &[&str], code: i32) -> String {
    let output = underpass(arguments);
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    text
}

/// `pid` has the descriptor `listener` of a listener.
fn refuse_wrong_use(pid: &str, listener: &str) {
    let me = std::process::id().to_string();
    for (arguments, text) in [
        (&["pin", "4294967295", "3"][..], "there is no process 4294967295; `underpass ss` lists"),
        (&["pin", &me, "0"], "does not run under Underpass"),
        (&["unpin", pid, "1000"], "has no descriptor 1000; `underpass ss` lists"),
        (&["pin", pid, "0"], "is no connection but /"),
        (&["pin", pid, listener], "is a socket, but not of a TCP connection (it may listen"),
        (&["pin", pid], "required arguments were not provided"),
        (&["pin", "--all", pid, "3"], "cannot be used with"),
        (&["pin", pid, "3", "--wait", "-1"], "from 0 to 3600"),
        (&["pin", pid, "3", "--wait", "long"], "from 0 to 3600"),
        (&["unpin", "me", "3"], "invalid value 'me'"),
    ] {
        let complaint = said(arguments, 2);
        assert!(complaint.contains(text), "{arguments:?}: {complaint}");
    }
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
pub fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    let lines = text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
    let samples = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

pub fn underpass(arguments: &[&str]) -> Output {
    Command::new(library::command()).args(arguments).output().expect("underpass")
}

/// The connections that a command tells of.
fn json(arguments: &[&str]) -> Vec<Value> {
    let output = underpass(arguments);
    assert!(output.status.success(), "{output:?}");
    rows(&output)
}

fn ss(arguments: &[&str]) -> Output {
    let output = underpass(&[&["ss"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    output
}

pub fn rows(output: &Output) -> Vec<Value> {
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    said["connections"].as_array().expect("a list").clone()
}

/// Another user sees no connection, and is told what to do.
fn others_see_nothing(stage: &Stage, peer: &str) {
    const NOBODY: u32 = 65533;
    let copy = stage.path("underpass");
    copy_program(library::command(), &copy);
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

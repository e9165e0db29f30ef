//! `underpass capture` beside programs that talk: what tshark makes of its file is what they have sent, and they do not
//! notice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use underpass_tests::group::Group;
use underpass_tests::library::{self, AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, fixture, skip};
use underpass_tests::traces;

const LIMIT: Duration = Duration::from_secs(60);
/// A part of a capture's comment on a connection.
const MADE_UP: &[u8] = b"this handshake is made up";

/// A conversation of `talk.py`, on its own port.
struct Talk {
    port: u16,
    sent: [PathBuf; 2],
    go: PathBuf,
    /// Server and client.
    programs: [Group; 2],
}

impl Talk {
    fn begin(stage: &Stage, host: &str, port: u16, bytes: usize) -> Talk {
        let sent = ["serve", "ask"].map(|role| stage.path(&format!("{role}-{port}")));
        let go = stage.path(&format!("go-{port}"));
        let command = |role: &str, sent: &PathBuf| {
            let words = [role, host, &port.to_string(), &bytes.to_string()].map(String::from);
            let paths = [sent, &go].map(|it| it.to_str().unwrap().to_string());
            let script = fixture("talk.py").to_str().unwrap().to_string();
            stage.tuned("python3", [vec![script], words.to_vec(), paths.to_vec()].concat(), AT_ONCE)
        };
        let server = stage.serve(command("serve", &sent[0]), port);
        let client = stage.start(command("ask", &sent[1]));
        Talk { port, sent, go, programs: [server, client] }
    }

    fn await_half(&self) {
        until("half of it", || self.programs.iter().all(|it| it.said().contains("half")));
    }

    fn finish(self) -> [Vec<u8>; 2] {
        fs::write(&self.go, "").unwrap();
        for program in self.programs {
            assert!(program.succeed(LIMIT).ends_with("done\n"));
        }
        self.sent.map(|file| fs::read(file).unwrap())
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn capture(stage: &Stage, to: &PathBuf, arguments: &[&str]) -> Group {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut command = Command::new(library::command());
        library::plain(&mut command);
        command.args(["capture", "--json", "-w"]).arg(to).args(arguments);
        let capture = stage.start(command);
        let has_said = |text: &str| capture.said().contains(text);
        until("the capture", || has_said("capturing to") || has_said("another `underpass capture`"));
        // The other capture may belong to another run of these tests.
        if has_said("capturing to") {
            return capture;
        }
        assert!(Instant::now() < deadline, "{}", capture.said());
    }
}

/// Ends it, and returns what it says.
pub fn end(capture: Group) -> Value {
    let said = capture.stop(libc::SIGINT);
    serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// What tshark reassembles of the only connection, by sender: that with `port`, and the other.
fn follow(stage: &Stage, file: &Path, port: u16) -> [Vec<u8>; 2] {
    let said = stage.output(stage.plain("tshark", ["-r", file.to_str().unwrap(), "-q", "-z", "follow,tcp,raw,0"]));
    let mut nodes = [vec![], vec![]];
    let mut swapped = false;
    for line in said.lines() {
        if let Some(address) = line.strip_prefix("Node 0: ") {
            swapped = !address.ends_with(&format!(":{port}"));
        }
        let hex = line.trim_start_matches('\t');
        if !hex.is_empty() && hex.len() % 2 == 0 && hex.bytes().all(|it| it.is_ascii_hexdigit()) {
            let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
            nodes[usize::from(hex.len() < line.len())].extend(bytes);
        }
    }
    if swapped {
        nodes.swap(0, 1);
    }
    nodes
}

/// Fails unless `got` is what lies in `sent` at this place, or at its end, but for gaps of which it says how long they
/// are. How much is there, and how much not.
fn compare(got: &[u8], sent: &[u8], from: Option<usize>) -> [usize; 2] {
    const BEHIND: &[u8] = b" bytes missing in capture file]";
    // Pieces and the gaps before them.
    let mut parts: Vec<(usize, Vec<u8>)> = vec![(0, vec![])];
    let mut rest = got;
    while let Some((&first, others)) = rest.split_first() {
        let digits = others.iter().take_while(|it| it.is_ascii_digit()).count();
        if first == b'[' && digits > 0 && others[digits..].starts_with(BEHIND) {
            let gap = std::str::from_utf8(&others[..digits]).unwrap().parse().unwrap();
            parts.push((gap, vec![]));
            rest = &others[digits + BEHIND.len()..];
            // tshark shows the end of the text as well.
            rest = rest.strip_prefix(&[0]).unwrap_or(rest);
        } else {
            parts.last_mut().unwrap().1.push(first);
            rest = others;
        }
    }
    let (there, missing) = (parts.iter().map(|it| it.1.len()).sum(), parts.iter().map(|it| it.0).sum());
    let mut at = from.unwrap_or_else(|| sent.len().checked_sub(there + missing).expect("more than was sent"));
    for (gap, piece) in parts {
        at += gap;
        assert!(
            sent[at..].starts_with(&piece),
            "other bytes at {at} of {}: {} there, {missing} missing",
            sent.len(),
            there
        );
        at += piece.len();
    }
    [there, missing]
}

/// Captures again until the command says what it says undisturbed. Other programs of this user send as well, and may
/// fill a buffer. And where the sender that has its turn at the tap loses its processor, others drop packets rather
/// than wait for it.
fn undisturbed<T>(is_so: impl Fn(&Value) -> bool, mut capture: impl FnMut() -> (Value, T)) -> (Value, T) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let (said, captured) = capture();
        if is_so(&said) {
            return (said, captured);
        }
        assert!(Instant::now() < deadline, "disturbed each time: {said}");
    }
}

fn is_all(said: &Value) -> bool {
    said["dropped_bytes"] == 0
}

/// One connection exists before the capture, with a server that forks in the middle; others come meanwhile, by IPv4 and
/// IPv6.
#[test]
fn what_was_sent_is_captured_once_and_whole() {
    if is_kernel_only() {
        return skip("nothing is captured without the library");
    }
    let Some(stage) = Stage::with(&["python3", "tshark"]) else { return };
    const SIZE: usize = 600_000;
    for (host, before) in [("127.0.0.1", true), ("127.0.0.1", false), ("::1", false)] {
        let file = stage.path(&format!("{}-{before}.pcapng", host.len()));
        let (said, (sent, got)) = undisturbed(is_all, || {
            let port = free_port();
            let mut talk = before.then(|| Talk::begin(&stage, host, port, SIZE));
            if let Some(talk) = &talk {
                talk.await_half();
            }
            let capture = capture(&stage, &file, &["port", &port.to_string(), "and", "host", host]);
            let talk = talk.take().unwrap_or_else(|| {
                let talk = Talk::begin(&stage, host, port, SIZE);
                // A process that is gone by then has no name.
                until("who talks", || {
                    fs::read(&file).is_ok_and(|it| it.windows(MADE_UP.len()).any(|it| it == MADE_UP))
                });
                talk
            });
            let sent = talk.finish();
            (end(capture), (sent, follow(&stage, &file, port)))
        });
        let mut all = 0;
        for (got, sent) in got.iter().zip(&sent) {
            let [there, missing] = compare(got, sent, None);
            // A connection that existed before is captured from then on; a new one except for the bytes that went
            // before both ends were up.
            let least = if before { SIZE / 2 } else { SIZE - 80_000 };
            assert!(
                (before && missing == 0 && there == least) || (!before && there >= least),
                "{there} {missing} {said}"
            );
            all += there;
        }
        assert_eq!((&said["bytes"], &said["damaged_records"]), (&all.into(), &0.into()), "each byte once");
        well_formed(&stage, &file, before);
    }
    stage.run.assert_fast("python3");
    stage.finish();
}

/// Checksums are right, it begins with a handshake and ends with a FIN each way, and names the programs.
fn well_formed(stage: &Stage, file: &Path, without_gap: bool) {
    let fields = |filter: &str, field: &str| {
        let options = [
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "tcp.check_checksum:TRUE",
            "-T",
            "fields",
            "-e",
            field,
            "-Y",
            filter,
        ];
        let said = stage.output(stage.plain("tshark", [&["-r", file.to_str().unwrap()], &options[..]].concat()));
        let lines = said.lines().filter(|line| !line.starts_with("Running as user"));
        lines.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(fields("ip.checksum.status == \"Bad\" or tcp.checksum.status == \"Bad\"", "frame.number"), [""; 0]);
    assert_eq!(fields("tcp.flags.syn == 1", "frame.number"), ["1", "2"]);
    assert_eq!(fields("tcp.flags.fin == 1", "frame.number").len(), 2);
    // If a connection has just begun, one of its ends may not be known yet.
    let known = if without_gap { 2 } else { 1 };
    let comment = &fields("frame.number == 1", "frame.comment")[0];
    assert!(comment.matches("python3 ").count() >= known, "{known}: {comment}");
    assert_eq!(fields("frame.number == 1", "frame.interface_name"), ["underpass"]);
    if without_gap {
        assert_eq!(fields("tcp.analysis.flags", "frame.number"), [""; 0], "Wireshark has something to say");
    }
}

#[test]
fn what_does_not_fit_is_dropped_and_said() {
    if is_kernel_only() {
        return skip("nothing is captured without the library");
    }
    let Some(stage) = Stage::with(&["python3", "tshark"]) else { return };
    let file = stage.path("full.pcapng");
    // The file must have more than half of a buffer of a megabyte.
    let (said, (sent, got)) = undisturbed(
        |said| said["bytes"].as_u64() > Some(500_000),
        || {
            let talk = Talk::begin(&stage, "127.0.0.1", free_port(), 6 << 20);
            talk.await_half();
            let port = talk.port;
            let capture = capture(&stage, &file, &["--buffer", "1", "port", &port.to_string()]);
            capture.signal(libc::SIGSTOP);
            let sent = talk.finish();
            capture.signal(libc::SIGCONT);
            (end(capture), (sent, follow(&stage, &file, port)))
        },
    );
    let bytes = |name: &str| said[name].as_u64().unwrap();
    assert!(bytes("bytes") + bytes("dropped_bytes") >= 6 << 20 && bytes("dropped_bytes") > 4 << 20, "{said}");
    for (got, sent) in got.iter().zip(&sent) {
        let [there, missing] = compare(got, sent, Some(3 << 20));
        assert!(there > 100_000 && there + missing <= 3 << 20, "{there} {missing} {said}");
    }
    stage.finish();
}

#[test]
fn connections_at_the_same_time_are_told_apart() {
    if is_kernel_only() {
        return skip("nothing is captured without the library");
    }
    let Some(stage) = Stage::with(&["python3", "tshark"]) else { return };
    const SIZE: usize = 300_000;
    let (file, some) = (stage.path("all.pcapng"), stage.path("some.pcapng"));
    let (_, all) = undisturbed(is_all, || {
        let talks: Vec<Talk> = (0..6).map(|_| Talk::begin(&stage, "127.0.0.1", free_port(), SIZE)).collect();
        talks.iter().for_each(Talk::await_half);
        let capture = capture(&stage, &file, &["host", "127.0.0.1"]);
        let all: Vec<_> = talks.into_iter().map(|it| (it.port, it.programs[1].pid(), it.finish())).collect();
        (end(capture), all)
    });
    for (port, client, sent) in all {
        let of_port = format!("tcp.port == {port}");
        let words = ["-r", file.to_str().unwrap(), "-Y", &of_port, "-w", some.to_str().unwrap()];
        stage.output(stage.plain("tshark", words));
        for (got, sent) in follow(&stage, &some, port).iter().zip(&sent) {
            assert_eq!(compare(got, sent, None), [SIZE / 2, 0], "port {port}");
        }
        let comments = ["-r", some.to_str().unwrap(), "-T", "fields", "-e", "frame.comment", "-c", "1"];
        let said = stage.output(stage.plain("tshark", comments));
        assert!(said.contains(&format!("python3 {client}")), "{said}");
    }
    stage.run.assert_fast("python3");
    stage.finish();
}

#[test]
fn it_ends_when_it_was_told_to() {
    if is_kernel_only() {
        return skip("nothing is captured without the library");
    }
    let Some(stage) = Stage::with(&["python3", "tshark"]) else { return };
    let talks = [0, 0].map(|size| Talk::begin(&stage, "127.0.0.1", free_port(), size));
    let (port, pid) = (talks[0].port, talks[0].programs[1].pid());
    let file = stage.path("ended.pcapng");
    let frames = |filter: &str| {
        let words = ["-r", file.to_str().unwrap(), "-T", "fields", "-e", "frame.number", "-Y", filter];
        let said = stage.output(stage.plain("tshark", words));
        said.lines().filter(|line| line.bytes().all(|it| it.is_ascii_digit())).count()
    };
    // After so many packets, of what the filter lets through alone.
    let of_process = format!("pid {pid} and port {port}");
    let said = capture(&stage, &file, &["--count", "25", &of_process]).succeed(LIMIT);
    assert_eq!(serde_json::from_str::<Value>(said.lines().last().unwrap()).unwrap()["packets"], 25, "{said}");
    assert_eq!((frames("tcp"), frames(&format!("tcp.port == {port}"))), (25, 25));
    // After a time, with whatever came.
    let said = capture(&stage, &file, &["--duration", "1"]).succeed(LIMIT);
    assert!(
        serde_json::from_str::<Value>(said.lines().last().unwrap()).unwrap()["packets"].as_u64() > Some(4),
        "{said}"
    );
    assert!(talks.iter().all(|it| frames(&format!("tcp.port == {}", it.port)) > 2));
    // The capture ends when the reader of the pipe has seen enough, and each packet can be read as soon as it is
    // written.
    let script = format!(
        "{} capture -w - port {port} | tshark -r - -c 30 -T fields -e tcp.len; echo ${{PIPESTATUS[*]}}",
        library::command().display()
    );
    let said = stage.output(stage.plain("bash", ["-c", &script]));
    assert!(said.lines().any(|line| line == "100") && said.lines().last() == Some("0 0"), "{said}");
    // A second one is refused, and does not touch the file of the first.
    let first = capture(&stage, &file, &["port", &port.to_string()]);
    until("packets", || fs::metadata(&file).is_ok_and(|it| it.len() > 5000));
    let mut second = Command::new(library::command());
    library::plain(&mut second);
    let second = second.args(["capture", "-w"]).arg(&file).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    end(first);
    assert!(frames("tcp") > 20);
    talks.into_iter().for_each(|it| drop(it.finish()));
    stage.finish();
}

/// A process that has sent its last byte sleeps where the library does not see it: in accept, or while it computes or
/// naps.
#[test]
fn a_process_that_has_closed_lets_go_of_the_capture() {
    if is_kernel_only() {
        return skip("nothing is captured without the library");
    }
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let port = free_port();
    let serve = "import socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    connection = listener.accept()[0]
    while connection.recv(100):
        connection.sendall(b'x' * 100)
    connection.close()
";
    let ask = "import socket, sys, time
with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as connection:
    for _ in range(100):
        connection.sendall(b'y' * 100)
        connection.recv(100, socket.MSG_WAITALL)
print('closed', flush=True)
time.sleep(1000)
";
    let [serve, ask] = [("serve.py", serve), ("ask.py", ask)].map(|(name, text)| stage.file(name, text));
    let program = |script: &Path| stage.tuned("python3", [script.as_os_str(), port.to_string().as_ref()], AT_ONCE);
    let _server = stage.serve(program(&serve), port);
    let file = stage.path("closed.pcapng");
    let capture = capture(&stage, &file, &["port", &port.to_string()]);
    let clients: Vec<Group> = (0..3).map(|_| stage.start(program(&ask))).collect();
    until("their talk", || clients.iter().all(|it| it.said().contains("closed")));
    let pid = capture.pid();
    let said = end(capture);
    assert!(said["bytes"].as_u64() > Some(3 * 15_000), "{said}");
    until("its buffer to go", || !traces::has_buffer_of(pid));
}

#[test]
fn an_ended_capture_leaves_nothing() {
    if is_kernel_only() {
        return skip("nothing is captured without the library");
    }
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let talk = Talk::begin(&stage, "127.0.0.1", free_port(), 0);
    for round in 0..10 {
        let file = stage.path(&format!("killed-{round}.pcapng"));
        // The command writes the buffer's contents before it ends; with other load, a large buffer would take long.
        let capture = capture(&stage, &file, &["--buffer", "1"]);
        until("packets", || fs::metadata(&file).is_ok_and(|it| it.len() > 5000));
        let pid = capture.pid();
        if round % 2 == 0 {
            capture.signal(libc::SIGKILL);
            drop(capture);
        } else {
            end(capture);
        }
        // The processes that send have the buffer attached while they do.
        until("its buffer to go", || !traces::has_buffer_of(pid));
    }
    talk.finish();
    stage.run.assert_fast("python3");
    stage.finish();
}

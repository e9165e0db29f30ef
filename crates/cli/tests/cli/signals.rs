//! `run --stats` stands between the caller and the program; signals pass as if it did not.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::{LIBRARY, UNDERPASS, compile, kill, state, underpass, wait_for};

/// Starts a script that prints `$$` when it is ready; the process group is its own, as under a shell with job control.
fn start(script: &str) -> (Child, BufReader<ChildStdout>, u32) {
    let mut command = underpass(&["run", "--stats=/dev/null", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    (child, lines, first.trim().parse().unwrap())
}

fn rest(mut lines: BufReader<ChildStdout>) -> String {
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn signals_go_on_to_the_program() {
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "ALRM", "CONT"] {
        let (mut child, _lines, _) = start(&format!("trap 'exit 7' {signal}; echo $$; while :; do sleep 0.01; done"));
        kill(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(7), "{signal}");
    }
}

#[test]
fn a_signal_without_a_handler_ends_both() {
    let (mut child, _lines, pid) = start("echo $$; exec sleep 100");
    kill("TERM", child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    wait_for("the program's end", || state(pid).is_none().then_some(()));
}

#[test]
fn killing_the_command_kills_the_program() {
    let (mut child, _lines, pid) = start("echo $$; exec sleep 100");
    kill("KILL", child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_for("the program's end", || matches!(state(pid), None | Some('Z')).then_some(()));
}

#[test]
fn job_control_stops_and_continues_both() {
    let (mut child, lines, pid) = start("echo $$; kill -TSTP $$; echo on");
    wait_for("the stop", || (state(child.id()) == Some('T') && state(pid) == Some('T')).then_some(()));
    kill("CONT", child.id());
    assert_eq!(rest(lines), "on\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_program_that_is_stopped_alone_can_be_continued_alone() {
    let (mut child, lines, pid) = start("echo $$; kill -STOP $$; echo on");
    wait_for("the stop", || (state(pid) == Some('T')).then_some(()));
    kill("CONT", pid);
    assert_eq!(rest(lines), "on\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Waits until `text` is on the screen of a terminal.
fn on_screen(screen: &Mutex<String>, text: &str) {
    let shown = || screen.lock().unwrap().contains(text);
    wait_for(&format!("{text} on the screen"), || shown().then_some(()));
}

/// A shell would wait for ever for the terminal that nobody has any more.
#[test]
fn a_program_that_stops_itself_gives_the_terminal_back() {
    let mut script = Command::new("script");
    script.args(["-qc", "sh -i", "/dev/null"]).env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let screen = Arc::new(Mutex::new(String::new()));
    let shown = Arc::clone(&screen);
    let reader = thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(n @ 1..) = output.read(&mut bytes) {
            shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
    });
    // What is typed is on the screen as well, so it is spelt otherwise than what is waited for.
    let run = format!("{UNDERPASS} run --stats=/dev/null -- sh -c 'kill -STOP $$; echo on-$((1 + 1))'\n");
    keyboard.write_all(run.as_bytes()).unwrap();
    keyboard.write_all(b"echo shell-$((1 + 1))\n").unwrap();
    on_screen(&screen, "shell-2");
    assert!(!screen.lock().unwrap().contains("on-2"));
    keyboard.write_all(b"fg\n").unwrap();
    on_screen(&screen, "on-2");
    keyboard.write_all(b"exit\n").unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
}

/// The terminal sends Ctrl-C to the whole foreground group; the program must not get it a second time from its parent.
///
/// Fails if `supervise::run` passes on what the kernel sent.
#[test]
fn ctrl_c_arrives_once() {
    // In C, because a shell that gets two signals in quick succession runs its trap once.
    let source = "#include <signal.h>\n#include <stdio.h>\n#include <unistd.h>\n#include <poll.h>\n\
                  static volatile sig_atomic_t n; static void count(int s) { (void)s; n++; }\n\
                  int main(void) { signal(SIGINT, count); puts(\"ready\"); fflush(stdout);\n\
                  while (n == 0) poll(0, 0, 1000);\n\
                  poll(0, 0, 300); printf(\"n=%d\\n\", (int)n); return 0; }";
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("count");
    assert!(compile(source, &[], &program));
    // The shell says how the command ended: `script -e` sees the terminal close before it sees the end, now and then.
    let inner = format!("trap : INT; {UNDERPASS} run --stats=/dev/null -- {}; echo code=$?", program.display());
    let mut script = Command::new("script");
    script.args(["-qc", &inner, "/dev/null"]).env("UNDERPASS_LIBRARY", &*LIBRARY);
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    let mut screen = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("ready") {
        assert_ne!(screen.read_line(&mut text).unwrap(), 0, "{text}");
    }
    keyboard.write_all(b"\x03").unwrap();
    screen.read_to_string(&mut text).unwrap();
    assert!(text.contains("n=1\r\ncode=0"), "{text}");
    child.wait().unwrap();
}

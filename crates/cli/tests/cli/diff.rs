//! `underpass diff`: a program on kernel TCP and under Underpass.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::support::{UNDERPASS, compile, kill, output, skip, state, stderr, stdout, underpass, wait_for};

fn diff(options: &[&str], script: &str) -> Output {
    output(&[&["diff", "--rounds", "2"], options, &["--", "sh", "-c", script]].concat())
}

fn json(options: &[&str], script: &str) -> (Value, Option<i32>) {
    let output = diff(&[&["--json"], options].concat(), script);
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (value, output.status.code())
}

#[test]
fn the_same_is_the_same_and_what_was_not_fast_proves_nothing() {
    let shown = diff(&[], "echo out; echo err >&2; exit 3");
    assert_eq!((shown.status.code(), stderr(&shown).as_str()), (Some(0), ""), "{}", stdout(&shown));
    let text = stdout(&shown);
    assert!(text.starts_with("sh: the same on both (kernel TCP and Underpass, 2 rounds)\n"), "{text}");
    assert!(text.contains("ended with exit code 3") && text.contains("×"), "{text}");
    assert!(text.contains("\nNothing went fast, so this proves nothing about Underpass; "), "{text}");
    let (value, code) = json(&[], "echo out");
    assert_eq!((code, &value["same"], &value["went_fast"]), (Some(0), &true.into(), &false.into()));
    assert_eq!(value["kernel"]["seconds"].as_array().unwrap().len(), 2);
}

#[test]
fn an_output_that_differs_is_shown() {
    let shown = diff(&[], "echo before; echo \"[$LD_PRELOAD]\"; echo after");
    assert_eq!(shown.status.code(), Some(1));
    let text = stdout(&shown);
    assert!(text.contains("different  stdout") && text.contains("same       stderr"), "{text}");
    assert!(text.contains("--- stdout on kernel TCP\n+++ stdout under Underpass\n"), "{text}");
    assert!(text.contains("\n before\n-[]\n+[/") && text.contains("\n after\n"), "{text}");
    let (value, code) = json(&[], "echo \"$LD_PRELOAD\" >&2");
    assert_eq!(code, Some(1));
    assert!(value["differences"]["stderr"].as_str().unwrap().contains("\n-\n+/"), "{value}");
    assert_eq!(value["differences"]["stdout"], Value::Null);
}

#[test]
fn an_end_that_differs_is_told() {
    let shown = diff(&[], "test -z \"$LD_PRELOAD\" || exit 7");
    assert_eq!(shown.status.code(), Some(1));
    let text = stdout(&shown);
    assert!(text.contains("ended with exit code 0 on kernel TCP; ended with exit code 7 under Underpass"), "{text}");
    let (value, code) = json(&[], "test -z \"$LD_PRELOAD\" || kill -9 $$");
    assert_eq!((code, &value["same_end"]), (Some(1), &false.into()));
    assert_eq!(value["underpass"]["ends"][0]["signal"], 9);
}

#[test]
fn lines_that_differ_by_nature_can_be_left_out() {
    let script = "echo \"took $(cat /proc/sys/kernel/random/uuid) s\"; echo same";
    let shown = diff(&[], script);
    assert_eq!(shown.status.code(), Some(1));
    assert!(stdout(&shown).contains("On kernel TCP alone it differs from run to run as well"), "{}", stdout(&shown));
    assert_eq!(diff(&["--ignore", "^never$", "--ignore", "^took [0-9a-f-]+ s$"], script).status.code(), Some(0));
}

#[test]
fn input_is_given_to_each_run() {
    let mut command = underpass(&["diff", "--rounds", "2", "--json", "--", "sh", "-c", "cat; echo $LD_PRELOAD"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"given\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["differences"]["stdout"].as_str().unwrap().contains("\n given\n"), "{value}");
    assert_eq!(value["steady_on_kernel"], true);
}

/// It would fill the disk.
#[test]
fn input_without_end_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    fs::File::create(&large).unwrap().set_len(10 << 30).unwrap();
    let given = |file: &Path| {
        let mut command = underpass(&["diff", "--rounds", "1", "--", "true"]);
        command.stdin(fs::File::open(file).unwrap()).output().unwrap()
    };
    for (file, why) in [(Path::new("/dev/zero"), "is a device, which need not end"), (&large, "has more than 1 GiB")] {
        let refused = given(file);
        assert_eq!(refused.status.code(), Some(2));
        let said = stderr(&refused);
        assert!(said.contains(&format!("standard input {why}, ")) && said.contains("</dev/null"), "{said}");
    }
    assert_eq!(given(Path::new("/dev/null")).status.code(), Some(0));
}

#[test]
fn a_program_that_does_not_end_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("numbers");
    let script = format!("sleep 1000 & echo $! >>{0}; echo said; wait", file.display());
    let (value, code) = json(&["--timeout", "1"], &script);
    assert_eq!((code, &value["underpass"]["ends"][0]["timed_out"]), (Some(0), &true.into()), "{value}");
    let (value, code) = json(&["--timeout", "1"], "test -z \"$LD_PRELOAD\" || sleep 1000");
    assert_eq!((code, &value["same_end"]), (Some(1), &false.into()));
    // Nor does what a program leaves behind stand in the way of the next run.
    assert_eq!(diff(&[], &format!("sleep 1000 & echo $! >>{}", file.display())).status.code(), Some(0));
    let numbers = fs::read_to_string(&file).unwrap();
    assert_eq!(numbers.lines().count(), 8);
    for number in numbers.lines() {
        assert_eq!(state(number.parse().unwrap()), None);
    }
}

#[test]
fn a_signal_ends_the_program_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("number");
    let script = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let mut command = underpass(&["diff", "--", "sh", "-c", &script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let number = wait_for("the program", || fs::read_to_string(&file).ok());
    kill("INT", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(2), "{}", stdout(&output));
    assert!(
        stderr(&output).contains("Interrupt: the program was ended in round 1 of 3, on kernel TCP"),
        "{}",
        stderr(&output)
    );
    assert_eq!(state(number.trim().parse().unwrap()), None);
}

#[test]
fn wrong_use_is_2_and_says_what_to_do() {
    let refused = |arguments: &[&str], says: &str| {
        let refused = output(&[&["diff"], arguments].concat());
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(2), ""), "{arguments:?}");
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    };
    refused(&["--ignore", "(", "--", "true"], "unclosed group");
    refused(&["--ignore", "(", "--", "true"], "behind a backslash: \\(");
    refused(&["--rounds", "0", "--", "true"], "a whole number from 1 to 100 is needed");
    refused(&["--timeout", "0", "--", "true"], "--timeout");
    refused(&["--set", "mode=of", "--", "true"], "does not fit mode");
    refused(&["--", "sleeep"], "did you mean sleep?");
    refused(&[], "Usage");
    // Found, but not to be run.
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    fs::write(&file, b"\0\x01 no program").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    refused(&["--", file.to_str().unwrap()], "the system cannot run it");
}

#[test]
fn at_once_and_settings_arrive_under_underpass_alone() {
    let seen = |options: &[&str]| {
        let (value, _) = json(options, "env | grep ^UNDERPASS_GO_UP | sort");
        value["differences"]["stdout"].as_str().unwrap_or_default().to_string()
    };
    let all = seen(&["--at-once"]);
    assert!(all.contains("+UNDERPASS_GO_UP_BYTES=0\n+UNDERPASS_GO_UP_MESSAGES=0\n"), "{all}");
    assert!(seen(&["--at-once", "--set", "go_up_bytes=7"]).contains("+UNDERPASS_GO_UP_BYTES=7\n"));
    assert_eq!(seen(&[]), "");
}

/// Both ends of a connection, which count what is echoed.
const PAIR: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    if (bind(listener, (void *)&at, length) || listen(listener, 1)) return 9;
    if (getsockname(listener, (void *)&at, &length)) return 9;
    char byte = 'x';
    if (!fork()) {
        int server = accept(listener, 0, 0);
        while (recv(server, &byte, 1, 0) == 1) send(server, &byte, 1, 0);
        return 0;
    }
    int client = socket(AF_INET, SOCK_STREAM, 0), echoed = 0;
    if (connect(client, (void *)&at, sizeof at)) return 9;
    for (int i = 0; i < 500; i++) echoed += send(client, &byte, 1, 0) == 1 && recv(client, &byte, 1, 0) == 1;
    close(client);
    wait(0);
    printf("%d\n", echoed);
    return 0;
}
"#;

#[test]
fn connections_that_went_fast_are_counted() {
    // `make test` builds the library before this; the probe of the other tests carries nothing.
    let built = Path::new(UNDERPASS).join("../../release/libunderpass.so");
    let library = std::env::var_os("UNDERPASS_TEST_LIBRARY").map_or(built, PathBuf::from);
    if !library.exists() {
        return skip("the library itself is not built");
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("pair");
    assert!(compile(PAIR, &[], &program));
    let mut command = underpass(&["diff", "--rounds", "1", "--at-once", "--json", "--", program.to_str().unwrap()]);
    let output = command.env("UNDERPASS_LIBRARY", &library).output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!((output.status.code(), &value["went_fast"]), (Some(0), &true.into()), "{value:#}");
    assert_eq!((&value["underpass"]["connections"], &value["underpass"]["fast"]), (&2.into(), &2.into()), "{value:#}");
    assert_eq!(value["notes"].as_array().unwrap().len(), 0);
}

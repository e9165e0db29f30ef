//! A program cannot tell that it was not run directly.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::support::{LIBRARY, UNDERPASS, output, stderr, stdout, underpass};

/// Both ways of running: in place of the command, and as its child.
const WAYS: [&[&str]; 2] = [&["run"], &["run", "--stats=/dev/null"]];

fn run(way: &[&str], command: &[&str]) -> std::process::Output {
    output(&[way, &["--"], command].concat())
}

#[test]
fn the_exit_code_is_the_programs() {
    for way in WAYS {
        for code in [0, 1, 7, 125, 255] {
            assert_eq!(run(way, &["sh", "-c", &format!("exit {code}")]).status.code(), Some(code));
        }
    }
}

#[test]
fn a_signal_that_kills_the_program_is_seen() {
    for way in WAYS {
        for (name, number) in [("TERM", 15), ("KILL", 9), ("INT", 2), ("HUP", 1), ("USR1", 10)] {
            let output = run(way, &["sh", "-c", &format!("kill -{name} $$")]);
            assert_eq!((output.status.signal(), output.status.code()), (Some(number), None), "{way:?} {name}");
        }
        let output = run(way, &["sh", "-c", "ulimit -c 0; kill -SEGV $$"]);
        assert_eq!(output.status.signal(), Some(11));
    }
}

#[test]
fn arguments_arrive_unchanged() {
    let odd = ["a b", "", "--stats", "-q", "--", "*", "\u{e9}\n", "-"];
    for way in WAYS {
        let output = run(way, &[&["printf", "%s|"], &odd[..]].concat());
        assert_eq!(stdout(&output), odd.map(|a| format!("{a}|")).concat());
    }
    // Without the two dashes as well: options of the program are not ours.
    let output = output(&["run", "printf", "%s|", "--stats", "--json", "--help"]);
    assert_eq!(stdout(&output), "--stats|--json|--help|");
}

#[test]
fn a_program_sees_its_own_name() {
    assert_eq!(stdout(&run(WAYS[0], &["sh", "-c", "echo $0"])), "sh\n");
}

#[test]
fn input_passes() {
    for way in WAYS {
        let mut child =
            underpass(way).args(["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"through").unwrap();
        assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
    }
}

/// The writer to a pipe is told when the program closes it, and not only when the command above the program ends.
#[test]
fn no_other_process_holds_the_programs_pipes() {
    let mut child = underpass(WAYS[1])
        .args(["--", "sh", "-c", "exec 0<&-; exec 1>&-; exec sleep 20"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    let mut input = child.stdin.take().unwrap();
    crate::support::wait_for("a broken pipe", || input.write_all(b"x").err());
    assert!(child.try_wait().unwrap().is_none(), "both were seen closed while the program still runs");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Dispositions and mask of signals, descriptors, limits: what exec leaves as it is.
#[test]
fn inherited_state_is_left_alone() {
    // Without a shell in between, which would empty the mask.
    let looks = [
        "grep -E '^(Sig(Blk|Ign|Cgt)|NoNewPrivs|Seccomp|Umask|Cpus_allowed):' /proc/self/status",
        "ls /proc/self/fd",
        "sh -c 'ulimit -a'",
    ];
    let callers = ["", "trap '' PIPE USR1 CHLD;", "exec 0<&-;", "exec 0<&- 7</dev/null;", "ulimit -n 99; umask 027;"];
    for look in looks {
        for caller in callers {
            let seen = |before: &str| {
                let script = format!("{caller} exec {before} {look}");
                let mut shell = Command::new("sh");
                shell.args(["-c", &script]).env("U", UNDERPASS);
                shell.env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
                stdout(&shell.stdin(Stdio::null()).output().unwrap())
            };
            let direct = seen("");
            assert!(!direct.is_empty());
            for setting in ["", "--set io_uring=allow"] {
                assert_eq!(seen(&format!("\"$U\" run {setting} --")), direct, "{caller} {look}");
                assert_eq!(seen(&format!("\"$U\" run --stats=/dev/null {setting} --")), direct, "{caller} {look}");
            }
        }
    }
}

#[test]
fn the_terminal_is_the_programs_own() {
    for way in WAYS {
        let inner =
            format!("{UNDERPASS} {} -- sh -c 'test -t 0 && test -t 1 && test -t 2 && echo all three'", way.join(" "));
        let mut script = Command::new("script");
        script.args(["-qec", &inner, "/dev/null"]).env("UNDERPASS_LIBRARY", &*LIBRARY);
        let output = script.stdin(Stdio::null()).output().unwrap();
        assert_eq!(stdout(&output).trim(), "all three");
    }
}

#[test]
fn scripts_run_with_and_without_a_first_line() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in
        [("with", "#!/bin/sh\necho $0 $1\n"), ("without", "echo $0 $1\n"), ("env", "#!/usr/bin/env sh\necho $0 $1\n")]
    {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = path.to_str().unwrap();
        let output = output(&["run", "--", path, "argument"]);
        assert_eq!(stdout(&output), format!("{path} argument\n"), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
}

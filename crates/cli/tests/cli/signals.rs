//! `run --stats` stands between the caller and the program; signals pass as if it did not.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

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

/// If no shell watches a process group, nothing would continue it, so the kernel does not stop it by SIGTSTP.
///
/// Fails if `supervise` leaves out `go_on` where it could not stop.
#[test]
fn job_control_does_not_stop_a_program_of_an_orphaned_group() {
    for options in [&[][..], &["--stats=/dev/null"]] {
        let mut command = Command::new("setsid");
        command.args([UNDERPASS, "run"]).args(options).args(["--", "sh", "-c", "kill -TSTP $$; echo on"]);
        command.env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
        assert_eq!(command.stdin(Stdio::null()).output().unwrap().stdout, b"on\n", "{options:?}");
    }
}

#[test]
fn a_program_that_is_stopped_alone_can_be_continued_alone() {
    let (mut child, lines, pid) = start("echo $$; kill -STOP $$; echo on");
    wait_for("the stop", || (state(pid) == Some('T')).then_some(()));
    kill("CONT", pid);
    assert_eq!(rest(lines), "on\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Fails if `supervise::run` leaves the program in the command's group. A command that leads none has its program in
/// its own.
#[test]
fn the_program_leads_its_process_group_where_the_command_does() {
    let script = "trap 'echo caught' TERM; kill -TERM -$$; echo said $?";
    let said = |options: &[&str], leads: bool| {
        let mut command = underpass(&[&["run"], options, &["--", "sh", "-c", script]].concat());
        if leads {
            command.process_group(0);
        }
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (leads, expected) in [(true, "caught\nsaid 0\n"), (false, "said 1\n")] {
        assert_eq!(said(&[], leads), expected);
        assert_eq!(said(&["--stats=/dev/null"], leads), expected, "with --stats");
    }
}

/// A shell with job control on a terminal.
struct Shell {
    script: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Shell {
    fn start() -> Shell {
        Shell::of("sh -i")
    }

    fn of(command: &str) -> Shell {
        let mut script = Command::new("script");
        script.args(["-qc", command, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        script.env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null").env("LC_ALL", "C");
        let mut script = script.spawn().unwrap();
        let keyboard = script.stdin.take().unwrap();
        let mut output = script.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Shell { script, keyboard, screen, reader }
    }

    /// The screen shows typed text as well, so tests spell it otherwise than the output that they wait for.
    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn runs(&mut self, program: &str, rest: &str) {
        self.types(&format!("{UNDERPASS} run --stats=/dev/null -- {program} {rest}\n"));
    }

    /// Waits until `text` is on the screen, and forgets it and what was before.
    fn shows(&self, text: &str) {
        let shown = || {
            let mut screen = self.screen.lock().unwrap();
            let end = screen.find(text)? + text.len();
            screen.replace_range(..end, "");
            Some(())
        };
        let before = || self.screen.lock().unwrap().clone();
        wait_for(&format!("{text} on the screen, where there is {:?}", before()), shown);
    }

    fn ends(mut self) {
        // A shell for a single command is gone already.
        let _ = self.keyboard.write_all(b"exit\n");
        self.script.wait().unwrap();
        self.reader.join().unwrap();
    }
}

/// A shell would wait for ever for a terminal that no process group has any more.
#[test]
fn a_program_that_stops_itself_gives_the_terminal_back() {
    let mut shell = Shell::start();
    shell.runs("sh -c 'kill -STOP $$; echo on-$((1 + 1))'", "");
    shell.types("echo shell-$((1 + 1))\n");
    shell.shows("shell-2");
    assert!(!shell.screen.lock().unwrap().contains("on-2"));
    shell.types("fg\n");
    shell.shows("on-2");
    shell.ends();
}

/// Reads two lines from the terminal, whatever interrupts it, and says when Ctrl-C does. Then it ends its group. (A key
/// that sends a signal makes the terminal forget what has been typed and not read.)
const READS: &str = "sh -c 'trap \"echo interrupt-\\$((1 + 1))\" INT; echo ready-$((1 + 1)); until read a; do :; done; \
                     echo read-$a; until read b; do :; done; echo read-$a-$b; kill -TERM -$$; sleep 100'";

/// Fails if `supervise` leaves one of these out: `foreground` in `ProcessGroup::Own`, `take_terminal_from` when it
/// stops, `give_terminal_to` when it goes on, `take_terminal_from` at the end.
#[test]
fn the_terminal_goes_to_the_programs_group_and_back() {
    let mut shell = Shell::start();
    shell.runs(READS, "");
    shell.shows("ready-2");
    shell.types("\x03");
    shell.shows("interrupt-2");
    shell.types("x\n");
    shell.shows("read-x");
    shell.types("\x1a");
    shell.shows("Stopped");
    shell.types("echo shell-$((1 + 1))\n");
    shell.shows("shell-2");
    shell.types("fg\n");
    shell.types("y\n");
    shell.shows("read-x-y");
    shell.types("echo code-$?\n");
    shell.shows("code-143");
    shell.ends();
}

/// Fails if `supervise::go_on` does not hand the terminal on.
#[test]
fn a_program_in_the_background_gets_the_terminal_with_the_command() {
    let mut shell = Shell::start();
    shell.runs(READS, "&");
    shell.types("echo shell-$((1 + 1))\n");
    shell.shows("shell-2");
    shell.types("fg\n");
    shell.types("x\n");
    shell.shows("read-x");
    shell.types("\x03");
    shell.shows("interrupt-2");
    shell.types("y\n");
    shell.shows("read-x-y");
    shell.types("echo code-$?\n");
    shell.shows("code-143");
    shell.ends();
}

/// A shell that runs one command and says which process group has the terminal. `late` puts the command into the
/// foreground without continuing it, once a line has been typed; so does bash with a command that runs.
const SHELL: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int late = argc > 1 && !strcmp(argv[1], "late"), status;
    char line[80];
    signal(SIGTTOU, SIG_IGN);
    pid_t command = fork();
    if (command == 0) {
        setpgid(0, 0);
        if (!late) tcsetpgrp(0, getpid());
        signal(SIGTTOU, SIG_DFL);
        execvp(argv[2], argv + 2);
        _exit(1);
    }
    setpgid(command, command);
    if (late) {
        if (!fgets(line, sizeof line, stdin)) return 1;
        tcsetpgrp(0, command);
        puts("handed over");
        fflush(stdout);
    } else {
        waitpid(command, &status, WUNTRACED);
        printf("stopped: %d, foreground: %d\n", WIFSTOPPED(status), tcgetpgrp(0) == command);
        fflush(stdout);
        tcsetpgrp(0, command);
        kill(-command, SIGCONT);
    }
    waitpid(command, &status, 0);
    printf("code: %d, foreground: %d\n", WEXITSTATUS(status), tcgetpgrp(0) == command);
    return 0;
}
"#;

impl Shell {
    /// A terminal with the shell above, which runs `script` in the way named.
    fn of_one_command(folder: &Path, way: &str, script: &str) -> Shell {
        let program = folder.join("shell");
        assert!(compile(SHELL, &["-x", "c"], &program));
        Shell::of(&format!("{} {way} {UNDERPASS} run --stats=/dev/null -- sh -c '{script}'", program.display()))
    }
}

/// Some shells take the terminal only from the group that they gave it to.
///
/// Fails if `take_terminal_from` is left out in `supervise`, when the program stops or at its end.
#[test]
fn the_commands_group_has_the_terminal_when_a_shell_looks() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::of_one_command(folder.path(), "stop", "kill -TSTP $$; read x </dev/tty; exit 3");
    shell.shows("stopped: 1, foreground: 1");
    shell.types("line\n");
    shell.shows("code: 3, foreground: 1");
    shell.ends();
}

/// Fails if `supervise::run` keeps what the terminal sends to the command's group, or does not continue a program that
/// stops because it wants the terminal.
#[test]
fn what_the_terminal_sends_to_the_command_reaches_the_program() {
    let folder = tempfile::tempdir().unwrap();
    // The signal ends sleep, of the same group, as well, once the subshell has let go of the trap.
    let script = "trap \"echo interrupt-\\$((1 + 1))\" INT; (echo ready-$((1 + 1)); exec sleep 100); \
                  read x </dev/tty; exit 3";
    let mut shell = Shell::of_one_command(folder.path(), "late", script);
    shell.shows("ready-2");
    shell.types("over to you\n");
    shell.shows("handed over");
    shell.types("\x03");
    shell.shows("interrupt-2");
    shell.types("line\n");
    shell.shows("code: 3, foreground: 1");
    shell.ends();
}

/// Fails if the program gets a group of its own in a pipeline, whose other programs would lose the terminal.
#[test]
fn the_other_programs_of_a_pipeline_keep_the_terminal() {
    let mut shell = Shell::start();
    shell.runs("sh -c 'echo one; sleep 0.2'", "| sh -c 'read x; read y </dev/tty; echo got-$x-$y'");
    shell.types("two\n");
    shell.shows("got-one-two");
    shell.ends();
}

/// Reading makes the terminal stop the whole job, which goes on in the foreground.
///
/// Fails if `HeldSignals::stop` stops the command alone: bash takes the job for a running one then, and does not
/// continue it.
#[test]
fn a_pipeline_in_the_background_gets_the_terminal() {
    let mut shell = Shell::of("bash --norc -i");
    shell.runs("sh -c 'read x </dev/tty; echo got-$x'", "| cat &");
    shell.types("until jobs | grep [S]topped; do sleep 0.1; done\n");
    shell.shows("Stopped");
    shell.types("fg\n");
    shell.types("line\n");
    shell.shows("got-line");
    shell.ends();
}

/// Fails if `supervise::run` keeps it.
#[test]
fn the_callers_alarm_reaches_the_program() {
    let source =
        "#include <unistd.h>\nint main(int n, char **words) { alarm(1); return execv(words[1], words + 1) + n; }";
    let folder = tempfile::tempdir().unwrap();
    let caller = folder.path().join("caller");
    assert!(compile(source, &[], &caller));
    for options in [&[][..], &["--stats=/dev/null"]] {
        let mut command = Command::new(&caller);
        command.args([UNDERPASS, "run"]).args(options).args(["--", "sleep", "100"]);
        command.env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
        assert_eq!(command.status().unwrap().signal(), Some(14), "{options:?}");
    }
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

//! One run of the program: on kernel TCP or under Underpass, in a process group of its own, its output kept in files.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};
use rustix::stdio;
use underpass_segment::stats::Region;

use super::DiffError;
use crate::failure::Failure;
use crate::library;
use crate::run::stats::Counted;
use crate::run::supervise::End;
use crate::run::{self, Launch, RunError};
use crate::settings::STATS_VARIABLE;
use crate::sys::{self, Change, Child, HeldSignals, ProcessGroup};

/// How long a program that is to end may take before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Kernel TCP, without the library.
    Kernel,
    /// Underpass.
    Underpass,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Path::Kernel => "on kernel TCP",
            Path::Underpass => "under Underpass",
        })
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The program ended by itself.
    Itself(End),
    /// The command ended the run, since it took too long.
    TimedOut,
    /// The command ended the run, since the command itself got this signal.
    Interrupted(i32),
}

/// What was seen of one run.
pub struct Round {
    /// How it ended.
    pub ending: Ending,
    /// From its start to its end.
    pub took: Duration,
    /// Standard output and standard error.
    pub streams: [File; 2],
    /// What the processes counted; nothing on kernel TCP.
    pub counted: Counted,
}

/// An empty file without a name, under a number that is no standard stream's.
pub fn file() -> io::Result<File> {
    sys::clear_of_standard_streams(tempfile::tempfile()?)
}

/// Runs the program to its end, or for `timeout` seconds.
pub fn run(
    launch: &Launch<'_>,
    path: Path,
    input: Option<&File>,
    timeout: Option<u32>,
    signals: &HeldSignals,
) -> Result<Round, DiffError> {
    let streams = [file().map_err(DiffError::files)?, file().map_err(DiffError::files)?];
    // Opened anew for each run, with a place of its own.
    let input = input.map_or("/dev/null".into(), |file| format!("/proc/self/fd/{}", file.as_raw_fd()));
    let input = File::open(input).and_then(sys::clear_of_standard_streams).map_err(DiffError::files)?;
    let region = (path == Path::Underpass).then(run::counters).transpose()?;
    let (mut told, tell) = io::pipe().map_err(DiffError::files)?;
    let start = Instant::now();
    let child = Child::fork(signals, ProcessGroup::Own { foreground: false }, || {
        let error = become_program(launch, region.as_ref(), &input, &streams);
        let _ = (&tell).write_all(error.as_bytes());
        Failure::BROKEN
    })
    .map_err(RunError::NoProcess)?;
    drop(tell);
    let group = Pid::from_raw(child.id());
    let ending = attend(signals, &child, timeout.map(|seconds| start + Duration::from_secs(seconds.into())));
    let took = start.elapsed();
    group.into_iter().for_each(end);
    let mut error = String::new();
    let _ = told.read_to_string(&mut error);
    if !error.is_empty() {
        return Err(DiffError::NotStarted(error));
    }
    let counted = region.as_ref().map(Counted::read).unwrap_or_default();
    Ok(Round { ending, took, streams, counted })
}

/// Makes this process the program; returns only on failure, with what to say of it.
fn become_program(launch: &Launch<'_>, region: Option<&Region>, input: &File, streams: &[File; 2]) -> String {
    let redirected = stdio::dup2_stdin(input)
        .and_then(|()| stdio::dup2_stdout(&streams[0]))
        .and_then(|()| stdio::dup2_stderr(&streams[1]));
    if let Err(error) = redirected {
        return format!("cannot give the program its standard streams: {error}");
    }
    let set = |name: &str, value: &OsStr| sys::set_variable(name, value);
    let Some(region) = region else {
        sys::unset_variable(c"UNDERPASS_STATS");
        let others = library::without();
        if others.is_empty() {
            sys::unset_variable(c"LD_PRELOAD");
        } else if let Err(error) = set(library::PRELOAD, &others) {
            return format!("cannot set a variable: {error}");
        }
        return launch.exec_plainly().to_string();
    };
    match launch.set_environment() {
        Err(error) => error.to_string(),
        Ok(()) => match set(STATS_VARIABLE, region.id().to_string().as_ref()) {
            Err(error) => format!("cannot set a variable: {error}"),
            Ok(()) => launch.exec().to_string(),
        },
    }
}

/// Waits for the child's end, its time or a signal that means to end this command.
fn attend(signals: &HeldSignals, child: &Child, deadline: Option<Instant>) -> Ending {
    loop {
        match signals.next_until(deadline).map(|taken| taken.signal) {
            None => return Ending::TimedOut,
            Some(libc::SIGCHLD) => {
                while let Some(change) = child.change() {
                    match change {
                        Change::Exited(code) => return Ending::Itself(End::Code(code)),
                        Change::Killed(signal) => return Ending::Itself(End::Signal(signal)),
                        Change::Stopped(_) => {}
                    }
                }
            }
            Some(signal @ (libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT)) => {
                return Ending::Interrupted(signal);
            }
            Some(_) => {}
        }
    }
}

/// Ends what is left of the group: the next run needs its ports and files.
fn end(group: Pid) {
    let start = Instant::now();
    let mut signal = Signal::TERM;
    // A stopped one takes no other signal before it goes on.
    let say = |signal| {
        rustix::process::kill_process_group(group, signal)
            .and_then(|()| rustix::process::kill_process_group(group, Signal::CONT))
    };
    let mut said = say(signal);
    loop {
        while rustix::process::waitpgid(group, WaitOptions::NOHANG).is_ok_and(|it| it.is_some()) {}
        if said.is_err() || rustix::process::test_kill_process_group(group).is_err() || start.elapsed() > GRACE * 2 {
            return;
        }
        if signal == Signal::TERM && start.elapsed() > GRACE {
            signal = Signal::KILL;
            said = say(signal);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

//! Programs that an agent starts. They end with the agent, however it ends; they are waited for with limits; and their
//! processor time is measured.
#![allow(unsafe_code, reason = "the way a program is to end is set between fork and exec, and wait4 has no safe word")]

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, set_parent_process_death_signal};

/// Most octets that a tool may print. iperf3 prints some ten KiB.
const MOST_OUTPUT: u64 = 4 << 20;
/// Time from one look at the limits to the next.
const LOOK: Duration = Duration::from_millis(50);
/// Time from one look at a program's children to the next.
const SHORT: Duration = Duration::from_millis(2);
/// How much of what a failed program said is shown, in characters.
const LAST_WORDS: usize = 400;

/// Why a program's output cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("cannot start {name}: {error}")]
    Start {
        /// The program.
        name: String,
        /// The system's words.
        error: io::Error,
    },
    /// It failed.
    #[error("{name} failed ({status}): {said}")]
    Failed {
        /// The program.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last words.
        said: String,
    },
    /// It took too long.
    #[error("{name} did not end within {limit} s and was killed")]
    Hung {
        /// The program.
        name: String,
        /// How long it had.
        limit: u64,
    },
    /// It printed more than any tool does.
    #[error("{name} printed more than {MOST_OUTPUT} bytes and was killed")]
    TooMuch {
        /// The program.
        name: String,
    },
    /// The coordinator that waited for the result is gone.
    #[error("the coordinator is gone")]
    Gone,
    /// The kernel does not do what it always does.
    #[error("cannot wait for {name}: {error}")]
    Wait {
        /// The program.
        name: String,
        /// The system's words.
        error: io::Error,
    },
}

/// A program. On drop it is killed.
#[derive(Debug)]
pub struct Child {
    name: String,
    pid: Pid,
    handle: OwnedFd,
    /// Standard input, if it is a pipe.
    pub stdin: Option<ChildStdin>,
    /// Standard output, if it is a pipe.
    pub stdout: Option<ChildStdout>,
    said: [File; 2],
    end: Option<Ended>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// Its processor time, with that of its own children that it waited for.
    pub processor_time: Duration,
}

/// What a program printed, and what it took.
#[derive(Debug)]
pub struct Output {
    /// Its process.
    pub pid: u32,
    /// Standard output.
    pub stdout: String,
    /// Its processor time.
    pub processor_time: Duration,
}

impl Child {
    /// Starts a program whose output is kept.
    ///
    /// # Errors
    /// [`ChildError::Start`].
    pub fn start(command: &mut Command) -> Result<Child, ChildError> {
        command.stdin(Stdio::null());
        Child::spawn(command, None)
    }

    /// Starts a program with pipes for input and output.
    ///
    /// # Errors
    /// [`ChildError::Start`].
    pub fn piped(command: &mut Command) -> Result<Child, ChildError> {
        command.stdin(Stdio::piped());
        Child::spawn(command, Some(Stdio::piped()))
    }

    /// Starts a program whose standard input and output are set already.
    ///
    /// # Errors
    /// [`ChildError::Start`].
    pub fn between(command: &mut Command, output: Stdio) -> Result<Child, ChildError> {
        Child::spawn(command, Some(output))
    }

    fn spawn(command: &mut Command, output: Option<Stdio>) -> Result<Child, ChildError> {
        let name = command.get_program().to_string_lossy().rsplit('/').next().unwrap_or_default().to_string();
        let start = || -> io::Result<Child> {
            let said = [tempfile::tempfile()?, tempfile::tempfile()?];
            let kept = Stdio::from(said[0].try_clone()?);
            command.stdout(output.unwrap_or(kept)).stderr(said[1].try_clone()?);
            // SAFETY: the child makes one system call, which touches no memory.
            unsafe {
                command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
            }
            let mut child = command.spawn()?;
            let pid = Pid::from_child(&child);
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let handle = pidfd_open(pid, PidfdFlags::empty())?;
            Ok(Child { name: name.clone(), pid, handle, stdin, stdout, said, end: None })
        };
        start().map_err(|error| ChildError::Start { name: name.clone(), error })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// [`ChildError::Wait`].
    pub fn ended(&mut self) -> Result<Option<Ended>, ChildError> {
        self.wait(Duration::ZERO)
    }

    /// Waits so long at most for its end; how it ended, if it has.
    ///
    /// # Errors
    /// [`ChildError::Wait`].
    pub fn ended_within(&mut self, limit: Duration) -> Result<Option<Ended>, ChildError> {
        self.wait(limit)
    }

    /// Waits until all children that it started have ended and were waited for; false if some are there after `limit`.
    ///
    /// # Errors
    /// [`ChildError::Wait`].
    pub fn outlives_its_own(&mut self, limit: Duration) -> Result<bool, ChildError> {
        let last = Instant::now() + limit;
        while has_children(self.pid()) {
            if self.wait(SHORT)?.is_some() {
                break;
            }
            if Instant::now() > last {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What it has printed until now.
    pub fn printed(&mut self) -> String {
        text_of(&mut self.said[0])
    }

    /// Waits for its success.
    ///
    /// # Errors
    /// It fails, takes longer than `limit` or prints too much, or `gone` becomes true.
    pub fn finish(self, limit: Duration, gone: &AtomicBool) -> Result<Output, ChildError> {
        self.finish_beside(&|| Ok(()), limit, gone)
    }

    /// Waits for its success, as long as others may go on that run meanwhile.
    ///
    /// # Errors
    /// As of [`Child::finish`], or those of `others`.
    pub fn finish_beside(
        mut self,
        others: &dyn Fn() -> Result<(), ChildError>,
        limit: Duration,
        gone: &AtomicBool,
    ) -> Result<Output, ChildError> {
        let last = Instant::now() + limit;
        let ended = loop {
            if let Some(ended) = self.wait(LOOK)? {
                break ended;
            }
            self.check(gone).and_then(|()| others())?;
            if Instant::now() > last {
                return Err(ChildError::Hung { name: self.name.clone(), limit: limit.as_secs() });
            }
        };
        self.check(gone)?;
        if !ended.status.success() {
            return Err(self.failure(ended.status));
        }
        let stdout = text_of(&mut self.said[0]);
        Ok(Output { pid: self.pid(), stdout, processor_time: ended.processor_time })
    }

    /// Whether it may go on.
    ///
    /// # Errors
    /// It has printed too much, or `gone` is true.
    pub fn check(&self, gone: &AtomicBool) -> Result<(), ChildError> {
        if gone.load(Ordering::Relaxed) {
            return Err(ChildError::Gone);
        }
        let printed: u64 = self.said.iter().map(|file| file.metadata().map_or(0, |meta| meta.len())).sum();
        if printed > MOST_OUTPUT { Err(ChildError::TooMuch { name: self.name.clone() }) } else { Ok(()) }
    }

    /// What it failed with.
    pub fn failure(&mut self, status: ExitStatus) -> ChildError {
        let said = [text_of(&mut self.said[1]), text_of(&mut self.said[0])].join("\n");
        let words: Vec<char> = said.trim().chars().filter(|c| !c.is_control() || *c == '\n').collect();
        let said = words[words.len().saturating_sub(LAST_WORDS)..].iter().collect();
        ChildError::Failed { name: self.name.clone(), status, said }
    }

    /// Kills it, if it still runs.
    ///
    /// # Errors
    /// [`ChildError::Wait`].
    pub fn kill(&mut self) -> Result<Ended, ChildError> {
        loop {
            if let Some(ended) = self.wait(Duration::ZERO)? {
                return Ok(ended);
            }
            // The child was not waited for, so that the number still names it.
            let _ = kill_process(self.pid, Signal::KILL);
            if let Some(ended) = self.wait(Duration::from_secs(10))? {
                return Ok(ended);
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<Ended>, ChildError> {
        if self.end.is_none() && readable(&self.handle, limit).map_err(|error| self.wait_error(error))? {
            self.end = Some(reap(self.pid).map_err(|error| self.wait_error(error))?);
        }
        Ok(self.end)
    }

    fn wait_error(&self, error: io::Error) -> ChildError {
        ChildError::Wait { name: self.name.clone(), error }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Waits until a descriptor is readable (of a process: has ended); false after `limit`.
///
/// # Errors
/// The kernel refuses.
pub fn readable(descriptor: &impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).unwrap_or_default();
    match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits for a child that has ended.
fn reap(pid: Pid) -> io::Result<Ended> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both places are ours and of the types that wait4(2) writes.
        let reaped = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &mut status, 0, usage.as_mut_ptr()) };
        if reaped > 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: all zero is a value of it, and wait4 has written the real one.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    let processor_time = time(usage.ru_utime) + time(usage.ru_stime);
    Ok(Ended { status: ExitStatus::from_raw(status), processor_time })
}

/// Whether a thread of a process has a child, if the kernel tells (proc_pid_task(5), `children`).
fn has_children(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    threads.map(children).any(|children| !children.trim().is_empty())
}

fn text_of(file: &mut File) -> String {
    let mut octets = Vec::new();
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(MOST_OUTPUT).read_to_end(&mut octets));
    String::from_utf8_lossy(&octets).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::shell;

    const LIMIT: Duration = Duration::from_secs(60);
    static HERE: AtomicBool = AtomicBool::new(false);

    fn finish(script: &str, limit: Duration, gone: &AtomicBool) -> Result<Output, ChildError> {
        Child::start(&mut shell(script)).unwrap().finish(limit, gone)
    }

    #[test]
    fn output_and_processor_time_are_told() {
        let compute = "n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done; echo done";
        let output = finish(compute, LIMIT, &HERE).unwrap();
        assert_eq!(output.stdout, "done\n");
        assert!(output.processor_time > Duration::from_millis(5), "{:?}", output.processor_time);
        assert!(finish("exit 0", LIMIT, &HERE).unwrap().processor_time < output.processor_time);
    }

    #[test]
    fn what_hangs_fails_or_prints_without_end_is_named() {
        let error = finish("echo why >&2; exit 3", LIMIT, &HERE).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("why"), "{error}");
        assert!(matches!(finish("exec sleep 60", Duration::from_millis(50), &HERE), Err(ChildError::Hung { .. })));
        assert!(matches!(finish("exec yes", LIMIT, &HERE), Err(ChildError::TooMuch { .. })));
        let gone = AtomicBool::new(true);
        assert!(matches!(finish("exec sleep 60", LIMIT, &gone), Err(ChildError::Gone)));
        let error = Child::start(&mut Command::new("/no/such/tool")).unwrap_err().to_string();
        assert!(error.contains("cannot start tool"), "{error}");
    }

    /// A server whose child computes for a while: killed at once, it would leave that time to nobody.
    #[test]
    fn the_time_of_a_child_counts_once_it_was_waited_for() {
        let busy = "n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done";
        let mut server = Child::start(&mut shell(&format!("({busy}) & wait; exec sleep 60"))).unwrap();
        let last = Instant::now() + LIMIT;
        while !has_children(server.pid()) {
            assert!(Instant::now() < last, "it starts no child");
        }
        assert!(!server.outlives_its_own(Duration::ZERO).unwrap(), "it is still at work");
        assert!(server.outlives_its_own(LIMIT).unwrap());
        let time = server.kill().unwrap().processor_time;
        assert!(time > Duration::from_millis(20), "{time:?}");
    }

    #[test]
    fn a_program_ends_with_the_value() {
        let child = Child::start(&mut shell("exec sleep 60")).unwrap();
        let process = format!("/proc/{}", child.pid());
        assert!(std::path::Path::new(&process).exists());
        drop(child);
        assert!(!std::path::Path::new(&process).exists());
    }
}

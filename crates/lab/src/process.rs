//! Programs that a measurement starts: waited for with a limit, and cleared away however the measurement ends.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::de::DeserializeOwned;

use crate::interrupt;
use crate::proc_stat;

/// How long a server may take to come up, and to go.
const PATIENCE: Duration = Duration::from_secs(20);
/// How much of what a failed program said is shown.
const LAST_WORDS: usize = 600;

/// A program that runs; on drop it is asked to stop, and killed if it does not.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    stop: Signal,
    processor_time: Duration,
    stdout: File,
    stderr: File,
}

/// A program that ran to its end and succeeded.
#[derive(Debug)]
pub struct Finished {
    /// Its process.
    pub pid: u32,
    /// The processor time that it and the children it waited for took.
    pub processor_time: Duration,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors and remarks.
    pub stderr: String,
    name: String,
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started, does not end within `limit`, or fails; the message carries its last words.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Finished> {
    Running::start(command)?.finish(limit)
}

/// A TCP port of 127.0.0.1 without a listener.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free TCP port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

impl Running {
    /// Starts a program whose output is kept; it is killed if it still runs on drop.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Running> {
        let stdout = output_file()?;
        Running::spawn(command.stdin(Stdio::null()), Stdio::from(stdout.try_clone()?), stdout)
    }

    /// Starts a program that gets the signal `stop` first when it is dropped.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn stopped_by(command: &mut Command, stop: Signal) -> Result<Running> {
        let mut program = Running::start(command)?;
        program.stop = stop;
        Ok(program)
    }

    /// Starts a program that reads `input` from its standard input.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn fed(command: &mut Command, input: File) -> Result<Running> {
        let stdout = output_file()?;
        Running::spawn(command.stdin(input), Stdio::from(stdout.try_clone()?), stdout)
    }

    /// Starts a server that prints `listening PORT` when it is ready, and gives that port.
    ///
    /// # Errors
    /// It cannot be started, fails, or says nothing in time.
    pub fn announced(command: &mut Command) -> Result<(Running, u16)> {
        let mut server = Running::spawn(command.stdin(Stdio::null()), Stdio::piped(), output_file()?)?;
        let mut pipe = server.child.stdout.take().context("a pipe was asked for")?;
        let mut line = [0; 64];
        let mut length = 0;
        while !line[..length].contains(&b'\n') {
            if !readable(pipe.as_fd(), PATIENCE)? {
                bail!("{} did not come up within {} s", server.name, PATIENCE.as_secs());
            }
            match pipe.read(&mut line[length..])? {
                0 => return Err(server.failure("ended before it listened")),
                n => length += n,
            }
        }
        let text = String::from_utf8_lossy(&line[..length]);
        let port = text.trim().strip_prefix("listening ").and_then(|port| port.parse().ok());
        let port = port.with_context(|| format!("{} said {text:?} instead of its port", server.name))?;
        Ok((server, port))
    }

    /// Starts a server and waits until it accepts connections on 127.0.0.1:`port`; on drop it gets `stop` first.
    ///
    /// # Errors
    /// It cannot be started, fails, or does not listen in time.
    pub fn serving(command: &mut Command, port: u16, stop: Signal) -> Result<Running> {
        let mut server = Running::stopped_by(command, stop)?;
        server.wait_until(|| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
        })?;
        Ok(server)
    }

    /// Waits for a condition that this server brings about.
    ///
    /// # Errors
    /// The server ends, or the condition does not come in time.
    pub fn wait_until(&mut self, mut condition: impl FnMut() -> bool) -> Result<()> {
        let last = Instant::now() + PATIENCE;
        while !condition() {
            interrupt::check()?;
            if self.child.try_wait()?.is_some() {
                return Err(self.failure("ended before it was ready"));
            }
            if Instant::now() > last {
                return Err(self.failure(&format!("was not ready within {} s", PATIENCE.as_secs())));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not end within `limit`, or fails.
    pub fn finish(mut self, limit: Duration) -> Result<Finished> {
        match self.ended(limit)? {
            Some(status) if status.success() => Ok(Finished {
                pid: self.pid(),
                processor_time: self.processor_time,
                stdout: text_of(&mut self.stdout),
                stderr: text_of(&mut self.stderr),
                name: self.name.clone(),
            }),
            Some(status) => Err(self.failure(&format!("failed ({status})"))),
            None => Err(self.failure(&format!("hung: it did not end within {} s", limit.as_secs()))),
        }
    }

    /// What it failed with, if it failed by itself.
    pub fn complaint(&mut self) -> Option<anyhow::Error> {
        let status = self.ended(Duration::from_millis(500)).ok()??;
        (!status.success()).then(|| self.failure(&format!("failed ({status})")))
    }

    fn spawn(command: &mut Command, stdout: Stdio, stdout_file: File) -> Result<Running> {
        let path = command.get_program().to_os_string();
        let name = std::path::Path::new(&path).file_name().unwrap_or(&path).to_string_lossy().into_owned();
        let stderr = output_file()?;
        let child = command
            .stdout(stdout)
            .stderr(stderr.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {}", path.display()))?;
        Ok(Running { name, child, stop: Signal::KILL, processor_time: Duration::ZERO, stdout: stdout_file, stderr })
    }

    /// Its status, if it ends within `limit`.
    fn ended(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        readable(handle.as_fd(), limit)?;
        // The kernel forgets it once the process has been waited for.
        self.processor_time = proc_stat::of_process(self.pid()).unwrap_or_default();
        Ok(self.child.try_wait()?)
    }

    fn failure(&mut self, what: &str) -> anyhow::Error {
        let said = [text_of(&mut self.stderr), text_of(&mut self.stdout)].join("\n");
        let said = said.trim();
        let from = (said.len().saturating_sub(LAST_WORDS)..=said.len()).find(|at| said.is_char_boundary(*at));
        match &said[from.unwrap_or(0)..] {
            "" => anyhow!("{} {what}", self.name),
            words => anyhow!("{} {what}: {words}", self.name),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Not yet waited for, so the number still names this process.
        let _ = kill_process(Pid::from_child(&self.child), self.stop);
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// The one JSON object that it printed.
    ///
    /// # Errors
    /// It printed something else.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.stdout).with_context(|| format!("{} printed {:?}", self.name, self.stdout))
    }
}

fn output_file() -> Result<File> {
    tempfile::tempfile().context("no place for a temporary file; TMPDIR names another folder")
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until `descriptor` is readable (of a process: has ended); false after `limit`.
fn readable(descriptor: BorrowedFd, limit: Duration) -> Result<bool> {
    let last = Instant::now() + limit;
    loop {
        interrupt::check()?;
        let left = Timespec::try_from(last.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_kept_and_failure_carries_the_last_words() {
        let limit = Duration::from_secs(10);
        assert_eq!(finish(&mut shell("echo '{\"a\":1}'"), limit).unwrap().stdout, "{\"a\":1}\n");
        let error = finish(&mut shell("echo why >&2; exit 3"), limit).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("why"), "{error}");
        let error = finish(&mut Command::new("/no/such/program"), limit).unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }

    #[test]
    fn what_hangs_is_killed() {
        let begin = Instant::now();
        let error = finish(&mut shell("exec sleep 60"), Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("hung"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_server_says_its_port_or_why_not() {
        let (server, port) = Running::announced(&mut shell("echo listening 4711; exec sleep 60")).unwrap();
        assert_eq!(port, 4711);
        drop(server);
        let error = Running::announced(&mut shell("echo bind: in use >&2")).unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
    }
}

//! Programs as process groups that never outlive their test.
#![allow(unsafe_code, reason = "signals a process group")]

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A program and its children, with everything they say in one file. Killed when dropped.
pub struct Group {
    child: Child,
    log: PathBuf,
    name: String,
}

/// Those that have been started and not dropped.
static ALL: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// From now on a panic kills all groups, also if it ends this process at once.
pub fn end_with_a_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        usual(what);
        ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|pid| kill(*pid));
    }));
}

/// Kills a group that was not dropped.
fn kill(pid: u32) {
    // SAFETY: kill(2) takes no pointers. The group was made for a child of ours; it lasts while any member does, and
    // when none is left the number may be free but was not yet given to a new group of ours.
    unsafe { libc::kill(-(pid as i32), libc::SIGKILL) };
}

impl Group {
    /// Starts `command` in a process group of its own. Its standard output and error go to `log`.
    pub fn start(mut command: Command, log: &Path) -> Group {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let out = File::create(log).expect("a log file");
        let err = out.try_clone().expect("a second descriptor of the log");
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        // A shell starts its background with SIGINT ignored, which the program would inherit.
        // SAFETY: signal(2) may be called between fork and execution.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            })
        };
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {name}: {e}"));
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(child.id());
        Group { child, log: log.to_owned(), name }
    }

    /// Process number of the program, which is also its group's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the programs have said so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends `signal` to the program alone.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill(2) takes no pointers; the child is not yet waited for, so the number is still its own.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// Waits for the program's end. `None`: `limit` has passed, the program goes on.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_micros(200);
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for a child") {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    /// Waits for a successful end and returns what was said; fails with all that is known otherwise.
    pub fn succeed(mut self, limit: Duration) -> String {
        match self.wait(limit) {
            Some(status) if status.success() => self.said(),
            Some(status) => panic!("{} ended with {status}:\n{}", self.name, self.said()),
            None => panic!("{} hangs:\n{}{}", self.name, self.said(), self.where_it_is()),
        }
    }

    /// Asks the program to end by `signal` and waits; kills the group if it does not listen within a minute.
    pub fn stop(mut self, signal: i32) -> String {
        self.signal(signal);
        let ended = self.wait(Duration::from_secs(60)).is_some();
        assert!(ended, "{} does not end when asked to:\n{}{}", self.name, self.said(), self.where_it_is());
        self.said()
    }

    /// For each thread of the group: its name, state, and the kernel function and system call in which it is.
    pub fn where_it_is(&self) -> String {
        let mut text = String::new();
        for process in numbers("/proc") {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
            if fields.get(2) != Some(&self.pid().to_string().as_str()) {
                continue;
            }
            for task in numbers(&format!("/proc/{process}/task")) {
                let read =
                    |file: &str| fs::read_to_string(format!("/proc/{process}/task/{task}/{file}")).unwrap_or_default();
                let state = read("stat").rsplit_once(')').map_or(' ', |(_, rest)| rest.chars().nth(1).unwrap_or(' '));
                let call: String = read("syscall").split_whitespace().take(3).collect::<Vec<_>>().join(" ");
                let (name, wait) = (read("comm"), read("wchan"));
                text += &format!("  {process}/{task} {} {state} in {wait}, system call {call}\n", name.trim());
            }
        }
        text
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        kill(self.pid());
        ALL.lock().unwrap_or_else(PoisonError::into_inner).retain(|pid| *pid != self.pid());
        let _ = self.child.wait();
    }
}

fn numbers(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

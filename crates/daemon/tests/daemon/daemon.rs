//! The daemon under test.

use super::client::PATIENCE_S;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub const UNDERPASSD: &str = env!("CARGO_BIN_EXE_underpassd");

/// A group that every Debian has.
pub const GROUP: (&str, u32) = ("daemon", 1);

/// A daemon, and a folder that every user may enter. Both go when it is dropped.
pub struct Daemon {
    child: Child,
    pub folder: tempfile::TempDir,
}

impl Daemon {
    /// Starts it with these arguments beside the usual ones.
    pub fn start(arguments: &[&str]) -> Daemon {
        Self::start_by(&[], arguments)
    }

    /// Starts it by a command that executes it, with these arguments beside the usual ones.
    pub fn start_by(by: &[&str], arguments: &[&str]) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let mut it = Daemon { child: Self::spawn(&folder, by, arguments), folder };
        it.await_ready(1);
        it
    }

    /// Kills it and starts it anew at the same path.
    pub fn replace(&mut self, arguments: &[&str]) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let times = self.log().matches("underpassd listens").count();
        self.child = Self::spawn(&self.folder, &[], arguments);
        self.await_ready(times + 1);
    }

    /// Waits until its log has this so many times.
    pub fn await_said(&self, what: &str, times: usize) {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE_S as u64);
        while self.log().matches(what).count() < times {
            assert!(Instant::now() < deadline, "'{what}' is not said {times} times:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn spawn(folder: &tempfile::TempDir, by: &[&str], arguments: &[&str]) -> Child {
        let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        // It is not to outlive a test that is killed.
        let words = [&["setpriv", "--pdeathsig", "KILL"], by, &[UNDERPASSD]].concat();
        let policy = if arguments.contains(&"--policy") { &[][..] } else { &["--group", GROUP.0] };
        Command::new(words[0])
            .args(&words[1..])
            .args(["--foreground", "--log", "debug", "--socket"])
            .arg(folder.path().join("socket"))
            .args(policy)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Until it says so, since a client would leave its traces.
    fn await_ready(&mut self, times: usize) {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE_S as u64);
        while self.log().matches("underpassd listens").count() < times {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "it does not listen: {ended:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process of its own that closes connections.
    pub fn closer(&self) -> Pid {
        let parent_of = |pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
        };
        let all = fs::read_dir("/proc").unwrap().filter_map(|it| it.unwrap().file_name().to_str()?.parse::<i32>().ok());
        let mut its = all.filter(|&pid| parent_of(pid) == Some(self.pid()));
        Pid::from_raw(its.next().unwrap()).unwrap()
    }

    /// How it has ended, as it is to do by itself.
    pub fn status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE_S as u64);
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status,
                None => assert!(Instant::now() < deadline, "it goes on:\n{}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// One of root's that proves connections by their sequence numbers; `None`, said aloud, where there can be none.
    pub fn with_numbers() -> Option<Daemon> {
        is_root().then(|| Daemon::start(&[])).filter(Daemon::has_numbers)
    }

    /// Whether it proves connections by their sequence numbers; if not, says so aloud.
    pub fn has_numbers(&self) -> bool {
        let has = self.log().contains("are proven by their sequence numbers");
        if !has {
            println!("SKIPPED: the kernel lets this user load no BPF program");
        }
        has
    }

    /// Nanoseconds for which its threads have had a processor, and for which they have waited for one
    /// (/proc/PID/task/TID/schedstat).
    pub fn scheduled(&self) -> [u64; 2] {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let texts = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("schedstat")).ok());
        texts.fold([0; 2], |[had, waited], text| {
            let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().unwrap());
            [had + numbers.next().unwrap(), waited + numbers.next().unwrap()]
        })
    }

    /// Descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    pub fn await_descriptors(&self, at_most: usize) {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE_S as u64);
        while self.descriptors() > at_most {
            assert!(Instant::now() < deadline, "{} descriptors and not {at_most}", self.descriptors());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it in order.
    pub fn finish(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        assert!(!self.path().exists());
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this is root; if not, says so aloud.
pub fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("SKIPPED: only root can be other users");
    }
    is_root
}

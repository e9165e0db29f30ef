//! An `underpassd` of a test's own, and programs of several users.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::library::{self, Run};
use crate::stage::{Stage, skip};

/// The group whose members may share memory: its name and its number on every Debian.
pub const GROUP: (&str, u32) = ("daemon", 1);

/// A daemon that ends with the test.
pub struct Broker {
    daemon: Group,
    arguments: Vec<String>,
    socket: PathBuf,
}

impl Broker {
    /// A daemon that listens, where this process may act as several users; otherwise says so, and the test is skipped.
    pub fn start(stage: &Stage, arguments: &[&str]) -> Option<Broker> {
        if !is_root() {
            skip("needs root to act as several users");
            return None;
        }
        fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).expect("a folder for all users");
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_string()).collect();
        let socket = stage.path("broker.sock");
        let daemon = launch(stage, &socket, &arguments);
        Some(Broker { daemon, arguments, socket })
    }

    /// Kills the daemon; another one takes its place.
    pub fn replace(&mut self, stage: &Stage) {
        self.kill();
        self.daemon = launch(stage, &self.socket, &self.arguments);
    }

    /// Kills the daemon.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        assert!(self.daemon.wait(Duration::from_secs(10)).is_some(), "it does not die");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        self.daemon.signal(signal);
    }

    /// Where it listens.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// What it has logged.
    pub fn said(&self) -> String {
        self.daemon.said()
    }

    /// Has `command` ask this daemon.
    pub fn serves(&self, command: &mut Command) {
        command.env("UNDERPASS_BROKER", &self.socket);
    }

    /// How many ends it has led to their other ends.
    pub fn met(&self) -> usize {
        self.said().matches("verdict=Met").count()
    }

    /// Whether it proves connections by their sequence numbers; if not, says so.
    pub fn has_numbers(&self) -> bool {
        let has = self.said().contains("are proven by their sequence numbers");
        if !has {
            skip("the kernel lets this user load no BPF program");
        }
        has
    }
}

/// The socket of a daemon that ends with this process, and serves its user alone.
pub fn of_this_process() -> &'static str {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let (socket, log) = (folder.join("broker.sock"), folder.join("log"));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(library::daemon()).args(["--foreground", "--socket"]).arg(&socket);
    let (tell, told) = std::sync::mpsc::channel();
    // The signal comes when the thread ends that has started it.
    std::thread::spawn(move || {
        let _ = tell.send(Group::start(command, &log));
        loop {
            std::thread::park();
        }
    });
    let mut daemon = told.recv().expect("a daemon");
    await_listening(&mut daemon);
    std::mem::forget(daemon);
    socket.display().to_string().leak()
}

fn launch(stage: &Stage, socket: &std::path::Path, arguments: &[String]) -> Group {
    let mut command = Command::new(library::daemon());
    library::plain(&mut command);
    command.args(["--foreground", "--log", "debug", "--group", GROUP.0, "--socket"]).arg(socket).args(arguments);
    let mut daemon = stage.start(command);
    await_listening(&mut daemon);
    daemon
}

/// Its log says that it listens. (A client would leave its traces.)
fn await_listening(daemon: &mut Group) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !daemon.said().contains("underpassd listens") {
        let ended = daemon.wait(Duration::from_millis(2));
        assert!(ended.is_none() && Instant::now() < deadline, "it does not listen: {ended:?}\n{}", daemon.said());
    }
}

/// Whether this is root.
pub fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t"))
}

/// A user of a test: what its programs do is counted apart.
pub struct User {
    /// Its programs.
    pub run: Run,
    uid: u32,
    gid: u32,
}

impl User {
    /// User `uid` in group `gid`, neither of which need exist.
    pub fn new(uid: u32, gid: u32) -> User {
        User { run: Run::of_user(uid), uid, gid }
    }

    /// The same in the IPC namespace of the process that /proc has by this name.
    pub fn beside(process: &str, uid: u32, gid: u32) -> User {
        User { run: Run::of_user_beside(uid, process), uid, gid }
    }

    /// A member of [`GROUP`].
    pub fn member(uid: u32) -> User {
        User::new(uid, GROUP.1)
    }

    /// One that /etc/passwd knows, as a member of [`GROUP`]; otherwise says so, and the test is skipped.
    pub fn named(name: &str) -> Option<User> {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let uid = users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":x:")?.split(':').next());
        let uid = uid.and_then(|uid| uid.parse().ok());
        if uid.is_none() {
            skip(&format!("there is no user {name}"));
        }
        uid.map(User::member)
    }

    /// Its number and its group's.
    pub fn ids(&self) -> [u32; 2] {
        [self.uid, self.gid]
    }

    /// Has this user run `command`, under Underpass with these settings.
    pub fn runs(&self, command: &mut Command, settings: &[(&str, &str)]) {
        self.run.accelerate(command, settings);
        command.uid(self.uid).gid(self.gid);
    }
}

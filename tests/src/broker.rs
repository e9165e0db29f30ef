//! An `underpassd` of a test's own, and programs of several users.
#![allow(unsafe_code, reason = "gives the daemon a descriptor of a certain number, as a service manager does")]

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use underpass_broker::{Inquiry, State, state};

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
    /// The socket itself, where a service manager keeps it.
    kept: Option<OwnedFd>,
    /// The process that /proc has by this name has the daemon's network namespace.
    network: Option<String>,
}

impl Broker {
    /// A daemon that listens, where this process may act as several users; otherwise says so, and the test is skipped.
    pub fn start(stage: &Stage, arguments: &[&str]) -> Option<Broker> {
        Broker::launch(stage, arguments, false)
    }

    /// A daemon in the network namespace of the process that /proc has by this name, for programs there.
    pub fn start_beside(stage: &Stage, process: &str, arguments: &[&str]) -> Option<Broker> {
        Broker::launch_at(stage, arguments, false, Some(process))
    }

    /// A daemon whose socket is kept while there is no daemon, as a service manager does.
    pub fn start_by_manager(stage: &Stage, arguments: &[&str]) -> Option<Broker> {
        Broker::launch(stage, arguments, true)
    }

    fn launch(stage: &Stage, arguments: &[&str], is_kept: bool) -> Option<Broker> {
        Broker::launch_at(stage, arguments, is_kept, None)
    }

    fn launch_at(stage: &Stage, arguments: &[&str], is_kept: bool, network: Option<&str>) -> Option<Broker> {
        if !is_root() {
            skip("needs root to act as several users");
            return None;
        }
        fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).expect("a folder for all users");
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_string()).collect();
        let socket = stage.path(&format!("broker{}.sock", network.unwrap_or_default()));
        let kept = is_kept.then(|| listening(&socket));
        let daemon = launch(stage, &socket, &arguments, kept.as_ref(), network);
        Some(Broker { daemon, arguments, socket, kept, network: network.map(str::to_string) })
    }

    /// Kills the daemon; another one takes its place.
    pub fn replace(&mut self, stage: &Stage) {
        self.kill();
        self.start_anew(stage);
    }

    /// Another daemon takes the place of a daemon that has ended.
    pub fn start_anew(&mut self, stage: &Stage) {
        self.daemon = launch(stage, &self.socket, &self.arguments, self.kept.as_ref(), self.network.as_deref());
    }

    /// Ends the daemon in order.
    pub fn end(&mut self) {
        self.signal(libc::SIGTERM);
        let status = self.daemon.wait(Duration::from_secs(30));
        assert!(status.is_some_and(|it| it.success()), "{status:?}\n{}", self.said());
    }

    /// Kills the daemon.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        assert!(self.daemon.wait(Duration::from_secs(30)).is_some(), "it does not die");
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

/// The socket of a daemon that ends with this process.
pub fn of_this_process() -> &'static str {
    let folder = tempfile::tempdir().expect("a folder").keep();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a folder for all users");
    let (socket, log) = (folder.join("broker.sock"), folder.join("log"));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(library::daemon()).args(["--foreground", "--group", GROUP.0, "--socket"]);
    command.arg(&socket);
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

/// A socket as the daemon and its clients have.
fn of_packets() -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    socket.expect("a socket of sequential packets")
}

/// A socket at which all users may ask, without a daemon yet.
fn listening(path: &std::path::Path) -> OwnedFd {
    let socket = of_packets();
    bind(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("a name for the socket");
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("a socket for all users");
    listen(&socket, 512).expect("a socket that listens");
    // Not the number that the daemon gets it by: dup2 would leave that one as it is.
    rustix::io::fcntl_dupfd_cloexec(&socket, 10).expect("a descriptor")
}

/// As a service manager does: the socket is descriptor 3, and meant for the process that LISTEN_PID names.
const HAND_OVER: &str = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"";

fn launch(
    stage: &Stage,
    socket: &std::path::Path,
    arguments: &[String],
    kept: Option<&OwnedFd>,
    network: Option<&str>,
) -> Group {
    let program = match (kept, network) {
        (Some(_), _) => "sh".as_ref(),
        (None, Some(_)) => "nsenter".as_ref(),
        (None, None) => library::daemon().as_os_str(),
    };
    let mut command = Command::new(program);
    library::plain(&mut command);
    if let Some(process) = network {
        command.args(["-t", process, "--net"]).arg(library::daemon());
    }
    if let Some(kept) = kept {
        command.args(["-c", HAND_OVER, "sh"]).arg(library::daemon());
        let number = kept.as_raw_fd();
        // SAFETY: only dup2 is called, which may be called between fork and exec; both numbers are the child's own.
        unsafe {
            command.pre_exec(
                move || if libc::dup2(number, 3) == 3 { Ok(()) } else { Err(std::io::Error::last_os_error()) },
            )
        };
    }
    command.args(["--foreground", "--log", "debug", "--group", GROUP.0, "--socket"]).arg(socket).args(arguments);
    let mut daemon = stage.start(command);
    await_listening(&mut daemon);
    daemon
}

/// Waits until the daemon's log says that it listens. (A client that looked would leave traces in the daemon.)
fn await_listening(daemon: &mut Group) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !daemon.said().contains("underpassd listens") {
        let ended = daemon.wait(Duration::from_millis(2));
        assert!(ended.is_none() && Instant::now() < deadline, "it does not listen: {ended:?}\n{}", daemon.said());
    }
}

/// A connection to the daemon at this socket, as the library has one.
pub fn dial(socket: impl rustix::path::Arg) -> OwnedFd {
    let client = of_packets();
    connect(&client, &SocketAddrUnix::new(socket).expect("a short path")).expect("a daemon");
    client
}

/// How many connections the daemon at this socket has had meet, as it tells root.
pub fn meetings(socket: &str) -> u64 {
    let client = dial(socket);
    rustix::io::write(&client, &Inquiry { token: 1, mark: 1 }.emit()).expect("an inquiry");
    let mut octets = [0; state::LEN + 1];
    let len = rustix::io::read(&client, &mut octets[..]).expect("an answer");
    State::parse(&octets[..len]).expect("a state").counts.expect("told to root").meetings
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

    /// User `uid` in group `gid`, in the IPC namespace of the process that /proc has by this name.
    pub fn beside(process: &str, uid: u32, gid: u32) -> User {
        User { run: Run::of_user_beside(uid, process), uid, gid }
    }

    /// A member of [`GROUP`].
    pub fn member(uid: u32) -> User {
        User::new(uid, GROUP.1)
    }

    /// A user that /etc/passwd knows, as a member of [`GROUP`]. If there is none, says so, and the test is skipped.
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

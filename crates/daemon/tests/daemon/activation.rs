//! Under a service manager: a socket that is handed over, the word that the daemon is ready, and systemd's units.

use super::client::{Client, PATIENCE_S};
use super::daemon::{Daemon, UNDERPASSD, is_root};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A shell makes its standard input descriptor 3, as a service manager would.
const HAND_OVER: &str = "exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"";

struct Place {
    folder: tempfile::TempDir,
}

/// A daemon that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    /// A folder that every user may enter.
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A socket that listens, of the kind.
    fn socket(&self, kind: SocketType) -> OwnedFd {
        let it = socket(AddressFamily::UNIX, kind, None).unwrap();
        let _ = fs::remove_file(self.path("socket"));
        bind(&it, &SocketAddrUnix::new(self.path("socket")).unwrap()).unwrap();
        listen(&it, 16).unwrap();
        it
    }

    /// A daemon that is handed this.
    fn command(&self, socket: OwnedFd) -> Command {
        self.command_by(&["setpriv", "--pdeathsig", "KILL"], UNDERPASSD, socket, &["--no-bpf"])
    }

    /// A daemon that is handed this, by a command that executes it.
    fn command_by(&self, by: &[&str], program: &str, socket: OwnedFd, arguments: &[&str]) -> Command {
        let mut command = Command::new(by[0]);
        command.args(&by[1..]).args(["sh", "-c", HAND_OVER, "sh", program, "--foreground", "--group", "root"]);
        command.args(arguments).stdin(socket).stderr(Stdio::null());
        command
    }
}

#[test]
fn a_socket_is_taken_over_and_its_name_stays() {
    let place = Place::new();
    let socket = place.socket(SocketType::SEQPACKET);
    let manager = UnixDatagram::bind(place.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(PATIENCE_S as u64))).unwrap();
    for _ in 0..2 {
        let mut command = place.command(socket.try_clone().unwrap());
        let mut daemon = Ends(command.env("NOTIFY_SOCKET", place.path("notify")).spawn().unwrap());
        let heard = || {
            let mut octets = [0; 512];
            let len = manager.recv(&mut octets).unwrap();
            String::from_utf8(octets[..len].to_vec()).unwrap()
        };
        let first = heard();
        assert!(first.lines().any(|it| it == "READY=1"), "{first}");
        assert!(first.contains("STATUS=proves connections by addresses"), "{first}");
        let late = Client::connect(&place.path("socket")).unwrap();
        assert!(late.state().abilities.addresses);
        kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
        assert_eq!(heard().trim_end(), "STOPPING=1");
        assert!(daemon.0.wait().unwrap().success());
        assert!(place.path("socket").exists());
    }
}

#[test]
fn a_client_that_was_there_before_the_daemon_is_served() {
    let place = Place::new();
    let socket = place.socket(SocketType::SEQPACKET);
    let early = Client::connect(&place.path("socket")).unwrap();
    let _daemon = Ends(place.command(socket).spawn().unwrap());
    assert!(early.state().abilities.addresses);
}

/// The daemon runs as systemd runs it: not as root, with the capabilities that the unit gives it.
#[test]
fn two_capabilities_are_enough() {
    if !is_root() || !Daemon::start(&[]).has_numbers() {
        return;
    }
    let place = Place::new();
    let program = place.path("underpassd").display().to_string();
    // By another process: a program cannot be executed while a child of this one has it open to be written.
    assert!(Command::new("cp").args([UNDERPASSD, &program]).status().unwrap().success());
    let by = [
        "setpriv",
        "--reuid=61001",
        "--regid=61001",
        "--clear-groups",
        "--bounding-set=-all,+bpf,+net_admin",
        "--inh-caps=-all,+bpf,+net_admin",
        "--ambient-caps=-all,+bpf,+net_admin",
        "--no-new-privs",
    ];
    let socket = place.socket(SocketType::SEQPACKET);
    let _daemon = Ends(place.command_by(&by, &program, socket, &[]).spawn().unwrap());
    let state = Client::connect(&place.path("socket")).unwrap().state();
    assert!(state.abilities.numbers && state.abilities.addresses, "{state:?}");
    assert!(state.counts.is_some(), "root is told of a daemon of another user");
}

#[test]
fn anything_else_that_is_handed_over_is_refused() {
    let place = Place::new();
    let refused = |socket: OwnedFd, what: &str| {
        let said = place.command(socket).stderr(Stdio::piped()).output().unwrap();
        let log = String::from_utf8(said.stderr).unwrap();
        assert_eq!(said.status.code(), Some(3));
        assert!(log.contains(what) && log.contains("ListenSequentialPacket="), "{log}");
    };
    refused(place.socket(SocketType::STREAM), "something else than a Unix socket of sequential packets");
    refused(socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap(), "a socket that does not listen");
    refused(fs::File::open("/dev/null").unwrap().into(), "something else than a Unix socket");
}

/// systemd's units with this daemon in the place of the daemon that is installed.
fn units(place: &Place) -> [PathBuf; 2] {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    ["underpassd.socket", "underpassd.service"].map(|name| {
        let text = fs::read_to_string(packaging.join(name)).unwrap();
        let text = text.replace("/usr/sbin/underpassd", UNDERPASSD);
        fs::write(place.path(name), text).unwrap();
        place.path(name)
    })
}

/// What `systemd-analyze` says; `None`, said aloud, where there is none.
fn analyze(arguments: &[&str], units: &[PathBuf]) -> Option<Output> {
    match Command::new("systemd-analyze").args(arguments).args(units).output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("SKIPPED: systemd-analyze ({error})");
            None
        }
    }
}

#[test]
fn systemd_takes_the_units() {
    let place = Place::new();
    let units = units(&place);
    let Some(said) = analyze(&["verify", "--man=no", "--generators=no"], &units) else { return };
    let log = String::from_utf8_lossy(&said.stderr).into_owned();
    // Other units of this system may have faults of their own.
    let ours: Vec<&str> = log.lines().filter(|line| line.contains("underpassd")).collect();
    assert!(said.status.success() && ours.is_empty(), "{log}");
}

/// By default systemd sends SIGTERM to all processes of a service at once. The daemon's own process that closes
/// connections would end first, now and then, and the daemon would take its end for a fault and exit with 1, so that
/// a stop or a restart counted as a failure. With `mixed` the signal is for the daemon alone. With `process`, children
/// whose closes wait would stay behind.
#[test]
fn a_stop_is_for_the_daemon_alone() {
    let place = Place::new();
    let [_, service] = units(&place);
    let text = fs::read_to_string(service).unwrap();
    let modes: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("KillMode=")).collect();
    assert_eq!(modes, ["mixed"]);
}

/// Before Linux 5.11, tables of BPF programs count as locked memory, of which systemd allows a service less.
#[test]
fn the_service_has_room_for_its_tables() {
    let place = Place::new();
    let [_, service] = units(&place);
    let text = fs::read_to_string(service).unwrap();
    let limit = text.lines().find_map(|line| line.strip_prefix("LimitMEMLOCK=")?.strip_suffix('M')).unwrap();
    assert!(limit.parse::<u64>().unwrap() >= 16, "{limit}");
}

/// With a limit of starts systemd gives up at last, and all programs stay on kernel TCP.
#[test]
fn it_is_started_anew_however_often_it_fails() {
    let place = Place::new();
    let [_, service] = units(&place);
    let text = fs::read_to_string(service).unwrap();
    let value = |of: &str| text.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix('='));
    assert_eq!([value("Restart"), value("StartLimitIntervalSec")], [Some("on-failure"), Some("0")]);
    // The library waits for a second where a connection is lost without the daemon.
    let pause = value("RestartSec").and_then(|it| it.strip_suffix("ms")).unwrap();
    assert!(pause.parse::<u64>().unwrap() <= 500, "{pause}");
    // What does not pass by itself: see the exit codes of `options.rs`.
    assert_eq!(value("RestartPreventExitStatus"), Some("2 3"));
}

#[test]
fn it_takes_the_locked_memory_that_it_may_have() {
    let daemon = Daemon::start_by(&["prlimit", "--memlock=4096:"], &[]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let limits = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap();
    let [soft, hard] = [0, 1].map(|at| limits.split_whitespace().nth(at));
    assert_eq!(soft, hard, "{limits}");
    daemon.finish();
}

#[test]
fn the_service_is_confined() {
    let place = Place::new();
    let [_, service] = units(&place);
    let Some(said) = analyze(&["security", "--offline=yes", "--threshold=25", "--no-pager"], &[service]) else {
        return;
    };
    let log = String::from_utf8_lossy(&said.stdout).into_owned();
    if String::from_utf8_lossy(&said.stderr).contains("unrecognized option") {
        return println!("SKIPPED: systemd-analyze is older than 250");
    }
    assert!(said.status.success(), "its exposure is above 2.5 of 10:\n{log}");
}

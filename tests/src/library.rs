//! The library under test, and what it did in a run.
#![allow(unsafe_code, reason = "takes another user's identity, in another namespace, to make that user's counters")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use underpass_segment::stats::{ProcessStats, Region};

/// Settings under which a connection goes up at once.
pub const AT_ONCE: &[(&str, &str)] = &[("UNDERPASS_GO_UP_MESSAGES", "0"), ("UNDERPASS_GO_UP_BYTES", "0")];

/// Programs started together: they share one set of counters.
pub struct Run {
    region: Region,
}

impl Run {
    /// A run of this user's programs.
    pub fn new() -> Run {
        Run { region: Region::create().expect("shared memory for the counters") }
    }

    /// A run of the programs of user `uid`: the library takes counters only from its own user.
    pub fn of_user(uid: u32) -> Run {
        Run::made(uid, None)
    }

    /// A run of the programs of user `uid` in the IPC namespace of the process that /proc has by this name.
    pub fn of_user_beside(uid: u32, process: &str) -> Run {
        let namespace = format!("/proc/{process}/ns/ipc");
        Run::made(uid, Some(File::open(&namespace).unwrap_or_else(|error| panic!("{namespace}: {error}"))))
    }

    fn made(uid: u32, namespace: Option<File>) -> Run {
        let create = move || {
            if let Some(namespace) = namespace {
                // SAFETY: no pointer among the arguments; the namespace is this thread's alone from then on.
                let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWIPC) };
                assert_eq!(entered, 0, "cannot enter an IPC namespace: {}", std::io::Error::last_os_error());
            }
            // SAFETY: no pointer among the arguments; as a bare system call it changes this thread's identity only.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
            assert_eq!(changed, 0, "cannot act as user {uid}: {}", std::io::Error::last_os_error());
            Run::new()
        };
        std::thread::spawn(create).join().expect("the thread that makes the counters")
    }

    /// Makes `command` start its program under Underpass.
    pub fn accelerate(&self, command: &mut Command, settings: &[(&str, &str)]) {
        plain(command);
        if !is_kernel_only() {
            command.env("LD_PRELOAD", path()).env("UNDERPASS_STATS", self.region.id().to_string());
            command.envs(settings.iter().copied());
        }
    }

    /// What each process that has had a connection did so far.
    pub fn processes(&self) -> Vec<ProcessStats> {
        self.region.processes()
    }

    /// Processes that had a connection and found no room for their counters.
    pub fn uncounted(&self) -> u64 {
        self.region.uncounted()
    }

    /// Connections that went fast, counted at each accelerated end, and bytes on the fast path, of the processes called
    /// `name`.
    pub fn fast(&self, name: Option<&str>) -> Fast {
        let chosen = |p: &&ProcessStats| name.is_none_or(|name| p.command.starts_with(name));
        self.processes().iter().filter(chosen).fold(Fast::default(), |sum, p| Fast {
            connections: sum.connections + p.fast,
            bytes: sum.bytes + p.fast_sent + p.fast_received,
        })
    }

    /// Fails unless processes called `name` (all but the last letters of a long name suffice) moved bytes on the fast
    /// path.
    pub fn assert_fast(&self, name: &str) {
        let fast = self.fast(Some(name));
        let moved = fast.connections > 0 && fast.bytes > 0;
        assert!(is_kernel_only() || moved, "nothing of {name} went fast:\n{}", self.table());
    }

    /// Fails if a byte of any process was on the fast path.
    pub fn assert_not_fast(&self) {
        assert_eq!(
            self.fast(None),
            Fast::default(),
            "no connection could have two accelerated ends:\n{}",
            self.table()
        );
    }

    /// All counters, for a failure's message.
    pub fn table(&self) -> String {
        self.processes().iter().map(|p| format!("  {p:?}\n")).collect()
    }
}

impl Default for Run {
    fn default() -> Run {
        Run::new()
    }
}

/// What went fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fast {
    /// Ends of connections that were on the fast path in at least one direction.
    pub connections: u64,
    /// Bytes sent and received on the fast path.
    pub bytes: u64,
}

/// Whether the tests are to run without the library, to be checked themselves.
pub fn is_kernel_only() -> bool {
    std::env::var("UNDERPASS_TEST_PATH").is_ok_and(|path| path == "kernel")
}

/// Makes `command` start its program without Underpass, whatever this process was started with.
pub fn plain(command: &mut Command) {
    command.env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"UNDERPASS_")) {
        command.env_remove(name);
    }
}

/// The library under test: as the caller says, or built once.
pub fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        given("UNDERPASS_TEST_LIBRARY").unwrap_or_else(|| {
            build(&["--release", "-p", "underpass-preload"]);
            target().join("release/libunderpass.so")
        })
    })
}

/// A library that stands for another version of this one: its structures in shared memory are laid out in another way.
/// Built once.
pub fn other_version() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build_apart("other-layout", "underpass_other_layout"))
}

/// A library that is built with `--cfg CFG`, in a folder of its own.
fn build_apart(folder: &str, cfg: &str) -> PathBuf {
    let folder = target().join(folder);
    let mut build = cargo();
    build.args(["build", "--quiet", "--release", "-p", "underpass-preload"]).current_dir(workspace());
    build.env("CARGO_TARGET_DIR", &folder).env("RUSTFLAGS", format!("--cfg {cfg}"));
    // This build need not be fast.
    build.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    assert!(build.status().expect("cargo").success(), "the library does not build with {cfg}");
    folder.join("release/libunderpass.so")
}

/// A library whose connections all meet through a broker, also those that could without it: as the caller says, or
/// built once.
pub fn always_brokered() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        given("UNDERPASS_TEST_BROKERED_LIBRARY")
            .unwrap_or_else(|| build_apart("always-brokered", "underpass_always_brokered"))
    })
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
}

/// The command: as the caller says, or built once.
pub fn command() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        given("UNDERPASS_TEST_COMMAND").unwrap_or_else(|| {
            build(&["-p", "underpass-cli"]);
            target().join("debug/underpass")
        })
    })
}

/// The daemon: as the caller says, or built once.
pub fn daemon() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        given("UNDERPASS_TEST_DAEMON").unwrap_or_else(|| {
            build(&["-p", "underpass-daemon"]);
            target().join("debug/underpassd")
        })
    })
}

/// The file that the environment variable `name` gives, if it is set.
fn given(name: &str) -> Option<PathBuf> {
    let file = std::env::var_os(name)?;
    Some(std::fs::canonicalize(&file).unwrap_or_else(|e| panic!("{name} {file:?}: {e}")))
}

fn build(what: &[&str]) {
    let mut build = cargo();
    build.args(["build", "--quiet"]).args(what).current_dir(workspace());
    assert!(build.status().expect("cargo").success(), "{what:?} does not build");
}

/// The folder of the whole project.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

/// Where builds go.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

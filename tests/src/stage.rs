//! A place for real programs: a folder, free ports, servers that end with the test, and a look at what they leave
//! behind.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

use crate::compiler::cc;
use crate::group::Group;
use crate::library::{self, Run};
use crate::{net, traces};

/// A client that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Tests of real programs take turns: two servers with their clients are more than a small machine can carry. Where a
/// test mostly waits, a few have their turn together.
const PLACES: u32 = 3;
static TAKEN: Mutex<u32> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// So many of the [`PLACES`], until it is dropped.
struct Turn(u32);

impl Turn {
    fn take(places: u32) -> Turn {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut u32| *taken + places > PLACES;
        *GIVEN_BACK.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner) += places;
        Turn(places)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        GIVEN_BACK.notify_all();
    }
}

/// What one test of real programs works with.
pub struct Stage {
    /// What the programs of this stage did.
    pub run: Run,
    folder: TempDir,
    files_before: BTreeSet<String>,
    user: Option<(u32, u32)>,
    logs: AtomicU32,
    _turn: Turn,
}

impl Stage {
    /// A stage, if all of `programs` are installed; otherwise says so, and the test is skipped.
    pub fn with(programs: &[&str]) -> Option<Stage> {
        programs.iter().all(|program| is_installed(program)).then(|| Stage::new(None, PLACES))
    }

    /// A stage for a test that mostly waits, and that others of its kind do not disturb.
    pub fn beside_others(programs: &[&str]) -> Option<Stage> {
        programs.iter().all(|program| is_installed(program)).then(|| Stage::new(None, 1))
    }

    /// A stage for programs that have to run as the user `name`, where this process runs as root.
    pub fn as_user(name: &str, programs: &[&str]) -> Option<Stage> {
        if !programs.iter().all(|program| is_installed(program)) {
            return None;
        }
        if !fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
            return Some(Stage::new(None, PLACES));
        }
        let Some(user) = user_and_group(name) else {
            skip(&format!("there is no user {name}"));
            return None;
        };
        Some(Stage::new(Some(user), PLACES))
    }

    /// Whether a program is installed that a test needs as well; otherwise says so, and the test is skipped.
    pub fn has(program: &str) -> bool {
        is_installed(program)
    }

    fn new(user: Option<(u32, u32)>, places: u32) -> Stage {
        let turn = Turn::take(places);
        let folder = tempfile::tempdir().expect("a folder");
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).expect("hand the folder over");
        }
        let run = user.map_or_else(Run::new, |(uid, _)| Run::of_user(uid));
        Stage { run, folder, files_before: traces::shared_files(), user, logs: AtomicU32::new(0), _turn: turn }
    }

    /// A path in the folder of this stage.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the folder of this stage.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), content).expect("write a file");
        self.path(name)
    }

    /// The C program `name` of `tests/fixtures`, compiled into the folder of this stage.
    pub fn compiled(&self, name: &str) -> String {
        let program = self.path(name);
        compile(&format!("{name}.c"), &program, &["-std=gnu11", "-pthread"]);
        program.into_os_string().into_string().expect("a plain path")
    }

    /// A command under Underpass.
    pub fn command<I: AsRef<OsStr>>(&self, program: &str, arguments: impl IntoIterator<Item = I>) -> Command {
        self.tuned(program, arguments, &[])
    }

    /// A command under Underpass with settings of its own.
    pub fn tuned<I: AsRef<OsStr>>(
        &self,
        program: &str,
        arguments: impl IntoIterator<Item = I>,
        settings: &[(&str, &str)],
    ) -> Command {
        let mut command = self.plain(program, arguments);
        self.run.accelerate(&mut command, settings);
        command
    }

    /// A command without Underpass.
    pub fn plain<I: AsRef<OsStr>>(&self, program: &str, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
        command.args(arguments).current_dir(self.folder.path()).env("LC_ALL", "C.UTF-8");
        library::plain(&mut command);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid).env("HOME", self.folder.path());
        }
        command
    }

    /// Starts a command that goes on by itself.
    pub fn start(&self, command: Command) -> Group {
        let number = self.logs.fetch_add(1, Ordering::Relaxed);
        Group::start(command, &self.path(&format!("said-{number}")))
    }

    /// Starts a server and waits until it listens on `port`.
    pub fn serve(&self, command: Command, port: u16) -> Group {
        let mut server = self.start(command);
        net::await_listening(&mut server, port);
        server
    }

    /// Runs a command to its successful end and returns what it said.
    pub fn output(&self, command: Command) -> String {
        self.start(command).succeed(LIMIT)
    }

    /// To be called when all programs have ended: fails if they left anything behind.
    pub fn finish(self) {
        let pids: Vec<u32> = self.run.processes().iter().map(|process| process.pid).collect();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let segments = traces::segments_of(&pids);
            let files: Vec<String> = traces::shared_files().difference(&self.files_before).cloned().collect();
            if segments.is_empty() && files.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: in /dev/shm {files:?}, System V segments {segments:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Where a file of `tests/fixtures` is.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Copies a program that is to be executed. Another process copies it: a child that another test forks meanwhile would
/// have the copy open for writing, so that it could not be executed (ETXTBSY).
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().expect("cp").success());
}

/// Compiles a C program of `tests/fixtures` to `program`.
pub fn compile(name: &str, program: &Path, flags: &[&str]) {
    cc(program, &[&["-O2"], flags].concat(), &[fixture(name)]);
}

/// The file of a program, in PATH or where Debian keeps the programs of servers.
pub fn find(program: &str) -> Option<PathBuf> {
    // The system's own come first: what else is in PATH may be a script that starts a program.
    let mut folders: Vec<PathBuf> = vec!["/usr/bin".into(), "/usr/sbin".into()];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    folders.iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn is_installed(program: &str) -> bool {
    let found = find(program).is_some();
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

/// Says that a test is skipped, and why.
pub fn skip(reason: &str) {
    assert!(std::env::var_os("UNDERPASS_TEST_REQUIRE").is_none(), "not to be skipped: {reason}");
    println!("skipped: {reason}");
}

fn user_and_group(name: &str) -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let fields: Vec<&str> = users.lines().map(|line| line.split(':').collect()).find(|f: &Vec<&str>| f[0] == name)?;
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

/// The arguments and settings of a run, and what it says.
pub type Said<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);

/// Runs a fixture so. Its connections go fast.
pub fn assert_says(fixture: &str, runs: &[Said<'_>]) {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.compiled(fixture);
    for &(arguments, settings, said) in runs {
        assert_eq!(stage.output(stage.tuned(&program, arguments, settings)).trim(), said, "{arguments:?}");
    }
    stage.run.assert_fast(fixture);
    stage.finish();
}

//! Starting the command in a known environment.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{fs, thread};

use tempfile::TempDir;

/// The command under test.
pub const UNDERPASS: &str = env!("CARGO_BIN_EXE_underpass");

/// Longest wait for anything to happen; a test that needs it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A library that does nothing but look like ours to the command. What is tested here is the command; `/proc/PID/maps`
/// tells whether it was loaded.
pub static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libunderpass-probe-{}.so", std::process::id()));
    assert!(compile("int UNDERPASS_LIBRARY = 1;", &["-shared", "-fPIC"], &path), "rustc needs cc, so it is here");
    path
});

/// `underpass ARGUMENTS…` with the library above and no other variable or file of ours in its way.
pub fn underpass(arguments: &[&str]) -> Command {
    let mut command = Command::new(UNDERPASS);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("UNDERPASS_") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD").env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs `underpass ARGUMENTS…` to its end.
pub fn output(arguments: &[&str]) -> Output {
    underpass(arguments).output().unwrap()
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Compiles a C program; `false` if the compiler cannot.
pub fn compile(source: &str, flags: &[&str], to: &Path) -> bool {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("program.c");
    fs::write(&file, source).unwrap();
    let status = Command::new("cc").args(flags).arg("-o").arg(to).arg(&file).stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

/// Says that a test did not run, and why; a missing privilege or tool is not a pass.
pub fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// Copies a program that is to be executed. By another process: what another test forks meanwhile would have the copy
/// open for writing, and nobody could execute it (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    assert!(Command::new("cp").args([from.as_ref(), to.as_ref()]).status().unwrap().success());
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t")
}

/// Waits until `probe` finds something.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// State letter of a process (proc_pid_stat(5)); `None` once it is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Sends a signal by name, as a user would.
pub fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
}

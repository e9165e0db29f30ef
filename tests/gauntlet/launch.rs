//! Running a program of a suite on the kernel or under Underpass, in a network namespace of its own.

use crate::place::Place;
use crate::verdict::Verdict;
use anyhow::{Context, Result};
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::ops::AddAssign;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use underpass_segment::reason::Reason;
use underpass_tests::group::Group;
use underpass_tests::library::{self, AT_ONCE};

/// A way for the bytes.
pub struct Path {
    /// What people call it.
    pub name: &'static str,
    /// Settings of Underpass; `None`: without it.
    settings: Option<&'static [(&'static str, &'static str)]>,
}

/// The kernel is the first.
pub const PATHS: &[Path] = &[
    Path { name: "kernel", settings: None },
    Path { name: "default", settings: Some(&[]) },
    // A suite whose connections are short proves nothing otherwise.
    Path { name: "at once", settings: Some(AT_ONCE) },
];

/// Ends of connections that carried something, and how many of them were fast at some time.
#[derive(Clone, Copy, Default)]
pub struct Fast {
    ends: u64,
    fast: u64,
}

impl AddAssign for Fast {
    fn add_assign(&mut self, other: Fast) {
        self.ends += other.ends;
        self.fast += other.fast;
    }
}

impl Fast {
    /// "41 % of 1234".
    pub fn share(&self) -> String {
        if self.ends == 0 {
            return "no connections".into();
        }
        format!("{:.1} % of {}", self.fast as f64 * 100.0 / self.ends as f64, self.ends)
    }

    /// For a script.
    pub fn json(self) -> serde_json::Value {
        serde_json::json!({ "ends": self.ends, "fast": self.fast })
    }
}

/// The command that accelerates.
pub struct Launch {
    underpass: PathBuf,
    library: PathBuf,
}

impl Launch {
    /// With the release build of the library and the development build of the command, which only starts programs.
    /// Builds what is missing.
    pub fn new() -> Result<Launch> {
        let absolute = |path: &std::path::Path| path.canonicalize().with_context(|| format!("find {}", path.display()));
        Ok(Launch { underpass: absolute(library::command())?, library: absolute(library::path())? })
    }

    /// What runs a part of a suite on `path`.
    pub fn on<'a>(&'a self, path: &'a Path, place: &'a Place, part: &str) -> Run<'a> {
        let file =
            |kind: &str| place.path(&format!("{}-{}.{kind}", part.replace('/', "-"), path.name.replace(' ', "-")));
        Run { launch: self, path, log: file("log"), stats: file("stats"), fast: Cell::default() }
    }
}

/// One run of a part.
pub struct Run<'a> {
    launch: &'a Launch,
    path: &'a Path,
    /// Where all that it says goes.
    pub log: PathBuf,
    stats: PathBuf,
    /// Of all programs that it has run.
    fast: Cell<Fast>,
}

/// What runs a command as `user`, which takes root.
fn become_user(user: &str) -> [&str; 7] {
    ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]
}

/// Fails where `user` could not run what lies in the folder of builds.
pub fn may_run(user: &str, place: &Place) -> Result<()> {
    let own = std::env::current_exe().context("find this program")?;
    let command = become_user(user);
    let arguments = command[1..].iter().copied().chain(["test", "-x"]).map(OsStr::new).chain([own.as_os_str()]);
    place.step(std::path::Path::new("/"), command[0], arguments).with_context(|| {
        format!(
            "the user {user}, as whom this suite runs, cannot run {}: run the gauntlet as root, with CARGO_TARGET_DIR \
             in a folder that everybody may enter",
            own.display()
        )
    })
}

/// What a program said, and how it ended.
pub struct Said {
    /// Standard output and error.
    pub text: String,
    /// Whether it ended with 0.
    succeeded: bool,
    /// Whether it did not end in time.
    hung: bool,
}

impl Said {
    /// Of the program as a whole, whatever it said.
    pub fn verdict(&self) -> Verdict {
        match (self.hung, self.succeeded) {
            (true, _) => Verdict::Hung,
            (_, true) => Verdict::Passed,
            (_, false) => Verdict::Failed,
        }
    }

    /// Of a program whose exit code its tests have told already.
    pub fn came_to_its_end(&self) -> Verdict {
        if self.hung { Verdict::Hung } else { Verdict::Passed }
    }
}

impl Run<'_> {
    /// Runs `program` in `folder`, for `limit` at most. Its network namespace has nothing but a loopback of its own.
    pub fn run<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
        folder: &std::path::Path,
        environment: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Said> {
        self.run_as(None, program, arguments, folder, environment, limit)
    }

    /// Runs `program` in `folder` as `user`; see [`may_run`].
    pub fn run_as<A: AsRef<OsStr>>(
        &self,
        user: Option<&str>,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
        folder: &std::path::Path,
        environment: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Said> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        let _ = fs::remove_file(&self.stats);
        if let Some(user) = user {
            command.args(become_user(user));
            // The user may write the report into this file, but make none beside the root's.
            fs::File::create(&self.stats)?.set_permissions(fs::Permissions::from_mode(0o666))?;
        }
        if let Some(settings) = self.path.settings {
            command.arg(&self.launch.underpass).args(["run", "--quiet", "--json"]);
            command.arg(format!("--stats={}", self.stats.display()));
            for (name, value) in settings {
                let key = name.trim_start_matches("UNDERPASS_").to_lowercase();
                command.args(["--set", &format!("{key}={value}")]);
            }
            command.arg("--");
        }
        command.arg(program).args(arguments).current_dir(folder);
        library::plain(&mut command);
        command.env("UNDERPASS_LIBRARY", &self.launch.library);
        command.envs(environment.iter().copied()).env("LC_ALL", "C.UTF-8").env("TERM", "dumb");
        let mut group = Group::start(command, &self.log);
        let status = group.wait(limit);
        let mut text = group.said();
        if status.is_none() {
            text.push_str(&group.where_it_is());
            fs::write(&self.log, &text).with_context(|| format!("write {}", self.log.display()))?;
        }
        let mut fast = self.fast.get();
        fast += self.counted()?;
        self.fast.set(fast);
        Ok(Said { text, succeeded: status.is_some_and(|status| status.success()), hung: status.is_none() })
    }

    /// What went fast in all programs that were run.
    pub fn fast(&self) -> Fast {
        self.fast.get()
    }

    /// What went fast in the last one; a program that was killed does not tell.
    fn counted(&self) -> Result<Fast> {
        let text = fs::read_to_string(&self.stats).unwrap_or_default();
        if text.is_empty() {
            return Ok(Fast::default());
        }
        let stats: serde_json::Value =
            serde_json::from_str(&text).with_context(|| format!("read {}", self.stats.display()))?;
        let count = |name: &str| stats["total"][name].as_u64().unwrap_or_default();
        let processes = stats["processes"].as_array().into_iter().flatten();
        let reasons = processes.flat_map(|process| process["reasons"].as_array().into_iter().flatten());
        let unused = reasons.filter(|it| it["reason"] == Reason::Unused.key());
        let unused: u64 = unused.filter_map(|it| it["connections"].as_u64()).sum();
        Ok(Fast { ends: count("connections").saturating_sub(unused), fast: count("fast") })
    }
}

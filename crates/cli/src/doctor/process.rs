//! What stands in the way of a process that runs already.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Finding, program};
use crate::library::NAME;
use crate::sys;

/// Why a process cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is none.
    #[error("there is no process {0}; `ps` and `pgrep` tell the numbers. A program of this name is meant by ./{0}")]
    None(u32),
    /// It belongs to somebody else.
    #[error("process {pid} belongs to user {user}: say it as that user, or as root")]
    Foreign {
        /// Its number.
        pid: u32,
        /// Its user's number.
        user: u32,
    },
    /// The kernel does not show it.
    #[error("cannot read {}: {error}; is the process just ending, or /proc not mounted?", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
}

/// The process that `text` means, if it means one.
pub fn number(text: &OsStr) -> Option<u32> {
    text.to_str()?.parse().ok()
}

/// Looks at process `pid`.
pub fn look(pid: u32) -> Result<(String, Vec<Finding>), ProcessError> {
    let of = Path::new("/proc").join(pid.to_string());
    let status = match fs::read_to_string(of.join("status")) {
        Ok(status) => status,
        Err(error) if error.kind() == io::ErrorKind::NotFound && Path::new("/proc/self").exists() => {
            return Err(ProcessError::None(pid));
        }
        Err(error) => return Err(ProcessError::Unreadable { path: of.join("status"), error }),
    };
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()).unwrap_or_default()
    };
    let user = field("Uid").parse().unwrap_or(u32::MAX);
    let (me, _) = sys::real_ids();
    let readable = |name: &str| {
        let path = of.join(name);
        fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied if user != me => ProcessError::Foreign { pid, user },
            _ => ProcessError::Unreadable { path, error },
        })
    };
    let maps = readable("maps")?;
    let command: Vec<String> = readable("cmdline")?.split_terminator('\0').map(String::from).collect();
    let exe = fs::read_link(of.join("exe")).map(|it| it.display().to_string()).unwrap_or_else(|_| field("Name").into());

    let mut findings = program::file(&of.join("exe"), &exe);
    findings.push(if maps.lines().any(|line| line.ends_with(NAME)) {
        Finding::fine("process", "it has loaded the library")
    } else {
        Finding::bars(
            "process",
            "it was started without Underpass",
            format!("start it anew: underpass run -- {}", command.join(" ")),
        )
    });
    if user != me {
        let text = format!("it runs as user {user}, and this is user {me}");
        findings.push(Finding::mind("user", text, format!("the other ends have to run as user {user}")));
    }
    // Underpass's own, which denies io_uring, is one.
    if field("Seccomp_filters").parse().is_ok_and(|filters: u32| filters > 1) || field("Seccomp") == "1" {
        findings.push(Finding::mind(
            "seccomp",
            "it is confined by seccomp: if it did that itself, the connections that it makes from then on stay on kernel TCP",
            "`underpass run --stats` says of how many that is so; switch the program's sandbox off if it can be",
        ));
    }
    for (kind, what) in [("net", "network"), ("ipc", "IPC"), ("user", "user"), ("pid", "PID")] {
        let namespace = |of: &Path| fs::read_link(of.join("ns").join(kind)).ok();
        if let (Some(its), Some(ours)) = (namespace(&of), namespace(Path::new("/proc/self")))
            && its != ours
        {
            let text = format!("it has a {what} namespace of its own");
            findings.push(Finding::mind(
                "namespace",
                text,
                "the other ends have to run in the same (one container, or one pod)",
            ));
        }
    }
    let descriptors = fs::read_dir(of.join("fd")).into_iter().flatten().flatten();
    let rings =
        descriptors.filter(|it| fs::read_link(it.path()).is_ok_and(|to| to.ends_with("anon_inode:[io_uring]"))).count();
    if rings > 0 {
        findings.push(Finding::mind(
            "io_uring",
            "it uses io_uring, and what goes through that stays on kernel TCP",
            "leave io_uring = \"allow\" out of its settings",
        ));
    }
    Ok((format!("process {pid} ({})", field("Name")), findings))
}

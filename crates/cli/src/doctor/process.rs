//! What stands in the way of a process that runs already.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use underpass_segment::config::{Config, IoUring, KEYS};

use super::{Finding, program};
use crate::library;
use crate::run::inspect;
use crate::settings::variable;
use crate::sys;

/// Subject of the finding that the kernel hides the descriptors of a process.
pub const DESCRIPTORS: &str = "descriptors";

/// Why a process cannot be looked at. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is none.
    #[error("there is no process {0}; `ps` and `pgrep` tell the numbers. A program of this name is meant by ./{0}")]
    None(String),
    /// There was one a moment ago.
    #[error("process {0} has just ended; look at its program instead, by name")]
    Gone(String),
    /// It waits for its parent to take note of its end.
    #[error(
        "process {0} has ended, and its parent has not taken note of that yet; look at its program instead, by name"
    )]
    Zombie(String),
    /// The process is a thread of the kernel, and runs no program.
    #[error("process {0} ({1}) belongs to the kernel itself and runs no program; name one that does")]
    Kernel(String, String),
    /// The process belongs to another user.
    #[error("process {pid} belongs to user {user}: say it as that user, or as root")]
    Foreign {
        /// Its number.
        pid: String,
        /// Its user's number.
        user: u32,
    },
    /// The kernel hides it, as it does where a program has changed its user, forbidden core dumps or has more power.
    #[error(
        "the kernel hides process {0} from its own user: say it as root, and outside of a container that limits root"
    )]
    Hidden(String),
    /// The kernel does not show it.
    #[error("cannot read {}: {error}; mount /proc, or let the sandbox show it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
}

/// What a process shows of itself.
pub struct Process {
    /// For people.
    pub name: String,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What it was configured with by its environment, if it runs under Underpass.
    pub config: Option<Config>,
}

/// The process that `text` means, if it means one; the number may be of none.
pub fn number(text: &OsStr) -> Option<&str> {
    text.to_str().filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
}

/// Looks at process `pid`.
pub fn look(pid: &str) -> Result<Process, ProcessError> {
    let own = Path::new("/proc/self");
    // Parsed, since leading zeros are allowed; a text that does not parse or fit is the number of no process.
    let Ok(number) = pid.parse::<u32>() else { return Err(ProcessError::None(pid.into())) };
    let of = Path::new("/proc").join(number.to_string());
    let status = status(pid, &of)?;
    let user = field(&status, "Uid").parse().unwrap_or(u32::MAX);
    let (me, _) = sys::real_ids();
    let read = |name: &str| readable(pid, &of.join(name), user);
    let (maps, command, environment) = (read("maps")?, read("cmdline")?, read("environ")?);
    let exe = fs::read_link(of.join("exe"))
        .map(|it| it.display().to_string())
        .unwrap_or_else(|_| field(&status, "Name").into());

    let mut findings = Vec::new();
    let loaded = loaded(&maps);
    let config = loaded.is_some().then(|| configuration(&environment));
    match loaded {
        Some(library) => findings.extend(loads(library)),
        None => findings.extend(does_not_load(&of.join("exe"), &exe, &command)),
    }
    findings.extend(config.as_ref().map(configured));
    if user != me {
        let text = format!("it runs as user {user}, and this is user {me}");
        findings.push(Finding::mind("user", text, format!("the other ends have to run as user {user}")));
    }
    findings.extend(hides_descriptors(&of, user));
    findings.extend(confined(&status, &fs::read_to_string(own.join("status")).unwrap_or_default(), config));
    findings.extend(other_namespaces(&of, own));
    findings.extend(uses_io_uring(&of));
    Ok(Process { name: format!("process {pid} ({})", field(&status, "Name")), findings, config })
}

/// What /proc/PID/status, below `of`, says of a process that can be looked at.
fn status(pid: &str, of: &Path) -> Result<String, ProcessError> {
    let path = of.join("status");
    let status = fs::read_to_string(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if Path::new("/proc/self").exists() => ProcessError::None(pid.into()),
        _ if error.raw_os_error() == Some(libc::ESRCH) => ProcessError::Gone(pid.into()),
        _ => ProcessError::Unreadable { path, error },
    })?;
    if field(&status, "State") == "Z" {
        return Err(ProcessError::Zombie(pid.into()));
    }
    let (me, _) = sys::real_ids();
    let has_program = !field(&status, "VmSize").is_empty() || of.join("exe").exists();
    if field(&status, "Kthread") == "1" || !has_program && me == 0 {
        return Err(ProcessError::Kernel(pid.into(), field(&status, "Name").into()));
    }
    Ok(status)
}

/// A file of a process, which runs as `user`.
fn readable(pid: &str, path: &Path, user: u32) -> Result<String, ProcessError> {
    let (me, _) = sys::real_ids();
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) if user != me => ProcessError::Foreign { pid: pid.into(), user },
            Some(libc::EACCES | libc::EPERM) => ProcessError::Hidden(pid.into()),
            Some(libc::ENOENT | libc::ESRCH) => ProcessError::Gone(pid.into()),
            _ => ProcessError::Unreadable { path: path.into(), error },
        }
    })
}

/// What is to be said of a process without the library, and of its program.
fn does_not_load(file: &Path, exe: &str, command: &str) -> Vec<Finding> {
    let mut findings = program::file(file, exe);
    if inspect::obstacle(file).is_none() {
        let remedy = format!("start it anew: underpass run -- {}", command_line(command, exe));
        findings.push(Finding::bars("process", "it was started without Underpass", remedy));
    }
    findings
}

/// The kernel gives root what a process must not show to its own user (proc(5), "/proc/pid").
fn hides_descriptors(of: &Path, user: u32) -> Option<Finding> {
    let hidden = fs::metadata(of.join("fd")).is_ok_and(|meta| meta.uid() != user);
    hidden.then(|| {
        Finding::bars(
            DESCRIPTORS,
            "the kernel hides its descriptors from its own user, so that it cannot prove which connections it holds",
            format!("start it as user {user}, rather than as another that becomes {user} (or let it allow core dumps)"),
        )
    })
}

/// The namespaces that are others than those of the process whose folder of /proc is `own`.
fn other_namespaces(of: &Path, own: &Path) -> Vec<Finding> {
    const KINDS: [(&str, &str); 4] = [("net", "network"), ("ipc", "IPC"), ("user", "user"), ("pid", "PID")];
    let namespace = |of: &Path, kind: &str| fs::read_link(of.join("ns").join(kind)).ok();
    let differs = |kind: &str| namespace(of, kind).zip(namespace(own, kind)).is_some_and(|(its, ours)| its != ours);
    let finding = |what: &str| {
        Finding::mind(
            "namespace",
            format!("it has another {what} namespace than this command"),
            "the other ends have to run in the same, or both have to reach underpassd; so has this command, to look at \
             it",
        )
    };
    KINDS.into_iter().filter(|(kind, _)| differs(kind)).map(|(_, what)| finding(what)).collect()
}

fn uses_io_uring(of: &Path) -> Option<Finding> {
    let descriptors = fs::read_dir(of.join("fd")).into_iter().flatten().flatten();
    let mut links = descriptors.filter_map(|it| fs::read_link(it.path()).ok());
    links.any(|to| to == Path::new("anon_inode:[io_uring]")).then(|| {
        Finding::mind(
            "io_uring",
            "it uses io_uring, so that its connections stay on kernel TCP",
            "start it anew by `underpass run --set io_uring=deny`: it is then told that the system has none",
        )
    })
}

/// The first word of a line of /proc/PID/status.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or_default()
}

/// The file of the library, as /proc/PID/maps names it.
pub fn loaded(maps: &str) -> Option<&str> {
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    files.into_iter().find(|file| file.rsplit('/').next().is_some_and(library::is_library_name))
}

fn loads(library: &str) -> Vec<Finding> {
    const SUBJECT: &str = "process";
    if let Some(file) = library.strip_suffix(" (deleted)") {
        return vec![Finding::mind(
            SUBJECT,
            format!("it has loaded the library {file}, which has been replaced since"),
            "start it anew, so that all ends have the same version",
        )];
    }
    let ours = library::find().ok().and_then(|path| fs::canonicalize(path).ok());
    match ours {
        Some(ours) if ours != Path::new(library) => vec![Finding::mind(
            SUBJECT,
            format!("it has loaded the library {library}, and `underpass run` loads {} now", ours.display()),
            "start all ends by the same command, unless both are of one version",
        )],
        _ => vec![Finding::fine(SUBJECT, format!("it has loaded the library {library}"))],
    }
}

/// As the library itself reads it: what does not fit is as good as not there.
pub fn configuration(environment: &str) -> Config {
    let mut config = Config::default();
    for entry in environment.split_terminator('\0') {
        let Some((name, value)) = entry.split_once('=') else { continue };
        if let Some(key) = KEYS.iter().find(|key| variable(key) == name) {
            let _ = config.set(key.name, value);
        }
    }
    config
}

fn configured(config: &Config) -> Finding {
    const SUBJECT: &str = "settings";
    if !config.enabled {
        return Finding::bars(
            SUBJECT,
            "it was started with mode=off (UNDERPASS_MODE in its environment)",
            "start it anew with --set mode=on",
        );
    }
    if config.io_uring == IoUring::Allow {
        return Finding::mind(
            SUBJECT,
            "it was started with io_uring=allow: once it uses io_uring, its connections stay on kernel TCP",
            "start it anew with --set io_uring=deny, if it can do without",
        );
    }
    Finding::fine(SUBJECT, "it was started with Underpass switched on")
}

/// Filters that are neither inherited by this command as well nor Underpass's own, which denies io_uring.
fn confined(its: &str, ours: &str, config: Option<Config>) -> Option<Finding> {
    let filters = |status: &str| field(status, "Seccomp_filters").parse::<u32>().unwrap_or(0);
    let denied = config.is_some_and(|config| config.io_uring == IoUring::Deny);
    let own = filters(its).saturating_sub(filters(ours)) > u32::from(denied);
    (own || field(its, "Seccomp") == "1").then(|| {
        Finding::mind(
            "seccomp",
            "it is confined by seccomp: if it did that itself, the connections that it makes from then on stay on \
             kernel TCP",
            "switch the program's own sandbox off, if it can be; `underpass run --stats` says how many connections \
             stay so",
        )
    })
}

/// What a shell would take; just the file where the process has put a title in the place of its arguments.
fn command_line(command: &str, exe: &str) -> String {
    let words: Vec<&str> = command.split_terminator('\0').collect();
    let is_program = words.first().is_some_and(|word| Path::new(word).file_name().is_some() && !word.contains(' '));
    let words = if is_program { words } else { vec![exe, "..."] };
    shlex::try_join(words).unwrap_or_else(|_| exe.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_and_nothing_else() {
        let number = |text: &str| number(OsStr::new(text)).map(String::from);
        assert_eq!(number("99999999999999999999"), Some("99999999999999999999".into()));
        assert_eq!([number("+5"), number("-5"), number("5 "), number(""), number("./5")], [const { None }; 5]);
    }

    #[test]
    fn the_library_is_known_by_its_files_name() {
        let line = "7f00-7f01 r-xp 00000000 fe:00 12   ";
        assert_eq!(loaded(&format!("{line}/a/libunderpass.so\n")), Some("/a/libunderpass.so"));
        assert_eq!(loaded(&format!("{line}/a/libunderpass.so (deleted)\n")), Some("/a/libunderpass.so (deleted)"));
        assert_eq!(loaded(&format!("{line}/a/libunderpass_segment-8f3c.rmeta\n")), None, "a compiler has that mapped");
        assert_eq!(loaded(&format!("{line}/libunderpass/libc.so.6\n{line}[heap]\n{line}\n")), None);
    }

    #[test]
    fn a_configuration_is_what_the_library_would_read() {
        let config = configuration("A=1\0UNDERPASS_MODE=off\0UNDERPASS_SPIN_US=none\0UNDERPASS_IO_URING=allow\0odd");
        assert!(!config.enabled && config.io_uring == IoUring::Allow);
        assert_eq!(config.spin_us, Config::DEFAULT.spin_us);
        assert!(configuration("").enabled);
    }

    #[test]
    fn filters_of_others_are_not_taken_for_the_programs() {
        let status = |mode: u32, filters: u32| format!("Seccomp:\t{mode}\nSeccomp_filters:\t{filters}\n");
        let denied = Some(Config { io_uring: IoUring::Deny, ..Config::DEFAULT });
        assert!(confined(&status(2, 1), &status(0, 0), denied).is_none(), "Underpass's own");
        assert!(confined(&status(2, 2), &status(2, 1), denied).is_none(), "and a container's");
        assert!(confined(&status(2, 2), &status(0, 0), denied).is_some());
        assert!(confined(&status(2, 1), &status(0, 0), None).is_some());
        assert!(confined(&status(2, 1), &status(0, 0), Some(Config::DEFAULT)).is_some());
        assert!(confined(&status(1, 0), &status(0, 0), None).is_some());
    }

    #[test]
    fn command_lines_can_be_pasted() {
        assert_eq!(command_line("/bin/sh\0-c\0echo 'a b'\0", "/bin/dash"), r#"/bin/sh -c "echo 'a b'""#);
        assert_eq!(command_line("nginx: master process\0", "/usr/sbin/nginx"), "/usr/sbin/nginx ...");
        assert_eq!(command_line("", "/bin/true"), "/bin/true ...");
    }
}

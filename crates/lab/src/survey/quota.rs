//! A share of a processor's time for some programs (cgroups(7), version 2 or 1).

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Length of the period in which a share is given, in µs. A program that has used its share waits for the next one.
const PERIOD: u32 = 10_000;
/// How the folders' names begin.
const PREFIX: &str = "underpass-survey-";

/// Why there is no share.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// This system has none.
    #[error(
        "there is no cgroup controller \"cpu\", by which an emulated SmartNIC is slowed down; mount cgroup2 at \
         /sys/fs/cgroup"
    )]
    NoController,
    /// This process may not make a control group.
    #[error("cannot make {} ({error}), by which an emulated SmartNIC is slowed down; run as root, outside of a \
             container that keeps cgroups read-only", path.display())]
    Refused {
        /// What could not be made or written.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
}

/// A control group with a limit. It goes with the value, when its processes have ended.
#[derive(Debug)]
pub struct Quota {
    folder: PathBuf,
}

impl Quota {
    /// A group whose processes together get so many per cent of one processor.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub fn new(name: &str, share: u32) -> Result<Quota, QuotaError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let (mount, second) = controller(&mounts).ok_or(QuotaError::NoController)?;
        let refused = |path: &Path| {
            let path = path.to_path_buf();
            move |error| QuotaError::Refused { path, error }
        };
        forget_stale(&mount);
        if second {
            let control = mount.join("cgroup.subtree_control");
            fs::write(&control, "+cpu").map_err(refused(&control))?;
        }
        let folder = mount.join(format!("{PREFIX}{}-{name}", std::process::id()));
        fs::create_dir(&folder).map_err(refused(&folder))?;
        let quota = Quota { folder };
        let used = PERIOD * share / 100;
        let files = if second {
            vec![("cpu.max", format!("{used} {PERIOD}"))]
        } else {
            vec![("cpu.cfs_period_us", PERIOD.to_string()), ("cpu.cfs_quota_us", used.to_string())]
        };
        for (file, value) in files {
            let path = quota.folder.join(file);
            fs::write(&path, value).map_err(refused(&path))?;
        }
        Ok(quota)
    }

    /// Has a program that is not started yet begin in the group.
    #[allow(unsafe_code, reason = "a process joins a group between fork and exec, before it starts others")]
    pub fn limit(&self, command: &mut Command) {
        let procs = self.folder.join("cgroup.procs");
        // Opened here, since the child must not allocate. 0 is the process that writes.
        let file = fs::File::options().write(true).open(&procs);
        // SAFETY: the child makes one system call on memory that both share unchanged.
        unsafe {
            command.pre_exec(move || match &file {
                Ok(file) => Ok(rustix::io::write(file, b"0").map(drop)?),
                Err(error) => Err(io::Error::from(error.kind())),
            });
        }
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Processes that were killed leave it in a moment.
        for _ in 0..100 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                _ => return,
            }
        }
    }
}

/// Groups that a killed survey has left, as far as they are empty.
fn forget_stale(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The folder where the controller is mounted, and whether it is version 2 (proc_pid_mountinfo(5)).
fn controller(mounts: &str) -> Option<(PathBuf, bool)> {
    let mut found = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(point) = before.split(' ').nth(4) else { continue };
        let mut words = after.split(' ');
        match (words.next(), words.nth(1)) {
            (Some("cgroup"), Some(options)) if options.split(',').any(|it| it == "cpu") => {
                return Some((point.into(), false));
            }
            (Some("cgroup2"), _) => {
                let controllers = fs::read_to_string(Path::new(point).join("cgroup.controllers")).unwrap_or_default();
                if controllers.split_whitespace().any(|it| it == "cpu") {
                    found = Some((point.into(), true));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::shell;
    use crate::survey::child::Child;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    #[test]
    fn the_first_version_is_found_among_mounts() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
31 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
32 23 0:28 / / rw - ext4 /dev/vda rw";
        assert_eq!(controller(mounts), Some(("/sys/fs/cgroup/cpu".into(), false)));
        assert_eq!(controller("32 23 0:28 / / rw - ext4 /dev/vda rw"), None);
    }

    #[test]
    fn a_program_gets_its_share_and_the_group_goes() {
        let quota = match Quota::new("test", 20) {
            Ok(quota) => quota,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let mut command = shell("n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done");
        quota.limit(&mut command);
        let begun = Instant::now();
        let output =
            Child::start(&mut command).unwrap().finish(Duration::from_secs(120), &AtomicBool::new(false)).unwrap();
        let share = output.processor_time.as_secs_f64() / begun.elapsed().as_secs_f64();
        assert!(share < 0.3, "{share}");
        let folder = quota.folder.clone();
        drop(quota);
        assert!(!folder.exists());
    }
}

//! How a program is started: as it is, or with the library.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::witness::{Rule, User, VARIABLE, Witness};

const PRELOAD: &str = "LD_PRELOAD";

/// One of the two that are set against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Programs as they are, on kernel TCP.
    Kernel,
    /// Programs with the library.
    Underpass,
}

impl Side {
    /// Both, in the order in which every sample takes them.
    pub const BOTH: [Side; 2] = [Side::Kernel, Side::Underpass];
}

/// The library cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("no library at {} ({source}): build it (cargo build --release) or name it in \
         UNDERPASS_LIBRARY", path.display())]
pub struct NoLibrary {
    path: PathBuf,
    source: io::Error,
}

/// Starts programs on either side.
#[derive(Clone, Debug)]
pub struct Launcher {
    library: PathBuf,
    settings: Vec<(OsString, OsString)>,
}

/// What one sample's programs are started in: all on one side, with counters of their own.
#[derive(Debug)]
pub struct Session<'a> {
    launcher: &'a Launcher,
    witness: Option<Witness>,
}

/// One figure of one sample, or why it does not count.
pub type Reading = std::result::Result<f64, String>;

impl Launcher {
    /// A launcher for the library at `library`; programs under Underpass also get `settings` as environment variables.
    ///
    /// # Errors
    /// There is no such file.
    pub fn new(library: &Path, settings: &[(OsString, OsString)]) -> std::result::Result<Launcher, NoLibrary> {
        match fs::canonicalize(library) {
            Ok(library) => Ok(Launcher { library, settings: settings.to_vec() }),
            Err(source) => Err(NoLibrary { path: library.to_path_buf(), source }),
        }
    }

    /// The library file.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// This launcher with the library at another place, for users who cannot read the first.
    pub fn with_library(&self, library: PathBuf) -> Launcher {
        Launcher { library, settings: self.settings.clone() }
    }

    /// What one sample on `side` is started in.
    ///
    /// # Errors
    /// There is no shared memory for the counters.
    pub fn session(&self, side: Side) -> Result<Session<'_>> {
        self.session_of(side, None)
    }

    /// What one sample on `side` is started in, for programs that another user will run.
    ///
    /// # Errors
    /// There is no shared memory for the counters, or this process may not act as that user.
    pub fn session_of(&self, side: Side, user: Option<User>) -> Result<Session<'_>> {
        let witness = match side {
            Side::Kernel => None,
            Side::Underpass => {
                let witness = user.map_or_else(Witness::new, Witness::of);
                Some(witness.context("no shared memory for the library's counters")?)
            }
        };
        Ok(Session { launcher: self, witness })
    }
}

impl Session<'_> {
    /// The side on which programs are started.
    pub fn side(&self) -> Side {
        if self.witness.is_some() { Side::Underpass } else { Side::Kernel }
    }

    /// `program` on this side, its arguments still to come.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let others = without_us(std::env::var_os(PRELOAD).unwrap_or_default());
        command.env_remove(VARIABLE).env_remove(PRELOAD);
        let mut preload = OsString::new();
        if let Some(witness) = &self.witness {
            command.envs(self.launcher.settings.iter().cloned()).env(VARIABLE, witness.id());
            preload.push(&self.launcher.library);
        }
        if !preload.is_empty() && !others.is_empty() {
            preload.push(":");
        }
        preload.push(others);
        if !preload.is_empty() {
            command.env(PRELOAD, preload);
        }
        command
    }

    /// `value`, if process `pid` kept the rule; on the kernel's side there is none to keep.
    pub fn proven(&self, pid: u32, rule: Rule, value: f64) -> Reading {
        match &self.witness {
            Some(witness) => witness.ask(pid, rule).map(|()| value).map_err(|error| error.to_string()),
            None => Ok(value),
        }
    }
}

/// What else the user preloads, on both sides alike, but not our library when the benchmark itself runs under it.
fn without_us(preload: OsString) -> OsString {
    let text = preload.to_string_lossy();
    let others: Vec<&str> =
        text.split([':', ' ']).filter(|path| !path.is_empty() && !path.ends_with("libunderpass.so")).collect();
    others.join(":").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(command: &Command, name: &str) -> Option<OsString> {
        command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value.map(OsStr::to_os_string))
    }

    #[test]
    fn only_the_underpass_side_gets_the_library_and_the_settings() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let setting = ("UNDERPASS_SPIN_US".into(), "7".into());
        let launcher = Launcher::new(file.path(), &[setting]).unwrap();
        let kernel = launcher.session(Side::Kernel).unwrap().command("true");
        assert_eq!(variable(&kernel, "UNDERPASS_SPIN_US"), None);
        assert_eq!(variable(&kernel, PRELOAD), None);

        let session = launcher.session(Side::Underpass).unwrap();
        let underpass = session.command("true");
        let preload = variable(&underpass, PRELOAD).unwrap();
        assert!(preload.to_string_lossy().starts_with(launcher.library().to_str().unwrap()));
        assert_eq!(variable(&underpass, "UNDERPASS_SPIN_US"), Some("7".into()));
        assert!(variable(&underpass, VARIABLE).is_some());
    }

    #[test]
    fn what_else_is_preloaded_stays_and_we_go() {
        let preload = "/usr/lib/libjemalloc.so:/opt/libunderpass.so".into();
        assert_eq!(without_us(preload), OsString::from("/usr/lib/libjemalloc.so"));
    }

    #[test]
    fn a_missing_library_is_named_with_its_remedy() {
        let error = Launcher::new(Path::new("/no/libunderpass.so"), &[]).unwrap_err().to_string();
        assert!(error.contains("/no/libunderpass.so") && error.contains("cargo build --release"), "{error}");
    }
}

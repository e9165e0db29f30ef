//! Where a suite lies: `target/gauntlet/NAME`, kept between runs.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use underpass_tests::library;
use underpass_tests::stage::find;

/// The folder of one suite.
pub struct Place {
    folder: PathBuf,
}

impl Place {
    /// The folder of the suite `name`, made if there is none.
    pub fn of(name: &str) -> Result<Place> {
        let folder = library::target().join("gauntlet").join(name);
        fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
        Ok(Place { folder: folder.canonicalize()? })
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A fresh folder in it, which everybody may write into.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let folder = self.path(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        Ok(folder)
    }

    /// Does `make` unless it was done before.
    pub fn once(&self, what: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
        let done = self.path(&format!("{what}.done"));
        if !done.exists() {
            make()?;
            fs::write(&done, "").with_context(|| format!("write {}", done.display()))?;
        }
        Ok(())
    }

    /// Fails, naming the package, where one of `programs` is not installed.
    pub fn need(&self, programs: &[(&str, &str)]) -> Result<()> {
        for (program, package) in programs {
            let found = if program.starts_with('/') { Path::new(program).exists() } else { find(program).is_some() };
            if !found {
                bail!("{program} is missing (Debian package {package})");
            }
        }
        Ok(())
    }

    /// Runs a step of a build in `folder`; what it says is kept for the case that it fails.
    pub fn step<A: AsRef<OsStr>>(
        &self,
        folder: &Path,
        program: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<()> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        library::plain(&mut command);
        let output = command.output().with_context(|| format!("run {program}"))?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let lines: Vec<&str> = said.lines().collect();
            bail!("{program}: {}\n{}", output.status, lines[lines.len().saturating_sub(12)..].join("\n"));
        }
        Ok(())
    }

    /// The unpacked source of the version of a Debian package that is installed.
    pub fn debian_source_as_installed(&self, package: &str) -> Result<PathBuf> {
        let query = ["--show", "--showformat=${source:Version}", package];
        let output = Command::new("dpkg-query").args(query).output().context("run dpkg-query")?;
        if !output.status.success() {
            bail!("the Debian package {package} is not installed");
        }
        self.debian_source(&format!("{package}={}", String::from_utf8_lossy(&output.stdout)))
    }

    /// The unpacked source of a Debian package (`NAME` or `NAME=VERSION`). Sources are looked up in lists of this
    /// place's own, made from the system's.
    pub fn debian_source(&self, package: &str) -> Result<PathBuf> {
        self.need(&[("dpkg-source", "dpkg-dev"), ("apt-get", "apt")])?;
        self.once(&format!("source-{package}"), || {
            let lists = self.path("apt");
            fs::create_dir_all(lists.join("partial"))?;
            let sources = self.path("sources.list.d");
            fs::create_dir_all(&sources)?;
            fs::write(sources.join("gauntlet.sources"), source_lists()?)?;
            let unpacked = self.fresh("source")?;
            let options = [
                "Dir::Etc::sourcelist=/dev/null".to_owned(),
                format!("Dir::Etc::sourceparts={}", sources.display()),
                format!("Dir::State::lists={}", lists.display()),
                "APT::Sandbox::User=".to_owned(),
            ];
            let options = || options.iter().flat_map(|option| ["-o", option.as_str()]);
            self.step(&unpacked, "apt-get", options().chain(["-q", "update"]))?;
            self.step(&unpacked, "apt-get", options().chain(["-q", "source", package]))
        })?;
        let folders = fs::read_dir(self.path("source"))?.flatten().map(|entry| entry.path());
        folders
            .into_iter()
            .find(|path| path.is_dir())
            .with_context(|| format!("apt-get source {package} has left no folder"))
    }
}

/// The system's lists of packages, as lists of sources.
fn source_lists() -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir("/etc/apt/sources.list.d").context("read the lists of Debian's packages")?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "sources") {
            let list = fs::read_to_string(entry.path())?;
            let lines = list.lines().map(|line| if line.starts_with("Types:") { "Types: deb-src" } else { line });
            text.push_str(&lines.collect::<Vec<_>>().join("\n"));
            text.push_str("\n\n");
        }
    }
    if text.is_empty() {
        bail!("there are no lists of Debian's packages in /etc/apt/sources.list.d (deb822)");
    }
    Ok(text)
}

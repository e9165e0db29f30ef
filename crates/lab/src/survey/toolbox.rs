//! The place of an endpoint's tools: its system, or a folder with builds for Arm, which run under qemu-user.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::record::Tool;

/// What emulates an Arm processor, by the names that distributions give it.
const EMULATORS: [&str; 2] = ["qemu-aarch64", "qemu-aarch64-static"];

/// Why there are no Arm builds to run.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// Nothing emulates.
    #[error("qemu-aarch64 is not installed, which runs Arm builds of the tools (Debian: apt-get install qemu-user)")]
    NoEmulator,
    /// Nothing to emulate.
    #[error("{} has no tool in usr/bin; packaging/arm-tools unpacks the Arm builds into a directory", .0.display())]
    NoTools(PathBuf),
}

/// Starts the tools.
#[derive(Clone, Debug)]
pub struct Toolbox {
    arm: Option<Arm>,
}

/// A folder as it would be the root of a system, and what runs its programs.
#[derive(Clone, Debug)]
struct Arm {
    emulator: PathBuf,
    root: PathBuf,
}

impl Toolbox {
    /// Those of the system.
    pub const fn system() -> Toolbox {
        Toolbox { arm: None }
    }

    /// Arm builds in this folder.
    ///
    /// # Errors
    /// [`ArmError`].
    pub fn arm(root: &Path) -> Result<Toolbox, ArmError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let candidates = env::split_paths(&path).flat_map(|folder| EMULATORS.map(|name| folder.join(name)));
        let emulator = candidates.into_iter().find(|it| it.is_file()).ok_or(ArmError::NoEmulator)?;
        let root = root.canonicalize().unwrap_or(root.into());
        if !Tool::ALL.into_iter().any(|tool| program(&root, tool).is_file()) {
            return Err(ArmError::NoTools(root));
        }
        Ok(Toolbox { arm: Some(Arm { emulator, root }) })
    }

    /// Whether they are of another processor than the library, which cannot be loaded into them then.
    pub fn is_emulated(&self) -> bool {
        self.arm.is_some()
    }

    /// A tool, its arguments still to come.
    pub fn command(&self, tool: Tool) -> Command {
        let Some(Arm { emulator, root }) = &self.arm else { return Command::new(tool.program()) };
        let mut command = Command::new(emulator);
        // Libraries and files that a program opens by absolute names are looked for in the folder first.
        command.arg("-L").arg(root).arg(program(root, tool));
        command
    }
}

fn program(root: &Path, tool: Tool) -> PathBuf {
    root.join("usr/bin").join(tool.program())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::tool::version;
    use std::fs;

    #[test]
    fn a_folder_without_tools_is_named_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        match Toolbox::arm(folder.path()) {
            Err(ArmError::NoEmulator) => eprintln!("SKIPPED: qemu-user is needed"),
            other => {
                let error = other.unwrap_err().to_string();
                assert!(error.contains("has no tool in usr/bin; packaging/arm-tools"), "{error}");
            }
        }
    }

    /// A program for Arm that says the version of iperf3, and of which processor it was built for.
    #[test]
    fn arm_builds_are_run_by_an_emulator() {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("usr/bin");
        fs::create_dir_all(&programs).unwrap();
        let source = folder.path().join("tool.c");
        fs::write(
            &source,
            "#include <stdio.h>\nint main(void) {\n#ifdef __aarch64__\nputs(\"iperf 3.99 (Arm)\");\n#endif\n}",
        )
        .unwrap();
        let mut compiler = Command::new("aarch64-linux-gnu-gcc");
        compiler.arg("-static").arg("-o").arg(programs.join("iperf3")).arg(&source);
        if !compiler.status().is_ok_and(|status| status.success()) {
            return eprintln!("SKIPPED: gcc-aarch64-linux-gnu is needed");
        }
        let tools = match Toolbox::arm(folder.path()) {
            Err(ArmError::NoEmulator) => return eprintln!("SKIPPED: qemu-user is needed"),
            tools => tools.unwrap(),
        };
        assert!(tools.is_emulated());
        assert_eq!(version(Tool::Iperf3, tools.command(Tool::Iperf3)).unwrap().version, "3.99");
        let missing = version(Tool::Qperf, tools.command(Tool::Qperf)).unwrap_err().to_string();
        assert!(missing.contains("qperf does not say its version"), "{missing}");
    }
}

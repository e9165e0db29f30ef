//! The helper programs: plain C, compiled with the system's compiler when first needed.
//!
//! Their source travels in the executable, so that an installed `underpass` can measure too and no binary lies in the
//! tree.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const HEADER: &str = include_str!("../programs/common.h");

/// One helper program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    name: &'static str,
    source: &'static str,
}

macro_rules! programs {
    ($($(#[doc = $doc:literal])+ $constant:ident = $name:literal,)+) => {
        impl Program {
            $($(#[doc = $doc])+ pub const $constant: Program =
                Program { name: $name, source: include_str!(concat!("../programs/", $name, ".c")) };)+

            /// All of them.
            pub const ALL: &'static [Program] = &[$(Program::$constant,)+];
        }
    };
}

programs! {
    /// Messages there and back.
    PINGPONG = "pingpong",
    /// Bytes in one direction.
    STREAM = "stream",
    /// Datagrams in one direction.
    DATAGRAM = "datagram",
    /// Connect, one exchange, close.
    CHURN = "churn",
    /// Connections that carry some messages each.
    MEET = "meet",
    /// The time from a send to the return of a sleeping receiver.
    WAKE = "wake",
    /// Many connections at rest.
    IDLE = "idle",
    /// read and write on descriptors that are no sockets.
    CALLS = "calls",
    /// The smallest program.
    NOTHING = "nothing",
    /// Baseline: one cache line between two processors.
    LINE = "line",
    /// Baseline: a ring in shared memory.
    RING = "ring",
    /// A client that keeps memcached busy.
    MEMLOAD = "memload",
}

/// Why a helper program could not be had.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// There is no compiler.
    #[error("no C compiler ({}): the benchmarks' clients and servers are plain C; install one \
             (Debian: apt-get install gcc libc6-dev) or name it in CC", .0.display())]
    NoCompiler(PathBuf),
    /// The compiler does not like the program.
    #[error("{} cannot compile {program}.c (is libc6-dev installed?):\n{output}", compiler.display())]
    Failed {
        /// Compiler that was run.
        compiler: PathBuf,
        /// Program it was given.
        program: &'static str,
        /// What it said.
        output: String,
    },
    /// The folder for the programs cannot be used.
    #[error("cannot write the helper programs into a temporary folder ({0}); TMPDIR names another one")]
    Folder(#[from] io::Error),
}

/// Compiles programs into a folder of its own, each once; the folder goes when this goes.
#[derive(Debug)]
pub struct Programs {
    folder: TempDir,
    compiler: OsString,
    done: RefCell<BTreeMap<Program, PathBuf>>,
}

impl Programs {
    /// An empty folder, and the compiler named in `CC`, or `cc`.
    ///
    /// # Errors
    /// There is no place for a temporary folder.
    pub fn new() -> Result<Programs, CompileError> {
        let folder = tempfile::Builder::new().prefix("underpass-bench-").tempdir()?;
        fs::write(folder.path().join("common.h"), HEADER)?;
        let compiler = std::env::var_os("CC").filter(|cc| !cc.is_empty()).unwrap_or_else(|| "cc".into());
        Ok(Programs { folder, compiler, done: RefCell::default() })
    }

    /// The executable of `program`, compiled now if it was not before.
    ///
    /// # Errors
    /// There is no compiler, or it fails.
    pub fn path(&self, program: Program) -> Result<PathBuf, CompileError> {
        if let Some(path) = self.done.borrow().get(&program) {
            return Ok(path.clone());
        }
        let path = self.compile(program)?;
        self.done.borrow_mut().insert(program, path.clone());
        Ok(path)
    }

    fn compile(&self, program: Program) -> Result<PathBuf, CompileError> {
        let source = self.folder.path().join(format!("{}.c", program.name));
        fs::write(&source, program.source)?;
        let path = self.folder.path().join(program.name);
        let output = Command::new(&self.compiler)
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&path)
            .arg(&source)
            .output()
            .map_err(|_| CompileError::NoCompiler(Path::new(&self.compiler).to_path_buf()))?;
        if output.status.success() {
            return Ok(path);
        }
        Err(CompileError::Failed {
            compiler: Path::new(&self.compiler).to_path_buf(),
            program: program.name,
            output: String::from_utf8_lossy(&output.stderr).trim().to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_compiles_without_a_warning() {
        let programs = Programs::new().unwrap();
        for program in Program::ALL {
            let path = programs.path(*program).unwrap();
            assert_eq!(programs.path(*program).unwrap(), path, "compiled once");
        }
    }

    #[test]
    fn a_missing_compiler_is_named_with_its_remedy() {
        let mut programs = Programs::new().unwrap();
        programs.compiler = "no-such-compiler".into();
        let message = programs.path(Program::NOTHING).unwrap_err().to_string();
        assert!(message.contains("no-such-compiler") && message.contains("apt-get install gcc"), "{message}");
    }
}

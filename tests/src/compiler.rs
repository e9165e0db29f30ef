//! The C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `sources` to `program`.
pub fn cc(program: &Path, flags: &[&str], sources: &[PathBuf]) {
    // Another test may be running the same program: it is replaced as a whole.
    let aside = tempfile::tempdir_in(program.parent().expect("a folder")).expect("a folder in the build folder");
    let fresh = aside.path().join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    let output = cc.args(sources).arg("-o").arg(&fresh).output().expect("a C compiler");
    assert!(output.status.success(), "{}:\n{}", program.display(), String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&fresh, program).expect("the same file system");
}

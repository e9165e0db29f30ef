//! What the Makefile installs, and from where.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::{skip, stderr, stdout};

/// `make ARGUMENTS…`; `None` where there is no make.
fn make(arguments: &[&str]) -> Option<Output> {
    let mut make = Command::new("make");
    make.args(arguments).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    make.env_remove("CARGO_TARGET_DIR").env_remove("MAKEFLAGS");
    make.output().ok()
}

#[test]
fn what_is_used_is_what_was_built() {
    for goal in ["install", "bench", "run", "generate"] {
        let Some(dry) = make(&["-n", goal, "CARGO=true", "CARGO_TARGET_DIR=/elsewhere"]) else {
            return skip("make is not installed");
        };
        let commands = stdout(&dry);
        assert!(commands.contains("/elsewhere/") && !commands.contains(" target/"), "{goal}: {commands}");
    }
    let usual = stdout(&make(&["-n", "install", "CARGO=true"]).unwrap());
    assert!(usual.contains(" target/release/libunderpass.so "), "{usual}");
}

#[test]
fn what_is_not_installed_may_be_uninstalled() {
    let directory = tempfile::tempdir().unwrap();
    let place = format!("DESTDIR={}", directory.path().display());
    let Some(first) = make(&["uninstall", &place]) else { return skip("make is not installed") };
    assert_eq!((first.status.code(), stderr(&first).as_str()), (Some(0), ""));
    std::fs::create_dir_all(directory.path().join("usr/local/lib/underpass")).unwrap();
    let second = make(&["uninstall", &place]).unwrap();
    assert_eq!((second.status.code(), stderr(&second).as_str()), (Some(0), ""));
    assert!(!directory.path().join("usr/local/lib/underpass").exists());
}

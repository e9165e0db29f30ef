//! Where `--stats` writes, and what it says when it cannot.

use std::fs;
use std::process::Command;

use crate::support::{LIBRARY, UNDERPASS, output, stderr};

/// What a file gets from `--stats` of a program that a shell starts with `closed` streams.
fn written(closed: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats");
    let script = format!("exec \"$U\" run --stats='{}' -- true {closed}", file.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("U", UNDERPASS);
    shell.env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
    assert!(shell.output().unwrap().status.success(), "{closed}");
    fs::read_to_string(file).unwrap()
}

#[test]
fn a_file_is_written_whatever_stream_is_closed() {
    let open = written("");
    assert!(open.contains("underpass: true ended"), "{open}");
    for closed in ["0<&-", "1>&-", "2>&-", "0<&- 1>&-", "0<&- 1>&- 2>&-"] {
        assert_eq!(written(closed), open, "{closed}");
    }
}

#[test]
fn a_file_that_takes_nothing_is_named() {
    let full = output(&["run", "--stats=/dev/full", "--", "sh", "-c", "exit 7"]);
    assert_eq!(full.status.code(), Some(7), "the program's own");
    assert_eq!(
        stderr(&full),
        "underpass: cannot write the statistics to /dev/full: No space left on device (os error 28)\n"
    );
}

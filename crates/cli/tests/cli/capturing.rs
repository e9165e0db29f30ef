//! What `underpass capture` refuses to write to, and what it leaves as it is then.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::support::{UNDERPASS, kill, output, state, stderr, underpass, wait_for};

#[test]
fn what_cannot_be_written_to_is_wrong_use() {
    let folder = tempfile::tempdir().unwrap();
    for (path, said) in [
        (
            "/no/such/folder/x.pcapng",
            "cannot write /no/such/folder/x.pcapng (No such file or directory); -w needs a file",
        ),
        (folder.path().to_str().unwrap(), "(Is a directory); -w needs a file"),
    ] {
        let refused = output(&["capture", "-w", path, "--duration", "1"]);
        assert_eq!(refused.status.code(), Some(2), "{path}");
        assert!(stderr(&refused).contains(said), "{path}: {}", stderr(&refused));
    }
}

#[test]
fn a_wrong_filter_or_option_leaves_the_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept.pcapng");
    fs::write(&file, "kept").unwrap();
    let path = file.to_str().unwrap();
    for wrong in [
        &["port", "0"][..],
        &["pid", "-1"],
        &["tcp", "port", "80"],
        &["port", "80", "and"],
        &["host", "localhost"],
        &["pid", "4294967295"],
        &["--count", "0"],
        &["--count", "-1"],
        &["--count", "99999999999999999999999"],
        &["--duration", "-1"],
        &["--duration", "4294967296"],
        &["--duration", "0"],
        &["--buffer", "0"],
        &["--buffer", "1025"],
    ] {
        let refused = output(&[&["capture", "-w", path], wrong].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}: {}", stderr(&refused));
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept", "{wrong:?}");
    }
}

#[test]
fn ctrl_c_ends_the_wait_for_the_reader_of_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut waiting = underpass(&["capture", "-w", pipe.to_str().unwrap()]).spawn().unwrap();
    wait_for("it to wait", || (state(waiting.id()) == Some('S')).then_some(()));
    kill("INT", waiting.id());
    assert_eq!(waiting.wait().unwrap().signal(), Some(2));
}

#[test]
fn what_is_wanted_is_said_where_it_is_not_had() {
    for (wrong, said) in [
        (&["--count", "-1"][..], "'--count <N>': a whole number from 1 to 18446744073709551615 is needed"),
        (&["--duration", "4294967296"], "'--duration <SECONDS>': a whole number from 1 to 4294967295 is needed"),
        (&["--buffer", "x"], "'--buffer <MIB>': a whole number from 1 to 1024 is needed"),
        (&["port", "-1"], "filter: \"port -1\": a number from 1 to 65535 is needed"),
        (&["pid", "4294967295"], "filter: there is no process 4294967295; `underpass ss` lists"),
    ] {
        let refused = output(&[&["capture", "-w", "/dev/null"], wrong].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
        assert!(stderr(&refused).contains(said), "{wrong:?}: {}", stderr(&refused));
    }
}

/// The file does not get the number of the closed stream.
#[test]
fn words_do_not_go_to_the_file_where_a_standard_stream_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let file = folder.path().join("x.pcapng");
        let run = format!("\"$0\" capture -w \"$1\" --duration 1 {closed}");
        let mut command = Command::new("sh");
        command.args(["-c", &run, UNDERPASS]).arg(&file).stderr(Stdio::null());
        // There is one capture of a user at a time, and other tests make some.
        wait_for("a capture", || command.status().unwrap().success().then_some(()));
        let written = fs::read(&file).unwrap();
        assert!(written.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]), "{closed}: {:?}", String::from_utf8_lossy(&written));
    }
}

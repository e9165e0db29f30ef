//! What the program is given: the library, the settings, io_uring denied.

use std::fs;
use std::os::unix::process::CommandExt;

use crate::support::{LIBRARY, compile, is_root, output, skip, stderr, stdout, underpass};

fn shown(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn the_library_is_loaded_also_into_children() {
    let name = LIBRARY.file_name().unwrap().to_str().unwrap();
    let maps = stdout(&output(&["run", "--", "sh", "-c", "cat /proc/$$/maps; echo; cat /proc/self/maps"]));
    let (shell, cat) = maps.split_once("\n\n").unwrap();
    assert!(shell.contains(name) && cat.contains(name), "{maps}");
}

#[test]
fn preloaded_libraries_are_kept_and_ours_comes_first() {
    let ours = LIBRARY.to_str().unwrap();
    let preload =
        |had: &str| shown(underpass(&["run", "--", "sh", "-c", "printf %s \"$LD_PRELOAD\""]).env("LD_PRELOAD", had));
    assert_eq!(preload(""), ours);
    assert_eq!(preload("/lib/none.so"), format!("{ours}:/lib/none.so"));
    assert_eq!(preload("/lib/a.so /lib/b.so"), format!("{ours}:/lib/a.so:/lib/b.so"));
    // One run inside another.
    assert_eq!(preload(&format!("/lib/none.so:{ours}")), format!("/lib/none.so:{ours}"));
    // Another copy would count and carry every connection a second time.
    assert_eq!(preload("/usr/lib/libunderpass.so:/lib/none.so libunderpass.so"), format!("{ours}:/lib/none.so"));
}

#[test]
fn settings_become_variables() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("underpass.toml");
    fs::write(&file, "spin_us = 7\nmode = \"off\"\n").unwrap();
    let arguments = ["run", "--config", file.to_str().unwrap(), "--set", "mode=on", "--", "env"];
    let text = shown(underpass(&arguments).env("UNDERPASS_RING_BYTES", "65536"));
    let ours = |name: &str| text.lines().find_map(|l| l.strip_prefix(&format!("UNDERPASS_{name}="))).map(String::from);
    assert_eq!(ours("SPIN_US").as_deref(), Some("7"));
    assert_eq!(ours("MODE").as_deref(), Some("on"));
    assert_eq!(ours("RING_BYTES").as_deref(), Some("65536"));
    assert_eq!(ours("GO_UP_BYTES"), None, "defaults are the library's own");
    assert_eq!(ours("STATS"), None);
}

#[test]
fn io_uring_is_denied_unless_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("ring");
    let source = "#include <errno.h>\n#include <stdio.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
                  int main(void) { syscall(SYS_io_uring_setup, 0, 0); return errno != ENOSYS; }";
    assert!(compile(source, &[], &program));
    let program = program.to_str().unwrap();
    let code = |arguments: &[&str]| output(&[&["run"], arguments, &["--", program]].concat()).status.code();
    assert_eq!(code(&[]), Some(0));
    assert_eq!(code(&["--stats=/dev/null"]), Some(0));
    let direct = std::process::Command::new(program).status().unwrap().code();
    assert_eq!(code(&["--set", "io_uring=allow"]), direct);
}

/// A user without the capability gets the filter at the price of no_new_privs; root does not pay it.
#[test]
fn no_new_privs_is_set_only_when_needed() {
    let look = ["--", "grep", "-q", "^NoNewPrivs:.1$", "/proc/self/status"];
    let set = |user: u32, arguments: &[&str]| {
        let mut command = underpass(&[&["run"], arguments, &look].concat());
        command.uid(user).gid(user).current_dir("/").output().map(|o| o.status.code())
    };
    if !is_root() {
        return skip("needs root to run as another user and with capabilities");
    }
    assert_eq!(set(0, &[]).unwrap(), Some(1));
    match set(65534, &[]) {
        Ok(Some(0)) => assert_eq!(set(65534, &["--set", "io_uring=allow"]).unwrap(), Some(1)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            skip("the build lies in a directory that other users cannot enter");
        }
        Ok(Some(125)) => skip("the library lies in a directory that other users cannot enter"),
        other => panic!("{other:?}"),
    }
}

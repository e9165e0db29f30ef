//! What the program is given: the library, the settings, io_uring denied.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

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
    // One `underpass run` inside another.
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

/// Says whether io_uring is denied, and what it sees of seccomp.
const MAIN: &str = "#include <stdio.h>\n#include <sys/prctl.h>\nint is_denied(void);\nint main(void) {\n\
    printf(\"%s %d %d\", is_denied() ? \"denied\" : \"not\", prctl(PR_GET_SECCOMP), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, \
    0, 0));\n\
    return 0; }\n";
/// Asks by an instruction of its own.
const OWN_RING: &str = "#include <errno.h>\n#include <sys/syscall.h>\nint is_denied(void) { long answer = \
                        SYS_io_uring_setup;\n\
    __asm__ volatile(\"syscall\" : \"+a\"(answer) : \"D\"(0L), \"S\"(0L) : \"rcx\", \"r11\", \"memory\");\n\
    return answer == -ENOSYS; }\n";
/// Asks by libc's function, which is the library's.
const LIBC_RING: &str = "#include <errno.h>\n#include <sys/syscall.h>\n#include <unistd.h>\nint is_denied(void) {\n\
    return syscall(SYS_io_uring_setup, 0L, 0L) < 0 && errno == ENOSYS; }\n";

/// A program that asks for an io_uring by itself, a program with a library for that, and a program that asks by libc.
fn rings(folder: &Path) -> [String; 3] {
    let at = |name: &str| folder.join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    assert!(compile(&format!("{MAIN}{OWN_RING}"), &["-O2"], &at("own")));
    let library = path("libring.so");
    assert!(compile(OWN_RING, &["-O2", "-shared", "-fPIC", "-Wl,-soname,libring.so"], library.as_ref()));
    assert!(compile(MAIN, &["-Wl,--no-as-needed,-rpath,$ORIGIN", &library], &at("linked")));
    assert!(compile(&format!("{MAIN}{LIBC_RING}"), &[], &at("libc")));
    ["own", "linked", "libc"].map(path)
}

#[test]
fn io_uring_is_denied_by_a_filter_only_where_it_may_be_set_up_past_the_library() {
    let directory = tempfile::tempdir().unwrap();
    let programs = rings(directory.path());
    let [direct, confined] = ["not 0 0", "denied 2 0"];
    if !cfg!(target_arch = "x86_64") {
        return skip("the programs are written for x86-64");
    }
    if stdout(&std::process::Command::new(&programs[0]).output().unwrap()) != direct {
        return skip("io_uring is not there, or the tests are confined themselves");
    }
    if !is_root() {
        return skip("needs root for a filter without no_new_privs");
    }
    let said = |arguments: &[&str], program: &str| stdout(&output(&[&["run"], arguments, &["--", program]].concat()));
    for program in &programs {
        // The library of these tests refuses nothing.
        let auto = if program == &programs[2] { direct } else { confined };
        assert_eq!(said(&[], program), auto, "{program}");
        assert_eq!(said(&["--stats=/dev/null"], program), auto, "{program}");
        assert_eq!(said(&["--set", "io_uring=deny"], program), confined, "{program}");
        assert_eq!(said(&["--set", "io_uring=allow"], program), direct, "{program}");
    }
    // A shell needs none, and what it runs has none.
    let script = directory.path().join("script");
    fs::write(&script, format!("#!/bin/sh\n{}\n", programs[2])).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(said(&[], script.to_str().unwrap()), direct);
    for program in ["grep", "python3", "perl"] {
        let script = ["-c", "print(open('/proc/self/status').read())"];
        let words = match program {
            "grep" => ["", "/proc/self/status"],
            "perl" => ["-e", "print `cat /proc/self/status`"],
            _ => script,
        };
        let seen = stdout(&output(&[&["run", "--", program][..], &words].concat()));
        assert!(seen.is_empty() || seen.contains("Seccomp:\t0\n"), "{program}: {seen}");
    }
}

/// A process that ignores SIGCHLD is not told how a child ended.
#[test]
fn the_look_at_libraries_does_not_depend_on_its_caller() {
    let directory = tempfile::tempdir().unwrap();
    let [_, linked, libc] = rings(directory.path());
    for (program, filter) in [(linked, "2"), (libc, "0")] {
        let script = format!("trap '' CHLD; exec 0<&-; exec \"$U\" run -- {program}");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).env("U", crate::support::UNDERPASS);
        shell.env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
        let said = stdout(&shell.output().unwrap());
        assert_eq!(said.split(' ').nth(1), Some(filter), "{program}: {said}");
    }
}

/// A user without the capability gets the filter at the price of no_new_privs; root does not pay it.
#[test]
fn no_new_privs_is_set_only_when_needed() {
    let directory = open_directory();
    let programs = rings(directory.path());
    let as_user = |user: u32, arguments: &[&str], program: &str| {
        let mut command = underpass(&[&["run"], arguments, &["--", program]].concat());
        command.uid(user).gid(user).current_dir("/").output().map(|it| (it.status.code(), stdout(&it)))
    };
    if !is_root() {
        return skip("needs root to run as another user and with capabilities");
    }
    let set = |user, arguments, program| as_user(user, arguments, program).unwrap().1.split(' ').nth(2).unwrap() == "1";
    match as_user(65534, &[], "true") {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return skip("the build lies in a directory that other users cannot enter");
        }
        Ok((Some(125), _)) => return skip("the library lies in a directory that other users cannot enter"),
        ran => assert_eq!(ran.unwrap().0, Some(0)),
    }
    for (program, needs_filter) in programs.iter().zip([true, true, false]) {
        assert_eq!(set(65534, &[], program), needs_filter, "{program}");
        assert!(set(65534, &["--set", "io_uring=deny"], program), "{program}");
        assert!(!set(65534, &["--set", "io_uring=allow"], program), "{program}");
        assert!(!set(0, &[], program) && !set(0, &["--set", "io_uring=deny"], program), "{program}");
    }
}

/// sudo and ping, say, in a shell of an ordinary user.
#[test]
fn setuid_programs_keep_their_privileges() {
    if !is_root() {
        return skip("needs root to make a setuid program and to run it as another user");
    }
    let directory = open_directory();
    let program = directory.path().join("privileged");
    let source = "#include <unistd.h>\nint main(void) { return geteuid() == 0 ? 7 : 8; }";
    assert!(compile(source, &[], &program));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let program = program.to_str().unwrap();
    let as_user = |mut command: std::process::Command| {
        command.uid(65534).gid(65534).current_dir("/").status().ok().and_then(|it| it.code())
    };
    if as_user(std::process::Command::new(program)) != Some(7) {
        return skip("the folder of the tests is mounted without setuid programs, or other users cannot enter it");
    }
    for words in [&[program][..], &["sh", "-c", program], &["env", "sh", "-c", &format!("{program}; exit $?")]] {
        match as_user(underpass(&[&["run", "--"], words].concat())) {
            None | Some(125) => return skip("the build lies in a directory that other users cannot enter"),
            code => assert_eq!(code, Some(7), "{words:?}"),
        }
    }
}

/// A folder that other users can enter.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

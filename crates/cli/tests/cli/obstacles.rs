//! What cannot be run or not be helped: the exit codes of a shell, and messages that say what to do.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::{LIBRARY, UNDERPASS, compile, copy_program, is_root, output, skip, stderr, stdout, underpass};

#[test]
fn an_unknown_program_is_127() {
    let unknown = output(&["run", "--", "no-such-program-anywhere"]);
    assert_eq!(unknown.status.code(), Some(127));
    assert_eq!(stderr(&unknown), "underpass: no-such-program-anywhere: there is no such program in PATH\n");
    let near = output(&["run", "--stats", "--", "sleeep"]);
    assert_eq!(near.status.code(), Some(127));
    assert_eq!(stderr(&near), "underpass: sleeep: there is no such program in PATH; did you mean sleep?\n");
    let path = output(&["run", "--", "./no/such/file"]);
    assert_eq!(
        (path.status.code(), stderr(&path).as_str()),
        (Some(127), "underpass: ./no/such/file: there is no such file\n")
    );
    let nameless = output(&["run", "--", ""]);
    assert_eq!(
        (nameless.status.code(), stderr(&nameless).as_str()),
        (Some(127), "underpass: the program's name is empty\n")
    );
}

#[test]
fn what_cannot_be_executed_is_126() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "#!/no/interpreter -x\n").unwrap();
    let file = file.to_str().unwrap();
    let refused = output(&["run", "--", file]);
    assert_eq!(refused.status.code(), Some(126));
    assert!(stderr(&refused).contains("not executable") && stderr(&refused).contains("chmod +x"));

    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    let script = output(&["run", "--", file]);
    assert_eq!(script.status.code(), Some(127), "as a shell has it");
    assert!(stderr(&script).ends_with("its first line asks for /no/interpreter -x, which is not there\n"));

    let folder = output(&["run", "--", directory.path().to_str().unwrap()]);
    assert_eq!(folder.status.code(), Some(126));
    assert!(stderr(&folder).ends_with("that is a directory, not a program\n"));

    fs::write(file, b"\0\x01\x02 no program").unwrap();
    let garbage = output(&["run", "--", file]);
    assert_eq!(garbage.status.code(), Some(126));
    assert!(stderr(&garbage).contains("the system cannot run it"), "{}", stderr(&garbage));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (pipe, script) = (directory.path().join("pipe"), directory.path().join("script"));
    assert!(Command::new("mkfifo").args(["-m", "755"]).arg(&pipe).status().unwrap().success());
    let refused = |program: &Path| {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "10", UNDERPASS, "run", "--"]).arg(program).env("UNDERPASS_LIBRARY", &*LIBRARY);
        let output = command.env("UNDERPASS_CONFIG", "/dev/null").output().unwrap();
        assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
        stderr(&output)
    };
    assert!(refused(&pipe).ends_with("pipe: not a regular file (Permission denied)\n"));
    fs::write(&script, format!("#!{}\n", pipe.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(refused(&script).ends_with("script: the system cannot run it (Permission denied)\n"));
}

#[test]
fn a_first_line_is_read_as_the_kernel_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    let ran = |text: &str| {
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        output(&["run", "--", script.to_str().unwrap()])
    };
    // A shell runs what has no first line that names another, as execvp(3) has it.
    for (text, says) in [("", ""), ("#!\necho said", "said\n"), ("#! \necho said", "said\n")] {
        let ran = ran(text);
        assert_eq!((ran.status.code(), stdout(&ran).as_str(), stderr(&ran).as_str()), (Some(0), says, ""), "{text:?}");
    }
    let windows = ran("#!/bin/sh\r\necho said\r\n");
    assert_eq!(windows.status.code(), Some(127));
    assert!(stderr(&windows).contains("asks for /bin/sh\\r, which is not there"), "{}", stderr(&windows));
    assert!(stderr(&windows).contains("a carriage return that belongs to the name; `sed -i"), "{}", stderr(&windows));
}

#[test]
fn a_missing_library_is_explained() {
    let named = underpass(&["run", "--", "true"]).env("UNDERPASS_LIBRARY", "/no/lib.so").output().unwrap();
    assert_eq!(named.status.code(), Some(125));
    assert!(stderr(&named).contains("/no/lib.so, which UNDERPASS_LIBRARY names"), "{}", stderr(&named));

    let text = underpass(&["run", "--", "true"]).env("UNDERPASS_LIBRARY", "/etc/passwd").output().unwrap();
    assert_eq!(text.status.code(), Some(125));
    assert!(stderr(&text).contains("it is not a library"));
    let other = underpass(&["run", "--", "true"]).env("UNDERPASS_LIBRARY", UNDERPASS).output().unwrap();
    assert_eq!(other.status.code(), Some(125));
    assert!(stderr(&other).contains("it is another library or program"), "{}", stderr(&other));

    // A copy of the command alone, so that nothing is beside it.
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let copy = bin.join("underpass");
    copy_program(UNDERPASS, &copy);
    let alone = || Command::new(&copy).args(["run", "--", "true"]).env_remove("UNDERPASS_LIBRARY").output().unwrap();
    let nowhere = alone();
    assert_eq!(nowhere.status.code(), Some(125));
    for place in ["bin", "lib/underpass", "lib"] {
        assert!(stderr(&nowhere).contains(directory.path().join(place).join("libunderpass.so").to_str().unwrap()));
    }
    assert!(stderr(&nowhere).contains("UNDERPASS_LIBRARY=PATH"));
    // A library that is there and cannot be used is not said to be missing.
    let beside = bin.join("libunderpass.so");
    let whole = fs::read(&*LIBRARY).unwrap();
    for part in [5, 64, whole.len() / 2, whole.len() - 1] {
        fs::write(&beside, &whole[..part]).unwrap();
        assert!(
            stderr(&alone()).contains("bin/libunderpass.so (it is a part of a library"),
            "{part}: {}",
            stderr(&alone())
        );
    }
    fs::write(&beside, &whole).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o000)).unwrap();
    if is_root() {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut other = Command::new(&copy);
        other.args(["run", "--", "true"]).env_remove("UNDERPASS_LIBRARY").current_dir("/");
        let other = other.uid(65534).output().unwrap();
        assert!(stderr(&other).contains("bin/libunderpass.so (Permission denied"), "{}", stderr(&other));
    } else {
        assert!(stderr(&alone()).contains("bin/libunderpass.so (Permission denied"), "{}", stderr(&alone()));
    }
    fs::remove_file(&beside).unwrap();
    let lib = directory.path().join("lib/underpass");
    fs::create_dir_all(&lib).unwrap();
    fs::copy(&*LIBRARY, lib.join("libunderpass.so")).unwrap();
    assert_eq!(alone().status.code(), Some(0), "{}", stderr(&alone()));

    // LD_PRELOAD has no way to say this path.
    let spaced = directory.path().join("a b-libunderpass.so");
    fs::copy(&*LIBRARY, &spaced).unwrap();
    let spaced = underpass(&["run", "--", "true"]).env("UNDERPASS_LIBRARY", &spaced).output().unwrap();
    assert_eq!(spaced.status.code(), Some(125));
    assert!(stderr(&spaced).contains("a space or a colon"));

    // Nor has a program to tell that what it executes loads the library.
    let [renamed, old] = ["fast.so", "libunderpass.so.old"].map(|name| directory.path().join(name));
    fs::copy(&*LIBRARY, &renamed).unwrap();
    fs::copy(&*LIBRARY, &old).unwrap();
    let link = directory.path().join("libunderpass-link.so");
    std::os::unix::fs::symlink(&renamed, &link).unwrap();
    for (path, name) in [(&renamed, "fast.so"), (&link, "fast.so"), (&old, "libunderpass.so.old")] {
        let refused = underpass(&["run", "--", "true"]).env("UNDERPASS_LIBRARY", path).output().unwrap();
        assert_eq!(refused.status.code(), Some(125));
        let said = format!("{name}\" must have \"libunderpass\" in it and end in \".so\"");
        assert!(stderr(&refused).contains(&said), "{}", stderr(&refused));
    }
}

#[test]
fn a_missing_proc_is_explained() {
    let script = "umount -l /proc && exec \"$U\" run -- true";
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "sh", "-c", script]).env("U", UNDERPASS).env_remove("UNDERPASS_LIBRARY");
    match apart.env("UNDERPASS_CONFIG", "/dev/null").output() {
        Ok(refused) if refused.status.code() == Some(125) => {
            assert!(stderr(&refused).contains("since /proc/self/exe cannot be read"), "{}", stderr(&refused));
        }
        _ => skip("needs root and unshare to be without /proc"),
    }
}

const ANSWER: &str = "#include <stdio.h>\nint main(void) { puts(\"it ran\"); return 9; }";

/// Runs the program and returns the line that explains why it cannot be helped.
fn explained(program: &Path, code: i32) -> String {
    let program = program.to_str().unwrap();
    let loud = output(&["run", "--", program]);
    assert_eq!(loud.status.code(), Some(code), "{}", stderr(&loud));
    let quiet = output(&["run", "-q", "--", program]);
    let own =
        |output| stderr(output).lines().filter(|l| l.starts_with("underpass: ")).map(String::from).collect::<Vec<_>>();
    if code == 9 {
        assert_eq!(stdout(&loud), "it ran\n");
        assert_eq!(stderr(&quiet), "");
        assert_eq!(own(&loud).len(), 1);
    }
    own(&loud)[0].clone()
}

#[test]
fn a_static_program_runs_on_kernel_tcp() {
    let directory = tempfile::tempdir().unwrap();
    for (name, flag) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let program = directory.path().join(name);
        if !compile(ANSWER, &[flag], &program) {
            skip(&format!("cc {flag} does not work here"));
            continue;
        }
        let line = explained(&program, 9);
        assert!(line.contains("runs on kernel TCP because it is statically linked"), "{line}");
    }
}

#[test]
fn a_go_program_runs_on_kernel_tcp() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("main.go");
    fs::write(
        &source,
        "package main\nimport \"os\"\nfunc main() { os.Stdout.WriteString(\"it ran\\n\"); os.Exit(9) }\n",
    )
    .unwrap();
    let program = directory.path().join("gopher");
    let mut go = Command::new("go");
    go.arg("build").arg("-o").arg(&program).arg(&source).current_dir(directory.path());
    go.env("GOCACHE", directory.path().join("cache"))
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("HOME", directory.path());
    if !go.output().is_ok_and(|o| o.status.success()) {
        return skip("there is no working Go compiler");
    }
    let line = explained(&program, 9);
    assert!(line.contains("it is a Go program"), "{line}");
    let doctor = output(&["doctor", program.to_str().unwrap()]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(stdout(&doctor).contains("it is a Go program") && stdout(&doctor).contains("→ none: its other end"));
}

#[test]
fn a_program_for_another_c_library_is_not_given_ours() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("musl");
    assert!(compile(ANSWER, &["-Wl,--dynamic-linker=/no/ld-musl-none.so.1"], &program));
    let line = explained(&program, 126);
    assert!(line.contains("another C library than the GNU one (its loader is ld-musl-none.so.1)"), "{line}");
    let output = output(&["run", "--", program.to_str().unwrap()]);
    assert!(stderr(&output).contains("the loader that it asks for is not installed"));
}

#[test]
fn programs_of_other_kinds_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    assert!(compile(ANSWER, &[], &program));
    // The header says so (elf(5): class at 4, machine at 18); the kernel then runs neither, so that only the line is
    // seen.
    let i386: &[(usize, u8)] = &[(4, 1), (18, 3)];
    let alpha: &[(usize, u8)] = &[(18, 0x26), (19, 0x90)];
    for (name, changes, words) in
        [("i386", i386, "it is a 32-bit program"), ("alpha", alpha, "another kind of processor")]
    {
        let mut bytes = fs::read(&program).unwrap();
        changes.iter().for_each(|&(at, value)| bytes[at] = value);
        let other = directory.path().join(name);
        fs::write(&other, bytes).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
        let line = explained(&other, 126);
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn a_setuid_program_runs_on_kernel_tcp_and_keeps_its_privilege() {
    if !is_root() {
        return skip("needs root to make a program setuid");
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("other-user");
    assert!(compile(ANSWER, &[], &program));
    chown(&program, Some(65534), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let line = explained(&program, 9);
    assert!(line.contains("setuid") && line.contains("start it as the user it would become"), "{line}");

    // The program's own user changes nothing by running it, and its connections can go fast.
    chown(&program, Some(0), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let own = output(&["run", "--", program.to_str().unwrap()]);
    assert_eq!((own.status.code(), stderr(&own).as_str()), (Some(9), ""));
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let directory = tempfile::tempdir().unwrap();
    let interpreter = directory.path().join("interpreter");
    if !compile(ANSWER, &["-static"], &interpreter) {
        return skip("cc -static does not work here");
    }
    let script = directory.path().join("script");
    fs::write(&script, format!("#!{} -x\n", interpreter.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let line = explained(&script, 9);
    let subject = format!("{} (run by {})", script.display(), interpreter.display());
    assert!(line.contains(&format!("{subject} runs on kernel TCP because it is statically linked")), "{line}");
}

#[test]
fn with_mode_off_nothing_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("static");
    if !compile(ANSWER, &["-static"], &program) {
        return skip("cc -static does not work here");
    }
    let output = output(&["run", "--set", "mode=off", "--", program.to_str().unwrap()]);
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_forgotten_run_is_noticed() {
    let output = output(&["sh"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("To run the program sh: underpass run -- sh"));
}

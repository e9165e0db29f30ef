//! Where `--stats` writes, and what it says when it cannot.

use std::fs;
use std::process::Command;

use crate::support::{LIBRARY, UNDERPASS, compile, copy_program, is_root, output, skip, stderr};

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
    let said = stderr(&full);
    assert!(
        said.starts_with("underpass: there will be no statistics: cannot write them to /dev/full: No space left"),
        "{said}"
    );
    assert!(said.contains("a file that this user may write to, in a folder that is there and has room"), "{said}");
}

#[test]
fn a_file_that_cannot_be_opened_is_named_and_the_program_runs() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("none/stats");
    let unread = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&unread).status().unwrap().success());
    for file in [directory.path(), &nowhere, &unread] {
        let run = output(&["run", &format!("--stats={}", file.display()), "--", "sh", "-c", "echo ran; exit 7"]);
        let said = stderr(&run);
        assert_eq!((run.status.code(), run.stdout.as_slice()), (Some(7), &b"ran\n"[..]), "{said}");
        let expected = format!("underpass: there will be no statistics: cannot write them to {}: ", file.display());
        assert!(said.starts_with(&expected), "{said}");
    }
}

#[test]
fn without_memory_for_the_counters_the_program_runs_and_the_limits_are_named() {
    let script = "echo 0 >/proc/sys/kernel/shmmni && exec \"$U\" run --stats -- sh -c 'echo ran; exit 7'";
    let mut apart = Command::new("unshare");
    apart.args(["--ipc", "sh", "-c", script]).env("U", UNDERPASS);
    let run = apart.env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null").output();
    match run {
        Ok(run) if run.stdout == b"ran\n" => {
            let said = stderr(&run);
            assert_eq!(run.status.code(), Some(7), "{said}");
            let expected =
                "underpass: there will be no statistics: no System V shared memory for them (kernel.shmall, ";
            assert!(said.starts_with(expected), "{said}");
        }
        _ => skip("needs root and unshare to have limits of its own"),
    }
}

/// Some sandboxes have shared memory, but let no process attach what is marked for removal.
#[test]
fn without_counters_that_another_process_can_reach_the_program_runs() {
    // Answers each shmctl(IPC_STAT), by which the library looks at a System V segment before it attaches it, with
    // EPERM.
    let source = "#include <stddef.h>\n#include <stdlib.h>\n#include <unistd.h>\n#include <sys/ipc.h>\n#include \
                  <sys/prctl.h>\n\
                  #include <sys/syscall.h>\n#include <linux/filter.h>\n#include <linux/seccomp.h>\n\
                  #define AT(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))\n\
                  #define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)\n\
                  int main(int argc, char **argv) { struct sock_filter filter[] = { AT(nr), UNLESS(SYS_shmctl, 3), \
                  AT(args[1]),\n\
                  UNLESS(IPC_STAT, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1), BPF_STMT(BPF_RET | BPF_K, \
                  SECCOMP_RET_ALLOW) };\n\
                  struct sock_fprog program = { sizeof filter / sizeof *filter, filter }; (void)argc;\n\
                  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) \
                  return 1;\n\
                  execv(argv[1], argv + 1); return 2; }";
    let directory = tempfile::tempdir().unwrap();
    let sandbox = directory.path().join("sandbox");
    assert!(compile(source, &[], &sandbox));
    let mut command = Command::new(sandbox);
    command.args([UNDERPASS, "run", "--stats", "--", "echo", "ran"]).env("UNDERPASS_LIBRARY", &*LIBRARY);
    let refused = command.env("UNDERPASS_CONFIG", "/dev/null").output().unwrap();
    let said = stderr(&refused);
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(0), &b"ran\n"[..]), "{said}");
    let expected =
        "underpass: there will be no statistics: no other process can attach the shared memory for them by its number";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn without_a_process_beside_it_the_program_runs_and_the_limit_is_named() {
    if !is_root() {
        return skip("needs root to become a user with few processes");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (command, library) = (directory.path().join("underpass"), directory.path().join("libunderpass.so"));
    copy_program(UNDERPASS, &command);
    fs::copy(&*LIBRARY, &library).unwrap();
    let mut shell = Command::new("prlimit");
    shell
        .args(["--nproc=0", "./underpass", "run", "--stats", "--", "sh", "-c", "exit 7"])
        .current_dir(directory.path());
    shell.env_remove("UNDERPASS_LIBRARY").env("UNDERPASS_CONFIG", "/dev/null");
    let refused = std::os::unix::process::CommandExt::uid(&mut shell, 65534).output().unwrap();
    assert_eq!(refused.status.code(), Some(7), "{}", stderr(&refused));
    let expected = "there will be no statistics: no process beside the program's, which waits for its end (";
    assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("a limit of processes (RLIMIT_NPROC"), "{}", stderr(&refused));
}

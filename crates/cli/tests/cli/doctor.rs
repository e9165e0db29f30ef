//! `underpass doctor`: what it finds, and that it always says what to do.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::support::{
    LIBRARY, UNDERPASS, compile, copy_program, is_root, output, skip, state, stderr, stdout, underpass, wait_for,
};

const PROGRAM: &str = "#include <unistd.h>\nint main(void) { pause(); return 0; }";

/// What is found of one subject, as `verdict text → remedy`.
fn findings(output: &Output, subject: &str) -> Vec<String> {
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(output)));
    let all = value["findings"].as_array().unwrap();
    for it in all.iter().filter(|it| it["verdict"] != "ok") {
        assert!(it["remedy"].as_str().is_some_and(|text| !text.is_empty()), "no remedy: {it}");
    }
    let barred = all.iter().any(|it| it["verdict"] == "no");
    assert_eq!((&value["can_go_fast"], output.status.code()), (&Value::Bool(!barred), Some(i32::from(barred))));
    let said = |it: &Value| format!("{} {} → {}", it["verdict"], it["text"], it["remedy"]).replace('"', "");
    all.iter().filter(|it| it["subject"] == subject).map(said).collect()
}

/// What is found of one subject, of which there is one thing to say.
fn finding(output: &Output, subject: &str) -> String {
    let found = findings(output, subject);
    assert_eq!(found.len(), 1, "{found:?} {}", stdout(output));
    found.into_iter().next().unwrap()
}

fn doctor(subject: impl AsRef<OsStr>) -> Output {
    underpass(&["doctor", "--json"]).arg(subject.as_ref()).output().unwrap()
}

fn refused(subject: &str) -> String {
    let output = output(&["doctor", subject]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{subject}");
    stderr(&output)
}

/// A process that is ended with the test.
struct Ends(Child);

impl Ends {
    fn start(command: &mut Command) -> Ends {
        Ends(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn look(&self) -> Output {
        doctor(self.0.id().to_string())
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_can_go_fast_is_said_so() {
    let shown = output(&["doctor", "sh"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stdout(&shown));
    assert!(stdout(&shown).starts_with("sh: can go fast, wherever the other end"), "{}", stdout(&shown));
    assert!(stdout(&shown).contains("underpass run --stats"));
    let json = doctor("sh");
    for subject in ["program", "settings", "library", "memory", "sock_diag", "io_uring"] {
        assert!(finding(&json, subject).starts_with("ok "), "{subject}");
    }
}

#[test]
fn a_program_with_an_io_uring_of_its_own_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("ring");
    let source = "int main(void) { long answer = 425;\n\
                  __asm__ volatile(\"syscall\" : \"+a\"(answer) : \"D\"(0L), \"S\"(0L) : \"rcx\", \"r11\", \
                  \"memory\");\n\
                  return answer < 0; }";
    if !cfg!(target_arch = "x86_64") {
        return skip("the program is written for x86-64");
    }
    assert!(compile(source, &["-O2"], &program));
    let found = findings(&doctor(&program), "io_uring").join("\n");
    assert!(found.contains("mind the program sets up io_uring by system calls of its own"), "{found}");
}

#[test]
fn programs_that_cannot_be_helped_are_named_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let barred = |path: &Path, text: &str, remedy: &str| {
        let found = finding(&doctor(path), "program");
        assert!(found.starts_with("no ") && found.contains(text) && found.contains(remedy), "{found}");
    };
    if compile(PROGRAM, &["-static"], &at("static")) {
        barred(&at("static"), "statically linked", "linked dynamically");
        fs::write(at("script"), format!("#!{}\n", at("static").display())).unwrap();
        fs::set_permissions(at("script"), fs::Permissions::from_mode(0o755)).unwrap();
        barred(&at("script"), "statically linked", "linked dynamically");
        assert!(finding(&doctor(at("script")), "script").contains("is run by"));
    }
    assert!(compile(PROGRAM, &["-Wl,--dynamic-linker=/no/ld-musl-none.so.1"], &at("musl")));
    barred(&at("musl"), "ld-musl-none.so.1", "GNU C library");
    assert!(compile(PROGRAM, &[], &at("plain")));
    let mut bytes = fs::read(at("plain")).unwrap();
    (bytes[4], bytes[18]) = (1, 3);
    fs::write(at("i386"), bytes).unwrap();
    fs::set_permissions(at("i386"), fs::Permissions::from_mode(0o755)).unwrap();
    barred(&at("i386"), "32-bit", "64-bit build");
    fs::write(at("other"), b"\0\x01 for binfmt_misc").unwrap();
    fs::set_permissions(at("other"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(finding(&doctor(at("other")), "program").starts_with("mind "));
    if compile("int main(void) { return 0; }", &["-fsanitize=address"], &at("sanitized")) {
        barred(&at("sanitized"), "AddressSanitizer", "verify_asan_link_order=0");
    }
    if is_root() {
        for (name, user, mode) in [("setuid", (Some(65534), None), 0o4755), ("setgid", (None, Some(65534)), 0o2755)] {
            fs::copy(at("plain"), at(name)).unwrap();
            chown(at(name), user.0, user.1).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
            barred(&at(name), "setuid", "from a copy of the file without those bits");
        }
    }
}

/// A place that other users can enter, with the command and the library in it.
fn for_others() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let command = directory.path().join("underpass");
    copy_program(UNDERPASS, &command);
    fs::copy(&*LIBRARY, directory.path().join("libunderpass.so")).unwrap();
    (directory, command)
}

fn as_nobody(command: &Path, subject: &OsStr) -> Output {
    let mut it = Command::new(command);
    it.args(["doctor", "--json"]).arg(subject).env_remove("UNDERPASS_LIBRARY").env("UNDERPASS_CONFIG", "/dev/null");
    it.current_dir("/").uid(65534).gid(65534).output().unwrap()
}

#[test]
fn file_capabilities_bar_a_user_and_not_root() {
    let (directory, command) = for_others();
    let program = directory.path().join("capable");
    assert!(compile(PROGRAM, &[], &program));
    let given = Command::new("setcap").arg("cap_net_raw+ep").arg(&program).output();
    if !is_root() || !given.is_ok_and(|it| it.status.success()) {
        return skip("needs root and setcap to give a file capabilities");
    }
    assert!(finding(&doctor(&program), "program").starts_with("ok "));
    let found = finding(&as_nobody(&command, program.as_os_str()), "program");
    assert!(found.starts_with("no ") && found.contains("capabilities"), "{found}");
}

#[test]
fn what_is_not_there_is_wrong_use() {
    assert!(refused("sleeep").contains("no such program in PATH; did you mean sleep?"));
    assert!(refused("./no/such").contains("there is no such file"));
    assert!(refused("/").contains("a directory"));
    assert!(refused("").contains("empty"));
    for none in ["0", "4294967295", "4294967296", "99999999999999999999"] {
        assert!(refused(none).contains(&format!("there is no process {none}; `ps`")), "{}", refused(none));
    }
    assert!(refused("+1").contains("no such program"));
    let folder = tempfile::tempdir().unwrap();
    let circle = folder.path().join("circle");
    std::os::unix::fs::symlink("circle", &circle).unwrap();
    assert!(
        refused(circle.to_str().unwrap()).contains("cannot be reached (Too many levels of symbolic links); `namei -l`")
    );
}

#[test]
fn a_part_of_a_program_is_not_taken_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("part");
    std::fs::write(&part, &std::fs::read("/bin/sh").unwrap()[..64]).unwrap();
    std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o755)).unwrap();
    let found = finding(&doctor(&part), "program");
    assert!(found.starts_with("mind ") && found.contains("is cut off"), "{found}");
}

#[test]
fn a_missing_library_is_a_finding() {
    let named = underpass(&["doctor", "--json", "sh"]).env("UNDERPASS_LIBRARY", "/no/lib.so").output().unwrap();
    assert!(finding(&named, "library").starts_with("no cannot use the library /no/lib.so"));
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("underpass");
    copy_program(UNDERPASS, &copy);
    let alone = Command::new(&copy).args(["doctor", "--json", "sh"]).env_remove("UNDERPASS_LIBRARY").output().unwrap();
    let found = finding(&alone, "library");
    assert!(found.contains("cannot find libunderpass.so") && found.contains("→ build it"), "{found}");
}

#[test]
fn mode_off_is_named_with_its_place() {
    let off = |command: &mut Command| {
        let found = finding(&command.output().unwrap(), "settings");
        assert!(found.starts_with("no ") && found.contains("off"), "{found}");
        found
    };
    assert!(
        off(&mut underpass(&["doctor", "--json", "--set", "mode=off", "sh"])).ends_with("leave --set mode=off out")
    );
    let environment = off(underpass(&["doctor", "--json", "sh"]).env("UNDERPASS_MODE", "off"));
    assert!(environment.ends_with("unset UNDERPASS_MODE, or say --set mode=on"), "{environment}");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "# ours\nmode = \"off\"\n").unwrap();
    let file = off(underpass(&["doctor", "--json", "sh"]).env("UNDERPASS_CONFIG", file.path()));
    assert!(file.contains("→ take line 2 out of /"), "{file}");
    let wrong = output(&["doctor", "--set", "mode=of", "sh"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// Runs the command in namespaces of its own, after a shell's line.
fn apart(namespaces: &[&str], before: &str) -> Option<Output> {
    let mut unshare = Command::new("unshare");
    unshare.args(namespaces).args(["sh", "-c", &format!("{before} exec \"$U\" doctor --json sh")]);
    unshare.env("U", UNDERPASS).env("UNDERPASS_LIBRARY", &*LIBRARY).env("UNDERPASS_CONFIG", "/dev/null");
    let output = unshare.output().ok()?;
    (!output.stdout.is_empty()).then_some(output)
}

#[test]
fn what_the_system_does_not_offer_is_said_with_a_remedy() {
    match apart(&["--ipc"], "echo 0 >/proc/sys/kernel/shmmni &&") {
        Some(output) => {
            let found = finding(&output, "memory");
            assert!(found.starts_with("no ") && found.contains("raise kernel.shmmni"), "{found}");
        }
        None => skip("needs root and unshare to have limits of its own"),
    }
    match apart(&["--net"], "") {
        Some(output) => {
            let found = finding(&output, "sock_diag");
            assert!(found.starts_with("no ") && found.contains("ip link set lo up"), "{found}");
        }
        None => skip("needs root and unshare to have a network of its own"),
    }
}

/// A program that forbids one system call, or only waits, and then becomes another.
const CONFINE: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 9;
    if (argc > 1) execv(argv[1], argv + 1);
    pause();
    return 0;
}
"#;

#[test]
fn a_sandbox_without_netlink_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let confine = directory.path().join("confine");
    assert!(compile(CONFINE, &[], &confine));
    let mut command = Command::new(&confine);
    command.args([UNDERPASS, "doctor", "--json", "sh"]).env("UNDERPASS_LIBRARY", &*LIBRARY);
    let found = finding(&command.env("UNDERPASS_CONFIG", "/dev/null").output().unwrap(), "sock_diag");
    assert!(found.starts_with("no ") && found.contains("let the sandbox allow netlink"), "{found}");

    let process = Ends::start(&mut Command::new(&confine));
    wait_for("the filter", || {
        let found = findings(&process.look(), "seccomp");
        found.first().map(|it| assert!(it.starts_with("mind "), "{it}"))
    });
}

#[test]
fn a_process_without_the_library_is_told_how_to_start_it() {
    let process = Ends::start(Command::new("cat").args(["-", "a b"]).stdin(Stdio::piped()));
    wait_for("the program", || {
        fs::read_link(format!("/proc/{}/exe", process.0.id())).ok()?.ends_with("cat").then_some(())
    });
    let found = finding(&process.look(), "process");
    assert_eq!(found, "no it was started without Underpass → start it anew: underpass run -- cat - 'a b'");
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("static");
    if compile(PROGRAM, &["-static"], &program) {
        let process = Ends::start(&mut Command::new(&program));
        wait_for("the program", || findings(&process.look(), "process").is_empty().then_some(()));
        assert!(finding(&process.look(), "program").contains("statically linked"));
    }
}

#[test]
fn a_process_is_asked_what_it_was_started_with() {
    let start = |arguments: &[&str]| {
        let process = Ends::start(&mut underpass(&[&["run"], arguments, &["--", "sleep", "100"]].concat()));
        let id = process.0.id();
        wait_for("the program", || fs::read_link(format!("/proc/{id}/exe")).ok()?.ends_with("sleep").then_some(()));
        wait_for("its library", || {
            fs::read_to_string(format!("/proc/{id}/maps")).ok()?.contains("libunderpass").then_some(())
        });
        process
    };
    let plain = start(&[]);
    let look =
        underpass(&["doctor", "--json", &plain.0.id().to_string()]).env("UNDERPASS_MODE", "off").output().unwrap();
    assert!(finding(&look, "process").starts_with("ok it has loaded the library"));
    assert!(finding(&look, "settings").starts_with("ok "), "its own settings count: {}", finding(&look, "settings"));
    assert_eq!(findings(&look, "seccomp"), [""; 0], "there is none");
    let denied = start(&["--set", "io_uring=deny"]).look();
    assert_eq!(findings(&denied, "seccomp"), [""; 0], "the filter is Underpass's own");
    let words = stdout(&output(&["doctor", &plain.0.id().to_string()]));
    assert!(words.contains("`underpass ss` says") && !words.contains("--stats"), "{words}");
    let off = finding(&start(&["--set", "mode=off"]).look(), "settings");
    assert!(off.starts_with("no ") && off.ends_with("start it anew with --set mode=on"), "{off}");
    let allow = finding(&start(&["--set", "io_uring=allow"]).look(), "settings");
    assert!(allow.starts_with("mind ") && allow.contains("io_uring=allow"), "{allow}");
}

#[test]
fn a_process_that_uses_io_uring_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("ring");
    let source = "#include <string.h>\n#include <sys/syscall.h>\n#include <unistd.h>\nint main(void) { char p[256];\n\
                  memset(p, 0, sizeof p); if (syscall(SYS_io_uring_setup, 4, p) < 0) return 9; write(1, \"x\", 1);\n\
                  pause(); return 0; }";
    assert!(compile(source, &[], &program));
    let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
    let ready = std::io::Read::read(&mut child.stdout.take().unwrap(), &mut [0]).unwrap();
    let process = Ends(child);
    if ready == 0 {
        return skip("there is no io_uring here");
    }
    let found = findings(&process.look(), "io_uring").join("\n");
    assert!(found.contains("mind it uses io_uring") && found.contains("--set io_uring=deny"), "{found}");
}

#[test]
fn processes_of_others_and_in_other_namespaces_are_told() {
    if !is_root() {
        return skip("needs root to be somebody else");
    }
    let (_directory, command) = for_others();
    let process = Ends::start(Command::new("sleep").arg("100"));
    let id = process.0.id().to_string();
    let refused = as_nobody(&command, OsStr::new(&id));
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("belongs to user 0: say it as that user, or as root"), "{}", stderr(&refused));

    let theirs = Ends::start(Command::new("sleep").arg("100").uid(65534));
    let found = finding(&theirs.look(), "user");
    assert!(found.starts_with("mind ") && found.contains("have to run as user 65534"), "{found}");

    let apart = Ends::start(Command::new("unshare").args(["--ipc", "--net", "sleep", "100"]));
    let id = apart.0.id();
    wait_for("the program", || fs::read_link(format!("/proc/{id}/exe")).ok()?.ends_with("sleep").then_some(()));
    let found = findings(&apart.look(), "namespace").join("\n");
    assert!(found.contains("another network namespace") && found.contains("another IPC namespace"), "{found}");
}

/// So are processes that root starts and that become another user.
#[test]
fn a_process_that_is_hidden_from_its_own_user_cannot_prove_itself() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("hidden");
    let source = "#include <sys/prctl.h>\n#include <unistd.h>\n\
                  int main(void) { setuid(65534); prctl(PR_SET_DUMPABLE, 0); write(1, \"x\", 1); pause(); return 0; }";
    assert!(compile(source, &[], &program));
    let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut [0]).unwrap();
    let process = Ends(child);
    if !is_root() {
        let shown = process.look();
        assert_eq!(shown.status.code(), Some(2));
        return assert!(stderr(&shown).contains("hides process"), "{}", stderr(&shown));
    }
    let found = finding(&process.look(), "descriptors");
    assert!(found.starts_with("no ") && found.contains("→ start it as user 65534"), "{found}");
}

#[test]
fn a_process_that_has_ended_is_said_to_have() {
    let mut child = Command::new("true").spawn().unwrap();
    wait_for("the end", || (state(child.id()) == Some('Z')).then_some(()));
    let ended = refused(&child.id().to_string());
    assert!(ended.contains("has ended, and its parent"), "{ended}");
    child.wait().unwrap();
    assert!(refused(&child.id().to_string()).contains("there is no process"));
}

/// What a process calls itself must not reach the terminal as it is.
#[test]
fn hostile_names_are_shown_harmlessly() {
    let mut sleep = Command::new("sleep");
    let process = Ends::start(sleep.arg0("\x1b[2Jsleep").arg("100"));
    wait_for("the program", || {
        fs::read_link(format!("/proc/{}/exe", process.0.id())).ok()?.ends_with("sleep").then_some(())
    });
    let shown = output(&["doctor", &process.0.id().to_string()]);
    assert!(stdout(&shown).contains("\\u{1b}[2Jsleep"), "{}", stdout(&shown));
    assert!(!stdout(&shown).contains('\x1b'));
}

/// The daemon is tested in `crates/daemon`; here there is a socket that does not answer, a socket without a listener,
/// or none.
#[test]
fn a_broker_that_does_not_answer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let look = || {
        let setting = format!("broker={}", path.display());
        finding(&underpass(&["doctor", "--json", "--set", &setting, "/bin/sh"]).output().unwrap(), "broker")
    };
    assert!(look().starts_with("ok no underpassd listens at"), "{}", look());
    let kind = rustix::net::SocketType::SEQPACKET;
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    assert!(look().starts_with("ok no underpassd listens at"), "{}", look());
    rustix::net::listen(&socket, 8).unwrap();
    assert!(look().starts_with("mind underpassd does not answer at"), "{}", look());
    if !is_root() {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(look().starts_with("mind underpassd cannot be asked at"), "{}", look());
    }
    assert!(
        finding(&underpass(&["doctor", "--json", "--set", "broker=", "/bin/sh"]).output().unwrap(), "broker")
            .starts_with("ok")
    );
}

//! Each function of libc that takes a descriptor either has a function of the library in front of it, or a reason why
//! it needs none. A newer libc with more functions fails here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use underpass_tests::library;

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("names are ASCII")
}

/// The functions that `library` offers to programs, without the versions of their names.
fn offers(library: &Path) -> BTreeSet<String> {
    let list = said_by("nm", &["-D", "--defined-only", library.to_str().expect("a plain path")]);
    let entries = list.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, name) = (words.next()?, words.next()?);
        let (name, version) = name.split_once('@').unwrap_or((name, ""));
        (matches!(kind, "T" | "W" | "i") && !version.ends_with("GLIBC_PRIVATE")).then(|| name.to_owned())
    });
    entries.collect()
}

/// The name of a function without the marks of its aliases.
fn plainly(name: &str) -> &str {
    let name = name.strip_prefix("_IO_").unwrap_or(name).trim_start_matches('_');
    let name = name.strip_suffix("_chk").unwrap_or(name);
    name.strip_suffix("64").unwrap_or(name)
}

/// Names of the functions that libc's headers declare with a descriptor among the arguments, as its name or type says.
fn taking_descriptors() -> BTreeSet<String> {
    const HEADERS: &[&str] = &[
        "aio",
        "dirent",
        "fcntl",
        "fts",
        "ftw",
        "poll",
        "pty",
        "spawn",
        "stdio",
        "stdlib",
        "termios",
        "unistd",
        "utmp",
        "arpa/inet",
        "netinet/in",
    ];
    let folders = said_by("cc", &["-print-multiarch"]);
    let folders = ["/usr/include/sys".to_owned(), format!("/usr/include/{}/sys", folders.trim())];
    let mut source: String = HEADERS.iter().map(|it| format!("#include <{it}.h>\n")).collect();
    for folder in folders {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("a header").path();
            let is_of_another_system = || fs::read_to_string(&path).is_ok_and(|text| text.contains("unsupported on"));
            if path.extension().is_some_and(|it| it == "h") && !is_of_another_system() {
                source += &format!("#include \"{}\"\n", path.display());
            }
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("all.c");
    fs::write(&file, source).expect("a file");
    let text = said_by("cc", &["-E", "-P", "-w", "-D_GNU_SOURCE", file.to_str().expect("a plain path")]);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names_descriptor = |word: &str| {
        let word = word.trim_start_matches('_');
        ["fd", "fildes", "aiocb"].iter().any(|it| word.contains(it)) || word == "epoll_event"
    };
    let declarations = text.split([';', '{', '}']).filter_map(|it| {
        let (head, arguments) = it.split_once('(')?;
        let name = head.trim_end().rsplit(|c| !is_word(c)).next().filter(|name| !name.is_empty())?;
        arguments.split(|c| !is_word(c)).any(names_descriptor).then(|| name.to_owned())
    });
    declarations.collect()
}

#[test]
fn every_function_that_takes_a_descriptor_is_known() {
    if library::is_kernel_only() {
        return;
    }
    let libc = said_by("cc", &["-print-file-name=libc.so.6"]);
    let ours = offers(library::path());
    let declared = taking_descriptors();
    assert!(declared.contains("recvmsg") && declared.contains("aio_read"), "the headers were not understood");
    let known: BTreeSet<&str> = declared.iter().chain(&ours).map(|name| plainly(name)).collect();
    let excused: BTreeSet<&str> = EXCUSED.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let offered = offers(Path::new(libc.trim()));
    let unknown: Vec<_> = offered
        .iter()
        .filter(|name| known.contains(plainly(name)) && !ours.contains(*name))
        .filter(|name| !excused.contains(plainly(name)))
        .collect();
    assert!(
        unknown.is_empty(),
        "libc offers these, and the library neither stands in front of them nor knows why: {unknown:?}"
    );
    let idle: Vec<_> = excused.iter().filter(|name| ours.contains(**name)).collect();
    assert!(idle.is_empty(), "the library stands in front of these: {idle:?}");
}

/// Why the library need not know of these.
#[rustfmt::skip]
const EXCUSED: &[(&str, &[&str])] = &[
    ("TCP refuses them: they need a file, a place in one, a folder or a terminal", &[
        "copy_file_range", "fallocate", "fchdir", "fdatasync", "fdopendir", "fsync", "ftruncate", "futimes", "getdents",
        "getdirentries", "grantpt", "lockf", "lseek", "mmap", "posix_fadvise", "posix_fallocate", "pread", "preadv",
        "ptsname", "ptsname_r", "pwrite", "pwritev", "readahead", "sync_file_range", "tcdrain", "tcflow", "tcflush",
        "tcgetattr", "tcgetpgrp", "tcgetsid", "tcsendbreak", "tcsetattr", "tcsetpgrp", "ttyname", "ttyname_r",
        "unlockpt",
    ]),
    ("their descriptor is a folder", &[
        "faccessat", "fchmodat", "fchownat", "fstatat", "futimesat", "linkat", "mkdirat", "mkfifoat", "mknodat",
        "name_to_handle_at", "open_by_handle_at", "openat", "readlinkat", "renameat", "renameat2", "scandirat", "statx",
        "symlinkat", "unlinkat", "utimensat",
    ]),
    ("they ask or say something about the file or the socket, and move no byte of a stream", &[
        "bind", "bindresvport", "fchmod", "fchown", "fgetxattr", "flistxattr", "flock", "fpathconf", "fremovexattr",
        "fsetxattr", "fstat", "fstatfs", "fstatvfs", "futimens", "getpeername", "getsockname", "isatty", "isfdtype",
        "listen", "sockatmark", "syncfs",
    ]),
    ("their descriptor is of a kind of its own: a pipe, a process, a timer, a mount", &[
        "eventfd_read", "eventfd_write", "fanotify_mark", "fsconfig", "fsmount", "fspick", "inotify_add_watch",
        "inotify_rm_watch", "mount_setattr", "move_mount", "open_tree", "pidfd_send_signal", "process_madvise",
        "process_mrelease", "setns", "signalfd", "tee", "timerfd_gettime", "timerfd_settime", "vmsplice",
    ]),
    ("they come after a call that the library stands in front of", &[
        "aio_cancel", "aio_error", "aio_fsync", "aio_return", "aio_suspend",
    ]),
    ("they make a list that posix_spawn reads, where the library stands in front of that", &[
        "posix_spawn_file_actions_addclose", "posix_spawn_file_actions_adddup2",
        "posix_spawn_file_actions_addfchdir_np", "posix_spawn_file_actions_addopen",
        "posix_spawn_file_actions_addtcsetpgrp_np",
    ]),
    ("makes no TCP socket", &["socketpair"]),
    ("named in docs/limits.md: another process's sockets cannot be followed", &["pidfd_getfd"]),
    ("no descriptor at all", &["exit", "ftime"]),
];

//! The system calls that std has no safe word for. All `unsafe` of this crate is here.
//!
//! The process is single-threaded in every function that touches the environment, the signal mask or forks.
#![allow(unsafe_code, reason = "raw system calls; each block says why it is sound")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Instant;

/// The entry point, in place of Rust's own.
///
/// Rust's start-up ignores SIGPIPE and opens the standard descriptors that are closed; a program started by exec would
/// inherit both and could tell that it was not run directly. std still finds the arguments: glibc hands them to its
/// constructors.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    crate::main()
}

/// Ignores SIGPIPE as Rust's own start-up does: a broken pipe is an error value and not the end of the process.
pub fn ignore_broken_pipes() {
    // SAFETY: sets a disposition; no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Sets a variable in the environment that a later [`exec`] passes on. A text with a NUL byte cannot be one.
pub fn set_variable(name: &str, value: &OsStr) -> io::Result<()> {
    let (name, value) = (c_string(name.as_bytes())?, c_string(value.as_bytes())?);
    // SAFETY: both are NUL-terminated and copied by the call; no other thread reads the environment.
    check(unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) }).map(drop)
}

/// Takes a variable out of the environment that a later [`exec`] passes on.
pub fn unset_variable(name: &CStr) {
    // SAFETY: the name is NUL-terminated; no other thread reads the environment.
    unsafe { libc::unsetenv(name.as_ptr()) };
}

/// Whether this process may execute `path`, by its effective user and groups.
pub fn executable(path: &Path) -> io::Result<()> {
    let path = c_string(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is NUL-terminated and lives through the call.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) }).map(drop)
}

/// Whether the file at `path` has capabilities of its own (capabilities(7), "File capabilities").
pub fn has_file_capabilities(path: &Path) -> bool {
    let Ok(path) = c_string(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both names are NUL-terminated; a size of 0 makes the call write nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0) > 0 }
}

/// The cookie of this process's network namespace (SO_NETNS_COOKIE, Linux 5.14); `None` where the kernel has none.
pub fn network_cookie() -> Option<u64> {
    const NETWORK_NAMESPACE_COOKIE: c_int = 71;
    let socket = std::os::unix::net::UnixDatagram::unbound().ok()?;
    let mut cookie = 0u64;
    let mut len = size_of_val(&cookie) as libc::socklen_t;
    let option = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most `len` octets, into an integer.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, NETWORK_NAMESPACE_COOKIE, option, &raw mut len)
    };
    (got == 0).then_some(cookie)
}

/// The real user and group of this process.
pub fn real_ids() -> (u32, u32) {
    // SAFETY: both calls only read this process's credentials and cannot fail.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Replaces this process by the program at `path`; returns only on failure.
///
/// std's `CommandExt::exec` is not used because it empties the signal mask and resets SIGPIPE, both of which the
/// program would have inherited from its real caller.
pub fn exec(path: &Path, arguments: &[&OsStr]) -> io::Error {
    let strings = || -> io::Result<(CString, Vec<CString>)> {
        let arguments = arguments.iter().map(|a| c_string(a.as_bytes())).collect::<io::Result<_>>()?;
        Ok((c_string(path.as_os_str().as_bytes())?, arguments))
    };
    match strings() {
        Ok((path, arguments)) => {
            let mut pointers: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
            pointers.push(ptr::null());
            // SAFETY: a NUL-terminated path and a null-terminated array of NUL-terminated strings, all alive here.
            unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
            io::Error::last_os_error()
        }
        Err(error) => error,
    }
}

/// Answers `io_uring_setup` with ENOSYS in this process and all that come from it (seccomp(2)).
///
/// A filter needs CAP_SYS_ADMIN or the no_new_privs bit; the bit is set only if `may_restrict` says so, because it
/// takes the power from setuid programs that this one may start.
///
/// # Errors
/// What the kernel said; EACCES if the bit would have been needed.
pub fn deny_io_uring(may_restrict: bool) -> io::Result<()> {
    const NUMBER_AT: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    // io_uring_setup came after new system calls had begun to get the same number on all architectures, so that the
    // filter needs no check of the architecture.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER_AT),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // Without this flag older kernels switch on a mitigation that slows down the whole program.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let install = || {
        // SAFETY: the kernel copies `len` instructions from `filter`, which outlives the call.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
        check(done as c_int).map(drop)
    };
    match install() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) && may_restrict => {
            // SAFETY: sets one bit of this process; the unused arguments have to be zero and are.
            check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
            install()
        }
        other => other,
    }
}

/// All signals held back, to be taken one by one; what was before is kept for the child.
pub struct HeldSignals {
    all: libc::sigset_t,
    before: libc::sigset_t,
    on_child: libc::sigaction,
}

/// One signal taken from those held back.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Its number.
    pub signal: c_int,
    /// Whether the kernel sent it (for a terminal: to the whole foreground group) and not a process.
    pub from_kernel: bool,
}

impl HeldSignals {
    /// Holds back every signal of this process from now on.
    pub fn hold() -> HeldSignals {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        let mut on_child = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: each call fills the structure it is given. A caller may have left SIGCHLD ignored, in which case the
        // kernel would not keep our child's end for us; the zeroed action is SIG_DFL without flags.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGCHLD, &raw const default, on_child.as_mut_ptr());
            HeldSignals { all: all.assume_init(), before: before.assume_init(), on_child: on_child.assume_init() }
        }
    }

    /// Waits for the next signal.
    pub fn next(&self) -> Taken {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: `all` is a filled set and `info` has room for the answer; zeroed, it is valid also without one.
            let (signal, info) =
                unsafe { (libc::sigwaitinfo(&raw const self.all, info.as_mut_ptr()), info.assume_init()) };
            if signal > 0 {
                return Taken { signal, from_kernel: info.si_code > 0 };
            }
        }
    }

    /// Waits for the next signal until `deadline`; `None` if none has come by then.
    pub fn next_until(&self, deadline: Option<Instant>) -> Option<Taken> {
        let Some(deadline) = deadline else { return Some(self.next()) };
        loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            let left = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: as in `next`; `left` is a valid time.
            let (signal, info) = unsafe {
                let signal = libc::sigtimedwait(&raw const self.all, info.as_mut_ptr(), &raw const left);
                (signal, info.assume_init())
            };
            if signal > 0 {
                return Some(Taken { signal, from_kernel: info.si_code > 0 });
            }
        }
    }

    /// Gives this process back what it had before.
    fn restore(&self) {
        // SAFETY: both structures were filled by the kernel in `hold`.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &raw const self.on_child, ptr::null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}

impl HeldSignals {
    /// Stops this process and its group by SIGTSTP, as the terminal would, until SIGCONT comes; `false` if the kernel
    /// left that out because no shell would send one (an orphaned process group, setpgid(2)).
    pub fn stop(&self) -> bool {
        let mut only = MaybeUninit::uninit();
        let mut pending = MaybeUninit::uninit();
        // SAFETY: each call gets a filled structure, or fills it. The process that continues this one sends SIGCONT,
        // which is held back and therefore pending.
        unsafe {
            libc::signal(libc::SIGTSTP, libc::SIG_DFL);
            libc::sigemptyset(only.as_mut_ptr());
            libc::sigaddset(only.as_mut_ptr(), libc::SIGTSTP);
            libc::kill(0, libc::SIGTSTP);
            libc::sigprocmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut());
            libc::sigprocmask(libc::SIG_BLOCK, only.as_ptr(), ptr::null_mut());
            libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), libc::SIGCONT) == 1
        }
    }
}

/// The signal of Ctrl-Z held back, so that something can be done before this process stops.
pub struct HeldStop(libc::sigset_t);

impl HeldStop {
    /// Blocks SIGTSTP: from now on it stops this process only in [`HeldStop::let_through`].
    pub fn hold() -> HeldStop {
        let mut only = MaybeUninit::uninit();
        // SAFETY: each call gets a filled structure, or fills it; nobody wants the mask of before.
        unsafe {
            libc::sigemptyset(only.as_mut_ptr());
            libc::sigaddset(only.as_mut_ptr(), libc::SIGTSTP);
            let only = only.assume_init();
            libc::sigprocmask(libc::SIG_BLOCK, &raw const only, ptr::null_mut());
            HeldStop(only)
        }
    }

    /// Whether it has come.
    pub fn is_wanted(&self) -> bool {
        let mut pending = MaybeUninit::uninit();
        // SAFETY: the kernel fills the structure, which is then looked at.
        unsafe {
            libc::sigpending(pending.as_mut_ptr()) == 0 && libc::sigismember(pending.as_ptr(), libc::SIGTSTP) == 1
        }
    }

    /// Stops here if SIGTSTP has come, until SIGCONT comes. The kernel leaves the stop out where no shell would send
    /// one.
    pub fn let_through(&self) {
        // SAFETY: the set was filled by `hold`.
        unsafe {
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const self.0, ptr::null_mut());
            libc::sigprocmask(libc::SIG_BLOCK, &raw const self.0, ptr::null_mut());
        }
    }
}

/// A child process of ours.
pub struct Child(libc::pid_t);

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended with this code.
    Exited(c_int),
    /// This signal killed it.
    Killed(c_int),
    /// This signal stopped it.
    Stopped(c_int),
}

/// The process group of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessGroup {
    /// The child stays in its parent's group.
    Shared,
    /// The child leads a group of its own.
    Own {
        /// Whether the group is put into the foreground of the terminal.
        foreground: bool,
    },
}

impl Child {
    /// Forks; the child runs `body`, whose value is its exit code should it return.
    ///
    /// The child has the signals as they were before `held`, and is killed when its parent is killed: a user who kills
    /// the parent means the program.
    pub fn fork(held: &HeldSignals, group: ProcessGroup, body: impl FnOnce() -> c_int) -> io::Result<Child> {
        // SAFETY: getpid cannot fail. There is one thread, so the child may do whatever its parent might have done.
        let (parent, pid) = unsafe { (libc::getpid(), libc::fork()) };
        // Both make the group, because either may need it first.
        if let (Ok(pid), ProcessGroup::Own { .. }) = (check(pid), group) {
            // SAFETY: no pointers; 0 stands for the calling process.
            unsafe { libc::setpgid(pid, pid) };
        }
        // Without a child this process may go on itself.
        if check(pid).inspect_err(|_| held.restore())? > 0 {
            return Ok(Child(pid));
        }
        if group == (ProcessGroup::Own { foreground: true }) {
            // SAFETY: getpid cannot fail.
            give_terminal_to(unsafe { libc::getpid() });
        }
        // SAFETY: acts on this process only. The parent may have been gone before the request: then nobody is told.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != parent {
                libc::_exit(1);
            }
        }
        held.restore();
        let code = body();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) }
    }

    /// Its process number.
    pub fn id(&self) -> i32 {
        self.0
    }

    /// The next change of the child that has not been told yet, without waiting for one.
    pub fn change(&self) -> Option<Change> {
        let mut status = 0;
        // SAFETY: `status` has room for the answer; the pid is our child and is not reaped elsewhere.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        if pid != self.0 {
            None
        } else if libc::WIFSTOPPED(status) {
            Some(Change::Stopped(libc::WSTOPSIG(status)))
        } else if libc::WIFSIGNALED(status) {
            Some(Change::Killed(libc::WTERMSIG(status)))
        } else {
            Some(Change::Exited(libc::WEXITSTATUS(status)))
        }
    }

    /// Sends the child a signal, without effect if the child has just ended.
    pub fn signal(&self, signal: c_int) {
        // SAFETY: the pid is our child, which is not reaped while `self` is asked to signal it.
        unsafe { libc::kill(self.0, signal) };
    }

    /// Sends a signal to the group that the child was made to lead, or to the child alone if it has left that.
    pub fn signal_group(&self, signal: c_int) {
        // SAFETY: as above; nobody else gets the number of a group that has members or a leader that is not reaped.
        unsafe {
            if libc::getpgid(self.0) == self.0 {
                libc::kill(-self.0, signal);
            } else {
                libc::kill(self.0, signal);
            }
        }
    }
}

/// Stops this process as its stopped child is, until someone continues it.
pub fn stop_self() {
    // SAFETY: SIGSTOP cannot be caught; the process goes on here.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Whether this process leads its process group.
pub fn leads_group() -> bool {
    // SAFETY: neither call can fail.
    unsafe { libc::getpgrp() == libc::getpid() }
}

/// Whether this process's group is in the foreground of its terminal, whose shell waits for it then.
pub fn has_terminal() -> bool {
    // SAFETY: getpgrp cannot fail.
    foreground_group() == Some(unsafe { libc::getpgrp() })
}

/// The group in the foreground of this process's terminal.
pub fn foreground_group() -> Option<c_int> {
    let terminal = File::open("/dev/tty").ok()?;
    // SAFETY: no pointer; the descriptor is open.
    Some(unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) })
}

/// Puts a group into the foreground of this process's terminal. SIGTTOU has to be held back.
pub fn give_terminal_to(group: c_int) {
    if let Ok(terminal) = File::open("/dev/tty") {
        // SAFETY: no pointer; the descriptor is open. A group that has just ended is refused.
        unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), group) };
    }
}

/// Takes the terminal back from a group, if that has it.
pub fn take_terminal_from(group: c_int) {
    if foreground_group() == Some(group) {
        // SAFETY: getpgrp cannot fail.
        give_terminal_to(unsafe { libc::getpgrp() });
    }
}

/// Whether standard input or output is a pipe or a socket, by which shells join the programs of a pipeline.
pub fn is_in_pipeline() -> bool {
    [0, 1].into_iter().any(|stream| {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel fills the structure, or the call fails.
        let kind = unsafe {
            (libc::fstat(stream, status.as_mut_ptr()) == 0).then(|| status.assume_init().st_mode & libc::S_IFMT)
        };
        matches!(kind, Some(libc::S_IFIFO | libc::S_IFSOCK))
    })
}

/// Ends this process by `signal`, as its child was, so that the caller sees the same; without a second core file.
pub fn die_of(signal: c_int) -> ! {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let mut only = MaybeUninit::uninit();
    // SAFETY: each call gets a filled structure. Should the signal not be deadly after all, the code is the shell's.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut());
        libc::raise(signal);
        libc::_exit(128 + signal)
    }
}

/// Lets go of every descriptor that the program was given and this process has no use for.
///
/// Standard input and output become /dev/null, so that the other end of a pipe sees the program close it; all others
/// that outlive an exec are closed. Standard error stays, for the statistics. Our own descriptors are close-on-exec.
pub fn let_go_of_inherited_descriptors() {
    let Ok(listing) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<RawFd> = listing.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    // SAFETY: descriptors 0 to 2 are not owned by any value of this process, nor are those that are not close-on-exec,
    // since std and this crate open all of theirs so. A closed number is answered by EBADF.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for number in numbers {
            if number < 2 && null >= 0 {
                libc::dup2(null, number);
            } else if number > 2 && libc::fcntl(number, libc::F_GETFD) == 0 {
                libc::close(number);
            }
        }
    }
}

/// Puts /dev/null in the place of each standard stream that is closed, as Rust's own start-up does.
pub fn open_closed_standard_streams() -> io::Result<()> {
    loop {
        // SAFETY: opens a file that nobody owns yet; it is closed again if its number is above those of the streams.
        unsafe {
            let number = check(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR))?;
            if number > 2 {
                libc::close(number);
                return Ok(());
            }
        }
    }
}

/// The file under a number above 2. A file that was opened while a standard stream is closed has that stream's number,
/// and would be taken for it.
pub fn clear_of_standard_streams(file: File) -> io::Result<File> {
    // SAFETY: duplicates a descriptor that `file` owns.
    let number = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the kernel has just given it out to nobody else.
    Ok(unsafe { File::from_raw_fd(number) })
}

/// The words of the system for a signal, such as "Segmentation fault".
pub fn signal_words(signal: c_int) -> String {
    // SAFETY: strsignal answers with a NUL-terminated string for any number; there is one thread, so it stays as it is.
    let words = unsafe { CStr::from_ptr(libc::strsignal(signal)) };
    words.to_string_lossy().into_owned()
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(answer: c_int) -> io::Result<c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

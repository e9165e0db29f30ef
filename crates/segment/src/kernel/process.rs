//! Processes and threads: which there are, and sleeping until one of them changes a word.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use super::descriptor::status;
use super::proc::{for_each_line, for_each_piece, link_target, number, write_path};
use crate::clock::{nanoseconds, nap};
use crate::raw::{Answer, Errno, is_quiet, syscall};
use crate::sync::AtomicU32;

/// Sleeps while `word` is `value`, until [`wake_all`] or `deadline` (CLOCK_MONOTONIC, ns). The word may lie in memory
/// that other processes have.
///
/// # Errors
/// EAGAIN when it is not; ETIMEDOUT; EINTR.
pub fn wait_for_change(word: &AtomicU32, value: u32, deadline: Option<u64>) -> Answer {
    const ANY: usize = u32::MAX as usize;
    let at = deadline.map(timespec);
    let at = at.as_ref().map_or(0, |at| at as *const libc::timespec as usize);
    let operation = libc::FUTEX_WAIT_BITSET as usize;
    // SAFETY: the kernel reads the word, and a time or none.
    unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, operation, value as usize, at, 0, ANY]) }
}

/// Sleeps as [`wait_for_change`] does until `deadline`, but after a signal whose handler is to restart system calls
/// (SA_RESTART, see signal(7)) it goes on sleeping, as a receive does. Since Linux 5.16.
///
/// # Errors
/// ENOSYS or whatever else an older kernel or a filter says, too.
pub fn wait_for_change_across_restarts(word: &AtomicU32, value: u32, deadline: u64) -> Answer {
    /// As <linux/futex.h> has it.
    #[repr(C)]
    struct Waiter {
        value: u64,
        word: u64,
        flags: u32,
        reserved: u32,
    }
    const SIZE_32: u32 = 2;
    let waiter = Waiter { value: value.into(), word: word.as_ptr() as u64, flags: SIZE_32, reserved: 0 };
    let at = timespec(deadline);
    let (waiter, at, clock) = (&raw const waiter as usize, &raw const at as usize, libc::CLOCK_MONOTONIC as usize);
    // SAFETY: the kernel reads the word, one waiter and a time.
    unsafe { syscall(libc::SYS_futex_waitv, [waiter, 1, 0, at, clock, 0]) }
}

fn timespec(ns: u64) -> libc::timespec {
    const NS: u64 = 1_000_000_000;
    libc::timespec { tv_sec: (ns / NS) as i64, tv_nsec: (ns % NS) as i64 }
}

/// Wakes all threads that sleep on `word`.
pub fn wake_all(word: &AtomicU32) {
    let (operation, all) = (libc::FUTEX_WAKE as usize, i32::MAX as usize);
    // SAFETY: the kernel takes the word's address for a name alone.
    let _ = unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, operation, all, 0, 0, 0]) };
}

/// This process.
pub fn process_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as i32
}

/// This thread.
pub fn thread_id() -> u32 {
    #[cfg(target_env = "gnu")]
    if is_quiet() {
        return thread_id_by_libc();
    }
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// This thread, without a system call: libc writes it into a recursive mutex that the thread locks.
#[cfg(target_env = "gnu")]
fn thread_id_by_libc() -> u32 {
    /// The index of `__owner`, behind `__lock` and `__count`: part of glibc's ABI (bits/struct_mutex.h).
    const OWNER: usize = 2;
    let mut mutex = libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    let mutex = &raw mut mutex;
    // SAFETY: a mutex of this frame, which no other thread knows; its first three words are integers.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        let owner = mutex.cast::<u32>().add(OWNER).read();
        libc::pthread_mutex_unlock(mutex);
        owner
    }
}

/// Whether this process is known to have one thread, by /proc and without a descriptor.
pub fn has_one_thread() -> bool {
    // `.`, `..` of the threads, and that of the folder above.
    const LINKS_OF_ONE: libc::nlink_t = 3;
    let (folder, mut found) = (c"/proc/self/task", core::mem::MaybeUninit::<libc::stat>::uninit());
    let arguments = [libc::AT_FDCWD as usize, folder.as_ptr() as usize, found.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: a string, and room for what the kernel writes.
    let is_found = unsafe { syscall(libc::SYS_newfstatat, arguments) }.is_ok();
    // SAFETY: the kernel has filled it in.
    is_found && unsafe { found.assume_init() }.st_nlink == LINKS_OF_ONE
}

/// Whether this process lets other processes of the same user see its descriptors (PR_GET_DUMPABLE).
pub fn is_dumpable() -> bool {
    // SAFETY: no pointers.
    let answer = unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize, 0, 0, 0, 0, 0]) };
    answer == Ok(1)
}

/// Whether thread `tid` is one of this process.
pub fn is_thread_of_this_process(tid: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    unsafe { syscall(libc::SYS_tgkill, [process_id() as usize, tid as usize, 0, 0, 0, 0]) }.is_ok()
}

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// It has ended, and may be waiting to be reaped.
    Gone,
    /// It lives, and began at this time.
    Began(u64),
    /// It may live.
    Unknown,
}

/// Whether process `pid` lives. Its first thread may end before the others, and then waits for them. If another thread
/// executes a program, it takes the first one's place: at that moment /proc may still show the first thread, which is
/// being taken off.
pub fn process(pid: u32) -> Process {
    const LOOKS: u32 = 16;
    for _ in 0..LOOKS {
        if !exists(pid) {
            return Process::Gone;
        }
        match stat(pid) {
            None => return Process::Unknown,
            Some(it) if it.is_taken_off || it.threads == 0 => crate::clock::give_way(),
            Some(it) if it.has_ended && it.threads == 1 => return Process::Gone,
            Some(it) => return Process::Began(it.began),
        }
    }
    // The process is ending, and the thread that takes off what is left of it has lost its processor meanwhile: an
    // execution would have come further.
    Process::Gone
}

/// Whether thread `tid`, of any process, exists and is not merely waiting to be reaped.
pub fn thread_lives(tid: u32) -> bool {
    exists(tid) && stat(tid).is_none_or(|it| !it.has_ended)
}

/// Whether thread `tid` sleeps in the kernel, or cannot be seen.
pub fn thread_sleeps(tid: u32) -> bool {
    stat(tid).is_none_or(|it| !it.runs)
}

/// Whether process `pid` is about to be gone: the kernel has begun to end it, or a signal is on its way that will.
pub fn is_dying(pid: u32) -> bool {
    let Some(stat) = stat(pid) else { return false };
    if stat.has_ended || stat.is_ending {
        return !stat.has_ended;
    }
    let mut is_killed = false;
    let _ = for_each_line(format_args!("/proc/{pid}/status\0"), |line| {
        // The kernel sends SIGKILL to each thread of a process that another fatal signal ends, too.
        let pending = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        let signals = pending.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
        is_killed |= signals.is_some_and(|it| it & 1 << (libc::SIGKILL - 1) != 0);
    });
    is_killed
}

/// Whether there is a thread of this number. A thread that has ended is there until it was waited for.
pub fn exists(tid: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    let answer = unsafe { syscall(libc::SYS_tkill, [tid as usize, 0, 0, 0, 0, 0]) };
    answer != Err(Errno(libc::ESRCH))
}

/// The state of a thread, and of its process.
struct Stat {
    has_ended: bool,
    /// It is being taken off, and no process waits for it any more.
    is_taken_off: bool,
    runs: bool,
    /// The kernel has begun to end it (PF_EXITING).
    is_ending: bool,
    threads: u64,
    began: u64,
}

/// What /proc says of thread `tid`, if it does.
fn stat(tid: u32) -> Option<Stat> {
    let mut found = None;
    // A name with newlines makes several lines: the figures are in the last one.
    let _ = for_each_line(format_args!("/proc/{tid}/stat\0"), |line| {
        if let Some((_, figures)) = line.rsplit_once(')') {
            found = figures_of(figures);
        }
    });
    found
}

/// What follows the name in /proc/PID/stat: the state first, then numbers.
fn figures_of(text: &str) -> Option<Stat> {
    const PF_EXITING: u64 = 4;
    let mut words = text.split_ascii_whitespace();
    let state = words.next()?;
    let is_taken_off = state == "X";
    let has_ended = is_taken_off || state == "Z";
    let flags: u64 = words.nth(5)?.parse().ok()?;
    let threads = words.nth(10)?.parse().ok()?;
    let began = words.nth(1)?.parse().ok()?;
    Some(Stat { has_ended, is_taken_off, runs: state == "R", is_ending: flags & PF_EXITING != 0, threads, began })
}

/// The namespaces in which this process's numbers and times are valid: the PID namespace in the upper half, the time
/// namespace in the lower half. `None` where /proc belongs to other namespaces.
pub fn namespaces() -> Option<u64> {
    let mut target = [0u8; 64];
    let me = number(link_target(format_args!("/proc/self\0"), &mut target)?)?;
    if me != process_id() as u64 {
        return None;
    }
    let mut inode = |name| {
        let text = link_target(format_args!("/proc/self/ns/{name}\0"), &mut target)?;
        number(text.strip_suffix(b"]")?.rsplit(|&byte| byte == b'[').next()?)
    };
    // Before 5.6 there was one time for all.
    Some(inode("pid")? << 32 | inode("time").unwrap_or(0) & u64::from(u32::MAX))
}

/// A limit of this process: RLIMIT_NOFILE, for example (getrlimit(2)).
pub fn limit_of(resource: u32) -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one struct rlimit64; without a new limit it changes nothing.
    let _ = unsafe { syscall(libc::SYS_prlimit64, [0, resource as usize, 0, &raw mut limit as usize, 0, 0]) };
    limit.rlim_cur
}

/// The namespace in which numbers of System V segments are valid; `None` where /proc does not say.
pub fn ipc_namespace() -> Option<u64> {
    ipc_namespace_of(process_id())
}

/// The namespace in which numbers of System V segments are valid for process `pid`, if it may be known.
pub fn ipc_namespace_of(pid: i32) -> Option<u64> {
    let mut target = [0u8; 64];
    let text = link_target(format_args!("/proc/{pid}/ns/ipc\0"), &mut target)?;
    number(text.strip_suffix(b"]")?.rsplit(|&byte| byte == b'[').next()?)
}

/// Whether real and effective user are the same, and the groups too. If not, the loader of an executed program ignores
/// the variables that name libraries (AT_SECURE, getauxval(3)).
pub fn has_one_identity() -> bool {
    [libc::SYS_getresuid, libc::SYS_getresgid].into_iter().all(|call| {
        let mut ids = [0u32; 3];
        let [real, effective, saved] = ids.each_mut().map(|id| &raw mut *id as usize);
        // SAFETY: the kernel writes three numbers.
        unsafe { syscall(call, [real, effective, saved, 0, 0, 0]) }.is_ok() && ids[0] == ids[1]
    })
}

/// Whether a security module confines this process (AppArmor, SELinux): its policy may change what an executed program
/// is allowed, which no process can ask for.
pub fn is_labelled() -> bool {
    let mut labelled = false;
    let _ = for_each_line(format_args!("/proc/self/attr/current\0"), |line| {
        labelled |= !matches!(line.trim_end_matches('\0'), "" | "unconfined" | "kernel");
    });
    labelled
}

/// Effective user.
pub fn user_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_geteuid, [0; 6]) }.unwrap_or(u32::MAX as usize) as u32
}

/// Whether process `pid` has the System V segment `id` attached.
///
/// # Errors
/// ENOENT if there is no such process, EACCES if it is another user's.
pub fn has_segment(pid: i32, id: i32) -> Result<bool, Errno> {
    let mut has = false;
    for_each_line(format_args!("/proc/{pid}/maps\0"), |line| has |= segment(line) == Some(id))?;
    Ok(has)
}

/// Whether process `pid` has a file mapped whose name has `part` in it.
pub fn has_file(pid: i32, part: &str) -> bool {
    let mut has = false;
    let asked = for_each_line(format_args!("/proc/{pid}/maps\0"), |line| has |= line.contains(part));
    asked.is_ok() && has
}

/// Whether process `pid` has mapped the very file in which `address` of this process lies: a library. An image that has
/// just begun is awaited for as long as its loader has mapped no C library: until `until` (CLOCK_MONOTONIC, ns) at
/// most. `None`: it has mapped no program, because it is ending, or its next image has yet to begin.
pub fn maps_same_file(pid: i32, address: usize, until: u64) -> Option<bool> {
    /// A program without a loader after so long has none, in nanoseconds.
    const LOADER_WITHIN_NS: u64 = 10_000_000;
    let began = nanoseconds();
    let mut mine = [0u8; 48];
    let _ = for_each_line(format_args!("/proc/self/maps\0"), |line| {
        if let Some((range, file)) = mapped(line)
            && range.contains(&address)
            && let Some(room) = mine.get_mut(..file.len())
        {
            room.copy_from_slice(file.as_bytes());
        }
    });
    let mine = mine.split(|&byte| byte == 0).next().unwrap_or_default();
    loop {
        let (mut has_program, mut same, mut has_loader, mut has_libc) = (false, false, false, false);
        let asked = for_each_line(format_args!("/proc/{pid}/maps\0"), |line| {
            // Without a file the inode number is 0.
            has_program |= mapped(line).is_some_and(|(_, file)| !file.ends_with(" 0"));
            same |= mapped(line).is_some_and(|(_, file)| file.as_bytes() == mine);
            let name = line.rsplit('/').next().unwrap_or_default();
            has_loader |= name.starts_with("ld-") || name.starts_with("ld.so");
            has_libc |= name.starts_with("libc.") || name.starts_with("libc-");
        });
        match asked {
            _ if mine.is_empty() => return Some(false),
            // What the kernel says of a process that has no memory differs from one version to the next.
            Err(Errno(libc::ESRCH)) => return None,
            Err(_) => return Some(false),
            Ok(()) if !has_program => return None,
            Ok(()) => {}
        }
        // Libraries that are preloaded come before it. The kernel maps the program, and then its loader.
        let is_static = !has_loader && nanoseconds() > began + LOADER_WITHIN_NS;
        if same || has_libc || is_static || nanoseconds() > until {
            return Some(same);
        }
        nap(200);
    }
}

/// The addresses and the file, by device and inode number, of a line like
/// `7f0c6a1b2000-7f0c6a3b2000 r-xp 00001000 fe:01 98327    /usr/lib/libc.so.6`.
fn mapped(line: &str) -> Option<(core::ops::Range<usize>, &str)> {
    let (begin, rest) = line.split_once('-')?;
    let (end, rest) = rest.split_once(' ')?;
    // Permissions and offset come before it.
    let file = rest.splitn(3, ' ').nth(2)?;
    let len = file.match_indices(' ').nth(1).map_or(file.len(), |(at, _)| at);
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    Some((number(begin)?..number(end)?, file.get(..len)?))
}

/// Effective user of process `pid`, if there is one.
pub fn user_of(pid: i32) -> Option<u32> {
    let mut path = [0u8; 32];
    write_path(&mut path, format_args!("/proc/{pid}\0")).ok()?;
    status(libc::AT_FDCWD, &path, 0).map(|it| it.st_uid)
}

/// Whether `variable` (`NAME=value`) was in the environment with which process `pid` began; `None` where that may not
/// be known.
pub fn began_with(pid: i32, variable: &str) -> Option<bool> {
    let mut has = false;
    let look = |it: &[u8]| has |= it == variable.as_bytes();
    for_each_piece::<48, 4096>(format_args!("/proc/{pid}/environ\0"), 0, look).ok()?;
    Some(has)
}

/// Whether process `pid` has as many seccomp filters as this one, as far as the kernel counts them (Linux 5.9).
pub fn has_same_filters(pid: i32) -> bool {
    let filters = |pid: i32| {
        let mut found = [0u64; 2];
        let _ = for_each_line(format_args!("/proc/{pid}/status\0"), |line| {
            for (name, value) in ["Seccomp:\t", "Seccomp_filters:\t"].into_iter().zip(&mut found) {
                *value = line.strip_prefix(name).and_then(|it| number(it.as_bytes())).unwrap_or(*value);
            }
        });
        found
    };
    filters(pid) == filters(process_id())
}

/// A line like `7f0c6a1b2000-7f0c6a3b2000 rw-s 00000000 00:01 98327    /SYSV00000000 (deleted)`: the number is the
/// segment's.
fn segment(line: &str) -> Option<i32> {
    let mut words = line.split_ascii_whitespace().skip(4);
    let number = words.next()?;
    words.next()?.starts_with("/SYSV").then(|| number.parse().ok())?
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::nanoseconds;
    use crate::sync::{AtomicI32, Relaxed};

    static HANDLED: AtomicU32 = AtomicU32::new(0);
    const SIGNAL: i32 = libc::SIGUSR2;

    fn handle_with(flags: i32) {
        extern "C" fn count(_: i32) {
            HANDLED.fetch_add(1, Relaxed);
        }
        // SAFETY: zeroed, it has an empty mask; the handler only counts.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = count as *const () as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(SIGNAL, &action, core::ptr::null_mut()), 0);
        }
    }

    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_line_of_maps_names_a_file() {
        let line = "7f0c6a1b2000-7f0c6a3b2000 r-xp 00001000 fe:01 98327                      /usr/lib/libc.so.6";
        assert_eq!(mapped(line), Some((0x7f0c_6a1b_2000..0x7f0c_6a3b_2000, "fe:01 98327")));
        assert_eq!(mapped("7f00-7f10 rw-p 00000000 00:00 0"), Some((0x7f00..0x7f10, "00:00 0")));
        assert_eq!(mapped("7f00-7f10"), None);
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn libc_knows_each_thread_by_the_kernels_number() {
        let both = || (thread_id(), thread_id_by_libc());
        let (first, second) = (both(), std::thread::spawn(both).join().expect("a thread"));
        assert!(first.0 == first.1 && second.0 == second.1 && first.0 != second.0, "{first:?} {second:?}");
    }

    #[test]
    fn a_process_is_told_by_its_files_user_and_environment() {
        let me = process_id();
        let maps = |address| maps_same_file(me, address, 0).unwrap();
        assert!(maps(mapped as *const () as usize) && !maps(0));
        assert!(!maps((&raw const HANDLED).addr() ^ (1 << 45)));
        let has_path = std::env::vars_os().find(|(_, value)| value.to_str().is_some_and(|it| !it.is_empty()));
        let (name, value) = has_path.expect("a variable");
        let variable = format!("{}={}", name.to_str().expect("text"), value.to_str().expect("text"));
        assert_eq!((user_of(me), began_with(me, "UNDERPASS_NO=such")), (Some(user_id()), Some(false)));
        assert_eq!(began_with(me, &variable), Some(true), "{variable}");
    }

    /// Where a sleep ends that is interrupted by a signal once, and then woken.
    fn interrupted(sleep: fn(&AtomicU32, u64) -> Answer) -> Answer {
        let (word, sleeper, before) = (AtomicU32::new(1), AtomicI32::new(0), HANDLED.load(Relaxed));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                sleeper.store(thread_id() as i32, Relaxed);
                sleep(&word, nanoseconds() + 60_000_000_000)
            });
            until(|| sleeper.load(Relaxed) != 0 && thread_sleeps(sleeper.load(Relaxed) as u32));
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_tgkill, process_id(), sleeper.load(Relaxed), SIGNAL) };
            until(|| HANDLED.load(Relaxed) > before);
            until(|| thread.is_finished() || thread_sleeps(sleeper.load(Relaxed) as u32));
            word.store(0, Relaxed);
            wake_all(&word);
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_sleep_goes_on_after_a_signal_where_the_program_wants_it() {
        let restarting = |word: &AtomicU32, at| wait_for_change_across_restarts(word, 1, at);
        let ending = |word: &AtomicU32, at| wait_for_change(word, 1, Some(at));
        handle_with(libc::SA_RESTART);
        assert_eq!(interrupted(ending), Err(Errno(libc::EINTR)));
        match interrupted(restarting) {
            Err(Errno(libc::ENOSYS)) => return eprintln!("SKIPPED: futex_waitv is known since Linux 5.16"),
            answer => assert!(answer.is_ok(), "{answer:?}"),
        }
        handle_with(0);
        assert_eq!(interrupted(restarting), Err(Errno(libc::EINTR)));
        assert_eq!(restarting(&AtomicU32::new(0), nanoseconds()), Err(Errno(libc::EAGAIN)));
        assert_eq!(restarting(&AtomicU32::new(1), nanoseconds()), Err(Errno(libc::ETIMEDOUT)));
    }
}

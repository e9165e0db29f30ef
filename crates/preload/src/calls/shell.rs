//! system, popen and wordexp. libc's own system and popen spawn their shell without this library's knowledge, with the
//! environment of that moment. The functions here hand the connections on as posix_spawn does.

use super::exec::{environment, posix_spawn};
use crate::guest::cancellation::unless_left;
use crate::guest::turn::Turn;
use crate::guest::{errno, real};
use crate::lifecycle::handoff;
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_short, c_void};
use core::mem::MaybeUninit;
use libc::{FILE, pid_t, posix_spawnattr_t, sigaction, size_t};
use underpass_segment::kernel;
use underpass_segment::raw::{Errno, syscall};
use underpass_segment::sync::{AtomicPtr, Relaxed, Release};

const SHELL: &CStr = c"/bin/sh";

/// A stream of popen's and its shell.
struct Pipe {
    stream: *mut FILE,
    shell: pid_t,
    next: AtomicPtr<Pipe>,
}

/// The streams of popen that are open, the last first. Changed, one word at a time, by the thread that has a [`Turn`].
static PIPES: AtomicPtr<Pipe> = AtomicPtr::new(core::ptr::null_mut());

/// How many threads are inside system, and what SIGINT and SIGQUIT did before the first of them.
struct Ignored {
    systems: u32,
    before: [MaybeUninit<sigaction>; 2],
}

struct Shared(UnsafeCell<Ignored>);

// SAFETY: used only by the thread that has a `Turn`.
unsafe impl Sync for Shared {}

static IGNORED: Shared = Shared(UnsafeCell::new(Ignored { systems: 0, before: [MaybeUninit::uninit(); 2] }));

const INTERRUPTS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

fn shell_arguments(command: *const c_char) -> [*const c_char; 4] {
    [c"sh".as_ptr(), c"-c".as_ptr(), command, core::ptr::null()]
}

/// Waits for a child, without being a cancellation point.
fn wait(child: pid_t) -> c_int {
    let mut status: c_int = 0;
    loop {
        // SAFETY: the status is written within its size.
        match unsafe { syscall(libc::SYS_wait4, [child as usize, &raw mut status as usize, 0, 0, 0, 0]) } {
            Ok(_) => return status,
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(e)) => {
                errno::set(e);
                return -1;
            }
        }
    }
}

/// # Safety
/// As popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller vouches for both strings.
    unsafe {
        let letters = CStr::from_ptr(mode).to_bytes();
        let has = |letter| letters.contains(&letter);
        if has(b'r') == has(b'w') || letters.iter().any(|letter| !b"rwe".contains(letter)) {
            errno::set(libc::EINVAL);
            return core::ptr::null_mut();
        }
        // The shell's end of the pipe becomes its descriptor of the same number.
        let (ours, its, mode) = if has(b'r') { (0, libc::STDOUT_FILENO, c"r") } else { (1, libc::STDIN_FILENO, c"w") };
        let mut ends = [-1; 2];
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return core::ptr::null_mut();
        }
        let (end, other) = (ends[ours], ends[1 - ours]);
        let stream = real::fdopen(end, mode.as_ptr());
        if stream.is_null() {
            ends.into_iter().for_each(kernel::close);
            return stream;
        }
        // Until the stream is in the list, because the shell of another thread has to close it.
        let _turn = Turn::take();
        let mut actions = MaybeUninit::uninit();
        libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
        libc::posix_spawn_file_actions_adddup2(actions.as_mut_ptr(), other, its);
        for pipe in pipes() {
            let fd = libc::fileno((*pipe).stream);
            if fd != its {
                libc::posix_spawn_file_actions_addclose(actions.as_mut_ptr(), fd);
            }
        }
        let mut shell = 0;
        let arguments = shell_arguments(command);
        let (arguments, none) = (arguments.as_ptr(), core::ptr::null());
        let why = posix_spawn(&mut shell, SHELL.as_ptr(), actions.as_ptr(), none, arguments, environment());
        libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
        kernel::close(other);
        if why != 0 {
            real::fclose(stream);
            errno::set(why);
            return core::ptr::null_mut();
        }
        if !has(b'e') {
            libc::fcntl(end, libc::F_SETFD, 0);
        }
        let next = AtomicPtr::new(PIPES.load(Relaxed));
        PIPES.store(Box::into_raw(Box::new(Pipe { stream, shell, next })), Release);
        stream
    }
}

/// # Safety
/// As popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: passed on to the caller.
    unsafe { popen(command, mode) }
}

/// The streams of [`PIPES`], for the thread whose turn it is.
fn pipes() -> impl Iterator<Item = *mut Pipe> {
    // SAFETY: a pipe is freed by the thread whose turn it is, once it is not among them any more.
    let next = |pipe: &*mut Pipe| unsafe { (**pipe).next.load(Relaxed) };
    let some = |pipe: *mut Pipe| (!pipe.is_null()).then_some(pipe);
    core::iter::successors(some(PIPES.load(Relaxed)), move |pipe| some(next(pipe)))
}

/// Takes the stream from among those of popen.
fn take_out(stream: *mut FILE) -> Option<Box<Pipe>> {
    let _turn = Turn::take();
    let mut link = &PIPES;
    for pipe in pipes() {
        // SAFETY: alive until it is taken out here, and nobody else's then.
        unsafe {
            if (*pipe).stream == stream {
                link.store((*pipe).next.load(Relaxed), Release);
                return Some(Box::from_raw(pipe));
            }
            link = &(*pipe).next;
        }
    }
    None
}

fn is_of_popen(stream: *mut FILE) -> bool {
    if PIPES.load(Relaxed).is_null() {
        return false;
    }
    let _turn = Turn::take();
    // SAFETY: this thread's turn.
    pipes().any(|pipe| unsafe { (*pipe).stream } == stream)
}

/// Ends a stream that may be one of popen's, by `close` if it is not.
///
/// # Safety
/// As fclose(3).
unsafe fn end(stream: *mut FILE, close: unsafe fn(*mut FILE) -> c_int) -> c_int {
    if !is_of_popen(stream) {
        // SAFETY: passed on to the caller.
        return unsafe { close(stream) };
    }
    // This may take long. Until the stream is out of the list, the shells of other threads close its descriptor.
    // The close reports its error again.
    let before = errno::get();
    // SAFETY: passed on to the caller.
    unsafe { libc::fflush(stream) };
    errno::set(before);
    let pipe = take_out(stream);
    // SAFETY: passed on to the caller.
    let closed = unsafe { real::fclose(stream) };
    match pipe.map(|pipe| wait(pipe.shell)) {
        Some(status) if status != 0 => status,
        _ => closed,
    }
}

/// # Safety
/// As pclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pclose(stream: *mut FILE) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { end(stream, real::pclose) }
}

/// # Safety
/// As fclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { end(stream, real::fclose) }
}

/// # Safety
/// As fclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _IO_fclose(stream: *mut FILE) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { fclose(stream) }
}

/// # Safety
/// As system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    if command.is_null() {
        // SAFETY: passed on to the caller.
        return unsafe { real::system(command) };
    }
    // SAFETY: every structure is initialised by the call that is meant for it; POSIX: the calling process ignores
    // SIGINT and SIGQUIT and blocks SIGCHLD while it waits, the shell has them as they were.
    unsafe {
        let (mut block, mut before, mut reset) = (core::mem::zeroed(), core::mem::zeroed(), core::mem::zeroed());
        libc::sigemptyset(&mut reset);
        for signal in INTERRUPTS.iter().zip(ignore_interrupts()).filter_map(|(it, ignored)| (!ignored).then_some(it)) {
            libc::sigaddset(&mut reset, *signal);
        }
        libc::sigemptyset(&mut block);
        libc::sigaddset(&mut block, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &block, &mut before);
        let mut attributes: posix_spawnattr_t = core::mem::zeroed();
        libc::posix_spawnattr_init(&mut attributes);
        libc::posix_spawnattr_setsigmask(&mut attributes, &before);
        libc::posix_spawnattr_setsigdefault(&mut attributes, &reset);
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        libc::posix_spawnattr_setflags(&mut attributes, flags as c_short);
        let mut shell = 0;
        let arguments = shell_arguments(command);
        let (arguments, none) = (arguments.as_ptr(), core::ptr::null());
        let why = posix_spawn(&mut shell, SHELL.as_ptr(), none, &attributes, arguments, environment());
        libc::posix_spawnattr_destroy(&mut attributes);
        let mut status = 127 << 8;
        if why == 0 {
            let cancelled = || {
                libc::kill(shell, libc::SIGKILL);
                wait(shell);
                restore_interrupts();
            };
            unless_left(cancelled, || {
                while libc::waitpid(shell, &mut status, 0) < 0 {
                    if errno::get() != libc::EINTR {
                        status = -1;
                        break;
                    }
                }
            });
        }
        restore_interrupts();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
        if why != 0 {
            errno::set(why);
        }
        status
    }
}

/// One more thread is inside system: whether the program ignores SIGINT and SIGQUIT itself.
fn ignore_interrupts() -> [bool; 2] {
    let _turn = Turn::take();
    // SAFETY: this thread's turn; a signal's action is written before it is read.
    unsafe {
        let ignored = &mut *IGNORED.0.get();
        if ignored.systems == 0 {
            let mut ignore: sigaction = core::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            for (signal, before) in INTERRUPTS.iter().zip(&mut ignored.before) {
                libc::sigaction(*signal, &ignore, before.as_mut_ptr());
            }
        }
        ignored.systems += 1;
        ignored.before.map(|before| before.assume_init().sa_sigaction == libc::SIG_IGN)
    }
}

/// One thread less.
fn restore_interrupts() {
    let _turn = Turn::take();
    // SAFETY: this thread's turn; what was ignored has been remembered.
    unsafe {
        let ignored = &mut *IGNORED.0.get();
        ignored.systems -= 1;
        if ignored.systems == 0 {
            for (signal, before) in INTERRUPTS.iter().zip(&ignored.before) {
                libc::sigaction(*signal, before.as_ptr(), core::ptr::null_mut());
            }
        }
    }
}

/// wordexp_t (<wordexp.h>).
#[derive(Clone, Copy)]
#[repr(C)]
struct Words {
    count: size_t,
    words: *mut *mut c_char,
    offset: size_t,
}

/// libc spawns the shells of its command substitutions by itself, without the library. Where such a shell would read a
/// connection with a gap, no words are expanded.
///
/// # Safety
/// As wordexp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
    const WRDE_NOCMD: c_int = 4;
    const WRDE_NOSPACE: c_int = 1;
    const WRDE_APPEND: c_int = 2;
    const WRDE_REUSE: c_int = 8;
    // SAFETY: the caller vouches for the words.
    let text = unsafe { CStr::from_ptr(words) }.to_bytes();
    let substitutes = flags & WRDE_NOCMD == 0 && (text.contains(&b'`') || text.windows(2).any(|it| it == b"$("));
    if substitutes && !handoff::leave_to_spawned() {
        // As libc does it, for a program that frees the result in any case.
        if flags & (WRDE_APPEND | WRDE_REUSE) == 0 {
            // SAFETY: the caller vouches for the structure.
            unsafe { result.cast::<Words>().write(Words { count: 0, words: core::ptr::null_mut(), ..*result.cast() }) };
        }
        return WRDE_NOSPACE;
    }
    // SAFETY: passed on to the caller.
    unsafe { real::wordexp(words, result, flags) }
}

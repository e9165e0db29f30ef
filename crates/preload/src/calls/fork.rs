//! fork, vfork, clone, forkpty, daemon and the end of a process.

use super::{descriptor, options};
use crate::connection::vforked;
use crate::guest::{departure, errno, family, forked, real, thread};
use crate::lifecycle::{adopt, child, exit, handoff};
use crate::watch::epoll;
use core::ffi::{c_char, c_int, c_void};
use libc::{pid_t, termios, winsize};
use underpass_segment::kernel;

/// # Safety
/// As fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> pid_t {
    // SAFETY: passed on to the caller.
    child::forked(|| unsafe { real::fork() })
}

/// # Safety
/// As fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fork() -> pid_t {
    // SAFETY: passed on to the caller.
    unsafe { fork() }
}

/// # Safety
/// As _Fork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: passed on to the caller.
    child::forked(|| unsafe { real::_Fork() })
}

// libc's own forkpty and daemon fork, and replace the standard descriptors, without this library's knowledge. daemon's
// parent, which has to let go of its connections, ends the same way.

/// # Safety
/// As forkpty(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    attributes: *const termios,
    size: *const winsize,
) -> pid_t {
    let (mut ours, mut terminal) = (-1, -1);
    // SAFETY: the caller vouches for what it passes.
    unsafe {
        if real::openpty(&mut ours, &mut terminal, name, attributes, size) == -1 {
            return -1;
        }
        let pid = fork();
        match pid {
            -1 => {
                let why = errno::get();
                descriptor::close(ours);
                descriptor::close(terminal);
                errno::set(why);
            }
            0 => {
                descriptor::close(ours);
                if login_tty(terminal) != 0 {
                    _exit(1);
                }
            }
            _ => {
                *master = ours;
                descriptor::close(terminal);
            }
        }
        pid
    }
}

/// # Safety
/// As login_tty(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn login_tty(terminal: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        libc::setsid();
        if options::ioctl(terminal, libc::TIOCSCTTY, 0) == -1 {
            return -1;
        }
        become_standard(terminal);
    }
    0
}

/// `fd` becomes standard input, output and error, and nothing else.
fn become_standard(fd: c_int) {
    // SAFETY: no pointers.
    unsafe {
        for standard in 0..=libc::STDERR_FILENO {
            while descriptor::dup2(fd, standard) == -1 && errno::get() == libc::EBUSY {}
        }
        if fd > libc::STDERR_FILENO {
            descriptor::close(fd);
        }
    }
}

/// # Safety
/// As daemon(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn daemon(stay: c_int, keep: c_int) -> c_int {
    // SAFETY: the path is a string, and zeroed memory is a valid stat.
    unsafe {
        match fork() {
            -1 => return -1,
            0 => {}
            _ => _exit(0),
        }
        if libc::setsid() == -1 {
            return -1;
        }
        if stay == 0 {
            libc::chdir(c"/".as_ptr());
        }
        if keep != 0 {
            return 0;
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        if null == -1 {
            return -1;
        }
        let mut about: libc::stat = core::mem::zeroed();
        let known = libc::fstat(null, &mut about) == 0;
        if !known || about.st_mode & libc::S_IFMT != libc::S_IFCHR || about.st_rdev != libc::makedev(1, 3) {
            let why = if known { libc::ENODEV } else { errno::get() };
            descriptor::close(null);
            errno::set(why);
            return -1;
        }
        become_standard(null);
    }
    0
}

/// What a process made by clone(2) runs.
type Body = extern "C" fn(*mut c_void) -> c_int;

/// What that process begins with. It lies in the memory of its parent's call, of which the process has a copy.
struct Beginning {
    body: Body,
    argument: *mut c_void,
}

extern "C" fn begin(beginning: *mut c_void) -> c_int {
    forked::check();
    // SAFETY: what `clone` has passed along.
    let Beginning { body, argument } = unsafe { &*beginning.cast_const().cast() };
    let status = body(*argument);
    // libc ends the process by a system call of its own.
    exit::leave();
    status
}

// Variadic for C; its three last arguments come where a call with seven of them has them, and are looked at only if the
// flags say so.
/// # Safety
/// As clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    body: Option<Body>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut pid_t,
    tls: *mut c_void,
    child_tid: *mut pid_t,
) -> c_int {
    // SAFETY: passed on to the caller.
    let call = |body, argument| unsafe { real::clone(body, stack, flags, argument, parent_tid, tls, child_tid) };
    match body {
        Some(body) if flags & libc::CLONE_VM == 0 => {
            let mut beginning = Beginning { body, argument };
            child::forked(|| call(Some(begin), (&raw mut beginning).cast()))
        }
        // A vfork, except for the stack.
        Some(_) if flags & (libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_SETTLS) == libc::CLONE_VFORK => {
            let outer = before_vfork();
            returned(true, outer);
            let pid = call(body, argument);
            returned(false, outer);
            pid
        }
        _ => call(body, argument),
    }
}

/// # Safety
/// As clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __clone(
    body: Option<Body>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut pid_t,
    tls: *mut c_void,
    child_tid: *mut pid_t,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { clone(body, stack, flags, argument, parent_tid, tls, child_tid) }
}

/// Returns whether the caller is a child of vfork itself.
extern "C" fn before_vfork() -> bool {
    forked::check();
    adopt::recognise_all();
    if !thread::is_vfork_child() {
        epoll::tell_kernel();
    }
    vforked::before_vfork();
    forked::begin_vfork();
    departure::before_vfork();
    thread::is_vfork_child()
}

/// Called on both returns of vfork, whose caller was a child of vfork itself if `outer`.
extern "C" fn returned(to_child: bool, outer: bool) {
    thread::set_vfork_child(to_child || outer);
    // A child that was killed in the middle of a call has left this thread's variables as they were then.
    kernel::forget_disturbance();
    if !to_child {
        departure::after_vfork();
        family::after_vfork();
        forked::end_vfork();
        handoff::release_child_packed();
        vforked::after_vfork();
    }
}

// A vfork returns twice into the same stack frame, so no compiled function can stand around it. This one keeps the
// return address in a register, as libc's own does, and tells the library on which side it is.
/// # Safety
/// As vfork(2).
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rdi",
        "movzx esi, al", // `outer`, which the system call leaves as it is
        "mov eax, 58", // SYS_vfork
        "syscall",
        "push rdi",
        "push rax",
        "xor edi, edi",
        "test rax, rax",
        "sete dil",
        "call {told}",
        "pop rax",
        "cmp rax, -4096",
        "ja 2f",
        "ret",
        "2:",
        "push rax",
        "call {errno}",
        "pop rcx",
        "neg ecx",
        "mov [rax], ecx",
        "mov rax, -1",
        "ret",
        before = sym before_vfork,
        told = sym returned,
        errno = sym libc::__errno_location,
    )
}

/// # Safety
/// As vfork(2).
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vfork() -> pid_t {
    core::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

/// # Safety
/// As _exit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    exit::leave();
    // SAFETY: does not return.
    unsafe {
        let _ = underpass_segment::raw::syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// # Safety
/// As _exit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: passed on to the caller.
    unsafe { _exit(status) }
}

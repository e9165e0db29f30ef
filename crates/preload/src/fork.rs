//! fork, vfork and the end of a process.

use crate::connection::{self, Counted};
use crate::{process, real};
use core::cell::Cell;
use core::ffi::c_int;
use libc::pid_t;

thread_local! {
    /// What this thread has counted for the child that it is forking; null when it is not, or could not.
    static COUNTED: Cell<*const Counted> = const { Cell::new(core::ptr::null()) };
}

/// # Safety
/// As fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> pid_t {
    // SAFETY: passed on to the caller.
    forked(|| unsafe { real::fork() })
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
    forked(|| unsafe { real::_Fork() })
}

fn forked(call: impl FnOnce() -> pid_t) -> pid_t {
    process::check_fork();
    connection::recognise_all();
    // The child's references are counted before it exists: the parent may close its own before the child runs. Other
    // threads are not kept out meanwhile (a handler of pthread_atfork may wait for them): the child makes good.
    let counted = Counted::for_child();
    let outer = COUNTED.replace(counted.as_ref().map_or(core::ptr::null(), |it| it as *const Counted));
    let pid = call();
    if pid == 0 {
        process::check_fork();
    } else if pid < 0
        && let Some(counted) = &counted
    {
        counted.take_back();
    }
    COUNTED.set(outer);
    pid
}

/// In a forked child: it has a reference to every end that it knows.
pub fn in_child() {
    // SAFETY: null, or a value in the frame of `forked`, which this thread is inside.
    connection::settle_child(unsafe { COUNTED.get().as_ref() });
}

/// The child may execute a program with sockets that nobody has used yet, and cannot make them known itself.
extern "C" fn before_vfork() {
    process::check_fork();
    connection::recognise_all();
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
        told = sym process::set_borrowed,
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
    process::leave();
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

//! execve, its relatives, and posix_spawn: the new program image takes the connections along.

use crate::guest::{real, thread};
use crate::lifecycle::handoff::{Execution, FileActions, Program, pack};
use core::ffi::{c_char, c_int};
use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// The program's environment as it is now.
pub fn environment() -> *const *const c_char {
    // SAFETY: libc's variable.
    unsafe { environ }
}

fn in_place() -> Execution<'static> {
    if thread::is_vfork_child() { Execution::Borrowed } else { Execution::Alone }
}

/// # Safety
/// As execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    // SAFETY: passed on to the caller. It returns only when it has failed; then the packed environment is let go.
    unsafe { real::execve(path, argv, pack(Program::Path(path), envp, in_place()).envp()) }
}

/// # Safety
/// As execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { execve(path, argv, environment()) }
}

/// # Safety
/// As execvpe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { real::execvpe(file, argv, pack(Program::Name(file), envp, in_place()).envp()) }
}

/// # Safety
/// As execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { execvpe(file, argv, environment()) }
}

// The calls with a list of arguments are variadic. Their arguments lie in registers and on the stack; with the former
// pushed below the latter they are the array that the calls with an array want.
#[cfg(target_arch = "x86_64")]
macro_rules! with_a_list {
    ($($name:ident => $array:path;)+) => {$(
        /// # Safety
        /// As execl(3).
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "pop rax", // the return address
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {array}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                array = sym $array,
            )
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
with_a_list! {
    execl => execv;
    execlp => execvp;
    execle => execv_with_environment;
}

/// execle's environment follows the null behind its arguments.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn execv_with_environment(path: *const c_char, argv: *const *const c_char) -> c_int {
    let mut last = argv;
    // SAFETY: passed on to the caller, whose list ends with a null and the environment.
    unsafe {
        while !(*last).is_null() {
            last = last.add(1);
        }
        execve(path, argv, *last.add(1).cast())
    }
}

/// # Safety
/// As execveat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { real::execveat(folder, path, argv, pack(Program::At(folder, path), envp, in_place()).envp(), flags) }
}

/// # Safety
/// As fexecve(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { real::fexecve(fd, argv, pack(Program::Descriptor(fd), envp, in_place()).envp()) }
}

macro_rules! spawn {
    ($($name:ident as $program:path, in $process:expr;)+) => {$(
        /// # Safety
        /// As posix_spawn(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            process: *mut pid_t,
            program: *const c_char,
            actions: *const posix_spawn_file_actions_t,
            attributes: *const posix_spawnattr_t,
            argv: *const *const c_char,
            envp: *const *const c_char,
        ) -> c_int {
            // SAFETY: passed on to the caller.
            let answer = unsafe {
                let known = FileActions::of(actions);
                let mut packed = pack($program(program), envp, Execution::Spawned(&known));
                let mut number = 0;
                let process = if process.is_null() { &raw mut number } else { process };
                let answer = real::$name(process, program, packed.actions(actions), attributes, argv, packed.envp());
                if answer == 0 {
                    packed.spawned($process(*process));
                }
                answer
            };
            // This libc has no such function.
            if answer < 0 { libc::ENOSYS } else { answer }
        }
    )+};
}

spawn! {
    posix_spawn as Program::Path, in Some;
    posix_spawnp as Program::Name, in Some;
    // What these write is a descriptor.
    pidfd_spawn as Program::Path, in |_| None;
    pidfd_spawnp as Program::Name, in |_| None;
}

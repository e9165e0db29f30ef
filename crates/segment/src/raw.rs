//! The system call instruction, and nothing else.
//!
//! The library stands in front of libc, so a call of libc's `recv` from inside it would come back to itself, and libc's
//! own wrappers write `errno`. Everything that this crate asks of the kernel therefore goes through here.
#![allow(unsafe_code, reason = "the one place that issues system calls")]

use crate::sync::{AtomicBool, Relaxed};
use core::arch::asm;

/// An error number of the kernel, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Whether it says that the connection is over, whichever call was told so.
    pub const fn ends_connection(self) -> bool {
        matches!(self.0, libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT)
    }
}

/// What a system call answers: a non-negative value or an [`Errno`].
pub type Answer = Result<usize, Errno>;

/// The program has said which system calls it makes: see [`be_quiet`]. In Miri, which executes none, it has from the
/// start.
static QUIET: AtomicBool = AtomicBool::new(cfg!(miri));

/// Says whether this process may be killed for a system call that the program does not make itself (seccomp(2)). Then
/// waits spin, and signals are not held back.
pub fn be_quiet(quiet: bool) {
    QUIET.store(quiet, Relaxed);
}

/// See [`be_quiet`].
#[inline]
pub fn is_quiet() -> bool {
    QUIET.load(Relaxed)
}

/// What answers a system call in its place, if it does.
#[cfg(loom)]
pub type Model = unsafe fn(number: libc::c_long, args: [usize; 6]) -> Option<Answer>;

/// The kernel of the models, which is asked first.
#[cfg(loom)]
pub static MODEL: std::sync::OnceLock<Model> = std::sync::OnceLock::new();

fn answer(value: isize) -> Answer {
    if (-4095..0).contains(&value) { Err(Errno(-value as i32)) } else { Ok(value as usize) }
}

/// Issues system call `number`.
///
/// # Safety
/// The arguments must be what that call expects; pointers among them must be valid for what it does with them.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> Answer {
    #[cfg(loom)]
    if let Some(model) = MODEL.get()
        // SAFETY: as here.
        && let Some(answer) = unsafe { model(number, args) }
    {
        return answer;
    }
    #[cfg(all(test, not(loom)))]
    crate::sync::mortal::step();
    let value: isize;
    // SAFETY: the caller vouches for the arguments; the kernel clobbers rcx and r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => value,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer(value)
}

/// Issues system call `number`.
///
/// # Safety
/// The arguments must be what that call expects; pointers among them must be valid for what it does with them.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> Answer {
    #[cfg(all(test, not(loom)))]
    crate::sync::mortal::step();
    let value: isize;
    // SAFETY: the caller vouches for the arguments; the kernel clobbers x0 only.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => value,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    answer(value)
}

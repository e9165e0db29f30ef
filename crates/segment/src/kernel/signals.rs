//! Holding signals back.
#![allow(unsafe_code, reason = "changes the thread's signal mask")]

use crate::clock::nap_unless_signalled;
use crate::of_each_thread;
use crate::raw::{Errno, is_quiet, syscall};

/// Does `what` with all signals held back from this thread for which a handler may run.
pub fn undisturbed<T>(what: impl FnOnce() -> T) -> T {
    undisturbed_since(|_| what())
}

/// The same, where `what` gets the set of signals that were held back before.
pub fn undisturbed_since<T>(what: impl FnOnce(u64) -> T) -> T {
    if is_quiet() {
        return what(0);
    }
    let before = change_signal_mask(libc::SIG_BLOCK, worth_holding_back());
    let result = what(before.unwrap_or(0));
    if let Ok(before) = before {
        let _ = change_signal_mask(libc::SIG_SETMASK, before);
    }
    result
}

/// Changes which signals are held back from this thread; returns the mask before.
fn change_signal_mask(how: i32, mask: u64) -> Result<u64, Errno> {
    let mut before = 0u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    // SAFETY: the kernel reads one mask of eight bytes and writes another.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [how as usize, new, old, size_of::<u64>(), 0, 0]) }?;
    Ok(before)
}

/// All signals, except SIGCHLD without a handler: if it were held back here, it would end a sleep of another thread
/// that does not hold it back. If no thread holds it back, the kernel drops it.
fn worth_holding_back() -> u64 {
    // What the kernel calls a sigaction: the handler, flags, restorer and mask.
    let mut action = [0usize; 4];
    let arguments = [libc::SIGCHLD as usize, 0, action.as_mut_ptr() as usize, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel writes a sigaction, which has that size.
    let asked = unsafe { syscall(libc::SYS_rt_sigaction, arguments) };
    let is_heard = asked.is_err() || !matches!(action[0], libc::SIG_DFL | libc::SIG_IGN);
    if is_heard { u64::MAX } else { !(1 << (libc::SIGCHLD - 1)) }
}

of_each_thread! {
    /// What the program itself holds back, while a call of this thread holds back all signals: see [`HeldBack`].
    static OWN_MASK: Option<u64> = None;
}

/// Holds signals back from this thread as long as it lives, as the kernel does in a call until that would wait: a
/// signal that comes while the library moves bytes then ends the wait. Signals that an instruction causes are not held
/// back.
#[derive(Debug)]
pub struct HeldBack {
    is_outermost: bool,
}

impl HeldBack {
    /// Holds signals back from now on.
    pub fn new() -> Self {
        let is_outermost = !is_quiet() && OWN_MASK.get().is_none() && hold_back();
        Self { is_outermost }
    }
}

impl Default for HeldBack {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        if self.is_outermost
            && let Some(mask) = OWN_MASK.take()
        {
            let _ = change_signal_mask(libc::SIG_SETMASK, mask);
        }
    }
}

fn hold_back() -> bool {
    const BY_INSTRUCTIONS: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    let mask = BY_INSTRUCTIONS.iter().fold(worth_holding_back(), |mask, number| mask & !(1 << (number - 1)));
    let before = change_signal_mask(libc::SIG_BLOCK, mask);
    OWN_MASK.set(before.ok());
    before.is_ok()
}

/// Does `wait`, which gets the program's own mask if signals are held back, and has to use it. Calls of a handler that
/// comes meanwhile, or that leaves by a jump, see the program's own mask too.
pub fn with_own_mask<T>(wait: impl FnOnce(Option<u64>) -> T) -> T {
    let mask = OWN_MASK.take();
    let result = wait(mask);
    OWN_MASK.set(mask);
    result
}

/// Does `call`, a system call that may wait, without holding signals back.
pub fn letting_signals_in<T>(call: impl FnOnce() -> T) -> T {
    let Some(mask) = OWN_MASK.take() else { return call() };
    let _ = change_signal_mask(libc::SIG_SETMASK, mask);
    let result = call();
    hold_back();
    result
}

/// Whether a signal that was held back has come and was handled, now.
pub fn is_signalled() -> bool {
    with_own_mask(|mask| mask.is_some_and(|mask| !nap_unless_signalled(0, mask)))
}

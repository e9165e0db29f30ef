//! Holding signals back.
#![allow(unsafe_code, reason = "changes the thread's signal mask")]

use crate::clock::{nanoseconds, nap_unless_signalled};
use crate::of_each_thread;
use crate::raw::{Errno, is_quiet, syscall};

/// Does `what` with all signals held back from this thread for which a handler may run.
pub fn undisturbed<T>(what: impl FnOnce() -> T) -> T {
    undisturbed_since(|_| what())
}

/// Does `what` as [`undisturbed`] does, and gives it the set of signals that were held back before.
pub fn undisturbed_since<T>(what: impl FnOnce(u64) -> T) -> T {
    if is_quiet() {
        return what(0);
    }
    if let Some(before) = UNDISTURBED_SINCE.get() {
        return what(before);
    }
    let Ok(before) = change_signal_mask(libc::SIG_BLOCK, worth_holding_back()) else { return what(0) };
    UNDISTURBED_SINCE.set(Some(before));
    let result = what(before);
    UNDISTURBED_SINCE.set(None);
    let _ = change_signal_mask(libc::SIG_SETMASK, before);
    result
}

/// Calls `what` with each of the items with signals held back, for 5 ms at a time at most: what many items need is not
/// paid for with each of them.
pub fn undisturbed_in_turns<T>(items: impl IntoIterator<Item = T>, mut what: impl FnMut(T)) {
    let mut items = items.into_iter();
    let mut has_more = true;
    while has_more {
        undisturbed(|| {
            let until = nanoseconds() + TURN_NS;
            has_more = items.by_ref().any(|item| {
                what(item);
                nanoseconds() >= until
            });
        });
    }
}

/// In the parent of a child of vfork, or in that child as it begins: the thread does nothing that is to go on
/// undisturbed, whatever the child was in the middle of when it was killed.
pub fn forget_disturbance() {
    UNDISTURBED_SINCE.set(None);
}

/// For how long [`undisturbed_in_turns`] holds signals back at a time, in nanoseconds.
const TURN_NS: u64 = 5_000_000;

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
    /// What this thread held back before it began what is to go on undisturbed; `None` if it does nothing of the kind.
    static UNDISTURBED_SINCE: Option<u64> = None;
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
    let (mask, since) = (OWN_MASK.take(), UNDISTURBED_SINCE.take());
    let result = wait(mask);
    OWN_MASK.set(mask);
    UNDISTURBED_SINCE.set(since);
    result
}

/// Does `call`, a system call that may wait, without holding signals back.
pub fn letting_signals_in<T>(call: impl FnOnce() -> T) -> T {
    let Some(mask) = OWN_MASK.take() else { return call() };
    let since = UNDISTURBED_SINCE.take();
    let _ = change_signal_mask(libc::SIG_SETMASK, mask);
    let result = call();
    hold_back();
    UNDISTURBED_SINCE.set(since);
    result
}

/// Whether a signal that was held back has come and was handled, now.
pub fn is_signalled() -> bool {
    with_own_mask(|mask| mask.is_some_and(|mask| !nap_unless_signalled(0, mask)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Whether this thread holds SIGUSR2 back.
    fn is_held_back() -> bool {
        change_signal_mask(libc::SIG_BLOCK, 0).unwrap() & 1 << (libc::SIGUSR2 - 1) != 0
    }

    #[test]
    fn what_is_undisturbed_within_another_changes_nothing() {
        let is_held_back_by = undisturbed(|| (undisturbed_since(|before| before), is_held_back()));
        assert_eq!(is_held_back_by, (undisturbed_since(|before| before), true));
        assert!(!is_held_back());
        // A handler that runs in a wait of what is undisturbed can be interrupted itself.
        let in_wait = |_| {
            let _ = change_signal_mask(libc::SIG_UNBLOCK, u64::MAX);
            undisturbed(is_held_back)
        };
        assert!(undisturbed(|| with_own_mask(in_wait)) && !is_held_back());
        // A child of vfork was killed in the middle.
        undisturbed(|| {
            forget_disturbance();
            let _ = change_signal_mask(libc::SIG_UNBLOCK, u64::MAX);
            assert!(undisturbed(is_held_back) && !is_held_back());
        });
    }

    #[test]
    fn each_item_has_one_turn() {
        let mut had = vec![];
        undisturbed_in_turns(0..3, |item| {
            had.push((item, is_held_back()));
            clock_passes();
        });
        assert_eq!(had, [(0, true), (1, true), (2, true)]);
        assert!(!is_held_back());
    }

    /// Makes the next item another turn's.
    fn clock_passes() {
        let until = nanoseconds() + TURN_NS;
        while nanoseconds() < until {
            std::hint::spin_loop();
        }
    }
}

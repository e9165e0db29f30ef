//! How long a call waits: the times of poll(2) and its kin, and waits until then by libc's own ppoll.

use super::access::is_readable;
use super::errno::{CLOSED, from_c};
use super::real;
use core::ffi::c_int;
use libc::{pollfd, sigset_t, timespec};
use underpass_segment::raw::{Answer, Errno, is_quiet};
use underpass_segment::{clock, kernel};

const AGAIN: Errno = Errno(libc::EAGAIN);

/// No time: a call that does not wait.
pub const AT_ONCE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// Time left until a deadline in nanoseconds of CLOCK_MONOTONIC; `None`: forever.
pub type Deadline = Option<u64>;

/// The deadline `ms` milliseconds from now, as poll(2) counts them.
pub fn after_ms(ms: c_int) -> Deadline {
    (ms >= 0).then(|| clock::nanoseconds() + ms as u64 * 1_000_000)
}

/// The deadline that a timespec names; null: forever.
///
/// # Safety
/// `timeout` must be null or valid.
pub unsafe fn after(timeout: *const timespec) -> Deadline {
    if timeout.is_null() {
        return None;
    }
    // SAFETY: not null.
    let t = unsafe { *timeout };
    let ns = (t.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec.max(0) as u64);
    Some(clock::nanoseconds().saturating_add(ns))
}

/// Whether the kernel refuses the timeout.
pub fn invalid(timeout: *const timespec) -> bool {
    let invalid = |t: timespec| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec);
    // SAFETY: there is something to read.
    !timeout.is_null() && (!is_readable(timeout, 1) || invalid(unsafe { *timeout }))
}

/// The timespec of what is left until `deadline`, at most `longest` nanoseconds.
pub fn left(deadline: Deadline, longest: u64) -> Option<timespec> {
    let ns = match deadline {
        Some(at) => at.saturating_sub(clock::nanoseconds()).min(longest),
        None if longest == u64::MAX => return None,
        None => longest,
    };
    Some(timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 })
}

/// Makes `call`, which does not wait, with the descriptor until it returns something other than EAGAIN, and polls for
/// `events` in between; EAGAIN after `deadline`, EINTR after a signal. The polls are libc's.
pub fn try_until(
    deadline: Deadline,
    events: i16,
    descriptor: impl Fn() -> Option<c_int>,
    mut call: impl FnMut(c_int) -> Answer,
) -> Answer {
    loop {
        let fd = descriptor().ok_or(CLOSED)?;
        match call(fd) {
            Err(AGAIN) => {}
            answer => return answer,
        }
        let mut it = pollfd { fd, events, revents: 0 };
        let left = left(deadline, u64::MAX);
        let timeout = left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: one pollfd, and a timespec that lives as long; no mask, or one that does.
        let poll = |mask| unsafe { real::ppoll(&mut it, 1, timeout, mask) };
        if from_c(with_own_mask(poll) as isize)? == 0 {
            return Err(AGAIN);
        }
    }
}

/// Does `wait` with the signal mask that it needs, where signals are held back: see [`kernel::HeldBack`].
pub fn with_own_mask(wait: impl FnOnce(*const sigset_t) -> c_int) -> c_int {
    kernel::with_own_mask(|mask| {
        let Some(mask) = mask else { return wait(core::ptr::null()) };
        // SAFETY: a set of signals is an array of words, of which the kernel knows the first 64 bits.
        let mut set: sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        unsafe { core::ptr::from_mut(&mut set).cast::<u64>().write(mask) };
        wait(&set)
    })
}

/// The time is over and nothing was there: a pending signal that `mask` lets in ends the call. 0 if there is none.
pub fn let_signals_in(mask: *const sigset_t) -> c_int {
    // In a confined process the program's own call has let signals in.
    if mask.is_null() || is_quiet() {
        return 0;
    }
    // SAFETY: no descriptors; the mask is the program's.
    unsafe { real::ppoll(core::ptr::null_mut(), 0, &AT_ONCE, mask) }
}

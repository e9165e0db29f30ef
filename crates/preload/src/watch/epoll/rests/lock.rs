//! The list of this process, and its lock.

use super::deferred::Deferred;
use super::list::List;
use crate::guest::cancellation::unless_left;
use core::cell::UnsafeCell;
use underpass_segment::clock::{ticks, ticks_per_microsecond};
use underpass_segment::sync::{Acquire, AtomicUsize, Relaxed, Release, pause};

struct Shared(UnsafeCell<List>);
// SAFETY: the list is used with the lock alone; its memory is this process's for good.
unsafe impl Sync for Shared {}

static LIST: Shared = Shared(UnsafeCell::new(List::new()));
/// The thread that has the list, as pthread_self(3) names it; 0: none.
static LOCK: AtomicUsize = AtomicUsize::new(0);
/// How often the list was given up by its thread.
static PASSED: AtomicUsize = AtomicUsize::new(0);
/// A thread that has had the list for this long was killed: a filter may kill a thread for its epoll_ctl.
const DEAD_AFTER_US: u64 = 10_000_000;

/// Does `what` as the only thread that uses the list; `None` in a signal handler that has interrupted such a thread.
pub(super) fn locked<T>(what: impl FnOnce(&mut List) -> T) -> Option<T> {
    // SAFETY: no arguments.
    let me = unsafe { libc::pthread_self() } as usize;
    let (mut seen, mut since) = (PASSED.load(Relaxed), ticks());
    while let Err(owner) = LOCK.compare_exchange_weak(0, me, Acquire, Relaxed) {
        if owner == me {
            return None;
        }
        let passed = PASSED.load(Relaxed);
        if passed != seen {
            (seen, since) = (passed, ticks());
        } else if ticks().wrapping_sub(since) > DEAD_AFTER_US * ticks_per_microsecond()
            && LOCK.compare_exchange(owner, me, Acquire, Relaxed).is_ok()
        {
            break;
        }
        pause();
    }
    // A handler may jump away from here (siglongjmp).
    let answer = unless_left(unlock, || {
        // SAFETY: the lock makes this thread the only one.
        let list = unsafe { &mut *LIST.0.get() };
        let answer = what(list);
        Deferred::make_all(|key, wanted| list.follow(key, wanted, false));
        answer
    });
    unlock();
    Some(answer)
}

fn unlock() {
    PASSED.fetch_add(1, Relaxed);
    LOCK.store(0, Release);
}

/// In a forked child, which has none of the other threads.
pub(in crate::watch::epoll) fn after_fork() {
    unlock();
    Deferred::forget_all();
}

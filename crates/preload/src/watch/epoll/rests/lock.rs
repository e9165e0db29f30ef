//! The list of this process, its lock, and what signal handlers leave to the thread that has it.

use super::change::Change;
use super::list::List;
use crate::guest::cancellation::unless_left;
use crate::guest::memory::PIECE;
use crate::watch::deferrals::Deferrals;
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

/// Changes by signal handlers that have interrupted the thread with the lock, which makes them before the lock is free.
static DEFERRED: Deferrals<Change, 1> = Deferrals::new();
/// Of their places, so many are not for registrations, which can be refused. Only if a handler closes more descriptors
/// than these on top of one look, what is left may be reported once more for one of them.
const FOR_CLOSES: usize = PIECE / 2;

/// Does `what` as the only thread that uses the list; `None` in a signal handler that has interrupted such a thread.
pub(super) fn locked<T>(what: impl FnOnce(&mut List) -> T) -> Option<T> {
    if !lock() {
        return None;
    }
    let answer = with_lock(what);
    // A handler may have deferred something after that, before the lock was free.
    while DEFERRED.is_any() && lock() {
        with_lock(|_| ());
    }
    Some(answer)
}

/// Does `what`, and gives the lock back. What handlers have deferred comes first where it was deferred before.
fn with_lock<T>(what: impl FnOnce(&mut List) -> T) -> T {
    // A handler may jump away from here (siglongjmp).
    let answer = unless_left(unlock, || {
        // SAFETY: the lock makes this thread the only one.
        let list = unsafe { &mut *LIST.0.get() };
        make_deferred(list);
        let answer = what(list);
        make_deferred(list);
        answer
    });
    unlock();
    answer
}

/// Takes the lock; false if this thread has it.
fn lock() -> bool {
    let me = me();
    let (mut seen, mut since) = (PASSED.load(Relaxed), ticks());
    while let Err(owner) = LOCK.compare_exchange_weak(0, me, Acquire, Relaxed) {
        if owner == me {
            return false;
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
    true
}

fn me() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}

fn unlock() {
    PASSED.fetch_add(1, Relaxed);
    LOCK.store(0, Release);
}

/// In a forked child, which has none of the other threads. A look that this thread's handler has interrupted, and then
/// forked, goes on in the child; another thread's is over in the middle.
pub(in crate::watch::epoll) fn after_fork() {
    if LOCK.load(Relaxed) != me() {
        unlock();
        forget_deferred();
    }
}

/// Makes the change, or defers it.
pub(super) fn make(change: Change) {
    if locked(|list| list.apply(change)).is_none() {
        DEFERRED.push(change);
    }
}

/// Makes room for changes, before the filter comes.
pub(super) fn make_room() {
    DEFERRED.make_room();
}

/// Whether a handler can defer a registration.
pub(super) fn has_room() -> bool {
    DEFERRED.has_room(FOR_CLOSES)
}

/// Makes what handlers have deferred.
fn make_deferred(list: &mut List) {
    let mut done = 0;
    // A handler may add to them meanwhile.
    while done < DEFERRED.count() {
        if let Some(change) = DEFERRED.at(done) {
            list.apply(change);
            DEFERRED.done(done);
        }
        done += 1;
        if DEFERRED.clear_if_no_more(done) {
            return;
        }
    }
}

/// Nobody makes what handlers have deferred.
fn forget_deferred() {
    (0..DEFERRED.count()).for_each(|index| DEFERRED.done(index));
    DEFERRED.clear_if_no_more(DEFERRED.count());
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Entry, Key, NO_SET, SET, State};
    use super::*;

    /// Fails if what handlers do on top of a look at the list is lost, or does not come in its order.
    #[test]
    fn a_look_at_the_list_makes_what_handlers_have_deferred() {
        let fds = 900_500..900_600;
        let entry = |fd| Entry {
            key: Key { set: NO_SET, fd, end: SET },
            events: 0,
            data: 0,
            state: State::Armed,
            kicked: false,
        };
        let is_set = |list: &List, fd| list.find(entry(fd).key).is_some();
        let closed = Change::Closed { fd: fds.start, generation: 0, goes_on: false };
        make_room();
        assert_eq!(locked(|list| list.make(200)), Some(true));
        locked(|list| {
            fds.clone().for_each(|fd| make(Change::Entered(entry(fd))));
            make(closed);
            make(Change::Renamed { name: -3, closed: fds.start + 1, heir: fds.end });
            assert!(fds.clone().all(|fd| !is_set(list, fd)));
        });
        locked(|list| {
            assert!(!is_set(list, fds.start) && !is_set(list, fds.start + 1) && is_set(list, fds.end));
            assert!(fds.clone().skip(2).all(|fd| is_set(list, fd)));
        });
        assert!(!DEFERRED.is_any());
        // A registration is refused while there is room for closes yet.
        locked(|_| {
            (0..PIECE - FOR_CLOSES).for_each(|_| make(closed));
            assert!(has_room());
            (0..FOR_CLOSES).for_each(|_| make(closed));
            assert!(!has_room());
        });
        assert!(has_room());
    }
}

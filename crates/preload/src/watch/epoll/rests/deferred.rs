//! Changes of the list that wait for the thread that has it.

use super::entry::Key;
use underpass_segment::sync::{
    Acquire, AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Relaxed, Release, SeqCst,
};

/// Changes of registrations by a signal handler that has interrupted the thread with the lock. That thread makes them
/// when it is done.
static DEFERRED: [Deferred; 8] = [const { Deferred::new() }; 8];
static DEFERRED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// One of them: a key, and what the program wants of it, unless it is followed no more.
pub(super) struct Deferred {
    set: AtomicI32,
    fd: AtomicI32,
    end: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    is_followed: AtomicBool,
}

impl Deferred {
    const fn new() -> Deferred {
        Deferred {
            set: AtomicI32::new(0),
            fd: AtomicI32::new(0),
            end: AtomicU32::new(0),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            is_followed: AtomicBool::new(false),
        }
    }

    /// Defers a change that the kernel has made. If there is no room, it is not followed.
    pub(super) fn push(key: Key, wanted: Option<(u32, u64)>) {
        let count = DEFERRED_COUNT.load(Acquire);
        let Some(it) = DEFERRED.get(count) else { return };
        let (events, data) = wanted.unwrap_or_default();
        it.set.store(key.set, Relaxed);
        it.fd.store(key.fd, Relaxed);
        it.end.store(key.end, Relaxed);
        it.events.store(events, Relaxed);
        it.data.store(data, Relaxed);
        it.is_followed.store(wanted.is_some(), Relaxed);
        DEFERRED_COUNT.store(count + 1, Release);
    }

    fn get(&self) -> (Key, Option<(u32, u64)>) {
        let key = Key { set: self.set.load(Relaxed), fd: self.fd.load(Relaxed), end: self.end.load(Relaxed) };
        let wanted = (self.events.load(Relaxed), self.data.load(Relaxed));
        (key, self.is_followed.load(Relaxed).then_some(wanted))
    }

    /// Has `follow` make each change in its turn.
    pub(super) fn make_all(mut follow: impl FnMut(Key, Option<(u32, u64)>)) {
        let mut made = 0;
        loop {
            let count = DEFERRED_COUNT.load(Acquire);
            for it in DEFERRED.iter().take(count).skip(made) {
                let (key, wanted) = it.get();
                follow(key, wanted);
            }
            made = count;
            // Another handler may have deferred a change meanwhile.
            if DEFERRED_COUNT.compare_exchange(count, 0, SeqCst, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Nobody makes those that there are.
    pub(super) fn forget_all() {
        DEFERRED_COUNT.store(0, Relaxed);
    }
}

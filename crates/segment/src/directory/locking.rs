//! The lock of the table, which an owner that is gone does not keep.

use super::Directory;
use crate::clock;
use crate::kernel;
use crate::lock::alive;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release, pause};

impl Directory {
    /// Locks for what cannot be done later: waits longer than an owner waits for a processor, but not for an owner that
    /// was stopped.
    pub(super) fn lock_patiently(&self, pid: i32) -> Option<Locked<'_>> {
        const PATIENCE_NS: u64 = 500_000_000;
        let deadline = clock::nanoseconds() + PATIENCE_NS;
        loop {
            let locked = self.try_lock(pid);
            if locked.is_some() || clock::nanoseconds() > deadline {
                return locked;
            }
            clock::nap(100);
        }
    }

    pub(super) fn try_lock(&self, pid: i32) -> Option<Locked<'_>> {
        let (lock, me) = (&self.header().lock, kernel::marked(pid as u32));
        for round in 0..2000 {
            let owner = lock.load(Relaxed);
            let stale = owner != 0 && round == 1999 && is_gone(owner);
            if (owner == 0 || stale) && lock.compare_exchange(owner, me, Acquire, Relaxed).is_ok() {
                return Some(Locked(lock));
            }
            if round % 100 == 99 { clock::give_way() } else { pause() }
        }
        None
    }
}

/// Whether the process is gone, as far as can be known here. A process of another PID namespace counts as gone. If it
/// is not, two processes may change the table at once, or an entry goes to another end. That does no harm: no entry is
/// believed without proof, and an end whose entry is gone asks again.
pub(super) fn is_gone(process: u32) -> bool {
    kernel::own(process).is_none_or(|pid| !alive(pid))
}

/// Opens the lock when it is dropped.
pub(super) struct Locked<'a>(&'a AtomicU32);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

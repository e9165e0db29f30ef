//! A lock for what popen and system share among threads. A thread may hold it for long, and a forked child opens it.

use underpass_segment::clock;
use underpass_segment::sync::{Acquire, AtomicBool, Relaxed, Release};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to change what the threads in these calls share.
pub struct Turn;

impl Turn {
    /// This thread's turn, once it comes.
    pub fn take() -> Turn {
        while TAKEN.swap(true, Acquire) {
            clock::nap(20);
        }
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.store(false, Release);
    }
}

/// In a forked child: the thread whose turn it was is not there.
pub fn after_fork() {
    TAKEN.store(false, Relaxed);
}

//! What wakes a thread: another thread's word that it is to look again.
//!
//! A thread that waits for rings alone parks, and is unparked. A thread that waits for descriptors too sleeps in
//! poll(2), where a bell (eventfd(2)) is one more of them.

use crate::sync::Thread;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, read, write};
use std::sync::Arc;

/// A descriptor that is readable once it was rung.
#[derive(Debug)]
pub struct Bell {
    descriptor: OwnedFd,
}

impl Bell {
    /// A new one, not rung.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Arc<Bell>> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Bell { descriptor }))
    }

    /// Wakes the thread that sleeps on it, now or when it next sleeps.
    pub fn ring(&self) {
        // The write fails only if the bell was rung 2^64 - 1 times; then it is readable already.
        let _ = write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Silences the bell, once it was heard, until it is rung again.
    pub fn silence(&self) {
        // The read fails if the bell was not rung.
        let _ = read(&self.descriptor, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The thread to wake, and how it sleeps.
#[derive(Clone, Debug)]
pub enum Waker {
    /// The thread parks.
    Thread(Thread),
    /// The thread sleeps on this bell.
    Bell(Arc<Bell>),
}

impl Waker {
    /// The calling thread, which parks.
    pub fn here() -> Waker {
        Waker::Thread(crate::sync::thread::current())
    }

    /// Wakes it.
    pub fn wake(&self) {
        match self {
            Waker::Thread(thread) => thread.unpark(),
            Waker::Bell(bell) => bell.ring(),
        }
    }
}

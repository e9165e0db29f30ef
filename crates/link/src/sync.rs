//! Atomics, cells and threads: one place to swap for a model checker.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    sync::{Arc, Mutex},
    thread::{self, Thread},
};
#[cfg(not(loom))]
pub use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    sync::{Arc, Mutex},
    thread::{self, Thread},
};

/// Stands for loom's cell, which notices when each thread looks at it.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub fn with<R>(&self, see: impl FnOnce(*const T) -> R) -> R {
        see(self.0.get())
    }

    #[inline]
    pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

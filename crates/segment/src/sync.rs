//! The atomics and small primitives that the rest is built from: one place to swap for a model checker.

pub use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
pub use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, fence};

/// One step of polling: tells the processor that this is a spin.
#[inline]
pub fn pause() {
    core::hint::spin_loop();
}

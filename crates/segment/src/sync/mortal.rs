//! The atomics of this crate in its unit tests: the standard ones, with a place at which a process can die, or a thread
//! can get a signal. So a test can do that before each change of a word, and before each system call, without any
//! change in the tested code.

use core::sync::atomic as plain;
use plain::Ordering;
use std::cell::Cell;

thread_local! {
    /// Steps until this thread gets [`SIGNAL`], counted from 1; 0: it does not.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static SIGNAL: Cell<i32> = const { Cell::new(0) };
}

/// This process dies before the change or the system call number `step`, counted from 1, that this thread makes from
/// now on.
pub fn die_at(step: u32) {
    signal_at(step, libc::SIGKILL);
}

/// This thread gets the signal before that step. A signal that is held back comes later.
pub fn signal_at(step: u32, signal: i32) {
    SIGNAL.set(signal);
    LEFT.set(step);
}

/// Whether the signal was sent.
pub fn is_signalled() -> bool {
    LEFT.get() == 0
}

/// One step.
#[inline]
pub fn step() {
    LEFT.with(|left| match left.get() {
        0 => {}
        1 => {
            left.set(0);
            let signal = SIGNAL.get();
            // SAFETY: no pointer among the arguments.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
            assert!(signal != libc::SIGKILL, "it is handled before the call returns");
        }
        more => left.set(more - 1),
    });
}

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        /// See [`core::sync::atomic`].
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(plain::$name);

        #[allow(missing_docs, reason = "as core's")]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(plain::$name::new(value))
            }

            pub fn as_ptr(&self) -> *mut $int {
                self.0.as_ptr()
            }

            pub fn load(&self, order: Ordering) -> $int {
                self.0.load(order)
            }

            pub fn store(&self, value: $int, order: Ordering) {
                step();
                self.0.store(value, order);
            }

            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                step();
                self.0.swap(value, order)
            }

            pub fn fetch_add(&self, n: $int, order: Ordering) -> $int {
                step();
                self.0.fetch_add(n, order)
            }

            pub fn fetch_sub(&self, n: $int, order: Ordering) -> $int {
                step();
                self.0.fetch_sub(n, order)
            }

            pub fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                step();
                self.0.fetch_or(bits, order)
            }

            pub fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                step();
                self.0.fetch_and(bits, order)
            }

            pub fn fetch_max(&self, n: $int, order: Ordering) -> $int {
                step();
                self.0.fetch_max(n, order)
            }

            pub fn compare_exchange(&self, old: $int, new: $int, yes: Ordering, no: Ordering) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(old, new, yes, no)
            }

            pub fn compare_exchange_weak(
                &self,
                old: $int,
                new: $int,
                yes: Ordering,
                no: Ordering,
            ) -> Result<$int, $int> {
                step();
                self.0.compare_exchange_weak(old, new, yes, no)
            }

            pub fn fetch_update(
                &self,
                yes: Ordering,
                no: Ordering,
                change: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                step();
                self.0.fetch_update(yes, no, change)
            }
        }
    };
}

atomic!(AtomicI32, i32);
atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

//! The atomics and small primitives that the rest is built from: one place to swap for a model checker.
#![allow(unsafe_code, reason = "instructions that are whole for their own thread only")]

pub use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
#[cfg(not(loom))]
pub use core::sync::atomic::fence;
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, compiler_fence};
#[cfg(any(not(test), loom))]
pub use core::sync::atomic::{AtomicI32, AtomicU8};
#[cfg(not(any(test, loom)))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(loom)]
pub mod checked;
#[cfg(loom)]
pub use checked::{AtomicU32, AtomicU64, fence};
#[cfg(all(test, not(loom)))]
pub mod mortal;
#[cfg(all(test, not(loom)))]
pub use mortal::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

/// Changes of words that a lock guards against other threads, but not against a signal handler that interrupts its
/// owner. Each is one instruction, so that a handler comes before or after it, without the cost of keeping other
/// processors out (20 cycles on x86-64, which every message would pay several times).
pub mod own {
    use super::AtomicU64;
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    use super::Relaxed;

    /// Adds `n`.
    #[inline]
    pub fn add(word: &AtomicU64, n: u64) {
        #[cfg(all(test, not(loom)))]
        super::mortal::step();
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        // SAFETY: `word` is valid and aligned; another thread that reads it meanwhile sees the old value or the new
        // one.
        unsafe {
            core::arch::asm!("add qword ptr [{}], {}", in(reg) word.as_ptr(), in(reg) n, options(nostack));
        }
        #[cfg(any(loom, not(target_arch = "x86_64")))]
        word.fetch_add(n, Relaxed);
    }

    /// Puts `new` in the place of `old`; false when something else is there.
    #[inline]
    pub fn replace(word: &AtomicU64, old: u64, new: u64) -> bool {
        #[cfg(all(test, not(loom)))]
        super::mortal::step();
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        {
            let found: u64;
            // SAFETY: as in `add`.
            unsafe {
                core::arch::asm!(
                    "cmpxchg qword ptr [{}], {}",
                    in(reg) word.as_ptr(),
                    in(reg) new,
                    inout("rax") old => found,
                    options(nostack)
                );
            }
            found == old
        }
        #[cfg(any(loom, not(target_arch = "x86_64")))]
        word.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
    }
}

/// The line of memory that `at` lies in will soon be written to.
#[inline]
pub fn about_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it faults at no address.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Another processor will soon read the line of memory that `at` lies in: it may leave this processor's own caches for
/// a cache that both share, from where it is fetched sooner.
#[inline]
pub fn written_for_another(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it faults at no address, and processors that do not know it (CLDEMOTE) do nothing.
    unsafe {
        core::arch::asm!("cldemote byte ptr [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// One step of polling: tells the processor that this is a spin.
#[inline]
pub fn pause() {
    #[cfg(loom)]
    checked::give_way();
    core::hint::spin_loop();
}

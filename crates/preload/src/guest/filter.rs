//! Whether the program has installed a seccomp filter. From then on the library makes no system call of its own for it.

use underpass_segment::sync::{AcqRel, Acquire, AtomicBool, Release};

/// Kept over fork, as the filter is.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether the program has installed a filter.
#[inline]
pub fn is_confined() -> bool {
    CONFINED.load(Acquire)
}

/// The program is about to install one. Whether it had one before.
pub fn begin() -> bool {
    CONFINED.swap(true, AcqRel)
}

/// The kernel has refused it, and there was none before.
pub fn end() {
    CONFINED.store(false, Release);
}

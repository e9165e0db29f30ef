//! The size of the kernel's table of this process's descriptors. A select looks at no bits beyond it.

use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;
use underpass_segment::sync::{AtomicU32, Relaxed};

/// The size as /proc last told it; 0: not known.
static SIZE: AtomicU32 = AtomicU32::new(0);

/// How many of `count` descriptors it has room for; `None` without /proc.
pub fn within(count: usize) -> Option<usize> {
    if count <= SIZE.load(Relaxed) as usize {
        return Some(count);
    }
    let size = if is_quiet() { None } else { kernel::descriptor_table_size() }?;
    // The kernel's table only grows.
    SIZE.store(size as u32, Relaxed);
    Some(count.min(size))
}

/// In a forked child: its table is its own.
pub fn after_fork() {
    SIZE.store(0, Relaxed);
}

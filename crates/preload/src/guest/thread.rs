//! This thread: its number, and whether it is the child of a vfork.

use underpass_segment::kernel;
use underpass_segment::of_each_thread;
use underpass_segment::sync::{AtomicU32, Relaxed};

/// Counts the forks between the first process and this one; tells a thread's cached number from its parent's.
static GENERATION: AtomicU32 = AtomicU32::new(1);

of_each_thread! {
    static NUMBER: (u32, u32) = (0, 0);
    /// In the child of a vfork, which runs in its parent's memory.
    static IS_VFORK_CHILD: bool = false;
}

/// Number of this thread in the kernel, [marked](kernel::marked): it goes into memory that other processes have.
#[inline]
pub fn number() -> u32 {
    let generation = GENERATION.load(Relaxed);
    match NUMBER.get() {
        (known, number) if known == generation => number,
        _ => {
            let number = kernel::marked(kernel::thread_id());
            NUMBER.set((generation, number));
            number
        }
    }
}

/// In a forked child: its thread has another number. Returns which number it had in the parent, if it had asked for it.
pub fn after_fork() -> Option<u32> {
    kernel::renew_mark();
    let generation = GENERATION.fetch_add(1, Relaxed);
    Some(NUMBER.get()).filter(|&(known, _)| known == generation).map(|(_, number)| number)
}

/// Whether this code runs in the child of a vfork: then descriptors are the child's, but all memory is the parent's.
#[inline]
pub fn is_vfork_child() -> bool {
    IS_VFORK_CHILD.get()
}

/// Where a thread that makes a child of vfork keeps what it has to know when it goes on: 1 in a child of vfork, whose
/// memory is its parent's, and 0 elsewhere.
pub fn vfork_level() -> usize {
    usize::from(is_vfork_child())
}

/// Notes whether it does.
pub fn set_vfork_child(is_child: bool) {
    IS_VFORK_CHILD.set(is_child);
}

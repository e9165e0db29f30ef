//! Ends that this process has let go of, and that no process has claimed yet. A program image on its way, or a process
//! to which a socket was passed, may claim them.

use super::handle::{Unclaimed, handle};
use underpass_segment::sync::{AcqRel, AtomicU32, AtomicU64, Relaxed};

/// The list of these ends: index + 1 of the first; [`Unclaimed::next`] links them. 0: none.
static FIRST: AtomicU32 = AtomicU32::new(0);
/// When it is time to look through the list (CLOCK_MONOTONIC, ns).
static LOOK_AT: AtomicU64 = AtomicU64::new(0);
/// How often the list is looked through at most, because each close may be one of thousands.
const LOOK_EVERY_NS: u64 = 10_000_000;

/// Adds an end that may be claimed `until` then (CLOCK_MONOTONIC, ns); false without address space.
pub fn add(index: u32, until: u64) -> bool {
    let Some(handle) = handle(index) else { return false };
    handle.unclaimed.until.store(until, Relaxed);
    enlist(index);
    true
}

/// Puts the end into the list, if it is not there.
pub fn enlist(index: u32) {
    let Some(it) = handle(index).map(|handle| &handle.unclaimed) else { return };
    if it.listed.swap(1, AcqRel) == 0 {
        let mut first = FIRST.load(Relaxed);
        loop {
            it.next.store(first, Relaxed);
            match FIRST.compare_exchange(first, index + 1, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// Takes all out of the list, and calls `what` for each.
pub fn take_each(mut what: impl FnMut(u32, &Unclaimed)) {
    let mut first = FIRST.swap(0, AcqRel);
    while let Some(index) = first.checked_sub(1)
        && let Some(it) = handle(index).map(|handle| &handle.unclaimed)
    {
        first = it.next.load(Relaxed);
        // Before the look at the other words: `enlist`'s caller writes those first and sets this one afterwards.
        it.listed.swap(0, AcqRel);
        what(index, it);
    }
}

/// In a forked child: its parent ends them.
pub fn forget() {
    take_each(|_, _| {});
}

/// Whether it is time to look through them; true once each [`LOOK_EVERY_NS`].
pub fn is_time(now: u64) -> bool {
    let at = LOOK_AT.load(Relaxed);
    now >= at && LOOK_AT.compare_exchange(at, now + LOOK_EVERY_NS, Relaxed, Relaxed).is_ok()
}

/// Whether there are any.
pub fn are_any() -> bool {
    FIRST.load(Relaxed) != 0
}

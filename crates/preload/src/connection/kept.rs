//! Ends that this process keeps for program images to come, or for processes to which it has passed them.

use super::handle::{Keeping, handle};
use underpass_segment::sync::{AcqRel, AtomicU32, AtomicU64, Relaxed};

/// Ends that this process has let go of and that a program image to come, or another process, may still claim: index + 1 of
/// the first; the `kept` of its handle goes on. 0: none.
static KEPT: AtomicU32 = AtomicU32::new(0);
/// When it is time to look through them (CLOCK_MONOTONIC, ns).
static REAP_AT: AtomicU64 = AtomicU64::new(0);
/// So often at most, since each close may be one of thousands.
const REAP_EVERY_NS: u64 = 10_000_000;

pub fn keep(index: u32, until: u64) -> bool {
    let Some(handle) = handle(index) else { return false };
    handle.kept.until.store(until, Relaxed);
    list(index);
    true
}

/// Puts the end among those that are kept, if it is not.
pub fn list(index: u32) {
    let Some(kept) = handle(index).map(|handle| &handle.kept) else { return };
    if kept.listed.swap(1, AcqRel) == 0 {
        let mut first = KEPT.load(Relaxed);
        loop {
            kept.next.store(first, Relaxed);
            match KEPT.compare_exchange(first, index + 1, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// Takes all out of the list, and calls `what` for each.
pub fn for_each(mut what: impl FnMut(u32, &Keeping)) {
    let mut first = KEPT.swap(0, AcqRel);
    while let Some(index) = first.checked_sub(1)
        && let Some(kept) = handle(index).map(|handle| &handle.kept)
    {
        first = kept.next.load(Relaxed);
        // Before the look at the rest: whoever keeps it again does so the other way round.
        kept.listed.swap(0, AcqRel);
        what(index, kept);
    }
}

/// In a forked child: its parent ends them.
pub fn forget() {
    for_each(|_, _| {});
}

/// Whether it is time to look through them: at most so often.
pub fn is_time(now: u64) -> bool {
    let at = REAP_AT.load(Relaxed);
    now >= at && REAP_AT.compare_exchange(at, now + REAP_EVERY_NS, Relaxed, Relaxed).is_ok()
}

/// Whether there are any.
pub fn are_any() -> bool {
    KEPT.load(Relaxed) != 0
}

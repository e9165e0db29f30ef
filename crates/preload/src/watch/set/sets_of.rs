//! Which sets a descriptor may be registered in, so that not every set is asked: a program may have a thousand.

use super::{Set, made};
use crate::guest::memory::{PIECE, Sparse};
use crate::guest::table;
use underpass_segment::sync::{AcqRel, Acquire, AtomicPtr, Relaxed};

/// The set in which the descriptor is registered, or [`SEVERAL`]; null: none.
static SETS_OF: Sparse<AtomicPtr<Set>, { table::MAX_FDS / PIECE }> = Sparse::new();
/// Stands for more than one set; no set has this address.
const SEVERAL: *mut Set = core::ptr::without_provenance_mut(1);

/// `set` is about to have `fd`; false without address space.
pub(super) fn note(fd: i32, set: *const Set) -> bool {
    let Some(place) = SETS_OF.need(fd as u32 as usize) else { return false };
    // SAFETY: places are never unmapped; zeroed memory is a null pointer.
    let place = unsafe { place.as_ref() };
    if let Err(known) = place.compare_exchange(core::ptr::null_mut(), set.cast_mut(), AcqRel, Acquire)
        && known.cast_const() != set
    {
        place.store(SEVERAL, Relaxed);
    }
    true
}

/// The sets that have `fd`, and perhaps some that do not.
pub fn sets_of(fd: i32) -> impl Iterator<Item = &'static Set> {
    // SAFETY: as above.
    let known =
        SETS_OF.get(fd as u32 as usize).map_or(core::ptr::null_mut(), |it| unsafe { it.as_ref() }.load(Acquire));
    let all = (known == SEVERAL).then(made);
    // SAFETY: a set, once made, is never unmapped.
    let one = if all.is_some() { None } else { unsafe { known.as_ref() } };
    one.into_iter().chain(all.into_iter().flatten())
}

/// `fd` is about to be closed: no set has it from now on.
pub fn forget_sets_of(fd: i32) {
    if let Some(place) = SETS_OF.get(fd as u32 as usize) {
        // SAFETY: as above.
        unsafe { place.as_ref() }.store(core::ptr::null_mut(), Relaxed);
    }
}

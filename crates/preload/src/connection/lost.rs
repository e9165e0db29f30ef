//! Ends whose unread bytes went with the channel, because no process came for the end in time.
//!
//! A program image that comes for such an end after all must not read the socket as if nothing were missing. It finds
//! the end by the cookie of its socket, and finds it broken. So such an end is not used again at once: the latest ones
//! are kept.

use underpass_segment::sync::{AcqRel, AtomicU32, Relaxed};

/// How many are kept.
const MOST: usize = 64;

/// Index + 1 of each; 0: none.
static KEPT: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// How many have been kept so far.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Keeps one more. Returns the end that it takes the place of, which is free now.
pub fn keep(index: u32) -> Option<u32> {
    let at = COUNT.fetch_add(1, Relaxed) as usize % MOST;
    KEPT[at].swap(index + 1, AcqRel).checked_sub(1)
}

/// In a forked child: its parent keeps them.
pub fn forget() {
    KEPT.iter().for_each(|it| it.store(0, Relaxed));
}

//! Ends of which something unread went with the channel, since nobody came for them in time.
//!
//! A program image that comes for such an end after all must not read the socket as if nothing were missing. It finds the end by the
//! cookie of its socket, and that it is broken. So the end is not another connection's at once: the latest are kept.

use underpass_segment::sync::{AcqRel, AtomicU32, Relaxed};

/// So many are kept.
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

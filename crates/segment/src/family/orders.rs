//! The table of a family's orders: see [`ordering`](super::ordering).

use crate::layout::laid_out;
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// Most orders that wait in a family at one time.
pub(super) const MOST: usize = 64;

laid_out! {
    /// The orders of a family. Zeroed memory is none.
    #[repr(C, align(64))]
    pub(super) struct Orders {
        /// 1 once there ever was one.
        ever: AtomicU32,
        /// Cookies of sockets; 0: a free place.
        pub(super) cookies: [AtomicU64; MOST],
    }
}

impl Orders {
    pub(super) fn any(&self) -> bool {
        self.ever.load(Relaxed) != 0 && self.cookies.iter().any(|it| it.load(Relaxed) != 0)
    }

    pub(super) fn has(&self, cookie: u64) -> bool {
        cookie != 0 && self.cookies.iter().any(|it| it.load(Acquire) == cookie)
    }

    pub(super) fn place(&self, cookie: u64) -> bool {
        self.ever.store(1, Relaxed);
        let take = |it: &AtomicU64| it.compare_exchange(0, cookie, Release, Relaxed).is_ok();
        self.has(cookie) || self.cookies.iter().any(take)
    }

    /// False if there was none.
    pub(super) fn remove(&self, cookie: u64) -> bool {
        let remove = |it: &&AtomicU64| it.compare_exchange(cookie, 0, AcqRel, Relaxed).is_ok();
        cookie != 0 && self.cookies.iter().filter(remove).count() > 0
    }
}

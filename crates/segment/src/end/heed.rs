//! What a send has to heed before it goes into the ring: a pin, an order from outside, a tap.

use super::End;
use crate::sync::{AcqRel, Acquire, Relaxed, Release};
use crate::tap::Name;

/// Bit of [`End::heed`]: this end sends on the kernel path for good.
const PINNED: u8 = 1;
/// Bit of [`End::heed`]: what it puts into the ring is copied to a tap.
const TAPPED: u8 = 2;
/// Bit of [`End::heed`]: `underpass pin` asks that this end sends on the kernel path; see [`crate::watch`].
const HELD: u8 = 4;
/// Bit of [`End::heed`]: the kernel path of a connection between users or namespaces does not answer.
const SILENT: u8 = 8;

impl End {
    /// What a send has to heed before it goes into the ring: 0, mostly.
    #[inline]
    pub(crate) fn heed(&self) -> u8 {
        self.heed.load(Relaxed)
    }

    /// Whether this end sends on the kernel path for good.
    pub fn is_pinned(&self) -> bool {
        self.heed() & PINNED != 0
    }

    /// Whether this end sends on the kernel path: for good, while it is held, or while the kernel path is silent.
    #[inline]
    pub(crate) fn sends_by_kernel(&self) -> bool {
        self.heed() & (PINNED | HELD | SILENT) != 0
    }

    /// Whether `underpass pin` asks that it stays on the kernel path. An end with a channel sends there then, and an
    /// end without one looks for none.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.heed() & HELD != 0
    }

    /// Whether the kernel path was found silent, and has not answered since.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.heed() & SILENT != 0
    }

    /// Sets whether the kernel path is silent.
    pub(crate) fn set_silent(&self, silent: bool) {
        if silent {
            self.heed.fetch_or(SILENT, AcqRel)
        } else {
            self.heed.fetch_and(!SILENT, AcqRel)
        };
    }

    /// From now on `underpass pin` asks that the connection stays on the kernel path.
    pub fn hold(&self) {
        self.heed.fetch_or(HELD, Release);
    }

    /// `underpass pin` does not ask that any more.
    pub fn let_go_up(&self) {
        self.heed.fetch_and(!HELD, Release);
    }

    /// From now on this end sends on the kernel path for good.
    pub fn pin_sending(&self) {
        self.heed.fetch_or(PINNED, AcqRel);
    }

    /// The tap to which what it sends is copied, if any.
    pub fn tap(&self) -> Option<Name> {
        Name::of(self.tap.load(Relaxed)).filter(|_| self.is_tapped())
    }

    /// Whether there is a tap, or was one until a moment ago.
    pub fn is_tapped(&self) -> bool {
        self.heed() & TAPPED != 0
    }

    /// From now on what this end puts into the ring is copied to the tap of this name.
    pub fn set_tap(&self, name: Name) {
        self.tap.store(name.word(), Relaxed);
        self.heed.fetch_or(TAPPED, AcqRel);
    }

    /// Ends the tap of this name. The next sender still sees that there was a tap, and lets go of it.
    pub fn end_tap(&self, name: Name) {
        let _ = self.tap.compare_exchange(name.word(), 0, AcqRel, Relaxed);
    }

    /// Forgets the tap of this name, or without a name a tap that has ended.
    pub fn forget_tap(&self, name: Option<Name>) {
        if self.tap.compare_exchange(name.map_or(0, Name::word), 0, AcqRel, Relaxed).is_ok() {
            self.heed.fetch_and(!TAPPED, AcqRel);
            if self.tap.load(Acquire) != 0 {
                // Another tap was set meanwhile.
                self.heed.fetch_or(TAPPED, AcqRel);
            }
        }
    }
}

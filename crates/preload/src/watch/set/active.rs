//! The sockets of a set that are looked at in user space.

use super::groups::Joining;
use super::item::{Flags, InKernel};
use super::{Change, Item, Room, Set, State};
use underpass_segment::sync::Relaxed;

/// What becomes of an active socket after a look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// It stays active.
    Keep,
    /// It is left to the kernel.
    Leave,
    /// It stays active, and the scan need not look at further sockets.
    Enough,
}

impl Set {
    /// Has `fd` looked at in user space from now on.
    pub fn activate(&self, fd: i32) {
        self.change(Change::Active { fd });
    }

    /// Makes the sockets active that `is_meant` selects.
    pub fn activate_if(&self, mut is_meant: impl FnMut(i32, &Item) -> bool) {
        if self.is_interrupted() {
            return self.peek_all(|fd, item| {
                if is_meant(fd, item) {
                    self.change(Change::Active { fd });
                }
            });
        }
        self.locked(|state| {
            for index in 0..state.places() {
                let fd = state.fd_at(index);
                if state.item(fd).is_some_and(|it| it.is_ours(fd) && is_meant(fd, it)) {
                    state.activate(fd);
                }
            }
        });
    }

    /// Whether any socket is looked at in user space.
    pub fn is_active(&self) -> bool {
        self.active_count.load(Relaxed) > 0
    }

    /// Shows the active sockets to `look` until it has seen enough. Sockets for which it returns [`Scan::Leave`] are
    /// left to the kernel from then on.
    pub fn scan(&self, look: impl FnMut(i32, &mut Item, &mut Joining<'_>) -> Scan) {
        self.scan_from(|_| 0, look);
    }

    /// Scans as [`Set::scan`] does, beginning where the last such scan stopped: each socket gets its turn, even if a
    /// call reports few at once.
    pub fn scan_in_turn(&self, look: impl FnMut(i32, &mut Item, &mut Joining<'_>) -> Scan) {
        let stopped = self.scan_from(|state| state.turn, look);
        self.locked(|state| state.turn = stopped);
    }

    /// Scans from there; returns where it stopped.
    fn scan_from(
        &self,
        start: impl FnOnce(&State) -> usize,
        mut look: impl FnMut(i32, &mut Item, &mut Joining<'_>) -> Scan,
    ) -> usize {
        self.locked(|state| {
            let count = state.active_count;
            if count == 0 {
                return 0;
            }
            let start = start(state) % count;
            let mut stopped = start + 1;
            let mut left = false;
            for step in 0..count {
                let index = if start + step < count { start + step } else { start + step - count };
                let fd = state.active_at(index);
                let Some(place) = state.item(fd).map(core::ptr::from_mut) else { continue };
                // SAFETY: places lie outside of `state`, and registrations alone move them, of which a look makes none.
                let item = unsafe { &mut *place };
                let verdict = if item.is_current(fd) {
                    look(fd, item, &mut Joining(state))
                } else {
                    // The kernel has forgotten the registration by itself.
                    (item.in_kernel, item.room) = (InKernel::Same, Room::Kernel);
                    Scan::Leave
                };
                // A registration that waits for room in the ring is not left to the kernel, which does not know of that
                // room.
                let stays = verdict != Scan::Leave || item.is_stale() || item.room != Room::Kernel;
                item.flags.set(Flags::ACTIVE, stays);
                match verdict {
                    Scan::Keep => {}
                    Scan::Leave => left = true,
                    Scan::Enough => {
                        stopped = index;
                        break;
                    }
                }
            }
            if left {
                state.drop_inactive();
            }
            stopped
        })
    }
}

impl State {
    pub(super) fn activate(&mut self, fd: i32) {
        let count = self.active_count;
        if let Some(item) = self.item(fd).filter(|it| it.is_ours(fd) && !it.flags.has(Flags::ACTIVE)) {
            item.flags.set(Flags::ACTIVE, true);
            self.active_count += usize::from(self.set_active_at(count, fd));
        }
    }

    pub(super) fn drop_inactive(&mut self) {
        let mut kept = 0;
        for index in 0..self.active_count {
            let fd = self.active_at(index);
            if self.item(fd).is_some_and(|it| it.flags.has(Flags::ACTIVE)) {
                kept += usize::from(self.set_active_at(kept, fd));
            }
        }
        self.active_count = kept;
    }
}

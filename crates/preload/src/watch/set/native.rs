//! Sets whose connections are all on kernel TCP: the kernel alone knows what is true of them, and the library has
//! nothing to do.

use super::{Item, Room, Set};
use crate::connection;
use underpass_segment::switch::ends_made_ready;
use underpass_segment::sync::{Acquire, AtomicU64, Release};

/// What is known of a set: twice the number of [`ends_made_ready`] when it was looked at, plus 1 if the library has
/// something to do, plus 2. 0: nothing is known.
#[repr(transparent)]
pub(super) struct Known(AtomicU64);

impl Known {
    const LIBRARY: u64 = 1;

    fn as_of(made_ready: u64) -> u64 {
        2 * made_ready + 2
    }

    /// Nothing is known any more.
    pub(super) fn forget(&self) {
        self.0.store(0, Release);
    }
}

impl Set {
    /// Whether the kernel's answers are right as they are: no connection in the set has a channel that is in use. It
    /// stays so until an end of this process is made ready, or a registration is made that the library has to look at.
    #[inline]
    pub fn is_native(&self) -> bool {
        let now = Known::as_of(ends_made_ready());
        match self.native.0.load(Acquire) {
            known if known & !Known::LIBRARY == now => known == now,
            _ => self.look_whether_native(now),
        }
    }

    #[cold]
    fn look_whether_native(&self, now: u64) -> bool {
        if self.is_interrupted() || self.is_stale() {
            return false;
        }
        self.locked(|state| {
            let places = 0..state.places();
            let mut is_the_kernels = |index| {
                let fd = state.fd_at(index);
                let item = state.item(fd).filter(|item| item.is_ours(fd));
                item.is_none_or(|item| item.is_as_asked() && !needs_library(fd, item.events))
            };
            let is_native = !self.has_alarm() && places.into_iter().all(&mut is_the_kernels);
            self.native.0.store(now | if is_native { 0 } else { Known::LIBRARY }, Release);
            is_native
        })
    }

    /// `fd` is about to be registered for `events`, or was just now. A thread that the kernel wakes for that looks at
    /// the set anew, once this thread is done with it.
    pub fn forget_native_for(&self, fd: i32, events: u32) {
        if needs_library(fd, events) {
            self.native.forget();
        }
    }
}

impl Item {
    /// Whether the kernel's registration is the program's.
    fn is_as_asked(&self) -> bool {
        !self.is_kicked() && self.room == Room::Kernel
    }
}

/// One-shot registrations are used up by the kernel, which the library has to follow.
fn needs_library(fd: i32, events: u32) -> bool {
    let is_ready = || connection::known(fd).is_some_and(|it| it.ready_port().is_some());
    events & libc::EPOLLONESHOT as u32 != 0 || is_ready()
}

//! The watchers of an end: polls, selects and epoll sets, and programs that wait by system calls of their own.

use super::End;
use crate::sync::{AcqRel, Relaxed};
use crate::words::ALONE;

/// Values of [`End::watched`].
const NOBODY: u8 = 0;
/// One poll, select or epoll set may be watching.
const ONE: u8 = 1;
/// More than one may be watching: then no group wakes them.
const SEVERAL: u8 = 2;
/// The program watches by system calls of its own, as far as can be told, and is counted at
/// [`Reading::resting`](super::Reading::resting).
const UNSEEN: u8 = 3;

impl End {
    /// Whether there may be a watcher.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Relaxed) != NOBODY
    }

    /// Whether more than one poll, select or epoll set may be watching.
    pub fn is_watched_by_several(&self) -> bool {
        self.watched.load(Relaxed) == SEVERAL
    }

    /// A poll, select or epoll set may be watching the socket from now on.
    pub fn watch(&self) {
        let is_new = |now| matches!(now, NOBODY | UNSEEN);
        if is_new(self.watched.load(Relaxed)) {
            let seen = |now| is_new(now).then_some(ONE);
            if self.watched.fetch_update(AcqRel, Relaxed, seen) == Ok(UNSEEN) {
                self.reading.resting.remove();
            }
        }
    }

    /// More than one poll, select or epoll set may be watching from now on; true if that is new.
    pub fn watch_by_several(&self) -> bool {
        let before = self.watched.swap(SEVERAL, AcqRel);
        if before == UNSEEN {
            self.reading.resting.remove();
        }
        before != SEVERAL
    }

    /// Whether a single poll, select or epoll set of this process watches it, as far as is known, and by calls of this
    /// library.
    pub fn is_watched_by_one(&self) -> bool {
        self.watched.load(Relaxed) == ONE && !self.owners.are_several()
    }

    /// The program may be watching it by system calls of its own.
    pub fn watch_unseen(&self) {
        // The call that ends this counts the sleeper off again.
        self.reading.resting.add(ALONE);
        if self.watched.compare_exchange(NOBODY, UNSEEN, AcqRel, Relaxed).is_err() {
            self.reading.resting.remove();
        }
    }

    /// The program that watched by system calls of its own waits in a receive by now.
    #[inline]
    pub fn unwatch_unseen(&self) {
        if self.is_watched_unseen() && self.watched.compare_exchange(UNSEEN, NOBODY, AcqRel, Relaxed).is_ok() {
            self.reading.resting.remove();
        }
    }

    /// Whether [`End::watch_unseen`] was called, and no call has ended that since.
    pub fn is_watched_unseen(&self) -> bool {
        self.watched.load(Relaxed) == UNSEEN
    }
}

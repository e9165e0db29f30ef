//! Sets that libc's own wait serves as well: none of their connections has a channel, so the kernel alone knows what
//! is true of them, and the library has nothing to do.

use super::{Item, Room, Set, State, sets_of};
use crate::connection::{self, Connection};
use underpass_segment::end::Stage;
use underpass_segment::sync::{AcqRel, Acquire, AtomicI32, AtomicU32, AtomicU64, Relaxed, Release};

/// What is known of a set. Zeroed memory knows nothing.
pub(super) struct Known {
    /// A [`Verdict`] in the lowest bits, and above them how often something was learned or forgotten.
    word: AtomicU64,
    /// The last descriptor for which the library had something to do: the next look begins there.
    fd: AtomicI32,
    /// How often the set was asked about while the library had something to do.
    asked: AtomicU32,
}

/// Whether the set is native.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Verdict {
    Unknown = 0,
    Native = 1,
    NotNative = 2,
}

/// The bits of a [`Verdict`].
const VERDICT: u64 = 3;

impl Known {
    fn is(word: u64, verdict: Verdict) -> bool {
        word & VERDICT == verdict as u64
    }

    fn change(&self, verdict: Verdict) {
        let next = |word: u64| Some((word & !VERDICT).wrapping_add(VERDICT + 1) | verdict as u64);
        let _ = self.word.fetch_update(AcqRel, Relaxed, next);
    }

    /// Nothing is known any more.
    pub(super) fn forget(&self) {
        self.change(Verdict::Unknown);
    }

    /// The library has something to do for `fd`.
    pub(super) fn note_not_native(&self, fd: i32) {
        self.fd.store(fd, Relaxed);
        self.change(Verdict::NotNative);
    }

    /// The library has nothing to do for `fd` any more.
    pub(super) fn forget_for(&self, fd: i32) {
        if Known::is(self.word.load(Relaxed), Verdict::NotNative) && self.fd.load(Relaxed) == fd {
            self.forget();
        }
    }

    /// Whether it is time to look again at a set that was not native. Less and less often: the look may take long.
    fn is_time(&self) -> bool {
        let asked = self.asked.load(Relaxed).wrapping_add(1);
        self.asked.store(asked, Relaxed);
        asked.is_power_of_two()
    }
}

/// The connection has joined its other end: sets that have it are not native any more.
pub fn note_joined(connection: Connection) {
    connection.descriptors().flat_map(sets_of).for_each(|set| set.native.forget());
}

impl Set {
    /// Whether the set is native: a value that is the same as long as it stays so. It does until a connection in the
    /// set joins its other end, or a registration is made for which the library has something to do.
    #[inline]
    pub fn native(&self) -> Option<u64> {
        let word = self.native.word.load(Acquire);
        if Known::is(word, Verdict::Native) {
            return Some(word);
        }
        if Known::is(word, Verdict::NotNative) && !self.native.is_time() {
            return None;
        }
        self.look_whether_native()
    }

    #[cold]
    fn look_whether_native(&self) -> Option<u64> {
        if self.is_interrupted() || self.is_stale() {
            return None;
        }
        self.locked(|state| {
            let before = self.native.word.load(Acquire);
            let is_the_librarys = |state: &mut State, fd| {
                let item = state.item(fd).filter(|item| item.is_ours(fd));
                item.is_some_and(|item| !item.is_as_asked() || needs_library(fd, item.events))
            };
            let last = self.native.fd.load(Relaxed);
            let found = if is_the_librarys(state, last) {
                Some(last)
            } else {
                let mut places = 0..state.places();
                places.find_map(|index| Some(state.fd_at(index)).filter(|&fd| fd >= 0 && is_the_librarys(state, fd)))
            };
            let verdict = if found.is_some() || self.has_alarm() || self.is_rung() {
                Verdict::NotNative
            } else {
                Verdict::Native
            };
            found.inspect(|&fd| self.native.fd.store(fd, Relaxed));
            // Not if a signal handler, or another thread, has changed it meanwhile.
            let now = before & !VERDICT | verdict as u64;
            let _ = self.native.word.compare_exchange(before, now, Release, Relaxed);
        });
        let word = self.native.word.load(Acquire);
        Known::is(word, Verdict::Native).then_some(word)
    }

    /// The library is about to have the kernel report `fd` for what the program has not asked.
    pub fn note_kicked(&self, fd: i32) {
        self.native.note_not_native(fd);
    }

    /// `fd` is about to be registered for `events`: a thread that the kernel wakes for that is not to take the set for
    /// native.
    pub fn expect_for_native(&self, fd: i32, events: u32) {
        if needs_library(fd, events) {
            self.native.note_not_native(fd);
        }
    }
}

impl Item {
    /// Whether the kernel's registration is the program's.
    fn is_as_asked(&self) -> bool {
        !self.is_kicked() && self.room == Room::Kernel
    }
}

/// Whether the library has something to do for a socket that is registered so. It has for one-shot registrations, which
/// the kernel uses up. A connection that has joined is made ready later, perhaps by another process that has its end.
fn needs_library(fd: i32, events: u32) -> bool {
    let has_joined = || connection::known(fd).is_some_and(|it| it.end.stage() == Stage::Joined);
    events & libc::EPOLLONESHOT as u32 != 0 || has_joined()
}

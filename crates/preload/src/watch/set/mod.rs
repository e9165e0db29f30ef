//! The library's copy of an epoll set: which stream sockets the program has registered, how, and which are active.

mod active;
mod change;
mod deferred;
mod groups;
mod item;
mod items;
mod names;
mod native;
#[cfg(test)]
mod properties;
mod registrations;
mod sets_of;

pub use active::Scan;
pub use change::Change;
pub use deferred::{Deferred, defer_release, is_any_interrupted};
pub use groups::{Joining, forget_pool, release_all_groups};
pub use item::{Item, Room};
pub use registrations::{Later, Registered, WithData};
pub use sets_of::{forget_sets_of, sets_of};

use crate::guest::memory::{PIECE, Sparse, release, reserve};
use crate::guest::{table, thread};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use deferred::Deferrals;
use groups::Members;
use items::{First, Items};
use names::Names;
use native::Known;
pub use native::note_joined;
use underpass_segment::clock::give_way;
use underpass_segment::sync::{
    AcqRel, Acquire, AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release, pause,
};
use underpass_segment::wait::Memory;

/// Stands for more than one thread; no thread has this number.
const SEVERAL: u32 = u32::MAX;

/// Sets that are registered in another one.
type InnerList = Sparse<AtomicI32, { table::MAX_FDS / PIECE }>;

/// What the lock of a set protects.
struct State {
    set: *const Set,
    members: *mut Members,
    member_count: usize,
    member_capacity: usize,
    /// The pool that had no group left, and how many connections of it are left to the kernel before the set looks
    /// again.
    full_pool: *const u8,
    looks_left: u32,
    items: *mut Items,
    /// The table that every set has, in its own memory.
    first: *mut First,
    count: u32,
    active_count: usize,
    stale_count: usize,
    turn: usize,
}

/// The copy. Made once per epoll set in use, never unmapped, used again.
pub struct Set {
    /// Number of the thread that is inside; 0 if none is.
    lock: AtomicU32,
    state: UnsafeCell<State>,
    /// What signal handlers that have interrupted a look at the set have deferred.
    deferred: Deferrals,
    next_free: AtomicPtr<Set>,
    /// Sets that are registered in this one, each number plus 1; 0: a place that is free again. Null until there is
    /// one.
    inner: AtomicPtr<InnerList>,
    inner_count: AtomicU32,
    /// A descriptor of the library's that is registered to wake a sleeper, plus 1; 0: none.
    alarm: AtomicI32,
    /// Whether streams to other hosts are registered.
    is_remote: AtomicBool,
    /// The number of its line, if that is registered; 0: it is not.
    line: AtomicU64,
    /// One of its descriptors, and all of them.
    epfd: AtomicI32,
    names: Names,
    /// One of its descriptors was closed under a sleeper.
    slept_on: AtomicBool,
    is_inner: AtomicU32,
    /// The thread that uses it; [`SEVERAL`].
    user: AtomicU32,
    /// What `state` says of the registered, the active and the changed sockets, for a look without the lock.
    count: AtomicU32,
    active_count: AtomicU32,
    stale: AtomicBool,
    /// A descriptor that is no socket of ours was registered.
    has_foreign: AtomicBool,
    /// See [`Set::has_twins`].
    has_twins: AtomicBool,
    /// See [`Set::native`].
    native: Known,
    /// Pools in which it has a group.
    groups: AtomicU32,
    /// See [`Set::changes`].
    changes: AtomicU32,
    /// See [`Set::generation`].
    generation: AtomicU32,
    /// All sets ever made, linked.
    next_made: AtomicPtr<Set>,
    mean_wait: AtomicU64,
    waits: AtomicU32,
    bells_before: AtomicU32,
    asked: AtomicU64,
    others_first: AtomicBool,
}

// SAFETY: `state` is used only by the thread that holds `lock`.
unsafe impl Sync for Set {}

static FREE: AtomicPtr<Set> = AtomicPtr::new(null_mut());
static MADE: AtomicPtr<Set> = AtomicPtr::new(null_mut());
/// A set has had an alarm.
static ALARMS: AtomicBool = AtomicBool::new(false);

/// In a forked child, whose thread had the number `before` in the parent: the groups are the parent's. Inherited sets
/// take groups of the child's own when they need them. The kernel's sets are shared with the parent, which brings them
/// up to date.
pub fn after_fork(before: Option<u32>) {
    made().for_each(|set| set.begin_in_child(before));
}

/// All sets of this process.
pub fn made() -> impl Iterator<Item = &'static Set> {
    // SAFETY: sets are never unmapped.
    core::iter::successors(unsafe { MADE.load(Acquire).as_ref() }, |set| unsafe {
        set.next_made.load(Acquire).as_ref()
    })
}

/// `fd` is about to be closed by the program: it is no alarm of the library's any more.
pub fn forget_alarm(fd: i32) {
    if ALARMS.load(Relaxed) {
        for set in made() {
            let _ = set.alarm.compare_exchange(fd + 1, 0, AcqRel, Relaxed);
        }
    }
}

/// Where a signal handler may interrupt a look at the set, and the model of the tests does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// The lock was taken for a look, which comes next.
    Taken,
    /// The look is over.
    Over,
    /// What was deferred first is about to be made.
    Deferred,
    /// It is made.
    Made,
    /// Nothing is deferred, and the lock is about to be given back.
    Leaving,
}

#[inline]
fn lock_point(_set: &Set, _point: Point) {
    #[cfg(test)]
    properties::interrupt(_set, _point);
}

impl Set {
    /// An empty set with the descriptor `epfd`; `None` without address space.
    pub fn make(epfd: i32) -> Option<*mut Set> {
        let made = Set::unused()?;
        // SAFETY: nobody else has it.
        let set = unsafe { &*made };
        set.epfd.store(epfd, Relaxed);
        set.names.begin(epfd);
        Some(made)
    }

    fn unused() -> Option<*mut Set> {
        let free = FREE.swap(null_mut(), AcqRel);
        // SAFETY: sets are never unmapped.
        if let Some(set) = unsafe { free.as_ref() } {
            // The rest of the list goes back.
            let rest = set.next_free.swap(null_mut(), Relaxed);
            if !rest.is_null() {
                // SAFETY: as above.
                Set::push_free(unsafe { &*rest });
            }
            return Some(free);
        }
        let page: *mut (Set, First) = reserve(size_of::<(Set, First)>()).cast();
        if page.is_null() {
            return None;
        }
        // SAFETY: fresh memory of our own, for both; zeroed memory is valid.
        let set = unsafe { &raw mut (*page).0 };
        // SAFETY: as above.
        unsafe {
            let state = &mut *(*set).state.get();
            state.set = set;
            state.first = &raw mut (*page).1;
            state.begin_anew();
            let mut first = MADE.load(Acquire);
            loop {
                (*set).next_made.store(first, Relaxed);
                match MADE.compare_exchange(first, set, AcqRel, Acquire) {
                    Ok(_) => break,
                    Err(now) => first = now,
                }
            }
        }
        Some(set)
    }

    /// Empties the set for another epoll descriptor.
    pub fn release(set: &Set) {
        set.locked(|state| {
            for index in 0..state.places() {
                state.let_rest_no_more(state.fd_at(index));
            }
            state.release_groups();
            state.begin_anew();
        });
        set.inner_count.store(0, Relaxed);
        set.mean_wait.store(0, Relaxed);
        set.is_inner.store(0, Relaxed);
        set.slept_on.store(false, Relaxed);
        set.has_foreign.store(false, Relaxed);
        set.has_twins.store(false, Relaxed);
        set.user.store(0, Relaxed);
        set.groups.store(0, Relaxed);
        set.is_remote.store(false, Relaxed);
        set.set_line(0);
        set.generation.fetch_add(1, AcqRel);
        Set::push_free(set);
    }

    fn push_free(set: &Set) {
        let mut last = set;
        // SAFETY: sets are never unmapped.
        while let Some(next) = unsafe { last.next_free.load(Relaxed).as_ref() } {
            last = next;
        }
        let mut head = FREE.load(Acquire);
        loop {
            last.next_free.store(head, Relaxed);
            match FREE.compare_exchange(head, set as *const Set as *mut Set, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// See [`after_fork`].
    fn begin_in_child(&self, before: Option<u32>) {
        self.groups.store(0, Relaxed);
        // Another thread of the parent may have been about to say that a connection has joined.
        self.native.forget();
        if before == Some(self.lock.load(Relaxed)) {
            // A signal handler has forked, and the look that it has interrupted goes on in the child.
            self.lock.store(thread::number(), Relaxed);
            return self.defer(Deferred::Forked);
        }
        self.lock.store(0, Relaxed);
        self.locked(State::begin_in_child);
    }

    /// Does `what` as the only thread inside; not to be called in a signal handler that has interrupted a look at the
    /// set.
    fn locked<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        let mut rounds = 0u32;
        let mut what = Some(what);
        let mut result = None;
        loop {
            while self.lock.compare_exchange_weak(0, thread::number(), Acquire, Relaxed).is_err() {
                rounds += 1;
                if rounds.is_multiple_of(64) { give_way() } else { pause() }
            }
            // SAFETY: the lock makes this thread the only one.
            let state = unsafe { &mut *self.state.get() };
            if let Some(what) = what.take() {
                lock_point(self, Point::Taken);
                result = Some(what(state));
                lock_point(self, Point::Over);
            }
            let ends = self.deferred.is_any().then(|| self.catch_up(state));
            self.count.store(state.count, Relaxed);
            self.active_count.store(state.active_count as u32, Relaxed);
            self.stale.store(state.stale_count > 0, Relaxed);
            lock_point(self, Point::Leaving);
            self.lock.store(0, Release);
            if let Some(ends) = ends {
                ends.let_go(self);
            }
            // A handler may have come after that, before the lock was free.
            if !self.deferred.is_any()
                && let Some(result) = result.take()
            {
                return result;
            }
        }
    }

    /// Does `what` as the only thread inside, unless this is a signal handler that has interrupted a look at the set.
    fn unless_interrupted<T>(&self, what: impl FnOnce(&mut State) -> T) -> Option<T> {
        (!self.is_interrupted()).then(|| self.locked(what))
    }

    /// Whether this is a signal handler that has interrupted its thread inside the set.
    pub fn is_interrupted(&self) -> bool {
        let owner = self.lock.load(Relaxed);
        owner != 0 && owner == thread::number()
    }

    /// Sockets registered.
    pub fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Whether anything is registered that is not looked at in user space.
    pub fn has_quiet(&self) -> bool {
        self.count() > self.active_count.load(Relaxed) || self.has_foreign.load(Relaxed)
    }

    /// Whether the kernel may have older registrations.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Relaxed)
    }

    /// Whether a socket was ever registered by several of its descriptors.
    pub fn has_twins(&self) -> bool {
        self.has_twins.load(Relaxed)
    }

    /// A socket was registered by several of its descriptors.
    pub fn set_twins(&self) {
        self.has_twins.store(true, Relaxed);
    }

    /// Notes that another set is registered in this one. Without the lock, so that a signal handler that has
    /// interrupted a look at the set does it too.
    pub fn add_inner(&self, epfd: i32) {
        if self.inner().any(|it| it == epfd) {
            return;
        }
        for index in 0..table::MAX_FDS as u32 {
            // Without address space, a thread that waits on this set is not told of what lies in the rings alone.
            let Some(place) = self.need_inner_list().and_then(|list| list.need(index as usize)) else { return };
            // SAFETY: places are never unmapped; zeroed memory is none.
            if unsafe { place.as_ref() }.compare_exchange(0, epfd + 1, Relaxed, Relaxed).is_ok() {
                self.inner_count.fetch_max(index + 1, Release);
                return;
            }
        }
    }

    /// Notes that the other set is not registered in this one any more.
    pub fn remove_inner(&self, epfd: i32) {
        for index in 0..self.inner_count.load(Acquire) {
            if let Some(place) = self.inner_list().and_then(|list| list.get(index as usize)) {
                // SAFETY: as in `add_inner`.
                let _ = unsafe { place.as_ref() }.compare_exchange(epfd + 1, 0, Relaxed, Relaxed);
            }
        }
    }

    fn inner_list(&self) -> Option<&InnerList> {
        // SAFETY: once made, never unmapped.
        unsafe { self.inner.load(Acquire).as_ref() }
    }

    fn need_inner_list(&self) -> Option<&InnerList> {
        if self.inner_list().is_none() {
            // Zeroed memory is a list without any.
            let made: *mut InnerList = reserve(size_of::<InnerList>()).cast();
            if !made.is_null() && self.inner.compare_exchange(null_mut(), made, AcqRel, Acquire).is_err() {
                // SAFETY: just mapped, and nobody else has it: another thread was faster.
                unsafe { release(made.cast(), size_of::<InnerList>()) };
            }
        }
        self.inner_list()
    }

    fn inner_at(&self, index: u32) -> Option<i32> {
        // SAFETY: as in `add_inner`.
        self.inner_list()?.get(index as usize).map(|place| unsafe { place.as_ref() }.load(Relaxed))
    }

    /// Sets registered in this one.
    pub fn inner(&self) -> impl Iterator<Item = i32> {
        let count = self.inner_count.load(Acquire);
        (0..count).filter_map(|index| self.inner_at(index)).filter(|&it| it > 0).map(|it| it - 1)
    }

    /// Whether another set is registered in this one.
    pub fn has_inner(&self) -> bool {
        self.inner().next().is_some()
    }

    /// Has `fd` wake the threads that sleep on the set; false if another descriptor does so already.
    pub fn set_alarm(&self, fd: i32) -> bool {
        ALARMS.store(true, Relaxed);
        let is_set = self.alarm.compare_exchange(0, fd + 1, AcqRel, Relaxed).is_ok();
        self.native.forget();
        is_set
    }

    /// Whether it has one.
    pub fn has_alarm(&self) -> bool {
        self.alarm.load(Acquire) != 0
    }

    /// Takes it out.
    pub fn take_alarm(&self) -> Option<i32> {
        match self.alarm.load(Relaxed) {
            0 => None,
            _ => Some(self.alarm.swap(0, AcqRel) - 1).filter(|&fd| fd >= 0),
        }
    }

    /// A stream to another host is registered.
    pub fn set_remote(&self) {
        self.is_remote.store(true, Relaxed);
    }

    /// Whether streams to other hosts are registered, or were.
    #[inline]
    pub fn is_remote(&self) -> bool {
        self.is_remote.load(Relaxed)
    }

    /// Notes that its line, of this number, is registered; 0: that it has none.
    pub fn set_line(&self, number: u64) {
        self.line.store(number, Relaxed);
        self.native.forget();
    }

    /// Whether a line is registered.
    pub fn is_rung(&self) -> bool {
        self.line.load(Relaxed) != 0
    }

    /// Whether the line of this number is registered.
    pub fn has_line(&self, number: u64) -> bool {
        self.line.load(Relaxed) == number
    }

    /// The data that the line is registered with: an address at which no program has anything.
    pub fn line_data(&self) -> u64 {
        self.line.as_ptr() as u64
    }

    /// The data that it is registered with: an address at which no program has anything.
    pub fn alarm_data(&self) -> u64 {
        self.alarm.as_ptr() as u64
    }

    /// See [`Set::set_inner`].
    pub fn is_inner(&self) -> bool {
        self.is_inner.load(Relaxed) != 0
    }

    /// Notes that this thread waits on the set or changes it. Whether no other thread has done so before.
    pub fn is_mine(&self) -> bool {
        let me = thread::number();
        match self.user.load(Relaxed) {
            SEVERAL => false,
            user if user == me => true,
            0 => self.user.compare_exchange(0, me, Relaxed, Relaxed).is_ok(),
            _ => {
                self.user.store(SEVERAL, Relaxed);
                false
            }
        }
    }

    /// How often it has ended: tells a set from one that was made in its place.
    pub fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// A descriptor of it.
    pub fn epfd(&self) -> i32 {
        self.epfd.load(Relaxed)
    }

    /// Says which descriptor it has.
    pub fn set_epfd(&self, epfd: i32) {
        self.epfd.store(epfd, Relaxed);
    }

    /// Its descriptors.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Whether a thread may sleep on it by a descriptor that has been closed.
    pub fn is_slept_on(&self) -> bool {
        self.slept_on.load(Relaxed)
    }

    /// A thread may do so. This stays, because nothing says when that thread wakes up.
    pub fn set_slept_on(&self) {
        self.slept_on.store(true, Relaxed);
    }

    /// What it remembers of its waits.
    pub fn memory(&self) -> Memory<'_> {
        Memory { mean: &self.mean_wait, waits: &self.waits, bells: &self.bells_before }
    }

    /// When the kernel was last asked, in ticks.
    pub fn asked(&self) -> &AtomicU64 {
        &self.asked
    }

    /// The kernel's descriptors have filled the last answer: the active sockets come first in the next one.
    pub fn others_first(&self) -> &AtomicBool {
        &self.others_first
    }
}

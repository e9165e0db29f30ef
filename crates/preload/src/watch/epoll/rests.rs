//! Registrations of connections of a confined process that have something unread in their rings (see
//! `connection::confined`), of which the kernel does not know.
//!
//! The library keeps a list of them. It is made before the seccomp filter comes, with room for later registrations,
//! because the filter may forbid to ask for memory. A wait looks at the list, and adds what the kernel reports.
//!
//! One lock is around each use of the list, and around each epoll_ctl that changes it, so that list and kernel change
//! in the same order. It spins, because a filter may forbid to sleep, and it knows its thread without a system call. A
//! signal handler that has interrupted the thread with the lock leaves its registrations to that thread ([`DEFERRED`]).
//!
//! A thread that is about to sleep counts itself, and looks at the list once more. A thread that registers something
//! looks, with the lock, whether any sleeper is counted. If so, it has the kernel report room as well, which wakes the
//! sleepers.

use super::register::register;
use super::{EDGE, IN, MAX_DEPTH, ONCE, OUT, OVER, SLEEPERS, descriptors, has_sleepers, leave_to_kernel, set_of};
use crate::connection::{self, Connection, confined};
use crate::guest::cancellation::unless_left;
use crate::guest::memory::{PIECE, Reserved};
use crate::guest::{real, table};
use crate::watch::set::{self, Set};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::clock::{ticks, ticks_per_microsecond};
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;
use underpass_segment::sync::{
    Acquire, AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Relaxed, Release, SeqCst, fence, pause,
};

/// The list has room for this many registrations made after the filter, and for twice as many as there were before.
const ROOM: usize = 1024;
/// After this many waits that have found nothing left, the library gives the list up if nothing can be left.
const LOOK_EVERY: u32 = 256;

/// In place of an end's number: the registered descriptor is a set.
const SET: u32 = u32::MAX;
/// In place of a set's descriptor: the entry only says that its own descriptor is a set.
const NO_SET: c_int = -1;
/// In place of the registered descriptor: it was closed, and the connection has another.
const CLOSED: c_int = -2;

/// What an entry says. Zeroed memory is an unused one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// Nothing.
    Free = 0,
    /// What is left is to be reported.
    Armed,
    /// What is left was reported, and is not reported again (edge-triggered, one-shot). A one-shot registration is
    /// still armed in the kernel.
    Told,
    /// One-shot: the kernel has disarmed it by an event, or nothing is to be reported before it is armed again. An
    /// event of an earlier arming may still be on its way.
    Spent,
    /// One-shot: no event of it is on its way. An event with the same data is of another registration.
    Silent,
}

/// Which registration.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    set: c_int,
    fd: c_int,
    /// The number of the connection's end, which may also have other descriptors; or [`SET`].
    end: u32,
}

/// A registration in a set.
#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    events: u32,
    data: u64,
    state: State,
    /// The library has asked the kernel for room that the program did not ask for, to wake threads that sleep on the
    /// set.
    kicked: bool,
}

struct List {
    /// Memory for `length` entries, of which `used` were ever used; null until the first filter comes.
    at: *mut Entry,
    length: usize,
    used: usize,
}

struct Shared(UnsafeCell<List>);
// SAFETY: the list is used with the lock alone; its memory is this process's for good.
unsafe impl Sync for Shared {}

static LIST: Shared = Shared(UnsafeCell::new(List { at: core::ptr::null_mut(), length: 0, used: 0 }));
/// The thread that has the list, as pthread_self(3) names it; 0: none.
static LOCK: AtomicUsize = AtomicUsize::new(0);
/// How often the list was given up by its thread.
static PASSED: AtomicUsize = AtomicUsize::new(0);
/// A thread that has had the list for this long was killed: a filter may kill a thread for its epoll_ctl.
const DEAD_AFTER_US: u64 = 10_000_000;
/// Counts the answers of each set, by a part of its descriptor, so that neither the list nor the kernel comes first
/// each time.
static TURNS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// Waits that have found nothing left.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// Changes of registrations by a signal handler that has interrupted the thread with the lock. That thread makes them
/// when it is done.
static DEFERRED: [Deferred; 8] = [const { Deferred::new() }; 8];
static DEFERRED_COUNT: AtomicUsize = AtomicUsize::new(0);

struct Deferred {
    set: AtomicI32,
    fd: AtomicI32,
    end: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    is_followed: AtomicBool,
}

/// Does `what` as the only thread that uses the list; `None` in a signal handler that has interrupted such a thread.
fn locked<T>(what: impl FnOnce(&mut List) -> T) -> Option<T> {
    // SAFETY: no arguments.
    let me = unsafe { libc::pthread_self() } as usize;
    let (mut seen, mut since) = (PASSED.load(Relaxed), ticks());
    while let Err(owner) = LOCK.compare_exchange_weak(0, me, Acquire, Relaxed) {
        if owner == me {
            return None;
        }
        let passed = PASSED.load(Relaxed);
        if passed != seen {
            (seen, since) = (passed, ticks());
        } else if ticks().wrapping_sub(since) > DEAD_AFTER_US * ticks_per_microsecond()
            && LOCK.compare_exchange(owner, me, Acquire, Relaxed).is_ok()
        {
            break;
        }
        pause();
    }
    // A handler may jump away from here (siglongjmp).
    let answer = unless_left(unlock, || {
        // SAFETY: the lock makes this thread the only one.
        let list = unsafe { &mut *LIST.0.get() };
        let answer = what(list);
        list.make_deferred();
        answer
    });
    unlock();
    Some(answer)
}

fn unlock() {
    PASSED.fetch_add(1, Relaxed);
    LOCK.store(0, Release);
}

/// In a forked child, which has none of the other threads.
pub(super) fn after_fork() {
    unlock();
    DEFERRED_COUNT.store(0, Relaxed);
}

/// The descriptor by which the list knows the set `epfd`.
fn name_of(epfd: c_int) -> c_int {
    set_of(epfd).map_or(epfd, Set::epfd)
}

impl Deferred {
    const fn new() -> Deferred {
        Deferred {
            set: AtomicI32::new(0),
            fd: AtomicI32::new(0),
            end: AtomicU32::new(0),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            is_followed: AtomicBool::new(false),
        }
    }

    /// Defers a change that the kernel has made. If there is no room, it is not followed.
    fn push(key: Key, wanted: Option<(u32, u64)>) {
        let count = DEFERRED_COUNT.load(Acquire);
        let Some(it) = DEFERRED.get(count) else { return };
        let (events, data) = wanted.unwrap_or_default();
        it.set.store(key.set, Relaxed);
        it.fd.store(key.fd, Relaxed);
        it.end.store(key.end, Relaxed);
        it.events.store(events, Relaxed);
        it.data.store(data, Relaxed);
        it.is_followed.store(wanted.is_some(), Relaxed);
        DEFERRED_COUNT.store(count + 1, Release);
    }

    fn get(&self) -> (Key, Option<(u32, u64)>) {
        let key = Key { set: self.set.load(Relaxed), fd: self.fd.load(Relaxed), end: self.end.load(Relaxed) };
        let wanted = (self.events.load(Relaxed), self.data.load(Relaxed));
        (key, self.is_followed.load(Relaxed).then_some(wanted))
    }
}

impl Entry {
    fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Whether there is something to read that the kernel does not know of.
    fn has_rest(&self, list: &List, depth: u32) -> bool {
        list.has_rest(self.key.fd, self.key.end, depth)
    }

    /// Whether that is to be reported to the program.
    fn is_due(&self, list: &List, depth: u32) -> bool {
        self.state == State::Armed && self.has_rest(list, depth)
    }

    /// Whether the kernel alone reports it from now on, as the program has asked. A thread may still be about to report
    /// the last event of a one-shot registration.
    fn is_over(&self) -> bool {
        self.is_free()
            || self.events & ONCE == 0 && !self.kicked && self.key.end != SET && !confined::may_have_rest(self.key.end)
    }

    /// Whether the event `told` of the kernel's was a doorbell, which was taken before the filter came.
    fn was_doorbell(&self, told: u32) -> bool {
        let is_there = || kernel::poll_now(self.key.fd, libc::POLLIN) != 0;
        told & (IN | OVER) == libc::EPOLLIN as u32 && self.key.end != SET && !is_quiet() && !is_there()
    }

    /// Gives the kernel the program's registration back. The program has called epoll_ctl itself before, so the filter
    /// allows it.
    fn calm(&self) {
        register(self.key.set, self.key.fd, self.events, self.data);
    }
}

impl List {
    fn entries(&self) -> &[Entry] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: so many fit, and were written; they are never unmapped.
        unsafe { core::slice::from_raw_parts(self.at, self.used) }
    }

    fn entries_mut(&mut self) -> &mut [Entry] {
        if self.at.is_null() {
            return &mut [];
        }
        // SAFETY: as above; `self` is borrowed for as long.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.used) }
    }

    fn find(&self, key: Key) -> Option<usize> {
        self.entries().iter().position(|it| !it.is_free() && it.key == key)
    }

    /// The entries of the set.
    fn of(&self, set: c_int) -> impl Iterator<Item = &Entry> {
        self.entries().iter().filter(move |it| !it.is_free() && it.key.set == set)
    }

    fn is_set(&self, fd: c_int) -> bool {
        set_of(fd).is_some() || self.find(Key { set: NO_SET, fd, end: SET }).is_some()
    }

    fn has_rest(&self, fd: c_int, end: u32, depth: u32) -> bool {
        match end {
            SET => depth < MAX_DEPTH && self.has_any(name_of(fd), depth + 1),
            end => confined::has_rest_of(end),
        }
    }

    /// Whether anything in the set is to be reported to the program.
    fn has_any(&self, set: c_int, depth: u32) -> bool {
        self.of(set).any(|it| it.is_due(self, depth))
    }

    /// Whether a thread sleeps on the set, or on one in which it is registered.
    fn is_slept_on(&self, set: c_int, depth: u32) -> bool {
        let outer =
            || self.entries().iter().filter(|it| !it.is_free() && it.key.end == SET && name_of(it.key.fd) == set);
        has_sleepers(set) || depth < MAX_DEPTH && outer().any(|it| self.is_slept_on(it.key.set, depth + 1))
    }

    /// Enters a registration, or changes it; false if there is no room.
    fn put(&mut self, entry: Entry) -> bool {
        let free = |is_free: fn(&Entry) -> bool| self.entries().iter().position(is_free);
        let place = self.find(entry.key).or_else(|| free(Entry::is_free));
        let place = place.or_else(|| Some(self.used).filter(|&used| used < self.length));
        let Some(place) = place.or_else(|| free(Entry::is_over)) else { return false };
        self.used = self.used.max(place + 1);
        self.entries_mut()[place] = entry;
        true
    }

    /// Has the kernel change a registration by `call`, and changes the list. `call` gets the event for the kernel, if
    /// that differs from the program's.
    fn change(
        &mut self,
        key: Key,
        wanted: Option<(u32, u64)>,
        may_have_rest: bool,
        call: impl FnOnce(Option<epoll_event>) -> c_int,
    ) -> c_int {
        let wanted = self.followed(key, wanted, may_have_rest);
        let Some((events, data)) = wanted else {
            let answer = call(None);
            if answer == 0 {
                self.follow(key, None, false);
            }
            return answer;
        };
        // Sleepers are counted before they look at the list, with the lock.
        fence(SeqCst);
        let kicks = self.has_rest(key.fd, key.end, 0) && self.is_slept_on(key.set, 0);
        let kicks_itself = kicks && key.end != SET;
        // Nothing more: an exclusive registration must not have EPOLLWRNORM.
        let asks = kicks_itself.then_some(epoll_event { events: events | libc::EPOLLOUT as u32, u64: data });
        let answer = call(asks);
        if answer == 0 {
            self.follow(key, wanted, kicks_itself);
            if kicks && !kicks_itself {
                self.kick_within(name_of(key.fd), 0);
            }
        }
        answer
    }

    /// The registration, if the list may have to report it.
    fn followed(&self, key: Key, wanted: Option<(u32, u64)>, may_have_rest: bool) -> Option<(u32, u64)> {
        // A one-shot registration is followed to its end: an event of an earlier arming may still be on its way.
        wanted.filter(|&(events, _)| {
            events & IN != 0 && (may_have_rest || events & ONCE != 0 && self.find(key).is_some())
        })
    }

    /// The kernel has changed a registration.
    fn follow(&mut self, key: Key, wanted: Option<(u32, u64)>, kicked: bool) {
        let known = self.find(key);
        match wanted {
            Some((events, data)) => {
                let was_kicked = known.is_some_and(|at| self.entries()[at].kicked);
                self.put(Entry { key, events, data, state: State::Armed, kicked: kicked || was_kicked });
            }
            None => {
                if let Some(at) = known {
                    self.entries_mut()[at].state = State::Free;
                }
            }
        }
    }

    fn make_deferred(&mut self) {
        let mut made = 0;
        loop {
            let count = DEFERRED_COUNT.load(Acquire);
            for it in DEFERRED.iter().take(count).skip(made) {
                let (key, wanted) = it.get();
                self.follow(key, wanted, false);
            }
            made = count;
            // Another handler may have deferred a change meanwhile.
            if DEFERRED_COUNT.compare_exchange(count, 0, SeqCst, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Threads sleep on a set in which this set was just registered: makes this set readable, by a connection that has
    /// something left.
    fn kick_within(&mut self, set: c_int, depth: u32) {
        let is_due = |it: &Entry| it.key.set == set && it.is_due(self, depth);
        let Some(at) = self.entries().iter().position(is_due) else { return };
        let Entry { key, events, data, .. } = self.entries()[at];
        if key.end == SET {
            return self.kick_within(name_of(key.fd), depth + 1);
        }
        self.entries_mut()[at].kicked = true;
        register(key.set, key.fd, events | libc::EPOLLOUT as u32, data);
    }

    /// What an event of the kernel's with `data` means for the program; 0: nothing. `None` if the list has no such
    /// registration.
    fn truth_of_event(&mut self, set: c_int, (told, data): (u32, u64)) -> Option<u32> {
        // The event may be of a new registration with the same data as a registration whose descriptor was closed.
        let is_it = |it: &Entry| !it.is_free() && it.key.set == set && it.data == data;
        let Some(at) = self.entries().iter().position(|it| is_it(it) && it.key.fd != CLOSED) else {
            // The kernel cannot be asked for less any more.
            let is_kicked = |it: &Entry| is_it(it) && it.kicked && it.events & OUT == 0;
            return self.entries().iter().any(is_kicked).then_some(told & !OUT);
        };
        let it = self.entries()[at];
        let is_kick = told & OUT != 0 && it.events & OUT == 0 && it.kicked;
        let mut truth = if is_kick { told & !OUT } else { told };
        if it.is_due(self, 0) {
            truth |= it.events & IN;
            if it.events & EDGE != 0 {
                self.entries_mut()[at].state = State::Told;
            }
        } else if it.state == State::Armed && it.was_doorbell(told) {
            truth &= !IN;
            it.calm();
        }
        if it.events & ONCE == 0 || it.state == State::Armed && truth == 0 {
            if is_kick {
                it.calm();
            }
            return Some(truth);
        }
        let (state, truth) = match it.state {
            State::Armed => (State::Spent, truth),
            // What was left was reported before, for the same arming.
            State::Told => (State::Spent, 0),
            State::Spent => (State::Silent, 0),
            State::Silent | State::Free => return None,
        };
        self.entries_mut()[at].state = state;
        Some(truth)
    }

    /// Adds what is left in rings to the program's events, and to the kernel's events of the same registrations.
    fn tell(&mut self, set: c_int, turn: u32, answer: &mut Answer) {
        let used = self.entries().len();
        for at in (0..used).map(|at| (at + turn as usize) % used) {
            if answer.is_full() {
                return;
            }
            let it = self.entries()[at];
            if it.key.set != set || !it.is_due(self, 0) {
                continue;
            }
            if it.events & (EDGE | ONCE) != 0 {
                self.entries_mut()[at].state = State::Told;
            }
            answer.push(it.events & IN, it.data, answer.count);
        }
    }
}

/// Makes the list, before the filter comes, with what sets have of other sets. False without address space.
pub fn prepare() -> bool {
    let registrations: usize = set::made().map(|set| set.count() as usize).sum();
    let length = ROOM + 2 * (table::highest() as usize + registrations);
    // Threads that sleep on a set are counted behind the filter too. Where there is no address space for a set's count,
    // its sleepers are not woken.
    for first in (0..table::highest() as usize + ROOM).step_by(PIECE) {
        let _ = SLEEPERS.need_before_filter(first);
    }
    let made = locked(|list| {
        if list.at.is_null() {
            let Some(mut memory) = Reserved::<Entry>::even_confined(length) else { return false };
            (list.at, list.length) = (memory.begin(), length);
            // Once made, it is never unmapped.
            core::mem::forget(memory);
        }
        true
    });
    if made != Some(true) {
        return false;
    }
    for set in set::made() {
        for epfd in descriptors(set) {
            enter(Key { set: NO_SET, fd: epfd, end: SET }, (0, 0), State::Armed);
        }
        for inner in set.inner() {
            if let Some(wanted) = set.foreign(inner).filter(|(events, _)| events & IN != 0) {
                enter(Key { set: set.epfd(), fd: inner, end: SET }, wanted, State::Armed);
            }
        }
    }
    true
}

/// Enters a registration, if there is room for it.
fn enter(key: Key, (events, data): (u32, u64), state: State) {
    locked(|list| {
        let is_known = list.find(key).is_some();
        is_known || list.put(Entry { key, events, data, state, kicked: false })
    });
}

/// Whether a connection that has something left to read is registered in `epfd`; `None` where the list cannot be looked
/// at.
fn has_any(epfd: c_int) -> Option<bool> {
    if confined::has_rests() { locked(|list| list.has_any(name_of(epfd), 0)) } else { Some(false) }
}

/// Whether a connection that has something left to read is registered in `epfd`.
pub fn is_any(epfd: c_int) -> bool {
    has_any(epfd).unwrap_or(false)
}

/// Whether this thread, which has counted itself among those that sleep on `epfd`, must not sleep.
pub(super) fn keeps_awake(epfd: c_int) -> bool {
    // The count comes before the look: a thread that arms an entry looks at the count, with the lock.
    fence(SeqCst);
    has_any(epfd).unwrap_or(true)
}

/// The filter is about to come. Enters the registrations of `connection` in all sets, if it `has_rest`. Otherwise it
/// enters only the one-shot ones, because a thread may be about to report an event of an earlier arming. Whether it has
/// entered any of those.
pub fn enter_all(connection: Connection, has_rest: bool) -> bool {
    let mut are_any = false;
    for fd in connection.descriptors() {
        for set in set::sets_of(fd) {
            // Under the set's lock, which every change of the registration takes until the registration is left to the
            // kernel.
            set.with_item(fd, |item| {
                if item.events & ONCE != 0 || has_rest && item.wants(IN) {
                    let state = if item.is_disarmed() { State::Spent } else { State::Armed };
                    let key = Key { set: set.epfd(), fd, end: connection.index };
                    enter(key, (item.events, item.data), state);
                    are_any = true;
                }
            });
        }
    }
    are_any
}

/// Wakes the threads that sleep on the sets of `connection`, because the doorbell that would have woken them may have
/// been taken.
pub fn wake_all(connection: Connection) {
    for set in connection.descriptors().flat_map(set::sets_of) {
        wake_sleepers(set);
    }
}

/// From now on only the kernel and this list have the registrations of `connection`.
pub fn leave_registrations(connection: Connection) {
    for fd in connection.descriptors() {
        leave_to_kernel(fd, table::generation(fd));
    }
}

/// Wakes them by a descriptor of the library's own that the kernel reports once. It stays registered: the filter may
/// forbid the woken thread the system calls that take it out.
fn wake_sleepers(set: &Set) {
    // Before the look, so that it finds a thread that sleeps by now.
    fence(SeqCst);
    if set.has_alarm() || !has_sleepers(set.epfd()) {
        return;
    }
    let Some(alarm) = kernel::always_readable() else { return };
    if !set.set_alarm(alarm) {
        return kernel::close(alarm);
    }
    let mut event = epoll_event { events: (libc::EPOLLIN as u32) | EDGE | ONCE, u64: set.alarm_data() };
    // SAFETY: one event.
    unsafe { real::epoll_ctl(set.epfd(), libc::EPOLL_CTL_ADD, alarm, &mut event) };
}

/// `epfd` is a new set of a confined process: it may be registered in another.
pub fn note_set(epfd: c_int) {
    if confined::has_rests() {
        enter(Key { set: NO_SET, fd: epfd, end: SET }, (0, 0), State::Armed);
    }
}

/// The program's epoll_ctl, made by `call`, which gets the event for the kernel if that differs from the program's.
pub(super) fn change(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    wanted: Option<(u32, u64)>,
    call: impl Fn(Option<epoll_event>) -> c_int,
) -> c_int {
    // This comes first: every epoll_ctl comes here, and hardly any process has rests.
    if !confined::has_rests() {
        return call(None);
    }
    let (end, may_have_rest) = match connection::known(fd) {
        Some(connection) => (connection.index, confined::may_have_rest(connection.index)),
        None if locked(|list| list.is_set(fd)).unwrap_or(false) => (SET, true),
        None => return call(None),
    };
    let key = Key { set: name_of(epfd), fd, end };
    let wanted = wanted.filter(|_| operation != libc::EPOLL_CTL_DEL);
    locked(|list| list.change(key, wanted, may_have_rest, &call)).unwrap_or_else(|| {
        let answer = call(None);
        if answer == 0 {
            Deferred::push(key, wanted.filter(|&(events, _)| events & IN != 0 && may_have_rest));
        }
        answer
    })
}

/// `fd`, a set or something that sets have, is about to be closed.
pub(super) fn forget(fd: c_int) {
    if !confined::has_rests() {
        return;
    }
    // While another descriptor or process has the socket, the kernel goes on reporting it.
    let goes_on = connection::known(fd).is_some_and(|it| it.has_duplicates() || !it.is_last());
    locked(|list| {
        for it in list.entries_mut() {
            if it.key.set == fd || it.key.fd == fd && (it.key.end == SET || !goes_on) {
                it.state = State::Free;
            } else if it.key.fd == fd {
                // A thread that sleeps on the set may not have been woken yet.
                if it.kicked && !has_sleepers(it.key.set) {
                    it.calm();
                    it.kicked = false;
                }
                it.key.fd = CLOSED;
            }
        }
    });
}

/// A descriptor of a set is about to be closed, and the set keeps another, `heir`. That replaces the `name` by which
/// the list knows the set, and the `closed` descriptor where the set is registered itself.
pub(super) fn rename((name, closed): (c_int, c_int), heir: c_int) {
    if confined::has_rests() {
        locked(|list| {
            for Entry { key, .. } in list.entries_mut() {
                if key.set == name {
                    key.set = heir;
                }
                if key.end == SET && key.fd == closed {
                    key.fd = heir;
                }
            }
        });
    }
}

/// The program's array of events, as far as it is filled.
struct Answer {
    at: *mut epoll_event,
    most: usize,
    count: usize,
}

impl Answer {
    fn is_full(&self) -> bool {
        self.count == self.most
    }

    /// Adds the kernel's events, which `look` gets, also to the rests that are there.
    fn ask(&mut self, look: &dyn Fn(*mut epoll_event, usize) -> c_int) {
        let rests = self.count;
        if self.is_full() {
            return;
        }
        // SAFETY: the room behind what is there.
        let by_kernel = look(unsafe { self.at.add(rests) }, self.most - rests).max(0) as usize;
        for index in rests..rests + by_kernel {
            let event = self.event(index);
            self.push(event.events, event.u64, rests);
        }
    }

    /// Adds an event; to the event with the same data, if there is one among the first `told`.
    fn push(&mut self, events: u32, data: u64, told: usize) {
        if let Some(index) = (0..told).find(|&index| self.event(index).u64 == data) {
            let events = self.event(index).events | events;
            self.write(index, epoll_event { events, u64: data });
        } else {
            self.write(self.count, epoll_event { events, u64: data });
            self.count += 1;
        }
    }

    fn event(&self, index: usize) -> epoll_event {
        debug_assert!(index < self.most);
        // SAFETY: within the program's array; the kernel or `write` has written it.
        unsafe { self.at.add(index).read_unaligned() }
    }

    fn write(&self, index: usize, event: epoll_event) {
        debug_assert!(index < self.most);
        // SAFETY: as above.
        unsafe { self.at.add(index).write_unaligned(event) };
    }
}

/// Reports what is left in rings, and the kernel's events, which `look` gets by the program's own call without waiting;
/// `None` if nothing is left.
///
/// # Safety
/// The array must be the program's, of so many events, one at least.
pub(super) unsafe fn tell(
    epfd: c_int,
    events: *mut epoll_event,
    most: usize,
    look: &dyn Fn(*mut epoll_event, usize) -> c_int,
) -> Option<c_int> {
    if !is_any(epfd) {
        give_up_if_over();
        return None;
    }
    let turn = TURNS[epfd as u32 as usize % TURNS.len()].fetch_add(1, Relaxed);
    let mut answer = Answer { at: events, most, count: 0 };
    if turn.is_multiple_of(2) {
        locked(|list| list.tell(name_of(epfd), turn / 2, &mut answer));
        answer.ask(look);
    } else {
        answer.ask(look);
        locked(|list| list.tell(name_of(epfd), turn / 2, &mut answer));
    }
    (answer.count > 0).then_some(answer.count as c_int)
}

/// What an event of the kernel's with these data means for the program; 0: nothing. `None` if the list has no such
/// registration. To be asked once for each event.
#[inline]
pub(super) fn truth(epfd: c_int, told: u32, data: u64) -> Option<u32> {
    if !confined::has_rests() {
        return None;
    }
    locked(|list| list.truth_of_event(name_of(epfd), (told, data))).flatten()
}

/// Corrects `count` events that the kernel has written: it takes out room that only the library has asked for, to wake
/// this thread, and a second event of a one-shot registration. Returns how many events are left; an error stays an
/// error.
///
/// # Safety
/// As [`tell`], of so many events.
pub(super) unsafe fn confirm(epfd: c_int, events: *mut epoll_event, count: c_int) -> c_int {
    if count <= 0 || !confined::has_rests() {
        return count;
    }
    let alarm = set_of(epfd).map(Set::alarm_data);
    let mut answer = Answer { at: events, most: count as usize, count: 0 };
    for index in 0..answer.most {
        let event = answer.event(index);
        if Some(event.u64) == alarm {
            continue;
        }
        let truth = truth(epfd, event.events, event.u64).unwrap_or(event.events);
        if truth != 0 {
            answer.push(truth, event.u64, 0);
        }
    }
    answer.count as c_int
}

/// Called now and then: once nothing is left in rings, no wait looks at the list any more.
fn give_up_if_over() {
    if IN_VAIN.fetch_add(1, Relaxed) % LOOK_EVERY != LOOK_EVERY - 1 || confined::may_any_have_rest() {
        return;
    }
    locked(|list| {
        if list.entries().iter().all(|it| it.key.end == SET || it.is_over()) {
            list.entries_mut().iter_mut().for_each(|it| it.state = State::Free);
            confined::forget_rests();
        }
    });
}

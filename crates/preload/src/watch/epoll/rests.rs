//! Sets in which a confined process registers connections (see `connection::confined`): the kernel does not know what they have left
//! in their rings.
//!
//! The library keeps a list of these registrations. What sets have when the filter comes is entered then, with room for later ones,
//! since no memory may be asked for behind it. A wait looks at the list, and adds what the kernel says. A thread that is about to
//! sleep counts itself, and looks once more; who registers something looks whether anybody is counted, and if so has the kernel told
//! of room as well, which wakes the sleepers.

use super::register::register;
use super::{EDGE, IN, MAX_DEPTH, ONCE, OUT, SLEEPERS, descriptors, has_sleepers, leave_to_kernel, set_of};
use crate::connection::{self, Connection, confined};
use crate::guest::memory::{PIECE, Reserved};
use crate::guest::{real, table, thread};
use crate::watch::set::{self, Set};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::kernel;
use underpass_segment::sync::{
    AcqRel, Acquire, AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release, SeqCst, fence, pause,
};

/// Room for so many registrations that are made behind the filter, and for twice those that there are.
const ROOM: usize = 1024;
/// A thread that changes an entry has done so within so many rounds, a second or more, or is gone.
const ROUNDS: u32 = 50_000_000;
/// After so many waits that have found nothing left, all entries are looked at.
const LOOK_EVERY: u32 = 256;

/// States of an entry, in the low byte of its word; above it counts how often it was armed. Zeroed memory is a free entry.
const FREE: u64 = 0;
/// A thread fills or changes it, whose number stands in place of the count.
const BUSY: u64 = 1;
/// The program is to be told.
const ARMED: u64 = 2;
/// It was told, and is told nothing more of what is left (edge-triggered, one-shot). A one-shot registration is armed in the kernel yet.
const TOLD: u64 = 3;
/// One-shot, and the kernel has disarmed it by an event of its own.
const SPENT: u64 = 4;
const STATES: u64 = 0xff;

/// In place of an end's number: the registered descriptor is a set.
const SET: u32 = u32::MAX;
/// In place of a set's descriptor: the entry only says that its own descriptor is a set.
const NO_SET: c_int = -1;

/// A registration in a set.
struct Entry {
    word: AtomicU64,
    set: AtomicI32,
    fd: AtomicI32,
    /// The number of the connection's end, which may go on by another descriptor; or [`SET`].
    end: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    /// The kernel was ever asked for room that the program has not asked for, to wake threads that sleep on the set.
    kicked: AtomicBool,
}

/// The list, its room, and how many entries were ever used.
static LIST: AtomicPtr<Entry> = AtomicPtr::new(core::ptr::null_mut());
static LENGTH: AtomicU32 = AtomicU32::new(0);
static USED: AtomicU32 = AtomicU32::new(0);
/// Counts the answers of each set, by a part of its descriptor, so that neither an entry nor the kernel comes first each time.
static TURNS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// Waits that have found nothing left.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// Makes the list, before the filter comes, with what sets have of other sets. False without address space.
pub fn prepare() -> bool {
    if !LIST.load(Acquire).is_null() {
        return true;
    }
    let registrations: usize = set::made().map(|set| set.count() as usize * descriptors(set).count().max(1)).sum();
    let room = ROOM + 2 * (table::highest() as usize + registrations);
    // Who sleeps on a set is counted behind the filter too; without address space above those nobody is woken.
    for first in (0..table::highest() as usize + ROOM).step_by(PIECE) {
        let _ = SLEEPERS.need_before_filter(first);
    }
    let Some(mut list) = Reserved::<Entry>::even_confined(room) else { return false };
    LENGTH.store(room as u32, Relaxed);
    LIST.store(list.begin(), Release);
    // Once made, it is never unmapped.
    core::mem::forget(list);
    for set in set::made() {
        for epfd in descriptors(set) {
            enter((NO_SET, epfd, SET), (0, 0), take_unused);
            for inner in set.inner() {
                if let Some(wanted) = set.foreign(inner).filter(|(events, _)| events & IN != 0) {
                    enter((epfd, inner, SET), wanted, take_unused);
                }
            }
        }
    }
    true
}

fn entries() -> &'static [Entry] {
    let list = LIST.load(Acquire);
    if list.is_null() {
        return &[];
    }
    let used = USED.load(Acquire).min(LENGTH.load(Relaxed));
    // SAFETY: so many fit; zeroed memory is free entries; it is never unmapped.
    unsafe { core::slice::from_raw_parts(list, used as usize) }
}

impl Entry {
    /// Its word; that of one that another thread changes, once that is done.
    fn word(&self) -> u64 {
        let mine = busy();
        for _ in 0..ROUNDS {
            let word = self.word.load(SeqCst);
            // A signal handler does not wait for what it runs on top of.
            if word & STATES != BUSY || word == mine {
                return word;
            }
            pause();
        }
        self.word.load(SeqCst)
    }

    /// Whether its word was `word`, and is now as armed as that in state `to`.
    fn changes(&self, word: u64, to: u64) -> bool {
        self.word.compare_exchange(word, word & !STATES | to, SeqCst, Relaxed).is_ok()
    }

    /// Has it for this thread alone, if its word is `word`.
    fn locks(&self, word: u64) -> bool {
        self.word.compare_exchange(word, busy(), SeqCst, Relaxed).is_ok()
    }

    /// Has it for this thread alone: the word before. `None` if it is free, or another thread does not come to an end with it.
    fn lock(&self) -> Option<u64> {
        loop {
            let word = self.word();
            if matches!(word & STATES, FREE | BUSY) {
                return None;
            }
            if self.locks(word) {
                return Some(word);
            }
        }
    }

    fn is_of(&self, set: c_int) -> bool {
        self.word.load(Acquire) & STATES != FREE && self.set.load(Relaxed) == set
    }

    fn is(&self, set: c_int, fd: c_int, end: u32) -> bool {
        self.is_of(set) && self.fd.load(Relaxed) == fd && self.end.load(Relaxed) == end
    }

    fn wants(&self, events: u32) -> bool {
        self.events.load(Relaxed) & events != 0
    }

    fn is_armed(&self) -> bool {
        self.word() & STATES == ARMED
    }

    /// Whether there is something to read that the kernel does not know of.
    fn has_rest(&self, depth: u32) -> bool {
        has_rest(self.fd.load(Relaxed), self.end.load(Relaxed), depth)
    }

    /// Whether the kernel alone tells of it from now on, as the program wants it.
    fn is_over(&self) -> bool {
        let end = self.end.load(Relaxed);
        let told_once = self.word.load(Acquire) & STATES == TOLD && self.wants(ONCE);
        end != SET && !told_once && !self.kicked.load(Relaxed) && !confined::may_have_rest(end)
    }

    /// Takes what it wants to be told if something is left: events and data. `None` also if another thread was faster.
    fn claim(&self) -> Option<(u32, u64)> {
        let word = self.word();
        let (events, data) = (self.events.load(Relaxed), self.data.load(Relaxed));
        if word & STATES != ARMED || !self.has_rest(0) {
            return None;
        }
        let to = if events & (EDGE | ONCE) != 0 { TOLD } else { ARMED };
        self.changes(word, to).then_some((events & IN, data))
    }

    /// What an event of the kernel's is to the program; 0: nothing.
    fn truth_of_event(&self, told: u32) -> u32 {
        loop {
            let word = self.word();
            let wanted = self.events.load(Relaxed);
            let is_armed = word & STATES == ARMED;
            let is_kick = told & OUT != 0 && wanted & OUT == 0 && self.kicked.load(Relaxed);
            let mut truth = if is_kick { told & !OUT } else { told };
            if is_armed && self.has_rest(0) {
                truth |= wanted & IN;
            }
            if wanted & ONCE == 0 || is_armed && truth == 0 {
                if is_kick {
                    self.calm();
                }
                return truth;
            }
            match word & STATES {
                ARMED if self.changes(word, SPENT) => return truth,
                // What was left was told before, for the same arming.
                TOLD if self.changes(word, SPENT) => return 0,
                SPENT => return 0,
                ARMED | TOLD => {}
                _ => return truth,
            }
        }
    }

    /// The kernel gets the program's registration back. The program has called epoll_ctl itself before.
    fn calm(&self) {
        if let Some(word) = self.lock() {
            let (set, fd) = (self.set.load(Relaxed), self.fd.load(Relaxed));
            register(set, fd, self.events.load(Relaxed), self.data.load(Relaxed));
            self.word.store(word, SeqCst);
        }
    }
}

fn busy() -> u64 {
    u64::from(thread::number()) << 8 | BUSY
}

fn has_rest(fd: c_int, end: u32, depth: u32) -> bool {
    match end {
        SET => depth < MAX_DEPTH && is_any_within(fd, depth + 1),
        end => confined::has_rest_of(end),
    }
}

/// Whether anything is registered in `epfd` of which something is left to read.
pub fn is_any(epfd: c_int) -> bool {
    confined::has_rests() && is_any_within(epfd, 0)
}

fn is_any_within(epfd: c_int, depth: u32) -> bool {
    entries().iter().any(|it| it.is_of(epfd) && it.is_armed() && it.has_rest(depth))
}

/// Whether this thread, which has counted itself among those that sleep on `epfd`, must not sleep.
pub(super) fn keeps_awake(epfd: c_int) -> bool {
    if !confined::has_rests() {
        return false;
    }
    // The count comes before the look; who arms an entry has looked at the count before.
    fence(SeqCst);
    is_any_within(epfd, 0)
}

/// An entry that is this thread's alone, and its word before.
type Taken = (&'static Entry, u64);

/// An entry that was never used; `None` if there is no room.
fn take_unused() -> Option<Taken> {
    let length = LENGTH.load(Relaxed);
    let at = USED.fetch_update(AcqRel, Relaxed, |used| (used < length).then_some(used + 1)).ok()?;
    take(entries().get(at as usize)?)
}

/// The same, or one that is free again.
fn take_free() -> Option<Taken> {
    let is_free = |it: &&Entry| it.word.load(Acquire) & STATES == FREE || it.is_over();
    entries().iter().filter(is_free).find_map(take).or_else(take_unused)
}

/// The entry, unless another thread has filled it meanwhile.
fn take(entry: &'static Entry) -> Option<Taken> {
    let word = entry.word.load(Acquire);
    if word & STATES == FREE && entry.locks(word) {
        return Some((entry, word));
    }
    let word = entry.lock()?;
    if !entry.is_over() {
        entry.word.store(word, SeqCst);
        return None;
    }
    Some((entry, word & !STATES | FREE))
}

/// Enters a registration that is not there yet, if there is room for it.
fn enter(key: (c_int, c_int, u32), wanted: (u32, u64), take: fn() -> Option<Taken>) {
    if let Some((entry, word)) = take() {
        Change::of(entry, word, key, Some(wanted), false).end(true);
    }
}

/// The filter is about to come, and something is left in the ring of `connection`: enters its registrations in all sets.
pub fn enter_all(connection: Connection) {
    for fd in connection.descriptors() {
        for set in set::sets_of(fd) {
            let Some(item) = set.item(fd).filter(|item| item.wants(IN)) else { continue };
            for epfd in descriptors(set) {
                enter((epfd, fd, connection.index), (item.events, item.data), take_unused);
            }
        }
    }
}

/// Wakes who sleeps on the sets of `connection`, since the doorbell that would have done so may have been taken.
pub fn wake_all(connection: Connection) {
    for set in connection.descriptors().flat_map(set::sets_of) {
        wake_sleepers(set);
    }
}

/// From now on the registrations of `connection` are the kernel's, and this list's.
pub fn leave_registrations(connection: Connection) {
    for fd in connection.descriptors() {
        leave_to_kernel(fd, table::generation(fd));
    }
}

/// Wakes them by a descriptor of the library's own that is told of once. It stays: the thread that it wakes may not make the system
/// calls that take it back.
fn wake_sleepers(set: &Set) {
    // First: so is seen who sleeps now.
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
        enter((NO_SET, epfd, SET), (0, 0), take_free);
    }
}

fn is_set(fd: c_int) -> bool {
    set_of(fd).is_some() || entries().iter().any(|it| it.is(NO_SET, fd, SET))
}

/// A change of a registration that the kernel is about to make: the entry is this thread's until it [ends](Change::end).
pub(super) struct Change {
    entry: &'static Entry,
    /// The entry's word before, and its events and data.
    word: u64,
    before: (u32, u64),
    /// What the program wants to be told; `None`: nothing that the list could tell.
    wanted: Option<(u32, u64)>,
    /// Threads sleep on the set, and something is left.
    kicks: bool,
}

impl Change {
    /// The program is about to do `operation` by epoll_ctl. `None` if the list has nothing to do with it.
    pub(super) fn begin(epfd: c_int, operation: c_int, fd: c_int, wanted: Option<(u32, u64)>) -> Option<Change> {
        // First: every epoll_ctl comes here, and hardly any process has rests.
        if !confined::has_rests() {
            return None;
        }
        let (end, may_have_rest) = match connection::known(fd) {
            Some(connection) => (connection.index, confined::may_have_rest(connection.index)),
            None if is_set(fd) => (SET, true),
            None => return None,
        };
        let known = entries().iter().find_map(|it| it.is(epfd, fd, end).then(|| it.lock().map(|word| (it, word)))?);
        // What was told once is followed to the end: an event of an arming before may be on its way yet.
        let is_followed = |events| may_have_rest || known.is_some() && events & ONCE != 0;
        let wanted =
            wanted.filter(|&(events, _)| operation != libc::EPOLL_CTL_DEL && events & IN != 0 && is_followed(events));
        let (entry, word) = known.or_else(|| wanted.and_then(|_| take_free()))?;
        let kicks = wanted.is_some() && is_slept_on(epfd, 0) && has_rest(fd, end, 0);
        Some(Change::of(entry, word, (epfd, fd, end), wanted, kicks))
    }

    /// What the entry says from now on, so that a thread that the kernel tells of it finds it, and waits for the end of the change.
    fn of(
        entry: &'static Entry,
        word: u64,
        (set, fd, end): (c_int, c_int, u32),
        wanted: Option<(u32, u64)>,
        kicks: bool,
    ) -> Change {
        let before = (entry.events.load(Relaxed), entry.data.load(Relaxed));
        if let Some((events, data)) = wanted {
            entry.set.store(set, Relaxed);
            entry.fd.store(fd, Relaxed);
            entry.end.store(end, Relaxed);
            entry.events.store(events, Relaxed);
            entry.data.store(data, Relaxed);
            let is_new = word & STATES == FREE;
            entry.kicked.store(kicks || !is_new && entry.kicked.load(Relaxed), Relaxed);
        }
        Change { entry, word, before, wanted, kicks }
    }

    /// What the kernel is to be told in place of what the program wants.
    pub(super) fn event(&self) -> Option<epoll_event> {
        let (events, data) = self.wanted.filter(|_| self.kicks)?;
        // Nothing more: an exclusive registration must not have EPOLLWRNORM.
        Some(epoll_event { events: events | libc::EPOLLOUT as u32, u64: data })
    }

    /// The kernel has done so, or not.
    pub(super) fn end(self, done: bool) {
        let Change { entry, word, before: (events, data), wanted, .. } = self;
        let word = match wanted {
            Some(_) if done => (word & !STATES).wrapping_add(STATES + 1) | ARMED,
            None if done => word & !STATES | FREE,
            _ => {
                entry.events.store(events, Relaxed);
                entry.data.store(data, Relaxed);
                word
            }
        };
        entry.word.store(word, SeqCst);
    }
}

/// Whether a thread sleeps on `epfd`, or on a set in which it is registered.
fn is_slept_on(epfd: c_int, depth: u32) -> bool {
    let is_outer = |it: &&Entry| it.is(it.set.load(Relaxed), epfd, SET);
    let outer = || entries().iter().filter(is_outer).map(|it| it.set.load(Relaxed));
    has_sleepers(epfd) || depth < MAX_DEPTH && outer().any(|outer| is_slept_on(outer, depth + 1))
}

/// `epfd` is about to be closed.
pub(super) fn forget_set(epfd: c_int) {
    if confined::has_rests() {
        for entry in entries().iter().filter(|it| it.is_of(epfd) || it.is(it.set.load(Relaxed), epfd, SET)) {
            if let Some(word) = entry.lock() {
                entry.word.store(word & !STATES | FREE, SeqCst);
            }
        }
    }
}

/// The program's array of events, as far as it is filled.
struct Answer {
    at: *mut epoll_event,
    most: usize,
    count: usize,
}

impl Answer {
    /// Adds what is left in rings; what the kernel has said of the same registrations gets it too.
    fn add_rests(&mut self, epfd: c_int, turn: u32) {
        let (before, behind) = entries().split_at(turn as usize % entries().len().max(1));
        for entry in behind.iter().chain(before).filter(|it| it.is_of(epfd)) {
            if self.count == self.most {
                return;
            }
            if let Some((events, data)) = entry.claim() {
                self.push(events, data, self.count);
            }
        }
    }

    /// Adds what the kernel says by `look`, also to the rests that are there.
    fn ask(&mut self, look: &dyn Fn(*mut epoll_event, usize) -> c_int) {
        let rests = self.count;
        if rests == self.most {
            return;
        }
        // SAFETY: the room behind what is there.
        let by_kernel = look(unsafe { self.at.add(rests) }, self.most - rests).max(0) as usize;
        for index in rests..rests + by_kernel {
            let event = self.event(index);
            self.push(event.events, event.u64, rests);
        }
    }

    /// Adds an event, if one with these data is among the first `told`, to that.
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

/// What is left in rings, with what the kernel says by `look`, the program's own call without waiting; `None` if nothing is left.
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
        look_whether_all_is_over();
        return None;
    }
    let turn = TURNS[epfd as u32 as usize % TURNS.len()].fetch_add(1, Relaxed);
    let mut answer = Answer { at: events, most, count: 0 };
    if turn.is_multiple_of(2) {
        answer.add_rests(epfd, turn / 2);
        answer.ask(look);
    } else {
        answer.ask(look);
        answer.add_rests(epfd, turn / 2);
    }
    (answer.count > 0).then_some(answer.count as c_int)
}

/// Puts `count` events right that the kernel has written: room for which the library has asked to wake this thread is none to the
/// program, and a one-shot registration is told of once. How many events are left; an error stays one.
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
        let of_data = |it: &&Entry| it.is_of(epfd) && it.data.load(Relaxed) == event.u64;
        let truth = entries().iter().find(of_data).map_or(event.events, |entry| entry.truth_of_event(event.events));
        if truth != 0 {
            answer.push(truth, event.u64, 0);
        }
    }
    answer.count as c_int
}

/// Now and then: once the kernel knows everything, nobody looks at the list any more.
fn look_whether_all_is_over() {
    let count = IN_VAIN.fetch_add(1, Relaxed);
    let is_over = |it: &Entry| it.word.load(Acquire) & STATES == FREE || it.end.load(Relaxed) == SET || it.is_over();
    if count % LOOK_EVERY == LOOK_EVERY - 1 && entries().iter().all(is_over) {
        confined::forget_rests();
    }
}

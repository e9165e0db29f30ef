//! Sets in which a confined process registers connections (see `connection::confined`): the kernel does not know what they have left
//! in their rings.
//!
//! The library keeps a list of these registrations. What sets have when the filter comes is entered then, with room for as many
//! again: later no memory may be asked for. A wait looks at the list first, and adds what the kernel says.

use super::control::register;
use super::{EDGE, IN, MAX_DEPTH, ONCE, OUT, SLEEPERS, descriptors, has_sleepers, set_of, settle};
use crate::connection::{self, Connection};
use crate::memory::{PIECE, Reserved};
use crate::set::{self, Set};
use crate::{real, table};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::kernel;
use underpass_segment::sync::{
    AcqRel, Acquire, AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release,
};

/// Room for so many registrations that are made behind the filter, and as many again as there are descriptors.
const ROOM: usize = 1024;

/// States of an entry; zeroed memory is a free one.
const FREE: u32 = 0;
const BUSY: u32 = 1;
/// The program is to be told.
const ARMED: u32 = 2;
/// It was told, and is told nothing more of what is left (edge-triggered, one-shot). A one-shot registration is armed in the kernel yet.
const TOLD: u32 = 3;
/// One-shot, and the kernel has disarmed it by an event of its own.
const SPENT: u32 = 4;

/// In place of an end's number: the registered descriptor is a set.
const SET: u32 = u32::MAX;
/// In place of a set's descriptor: the entry only says that its own descriptor is a set.
const NO_SET: c_int = -1;

/// A registration in a set.
struct Entry {
    state: AtomicU32,
    set: AtomicI32,
    fd: AtomicI32,
    /// The number of the connection's end, which may go on by another descriptor; or [`SET`].
    end: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    /// The kernel was asked for room as well, which the socket has, to wake threads that sleep on the set.
    kicked: AtomicBool,
}

/// The list, its room, and how many entries were ever used.
static LIST: AtomicPtr<Entry> = AtomicPtr::new(core::ptr::null_mut());
static LENGTH: AtomicU32 = AtomicU32::new(0);
static USED: AtomicU32 = AtomicU32::new(0);
/// Counts the answers, so that neither an entry nor the kernel comes first each time.
static TURN: AtomicU32 = AtomicU32::new(0);

/// Makes room for the list, before the filter comes. False without address space.
pub fn prepare() -> bool {
    if !LIST.load(Acquire).is_null() {
        return true;
    }
    let room = ROOM + 2 * table::highest() as usize;
    // Who sleeps on a set is counted behind the filter too.
    for first in (0..room).step_by(PIECE) {
        let _ = SLEEPERS.need_before_filter(first);
    }
    let Some(mut list) = Reserved::<Entry>::even_confined(room) else { return false };
    LENGTH.store(room as u32, Relaxed);
    LIST.store(list.begin(), Release);
    // Once made, it is never unmapped.
    core::mem::forget(list);
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
    fn is_of(&self, set: c_int) -> bool {
        self.state.load(Acquire) >= ARMED && self.set.load(Relaxed) == set
    }

    fn is(&self, set: c_int, fd: c_int, end: u32) -> bool {
        self.is_of(set) && self.fd.load(Relaxed) == fd && self.end.load(Relaxed) == end
    }

    fn wants(&self, events: u32) -> bool {
        self.events.load(Relaxed) & events != 0
    }

    /// Whether there is something to read that the kernel does not know of.
    fn has_rest(&self, depth: u32) -> bool {
        match self.end.load(Relaxed) {
            SET => depth < MAX_DEPTH && is_any_within(self.fd.load(Relaxed), depth + 1),
            end => connection::has_rest_of(end),
        }
    }

    /// Whether nothing will ever be left again that the kernel does not know of.
    fn is_over(&self) -> bool {
        let end = self.end.load(Relaxed);
        end != SET && !connection::may_have_rest(end)
    }

    /// Fills an entry that this thread has taken.
    fn fill(&self, (set, fd, end): (c_int, c_int, u32), (events, data): (u32, u64)) {
        self.set.store(set, Relaxed);
        self.fd.store(fd, Relaxed);
        self.end.store(end, Relaxed);
        self.events.store(events, Relaxed);
        self.data.store(data, Relaxed);
        self.kicked.store(false, Relaxed);
        self.state.store(ARMED, Release);
    }

    fn is_armed(&self) -> bool {
        self.state.load(Acquire) == ARMED
    }

    /// Whether it was in state `from`, and is in state `to` now.
    fn goes(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Takes an armed entry that is told once. False if another thread was faster.
    fn is_mine_to_tell(&self) -> bool {
        !self.wants(EDGE | ONCE) || self.goes(ARMED, TOLD)
    }

    /// What an event of the kernel's means.
    fn truth(&self, events: u32) -> u32 {
        let is_kicked = self.kicked.swap(false, AcqRel);
        let mut truth = if is_kicked && !self.wants(OUT) { events & !OUT } else { events };
        if self.is_armed() && self.has_rest(0) {
            truth |= self.events.load(Relaxed) & IN;
        }
        let once = self.wants(ONCE);
        if is_kicked && (!once || truth == 0 && self.is_armed()) {
            // As the program wants it. It has called epoll_ctl itself before.
            register(self.set.load(Relaxed), self.fd.load(Relaxed), self.events.load(Relaxed), self.data.load(Relaxed));
        }
        // Told before of what was left, by this event it is spent, and would be told twice.
        if once && truth != 0 && !self.goes(ARMED, SPENT) && self.goes(TOLD, SPENT) { 0 } else { truth }
    }
}

/// Whether anything is registered in `epfd` of which something is left to read.
pub fn is_any(epfd: c_int) -> bool {
    connection::has_rests() && is_any_within(epfd, 0)
}

fn is_any_within(epfd: c_int, depth: u32) -> bool {
    entries().iter().any(|it| it.is_of(epfd) && it.is_armed() && it.has_rest(depth))
}

fn remove(epfd: c_int, fd: c_int, end: u32) {
    for entry in entries().iter().filter(|it| it.is(epfd, fd, end)) {
        entry.state.store(FREE, Release);
    }
}

/// Enters a registration; `None` if there is no room.
fn enter(key: (c_int, c_int, u32), wanted: (u32, u64)) -> Option<&'static Entry> {
    let (epfd, fd, end) = key;
    let take = |it: &Entry| [ARMED, TOLD, SPENT].iter().any(|&from| it.goes(from, BUSY));
    let known = entries().iter().find(|it| it.is(epfd, fd, end) && take(it));
    let free = || entries().iter().find(|it| it.goes(FREE, BUSY) || it.is_over() && take(it));
    let unused = || {
        let length = LENGTH.load(Relaxed);
        let at = USED.fetch_update(AcqRel, Relaxed, |used| (used < length).then_some(used + 1)).ok()?;
        entries().get(at as usize).filter(|it| it.goes(FREE, BUSY))
    };
    let entry = known.or_else(free).or_else(unused)?;
    entry.fill(key, wanted);
    Some(entry)
}

/// The filter is about to come, and something is left in the ring of `connection`: enters its registrations in all sets, and wakes
/// who sleeps on them, since the doorbell that would have done so may have been taken.
pub fn enter_all(connection: Connection) {
    for fd in connection.descriptors() {
        for set in set::having(fd) {
            let Some(item) = set.item(fd).filter(|item| item.wants(IN)) else { continue };
            for epfd in descriptors(set) {
                enter((epfd, fd, connection.index()), (item.events, item.data));
            }
            enter_outer(set, 0);
            wake_sleepers(set);
        }
    }
}

/// From now on the registrations of `connection` are the kernel's, and this list's.
pub fn leave_sets(connection: Connection) {
    for fd in connection.descriptors() {
        settle(fd, table::generation(fd));
    }
}

/// Enters the registrations of a set in others.
fn enter_outer(inner: &Set, depth: u32) {
    let is_it = |fd: &c_int| set_of(*fd).is_some_and(|it| core::ptr::eq(it, inner));
    for outer in set::made().filter(|_| depth < MAX_DEPTH) {
        for fd in outer.inner().filter(is_it) {
            let Some((events, data)) = outer.foreign(fd).filter(|(events, _)| events & IN != 0) else { continue };
            for epfd in descriptors(outer) {
                enter((epfd, fd, SET), (events, data));
            }
            enter_outer(outer, depth + 1);
        }
    }
}

/// Wakes them by a descriptor of the library's own that is told of once. It stays: to take it back would be a system call more.
fn wake_sleepers(set: &Set) {
    if !has_sleepers(set.epfd()) {
        return;
    }
    if let Some(alarm) = kernel::always_readable() {
        let once = (libc::EPOLLIN as u32) | EDGE | ONCE;
        let mut event = epoll_event { events: once, u64: set.alarm_data() };
        // SAFETY: one event.
        unsafe { real::epoll_ctl(set.epfd(), libc::EPOLL_CTL_ADD, alarm, &mut event) };
    }
}

/// `epfd` is a new set of a confined process: it may be registered in another.
pub(super) fn note_set(epfd: c_int) {
    if connection::has_rests() {
        enter((NO_SET, epfd, SET), (0, 0));
    }
}

fn is_set(fd: c_int) -> bool {
    set_of(fd).is_some() || entries().iter().any(|it| it.is(NO_SET, fd, SET))
}

/// The program is about to change a registration: what it was told of before is over.
pub(super) fn begin_change(epfd: c_int, fd: c_int) {
    if connection::has_rests() {
        for entry in entries().iter().filter(|it| it.is_of(epfd) && it.fd.load(Relaxed) == fd) {
            entry.goes(TOLD, SPENT);
        }
    }
}

/// The kernel has done `operation` of the program's epoll_ctl: the list follows.
pub(super) fn follow(epfd: c_int, operation: c_int, fd: c_int, wanted: Option<(u32, u64)>) {
    // First: every epoll_ctl comes here, and hardly any process has rests.
    if !connection::has_rests() {
        return;
    }
    let (end, may_have_rest) = match connection::known(fd) {
        Some(connection) => (connection.index(), connection::may_have_rest(connection.index())),
        None if is_set(fd) => (SET, true),
        None => return,
    };
    let wanted = wanted.filter(|(events, _)| operation != libc::EPOLL_CTL_DEL && events & IN != 0);
    let Some(wanted) = wanted.filter(|_| may_have_rest) else {
        return remove(epfd, fd, end);
    };
    if let Some(entry) = enter((epfd, fd, end), wanted)
        && is_slept_on(epfd, 0)
        && entry.has_rest(0)
    {
        entry.kicked.store(true, Release);
        register(epfd, fd, wanted.0 | libc::EPOLLOUT as u32, wanted.1);
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
    if connection::has_rests() {
        for entry in entries().iter().filter(|it| it.is_of(epfd) || it.is(it.set.load(Relaxed), epfd, SET)) {
            entry.state.store(FREE, Release);
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
            if self.count == self.most || !entry.is_armed() || !entry.has_rest(0) || !entry.is_mine_to_tell() {
                continue;
            }
            self.push(entry.events.load(Relaxed) & IN, entry.data.load(Relaxed), self.count);
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
        return None;
    }
    let turn = TURN.fetch_add(1, Relaxed);
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
    if count <= 0 || !connection::has_rests() {
        return count;
    }
    let mut answer = Answer { at: events, most: count as usize, count: 0 };
    for index in 0..answer.most {
        let event = answer.event(index);
        let of_data = |it: &&Entry| it.is_of(epfd) && it.data.load(Relaxed) == event.u64;
        let truth = entries().iter().find(of_data).map_or(event.events, |entry| entry.truth(event.events));
        if truth != 0 {
            answer.push(truth, event.u64, 0);
        }
    }
    answer.count as c_int
}

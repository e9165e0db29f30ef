//! Registrations of connections of a confined process that have something unread in their rings (see
//! `connection::confined`), of which the kernel does not know.
//!
//! The library keeps a list of them. It is made before the seccomp filter comes, with room for later registrations,
//! because the filter may forbid to ask for memory. A wait looks at the list, and adds what the kernel reports.
//!
//! One lock is around each use of the list, and around each epoll_ctl that changes it, so that list and kernel change
//! in the same order. It spins, because a filter may forbid to sleep, and it knows its thread without a system call. A
//! signal handler that has interrupted the thread with the lock leaves its changes to that thread ([`lock`]).
//!
//! A thread that is about to sleep counts itself, and looks at the list once more. A thread that registers something
//! looks, with the lock, whether any sleeper is counted. If so, it has the kernel report room as well, which wakes the
//! sleepers.

mod answer;
mod change;
mod entry;
mod list;
mod lock;

pub(super) use lock::after_fork;

use super::{EDGE, IN, ONCE, SLEEPERS, descriptors, has_sleepers, make_foreign, set_of};
use crate::connection::{self, Connection, confined};
use crate::guest::memory::PIECE;
use crate::guest::{errno, real, table};
use crate::watch::set::{self, Set};
use answer::Answer;
use change::Change;
use core::ffi::c_int;
use entry::{Entry, Key, NO_SET, SET, State};
use libc::epoll_event;
use list::name_of;
use lock::{has_room, locked, make, make_room};
use underpass_segment::kernel;
use underpass_segment::sync::{AtomicU32, Relaxed, SeqCst, fence};

/// The list has room for this many registrations made after the filter, and for twice as many as there were before.
const ROOM: usize = 1024;
/// After this many waits that have found nothing left, the library gives the list up if nothing can be left.
const LOOK_EVERY: u32 = 256;

/// Counts the answers of each set, by a part of its descriptor, so that neither the list nor the kernel comes first
/// each time.
static TURNS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// Waits that have found nothing left.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// Makes the list, before the filter comes, with what sets have of other sets. False without address space.
pub fn prepare() -> bool {
    let registrations: usize = set::made().map(|set| set.count() as usize).sum();
    let length = ROOM + 2 * (table::highest() as usize + registrations);
    // Threads that sleep on a set are counted behind the filter too. Where there is no address space for a set's count,
    // its sleepers are not woken.
    for first in (0..table::highest() as usize + ROOM).step_by(PIECE) {
        let _ = SLEEPERS.need_before_filter(first);
    }
    make_room();
    if locked(|list| list.make(length)) != Some(true) {
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
    make(Change::Entered(Entry { key, events, data, state, kicked: false }));
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
            set.show(fd, |item| {
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
pub fn make_registrations_foreign(connection: Connection) {
    for fd in connection.descriptors() {
        make_foreign(fd, table::generation(fd));
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
        // A signal handler that has interrupted a look at the list leaves the question to that look.
        None if locked(|list| list.is_set(fd)).unwrap_or(true) => (SET, true),
        None => return call(None),
    };
    let key = Key { set: name_of(epfd), fd, end };
    let wanted = wanted.filter(|_| operation != libc::EPOLL_CTL_DEL);
    locked(|list| list.change(key, wanted, may_have_rest, &call)).unwrap_or_else(|| {
        if !has_room() {
            // As the kernel does without memory. What the list does not hear of, the program might never hear of.
            errno::set(libc::ENOMEM);
            return -1;
        }
        let generation = table::generation(fd);
        let answer = call(None);
        if answer == 0 {
            make(Change::Registered { key, generation, wanted, may_have_rest });
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
    make(Change::Closed { fd, generation: table::generation(fd), goes_on });
}

/// A descriptor of a set is about to be closed, and the set keeps another, `heir`. That replaces the `name` by which
/// the list knows the set, and the `closed` descriptor where the set is registered itself.
pub(super) fn rename((name, closed): (c_int, c_int), heir: c_int) {
    if confined::has_rests() {
        make(Change::Renamed { name, closed, heir });
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
    // SAFETY: passed on to the caller.
    let mut answer = unsafe { Answer::new(events, most) };
    if turn.is_multiple_of(2) {
        locked(|list| list.tell(name_of(epfd), turn / 2, &mut answer));
        answer.ask(look);
    } else {
        answer.ask(look);
        locked(|list| list.tell(name_of(epfd), turn / 2, &mut answer));
    }
    (answer.count() > 0).then_some(answer.count() as c_int)
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
    // SAFETY: passed on to the caller.
    let mut answer = unsafe { Answer::new(events, count as usize) };
    for index in 0..count as usize {
        let event = answer.event(index);
        if Some(event.u64) == alarm {
            continue;
        }
        let truth = truth(epfd, event.events, event.u64).unwrap_or(event.events);
        if truth != 0 {
            answer.push(truth, event.u64, 0);
        }
    }
    answer.count() as c_int
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

//! The list of registrations, and what it makes of the kernel's events.

use super::answer::Answer;
use super::change::Change;
use super::entry::{CLOSED, Entry, Key, NO_SET, SET, State};
use crate::connection::confined;
use crate::guest::memory::Reserved;
use crate::guest::table;
use crate::watch::epoll::register::register;
use crate::watch::epoll::{EDGE, IN, MAX_DEPTH, ONCE, OUT, has_sleepers, set_of};
use crate::watch::set::Set;
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::sync::{SeqCst, fence};

pub(super) struct List {
    /// Memory for `length` entries, of which `used` were ever used; null until the first filter comes.
    at: *mut Entry,
    length: usize,
    used: usize,
}

/// The descriptor by which the list knows the set `epfd`.
pub(super) fn name_of(epfd: c_int) -> c_int {
    set_of(epfd).map_or(epfd, Set::epfd)
}

impl List {
    pub(super) const fn new() -> List {
        List { at: core::ptr::null_mut(), length: 0, used: 0 }
    }

    /// Makes it, if it is not made yet, with room for `length` entries. False without address space.
    pub(super) fn make(&mut self, length: usize) -> bool {
        if self.at.is_null() {
            let Some(mut memory) = Reserved::<Entry>::even_confined(length) else { return false };
            (self.at, self.length) = (memory.begin(), length);
            // Once made, it is never unmapped.
            core::mem::forget(memory);
        }
        true
    }

    pub(super) fn entries(&self) -> &[Entry] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: so many fit, and were written; they are never unmapped.
        unsafe { core::slice::from_raw_parts(self.at, self.used) }
    }

    pub(super) fn entries_mut(&mut self) -> &mut [Entry] {
        if self.at.is_null() {
            return &mut [];
        }
        // SAFETY: as above; `self` is borrowed for as long.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.used) }
    }

    pub(super) fn find(&self, key: Key) -> Option<usize> {
        self.entries().iter().position(|it| !it.is_free() && it.key == key)
    }

    /// The entries of the set.
    fn of(&self, set: c_int) -> impl Iterator<Item = &Entry> {
        self.entries().iter().filter(move |it| !it.is_free() && it.key.set == set)
    }

    pub(super) fn is_set(&self, fd: c_int) -> bool {
        set_of(fd).is_some() || self.find(Key { set: NO_SET, fd, end: SET }).is_some()
    }

    fn has_rest(&self, fd: c_int, end: u32, depth: u32) -> bool {
        match end {
            SET => depth < MAX_DEPTH && self.has_any(name_of(fd), depth + 1),
            end => confined::has_rest_of(end),
        }
    }

    /// Whether something that the kernel does not know of is to be reported for the entry.
    fn is_due(&self, it: &Entry, depth: u32) -> bool {
        it.state == State::Armed && self.has_rest(it.key.fd, it.key.end, depth)
    }

    /// Whether anything in the set is to be reported to the program.
    pub(super) fn has_any(&self, set: c_int, depth: u32) -> bool {
        self.of(set).any(|it| self.is_due(it, depth))
    }

    /// Whether a thread sleeps on the set, or on one in which it is registered.
    fn is_slept_on(&self, set: c_int, depth: u32) -> bool {
        let outer =
            || self.entries().iter().filter(|it| !it.is_free() && it.key.end == SET && name_of(it.key.fd) == set);
        has_sleepers(set) || depth < MAX_DEPTH && outer().any(|it| self.is_slept_on(it.key.set, depth + 1))
    }

    /// Enters a registration, or changes it; false if there is no room.
    pub(super) fn put(&mut self, entry: Entry) -> bool {
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
    pub(super) fn change(
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
        let kicks = self.must_kick(key);
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

    /// Whether something is left of what is about to be registered, for threads that sleep.
    fn must_kick(&self, key: Key) -> bool {
        // Sleepers are counted before they look at the list, with the lock.
        fence(SeqCst);
        self.has_rest(key.fd, key.end, 0) && self.is_slept_on(key.set, 0)
    }

    /// Makes `change`.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Entered(entry) if self.find(entry.key).is_none() => {
                // Without room it is not followed.
                let _ = self.put(entry);
            }
            Change::Entered(_) => {}
            Change::Registered { key, generation, wanted, may_have_rest } => {
                if key.end != SET || self.is_set(key.fd) {
                    let wanted = self.followed(key, wanted, may_have_rest);
                    self.follow_late(key, generation, wanted);
                }
            }
            Change::Closed { fd, generation, goes_on } => self.forget(fd, generation, goes_on),
            Change::Renamed { name, closed, heir } => self.rename((name, closed), heir),
        }
    }

    /// The kernel has changed a registration, for a signal handler that could not wake threads which sleep.
    fn follow_late(&mut self, key: Key, generation: u64, wanted: Option<(u32, u64)>) {
        let is_still = generation == table::generation(key.fd);
        let Some((events, data)) = wanted.filter(|_| is_still && self.must_kick(key)) else {
            return self.follow(key, wanted, false);
        };
        self.follow(key, wanted, key.end != SET);
        if key.end == SET {
            self.kick_within(name_of(key.fd), 0);
        } else {
            register(key.set, key.fd, events | libc::EPOLLOUT as u32, data);
        }
    }

    /// `fd`, a set or something that sets have, is about to be closed.
    fn forget(&mut self, fd: c_int, generation: u64, goes_on: bool) {
        let is_open = generation == table::generation(fd);
        for it in self.entries_mut() {
            if it.key.set == fd || it.key.fd == fd && (it.key.end == SET || !goes_on) {
                it.state = State::Free;
            } else if it.key.fd == fd {
                // A thread that sleeps on the set may not have been woken yet.
                if is_open && it.kicked && !has_sleepers(it.key.set) {
                    it.calm();
                    it.kicked = false;
                }
                it.key.fd = CLOSED;
            }
        }
    }

    fn rename(&mut self, (name, closed): (c_int, c_int), heir: c_int) {
        for Entry { key, .. } in self.entries_mut() {
            if key.set == name {
                key.set = heir;
            }
            if key.end == SET && key.fd == closed {
                key.fd = heir;
            }
        }
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

    /// Threads sleep on a set in which this set was just registered: makes this set readable, by a connection that has
    /// something left.
    fn kick_within(&mut self, set: c_int, depth: u32) {
        let is_due = |it: &Entry| it.key.set == set && self.is_due(it, depth);
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
    pub(super) fn truth_of_event(&mut self, set: c_int, (told, data): (u32, u64)) -> Option<u32> {
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
        if self.is_due(&it, 0) {
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
    pub(super) fn tell(&mut self, set: c_int, turn: u32, answer: &mut Answer) {
        let used = self.entries().len();
        for at in (0..used).map(|at| (at + turn as usize) % used) {
            if answer.is_full() {
                return;
            }
            let it = self.entries()[at];
            if it.key.set != set || !self.is_due(&it, 0) {
                continue;
            }
            if it.events & (EDGE | ONCE) != 0 {
                self.entries_mut()[at].state = State::Told;
            }
            answer.push(it.events & IN, it.data, answer.count());
        }
    }
}

//! Changes of a set's registrations: each is one value, whether it is made at once or later.

use super::item::{Flags, Holds, InKernel};
use super::{Deferred, Item, Room, Set, State};
use crate::connection;
use crate::guest::{family, table};
use underpass_segment::switch::Told;
use underpass_segment::sync::Relaxed;

/// A change of what is registered, or of what is looked at in user space.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// `fd` is looked at in user space from now on.
    Active { fd: i32 },
    /// The program has registered `fd`, or changed its registration, in this generation of the number.
    Registered { fd: i32, generation: u64, events: u32, data: u64, foreign: bool },
    /// The program has removed `fd`.
    Removed { fd: i32 },
    /// The library follows `fd` no more.
    Forgotten { fd: i32 },
    /// The registration of `fd` is left to the kernel from now on, if it is a socket's and the number is still in this
    /// generation.
    Foreign { fd: i32, generation: u64 },
    /// The socket that `fd` was in this generation is gone with its descriptor.
    Ended { fd: i32, generation: u64 },
    /// `heir`, another descriptor of the same socket, keeps the registration of `fd`; each in its generation.
    Adopted { fd: i32, generation: u64, heir: i32, generation_of_heir: u64 },
    /// The set relies no more on the waiting flag of the end with this index, which `fd` was in this generation.
    LetGo { fd: i32, generation: u64, index: u32 },
}

impl Change {
    /// The descriptor whose registration it changes.
    fn fd(self) -> i32 {
        match self {
            Change::Active { fd }
            | Change::Registered { fd, .. }
            | Change::Removed { fd }
            | Change::Forgotten { fd }
            | Change::Foreign { fd, .. }
            | Change::Ended { fd, .. }
            | Change::Adopted { heir: fd, .. }
            | Change::LetGo { fd, .. } => fd,
        }
    }

    /// What the descriptor is registered as afterwards, if it was registered as `before`, and others as `other` says.
    /// `None`: as before.
    fn outcome(self, before: Option<&Item>, other: impl FnOnce(i32) -> Option<Item>) -> Option<Option<Item>> {
        let is_still = |fd, generation| generation == table::generation(fd);
        match self {
            Change::Active { .. } | Change::Ended { .. } | Change::LetGo { .. } => None,
            // The descriptor may have been closed since.
            Change::Registered { fd, generation, events, data, foreign } => {
                is_still(fd, generation).then(|| Some(Item::of(fd, events, data, foreign)))
            }
            Change::Removed { .. } | Change::Forgotten { .. } => Some(None),
            Change::Foreign { fd, generation } => before
                .filter(|it| it.is_ours(fd) && is_still(fd, generation))
                .map(|it| Some(Item::of(fd, it.events, it.data, true))),
            // Not if the heir has a registration of its own.
            Change::Adopted { fd, generation, heir, generation_of_heir } => {
                let is_vacant = before.is_none_or(|it| !it.is_current(heir));
                (is_vacant && is_still(heir, generation_of_heir))
                    .then(|| other(fd).filter(|it| it.is_live() && it.generation == generation && !it.is_gone()))
                    .flatten()
                    .map(|it| Some(it.kept_by(heir)))
            }
        }
    }
}

impl Set {
    /// Makes `change`, or defers it if this is a signal handler that has interrupted a look at the set.
    pub fn change(&self, change: Change) {
        if self.unless_interrupted(|state| self.apply(state, change)).is_none() {
            self.defer(Deferred::Change(change));
        }
    }

    /// Makes `change`. False without address space.
    pub(super) fn apply(&self, state: &mut State, change: Change) -> bool {
        let fd = change.fd();
        match change {
            Change::Active { .. } => {
                state.activate(fd);
                return true;
            }
            Change::Removed { .. } => {
                state.let_rest_no_more(fd);
                self.remove_inner(fd);
            }
            Change::Ended { generation, .. } => {
                state.item(fd).filter(|it| it.is_ours_of(generation)).into_iter().for_each(Item::set_ended);
            }
            Change::LetGo { generation, index, .. } => state.let_go(fd, generation, index),
            _ => {}
        }
        let before = state.item(fd).copied();
        match change.outcome(before.as_ref(), |other| state.item(other).copied()) {
            None => true,
            Some(None) => {
                self.changes.fetch_add(1, Relaxed);
                state.remove(fd);
                true
            }
            Some(Some(item)) => {
                self.changes.fetch_add(1, Relaxed);
                let foreign = item.holds == Holds::Foreign;
                if foreign {
                    self.has_foreign.store(true, Relaxed);
                }
                if foreign && state.item(fd).is_some_and(|it| it.is_ours(fd)) {
                    // It is not looked at in user space any more.
                    state.remove(fd);
                }
                let is_put = state.put(fd, item);
                if item.flags.has(Flags::ADOPTED) {
                    state.activate(fd);
                }
                is_put
            }
        }
    }

    /// The registration of `fd`, for a signal handler that has interrupted a look at the set: as it will be once the
    /// deferred changes are made.
    pub(super) fn peek(&self, fd: i32) -> Option<Item> {
        self.peek_before(usize::MAX, fd)
    }

    /// The same once those are made that were deferred before number `end`.
    fn peek_before(&self, end: usize, fd: i32) -> Option<Item> {
        // SAFETY: the thread that is inside is this one, which does not go on before the handler has returned.
        let mut item = unsafe { (*self.state.get()).item(fd).copied() };
        self.deferred.each(|index, what| {
            if let Deferred::Change(change) = what
                && index < end
                && change.fd() == fd
                && let Some(outcome) = change.outcome(item.as_ref(), |other| self.peek_before(index, other))
            {
                item = outcome;
            }
        });
        item
    }

    /// The same for all sockets that have a place.
    pub(super) fn peek_all(&self, mut look: impl FnMut(i32, &Item)) {
        // SAFETY: as in `peek_before`; a handler finds the table consistent.
        let fds = unsafe { 0..(*self.state.get()).places() };
        // SAFETY: as above.
        for fd in fds.map(|index| unsafe { (*self.state.get()).fd_at(index) }) {
            if let Some(item) = self.peek(fd).filter(|it| it.is_ours(fd)) {
                look(fd, &item);
            }
        }
    }

    /// Whether a signal handler that has interrupted this look has had the kernel register `fd` anew, or remove it: the
    /// kernel is told of no earlier change then.
    pub(super) fn is_overtaken(&self, fd: i32) -> bool {
        let mut found = false;
        if self.deferred.is_any() {
            self.deferred.each(|_, what| {
                let Deferred::Change(change) = what else { return };
                let by_kernel = matches!(change, Change::Registered { .. } | Change::Removed { .. });
                found |= by_kernel && change.fd() == fd;
            });
        }
        found
    }

    /// Shows every active registration, and those that handlers have changed or made active, as they will be once the
    /// deferred changes are made.
    pub fn peek_active(&self, mut look: impl FnMut(i32, &Item)) {
        let mut show = |fd| {
            if let Some(item) = self.peek(fd).filter(|it| it.is_ours(fd)) {
                look(fd, &item);
            }
        };
        // SAFETY: as in `peek`; a list that is being changed has only descriptors in it.
        let count = unsafe { (*self.state.get()).active_count };
        // SAFETY: as above.
        (0..count).map(|index| unsafe { (*self.state.get()).active_at(index) }).for_each(&mut show);
        self.deferred.each(|_, what| {
            if let Deferred::Change(change) = what {
                show(change.fd());
            }
        });
    }
}

impl State {
    /// The set does not rely on the waiting flag of the socket `fd` any more.
    pub(super) fn let_rest_no_more(&mut self, fd: i32) {
        if let Some(item) = self.item(fd).filter(|it| it.is_ours(fd) && it.is_resting())
            && let Some(connection) = connection::known(fd)
        {
            item.wake_up(connection.end);
        }
    }

    /// See [`Change::LetGo`]. The registration may have been removed since.
    fn let_go(&mut self, fd: i32, generation: u64, index: u32) {
        let Some(item) = self.item(fd).filter(|it| it.generation == generation) else { return };
        if item.set_resting(false)
            && let Some(family) = family::existing()
        {
            family.end(index).reading.resting.remove();
        }
        if !item.is_ours(fd) {
            return;
        }
        // The descriptor stays, and its next connection has told of nothing yet.
        item.set_told(Told::default());
        if item.room != Room::Kernel || item.is_kicked() {
            item.set_room(Room::Kernel);
            item.set_kicked(false);
            let is_first = item.put_off(InKernel::Older);
            self.stale_count += usize::from(is_first);
            self.activate(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails if a socket that a handler disconnects is counted on for good, or its registration stays as a sleep on the
    /// set has left it.
    #[test]
    fn a_look_lets_go_of_what_a_handler_has_given_up() {
        const FD: i32 = 900_300;
        // SAFETY: just made, and never unmapped.
        let set = unsafe { &*Set::make(FD + 1).unwrap() };
        assert_eq!(set.follow(FD, 4, 1, || 0), Ok(0));
        set.look_at(FD, |item| {
            item.set_resting(true);
            item.set_room(Room::SetAlone);
            item.set_kicked(true);
            let above = Change::LetGo { fd: FD, generation: table::generation(FD), index: 0 };
            set.change(above);
            true
        });
        let item = set.item(FD).unwrap();
        assert_eq!((item.is_resting(), item.room, item.is_kicked()), (false, Room::Kernel, false));
        let mut told = None;
        set.tell_all(|fd, change| told = Some((fd, change)));
        assert_eq!(told, Some((FD, Some((4, 1)))));
        // Also once the descriptor is closed.
        set.look_at(FD, |item| {
            item.set_resting(true);
            let generation = table::generation(FD);
            table::next_generation(FD);
            set.change(Change::LetGo { fd: FD, generation, index: 0 });
            false
        });
        assert!(!set.locked(|state| state.item(FD).unwrap().is_resting()));
        Set::release(set);
    }
}

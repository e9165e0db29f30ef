//! Changes of a set's registrations: each is one value, whether it is made at once or later.

use super::item::Holds;
use super::{Deferred, Item, Set, State};
use crate::connection;
use crate::guest::table;
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
}

impl Change {
    fn fd(self) -> i32 {
        match self {
            Change::Active { fd }
            | Change::Registered { fd, .. }
            | Change::Removed { fd }
            | Change::Forgotten { fd }
            | Change::Foreign { fd, .. } => fd,
        }
    }

    /// What the descriptor is registered as afterwards, if it was registered as `before`. `None`: as before.
    fn outcome(self, before: Option<&Item>) -> Option<Option<Item>> {
        let is_still = |fd, generation| generation == table::generation(fd);
        match self {
            Change::Active { .. } => None,
            // The descriptor may have been closed since.
            Change::Registered { fd, generation, events, data, foreign } => {
                is_still(fd, generation).then(|| Some(Item::of(fd, events, data, foreign)))
            }
            Change::Removed { .. } | Change::Forgotten { .. } => Some(None),
            Change::Foreign { fd, generation } => before
                .filter(|it| it.is_ours(fd) && is_still(fd, generation))
                .map(|it| Some(Item::of(fd, it.events, it.data, true))),
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
            Change::Active { .. } => state.activate(fd),
            Change::Removed { .. } => state.let_rest_no_more(fd),
            _ => {}
        }
        match change.outcome(state.item(fd).map(|it| &*it)) {
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
                state.put(fd, item.events, item.data, foreign)
            }
        }
    }

    /// The registration of `fd`, for a signal handler that has interrupted a look at the set: as it will be once the
    /// deferred changes are made.
    pub(super) fn peek(&self, fd: i32) -> Option<Item> {
        // SAFETY: the thread that is inside is this one, which does not go on before the handler has returned.
        let mut item = unsafe { (*self.state.get()).item(fd).copied() };
        self.each_deferred(|what| {
            if let Deferred::Change(change) = what
                && change.fd() == fd
                && let Some(outcome) = change.outcome(item.as_ref())
            {
                item = outcome;
            }
        });
        item
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
        self.each_deferred(|what| {
            if let Deferred::Change(change) = what {
                show(change.fd());
            }
        });
    }
}

impl State {
    /// The set does not rely on the waiting flag of the socket `fd` any more.
    fn let_rest_no_more(&mut self, fd: i32) {
        if let Some(item) = self.item(fd).filter(|it| it.is_ours(fd) && it.is_resting())
            && let Some(connection) = connection::known(fd)
        {
            item.wake_up(connection.end);
        }
    }
}

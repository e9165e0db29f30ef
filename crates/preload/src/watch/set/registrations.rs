//! The registrations of a set: by descriptor, and by what the program gave with them.

use super::item::{Flags, Holds, InKernel, Item, NONE, Room};
use super::sets_of::note;
use super::{Change, Set, State};
use crate::guest::table;
use underpass_segment::sync::Relaxed;

/// What becomes of a change of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// It is made, and the kernel will be told later.
    Done,
    /// To the program there is no such registration, though the kernel has one.
    Absent,
    /// The kernel has to make it now.
    Now,
}

/// What is registered with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithData {
    /// Nothing that is known.
    Unknown,
    /// This many descriptors.
    Some(usize),
    /// A socket of ours that has been closed.
    Closed,
}

/// A descriptor that is registered with a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Its number.
    pub fd: i32,
    /// What it is registered for, if it is no socket of ours.
    pub foreign: Option<u32>,
}

impl Set {
    /// Has the kernel register `fd`, or change its registration, and does the same here if the kernel does it. A thread
    /// that the kernel wakes for it can look at the set only afterwards. `Err` with the kernel's answer if there is no
    /// address space for the registration.
    pub fn follow(&self, fd: i32, events: u32, data: u64, kernel: impl FnOnce() -> i32) -> Result<i32, i32> {
        let generation = table::generation(fd);
        self.locked(|state| {
            // First here, and again by `put`: a handler may interrupt this and look at the set.
            self.expect_for_native(fd, events);
            let answer = kernel();
            let change = Change::Registered { fd, generation, events, data, foreign: false };
            if answer != 0 || self.apply(state, change) { Ok(answer) } else { Err(answer) }
        })
    }

    /// Notes a registration of a descriptor that is no socket of ours.
    pub fn note_foreign(&self, fd: i32, events: u32, data: u64) {
        let generation = table::generation(fd);
        // Without address space an event with the same data may be taken for an event of a socket of ours.
        self.locked(|state| self.apply(state, Change::Registered { fd, generation, events, data, foreign: true }));
    }

    /// Has the kernel remove `fd`, and forgets it if the kernel does.
    pub fn follow_removal(&self, fd: i32, kernel: impl FnOnce() -> i32) -> i32 {
        self.locked(|state| {
            let answer = kernel();
            if answer == 0 {
                self.apply(state, Change::Removed { fd });
            }
            answer
        })
    }

    /// How often the program has changed a registration.
    pub fn changes(&self) -> u32 {
        self.changes.load(Relaxed)
    }

    /// Changes the registration of `fd` (adds, changes, or with `None` removes it) without the kernel, if neither the
    /// old one nor the new one is of a special kind, and nobody watches the set from outside.
    pub fn change_later(&self, fd: i32, wanted: Option<(u32, u64)>, add: bool) -> Later {
        /// Bits of registrations that are level-triggered and of no special kind.
        const PLAIN: u32 = 0xffff;
        const NOT_LATER: Flags = Flags::DISARMED.or(Flags::KICKED).or(Flags::ADOPTED);
        self.locked(|state| {
            // Looked at under the lock: a thread that makes the set an inner one tells the kernel of all changes
            // afterwards.
            if self.is_inner() {
                return Later::Now;
            }
            let Some(item) = state.item(fd).filter(|it| it.is_ours(fd) && !it.flags.has(NOT_LATER)) else {
                return Later::Now;
            };
            let (events, data) = wanted.unwrap_or((0, item.data));
            if (item.events | events) & !PLAIN != 0 || item.data != data {
                return Later::Now;
            }
            if item.is_gone() != add {
                // What is added twice, the kernel answers. What the library has removed, the kernel believes to be
                // there.
                return if item.is_gone() { Later::Absent } else { Later::Now };
            }
            item.events = events;
            let is_first = item.put_off(if wanted.is_none() { InKernel::Removed } else { InKernel::Older });
            state.stale_count += usize::from(is_first);
            state.activate(fd);
            Later::Done
        })
    }

    /// Keeps the registration of a descriptor that is about to be closed under `heir`, another descriptor of the same
    /// socket, because the kernel goes on reporting it too. Not if `heir` has a registration of its own.
    pub fn adopt(&self, fd: i32, heir: i32) {
        let (generation, generation_of_heir) = (table::generation(fd), table::generation(heir));
        self.change(Change::Adopted { fd, generation, heir, generation_of_heir });
    }

    /// Tells the kernel of `fd`'s registration, if it has another.
    pub fn tell(&self, fd: i32, tell: impl FnOnce(Option<(u32, u64)>)) {
        if self.is_interrupted() {
            // If the kernel is told twice, it is told the same.
            if let Some(item) = self.peek(fd).filter(|it| it.is_ours(fd) && it.is_stale()) {
                tell((!item.is_gone()).then_some((item.events, item.data)));
            }
            return;
        }
        self.locked(|state| {
            state.tell(fd, |_, change| tell(change));
            state.drop_inactive();
        });
    }

    /// Tells the kernel of every registration of which it has another.
    pub fn tell_all(&self, mut tell: impl FnMut(i32, Option<(u32, u64)>)) {
        if self.is_interrupted() {
            // As in `tell`. A changed registration is active.
            return self.peek_active(|fd, item| {
                if item.is_stale() {
                    tell(fd, (!item.is_gone()).then_some((item.events, item.data)));
                }
            });
        }
        self.locked(|state| {
            if state.stale_count == 0 {
                return;
            }
            // A changed registration stays active until the kernel knows it.
            for index in 0..state.active_count {
                state.tell(state.active_at(index), &mut tell);
            }
            state.stale_count = 0;
            state.drop_inactive();
        });
    }

    /// The registration of `fd`.
    pub fn item(&self, fd: i32) -> Option<Item> {
        self.any_item(fd).filter(|it| it.is_ours(fd))
    }

    /// What `fd`, which is no socket of ours, is registered with: events and data.
    pub fn foreign(&self, fd: i32) -> Option<(u32, u64)> {
        self.any_item(fd).filter(|it| it.is_current(fd) && it.holds == Holds::Foreign).map(|it| (it.events, it.data))
    }

    fn any_item(&self, fd: i32) -> Option<Item> {
        if self.is_interrupted() { self.peek(fd) } else { self.locked(|state| state.item(fd).copied()) }
    }

    /// Shows the registration of `fd`, which no thread changes meanwhile; in a signal handler that has interrupted a
    /// look at the set, as it will be.
    pub fn show(&self, fd: i32, look: impl FnOnce(&Item)) {
        if self.is_interrupted() {
            return self.item(fd).as_ref().map_or((), look);
        }
        self.with_item(fd, |item| look(item));
    }

    /// Changes the registration of `fd`; not in a signal handler that has interrupted a look at the set. What must not
    /// be lost there is a [`Change`].
    pub fn with_item(&self, fd: i32, change: impl FnOnce(&mut Item)) {
        self.with_item_if(fd, |item| item.is_ours(fd), change);
    }

    /// Changes the registration that the number had in its generation `generation`. Looks at the set that began before
    /// this call are over when it returns.
    pub fn with_item_of(&self, fd: i32, generation: u64, change: impl FnOnce(&mut Item)) {
        self.with_item_if(fd, |item| item.is_ours_of(generation), change);
    }

    fn with_item_if(&self, fd: i32, is_meant: impl FnOnce(&Item) -> bool, change: impl FnOnce(&mut Item)) {
        self.unless_interrupted(|state| {
            if let Some(item) = state.item(fd).filter(|it| is_meant(it)) {
                change(item);
            }
        });
    }

    /// Shows every registered socket to `look`, which may change its registration.
    pub fn each(&self, mut look: impl FnMut(i32, &mut Item)) {
        self.unless_interrupted(|state| {
            state.each(|fd, item| {
                if item.is_ours(fd) {
                    look(fd, item);
                }
            });
        });
    }

    /// Returns once all looks at the set that began before are over. In a signal handler that has interrupted such a
    /// look it returns at once.
    pub fn outlast(&self) {
        self.unless_interrupted(|_| ());
    }

    /// Shows the registration of `fd`, which is looked at in user space from then on if `look` says so.
    pub fn look_at(&self, fd: i32, look: impl FnOnce(&mut Item) -> bool) {
        self.locked(|state| {
            let Some(mut item) = state.item(fd).filter(|it| it.is_ours(fd)).copied() else { return };
            let activate = look(&mut item);
            if let Some(kept) = state.item(fd) {
                *kept = item;
            }
            if activate {
                state.activate(fd);
            }
        });
    }

    /// What is registered with `data`: as much as there is room for in `found`, behind the first `from`.
    pub fn with_data(&self, data: u64, from: usize, found: &mut [Registered]) -> WithData {
        self.locked(|state| {
            let (mut count, mut closed) = (0usize, false);
            state.each_with(data, |state, fd| {
                let Some(item) = state.item(fd) else { return };
                if item.is_current(fd) {
                    if let Some(place) = count.checked_sub(from).and_then(|at| found.get_mut(at)) {
                        *place = Registered { fd, foreign: (item.holds == Holds::Foreign).then_some(item.events) };
                    }
                    count += 1;
                } else {
                    closed |= item.flags.has(Flags::ENDED);
                }
            });
            match count {
                0 if closed => WithData::Closed,
                0 => WithData::Unknown,
                count => WithData::Some(count),
            }
        })
    }

    /// A descriptor that is no socket of ours is about to be registered with `data`: from now on an event with these
    /// data is not taken for an event of a closed socket of ours.
    pub fn forget_closed(&self, data: u64) {
        self.locked(|state| {
            state.each_with(data, |state, fd| {
                if state.item(fd).is_some_and(|it| !it.is_current(fd)) {
                    state.remove(fd);
                }
            });
        });
    }
}

impl State {
    /// Registers `fd` as `wanted`. False without address space.
    #[must_use]
    pub(super) fn put(&mut self, fd: i32, wanted: Item) -> bool {
        let foreign = wanted.holds == Holds::Foreign;
        if !note(fd, self.set) {
            return false;
        }
        let Some(item) = self.need_item(fd) else { return false };
        let counted = item.holds == Holds::Socket;
        if item.is_live() {
            // The place may still be linked for a closed descriptor of this number.
            self.unlink(fd);
        }
        self.count = self.count + u32::from(!foreign) - u32::from(counted);
        let Some(item) = self.item(fd) else { return false };
        // Nothing of another connection that had the number is kept, except its place in the list.
        let same = item.is_current(fd);
        let kept = item.flags.only(if same { Flags::ACTIVE.or(Flags::RESTING) } else { Flags::ACTIVE });
        *item = Item {
            told: if same { item.told } else { wanted.told },
            last_news: if same { item.last_news } else { 0 },
            flags: kept.or(wanted.flags),
            ..wanted
        };
        if !foreign {
            // SAFETY: the set that this is the state of.
            unsafe { &*self.set }.expect_for_native(fd, wanted.events);
        }
        self.link(fd);
        true
    }

    pub(super) fn remove(&mut self, fd: i32) {
        if let Some(held) = self.item(fd).filter(|it| it.is_live()).map(|it| it.holds) {
            self.unlink(fd);
            self.count -= u32::from(held == Holds::Socket);
            if let Some(item) = self.item(fd) {
                item.empty();
            }
            // SAFETY: the set that this is the state of.
            unsafe { &*self.set }.native.forget_for(fd);
            self.drop_inactive();
        }
    }

    /// In a forked child: the parent tells the kernel what was put off, and what was changed to wake a sleeper. It may
    /// have changed the registrations again by now.
    pub(super) fn begin_in_child(&mut self) {
        self.member_count = 0;
        self.looks_left = 0;
        for index in 0..self.places() {
            let fd = self.fd_at(index);
            let Some(item) = self.item(fd).filter(|it| it.is_live()) else { continue };
            let is_removed = item.is_gone();
            (item.in_kernel, item.room) = (InKernel::Same, Room::Kernel);
            item.set_kicked(false);
            if is_removed {
                self.remove(fd);
            }
        }
        self.stale_count = 0;
    }

    pub(super) fn tell(&mut self, fd: i32, tell: impl FnOnce(i32, Option<(u32, u64)>)) {
        // SAFETY: the set that this is the state of.
        let set = unsafe { &*self.set };
        let is_meant = |it: &&mut Item| it.is_ours(fd) && it.is_stale() && !set.is_overtaken(fd);
        let Some(item) = self.item(fd).filter(is_meant) else { return };
        if core::mem::replace(&mut item.in_kernel, InKernel::Same) == InKernel::Removed {
            item.empty();
            self.unlink(fd);
            self.count -= 1;
            tell(fd, None);
        } else {
            tell(fd, Some((item.events, item.data)));
        }
    }

    pub(super) fn bucket(&mut self, data: u64) -> u32 {
        *self.bucket_of(data)
    }

    /// Visits every descriptor that was registered with `data`; it may be removed meanwhile.
    pub(super) fn each_with(&mut self, data: u64, mut visit: impl FnMut(&mut State, i32)) {
        let mut at = self.bucket(data);
        while at != NONE {
            let fd = at as i32 - 1;
            let Some(item) = self.item(fd) else { return };
            at = item.next;
            if item.data == data {
                visit(self, fd);
            }
        }
    }

    pub(super) fn link(&mut self, fd: i32) {
        let Some(data) = self.item(fd).map(|it| it.data) else { return };
        let head = core::mem::replace(self.bucket_of(data), fd as u32 + 1);
        if let Some(item) = self.item(fd) {
            item.next = head;
        }
    }

    pub(super) fn unlink(&mut self, fd: i32) {
        let Some((data, next)) = self.item(fd).map(|it| (it.data, it.next)) else { return };
        let mut at = self.bucket(data);
        if at == fd as u32 + 1 {
            *self.bucket_of(data) = next;
            return;
        }
        while at != NONE {
            let Some(item) = self.item(at as i32 - 1) else { return };
            if item.next == fd as u32 + 1 {
                item.next = next;
                return;
            }
            at = item.next;
        }
    }
}

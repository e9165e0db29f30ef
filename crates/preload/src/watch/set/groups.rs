//! The groups in which the sockets of a set sleep: one group in each of their pools.

use super::{Deferred, Set, State, made};
use crate::guest::memory::{release, reserve};
use core::ptr::null_mut;
use underpass_segment::channel::{Channel, Side};
use underpass_segment::kernel;
use underpass_segment::sync::{AcqRel, Relaxed, SeqCst};
use underpass_segment::words::{ALONE, Group};

/// Pools of one set whose connections sleep as a group; those of further pools are woken one by one.
const MAX_POOLS: usize = 512;
/// A set that has found all groups of a pool taken leaves this many connections to the kernel before it looks again: a
/// look costs an instruction that locks the bus for each group.
const LOOK_EVERY: u32 = 256;

/// A pool in which the set has ends of one side, and their descriptors. A set may have both ends of a connection within
/// this process.
#[derive(Clone, Copy)]
pub(super) struct Members {
    pool: *const u8,
    side: Side,
    group: *const Group,
    number: u32,
    fds: [i32; 64],
}

/// The right to make a connection a member of its set's group, while the set is scanned.
pub struct Joining<'a>(pub(super) &'a mut State);

/// The process ends: others may have its groups.
pub fn release_all_groups() {
    // Not a set that this thread is inside, where a signal handler ends the process.
    for set in made().filter(|set| set.lock.load(Relaxed) == 0) {
        set.locked(State::release_groups);
    }
}

/// A pool is about to be detached.
pub fn forget_pool(pool: *const u8) {
    for set in made() {
        set.locked(|state| {
            for index in (0..state.member_count).rev() {
                if state.members_at(index).pool == pool {
                    state.members_at(index).release_group();
                    set.groups.fetch_sub(1, Relaxed);
                    let last = state.member_count - 1;
                    *state.members_at(index) = *state.members_at(last);
                    state.member_count = last;
                }
            }
        });
    }
}

impl Set {
    /// Looks whether any group of the set was rung, and makes the sockets it was rung for active. Many at once.
    pub fn answer_bells(&self) -> bool {
        if self.groups.load(Relaxed) == 0 || self.is_interrupted() {
            return false;
        }
        self.locked(|state| {
            let mut any = false;
            for index in 0..state.member_count {
                let members = state.members_at(index);
                // SAFETY: the pool is attached: `forget_pool` is told before it is not.
                let group = unsafe { &*members.group };
                if group.rung.load(Relaxed) == 0 {
                    continue;
                }
                any = true;
                let mut rung = group.rung.swap(0, AcqRel);
                let fds = members.fds;
                while rung != 0 {
                    state.activate(fds[rung.trailing_zeros() as usize] - 1);
                    rung &= rung - 1;
                }
            }
            any
        })
    }

    /// The number to raise the waiting flag of `fd`'s channel to, so that it wakes this set.
    pub fn number_for(&self, state: &mut Joining<'_>, fd: i32, channel: &Channel) -> u32 {
        if self.is_inner() {
            return ALONE;
        }
        let number = state.0.join(fd, channel);
        self.groups.store(state.0.member_count as u32, Relaxed);
        number
    }

    /// Tells every group whether a thread sleeps on this set, as `asleep` says. If one sleeps: false when a group has
    /// been rung.
    pub fn set_asleep(&self, asleep: impl FnOnce() -> bool) -> bool {
        if self.groups.load(Relaxed) == 0 {
            return true;
        }
        // Asked under the lock: a thread that goes to sleep counts itself first, and then tells its groups under the
        // lock.
        self.locked(|state| state.set_asleep(asleep()))
    }

    /// This thread, counted among the sleepers, is about to sleep. False when a group has been rung, or when a socket
    /// has become active, unless sockets `may` be active. A thread that makes a socket active does it under the lock,
    /// and looks for sleepers afterwards.
    pub fn fall_asleep(&self, may: bool) -> bool {
        let quiet = self.locked(|state| state.set_asleep(true));
        // Looked at afterwards, because a signal handler may just have made a socket active.
        quiet && (may || !self.is_active())
    }

    /// A thread sleeps on the set from outside: the kernel must know every registration as it is.
    pub fn set_inner(&self) {
        if self.is_inner.swap(1, Relaxed) != 0 {
            return;
        }
        if self.unless_interrupted(State::wake_one_by_one).is_none() {
            self.defer(Deferred::Inner);
        }
    }
}

impl Members {
    fn release_group(&self) {
        // SAFETY: the pool is attached: `forget_pool` is told before it is not.
        unsafe { &*self.group }.release();
    }
}

impl State {
    pub(super) fn members_at(&mut self, index: usize) -> &mut Members {
        debug_assert!(index < self.member_capacity);
        // SAFETY: so many entries; zeroed memory is never looked at.
        unsafe { &mut *self.members.add(index) }
    }

    /// Connections that sleep as members of a group are to be woken one by one from now on. The set keeps its groups: a
    /// sender may still have their numbers, and a thread that sleeps on the set itself is still woken by them.
    pub(super) fn wake_one_by_one(&mut self) {
        for index in 0..self.member_count {
            for fd in self.members_at(index).fds {
                self.activate(fd - 1);
            }
        }
    }

    /// False if there are too many, or no address space.
    fn make_room_for_members(&mut self) -> bool {
        let (before, capacity) = (self.member_capacity, (4 * self.member_capacity).clamp(8, MAX_POOLS));
        let made: *mut Members =
            if before < capacity { reserve(capacity * size_of::<Members>()).cast() } else { null_mut() };
        if made.is_null() {
            return false;
        }
        if before > 0 {
            // SAFETY: the new memory has room for them, and nobody uses the old any more.
            unsafe {
                made.copy_from_nonoverlapping(self.members, self.member_count);
                release(self.members.cast(), before * size_of::<Members>());
            }
        }
        (self.members, self.member_capacity) = (made, capacity);
        true
    }

    /// See [`Set::set_asleep`].
    fn set_asleep(&mut self, asleep: bool) -> bool {
        let mut quiet = true;
        for index in 0..self.member_count {
            // SAFETY: as in `answer_bells`.
            let group = unsafe { &*self.members_at(index).group };
            if asleep {
                // SeqCst: the set says `asleep` before it looks at `rung`; the sender sets `rung` before it looks at
                // `asleep`.
                group.asleep.swap(1, SeqCst);
                quiet &= group.rung.load(SeqCst) == 0;
            } else {
                group.asleep.store(0, Relaxed);
            }
        }
        quiet
    }

    pub(super) fn release_groups(&mut self) {
        for index in 0..self.member_count {
            self.members_at(index).release_group();
        }
        self.member_count = 0;
    }

    pub(super) fn join(&mut self, fd: i32, channel: &Channel) -> u32 {
        let slot = channel.slot() as usize & 63;
        for index in 0..self.member_count {
            let members = self.members_at(index);
            if members.pool == channel.pool() && members.side == channel.side() {
                members.fds[slot] = fd + 1;
                return members.number;
            }
        }
        if self.member_count == self.member_capacity && !self.make_room_for_members() {
            return ALONE;
        }
        if self.full_pool == channel.pool() && self.looks_left > 0 {
            self.looks_left -= 1;
            return ALONE;
        }
        let Some((number, group)) = channel.take_group(kernel::marked_process_id()) else {
            (self.full_pool, self.looks_left) = (channel.pool(), LOOK_EVERY);
            return ALONE;
        };
        let mut fds = [0; 64];
        fds[slot] = fd + 1;
        self.member_count += 1;
        *self.members_at(self.member_count - 1) =
            Members { pool: channel.pool(), side: channel.side(), group, number, fds };
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underpass_segment::channel::{Pool, Shape};
    use underpass_segment::words::GROUPS;

    /// Fails if a set asks for a group with each connection that it leaves to the kernel, or never again.
    #[test]
    fn a_set_looks_seldom_whether_a_group_is_free_again() {
        let pool = Pool::create(Shape { ring_bytes: 1 << 16, slots: 1 }).unwrap();
        let channel = pool.slot(0, Side::Maker).unwrap();
        let taken: Vec<_> = (0..GROUPS).filter_map(|_| channel.take_group(1)).collect();
        assert_eq!(taken.len(), GROUPS);
        // SAFETY: just made, and used by this thread alone.
        let set = unsafe { &*Set::make(900_100).unwrap() };
        let join = || set.locked(|state| set.number_for(&mut Joining(state), 900_101, &channel));
        assert_eq!(join(), ALONE);
        let (number, group) = taken[3];
        group.release();
        assert!((0..LOOK_EVERY).all(|_| join() == ALONE));
        assert_eq!((join(), join()), (number, number));
        forget_pool(channel.pool());
        assert!(channel.take_group(2).is_some());
        Set::release(set);
    }

    /// Fails if a handler that has interrupted a look at a set, and registers that set in another, leaves its members
    /// asleep as a group, of which a thread that sleeps from outside does not hear.
    #[test]
    fn a_group_ends_when_a_handler_makes_its_set_an_inner_one() {
        const FD: i32 = 900_201;
        let pool = Pool::create(Shape { ring_bytes: 1 << 16, slots: 1 }).unwrap();
        let channel = pool.slot(0, Side::Maker).unwrap();
        // SAFETY: just made, and used by this thread alone.
        let set = unsafe { &*Set::make(FD + 1).unwrap() };
        assert_eq!(set.follow(FD, 1, 1, || 0), Ok(0));
        set.locked(|state| assert_ne!(set.number_for(&mut Joining(state), FD, &channel), ALONE));
        set.locked(|_| set.set_inner());
        assert!(set.is_active());
        forget_pool(channel.pool());
        Set::release(set);
    }
}

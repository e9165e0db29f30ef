//! The pools that this process has attached, and the slots in them that it gives away.

use super::Meeting;
use super::broker::{NOBODY, Place};
use super::brokered::Given;
use crate::channel::{Channel, Pool, Shape, Side};
use crate::clock;
use crate::end::End;
use crate::kernel;
use crate::raw::Errno;
use crate::sync::Relaxed;
use crate::sysv;

/// Most pools that one process has attached.
pub(super) const POOLS: usize = 1024;
/// Slots of the first pool towards a process. What is mapped counts in a program's virtual size, used or not.
const FIRST_SLOTS: u32 = 1;
/// How many times as many slots the next pool has, up to [`Shape::MAX_SLOTS`]. Less would make more pools of as many
/// connections, and a sleeping epoll set may be rung once for each pool.
const GROWTH: u32 = 8;
/// Where memory is limited by a cgroup, a pool is made only if so many times its size is left: rings take memory as
/// they are used, and when nothing is left the kernel kills a process.
const RESERVE: u64 = 4;
/// Where memory is limited by a cgroup, a process joins a pool only if so many times its size is left. That is less
/// than a maker needs, because the pool's maker, which may be in the same cgroup, has looked just before.
pub(super) const RESERVE_TO_JOIN: u64 = 2;
/// How long a pool that nothing uses stays attached, for threads that close a socket under one another.
const LINGER_NS: u64 = 1_000_000_000;
/// How long such a pool stays attached if the broker is to be told of its slots with the next ask.
const LINGER_TO_TELL_NS: u64 = 60_000_000_000;

/// In place of the family for which a pool was made: for this process alone.
const ITSELF: i32 = -1;

/// A pool that this process has attached.
#[derive(Clone, Copy)]
pub(super) struct Attached {
    pub(super) pool: Pool,
    /// Process that made it, as the kernel attests.
    pub(super) creator: i32,
    /// Ends of this process in it, without ends that another process of its family has joined.
    pub(super) users: u32,
    pub(super) unused_since: u64,
    /// For a pool that this process made: the family it was made for, and the slots taken.
    pub(super) made_for: Option<(i32, u64)>,
    /// For a pool of the broker's.
    pub(super) given: Option<Given>,
    /// The number of the daemon that has to give it again to an image; [`NOBODY`].
    pub(super) daemon: u64,
}

impl Attached {
    /// For how long it stays attached once nothing uses it, in nanoseconds.
    fn lingers(&self) -> u64 {
        if self.given.is_some_and(|given| given.is_any()) { LINGER_TO_TELL_NS } else { LINGER_NS }
    }
}

impl Meeting {
    /// The channel of a joined end. It is attached to this process if it was not (another process of the family may
    /// have joined the end), and this process then counts as a user of its pool. A pool that the broker gave, the
    /// broker gives again for `fd`, a descriptor of the socket.
    pub fn channel(&mut self, end: &End, fd: Option<i32>) -> Option<Channel> {
        let id = end.pool.load(Relaxed);
        let pool = match self.attached(id) {
            Some(it) => it.pool,
            None => {
                let pool = match (self.open(end), fd) {
                    (Some((pool, creator)), _) => {
                        self.remember(pool, creator, None).ok()?;
                        pool
                    }
                    (None, Some(fd)) if end.is_brokered() => self.fetch(end, fd)?,
                    _ => return None,
                };
                if let Some(it) = self.attached(id) {
                    it.users = 1;
                }
                pool
            }
        };
        pool.slot(end.slot.load(Relaxed), end.side())
    }

    /// A slot in place of the channel of a joined end, if no process has that channel any more. Only this process knows
    /// of the slot, which the caller [fills](Channel::copy_from).
    pub fn replace_channel(&mut self, end: &End) -> Option<Channel> {
        if end.is_brokered() || !sysv::is_freed(end.pool.load(Relaxed)) {
            return None;
        }
        self.put_in_slot_of_its_own(end)
    }

    /// A slot in place of the channel that the daemon shared, which is gone, of an end whose other end is on another
    /// host. Only this process knows of the slot.
    pub fn replace_daemons_channel(&mut self, end: &End) -> Option<Channel> {
        let channel = self.put_in_slot_of_its_own(end)?;
        channel.prepare([end.peer_cookie.load(Relaxed), end.cookie.load(Relaxed)]);
        Some(channel)
    }

    fn put_in_slot_of_its_own(&mut self, end: &End) -> Option<Channel> {
        let (pool, slot) = self.make(ITSELF, end.shape().ring_bytes).ok()?;
        end.pool.store(pool.id(), Relaxed);
        end.slot.store(slot, Relaxed);
        end.set_shape(pool.shape());
        pool.slot(slot, end.side())
    }

    /// How many processes have the channel of a joined end, which this one has attached; `None` when the kernel does
    /// not say.
    pub fn company(&mut self, end: &End) -> Option<u64> {
        self.attached(end.pool.load(Relaxed))?.pool.attached()
    }

    /// Whether a process is between two program images, and the second one comes for a channel. It does not matter how
    /// many others have the channel: each of them may be about to let go of it, as this one is.
    pub fn keeps_for_images(&self) -> bool {
        self.shared_pools().flat_map(Pool::channels).any(|it| it.is_awaited_by_image())
    }

    /// Such images were awaited for long enough.
    pub fn forget_images(&self) {
        let channels = self.shared_pools().flat_map(Pool::channels);
        channels.filter(Channel::is_awaited_by_image).for_each(|it| it.forget_image());
    }

    fn shared_pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().flatten().map(|it| &it.pool).filter(|pool| !pool.is_brokered())
    }

    /// Tells all processes that talk to this one that a reader may have left something unread.
    pub fn tell_of_departure(&self) {
        self.pools.iter().flatten().for_each(|it| it.pool.tell_of_departure());
    }

    /// Whether another program image in this process could attach the pools that this image has attached.
    pub fn can_attach_again(&mut self) -> bool {
        let uid = kernel::user_id();
        let is_there = |it: &Attached| it.users == 0 || it.pool.is_brokered() || it.pool.is_there(uid);
        self.pools.iter().flatten().all(is_there) && self.would_be_given_again()
    }

    /// The pool of a joined end, attached, and the process that made it. A pool of the broker's is there if this
    /// process, or its parent before the fork, has mapped it.
    pub(super) fn open(&self, end: &End) -> Option<(Pool, i32)> {
        if end.is_brokered() {
            return Some((Pool::of_number(end.pool.load(Relaxed), end.shape())?, 0));
        }
        let uid = self.directory.map_or_else(kernel::user_id, |directory| directory.uid());
        let (pool, attested) = Pool::open(end.pool.load(Relaxed), end.shape(), uid).ok()?;
        Some((pool, attested.creator))
    }

    /// This process lets go of a joined end.
    pub fn release(&mut self, end: &End) {
        self.forget_user(end.pool.load(Relaxed));
    }

    pub(super) fn attached(&mut self, id: i32) -> Option<&mut Attached> {
        self.pools.iter_mut().flatten().find(|it| it.pool.id() == id)
    }

    /// A free slot in a pool that this process made for `family`, or for itself ([`ITSELF`]).
    pub(super) fn make(&mut self, family: i32, ring_bytes: u32) -> Result<(Pool, u32), Errno> {
        let mut slots = FIRST_SLOTS;
        for it in self.pools.iter_mut().flatten() {
            let Some((made_for, mut taken)) = it.made_for else { continue };
            if made_for != family || it.pool.shape().ring_bytes != ring_bytes {
                continue;
            }
            let count = it.pool.shape().slots;
            slots = slots.max(count * GROWTH).min(Shape::MAX_SLOTS);
            for slot in 0..count {
                if taken & (1 << slot) != 0 && it.pool.slot(slot, Side::Maker).is_some_and(|l| l.is_over()) {
                    taken &= !(1 << slot);
                }
            }
            let free = (!taken).trailing_zeros();
            if free < count {
                it.made_for = Some((family, taken | 1 << free));
                it.users += 1;
                return Ok((it.pool, free));
            }
            it.made_for = Some((family, taken));
        }
        let sizes =
            core::iter::successors(Some(slots), |slots| Some(slots / GROWTH).filter(|&slots| slots >= FIRST_SLOTS));
        let mut shapes = sizes.map(|slots| Shape { ring_bytes, slots });
        let shape = shapes.find(|&shape| has_memory_for(shape, RESERVE)).ok_or(Errno(libc::ENOMEM))?;
        let pool = Pool::create(shape)?;
        self.remember(pool, kernel::process_id(), Some((family, 1)))?;
        if let Some(it) = self.attached(pool.id()) {
            it.users = 1;
        }
        Ok((pool, 0))
    }

    /// Keeps a pool that this process has attached, if there is room.
    ///
    /// # Errors
    /// ENOSPC: too many are kept. A segment, which was attached for this, is detached then. Memory of the broker stays
    /// mapped, because it is mapped once for all ends of a process: ends may use it that this table does not know of
    /// ([`Meeting::begin_anew`]).
    pub(super) fn remember(&mut self, pool: Pool, creator: i32, made_for: Option<(i32, u64)>) -> Result<(), Errno> {
        let now = clock::nanoseconds();
        for place in self.pools.iter_mut() {
            if let Some(it) = place
                && it.users == 0
                && now.saturating_sub(it.unused_since) > it.lingers()
            {
                if !(self.let_go)(it.pool.id(), it.pool.begin()) {
                    it.unused_since = now;
                    continue;
                }
                // SAFETY: no end of this process is in it, and none was for so long that no thread can be inside
                // a call on an end that was closed under it.
                unsafe { it.pool.detach() };
                *place = None;
            }
        }
        let entry = Attached { pool, creator, users: 0, unused_since: now, made_for, given: None, daemon: NOBODY };
        match self.pools.iter_mut().find(|p| p.is_none()) {
            Some(place) => {
                *place = Some(entry);
                Ok(())
            }
            None => {
                if !pool.is_brokered() {
                    // SAFETY: attached by the caller a moment ago, at an address of its own; nothing refers into it.
                    unsafe { pool.detach() };
                }
                Err(Errno(libc::ENOSPC))
            }
        }
    }

    /// Whether the memory cgroups of this process leave as much as a pool takes that has this place. The broker decides
    /// how large its pools are, and gives their first slots away first. So what counts is the slots up to this one.
    pub(super) fn has_memory_for_place(&mut self, place: &Place) -> bool {
        let times = if place.side == Side::Maker { RESERVE } else { RESERVE_TO_JOIN };
        let shape = place.pool.shape();
        let Some(given) = self.attached(place.pool.id()).and_then(|it| it.given.as_mut()) else { return false };
        given.room = room(given.room, place.slot, shape.slots, |slots| has_memory_for(Shape { slots, ..shape }, times));
        given.room > place.slot
    }

    pub(super) fn forget_user(&mut self, id: i32) {
        if let Some(it) = self.attached(id) {
            it.users = it.users.saturating_sub(1);
            if it.users == 0 {
                it.unused_since = clock::nanoseconds();
            }
        }
    }
}

/// For how many slots of a pool with `all` slots there is memory, if there was some for the first `known` ones and
/// `slot` is to be used: as many as a pool of this process's own would have, so that it does not ask for each slot, or
/// else those up to this one.
fn room(known: u32, slot: u32, all: u32, has_memory: impl Fn(u32) -> bool) -> u32 {
    if known > slot {
        return known;
    }
    let mut sizes = core::iter::successors(Some(FIRST_SLOTS), |slots| Some(slots * GROWTH));
    let many = sizes.find(|&slots| slots > slot).unwrap_or(all).min(all);
    [many, slot + 1].into_iter().find(|&slots| has_memory(slots)).unwrap_or(known)
}

/// Whether the memory cgroups of this process have `times` the size of a pool of this shape left.
pub(super) fn has_memory_for(shape: Shape, times: u64) -> bool {
    // A shape that is not sane is refused later, and its size means nothing.
    !shape.is_sane() || kernel::is_left_by_cgroups(times * shape.pool_bytes() as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Fails if the ninth slot is had only where there is memory for 64.
    #[test]
    fn a_slot_needs_memory_for_the_slots_up_to_it() {
        let room_for = |most: u32| move |slots: u32| slots <= most;
        assert_eq!(room(0, 0, 64, room_for(64)), 1);
        assert_eq!(room(1, 1, 64, room_for(64)), 8);
        assert_eq!(room(8, 8, 64, room_for(64)), 64);
        assert_eq!(room(8, 8, 64, room_for(9)), 9);
        assert_eq!(room(9, 8, 64, room_for(0)), 9);
        assert_eq!(room(8, 8, 64, room_for(8)), 8);
        // What is known to be enough is not asked for.
        assert_eq!(room(64, 63, 64, |_| unreachable!()), 64);
        assert_eq!(room(0, 2, 4, room_for(4)), 4);
    }
}

//! The memory that pairs of processes share, and which connection has which slot of it.

use super::ProcessId;
use crate::limits::Limits;
use crate::memory;
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;
use underpass_broker::{Freed, Refusal, Shape, Side, Verdict};

/// How many times as many slots the next pool of two processes has.
const GROWTH: u32 = 8;
/// A pool of which one side has ended is kept for so long, in nanoseconds: a program that the other side executes, or
/// passes a socket to, may come for what the dead have left unread.
pub(super) const GRACE_NS: u64 = 5_000_000_000;
/// Most processes of one side of a pool: those that a process has forked, and that asked for themselves.
const MOST_OF_A_SIDE: usize = 256;

/// One end that has met: its process, the process's user, and the cookie of its socket.
type End = (ProcessId, u32, u64);

#[derive(Debug)]
struct Pool {
    memory: Rc<OwnedFd>,
    shape: Shape,
    mark: u64,
    /// A bit for each slot.
    taken: u64,
    /// The processes of the makers' and of the joiners' side.
    sides: [Vec<ProcessId>; 2],
    /// Their users.
    users: [u32; 2],
    /// For each slot, the cookies of the maker's and of the joiner's socket.
    cookies: Vec<[u64; 2]>,
}

impl Pool {
    fn verdict(&self, number: u64, slot: u16, side: Side) -> Verdict {
        Verdict::Met { pool: number, shape: self.shape, slot, side, cookies: self.cookies[slot as usize] }
    }
}

#[derive(Clone, Copy, Debug)]
struct Met {
    pool: u64,
    slot: u16,
    side: Side,
}

#[derive(Debug, Default)]
struct Usage {
    pools: usize,
    memory: u64,
}

/// All pools.
#[derive(Debug)]
pub(super) struct Pools {
    limits: Limits,
    last: u64,
    pools: HashMap<u64, Pool>,
    /// For each process, the pools that it is a side of.
    of: HashMap<ProcessId, Vec<u64>>,
    /// By cookie.
    met: HashMap<u64, Met>,
    /// By user.
    usage: HashMap<u32, Usage>,
    /// Pools of which one side has ended, and when they go, the first one first.
    dying: VecDeque<(u64, u64)>,
}

impl Pools {
    pub(super) fn new(limits: Limits) -> Pools {
        let (pools, of) = (HashMap::new(), HashMap::new());
        // Nowhere near the numbers that an earlier daemon gave: a process may still have pools of that one.
        let last = RandomState::new().build_hasher().finish() >> 1;
        Pools { limits, last, pools, of, met: HashMap::new(), usage: HashMap::new(), dying: VecDeque::new() }
    }

    /// Whether the process is a side of any pool.
    pub(super) fn has(&self, process: ProcessId) -> bool {
        self.of.contains_key(&process)
    }

    /// Places two ends that have met. The answers to them, in the order given.
    ///
    /// # Errors
    /// [`Refusal::Limit`], [`Refusal::NoMemory`].
    pub(super) fn place(
        &mut self,
        ends: [End; 2],
        mark: u64,
        ring_bytes: u32,
    ) -> Result<[(Verdict, Rc<OwnedFd>); 2], Refusal> {
        let (number, slot) = match self.free_slot(ends, mark) {
            Ok(found) => found,
            Err(slots) => (self.make(ends, mark, ring_bytes, slots)?, 0),
        };
        let pool = self.pools.get_mut(&number).ok_or(Refusal::NoMemory)?;
        pool.taken |= 1 << slot;
        // The side of a process is the same in all slots of a pool: each side has its own words in the pool's first
        // page.
        let sides =
            if pool.sides[0].contains(&ends[0].0) { [Side::Maker, Side::Joiner] } else { [Side::Joiner, Side::Maker] };
        let mut cookies = [ends[0].2, ends[1].2];
        if sides[0] == Side::Joiner {
            cookies.swap(0, 1);
        }
        pool.cookies[slot as usize] = cookies;
        let answers = sides.map(|side| (pool.verdict(number, slot, side), pool.memory.clone()));
        for (end, side) in ends.into_iter().zip(sides) {
            self.met.insert(end.2, Met { pool: number, slot, side });
        }
        Ok(answers)
    }

    /// A free slot of a pool that the two processes have; otherwise how many slots their next one has.
    fn free_slot(&self, ends: [End; 2], mark: u64) -> Result<(u64, u16), u32> {
        let [one, other] = ends.map(|end| end.0);
        let mut slots = 0;
        for number in self.of.get(&one).into_iter().flatten() {
            let Some(pool) = self.pools.get(number).filter(|it| it.mark == mark) else { continue };
            let has = |side: usize, process| pool.sides[side].contains(process);
            if !(has(0, &one) && has(1, &other) || has(0, &other) && has(1, &one)) {
                continue;
            }
            slots = slots.max(pool.shape.slots());
            let free = (!pool.taken).trailing_zeros();
            if free < pool.shape.slots() {
                return Ok((*number, free as u16));
            }
        }
        Err((slots * GROWTH).clamp(1, Shape::MAX_SLOTS))
    }

    fn make(&mut self, ends: [End; 2], mark: u64, ring_bytes: u32, slots: u32) -> Result<u64, Refusal> {
        let shape = Shape::new(ring_bytes, slots).map_err(|_| Refusal::Malformed)?;
        let bytes = shape.pool_bytes();
        let users = ends.map(|end| end.1);
        let has_room = |uid| {
            let usage = self.usage.get(uid);
            usage.is_none_or(|it| it.pools < self.limits.pools && it.memory + bytes <= self.limits.memory)
        };
        if !users.iter().all(has_room) {
            return Err(Refusal::Limit);
        }
        let memory = memory::sealed(bytes).map_err(|error| {
            tracing::warn!(%error, bytes, "no memory for two processes");
            Refusal::NoMemory
        })?;
        self.last += 1;
        for (process, uid, _) in ends {
            let usage = self.usage.entry(uid).or_default();
            usage.pools += 1;
            usage.memory += bytes;
            self.of.entry(process).or_default().push(self.last);
        }
        let (sides, cookies) = (ends.map(|end| vec![end.0]), vec![[0; 2]; slots as usize]);
        let pool = Pool { memory: Rc::new(memory), shape, mark, taken: 0, sides, users, cookies };
        self.pools.insert(self.last, pool);
        Ok(self.last)
    }

    /// The answer to an end that has met and asks again; `None` if it has not met.
    pub(super) fn again(
        &mut self,
        cookie: u64,
        process: ProcessId,
        uid: u32,
        mark: u64,
    ) -> Option<Result<(Verdict, Rc<OwnedFd>), Refusal>> {
        let Met { pool: number, slot, side } = *self.met.get(&cookie)?;
        let pool = self.pools.get_mut(&number)?;
        if pool.mark != mark {
            return Some(Err(Refusal::Layout));
        }
        let processes = &mut pool.sides[side as usize];
        if !processes.contains(&process) {
            // The process has got the socket from the process that met, by a fork or over a Unix socket. The pool has
            // the other connections of that process too, which no other user may see.
            if pool.users[side as usize] != uid {
                return Some(Err(Refusal::Policy));
            }
            if processes.len() >= MOST_OF_A_SIDE {
                return Some(Err(Refusal::Limit));
            }
            processes.push(process);
            self.of.entry(process).or_default().push(number);
        }
        Some(Ok((pool.verdict(number, slot, side), pool.memory.clone())))
    }

    /// Both ends have closed this slot, as a process says: if it lies, it harms a pool of its own. Another process may
    /// have said so before, and the slot may be another connection's by now.
    pub(super) fn free(&mut self, process: ProcessId, freed: Freed) {
        let Some(pool) = self.pools.get_mut(&freed.pool) else { return };
        if !pool.sides.iter().any(|side| side.contains(&process)) {
            return;
        }
        let Some(cookies) = pool.cookies.get_mut(freed.slot as usize).filter(|it| it[0] == freed.maker) else { return };
        pool.taken &= !(1 << freed.slot);
        for cookie in std::mem::take(cookies) {
            self.met.remove(&cookie);
        }
    }

    /// A process has ended at the time `now`. Where it was the last one of a side, no ends can meet in the pool any
    /// more. The pool goes soon, or at once with the last process of the other side. A process that has mapped it keeps
    /// it.
    pub(super) fn leave(&mut self, process: ProcessId, now: u64) {
        for number in self.of.remove(&process).unwrap_or_default() {
            let Some(pool) = self.pools.get_mut(&number) else { continue };
            pool.sides.iter_mut().for_each(|side| side.retain(|it| *it != process));
            if pool.sides.iter().all(Vec::is_empty) {
                self.remove(number);
            } else if pool.sides.iter().any(Vec::is_empty) {
                self.dying.push_back((now + GRACE_NS, number));
            }
        }
    }

    /// Lets go of the pools whose time has come.
    pub(super) fn expire(&mut self, now: u64) {
        while let Some((_, number)) = self.dying.front().copied().filter(|(when, _)| *when <= now) {
            self.dying.pop_front();
            // Another process may have come to that side since.
            if self.pools.get(&number).is_some_and(|pool| pool.sides.iter().any(Vec::is_empty)) {
                self.remove(number);
            }
        }
    }

    /// How many there are, and their bytes.
    pub(super) fn extent(&self) -> (usize, u64) {
        (self.pools.len(), self.pools.values().map(|it| it.shape.pool_bytes()).sum())
    }

    /// Whether any are about to go.
    pub(super) fn are_dying(&self) -> bool {
        !self.dying.is_empty()
    }

    fn remove(&mut self, number: u64) {
        let Some(pool) = self.pools.remove(&number) else { return };
        for cookie in pool.cookies.iter().flatten() {
            self.met.remove(cookie);
        }
        for process in pool.sides.iter().flatten() {
            if let Some(numbers) = self.of.get_mut(process) {
                numbers.retain(|it| *it != number);
                if numbers.is_empty() {
                    self.of.remove(process);
                }
            }
        }
        for uid in pool.users {
            if let Some(usage) = self.usage.get_mut(&uid) {
                usage.pools -= 1;
                usage.memory -= pool.shape.pool_bytes();
                if usage.pools == 0 {
                    self.usage.remove(&uid);
                }
            }
        }
    }
}

//! One deadline for each connection, in a hierarchy of wheels: setting one is a few writes, whatever the number of
//! connections.
//!
//! A deadline that moves back stays where it is until its old time has come, since that is what acknowledgements do to
//! T1 all the time; it is then put where it belongs.

use super::slots::{NONE, grow};
use crate::service::Time;

/// Nanoseconds of a tick, by their logarithm: 65.5 µs.
const TICK: u32 = 16;
/// Slots of a wheel, by their logarithm.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Wheels: the last one turns once in 2⁴⁶ ns, 19 hours.
const LEVELS: usize = 5;

/// A connection's place.
#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    /// The tick that it waits for; `slot` says whether it waits at all.
    tick: u64,
    /// Which list it is in: level times slots, plus slot.
    slot: u16,
}

const NOWHERE: u16 = u16::MAX;

/// The deadlines.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The tick up to and with which everything has run out.
    now: u64,
    heads: [[u32; SLOTS]; LEVELS],
    /// Which slots of a wheel are not empty.
    filled: [u64; LEVELS],
    nodes: Vec<Node>,
}

impl Wheel {
    pub fn new(now: Time) -> Wheel {
        Wheel { now: now.0 >> TICK, heads: [[NONE; SLOTS]; LEVELS], filled: [0; LEVELS], nodes: Vec::new() }
    }

    /// There are connections up to number `index`.
    pub fn reach(&mut self, index: u32) {
        let nowhere = Node { next: NONE, previous: NONE, tick: 0, slot: NOWHERE };
        while self.nodes.len() <= index as usize {
            grow(&mut self.nodes);
            self.nodes.push(nowhere);
        }
    }

    /// Connection `index` is to be looked at when `deadline` has come, or earlier.
    #[inline]
    pub fn set(&mut self, index: u32, deadline: Time) {
        // Rounded up: it has come when it is looked at.
        let tick = (deadline.0 >> TICK) + 1;
        let node = &self.nodes[index as usize];
        if node.slot != NOWHERE {
            if node.tick <= tick {
                return;
            }
            self.remove(index);
        }
        self.insert(index, tick.max(self.now + 1));
    }

    /// It is not looked at any more.
    pub fn remove(&mut self, index: u32) {
        let Node { next, previous, slot, .. } = self.nodes[index as usize];
        if slot == NOWHERE {
            return;
        }
        let (level, at) = (usize::from(slot) / SLOTS, usize::from(slot) % SLOTS);
        match previous {
            NONE => self.heads[level][at] = next,
            previous => self.nodes[previous as usize].next = next,
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if self.heads[level][at] == NONE {
            self.filled[level] &= !(1 << at);
        }
        self.nodes[index as usize].slot = NOWHERE;
    }

    fn insert(&mut self, index: u32, tick: u64) {
        let ahead = tick - self.now;
        let level = ((63 - ahead.leading_zeros()) / BITS).min(LEVELS as u32 - 1);
        // What is further away than the last wheel reaches waits in it for its next turn.
        let reach = self.now + (1 << (BITS * LEVELS as u32)) - 1;
        let at = (tick.min(reach) >> (BITS * level)) as usize % SLOTS;
        let next = self.heads[level as usize][at];
        if next != NONE {
            self.nodes[next as usize].previous = index;
        }
        self.heads[level as usize][at] = index;
        self.filled[level as usize] |= 1 << at;
        let slot = (level as usize * SLOTS + at) as u16;
        self.nodes[index as usize] = Node { next, previous: NONE, tick, slot };
    }

    /// A time at which something may have run out, and before which nothing has.
    pub fn due(&self) -> Option<Time> {
        let next = |level: usize| {
            let (shift, filled) = (BITS * level as u32, self.filled[level]);
            let here = (self.now >> shift) as u32 % SLOTS as u32;
            // The first filled slot behind the one where this wheel stands.
            let ahead = filled.rotate_right((here + 1) % SLOTS as u32).trailing_zeros() + 1;
            (filled != 0).then(|| ((self.now >> shift) + u64::from(ahead)) << shift)
        };
        (0..LEVELS).filter_map(next).min().map(|tick| Time(tick << TICK))
    }

    /// Takes out connections whose time has come by `now`, one with each call.
    pub fn expire(&mut self, now: Time) -> Option<u32> {
        let until = now.0 >> TICK;
        loop {
            let at = self.now as usize % SLOTS;
            let index = self.heads[0][at];
            if index != NONE && self.nodes[index as usize].tick <= self.now {
                self.remove(index);
                return Some(index);
            }
            if self.now >= until {
                return None;
            }
            // Straight to where something is.
            let next = self.due().map_or(until, |it| it.0 >> TICK);
            self.now = next.clamp(self.now + 1, until);
            self.turn();
        }
    }

    /// What higher wheels hold for the coming stretch goes to lower ones.
    fn turn(&mut self) {
        for level in (1..LEVELS).rev() {
            let shift = BITS * level as u32;
            if !self.now.is_multiple_of(1 << shift) {
                continue;
            }
            let at = (self.now >> shift) as usize % SLOTS;
            while self.heads[level][at] != NONE {
                let index = self.heads[level][at];
                let tick = self.nodes[index as usize].tick;
                self.remove(index);
                if tick <= self.now { self.insert_now(index, tick) } else { self.insert(index, tick) }
            }
        }
    }

    /// It is due in this very tick.
    fn insert_now(&mut self, index: u32, tick: u64) {
        let at = self.now as usize % SLOTS;
        let next = self.heads[0][at];
        if next != NONE {
            self.nodes[next as usize].previous = index;
        }
        self.heads[0][at] = index;
        self.filled[0] |= 1 << at;
        self.nodes[index as usize] = Node { next, previous: NONE, tick, slot: at as u16 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time(ticks: u64) -> Time {
        Time(ticks << TICK)
    }

    proptest! {
        /// Against the plainest code: each deadline comes once, not before its time, and not a tick after it.
        #[test]
        fn each_deadline_comes_in_its_time(
            steps in proptest::collection::vec(
                (0u32..8, prop_oneof![0u64..80, 0u64..5000, 0u64..400_000, 0u64..30_000_000], 0u64..6000),
                1..60,
            ),
        ) {
            let mut wheel = Wheel::new(time(1000));
            wheel.reach(7);
            let mut deadlines = [None::<u64>; 8];
            let mut now = 1000;
            for (index, ahead, pass) in steps {
                // A new deadline, or an earlier one: the caller itself puts back a deadline that moves back.
                let deadline = now + ahead;
                if deadlines[index as usize].is_none_or(|it| deadline < it) {
                    deadlines[index as usize] = Some(deadline);
                    wheel.set(index, time(deadline));
                }
                now += pass;
                if let Some(due) = wheel.due() {
                    let first = deadlines.iter().flatten().min().unwrap() + 1;
                    prop_assert!(due <= time(first), "due {:?}, first {}", due, first);
                }
                while let Some(index) = wheel.expire(time(now)) {
                    let deadline = deadlines[index as usize].take();
                    prop_assert!(deadline.is_some_and(|it| it < now), "{:?} at {}", deadline, now);
                }
                prop_assert!(deadlines.iter().flatten().all(|&it| it + 1 > now), "{:?} at {}", deadlines, now);
            }
            for index in 0..8 {
                wheel.remove(index);
            }
            prop_assert_eq!(wheel.due(), None);
        }
    }
}

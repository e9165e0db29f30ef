//! References of connections: 16 bits, unique for each pair of NSAPs (X.224 §6.5.5 f), which is what a [`Peer`] is,
//! looked up in one step, and not used again before every TPDU that names them is gone (§6.18).
//!
//! Places in a peer's table are given out in order, so that the table grows with what is in use. What is on the wire is
//! another number for each, by a bijection of the peer's own that follows from a secret: an attacker who does not see a
//! connection's TPDUs does not know what to forge.

use super::slots::NONE;
use crate::service::{Peer, Time};
use std::collections::VecDeque;

/// Which connection has which reference.
#[derive(Debug, Default)]
pub(super) struct References {
    secret: u64,
    /// A table for each peer.
    tables: Vec<Table>,
    /// References of connections that are gone, until when they are frozen.
    frozen: VecDeque<Frozen>,
}

/// A reference that rests, with the index of its connection.
#[derive(Clone, Copy, Debug)]
struct Frozen {
    peer: Peer,
    reference: u16,
    connection: u32,
    /// The other end had asked for it, and it was never open.
    was_pending: bool,
    until: Time,
}

/// The references of one pair of NSAPs.
#[derive(Debug)]
struct Table {
    spread: Spread,
    /// Connection by place; grows with the references that are in use at a time.
    taken: Vec<u32>,
    /// Places that were used and are free again, the longest free first.
    free: VecDeque<u16>,
    /// Connections that the peer has asked for and that are not open, or rest without having been.
    pending: u32,
}

/// The entry of a reference that is frozen.
const FROZEN: u32 = NONE - 1;

/// Which number on the wire each place has: the place, changed by a secret number, times an odd one, changed by
/// another.
#[derive(Clone, Copy, Debug)]
struct Spread {
    before: u16,
    odd: u16,
    /// The one by which that is undone.
    inverse: u16,
    after: u16,
}

impl Spread {
    /// In order where there is no secret.
    fn of(secret: u64, peer: u32) -> Spread {
        if secret == 0 {
            return Spread { before: 0, odd: 1, inverse: 1, after: 0 };
        }
        // splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
        let mut it = secret.wrapping_add(u64::from(peer).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        it = (it ^ it >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ it >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^= it >> 31;
        let odd = (it >> 32) as u16 | 1;
        // Newton's iteration doubles the bits that are right, of which an odd number's own are three.
        let double = |inverse: u16| inverse.wrapping_mul(2u16.wrapping_sub(odd.wrapping_mul(inverse)));
        Spread { before: it as u16, odd, inverse: double(double(double(odd))), after: (it >> 16) as u16 }
    }

    #[inline]
    fn reference(self, place: u16) -> u16 {
        (place ^ self.before).wrapping_mul(self.odd) ^ self.after
    }

    #[inline]
    fn place(self, reference: u16) -> u16 {
        (reference ^ self.after).wrapping_mul(self.inverse) ^ self.before
    }
}

impl References {
    /// None that is in use, from here on by this secret; 0 is none.
    pub fn by(secret: u64) -> References {
        References { secret, ..References::default() }
    }

    /// The connection of that peer's with this reference.
    #[inline]
    pub fn find(&self, peer: Peer, reference: u16) -> Option<u32> {
        let table = self.tables.get(peer.0 as usize)?;
        table.taken.get(usize::from(table.spread.place(reference))).copied().filter(|&it| it < FROZEN)
    }

    /// A reference for a connection to that peer, if one is left.
    pub fn take(&mut self, peer: Peer, connection: u32) -> Option<u16> {
        while self.tables.len() <= peer.0 as usize {
            let spread = Spread::of(self.secret, self.tables.len() as u32);
            self.tables.push(Table { spread, taken: Vec::new(), free: VecDeque::new(), pending: 0 });
        }
        let Table { spread, taken, free, .. } = &mut self.tables[peer.0 as usize];
        if let Some(place) = free.pop_front() {
            taken[usize::from(place)] = connection;
            return Some(spread.reference(place));
        }
        let mut place = u16::try_from(taken.len()).ok()?;
        if spread.reference(place) == 0 {
            // 0 is none.
            taken.push(FROZEN);
            place = place.checked_add(1)?;
        }
        taken.push(connection);
        Some(spread.reference(place))
    }

    /// The connection is gone; its reference and its index are frozen `until` then. `was_pending` says whether it was
    /// pending until now. If so, it counts as pending for as long, so that a peer that asks for connections and takes
    /// each back at once has no more at a time than other peers.
    pub fn freeze(&mut self, peer: Peer, reference: u16, connection: u32, was_pending: bool, until: Time) {
        let table = &mut self.tables[peer.0 as usize];
        table.taken[usize::from(table.spread.place(reference))] = FROZEN;
        self.frozen.push_back(Frozen { peer, reference, connection, was_pending, until });
    }

    /// Frees a reference that was frozen for long enough; the index that is free with it, and whether it was pending
    /// until now.
    pub fn thaw(&mut self, now: Time) -> Option<(u32, bool)> {
        let Frozen { peer, reference, connection, was_pending, .. } = self.frozen.pop_front_if(|it| it.until <= now)?;
        self.release(peer, reference);
        if was_pending {
            self.settled(peer);
        }
        Some((connection, was_pending))
    }

    /// Connections of that peer's that are pending.
    pub fn pending(&self, peer: Peer) -> u32 {
        self.tables.get(peer.0 as usize).map_or(0, |it| it.pending)
    }

    /// That peer has asked for a connection, which has a reference already.
    pub fn asked(&mut self, peer: Peer) {
        self.tables[peer.0 as usize].pending += 1;
    }

    /// One of them is not pending any more.
    pub fn settled(&mut self, peer: Peer) {
        self.tables[peer.0 as usize].pending -= 1;
    }

    /// How many are frozen.
    pub fn frozen(&self) -> usize {
        self.frozen.len()
    }

    /// The connection is gone, and nobody else has seen its reference.
    pub fn release(&mut self, peer: Peer, reference: u16) {
        let table = &mut self.tables[peer.0 as usize];
        let place = table.spread.place(reference);
        table.taken[usize::from(place)] = NONE;
        table.free.push_back(place);
    }

    /// When the next one is to be freed.
    pub fn due(&self) -> Option<Time> {
        self.frozen.front().map(|it| it.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes all 65,535")]
    fn a_reference_is_unique_for_each_peer_and_rests_before_it_is_used_again() {
        let mut references = References::default();
        for connection in 0..65_535 {
            assert_eq!(references.take(Peer(1), connection), Some(connection as u16 + 1));
        }
        assert_eq!(references.take(Peer(1), 65_535), None);
        assert_eq!(references.take(Peer(0), 70_000), Some(1));
        assert_eq!((references.find(Peer(0), 1), references.find(Peer(1), 1)), (Some(70_000), Some(0)));
        assert_eq!([(0, 0), (0, 2), (1, 0), (2, 1)].map(|(peer, it)| references.find(Peer(peer), it)), [None; 4]);
        references.freeze(Peer(1), 9, 8, false, Time(100));
        assert_eq!((references.thaw(Time(99)), references.frozen()), (None, 1));
        assert_eq!((references.take(Peer(1), 1), references.find(Peer(1), 9)), (None, None));
        assert_eq!((references.thaw(Time(100)), references.frozen()), (Some((8, false)), 0));
        assert_eq!((references.take(Peer(1), 7), references.find(Peer(1), 9)), (Some(9), Some(7)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes all 65,535 three times")]
    fn with_a_secret_references_are_in_no_order_and_found_all_the_same() {
        let all = |secret, peer| {
            let mut references = References::by(secret);
            let taken: Vec<u16> = (0..65_535).map(|it| references.take(Peer(peer), it).expect("one is left")).collect();
            assert_eq!(references.take(Peer(peer), 0), None);
            for (connection, &reference) in taken.iter().enumerate() {
                assert_ne!(reference, 0);
                assert_eq!(references.find(Peer(peer), reference), Some(connection as u32));
            }
            assert_eq!(references.find(Peer(peer), 0), None);
            references.release(Peer(peer), taken[7]);
            assert_eq!((references.find(Peer(peer), taken[7]), references.take(Peer(peer), 1)), (None, Some(taken[7])));
            taken
        };
        let [one, two, three] = [(1, 0), (1, 1), (2, 0)].map(|(secret, peer)| all(secret, peer));
        for (a, b) in [(&one, &two), (&one, &three), (&two, &three)] {
            let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert!(same < 100, "{same} references are the same");
        }
        assert!(one.windows(2).filter(|it| it[1] == it[0].wrapping_add(1)).count() < 100);
    }
}

//! References of connections: 16 bits, unique for each pair of NSAPs (X.224 §6.5.5 f), which is what a [`Peer`] is, looked up in
//! one step, and not used again before every TPDU that names them is gone (§6.18).

use super::slots::NONE;
use crate::service::{Peer, Time};
use std::collections::VecDeque;

/// Who has which reference.
#[derive(Debug, Default)]
pub(super) struct References {
    /// By peer.
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
#[derive(Debug, Default)]
struct Table {
    /// Connection by reference; grows with the references that are in use at a time.
    taken: Vec<u32>,
    /// References that were used and are free again, the longest free first.
    free: VecDeque<u16>,
    /// Connections that the peer has asked for and that are not open, or rest without having been.
    pending: u32,
}

/// The entry of a reference that is frozen.
const FROZEN: u32 = NONE - 1;

impl References {
    /// The connection of that peer's with this reference.
    #[inline]
    pub fn find(&self, peer: Peer, reference: u16) -> Option<u32> {
        let table = self.tables.get(peer.0 as usize)?;
        table.taken.get(usize::from(reference)).copied().filter(|&it| it < FROZEN)
    }

    /// A reference for a connection to that peer, if one is left.
    pub fn take(&mut self, peer: Peer, connection: u32) -> Option<u16> {
        if self.tables.len() <= peer.0 as usize {
            self.tables.resize_with(peer.0 as usize + 1, Table::default);
        }
        let Table { taken, free, .. } = &mut self.tables[peer.0 as usize];
        if let Some(reference) = free.pop_front() {
            taken[usize::from(reference)] = connection;
            return Some(reference);
        }
        if taken.is_empty() {
            // 0 is none.
            taken.push(FROZEN);
        }
        let reference = u16::try_from(taken.len()).ok()?;
        taken.push(connection);
        Some(reference)
    }

    /// The connection is gone; its reference is frozen until then, and so is its index. Whether it was pending until now, and is
    /// counted as that for as long: whoever asks for connections and takes that back at once has no more at a time than others.
    pub fn freeze(&mut self, peer: Peer, reference: u16, connection: u32, was_pending: bool, until: Time) {
        self.tables[peer.0 as usize].taken[usize::from(reference)] = FROZEN;
        self.frozen.push_back(Frozen { peer, reference, connection, was_pending, until });
    }

    /// Frees one that was frozen for long enough; the index that is free with it, and whether it was pending until now.
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
        table.taken[usize::from(reference)] = NONE;
        table.free.push_back(reference);
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
}

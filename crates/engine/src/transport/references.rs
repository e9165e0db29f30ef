//! References of connections: 16 bits, looked up in one step, and not used again before every TPDU that names them is gone
//! (X.224 §6.18).

use super::slots::NONE;
use crate::service::Time;
use std::collections::VecDeque;

/// Who has which reference.
#[derive(Debug, Default)]
pub(super) struct References {
    /// Connection by reference; grows with the references that were used.
    taken: Vec<u32>,
    /// References of connections that are gone, and until when they are frozen.
    frozen: VecDeque<(u16, Time)>,
    /// References that were used and are free again, the longest free first.
    free: VecDeque<u16>,
}

/// The entry of a reference that is frozen.
const FROZEN: u32 = NONE - 1;

impl References {
    /// The connection with this reference.
    #[inline]
    pub fn find(&self, reference: u16) -> Option<u32> {
        self.taken.get(usize::from(reference)).copied().filter(|&it| it < FROZEN)
    }

    /// A reference for a connection, if one is left. One that was never used comes first.
    pub fn take(&mut self, connection: u32) -> Option<u16> {
        if self.taken.is_empty() {
            // 0 is none.
            self.taken.push(FROZEN);
        }
        if self.taken.len() <= usize::from(u16::MAX) {
            self.taken.push(connection);
            return Some((self.taken.len() - 1) as u16);
        }
        let reference = self.free.pop_front()?;
        self.taken[usize::from(reference)] = connection;
        Some(reference)
    }

    /// The connection is gone; its reference is frozen until then.
    pub fn freeze(&mut self, reference: u16, until: Time) {
        self.taken[usize::from(reference)] = FROZEN;
        self.frozen.push_back((reference, until));
    }

    /// Frees those that were frozen for long enough.
    pub fn thaw(&mut self, now: Time) {
        while let Some((reference, _)) = self.frozen.pop_front_if(|it| it.1 <= now) {
            self.taken[usize::from(reference)] = NONE;
            self.free.push_back(reference);
        }
    }

    /// When the next one is to be freed.
    pub fn due(&self) -> Option<Time> {
        self.frozen.front().map(|it| it.1)
    }
}

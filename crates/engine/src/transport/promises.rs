//! What all connections of an entity together have promised to take: no more than there are buffers to receive into, or
//! what was promised to one would be lost for want of them, and every connection be taken for lossy.

use std::collections::VecDeque;

/// One in so many buffers is kept for TPDUs without data, and is not promised to any connection.
const RESERVE: u32 = 8;

/// Buffers that are promised: those that other ends may send to, and those that users keep.
#[derive(Debug)]
pub(super) struct Promises {
    most: u32,
    given: u32,
    /// Connections that would have been given more, in the order in which they are when there is some again; and how
    /// many of them have ended since ended ones were last taken out.
    short: VecDeque<Short>,
    ended: usize,
}

/// A connection that would have been given more: its number, and its serial number.
pub(super) type Short = (u32, u16);

impl Promises {
    /// Promises of so many buffers to receive into.
    pub fn of(buffers: u32) -> Promises {
        Promises { most: buffers - buffers / RESERVE, given: 0, short: VecDeque::new(), ended: 0 }
    }

    /// Promises as many as wanted, or as many as there are.
    #[inline]
    pub fn give(&mut self, wanted: u32) -> u32 {
        let given = wanted.min(self.most.saturating_sub(self.given));
        self.given += given;
        given
    }

    /// So many buffers are not promised any more.
    #[inline]
    pub fn take_back(&mut self, buffers: u32) {
        self.given = self.given.saturating_sub(buffers);
    }

    /// A connection would have been given more.
    pub fn is_short(&mut self, connection: Short) {
        self.short.push_back(connection);
    }

    /// A connection has ended that waited. Ended ones are taken out once they may be half of all: `waits` says which
    /// are none of them.
    pub fn end(&mut self, waits: impl Fn(Short) -> bool) {
        self.ended += 1;
        if self.ended * 2 > self.short.len() {
            self.short.retain(|it| waits(*it));
            self.ended = 0;
        }
    }

    /// The connection that has waited longest, whether or not there is something to promise.
    pub fn first(&self) -> Option<Short> {
        self.short.front().copied()
    }

    /// That connection waits no more.
    pub fn pass(&mut self) {
        self.short.pop_front();
    }

    /// The connection that is next, if there is something to promise.
    #[inline]
    pub fn next(&mut self) -> Option<Short> {
        if self.short.is_empty() || self.given >= self.most { None } else { self.short.pop_front() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_promised_than_there_is_and_a_short_connection_is_next() {
        let mut promises = Promises::of(16);
        assert_eq!([8, 8, 8].map(|wanted| promises.give(wanted)), [8, 6, 0]);
        promises.is_short((2, 0));
        promises.is_short((3, 0));
        assert_eq!(promises.next(), None);
        promises.take_back(1);
        assert_eq!((promises.next(), promises.give(8), promises.next()), (Some((2, 0)), 1, None));
    }
}

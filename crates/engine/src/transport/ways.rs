//! What connections to one peer share: how many DTs may be under way, how fast they go, and which connection sends
//! next.
//!
//! They all go over one way through the network, and compete with other traffic on it as one. So the window of
//! [`Congestion`] belongs to the peer: a new connection finds it as the others have made it, and many connections get
//! no more than one. Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) divides the window among them: a
//! connection that has something to send and finds no room waits behind the others that wait, and may send as many
//! octets with each turn as the longest TPDU has. A connection that finds room while no other waits sends at once, so
//! that a single connection pays nothing for this.
//!
//! Where a round trip takes a millisecond or more, the network is taken for a wide one. There DTs leave spread over the
//! round trip rather than as acknowledgements come. They leave in pairs, as TCP's segments do: a full queue drops the
//! second of two packets that come together, so a sender of single DTs would take more than its part from TCP. Each
//! pair has its time, a quarter faster than the window needs, twice as fast while the window doubles. A pair that is
//! late by a millisecond at most goes at once. Where a round trip takes less, a timer is no finer than the window
//! itself, and nothing is spread.

use super::congestion::Congestion;
use crate::service::{Peer, Time};
use std::collections::{HashMap, VecDeque};

const MS: u64 = 1_000_000;
/// With round trips from this on, the network is taken for a wide one, which others share and fill: DTs are spread in
/// time, and the window does not shrink for a delay.
pub(super) const WIDE: u64 = MS;
/// How late a DT may be and still be caught up with.
const BURST: u64 = MS;

/// How many waiting connections a list has room for at first.
const ROOM: usize = 16;

/// The ways to peers, which are kept when their connections end: another one goes on where they were.
#[derive(Debug, Default)]
pub(super) struct Ways {
    all: Vec<Way>,
    numbers: HashMap<Peer, u32>,
    /// Ways on which a connection waits for the time of the next DT, and the earliest of these times.
    timed: Vec<u32>,
    due: Option<Time>,
    /// The ways among them whose time has come.
    ripe: Vec<u32>,
    /// Ways on which there may be room, because connections have ended, or are silent.
    freed: Vec<u32>,
}

/// The way to a peer.
#[derive(Debug)]
pub(super) struct Way {
    congestion: Congestion,
    /// DTs that were sent, and of which the other ends have not said that they have them.
    under_way: u32,
    /// Connections that have something to send, and found no room: the one whose turn it is first.
    waiting: VecDeque<u32>,
    /// The number of the last cut for a loss or a silence, and how many connections have caused it that have not shown
    /// since that nothing of theirs was lost.
    cuts: u32,
    blamed: u32,
    /// When the window was last cut for a delay or a mark, and for a loss: what was sent before says nothing new.
    cut: Time,
    lost: Time,
    /// The latter as it was before the last cut for a loss or a silence, which may prove to be none.
    lost_before: Time,
    /// How long acknowledgements take, smoothed over all connections, in ns; 0 while nothing was measured.
    round_trip: u64,
    /// When the next pair of DTs may be sent; and the second of the last one was not sent.
    next: Time,
    second: bool,
    /// The connection whose DTs were acknowledged last, and when.
    heard: (u32, Time),
    is_timed: bool,
}

/// A round trip that was measured, the shortest of its connection, and what it may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub round_trip: u64,
    pub least: u64,
    pub target: u64,
}

/// Whether a DT may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Now.
    Now,
    /// Once a DT is acknowledged.
    Full,
    /// At this time.
    At(Time),
}

impl Ways {
    /// The number of the way to a peer.
    pub fn to(&mut self, peer: Peer) -> u32 {
        let Ways { all, numbers, timed, ripe, freed, .. } = self;
        *numbers.entry(peer).or_insert_with(|| {
            all.push(Way::new());
            [timed, ripe, freed].into_iter().for_each(|list| list.reserve(all.len()));
            all.len() as u32 - 1
        })
    }

    /// The way of this number.
    #[inline]
    pub fn at(&mut self, number: u32) -> &mut Way {
        &mut self.all[number as usize]
    }

    /// The way of this number, to be looked at.
    pub fn get(&self, number: u32) -> &Way {
        &self.all[number as usize]
    }

    /// A connection waits on a way for the time of the next DT.
    pub fn time(&mut self, number: u32, at: Time) {
        if !std::mem::replace(&mut self.all[number as usize].is_timed, true) {
            self.timed.push(number);
        }
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// The earliest of these times.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// A way on which a connection waited for a time that has come. The caller serves it, and it waits again if need
    /// be.
    pub fn expire(&mut self, now: Time) -> Option<u32> {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.ripe.append(&mut self.timed);
        }
        let number = self.ripe.pop()?;
        self.all[number as usize].is_timed = false;
        Some(number)
    }

    /// A connection ends, of which so many DTs were under way.
    pub fn leave(&mut self, number: u32, connection: u32, under_way: u32) {
        let way = &mut self.all[number as usize];
        way.under_way = way.under_way.saturating_sub(under_way);
        way.waiting.retain(|it| *it != connection);
        if !way.waiting.is_empty() {
            self.freed.push(number);
        }
    }

    /// T1 of a connection has run out: so many of its DTs count as under way no more, and leave room for others.
    pub fn give_up(&mut self, number: u32, count: u32) {
        let way = &mut self.all[number as usize];
        way.arrived(count);
        if !way.waiting.is_empty() && !self.freed.contains(&number) {
            self.freed.push(number);
        }
    }

    /// A way on which there may be room, because connections have ended, or are silent.
    pub fn freed(&mut self) -> Option<u32> {
        self.freed.pop()
    }
}

impl Way {
    fn new() -> Way {
        Way {
            congestion: Congestion::new(),
            under_way: 0,
            waiting: VecDeque::with_capacity(ROOM),
            cuts: 0,
            blamed: 0,
            cut: Time(0),
            lost: Time(0),
            lost_before: Time(0),
            round_trip: 0,
            next: Time(0),
            second: false,
            heard: (u32::MAX, Time(0)),
            is_timed: false,
        }
    }

    /// Whether a DT may be sent.
    #[inline]
    pub fn room(&self, now: Time) -> Room {
        let left = self.congestion.window().saturating_sub(self.under_way);
        let begins_pair = self.is_wide() && !self.second;
        // A DT that would go alone waits for a second one, unless nothing is under way that would make room for that.
        if left == 0 || begins_pair && left == 1 && self.under_way > 0 {
            Room::Full
        } else if !begins_pair || self.next <= now {
            Room::Now
        } else {
            Room::At(self.next)
        }
    }

    /// How long acknowledgements take, in ns; 0 while nothing was measured.
    pub fn round_trip(&self) -> u64 {
        self.round_trip
    }

    #[inline]
    fn is_wide(&self) -> bool {
        self.round_trip >= WIDE
    }

    /// DTs that may be sent, whatever their time.
    pub fn left(&self) -> u32 {
        if self.waiting.is_empty() { self.congestion.window().saturating_sub(self.under_way) } else { 0 }
    }

    /// Whether the next DT is the last that the window allows.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.under_way + 1 >= self.congestion.window()
    }

    /// A DT is sent.
    #[inline]
    pub fn sent(&mut self, now: Time) {
        self.under_way += 1;
        self.second = self.is_wide() && !self.second;
        if self.second {
            // The packets of a window are spread over four fifths of a round trip, or over half of it.
            let share = 2 * self.round_trip / u64::from(self.congestion.window().max(1));
            let apart = if self.congestion.begins() { share / 2 } else { share / 5 * 4 };
            self.next = Time(self.next.0.max(now.0.saturating_sub(BURST))).after(apart);
        }
    }

    /// Whether a connection waits for a turn.
    #[inline]
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The first of the connections that wait.
    pub fn first(&self) -> Option<u32> {
        self.waiting.front().copied()
    }

    /// A connection waits behind all others.
    pub fn wait(&mut self, connection: u32) {
        self.waiting.push_back(connection);
    }

    /// The first of the waiting connections waits no more.
    pub fn pass(&mut self) {
        self.waiting.pop_front();
    }

    /// The first of the waiting connections has had its turn, and waits behind the others.
    pub fn turn(&mut self) {
        if let Some(first) = self.waiting.pop_front() {
            self.waiting.push_back(first);
        }
    }

    /// A DT that T1 had given up is sent again.
    #[inline]
    pub fn sent_again(&mut self) {
        self.under_way += 1;
    }

    /// Notes that this many DTs have come out of order, or are given up.
    #[inline]
    pub fn arrived(&mut self, count: u32) {
        self.under_way = self.under_way.saturating_sub(count);
    }

    /// `count` DTs of a connection were acknowledged. Of those that had not been acknowledged out of order before,
    /// `fresh` were under way, and `given_up` had been given up by T1.
    /// `sample` is the round trip of the last one, if it was measured. Returns whether the way itself has become
    /// longer.
    pub fn acknowledged(
        &mut self,
        connection: u32,
        [count, fresh, given_up]: [u32; 3],
        sample: Option<Sample>,
        now: Time,
    ) -> bool {
        let was_used = (self.under_way + given_up).saturating_mul(2) >= self.congestion.window();
        self.under_way = self.under_way.saturating_sub(fresh);
        self.heard = (connection, now);
        if let Some(Sample { round_trip, .. }) = sample {
            self.round_trip = match self.round_trip {
                0 => round_trip,
                smoothed => smoothed - smoothed / 8 + round_trip / 8,
            };
        }
        if self.is_wide() {
            // As TCP leaves its slow start (HyStart, RFC 9406): a burst of its own makes no such delay.
            if sample.is_some_and(|it| it.round_trip > it.least + (it.least / 8).clamp(4 * MS, 16 * MS)) {
                self.congestion.settle();
            }
            if was_used {
                self.congestion.compete(count, self.round_trip, now);
            }
            return false;
        }
        let Some(Sample { round_trip, least, target }) = sample else { return false };
        if round_trip <= target {
            // As much waits as is under way: it would be twice as much next.
            if round_trip > 2 * least {
                self.congestion.settle();
            }
            if was_used {
                self.congestion.grow(count);
            }
            return false;
        }
        let sent = Time(now.0.saturating_sub(round_trip));
        if sent < self.cut {
            return false;
        }
        // The DT was alone under way, so this way's own DTs are no part of the queue.
        if self.congestion.window() == 1 {
            return true;
        }
        self.congestion.delayed(round_trip, target);
        self.cut = now;
        false
    }

    /// A router has marked DTs: the window shrinks, once in a round trip.
    pub fn marked(&mut self, now: Time) {
        if now.since(self.cut) >= self.round_trip {
            self.congestion.marked();
            self.cut = now;
        }
    }

    /// A connection has caused a cut, of which it is `blamed` with its number.
    fn blame(&mut self, blamed: &mut u32) {
        self.cuts = self.cuts.wrapping_add(1).max(1);
        (self.blamed, *blamed) = (1, self.cuts);
        self.lost_before = self.lost;
    }

    /// A DT that was sent then is lost: the window shrinks, once for all that were under way with it, whatever
    /// connections lose some of them. `blamed` is the number of the cut that the DT's connection has caused last.
    pub fn lost(&mut self, blamed: &mut u32, sent: Time, now: Time) {
        if sent >= self.lost {
            if self.congestion.lost(self.is_wide()) {
                self.blame(blamed);
            }
            self.lost = now;
        } else if *blamed != self.cuts {
            *blamed = self.cuts;
            self.blamed += 1;
        }
    }

    /// What a connection took for lost was late. If it has caused the last cut, and no other has lost anything then,
    /// the window is as it was.
    pub fn late(&mut self, blamed: &mut u32) {
        if *blamed == 0 || *blamed != self.cuts {
            return;
        }
        *blamed = 0;
        self.blamed = self.blamed.saturating_sub(1);
        if self.blamed == 0 {
            self.congestion.late();
            // What was under way together may still show a loss.
            self.lost = self.lost_before;
        }
    }

    /// For the whole of T1 nothing of a connection was acknowledged, since its first DT was sent. If something of other
    /// connections was acknowledged meanwhile, only that DT counts as lost. Otherwise the way is silent; if any of the
    /// connections that were silent then shows that it has lost nothing, the way was not.
    pub fn silent(&mut self, connection: u32, blamed: &mut u32, sent: Time, now: Time) {
        let (other, at) = self.heard;
        if other != connection && at > sent {
            self.lost(blamed, sent, now);
        } else if self.congestion.silent(self.is_wide(), self.round_trip > 0) {
            self.blame(blamed);
        } else {
            *blamed = self.cuts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dts_are_spread_over_a_long_round_trip() {
        let mut ways = Ways::default();
        let number = ways.to(Peer(7));
        assert_eq!((number, ways.to(Peer(9)), ways.to(Peer(7))), (0, 1, 0));
        let way = ways.at(number);
        let mut now = Time(100 * MS);
        (0..16).for_each(|_| {
            assert_eq!(way.room(now), Room::Now);
            way.sent(now);
        });
        assert_eq!(way.room(now), Room::Full);
        // 16 ms for 32, twice as fast since the window doubles: half a millisecond is between pairs, and a millisecond
        // is caught up with.
        now = now.after(16 * MS);
        assert!(!way.acknowledged(
            1,
            [16, 16, 0],
            Some(Sample { round_trip: 16 * MS, least: 16 * MS, target: 20 * MS }),
            now
        ));
        let mut sent = 0;
        while way.room(now) == Room::Now {
            way.sent(now);
            sent += 1;
        }
        assert_eq!((sent, way.room(now)), (6, Room::At(Time(now.0 + MS / 2))));
        assert_eq!(way.left(), 32 - 6);
        // Another pair finds no room once all but one are under way.
        (0..25).for_each(|_| way.sent(now));
        assert_eq!((way.left(), way.room(now.after(16 * MS))), (1, Room::Now), "the second of a pair");
        way.arrived(1);
        way.sent(now);
        assert_eq!((way.left(), way.room(now.after(16 * MS))), (1, Room::Full));
        way.arrived(1);
        assert_eq!(way.room(now.after(16 * MS)), Room::Now);
    }

    #[test]
    fn the_window_shrinks_once_for_what_was_under_way_together() {
        let mut ways = Ways::default();
        let number = ways.to(Peer(0));
        let way = ways.at(number);
        let (sent, now) = (Time(MS), Time(2 * MS));
        (0..16).for_each(|_| way.sent(sent));
        let mut blamed = [0; 2];
        way.lost(&mut blamed[0], sent, now);
        way.lost(&mut blamed[0], sent, now.after(1));
        assert_eq!(way.congestion.window(), 8);
        way.lost(&mut blamed[0], now, now.after(2));
        assert_eq!(way.congestion.window(), 4);
        // Another connection got an acknowledgement: the network is not silent.
        way.acknowledged(1, [1, 1, 0], None, now.after(MS));
        way.silent(2, &mut blamed[1], now.after(3), now.after(2 * MS));
        assert_eq!(way.congestion.window(), 2);
        way.silent(1, &mut blamed[0], now.after(3 * MS), now.after(4 * MS));
        assert_eq!((way.congestion.window(), way.under_way), (1, 15));
    }

    /// The first loss of what was under way together was none, and the second one is.
    #[test]
    fn a_cut_that_was_undone_hides_no_loss() {
        let mut ways = Ways::default();
        let number = ways.to(Peer(0));
        let way = ways.at(number);
        let (sent, now) = (Time(MS), Time(2 * MS));
        let [mut late, mut lost] = [0; 2];
        way.lost(&mut late, sent, now);
        way.late(&mut late);
        assert_eq!(way.congestion.window(), 16);
        way.lost(&mut lost, sent, now.after(1));
        assert_eq!(way.congestion.window(), 8);
        // The first connection loses something as well, which is cut for already.
        way.lost(&mut late, sent, now.after(2));
        way.late(&mut late);
        assert_eq!(way.congestion.window(), 8);
    }

    #[test]
    fn connections_that_wait_are_served_in_turn_and_forgotten_at_their_end() {
        let mut ways = Ways::default();
        let number = ways.to(Peer(0));
        [3, 5, 8].into_iter().for_each(|it| ways.at(number).wait(it));
        let mut turns = Vec::new();
        for _ in 0..4 {
            turns.extend(ways.at(number).first());
            ways.at(number).turn();
        }
        assert_eq!(turns, [3, 5, 8, 3]);
        ways.leave(number, 8, 0);
        assert_eq!((ways.freed(), ways.freed(), ways.at(number).first()), (Some(number), None, Some(5)));
        ways.at(number).pass();
        ways.leave(number, 3, 0);
        assert_eq!((ways.freed(), ways.at(number).is_waited_for()), (None, false));
    }
}

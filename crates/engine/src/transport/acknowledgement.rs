//! AKs that come: the window moves, what they cover is let go of, and round trips, losses and marks are learnt from
//! them (X.224 §12.2.3.6 to §12.2.3.9).

use super::connection::{Connection, Deadline, Opening, Receiving, Sending, State};
use super::number::Space;
use super::receiving::most_runs;
use super::retransmission::DUPLICATES;
use super::sending::await_acknowledge;
use super::slots::{Is, NONE, Slot, Slots};
use super::ways::{Sample, Way};
use super::{Config, Runs, Transport};
use crate::layer::Outbox;
use crate::service::{Cep, Fate, Indication, Time};
use crate::wire::tpdu::{Acknowledge, Class, Confirmation, Reason};

impl Transport {
    /// An AK, and the runs of what has come out of order.
    pub(super) fn acknowledge(&mut self, index: u32, ak: &Acknowledge<'_>, runs: &Runs, now: Time, out: &mut Outbox) {
        self.counters.acknowledges_received += 1;
        self.heard(index, now);
        self.opened(index, now, out);
        let Transport { connections, slots, config, counters, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        if connection.state != State::Open {
            return;
        }
        let update = match connection.update_window(ak) {
            Ok(update) => update,
            Err(Invalid::Outdated) => return,
            Err(Invalid::Backwards) => {
                counters.unexpected += 1;
                return self.release(index, Reason::PROTOCOL_ERROR, now, out);
            }
        };
        let (terms, space, shares) = (connection.terms, connection.terms.space(), connection.shares(config));
        let way = ways.at(connection.way);
        let mut arrivals = Arrivals::new(connection, config, now);
        arrivals.release_acknowledged(&mut connection.sending, slots, update.acknowledged, out);
        if terms.selective {
            arrivals.mark_selected(&connection.sending, space, slots, runs);
        }
        if update.acknowledged > 0 {
            connection.advance(index, &arrivals, shares.then_some(&mut *way), config.times.slack, out);
        } else if !update.is_new && update.under_way > 0 {
            connection.sending.duplicates = connection.sending.duplicates.saturating_add(1);
        }
        let sending = &mut connection.sending;
        sending.timeout.answered(arrivals.is_timely(), update.acknowledged > 0);
        if shares {
            way.arrived(arrivals.arrived);
        }
        // While something is sent again, an AK that says nothing new answers what has come twice; or what has come for
        // the first time behind so many gaps that there is no room to say so.
        let says_nothing = !update.is_new && arrivals.newly_selected == 0 && runs.len < most_runs(terms);
        arrivals.late += u64::from(terms.selective && says_nothing && sending.recovery.is_recovering());
        if arrivals.late > 0 {
            counters.data_late += arrivals.late;
            way.late(&mut sending.recovery.blamed);
            sending.recovery.late(sending.timeout.round_trip.least, config.times.t1_least);
        }
        if let Some(marks) = ak.marks.filter(|_| shares && terms.marks) {
            let more = sending.count_marks(marks);
            counters.marks += u64::from(more);
            if more > 0 {
                way.marked(now);
            }
        }
        let has_holes = arrivals.selected >= u32::from(DUPLICATES);
        let is_missing = has_holes || sending.duplicates >= DUPLICATES;
        let is_recovering = sending.recovery.is_recovering();
        if update.covers_again {
            self.send_uncovered(index, has_holes, now, out);
        } else if is_missing && !is_recovering && sending.may_send_again(space, slots) {
            self.miss(index, has_holes, now, out);
        } else if update.acknowledged > 0 && is_recovering {
            self.send_again(index, has_holes, now, out);
        }
        self.acknowledged(index, ak, now, out);
    }

    /// What an AK has said is learnt: T1 runs for what is still under way, and what the credit allows is sent.
    #[inline]
    fn acknowledged(&mut self, index: u32, ak: &Acknowledge<'_>, now: Time, out: &mut Outbox) {
        let Transport { connections, config, wheel, .. } = self;
        if let Some(connection) = connections[index as usize].as_mut() {
            await_acknowledge(config, wheel, index, connection, now);
            let receiving = &mut connection.receiving;
            receiving.confirmed(connection.terms.space(), ak.confirmation);
            if receiving.confirms.is_some() {
                self.owe(index);
            }
        }
        self.send_data(index, now, out);
    }
}

/// How an AK moves the window.
struct Update {
    /// DTs that it acknowledges in order.
    acknowledged: u32,
    /// DTs that were sent and not acknowledged in order before it.
    under_way: u32,
    /// It acknowledges or grants something, or answers a later DT than the one before.
    is_new: bool,
    /// Its credit covers the first DT that is not acknowledged, and the credit before it did not.
    covers_again: bool,
}

/// Why an AK is not looked at.
enum Invalid {
    /// It is older than another AK that came, or acknowledges what was never sent.
    Outdated,
    /// It moves an edge of the window back in class 2.
    Backwards,
}

impl Connection {
    /// Moves the window's edges to where an AK says.
    #[inline]
    fn update_window(&mut self, ak: &Acknowledge<'_>) -> Result<Update, Invalid> {
        let Connection { terms, sending, receiving, .. } = self;
        let space = terms.space();
        let was_covered = sending.is_covered(space);
        let acknowledged = space.distance(sending.lower_edge, ak.number);
        let under_way = space.distance(sending.lower_edge, sending.next);
        let upper_edge = space.add(ak.number, u32::from(ak.credit).min(space.window()));
        // The network keeps them in order, and neither edge of the window may go back (X.224 §10.2.4.2).
        let lowers = acknowledged > under_way || space.is_before(upper_edge, sending.upper_edge);
        if terms.class == Class::Two && lowers {
            return Err(Invalid::Backwards);
        }
        let subsequence = ak.subsequence.unwrap_or(0);
        if acknowledged > under_way || acknowledged == 0 && subsequence < sending.subsequence {
            return Err(Invalid::Outdated);
        }
        let grants = space.is_before(sending.upper_edge, upper_edge);
        let is_new = acknowledged > 0 || grants || subsequence > sending.subsequence;
        sending.closed |= ak.credit == 0;
        if grants && core::mem::replace(&mut sending.closed, false) && terms.class == Class::Four {
            // The window was closed: its opening may not get lost, and is confirmed.
            receiving.confirms = Some(Confirmation { lower_edge: ak.number, subsequence, credit: ak.credit });
        }
        if acknowledged > 0 || subsequence > sending.subsequence {
            (sending.upper_edge, sending.subsequence) = (upper_edge, subsequence);
        } else if grants {
            sending.upper_edge = upper_edge;
        }
        sending.lower_edge = ak.number;
        let is_covered = sending.is_covered(space);
        if !is_covered {
            // What may not be sent is not tried, however long the other end takes.
            sending.timeout.attempts = 0;
        }
        Ok(Update { acknowledged, under_way, is_new, covers_again: is_covered && !was_covered })
    }

    /// DTs were acknowledged in order: nothing is awaited for them any more, and the round trip is measured by them.
    #[inline]
    fn advance(&mut self, index: u32, arrivals: &Arrivals, way: Option<&mut Way>, slack: u64, out: &mut Outbox) {
        let Connection { sending, terms, timers, .. } = self;
        sending.duplicates = 0;
        sending.recovery.advance(terms.space(), sending.lower_edge);
        timers.retransmission = Deadline::NONE;
        let timeout = &mut sending.timeout;
        timeout.attempts = 0;
        if core::mem::take(&mut timeout.told) {
            out.up(Indication::Resumed { cep: Cep(index) });
        }
        let sample = arrivals.sample;
        if let Some(sample) = sample {
            timeout.round_trip.sample(sample);
        }
        let least = u64::from(timeout.round_trip.least);
        let measured = sample.map(|round_trip| Sample { round_trip, least, target: least + slack });
        let counts = [arrivals.in_order, arrivals.fresh, arrivals.given_up];
        if way.is_some_and(|it| it.acknowledged(index, counts, measured, arrivals.now)) {
            // The way has become longer.
            timeout.round_trip.least = sample.and_then(|it| u32::try_from(it).ok()).unwrap_or(u32::MAX);
        }
    }
}

impl Sending {
    /// Whether the credit covers the first DT that was sent and is not acknowledged, if there is one: the other end may
    /// have taken it back.
    #[inline]
    fn is_covered(&self, space: Space) -> bool {
        self.lower_edge == self.next || space.is_before(self.lower_edge, self.upper_edge)
    }

    /// How many DTs more the other end has found marked, which has found so many modulo 256.
    fn count_marks(&mut self, marks: u8) -> u8 {
        // AKs may overtake each other: an AK that says fewer is older.
        let more = marks.wrapping_sub(self.marks);
        if !(1..128).contains(&more) {
            return 0;
        }
        self.marks = marks;
        more
    }
}

impl Receiving {
    /// The other end confirms an AK: if that was the last one, the opening of the window has not got lost.
    #[inline]
    fn confirmed(&mut self, space: Space, confirmation: Option<Confirmation>) {
        if let Some(it) = confirmation
            && space.add(it.lower_edge, it.credit.into()) == self.granted
        {
            self.opening = Opening::None;
        }
    }
}

/// What an AK shows by the DTs that it says have arrived.
struct Arrivals {
    now: Time,
    /// The shortest round trip, in ns.
    least: u64,
    /// Within what time an acknowledgement shows that T1 is long enough.
    in_time: u64,
    /// DTs in order, and those of them of which it was not known that they have arrived: that were under way, and that
    /// T1 had given up.
    in_order: u32,
    fresh: u32,
    given_up: u32,
    /// DTs out of order, those of them of which it was not known, and those of these that were under way.
    selected: u32,
    newly_selected: u32,
    arrived: u32,
    /// The round trip of the last DT in order, in ns, if neither that nor one before it was late or sent again (Karn).
    sample: Option<u64>,
    /// Copies that were late and not lost.
    late: u64,
    /// A DT that was sent once has arrived within T1.
    in_t1: bool,
}

impl Arrivals {
    #[inline]
    fn new(connection: &Connection, config: &Config, now: Time) -> Arrivals {
        let timeout = &connection.sending.timeout;
        Arrivals {
            now,
            least: timeout.round_trip.least.into(),
            in_time: timeout.in_time(&config.times, connection.terms.acknowledge_time(config.times.al)),
            in_order: 0,
            fresh: 0,
            given_up: 0,
            selected: 0,
            newly_selected: 0,
            arrived: 0,
            sample: None,
            late: 0,
            in_t1: false,
        }
    }

    /// Lets go of the DTs that are acknowledged in order.
    #[inline]
    fn release_acknowledged(&mut self, sending: &mut Sending, slots: &mut Slots, count: u32, out: &mut Outbox) {
        self.in_order = count;
        let mut is_prompt = true;
        for _ in 0..count {
            let Some(frame) = slots.pop_front(&mut sending.retained) else { break };
            let slot = slots.at(frame);
            // Of the last one, which has brought this AK about; but not where it, or one before it, came late (Karn).
            is_prompt &= slot.is == Is::Retained { again: 0, selected: false, given_up: false };
            self.sample = Some(self.now.since(slot.sent)).filter(|_| is_prompt);
            self.fresh += u32::from(slot.is_under_way());
            self.given_up += u32::from(slot.is_given_up());
            self.note(slot);
            slots.let_go(frame, Fate::Acknowledged, out);
        }
    }

    /// Marks the DTs that are acknowledged out of order; they stay retained until they are acknowledged in order.
    #[inline]
    fn mark_selected(&mut self, sending: &Sending, space: Space, slots: &mut Slots, runs: &Runs) {
        let mut frame = sending.retained.head;
        for (first, last) in runs.iter() {
            // Both in order: one pass over the list.
            while frame != NONE {
                let slot = slots.at(frame);
                if space.is_before(last, slot.number) {
                    break;
                }
                if !space.is_before(slot.number, first) {
                    self.note(slot);
                    self.arrived += u32::from(slot.is_under_way());
                    if let Is::Retained { selected, .. } = &mut slot.is {
                        self.newly_selected += u32::from(!core::mem::replace(selected, true));
                        self.selected += 1;
                    }
                }
                frame = slot.next;
            }
        }
    }

    /// A DT has arrived.
    #[inline]
    fn note(&mut self, slot: &Slot) {
        self.late += u64::from(slot.came_late(self.now, self.least));
        self.in_t1 |= slot.is_sent_once() && self.now.since(slot.sent) <= self.in_time;
    }

    /// Whether it shows that T1 is long enough.
    #[inline]
    fn is_timely(&self) -> bool {
        self.in_t1 || self.sample.is_some()
    }
}

//! The direction away from here: numbering, credit, retention, retransmission (X.224 §12.2.3.3 to §12.2.3.9).

use super::connection::{Connection, Deadline, Opening, Sending, State, Terms};
use super::number::Space;
use super::slots::{Is, NONE, Slots};
use super::ways::{Room, Sample, WIDE};
use super::wheel::Wheel;
use super::{Config, Runs, Transport};
use crate::layer::Outbox;
use crate::service::{Cep, Fate, Indication, Request, Time};
use crate::wire::Writer;
use crate::wire::tpdu::{Acknowledge, Class, Confirmation, Data, Reason};
use underpass_checksum::fletcher::Sums;
use underpass_link::arena::{Arena, Buffer};

/// Octets of the longest AK that goes ahead of a DT in one NSDU (X.224 §6.4): with checksum, confirmation and marks.
pub(super) const AHEAD: usize = 10 + 4 + 10 + 3;

/// Octets of headroom that are left for the layers below.
const BELOW: usize = 64;

/// Attempts after which T1 does not get longer.
pub(super) const PATIENCE: u8 = 6;
/// AKs for what was sent again, or took longer than T1, behind which T1 itself is taken for too short (Karn): where a round trip has
/// become longer than it, everything is sent again, and no round trip would be measured ever after.
pub(super) const DOUBTS: u8 = 4;

/// AKs that say nothing new, after which what they miss is taken for lost.
const DUPLICATES: u8 = 3;

/// Why a connection sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It has nothing to send, or no credit.
    Done,
    /// Its turn is over.
    Turn,
    /// There is no room on its way.
    NoRoom,
}

impl Transport {
    pub(super) fn data_request(&mut self, cep: Cep, buffer: Buffer, end: bool, now: Time, out: &mut Outbox) {
        let queue = self.config.queue;
        let refused = |buffer| Indication::Complete { buffer, cep: Some(cep), fate: Fate::Refused };
        let Some(connection) = self.connection(cep) else { return out.up(refused(buffer)) };
        let may = matches!(connection.state, State::Open | State::AwaitsAcknowledge);
        // No TSDU is empty, but the last DT of one may be.
        let is_empty = buffer.is_empty() && !(end && connection.sending.begun);
        let may = may && connection.sending.waiting < queue;
        if !may || buffer.len() > connection.terms.most() as usize || is_empty {
            return out.up(refused(buffer));
        }
        connection.sending.begun = !end;
        let frame = buffer.frame();
        self.is_read(frame, now);
        let slot = self.slots.at(frame);
        (slot.is, slot.end, slot.buffer, slot.connection) = (Is::Unsent, end, Some(buffer), cep.0);
        let Some(connection) = self.connections[cep.0 as usize].as_mut() else { return };
        self.slots.push_back(&mut connection.sending.unsent, frame);
        connection.sending.waiting += 1;
        self.send_data(cep.0, now, out);
    }

    /// Sends as many DTs as the other end's credit and the window to this peer allow, behind the connections that wait
    /// for room already.
    pub(super) fn send_data(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connections[index as usize].as_ref() else { return };
        let way = connection.way;
        if connection.shares(&self.config) && self.ways.at(way).is_waited_for() {
            if !connection.sending.is_waiting && !connection.sending.unsent.is_empty() {
                self.wait(index);
            }
            self.serve(way, now, out);
        } else if self.send_some::<false>(index, now, out) == Stop::NoRoom {
            self.wait(index);
            self.serve(way, now, out);
        }
    }

    /// A connection waits for room on its way.
    fn wait(&mut self, index: u32) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let sending = &mut connection.sending;
        (sending.is_waiting, sending.deficit) = (true, connection.terms.tpdu_size);
        self.ways.at(connection.way).wait(index);
    }

    /// Connections that wait for room on a way send in turn, as long as there is room.
    pub(super) fn serve(&mut self, way: u32, now: Time, out: &mut Outbox) {
        while let Some(index) = self.ways.at(way).first() {
            match self.ways.at(way).room(now) {
                Room::Now => {}
                Room::Full => return,
                Room::At(time) => return self.ways.time(way, time),
            }
            let stop = self.send_some::<true>(index, now, out);
            let Some(connection) = self.connections[index as usize].as_mut() else { return self.ways.at(way).pass() };
            let sending = &mut connection.sending;
            match stop {
                // It has had what it wanted, or has no credit.
                Stop::Done => {
                    (sending.is_waiting, sending.deficit) = (false, 0);
                    self.ways.at(way).pass();
                }
                Stop::Turn => {
                    sending.deficit += connection.terms.tpdu_size;
                    self.ways.at(way).turn();
                }
                Stop::NoRoom => {}
            }
        }
    }

    /// Sends DTs of a connection, in its turn no more octets than it may send then.
    #[inline(always)]
    fn send_some<const IN_TURN: bool>(&mut self, index: u32, now: Time, out: &mut Outbox) -> Stop {
        let Transport { connections, slots, config, arena, counters, wheel, promises, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return Stop::Done };
        if connection.state != State::Open {
            return Stop::Done;
        }
        let (terms, peer, dst_ref, shares) =
            (connection.terms, connection.peer, connection.dst_ref, connection.shares(config));
        let space = terms.space();
        let way = ways.at(connection.way);
        let mut acknowledges = connection.may_acknowledge(config, now);
        let mut stop = Stop::Done;
        // Behind an ED nothing is sent before that has arrived (§6.11).
        while !connection.sending.unsent.is_empty() && connection.sending.expedited.is_none() {
            let sending = &mut connection.sending;
            let credit = space.distance(sending.next, sending.upper_edge);
            let under_way = space.distance(sending.lower_edge, sending.next);
            let has_credit = credit > 0 && credit <= space.window();
            if !has_credit {
                break;
            }
            if shares && way.room(now) != Room::Now {
                stop = Stop::NoRoom;
                break;
            }
            if IN_TURN {
                let octets = slots.at(sending.unsent.head).buffer.as_ref().map_or(0, |it| it.len() as u32);
                match sending.deficit.checked_sub(octets + terms.header_len() as u32) {
                    Some(rest) => sending.deficit = rest,
                    None => {
                        stop = Stop::Turn;
                        break;
                    }
                }
            }
            let Some(frame) = slots.pop_front(&mut sending.unsent) else { break };
            sending.waiting -= 1;
            let number = sending.next;
            sending.next = space.add(number, 1);
            let slot = slots.at(frame);
            let Some(mut buffer) = slot.buffer.take() else { continue };
            // The last one that may be sent asks for the next credit, or for an AK where half the credit will never come.
            let is_last = shares && way.is_last() && under_way < (credit + under_way) / 2;
            let data = Data {
                dst_ref,
                number,
                eot: slot.end,
                roa: terms.roa && (credit == 1 || is_last),
                checksum: terms.checksum,
                expedited: None,
            };
            let header_len = put_header(arena, &mut buffer, &data, terms);
            buffer.let_be_marked(terms.marks);
            (slot.number, slot.sent, slot.header_len) = (number, now, header_len);
            if terms.class == Class::Four {
                slot.is = Is::Retained { again: 0, selected: false };
                slots.push_back(&mut sending.retained, frame);
            } else {
                // The network delivers it: nothing is retained.
                slot.is = Is::Leaving(Fate::Sent);
            }
            if shares {
                way.sent(now);
            }
            counters.data_sent += 1;
            let has_room =
                buffer.len() + AHEAD <= terms.tpdu_size as usize && buffer.offset() as usize >= AHEAD + BELOW;
            if acknowledges && has_room {
                acknowledges = false;
                let mut octets = [0; AHEAD];
                let mut to = Writer::new(&mut octets);
                let ak = connection.next_acknowledge(config, promises, wheel, index, now);
                connection.receiving.carried = now;
                if ak.emit(terms.format, &mut to).is_err() {
                    unreachable!("one that says nothing of what came out of order is no longer");
                }
                let ahead = to.len();
                arena.push(&mut buffer, ahead).copy_from_slice(to.written());
                slots.at(frame).ahead = ahead as u8;
                counters.acknowledges_sent += 1;
                counters.acknowledges_with_data += 1;
            }
            out.down(Request::Unitdata { to: peer, buffer });
        }
        await_acknowledge(config, wheel, index, connection, now);
        stop
    }

    /// An AK: what it acknowledges is let go of, what it grants is used (X.224 §12.2.3.6 to §12.2.3.8).
    pub(super) fn acknowledge(&mut self, index: u32, ak: &Acknowledge<'_>, runs: &Runs, now: Time, out: &mut Outbox) {
        self.counters.acknowledges_received += 1;
        self.heard(index, now);
        self.opened(index, now, out);
        let Transport { connections, slots, config, counters, wheel, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        if connection.state != State::Open {
            return;
        }
        let (space, shares) = (connection.terms.space(), connection.shares(config));
        // T1 is long enough where something was sent once and has come within it.
        let in_doubt = connection.sending.backoff > 0 || connection.sending.doubts > 0;
        let in_time = if in_doubt { t1(config, connection, 0) } else { 0 };
        let way = ways.at(connection.way);
        let sending = &mut connection.sending;
        let acknowledged = space.distance(sending.lower_edge, ak.number);
        let under_way = space.distance(sending.lower_edge, sending.next);
        let upper_edge = space.add(ak.number, u32::from(ak.credit).min(space.window()));
        // The network keeps them in order, and neither edge of the window may go back (X.224 §10.2.4.2).
        let lowers = acknowledged > under_way || space.is_before(upper_edge, sending.upper_edge);
        if connection.terms.class == Class::Two && lowers {
            counters.unexpected += 1;
            return self.release(index, Reason::PROTOCOL_ERROR, now, out);
        }
        if acknowledged > under_way {
            // An old one, or one for what was never sent.
            return;
        }
        let subsequence = ak.subsequence.unwrap_or(0);
        let grants = space.is_before(sending.upper_edge, upper_edge);
        if acknowledged == 0 && subsequence < sending.subsequence {
            return;
        }
        sending.closed |= ak.credit == 0;
        let is_new = acknowledged > 0 || grants || subsequence > sending.subsequence;
        if grants && core::mem::replace(&mut sending.closed, false) && connection.terms.class == Class::Four {
            // The window was closed: its opening may not get lost, and is confirmed.
            connection.receiving.confirms =
                Some(Confirmation { lower_edge: ak.number, subsequence, credit: ak.credit });
        }
        if acknowledged > 0 || subsequence > sending.subsequence {
            (sending.upper_edge, sending.subsequence) = (upper_edge, subsequence);
        } else if grants {
            sending.upper_edge = upper_edge;
        }
        let (mut sample, mut is_prompt, mut is_timely, mut late, mut fresh) = (None, true, false, 0, 0);
        let least = sending.round_trip.least.into();
        sending.lower_edge = ak.number;
        for _ in 0..acknowledged {
            let Some(frame) = slots.pop_front(&mut sending.retained) else { break };
            let slot = slots.at(frame);
            // Of the last one, which has brought this AK about; but not where it, or one before it, came late (Karn).
            is_prompt &= slot.is == Is::Retained { again: 0, selected: false };
            is_timely |= slot.is_sent_once() && now.since(slot.sent) <= in_time;
            fresh += u32::from(slot.is_under_way());
            sample = Some(now.since(slot.sent)).filter(|_| is_prompt);
            late += u64::from(slot.came_late(now, least));
            slots.let_go(frame, Fate::Acknowledged, out);
        }
        if acknowledged > 0 {
            (sending.attempts, sending.duplicates) = (0, 0);
            if core::mem::take(&mut sending.told) {
                out.up(Indication::Resumed { cep: Cep(index) });
            }
            // Once it is reached: numbers come again.
            let is_reached = |it: &mut u32| !space.is_before(sending.lower_edge, *it);
            sending.recovering.take_if(is_reached);
            if let Some(sample) = sample {
                sending.round_trip.sample(sample);
                is_timely = true;
            }
            let least = u64::from(sending.round_trip.least);
            let measured = sample.map(|round_trip| Sample { round_trip, least, target: least + config.times.slack });
            if shares && way.acknowledged(index, [acknowledged, fresh], measured, now) {
                // The way has become longer.
                sending.round_trip.least = sample.and_then(|it| u32::try_from(it).ok()).unwrap_or(u32::MAX);
            }
            connection.timers.retransmission = Deadline::NONE;
            sending.waits = false;
        } else if !is_new && under_way > 0 {
            sending.duplicates = sending.duplicates.saturating_add(1);
        }
        let (mut beyond, mut news) = (0, 0);
        if connection.terms.selective {
            let mut frame = sending.retained.head;
            for (first, last) in runs.iter() {
                // Both in order: one pass over the list.
                while frame != NONE {
                    let slot = slots.at(frame);
                    if space.is_before(last, slot.number) {
                        break;
                    }
                    if !space.is_before(slot.number, first) {
                        late += u64::from(slot.came_late(now, least));
                        is_timely |= slot.is_sent_once() && now.since(slot.sent) <= in_time;
                        if let Is::Retained { selected, .. } = &mut slot.is {
                            news += u32::from(!core::mem::replace(selected, true));
                            beyond += 1;
                        }
                    }
                    frame = slot.next;
                }
            }
        }
        if is_timely {
            (sending.backoff, sending.doubts) = (0, 0);
        } else if acknowledged > 0 && sending.doubts < DOUBTS {
            (sending.backoff, sending.doubts) = (0, sending.doubts + 1);
        }
        if shares {
            way.arrived(news);
        }
        // While something is sent again, an AK that says nothing new answers what has come twice.
        late += u64::from(connection.terms.selective && !is_new && news == 0 && sending.recovering.is_some());
        if late > 0 {
            counters.data_late += late;
            way.late();
            let most = u32::try_from(config.times.t1_least).unwrap_or(u32::MAX);
            let least = (sending.round_trip.least / 4).min(most);
            sending.tolerance = sending.tolerance.saturating_mul(2).clamp(least, most);
        }
        if let Some(marks) = ak.marks.filter(|_| shares && connection.terms.marks) {
            // AKs may overtake each other: one that says fewer is older.
            let more = marks.wrapping_sub(sending.marks);
            if (1..128).contains(&more) {
                sending.marks = marks;
                counters.marks += u64::from(more);
                way.marked(now);
            }
        }
        let hole = beyond >= u32::from(DUPLICATES);
        let lost = hole || sending.duplicates >= DUPLICATES;
        if lost && sending.recovering.is_none() && sending.may_send_again(space, slots) {
            let oldest = slots.at(sending.retained.head).sent;
            let due = oldest.after(u64::from(sending.round_trip.smoothed) + u64::from(sending.tolerance));
            if sending.tolerance > 0 && now < due {
                sending.waits = true;
                connection.timers.retransmission = Deadline::at(due);
                wheel.set(index, due);
            } else {
                self.recover(index, hole, now, out);
            }
        } else if acknowledged > 0 && sending.recovering.is_some() {
            self.send_again(index, hole, now, out);
        }
        let Transport { connections, config, wheel, .. } = self;
        if let Some(connection) = connections[index as usize].as_mut() {
            await_acknowledge(config, wheel, index, connection, now);
            let opening = &mut connection.receiving.opening;
            let granted = connection.receiving.granted;
            if let Some(it) = ak.confirmation
                && space.add(it.lower_edge, it.credit.into()) == granted
            {
                *opening = Opening::None;
            }
            if connection.receiving.confirms.is_some() {
                self.owe(index);
            }
        }
        self.send_data(index, now, out);
    }

    /// Something is taken for lost: it is sent again, and the window is cut.
    fn recover(&mut self, index: u32, holes: bool, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let sending = &mut connection.sending;
        (sending.recovering, sending.duplicates, sending.waits) = (Some(sending.next), 0, false);
        // Where something is late time and again, it shows time and again.
        sending.tolerance -= sending.tolerance.div_ceil(16);
        if !sending.retained.is_empty() {
            ways.at(connection.way).lost(slots.at(sending.retained.head).sent, now);
        }
        self.send_again(index, holes, now, out);
    }

    /// Sends again what is missing: the first DT that is retained, or with `holes` each before one that was selected.
    fn send_again(&mut self, index: u32, holes: bool, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, counters, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let space = connection.terms.space();
        // What lies before so many that were selected is lost; what lies between them may be late.
        let mut last = NONE;
        if holes {
            let mut frame = connection.sending.retained.head;
            let mut selected = Selected::default();
            while frame != NONE {
                let slot = slots.at(frame);
                if let Is::Retained { selected: true, .. } = slot.is {
                    last = selected.push(frame).unwrap_or(last);
                }
                frame = slot.next;
            }
        }
        let mut frame = connection.sending.retained.head;
        while frame != NONE && frame != last {
            let slot = slots.at(frame);
            let next = slot.next;
            if !connection.sending.is_granted(space, slot.number) {
                break;
            }
            if let Is::Retained { again, selected } = &mut slot.is
                // Without holes it is the one that the other end waits for, whatever it has said of it before.
                && (!holes || !*selected && *again == 0)
                // Still lent below: it is on its way, and its header must not be touched.
                && let Some(buffer) = slot.buffer.take()
            {
                *again = again.saturating_add(1);
                slot.sent = now;
                counters.data_sent_again += 1;
                out.down(Request::Unitdata { to: connection.peer, buffer });
            }
            if !holes {
                break;
            }
            frame = next;
        }
    }

    /// T1: the first DT that is retained goes again, and the connection is given up when that was tried for I, as it is when nothing
    /// is heard for as long (X.224 §12.2.1.2 has N times T1 for it).
    pub(super) fn retransmission_ran_out(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let space = connection.terms.space();
        let sending = &mut connection.sending;
        let waits = core::mem::take(&mut sending.waits);
        let first = sending.may_send_again(space, slots).then_some(sending.retained.head);
        let expedited = sending.expedited;
        // Where the credit was taken back, the other end says when it is there again, or is silent for I.
        if first.is_none() && expedited.is_none() {
            return;
        }
        if let Some(head) = first {
            // Whatever keeps it: the other end, the way there, or a link that does not let go of it.
            let since = if sending.attempts == 0 { slots.at(head).sent } else { sending.stalled };
            if !sending.told && now.since(since) >= self.config.times.stall {
                sending.told = true;
                out.up(Indication::Stalled { cep: Cep(index) });
            }
        }
        // What is still lent below is on its way: it is not sent again, and that is no attempt.
        if ![first, expedited].into_iter().flatten().any(|frame| slots.at(frame).buffer.is_some()) {
            let deadline = now.after(t1(&self.config, connection, PATIENCE));
            connection.timers.retransmission = Deadline::at(deadline);
            return;
        }
        if waits {
            let selective = connection.terms.selective;
            self.recover(index, selective, now, out);
            let Transport { connections, config, wheel, .. } = self;
            if let Some(connection) = connections[index as usize].as_mut() {
                await_acknowledge(config, wheel, index, connection, now);
            }
            return;
        }
        if sending.attempts == 0 {
            sending.stalled = now;
        }
        sending.attempts = sending.attempts.saturating_add(1);
        sending.backoff = sending.backoff.saturating_add(1);
        // The limit is a time and not a number of attempts: with short round trips, N attempts are over while a switch
        // still learns another way. An ED may wait for a user that reads nothing, while the other end is not silent.
        if first.is_some() && now.since(sending.stalled) >= self.config.times.i {
            return self.give_up(index, now, out);
        }
        let sent = first.map_or(sending.stalled, |head| slots.at(head).sent);
        ways.at(connection.way).silent(index, sent, now);
        sending.recovering = Some(sending.next);
        let deadline = now.after(t1(&self.config, connection, connection.sending.backoff));
        connection.timers.retransmission = Deadline::at(deadline);
        self.send_again(index, false, now, out);
        self.send_expedited_again(index, out);
    }
}

/// Puts the header of a DT in front of its user data: octets of it.
#[inline]
fn put_header(arena: &Arena, buffer: &mut Buffer, data: &Data, terms: Terms) -> u8 {
    let (sums, len) = match terms.checksum {
        true => (Sums::of(arena.octets(buffer)), buffer.len()),
        false => (Sums::default(), 0),
    };
    let header_len = data.header_len(terms.format);
    let header = arena.push(buffer, header_len);
    if data.emit(terms.format, sums, len, &mut Writer::new(header)).is_err() {
        unreachable!("a header is as long as it says");
    }
    header_len as u8
}

impl Sending {
    /// DTs that the other end's credit allows to be sent now.
    pub(super) fn credit(&self, space: Space) -> u32 {
        let credit = space.distance(self.next, self.upper_edge);
        // Beyond half the space it is negative: the credit was taken back.
        if credit > space.window() { 0 } else { credit }
    }

    /// Whether the other end's credit, which it may reduce, covers this number.
    fn is_granted(&self, space: Space, number: u32) -> bool {
        space.is_before(number, self.upper_edge)
    }

    /// Whether a DT is retained and may be sent again: never beyond the window.
    fn may_send_again(&self, space: Space, slots: &mut Slots) -> bool {
        !self.retained.is_empty() && self.is_granted(space, slots.at(self.retained.head).number)
    }
}

/// The frames that were selected last.
#[derive(Default)]
struct Selected {
    last: [Option<u32>; DUPLICATES as usize - 1],
}

impl Selected {
    /// Another one; the one that has as many behind it as show a loss.
    fn push(&mut self, frame: u32) -> Option<u32> {
        let oldest = self.last[0];
        self.last.rotate_left(1);
        self.last[DUPLICATES as usize - 2] = Some(frame);
        oldest
    }
}

/// T1 runs while something that was sent is not acknowledged (X.224 §12.2.1.2).
#[inline]
pub(super) fn await_acknowledge(
    config: &Config,
    wheel: &mut Wheel,
    index: u32,
    connection: &mut Connection,
    now: Time,
) {
    let waits = !connection.sending.retained.is_empty() || connection.sending.expedited.is_some();
    if waits && connection.timers.retransmission.is_none() && connection.terms.class == Class::Four {
        let deadline = now.after(t1(config, connection, connection.sending.backoff));
        connection.timers.retransmission = Deadline::at(deadline);
        wheel.set(index, deadline);
    }
}

/// T1: from the round trip where it is known, twice as long with each time that it was too short.
fn t1(config: &Config, connection: &Connection, backoff: u8) -> u64 {
    let round_trip = &connection.sending.round_trip;
    let once = match round_trip.smoothed {
        0 => config.times.t1,
        smoothed => {
            let smoothed = u64::from(smoothed);
            let measured = smoothed + 4 * u64::from(round_trip.deviation);
            // In a wide network it changes as others come and go.
            let measured = if smoothed < WIDE { measured } else { measured.max(2 * smoothed) };
            // The other end may put its AK off.
            (measured + connection.terms.acknowledge_time(config.times.al)).max(config.times.t1_least)
        }
    };
    once << backoff.min(PATIENCE)
}

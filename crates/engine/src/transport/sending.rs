//! DTs that go: numbering, credit, turns, retention (X.224 §12.2.3.3 to §12.2.3.7). `acknowledgement` has what the AKs
//! for them say, `retransmission` what is sent again.

use super::connection::{Connection, Deadline, Sending, State, Terms};
use super::number::Space;
use super::slots::{Is, Slots};
use super::ways::Room;
use super::wheel::Wheel;
use super::{Config, Transport};
use crate::layer::Outbox;
use crate::service::{Cep, Fate, Indication, Request, Time};
use crate::wire::Writer;
use crate::wire::tpdu::{Acknowledge, Class, Data, Format};
use underpass_checksum::fletcher::Sums;
use underpass_link::arena::{Arena, Buffer};

/// Octets of the longest AK that goes ahead of a DT in one NSDU (X.224 §6.4): with checksum, confirmation and marks.
pub(super) const AHEAD: usize = 10 + 4 + 10 + 3;

/// Octets of headroom that are left for the layers below.
const BELOW: usize = 64;

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
            let credit = sending.credit(space);
            if credit == 0 {
                break;
            }
            if shares && way.room(now) != Room::Now {
                stop = Stop::NoRoom;
                break;
            }
            if IN_TURN && !sending.spend(slots, terms) {
                stop = Stop::Turn;
                break;
            }
            let under_way = space.distance(sending.lower_edge, sending.next);
            // The last DT that may be sent asks for the next credit, or for an AK where half the credit will never
            // come.
            let is_last = shares && way.is_last() && under_way < (credit + under_way) / 2;
            let Some((frame, number)) = sending.next_unsent(space, slots) else { break };
            let slot = slots.at(frame);
            let Some(mut buffer) = slot.buffer.take() else { continue };
            let data = Data {
                dst_ref,
                number,
                eot: slot.end,
                roa: terms.roa && (credit == 1 || is_last),
                checksum: terms.checksum,
                expedited: None,
            };
            (slot.number, slot.sent, slot.header_len) = (number, now, put_header(arena, &mut buffer, &data, terms));
            buffer.let_be_marked(terms.marks);
            sending.retain(slots, frame, terms.class);
            if shares {
                way.sent(now);
            }
            counters.data_sent += 1;
            if acknowledges && has_room_ahead(&buffer, terms) {
                acknowledges = false;
                let ak = connection.next_acknowledge(config, promises, wheel, index, now);
                connection.receiving.carried = now;
                slots.at(frame).ahead = put_acknowledge(arena, &mut buffer, &ak, terms.format);
                counters.acknowledges_sent += 1;
                counters.acknowledges_with_data += 1;
            }
            out.down(Request::Unitdata { to: peer, buffer });
        }
        await_acknowledge(config, wheel, index, connection, now);
        stop
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

/// Whether an AK may go ahead of this DT.
#[inline]
fn has_room_ahead(buffer: &Buffer, terms: Terms) -> bool {
    buffer.len() + AHEAD <= terms.tpdu_size as usize && buffer.offset() as usize >= AHEAD + BELOW
}

/// Puts an AK ahead of a DT: octets of it.
#[inline]
fn put_acknowledge(arena: &Arena, buffer: &mut Buffer, ak: &Acknowledge<'_>, format: Format) -> u8 {
    let mut octets = [0; AHEAD];
    let mut to = Writer::new(&mut octets);
    if ak.emit(format, &mut to).is_err() {
        unreachable!("one that says nothing of what came out of order is no longer");
    }
    let ahead = to.len();
    arena.push(buffer, ahead).copy_from_slice(to.written());
    ahead as u8
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
    let Connection { sending, timers, terms, .. } = connection;
    let waits = !sending.retained.is_empty() || sending.expedited.is_some();
    if waits && timers.retransmission.is_none() && terms.class == Class::Four {
        let theirs = terms.acknowledge_time(config.times.al);
        let deadline = now.after(sending.timeout.current(&config.times, theirs));
        timers.retransmission = Deadline::at(deadline);
        wheel.set(index, deadline);
    }
}

impl Sending {
    /// DTs that the other end's credit allows to be sent now.
    #[inline]
    pub(super) fn credit(&self, space: Space) -> u32 {
        let credit = space.distance(self.next, self.upper_edge);
        // Beyond half the space it is negative: the credit was taken back.
        if credit > space.window() { 0 } else { credit }
    }

    /// Takes the octets of the next DT off those that may be sent in this turn; false where they are more.
    #[inline]
    fn spend(&mut self, slots: &mut Slots, terms: Terms) -> bool {
        let octets = slots.at(self.unsent.head).buffer.as_ref().map_or(0, |it| it.len() as u32);
        let rest = self.deficit.checked_sub(octets + terms.header_len() as u32);
        self.deficit = rest.unwrap_or(self.deficit);
        rest.is_some()
    }

    /// The frame of the next DT, which waits no more, and its TPDU-NR.
    #[inline]
    fn next_unsent(&mut self, space: Space, slots: &mut Slots) -> Option<(u32, u32)> {
        let frame = slots.pop_front(&mut self.unsent)?;
        self.waiting -= 1;
        let number = self.next;
        self.next = space.add(number, 1);
        Some((frame, number))
    }

    /// A DT is sent: it is kept until it is acknowledged, if the network may lose it.
    #[inline]
    fn retain(&mut self, slots: &mut Slots, frame: u32, class: Class) {
        if class == Class::Four {
            slots.at(frame).is = Is::Retained { again: 0, selected: false, given_up: false };
            slots.push_back(&mut self.retained, frame);
        } else {
            slots.at(frame).is = Is::Leaving(Fate::Sent);
        }
    }
}

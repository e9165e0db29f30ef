//! Expedited data, which overtakes what waits for credit (X.224 §6.11, §12.2.3.10): one ED TPDU at a time.

use super::Transport;
use super::connection::{Deadline, State};
use super::sending::await_acknowledge;
use super::slots::Is;
use crate::layer::Outbox;
use crate::service::{Cep, Fate, Indication, Request, Time};
use crate::wire::Writer;
use crate::wire::tpdu::{Class, ExpeditedAcknowledge, ExpeditedData, Reason, Tpdu};
use underpass_link::arena::Buffer;

/// Octets of the longest header of an ED.
const HEADER: usize = 12;

impl Transport {
    pub(super) fn expedited_request(&mut self, cep: Cep, buffer: Buffer, now: Time, out: &mut Outbox) {
        let queue = self.config.queue;
        let refused = |buffer| Indication::Complete { buffer, cep: Some(cep), fate: Fate::Refused };
        let Some(connection) = self.connection(cep) else { return out.up(refused(buffer)) };
        let may = matches!(connection.state, State::Open | State::AwaitsAcknowledge) && connection.terms.expedited;
        let may = may && connection.sending.expedited_waiting < queue;
        if !may || !(1..=ExpeditedData::MOST).contains(&buffer.len()) {
            return out.up(refused(buffer));
        }
        let frame = buffer.frame();
        self.is_read(frame, now);
        let slot = self.slots.at(frame);
        (slot.is, slot.buffer, slot.connection) = (Is::Expedited, Some(buffer), cep.0);
        let Some(connection) = self.connections[cep.0 as usize].as_mut() else { return };
        self.slots.push_back(&mut connection.sending.expedited_unsent, frame);
        connection.sending.expedited_waiting += 1;
        self.send_expedited(cep.0, now, out);
    }

    /// Sends the next ED, if none is under way.
    pub(super) fn send_expedited(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, config, arena, wheel, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let terms = connection.terms;
        let sending = &mut connection.sending;
        if connection.state != State::Open || sending.expedited.is_some() {
            return;
        }
        let Some(frame) = slots.pop_front(&mut sending.expedited_unsent) else { return };
        sending.expedited_waiting -= 1;
        let slot = slots.at(frame);
        let Some(mut buffer) = slot.buffer.take() else { return };
        let number = sending.expedited_next;
        sending.expedited_next = terms.space().add(number, 1);
        let mut octets = [0; ExpeditedData::MOST];
        let user_data = &mut octets[..buffer.len()];
        user_data.copy_from_slice(arena.octets(&buffer));
        let ed = ExpeditedData { dst_ref: connection.dst_ref, number, checksum: terms.checksum, user_data };
        let mut whole = [0; HEADER + ExpeditedData::MOST];
        let mut to = Writer::new(&mut whole);
        if ed.emit(terms.format, &mut to).is_err() {
            unreachable!("it is as long as an ED may be");
        }
        let header_len = to.len() - buffer.len();
        arena.push(&mut buffer, header_len).copy_from_slice(&to.written()[..header_len]);
        (slot.number, slot.sent, slot.header_len) = (number, now, header_len as u8);
        sending.expedited = Some(frame);
        await_acknowledge(config, wheel, index, connection, now);
        out.down(Request::Unitdata { to: connection.peer, buffer });
    }

    /// T1 has run out.
    pub(super) fn send_expedited_again(&mut self, index: u32, out: &mut Outbox) {
        let Some(connection) = self.connections[index as usize].as_ref() else { return };
        if let Some(frame) = connection.sending.expedited
            && let Some(buffer) = self.slots.at(frame).buffer.take()
        {
            out.down(Request::Unitdata { to: connection.peer, buffer });
        }
    }

    /// An ED: `buffer` is its user data.
    pub(super) fn expedited(&mut self, index: u32, number: u32, buffer: Buffer, now: Time, out: &mut Outbox) {
        self.heard(index, now);
        self.opened(index, now, out);
        let Transport { connections, slots, config, counters, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else {
            return out.down(Request::Return { buffer });
        };
        let (terms, space) = (connection.terms, connection.terms.space());
        let receiving = &mut connection.receiving;
        let is_next =
            number == receiving.expected_expedited && terms.takes_expedited(config.credit, receiving.held_expedited);
        // An ED that came before is acknowledged again: its EA was lost.
        let is_old = number == space.before(receiving.expected_expedited);
        // In class 2 nothing comes twice, and a sender that awaits an EA sends no other ED (X.224 §10.2.5).
        let is_error = !terms.expedited || !is_next && (!is_old || terms.class == Class::Two);
        if connection.state != State::Open || is_error {
            counters.unexpected += 1;
            out.down(Request::Return { buffer });
            if connection.state == State::Open && terms.class == Class::Two {
                self.release(index, Reason::PROTOCOL_ERROR, now, out);
            }
            return;
        }
        if is_next {
            receiving.expected_expedited = space.add(number, 1);
            receiving.held_expedited += 1;
            let slot = slots.at(buffer.frame());
            (slot.is, slot.connection, slot.serial) = (Is::GivenExpedited, index, connection.serial);
            out.up(Indication::Expedited { cep: Cep(index), buffer });
        } else {
            out.down(Request::Return { buffer });
        }
        self.owe_expedited(index);
    }

    /// The last ED that was taken is acknowledged, unless the user keeps too many. The other end waits for that, and in
    /// class 4 not for long.
    pub(super) fn owe_expedited(&mut self, index: u32) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let receiving = &mut connection.receiving;
        if !connection.terms.takes_expedited(self.config.credit, receiving.held_expedited) {
            return;
        }
        receiving.owes_expedited = true;
        if !core::mem::replace(&mut receiving.is_owing, true) {
            self.owing.push_back(index);
        }
    }

    /// An EA for the last ED that was taken, if one is owed; false where no buffer is left for it.
    pub(super) fn send_expedited_acknowledge(&mut self, index: u32, out: &mut Outbox) -> bool {
        let Some(connection) = self.connections[index as usize].as_ref().filter(|it| it.receiving.owes_expedited)
        else {
            return true;
        };
        let terms = connection.terms;
        let number = terms.space().before(connection.receiving.expected_expedited);
        let ea = ExpeditedAcknowledge { dst_ref: connection.dst_ref, number, checksum: terms.checksum };
        let sent = self.send_control(connection.peer, &Tpdu::Ea(ea), terms.format, out);
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.receiving.owes_expedited = !sent;
        }
        sent
    }

    /// An EA: the ED has arrived, and what waits behind it may go.
    pub(super) fn expedited_acknowledge(&mut self, index: u32, number: u32, now: Time, out: &mut Outbox) {
        self.heard(index, now);
        self.opened(index, now, out);
        let Transport { connections, slots, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let Some(frame) = connection.sending.expedited.take_if(|it| slots.at(*it).number == number) else {
            return;
        };
        connection.sending.timeout.attempts = 0;
        connection.timers.retransmission = Deadline::NONE;
        slots.let_go(frame, Fate::Acknowledged, out);
        self.send_expedited(index, now, out);
        let Transport { connections, config, wheel, .. } = self;
        if let Some(connection) = connections[index as usize].as_mut() {
            await_acknowledge(config, wheel, index, connection, now);
        }
        self.send_data(index, now, out);
    }
}

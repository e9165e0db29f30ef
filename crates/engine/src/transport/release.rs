//! How a connection ends (X.224 §6.7, §12.2.4), and what becomes of its buffers.

use super::Transport;
use super::connection::{Connection, Setup, SizeIn, State, Timers};
use super::slots::Is;
use crate::layer::Outbox;
use crate::service::{Cep, Details, Fate, Indication, Peer, Request, Time};
use crate::wire::tpdu::{DisconnectConfirm, DisconnectRequest, Format, Reason, Tpdu};
use std::collections::hash_map::Entry;

impl Transport {
    pub(super) fn disconnect_request(&mut self, cep: Cep, reason: Reason, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connection(cep) else { return };
        let (peer, dst_ref) = (connection.peer, connection.dst_ref);
        match connection.state {
            State::Closing => return,
            // Nothing of it was said, and nobody waits for anything: the other end asks again if this gets lost (§6.6).
            State::AwaitsResponse => {
                if let Some(connection) = self.remove(cep.0) {
                    self.references.release(peer, connection.src_ref);
                    self.vacant.push(cep.0);
                    self.settled(peer);
                }
                return self.refuse(peer, dst_ref, 0, reason, now, out);
            }
            State::AwaitsAcknowledge => self.settled(peer),
            State::AwaitsConfirm | State::Open => {}
        }
        let Some(connection) = self.connection(cep) else { return };
        let details = Details::default();
        connection.setup =
            Some(Box::new(Setup { tag: 0, details, credit: 0, size: SizeIn::Nothing, reason, sent: false }));
        connection.state = State::Closing;
        connection.sending.timeout.attempts = 0;
        connection.timers = Timers::NONE;
        self.let_go(cep.0, out);
        self.send_setup(cep.0, now, out);
    }

    /// The connection is released from here, and the user told so.
    pub(super) fn release(&mut self, index: u32, reason: Reason, now: Time, out: &mut Outbox) {
        self.disconnect_request(Cep(index), reason, now, out);
        out.up(Indication::Disconnect { cep: Cep(index), reason });
    }

    pub(super) fn disconnect_indication(
        &mut self,
        from: Peer,
        index: Option<u32>,
        dr: &DisconnectRequest<'_>,
        now: Time,
        out: &mut Outbox,
    ) {
        let dc = Tpdu::Dc(DisconnectConfirm { dst_ref: dr.src_ref, src_ref: dr.dst_ref, checksum: dr.checksum });
        // The connection that this end has asked for, if no answer has come yet.
        let unanswered = || {
            let index = *self.requested.get(&(from, dr.src_ref)).filter(|_| dr.dst_ref == 0)?;
            self.connections[index as usize].as_ref().filter(|it| it.is_pending()).map(|_| index)
        };
        if let Some(index) = index.or_else(unanswered)
            && let Some(connection) = self.connections[index as usize].as_ref()
            && (connection.dst_ref == dr.src_ref || connection.state == State::AwaitsConfirm)
        {
            let (was, tag) = (connection.state, connection.setup.as_deref().map_or(0, |it| it.tag));
            self.let_go(index, out);
            self.close(index, now);
            match was {
                State::AwaitsConfirm => out.up(Indication::Refused { tag, reason: dr.reason }),
                // Both at once: either counts as the other's confirmation.
                State::Closing => return,
                _ => out.up(Indication::Disconnect { cep: Cep(index), reason: dr.reason }),
            }
            if dr.src_ref != 0 {
                self.send_control(from, &dc, Format::Normal, out);
            }
            return;
        }
        self.counters.unknown_reference += 1;
        if dr.src_ref != 0 {
            self.answer(from, &dc, now, out);
        }
    }

    /// The other end has confirmed the release.
    pub(super) fn released(&mut self, index: u32, dc: &DisconnectConfirm, now: Time) {
        let waits = |it: &Connection| it.state == State::Closing && it.dst_ref == dc.src_ref;
        if self.connections[index as usize].as_ref().is_some_and(waits) {
            self.close(index, now);
        } else {
            self.counters.unexpected += 1;
        }
    }

    /// The other end does not understand something that was sent.
    pub(super) fn rejected(&mut self, index: u32, now: Time, out: &mut Outbox) {
        match self.connections[index as usize].as_ref().map(|it| it.state) {
            Some(State::Open | State::AwaitsAcknowledge) => self.release(index, Reason::PROTOCOL_ERROR, now, out),
            Some(State::AwaitsConfirm | State::Closing) => self.give_up(index, now, out),
            _ => self.counters.unexpected += 1,
        }
    }

    /// Nothing more is expected of the other end.
    pub(super) fn give_up(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connections[index as usize].as_ref() else { return };
        let (state, tag) = (connection.state, connection.setup.as_deref().map_or(0, |it| it.tag));
        self.counters.given_up += 1;
        match state {
            State::AwaitsConfirm => {
                out.up(Indication::Refused { tag, reason: Reason::UNSPECIFIED });
                // The CR may have come: the other end drops what it has begun, so that it takes no later CR with this
                // reference for a copy of this one.
                return self.disconnect_request(Cep(index), Reason::UNSPECIFIED, now, out);
            }
            State::Closing => {}
            // It may still hear.
            _ => return self.release(index, Reason::UNSPECIFIED, now, out),
        }
        self.close(index, now);
    }

    /// Buffers of the connection go back to whose they are.
    pub(super) fn let_go(&mut self, index: u32, out: &mut Outbox) {
        let Transport { connections, slots, config, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let sending = &mut connection.sending;
        if let Some(frame) = sending.expedited.take() {
            slots.push_back(&mut sending.retained, frame);
        }
        (sending.waiting, sending.expedited_waiting) = (0, 0);
        for list in [&mut sending.unsent, &mut sending.expedited_unsent] {
            while let Some(frame) = slots.pop_front(list) {
                // It has no header yet.
                slots.at(frame).header_len = 0;
                slots.let_go(frame, Fate::Abandoned, out);
            }
        }
        let mut under_way = 0;
        while let Some(frame) = slots.pop_front(&mut connection.sending.retained) {
            under_way += u32::from(slots.at(frame).is_under_way());
            slots.let_go(frame, Fate::Abandoned, out);
        }
        if connection.shares(config) {
            ways.leave(connection.way, index, under_way);
            connection.sending.is_waiting = false;
        }
        while let Some(frame) = slots.pop_front(&mut connection.receiving.early) {
            let slot = slots.at(frame);
            slot.is = Is::Elsewhere;
            if let Some(buffer) = slot.buffer.take() {
                out.down(Request::Return { buffer });
            }
        }
    }

    /// The connection is gone; its reference is frozen (§6.18), and its number for as long: its user may not know yet.
    pub(super) fn close(&mut self, index: u32, now: Time) {
        if let Some(connection) = self.remove(index) {
            let until = now.after(self.config.times.l);
            let (peer, src_ref, was_pending) = (connection.peer, connection.src_ref, connection.is_pending());
            self.references.freeze(peer, src_ref, index, was_pending, until);
        }
    }

    /// A connection that a peer has asked for is open, or was refused by the user.
    pub(super) fn settled(&mut self, peer: Peer) {
        self.pending -= 1;
        self.references.settled(peer);
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Connection> {
        let connection = self.connections[index as usize].take()?;
        let receiving = &connection.receiving;
        if receiving.is_short {
            let Transport { connections, promises, .. } = self;
            let is = |it: &Connection, serial| it.serial == serial && it.receiving.is_short;
            promises.end(|(index, serial)| connections[index as usize].as_ref().is_some_and(|it| is(it, serial)));
        }
        // What its user keeps is promised until that has read it.
        let granted = connection.terms.space().distance(receiving.expected, receiving.granted);
        let promised = granted + u32::from(receiving.has_turn) - u32::from(receiving.is_unpromised);
        self.take_back_promises(promised);
        if let Entry::Occupied(it) = self.requested.entry((connection.peer, connection.dst_ref))
            && *it.get() == index
        {
            it.remove();
        }
        self.wheel.remove(index);
        Some(connection)
    }
}

//! What is missing at the other end is taken for lost and sent again (X.224 §12.2.3.9; after RFC 6675).

use super::Transport;
use super::connection::{Deadline, Sending};
use super::number::Space;
use super::recovery::Phase;
use super::sending::await_acknowledge;
use super::slots::{Is, List, NONE, Slots};
use crate::layer::Outbox;
use crate::service::{Cep, Indication, Request, Time};

/// AKs that say nothing new, or DTs that were acknowledged behind a gap, after which what is missing is taken for lost.
pub(super) const DUPLICATES: u8 = 3;

impl Transport {
    /// DTs are missing at the other end: they are awaited as long as they may be late, then taken for lost. With
    /// `holes`, enough that were sent after them are there.
    pub(super) fn miss(&mut self, index: u32, holes: bool, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, wheel, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let sending = &mut connection.sending;
        let oldest = slots.at(sending.retained.head).sent;
        let tolerance = sending.recovery.tolerance;
        let due = oldest.after(u64::from(sending.timeout.round_trip.smoothed) + u64::from(tolerance));
        if tolerance > 0 && now < due {
            sending.recovery.phase = Phase::Waiting;
            connection.timers.retransmission = Deadline::at(due);
            wheel.set(index, due);
        } else {
            self.recover(index, holes, now, out);
        }
    }

    /// Something is taken for lost: it is sent again, and the window is cut.
    fn recover(&mut self, index: u32, holes: bool, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let sending = &mut connection.sending;
        sending.recovery.lost(sending.next);
        sending.duplicates = 0;
        if !sending.retained.is_empty() {
            let sent = slots.at(sending.retained.head).sent;
            ways.at(connection.way).lost(&mut sending.recovery.blamed, sent, now);
        }
        self.send_again(index, holes, now, out);
    }

    /// Sends again what is missing: the first DT that is retained, or with `holes` each before a DT that was selected.
    pub(super) fn send_again(&mut self, index: u32, holes: bool, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, counters, ways, config, .. } = self;
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
        // With fewer behind it than that nothing but the first is known to be missing.
        let holes = last != NONE;
        let mut frame = connection.sending.retained.head;
        while frame != NONE && frame != last {
            let slot = slots.at(frame);
            let next = slot.next;
            if !connection.sending.is_granted(space, slot.number) {
                break;
            }
            if let Is::Retained { again, selected, given_up } = &mut slot.is
                // Without holes it is the DT that the other end waits for, whatever it has said of it before.
                && (!holes || !*selected && *again == 0)
                // Still lent below: it is on its way, and its header must not be touched.
                && let Some(buffer) = slot.buffer.take()
            {
                *again = again.saturating_add(1);
                if core::mem::take(given_up) && !*selected && connection.shares(config) {
                    ways.at(connection.way).sent_again();
                }
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

    /// There is credit again for DTs that were sent, which the other end had taken back: it may have thrown them away.
    /// That says nothing of the network.
    pub(super) fn send_uncovered(&mut self, index: u32, holes: bool, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let sending = &mut connection.sending;
        if connection.terms.space().distance(sending.lower_edge, sending.next) > 1 {
            // The others follow as this one is acknowledged.
            sending.recovery.phase = Phase::Recovering(sending.next);
        }
        sending.duplicates = 0;
        connection.timers.retransmission = Deadline::NONE;
        self.send_again(index, holes, now, out);
    }

    /// T1 has run out: the DTs count as under way no more, with the one that has gone again, and leave room for others.
    fn give_up_dts(&mut self, index: u32) {
        let Transport { connections, slots, config, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let given_up = connection.sending.retained.give_up(slots);
        if connection.shares(config) {
            ways.give_up(connection.way, given_up);
        }
    }

    /// T1: the first DT that is retained goes again, and the connection is given up when that was tried for I, as it is
    /// when nothing is heard for as long (X.224 §12.2.1.2 has N times T1 for it).
    pub(super) fn retransmission_ran_out(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, config, ways, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let (terms, space) = (connection.terms, connection.terms.space());
        let theirs = terms.acknowledge_time(config.times.al);
        let sending = &mut connection.sending;
        let waited = sending.recovery.phase == Phase::Waiting;
        if waited {
            sending.recovery.phase = Phase::InOrder;
        }
        let first = sending.may_send_again(space, slots).then_some(sending.retained.head);
        let expedited = sending.expedited;
        // Where the credit was taken back, the other end says when it is there again, or is silent for I. What waits
        // for that takes no part of the window that the connections to a peer share.
        if first.is_none() && expedited.is_none() {
            return self.give_up_dts(index);
        }
        let timeout = &mut sending.timeout;
        if let Some(head) = first {
            // Whatever keeps it: the other end, the way there, or a link that does not let go of it.
            let since = if timeout.attempts == 0 { slots.at(head).sent } else { timeout.stalled };
            if !timeout.told && now.since(since) >= config.times.stall {
                timeout.told = true;
                out.up(Indication::Stalled { cep: Cep(index) });
            }
        }
        // What is still lent below is on its way: it is not sent again, and that is no attempt.
        if ![first, expedited].into_iter().flatten().any(|frame| slots.at(frame).buffer.is_some()) {
            connection.timers.retransmission = Deadline::at(now.after(timeout.longest(&config.times, theirs)));
            return;
        }
        if waited {
            self.recover(index, terms.selective, now, out);
            let Transport { connections, config, wheel, .. } = self;
            if let Some(connection) = connections[index as usize].as_mut() {
                await_acknowledge(config, wheel, index, connection, now);
            }
            return;
        }
        timeout.ran_out(now);
        // The limit is a time and not a number of attempts: with short round trips, N attempts are over while a switch
        // still learns another way. An ED may wait for a user that reads nothing, while the other end is not silent.
        if first.is_some() && now.since(timeout.stalled) >= config.times.i {
            return self.give_up(index, now, out);
        }
        // The window is cut once for all of them, however often T1 runs out for them.
        let sent = first
            .filter(|_| timeout.attempts == 1)
            .map_or(Time(timeout.stalled.0.saturating_sub(1)), |head| slots.at(head).sent);
        ways.at(connection.way).silent(index, &mut sending.recovery.blamed, sent, now);
        connection.timers.retransmission = Deadline::at(now.after(timeout.current(&config.times, theirs)));
        sending.recovery.phase = Phase::Recovering(sending.next);
        self.send_again(index, false, now, out);
        self.give_up_dts(index);
        self.send_expedited_again(index, out);
    }
}

impl Sending {
    /// Whether the other end's credit, which it may reduce, covers this number.
    fn is_granted(&self, space: Space, number: u32) -> bool {
        space.is_before(number, self.upper_edge)
    }

    /// Whether a DT is retained and may be sent again: never beyond the window.
    pub(super) fn may_send_again(&self, space: Space, slots: &mut Slots) -> bool {
        !self.retained.is_empty() && self.is_granted(space, slots.at(self.retained.head).number)
    }
}

impl List {
    /// T1 has run out for these DTs: how many were under way.
    fn give_up(&self, slots: &mut Slots) -> u32 {
        let (mut frame, mut count) = (self.head, 0);
        while frame != NONE {
            let slot = slots.at(frame);
            count += u32::from(slot.is_under_way());
            if let Is::Retained { given_up, .. } = &mut slot.is {
                *given_up = true;
            }
            frame = slot.next;
        }
        count
    }
}

/// The frames that were selected last.
#[derive(Default)]
struct Selected {
    last: [Option<u32>; DUPLICATES as usize - 1],
}

impl Selected {
    /// Adds a frame. Returns the frame that has as many behind it as show a loss.
    fn push(&mut self, frame: u32) -> Option<u32> {
        let oldest = self.last[0];
        self.last.rotate_left(1);
        self.last[DUPLICATES as usize - 2] = Some(frame);
        oldest
    }
}

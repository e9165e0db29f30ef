//! The direction towards here: order, duplicates, acknowledgement and credit (X.224 §12.2.3.5 to §12.2.3.9).

use super::connection::{Connection, Deadline, Opening, Receiving, State, Terms};
use super::number::Space;
use super::promises::{Promises, Short};
use super::sending::AHEAD;
use super::slots::{Is, NONE, Slot, Slots};
use super::wheel::Wheel;
use super::{Config, Transport};
use crate::layer::Outbox;
use crate::service::{Cep, Indication, Request, Time};
use crate::wire::Writer;
use crate::wire::tpdu::{Acknowledge, Class, Data, Reason, Selective};
use underpass_link::arena::Buffer;

/// Octets of an AK at most besides the runs of what came out of order: what an AK that goes ahead may have, the
/// subsequence, and what goes before the runs.
const AROUND: usize = AHEAD + 4 + 2;
/// DTs that an idle connection may begin with.
const IDLE: u32 = 1;
/// Subsequences that are left at least where an idle connection gives back what it was promised: for the AK that says
/// so, an AK that the first DT may not come now, and an AK that it may.
const LEFT: u16 = 3;

impl Transport {
    /// A DT: `buffer` is its user data.
    pub(super) fn data(&mut self, index: u32, dt: &Data, mut buffer: Buffer, now: Time, out: &mut Outbox) {
        self.heard(index, now);
        self.opened(index, now, out);
        let Transport { connections, slots, config, counters, wheel, promises, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else {
            return out.down(Request::Return { buffer });
        };
        let space = connection.terms.space();
        let receiving = &mut connection.receiving;
        receiving.is_idle = false;
        let ahead = space.distance(receiving.expected, dt.number);
        let window = space.distance(receiving.expected, receiving.granted);
        if connection.terms.class == Class::Two && connection.state == State::Open && (ahead > 0 || window == 0) {
            // The network has promised that this cannot be (§12.1).
            out.down(Request::Return { buffer });
            counters.unexpected += 1;
            return self.release(index, Reason::PROTOCOL_ERROR, now, out);
        }
        if !matches!(connection.state, State::Open) || ahead >= window {
            // A duplicate is acknowledged, or its sender would go on (§12.2.3.5).
            if ahead > space.window() {
                counters.data_duplicate += 1
            } else {
                counters.data_outside_window += 1
            }
            out.down(Request::Return { buffer });
            return self.owe(index);
        }
        if receiving.is_unpromised && !receiving.is_promised(promises) {
            // It is sent again when it is this connection's turn.
            receiving.withdraw(space, 0);
            counters.data_outside_window += 1;
            out.down(Request::Return { buffer });
            return self.owe(index);
        }
        if let Opening::Opened(_) = receiving.opening {
            receiving.opening = Opening::None;
        }
        counters.data_received += 1;
        receiving.count_mark(&mut buffer);
        let slot = slots.at(buffer.frame());
        (slot.number, slot.end, slot.connection, slot.serial) = (dt.number, dt.eot, index, connection.serial);
        if ahead > 0 {
            match receiving.keep_early(space, ahead, slots, buffer) {
                Ok(()) => counters.data_early += 1,
                Err(buffer) => {
                    counters.data_duplicate += 1;
                    out.down(Request::Return { buffer });
                }
            }
            return self.owe(index);
        }
        receiving.deliver(space, slot, buffer, out);
        let filled = receiving.deliver_early(space, slots, out);
        // At half the credit (RFC 1008 §8.2.4.1.2).
        let half = (connection.terms.credit(config.credit) / 2).max(2);
        if receiving.unacknowledged >= half || dt.roa || filled || receiving.expected == receiving.granted {
            self.owe(index);
        } else {
            connection.put_off_acknowledge(config, wheel, index, now);
        }
    }

    /// The user has read a buffer: there is room for another one.
    pub(super) fn returned(&mut self, buffer: Buffer, now: Time, out: &mut Outbox) {
        self.is_read(buffer.frame(), now);
        out.down(Request::Return { buffer });
    }

    /// The user keeps a frame no more that it was given, be it given back or lent to send what it holds: there is room
    /// for another one.
    pub(super) fn is_read(&mut self, frame: u32, now: Time) {
        let slot = self.slots.at(frame);
        let (is, index, serial) = (slot.is, slot.connection, slot.serial);
        slot.is = Is::Elsewhere;
        if !matches!(is, Is::Given | Is::GivenExpedited) {
            return;
        }
        if is == Is::Given {
            self.take_back_promises(1);
        }
        let Transport { connections, config, wheel, .. } = self;
        let Some(connection) = connections.get_mut(index as usize).and_then(Option::as_mut) else { return };
        if connection.serial != serial {
            return;
        }
        let (terms, space) = (connection.terms, connection.terms.space());
        let receiving = &mut connection.receiving;
        if is == Is::GivenExpedited {
            let waited = !terms.takes_expedited(config.credit, receiving.held_expedited);
            receiving.held_expedited = receiving.held_expedited.saturating_sub(1);
            return if waited {
                self.owe_expedited(index)
            };
        }
        receiving.held = receiving.held.saturating_sub(1);
        if receiving.is_idle {
            return;
        }
        // The window is said to be larger when it has grown by half of the credit, or after AL where it is closed: the
        // user may keep more than the other half.
        let left = space.distance(receiving.expected, receiving.granted);
        let credit = terms.credit(config.credit);
        let room = credit.saturating_sub(receiving.held);
        if room >= left + (credit / 2).max(1) {
            self.owe(index);
        } else if left == 0 && room > 0 {
            connection.put_off_acknowledge(config, wheel, index, now);
        }
    }

    /// So many buffers are not promised any more: each connection that waits takes one at least.
    pub(super) fn take_back_promises(&mut self, buffers: u32) {
        self.promises.take_back(buffers);
        for _ in 0..buffers {
            self.give_to_next();
        }
    }

    /// The connection that has waited longest is promised a buffer, if there is one. It is promised at once, because
    /// another connection may send its AK first, time and again.
    fn give_to_next(&mut self) {
        while let Some(short) = self.promises.next() {
            let Some(receiving) = self.short(short) else { continue };
            receiving.is_short = false;
            if !receiving.is_idle {
                receiving.has_turn = true;
                self.promises.give(1);
                return self.owe(short.0);
            }
        }
    }

    /// The receiving side of a connection that has waited for promises, if it still does. A connection that is not open
    /// yet asks when it is.
    fn short(&mut self, (index, serial): Short) -> Option<&mut Receiving> {
        let connection = self.connections[index as usize].as_mut().filter(|it| it.serial == serial)?;
        connection.receiving.is_short &= connection.state == State::Open;
        Some(&mut connection.receiving).filter(|it| it.is_short)
    }

    /// Whether a connection waits for promises. Those that do not wait any more are forgotten.
    fn is_waited_for(&mut self) -> bool {
        while let Some(short) = self.promises.first() {
            let receiving = self.short(short);
            if receiving.as_ref().is_some_and(|it| !it.is_idle) {
                return true;
            }
            receiving.into_iter().for_each(|it| it.is_short = false);
            self.promises.pass();
        }
        false
    }

    /// For W no DT has come over a connection, which so is idle. When that is so once more, and others that are not
    /// idle wait for buffers, it gives back what it was promised. One DT may come all the same, and asks for more; if
    /// there is no buffer then, an AK takes that credit back too, and the connection waits for its turn.
    ///
    /// So what is promised comes back: a DT comes for it, which the user reads, or it is given back after two W. As
    /// each buffer goes to the connection that has waited longest, none waits for ever. Only an other end that never
    /// fills a gap, or repeats DTs all the time, keeps what it was promised.
    ///
    /// Class 4 alone may take credit back (X.224 §12.2.3.8, §10.2.4.2), and W runs there alone; what is on its way to a
    /// buffer that was given back is sent again.
    pub(super) fn reduce_credit(&mut self, index: u32) {
        let n = self.config.times.n;
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let (space, receiving) = (connection.terms.space(), &mut connection.receiving);
        let left = space.distance(receiving.expected, receiving.granted);
        // An AK that opens the window is followed by no other one before it has shown to have come, or was said N
        // times: the other end may have confirmed an earlier one.
        let is_open = !matches!(receiving.opening, Opening::Opened(said) if said < n);
        let is_quiet = receiving.unacknowledged == 0 && receiving.early.is_empty() && is_open && !receiving.has_turn;
        if !is_quiet || left < IDLE || !core::mem::replace(&mut receiving.is_idle, true) || receiving.is_unpromised {
            return;
        }
        if receiving.subsequence > u16::MAX - LEFT || !self.is_waited_for() {
            return;
        }
        if let Some(connection) = self.connections[index as usize].as_mut() {
            let receiving = &mut connection.receiving;
            if left > IDLE {
                receiving.withdraw(space, IDLE);
            }
            receiving.is_unpromised = true;
            self.take_back_promises(left);
        }
    }

    /// An AK with all that there is to say; false where no buffer is left for it.
    pub(super) fn send_acknowledge(&mut self, index: u32, now: Time, out: &mut Outbox) -> bool {
        let Transport { connections, slots, config, arena, pool, counters, wheel, promises, .. } = self;
        let Some(connection) = connections[index as usize].as_mut().filter(|it| it.receiving.owes) else { return true };
        let Some(mut buffer) = pool.take() else {
            counters.no_buffer += 1;
            return false;
        };
        let (terms, space) = (connection.terms, connection.terms.space());
        let early = connection.receiving.early;
        let mut runs = [0; 8 * Selective::MOST];
        let most = room_for_runs(terms).min(runs.len());
        let selective = (terms.selective && !early.is_empty()).then(|| {
            let mut frame = early.head;
            let runs_of = std::iter::from_fn(|| {
                if frame == NONE {
                    return None;
                }
                let first = slots.at(frame).number;
                let mut last = first;
                frame = slots.at(frame).next;
                while frame != NONE && slots.at(frame).number == space.add(last, 1) {
                    last = slots.at(frame).number;
                    frame = slots.at(frame).next;
                }
                Some((first, last))
            });
            Selective::new(runs_of, terms.format, &mut runs[..most])
        });
        let ak = Acknowledge { selective, ..connection.next_acknowledge(config, promises, wheel, index, now) };
        let mut to = Writer::new(arena.room(&mut buffer));
        let len = ak.emit(terms.format, &mut to).map(|()| to.len());
        let Ok(len) = len else { unreachable!("a frame has room for any AK") };
        arena.fill(&mut buffer, len);
        slots.at(buffer.frame()).is = Is::Control;
        counters.acknowledges_sent += 1;
        out.down(Request::Unitdata { to: connection.peer, buffer });
        true
    }

    /// Something has come from the other end: it lives.
    #[inline]
    pub(super) fn heard(&mut self, index: u32, now: Time) {
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.timers.inactivity.postpone(now.after(self.config.times.i));
        }
    }
}

/// Octets of runs that fit into an AK, which is a TPDU of the length that was negotiated at most.
fn room_for_runs(terms: Terms) -> usize {
    (terms.tpdu_size as usize).saturating_sub(AROUND)
}

/// Runs that an AK says at most.
#[inline]
pub(super) fn most_runs(terms: Terms) -> usize {
    (room_for_runs(terms) / (2 * terms.format.width())).min(Selective::MOST)
}

impl Receiving {
    /// A DT has come that was promised no buffer: whether there is one.
    fn is_promised(&mut self, promises: &mut Promises) -> bool {
        self.is_unpromised = false;
        core::mem::take(&mut self.has_turn) || promises.give(1) == 1
    }

    /// Takes credit back, but for so many DTs. Behind an AK that does, those with its number have to be told apart
    /// (X.224 §12.2.3.8.1).
    fn withdraw(&mut self, space: Space, credit: u32) {
        self.granted = space.add(self.expected, credit);
        self.subsequence += 1;
        self.opening = Opening::None;
    }

    /// A DT may have been marked by a router: the next AK says so.
    #[inline]
    fn count_mark(&mut self, buffer: &mut Buffer) {
        if buffer.is_marked() {
            buffer.mark(false);
            self.marks = Some(self.marks.unwrap_or(0).wrapping_add(1));
        }
    }

    /// Keeps a DT that came before others which it follows, and which is so far ahead of the DT that is expected;
    /// hands the buffer back if the DT is there already.
    fn keep_early(&mut self, space: Space, ahead: u32, slots: &mut Slots, buffer: Buffer) -> Result<(), Buffer> {
        let frame = buffer.frame();
        let mut before = NONE;
        let mut at = self.early.head;
        while at != NONE && space.distance(self.expected, slots.at(at).number) < ahead {
            before = at;
            at = slots.at(at).next;
        }
        if at != NONE && space.distance(self.expected, slots.at(at).number) == ahead {
            return Err(buffer);
        }
        let slot = slots.at(frame);
        (slot.is, slot.buffer) = (Is::Early, Some(buffer));
        slots.insert_after(&mut self.early, before, frame);
        Ok(())
    }

    /// Gives the user the DT that is expected.
    #[inline]
    fn deliver(&mut self, space: Space, slot: &mut Slot, buffer: Buffer, out: &mut Outbox) {
        slot.is = Is::Given;
        self.expected = space.add(self.expected, 1);
        self.held += 1;
        self.unacknowledged += 1;
        out.up(Indication::Data { cep: Cep(slot.connection), buffer, end: slot.end });
    }

    /// Gives the user those that came before the DT that has filled the gap; false where there are none.
    #[inline]
    fn deliver_early(&mut self, space: Space, slots: &mut Slots, out: &mut Outbox) -> bool {
        let mut filled = false;
        while self.early.head != NONE && slots.at(self.early.head).number == self.expected {
            let Some(frame) = slots.pop_front(&mut self.early) else { break };
            let slot = slots.at(frame);
            if let Some(buffer) = slot.buffer.take() {
                self.deliver(space, slot, buffer, out);
                filled = true;
            }
        }
        filled
    }
}

impl Connection {
    /// An AK goes after AL at the latest.
    #[inline]
    fn put_off_acknowledge(&mut self, config: &Config, wheel: &mut Wheel, index: u32, now: Time) {
        if self.timers.acknowledge.is_none() {
            let deadline = now.after(config.times.al);
            self.timers.acknowledge = Deadline::at(deadline);
            wheel.set(index, deadline);
        }
    }

    /// Whether an AK is due that can go with a DT: one is owed, or an AK that was put off would go by itself before
    /// long. An AK that says what has come out of order, or has a subsequence, is long, and goes by itself.
    pub(super) fn may_acknowledge(&self, config: &Config, now: Time) -> bool {
        let receiving = &self.receiving;
        let is_due = receiving.owes || receiving.unacknowledged > 0 && now.since(receiving.carried) >= config.times.al;
        let is_long = !receiving.early.is_empty() || receiving.subsequence > 0 && receiving.unacknowledged == 0;
        is_due && !is_long
    }

    /// What the AK says that is sent now, but for what came out of order.
    pub(super) fn next_acknowledge(
        &mut self,
        config: &Config,
        promises: &mut Promises,
        wheel: &mut Wheel,
        index: u32,
        now: Time,
    ) -> Acknowledge<'static> {
        let Connection { terms, receiving, timers, dst_ref, serial, .. } = self;
        let room = terms.credit(config.credit).saturating_sub(receiving.held);
        let left = terms.space().distance(receiving.expected, receiving.granted);
        let unpromised = u32::from(receiving.is_unpromised);
        let more = if receiving.is_idle { 0 } else { room.saturating_sub(left) + unpromised };
        let turn = u32::from(core::mem::take(&mut receiving.has_turn));
        let given = turn + promises.give(more.saturating_sub(turn));
        if given < more && !core::mem::replace(&mut receiving.is_short, true) {
            promises.is_short((index, *serial));
        }
        receiving.is_unpromised &= given == 0;
        let granted = given.saturating_sub(unpromised);
        let credit = left + granted;
        let has_come = receiving.unacknowledged > 0;
        if has_come {
            receiving.subsequence = 0;
        } else if receiving.subsequence > 0 && granted > 0 {
            receiving.subsequence = receiving.subsequence.saturating_add(1);
        }
        receiving.granted = terms.space().add(receiving.expected, credit);
        receiving.opening = match (receiving.opening, credit) {
            (_, 0) => Opening::Closed,
            (Opening::Closed, _) => Opening::Opened(1),
            (Opening::Opened(times), _) => Opening::Opened(times.saturating_add(1)),
            (Opening::None, _) => Opening::None,
        };
        (receiving.unacknowledged, receiving.owes) = (0, false);
        timers.acknowledge = Deadline::NONE;
        let window_time = terms.window_time(config.times.w);
        if let Opening::Opened(times) = receiving.opening
            && terms.class == Class::Four
        {
            let deadline = now.after(if times < config.times.n { config.times.t1 } else { window_time });
            timers.window = Deadline::at(deadline);
            wheel.set(index, deadline);
        } else if terms.class == Class::Four && has_come {
            // What is said only to confirm or to grant does not put off that it is idle.
            timers.window = Deadline::at(now.after(window_time));
        }
        Acknowledge {
            dst_ref: *dst_ref,
            number: receiving.expected,
            credit: credit as u16,
            checksum: terms.checksum,
            subsequence: Some(receiving.subsequence).filter(|it| *it > 0),
            confirmation: receiving.confirms.take(),
            selective: None,
            marks: receiving.marks.filter(|_| terms.marks),
        }
    }
}

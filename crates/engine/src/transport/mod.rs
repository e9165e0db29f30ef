//! Transport of class 4 and class 2 (X.224) over a network without connections.
//!
//! The way of a TSDU: `sending` numbers its parts and retains them until they are acknowledged, `receiving` puts them
//! in order and acknowledges them. `acknowledgement` takes the acknowledgements, `retransmission` sends again what was
//! lost; `recovery` is what is known of losses, `timeout` how long an acknowledgement is awaited. `negotiation` makes a
//! connection, `release` ends it. A [`Transport`] is one entity with all its connections; `slots` is what it knows of
//! buffers, `wheel` of time, `ways` of the network to each peer.

mod acknowledgement;
mod config;
mod congestion;
mod connection;
mod expedited;
mod negotiation;
mod number;
mod promises;
mod receiving;
mod recovery;
mod references;
mod release;
mod retransmission;
mod sending;
mod slots;
mod timeout;
mod ways;
mod wheel;

use crate::bucket::Bucket;
use crate::layer::{Layer, Outbox};
use crate::service::{Cep, Fate, Indication, Peer, Request, Time};
use crate::wire::tpdu::{
    Acknowledge, Class, Code, Envelope, ErrorReport, Format, Malformed, Reason, Selective, Tpdu, is_intact,
};
pub use config::{Config, Times};
use connection::{Connection, Deadline, State};
use promises::Promises;
use references::References;
use slots::{Is, Slots};
use std::collections::{HashMap, VecDeque};
use underpass_link::arena::{Arena, Buffer, Pool};
use ways::Ways;
use wheel::Wheel;

/// What has happened, in numbers since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counters {
    pub data_sent: u64,
    pub data_sent_again: u64,
    /// How many of those were sent again because they were late, and not lost, as far as it shows.
    pub data_late: u64,
    pub data_received: u64,
    pub data_early: u64,
    pub data_duplicate: u64,
    pub data_outside_window: u64,
    pub acknowledges_sent: u64,
    /// How many of those went in one NSDU with a DT.
    pub acknowledges_with_data: u64,
    pub acknowledges_received: u64,
    pub malformed: u64,
    pub corrupt: u64,
    pub unknown_reference: u64,
    pub unexpected: u64,
    /// Answers to what belongs to no connection, and those that were left out because there were too many.
    pub answers: u64,
    pub answers_left_out: u64,
    pub refused: u64,
    pub given_up: u64,
    pub no_buffer: u64,
    /// DTs that the network has not taken.
    pub not_taken: u64,
    /// DTs that a router has marked, as the other end has said.
    pub marks: u64,
}

/// A transport entity.
#[derive(Debug)]
pub struct Transport {
    config: Config,
    arena: Arena,
    slots: Slots,
    /// For AKs and all other TPDUs without a user's buffer.
    pool: Pool,
    connections: Vec<Option<Connection>>,
    vacant: Vec<u32>,
    /// The serial number of the connection that was made last.
    serial: u16,
    references: References,
    promises: Promises,
    /// Connections that the other end has asked for, by its address and reference.
    requested: HashMap<(Peer, u16), u32>,
    wheel: Wheel,
    ways: Ways,
    /// Connections that owe an AK or an EA, or did: each once, in the order in which they came to.
    owing: VecDeque<u32>,
    /// Connections that others have asked for and that are not open yet, and those that rest without having been.
    pending: u32,
    answers: Bucket,
    counters: Counters,
}

impl Transport {
    /// An entity over buffers of `arena`, of which `pool` are its own.
    ///
    /// # Panics
    /// If it is to propose another class than 2 or 4.
    pub fn new(config: Config, arena: Arena, pool: Pool, now: Time) -> Transport {
        assert!(matches!(config.class, Class::Two | Class::Four), "class {:?} is not built: 2 and 4 are", config.class);
        let slots = Slots::new(arena.geometry().frames);
        Transport {
            config,
            arena,
            slots,
            pool,
            connections: Vec::new(),
            vacant: Vec::new(),
            serial: 0,
            references: References::by(config.secret),
            promises: Promises::of(config.receive),
            requested: HashMap::new(),
            wheel: Wheel::new(now),
            ways: Ways::default(),
            owing: VecDeque::new(),
            pending: 0,
            answers: Bucket::default(),
            counters: Counters::default(),
        }
    }

    /// What has happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The network carries longer or shorter packets than before: TPDUs of connections that are made from now on have
    /// so many octets at most. Those that there are keep what they have negotiated, and stall where that is too long
    /// now.
    ///
    /// # Panics
    /// If it is less than 128, which is the shortest longest TPDU.
    pub fn resize(&mut self, most: usize) {
        self.config.tpdu_size = config::tpdu_size(most);
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.vacant.len() - self.references.frozen()
    }

    /// Data requests that a connection would send at once, as the other end's credit and its own window are now, or
    /// that would wait if they are fewer than 0: what a user takes from a program, it takes by this.
    pub fn room(&self, cep: Cep) -> i64 {
        let connection = self.connections.get(cep.0 as usize).and_then(Option::as_ref);
        connection.filter(|it| it.state == State::Open).map_or(0, |it| {
            let sending = &it.sending;
            let room = if it.shares(&self.config) { self.ways.get(it.way).left() } else { u32::MAX };
            i64::from(sending.credit(it.terms.space()).min(room)) - i64::from(sending.waiting)
        })
    }

    /// Buffers of its own pool that are not under way.
    pub fn pooled(&self) -> usize {
        self.pool.len()
    }

    /// An NSDU: one TPDU, or several (X.224 §6.4).
    fn unitdata(&mut self, from: Peer, mut buffer: Buffer, now: Time, out: &mut Outbox) {
        loop {
            let octets = self.arena.octets(&buffer);
            let Ok(envelope) = Envelope::peek(octets) else {
                self.counters.malformed += 1;
                return out.down(Request::Return { buffer });
            };
            let index = envelope.dst_ref.and_then(|it| self.references.find(from, it));
            let terms = index.and_then(|index| Some(self.connections[index as usize].as_ref()?.checks()));
            let (format, checksum, longest) = terms.unwrap_or((Format::Normal, false, usize::MAX));
            let own = if envelope.code.has_user_data() { octets.len() } else { envelope.header_len };
            let behind = octets.len() - own;
            match (envelope.code, index) {
                (Code::Dt | Code::Ed | Code::Ak | Code::Ea, Some(index)) => {
                    match check(&octets[..own], format, checksum) {
                        Ok(Tpdu::Dt(_)) if own > longest => {
                            return self.too_long(index, buffer, now, out);
                        }
                        Ok(Tpdu::Dt(it)) => {
                            buffer.pull(envelope.header_len);
                            return self.data(index, &it, buffer, now, out);
                        }
                        Ok(Tpdu::Ed(it)) => {
                            let number = it.number;
                            buffer.pull(envelope.header_len);
                            return self.expedited(index, number, buffer, now, out);
                        }
                        Ok(Tpdu::Ak(it)) => {
                            let mut runs = Runs::default();
                            it.selective.iter().flat_map(Selective::runs).for_each(|run| runs.push(run));
                            let it = Acknowledge { selective: None, ..it };
                            self.acknowledge(index, &it, &runs, now, out);
                        }
                        Ok(Tpdu::Ea(it)) => self.expedited_acknowledge(index, it.number, now, out),
                        Ok(_) => unreachable!("a TPDU is of the kind that its envelope says"),
                        Err(flaw) => {
                            self.flawed(from, Some(index), &buffer, flaw, now, out);
                            return out.down(Request::Return { buffer });
                        }
                    }
                }
                _ => {
                    let arena = self.arena.clone();
                    match check(&arena.octets(&buffer)[..own], format, checksum) {
                        Ok(tpdu) => self.other(from, &tpdu, index, now, out),
                        Err(flaw) => {
                            self.flawed(from, index, &buffer, flaw, now, out);
                            return out.down(Request::Return { buffer });
                        }
                    }
                }
            }
            if behind == 0 {
                return out.down(Request::Return { buffer });
            }
            buffer.pull(own);
        }
    }

    /// What cannot be read, and the whole of what follows it, is thrown away. It is answered only where it is the peer
    /// that is wrong, and not the network (X.224 §6.22).
    #[cold]
    fn flawed(&mut self, from: Peer, index: Option<u32>, buffer: &Buffer, flaw: Flaw, now: Time, out: &mut Outbox) {
        let Flaw::Malformed(malformed) = flaw else {
            self.counters.corrupt += 1;
            return;
        };
        self.counters.malformed += 1;
        let arena = self.arena.clone();
        let octets = arena.octets(buffer);
        let dst_ref = match index.and_then(|it| self.connections[it as usize].as_ref()) {
            Some(it) if it.state != State::Open => return,
            // It will not be sent again, and the connection could wait for it for ever.
            Some(it) if it.terms.class == Class::Two => {
                let index = index.unwrap_or_default();
                return self.release(index, Reason::PROTOCOL_ERROR, now, out);
            }
            Some(it) if it.terms.checksum => it.dst_ref,
            None if octets[1] & 0xf0 == Code::Cr as u8 && octets.len() > 5 && is_intact(octets) => {
                u16::from_be_bytes([octets[4], octets[5]])
            }
            _ => return,
        };
        let rejected = octets.get(..malformed.through().min(ErrorReport::MOST));
        let er = ErrorReport { dst_ref, cause: malformed.cause(), checksum: self.config.checksum, rejected };
        self.answer(from, &Tpdu::Er(er), now, out);
    }

    /// A DT that is longer than was negotiated, which is an error of its sender (X.224 §6.3).
    #[cold]
    fn too_long(&mut self, index: u32, buffer: Buffer, now: Time, out: &mut Outbox) {
        self.counters.malformed += 1;
        out.down(Request::Return { buffer });
        let connection = self.connections[index as usize].as_ref();
        // In class 4 it is sent again, and its sender gives up.
        if connection.is_some_and(|it| it.terms.class == Class::Two && it.state == State::Open) {
            self.release(index, Reason::PROTOCOL_ERROR, now, out);
        }
    }

    fn connection(&mut self, cep: Cep) -> Option<&mut Connection> {
        self.connections.get_mut(cep.0 as usize)?.as_mut()
    }

    /// A buffer that was lent below is back.
    fn complete(&mut self, mut buffer: Buffer, fate: Fate, now: Time, out: &mut Outbox) {
        let slot = self.slots.at(buffer.frame());
        buffer.pull(usize::from(core::mem::take(&mut slot.ahead)));
        match slot.is {
            Is::Control => {
                slot.is = Is::Elsewhere;
                self.pool.put(buffer);
                self.settle(now, out);
            }
            Is::Leaving(decided) => {
                // Where the network was to deliver it, what that says counts.
                let fate = if decided == Fate::Sent { fate } else { decided };
                out.up(slot.complete(buffer, fate));
            }
            is => {
                let index = slot.connection;
                slot.buffer = Some(buffer);
                if fate == Fate::Refused && matches!(is, Is::Retained { .. }) {
                    self.not_taken(index, out);
                }
            }
        }
    }

    /// The network does not take a DT: it has become too long for it, most likely, and sending it again does not help.
    #[cold]
    fn not_taken(&mut self, index: u32, out: &mut Outbox) {
        self.counters.not_taken += 1;
        if let Some(connection) = self.connections[index as usize].as_mut()
            && !core::mem::replace(&mut connection.sending.timeout.told, true)
        {
            out.up(Indication::Stalled { cep: Cep(index) });
        }
    }
}

impl Layer for Transport {
    fn request(&mut self, request: Request, now: Time, out: &mut Outbox) {
        match request {
            Request::Data { cep, buffer, end } => self.data_request(cep, buffer, end, now, out),
            Request::Return { buffer } => self.returned(buffer, now, out),
            Request::Connect { tag, to, details } => self.connect_request(tag, to, *details, now, out),
            Request::Accept { cep, user_data } => self.connect_response(cep, user_data, now, out),
            Request::Expedited { cep, buffer } => self.expedited_request(cep, buffer, now, out),
            Request::Disconnect { cep, reason } => self.disconnect_request(cep, reason, now, out),
            Request::Unitdata { buffer, .. } => out.up(Indication::complete(buffer, Fate::Refused)),
        }
    }

    fn indication(&mut self, indication: Indication, now: Time, out: &mut Outbox) {
        match indication {
            Indication::Unitdata { from, buffer } => self.unitdata(from, buffer, now, out),
            Indication::Complete { buffer, fate, .. } => self.complete(buffer, fate, now, out),
            Indication::Data { buffer, .. } | Indication::Expedited { buffer, .. } => {
                out.down(Request::Return { buffer })
            }
            Indication::Connect { cep, .. } => out.down(Request::Disconnect { cep, reason: Reason::NOT_ATTACHED }),
            Indication::Confirm { .. } | Indication::Refused { .. } | Indication::Disconnect { .. } => {}
            Indication::Stalled { .. } | Indication::Resumed { .. } => {}
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        while let Some(way) = self.ways.freed() {
            self.serve(way, now, out);
        }
        while let Some(&index) = self.owing.front() {
            if !self.pay(index, now, out) {
                return;
            }
            self.owing.pop_front();
        }
    }

    fn due(&self) -> Option<Time> {
        [self.wheel.due(), self.references.due(), self.ways.due()].into_iter().flatten().min()
    }

    fn expire(&mut self, now: Time, out: &mut Outbox) {
        while let Some((index, was_pending)) = self.references.thaw(now) {
            self.vacant.push(index);
            self.pending -= u32::from(was_pending);
        }
        while let Some(index) = self.wheel.expire(now) {
            self.timers_ran_out(index, now, out);
        }
        while let Some(way) = self.ways.expire(now) {
            self.serve(way, now, out);
        }
        self.settle(now, out);
    }
}

impl Transport {
    /// A connection's timers are looked at; those that are over run out.
    fn timers_ran_out(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let timers = &mut connection.timers;
        if timers.inactivity.take(now) {
            return self.give_up(index, now, out);
        }
        let (acknowledge, window) = (timers.acknowledge.take(now), timers.window.take(now));
        if window {
            timers.window = Deadline::at(now.after(connection.terms.window_time(self.config.times.w)));
        }
        let (retransmission, state) = (timers.retransmission.take(now), connection.state);
        if acknowledge || window {
            self.owe(index);
        }
        if window {
            self.reduce_credit(index);
        }
        match (retransmission, state) {
            (false, _) => {}
            (true, State::Open) => self.retransmission_ran_out(index, now, out),
            (true, _) => self.setup_ran_out(index, now, out),
        }
        if let Some(connection) = self.connections[index as usize].as_ref()
            && let Some(earliest) = connection.timers.earliest().time()
        {
            self.wheel.set(index, earliest);
        }
    }

    /// The connection is to send an AK when nothing else is to be done.
    fn owe(&mut self, index: u32) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        connection.receiving.owes = true;
        if !core::mem::replace(&mut connection.receiving.is_owing, true) {
            self.owing.push_back(index);
        }
    }

    /// Sends what a connection owes; false where no buffer is left for it.
    fn pay(&mut self, index: u32, now: Time, out: &mut Outbox) -> bool {
        let Some(connection) = self.connections[index as usize].as_mut() else { return true };
        if connection.state != State::Open {
            (connection.receiving.owes, connection.receiving.owes_expedited) = (false, false);
        } else if !self.send_expedited_acknowledge(index, out) || !self.send_acknowledge(index, now, out) {
            return false;
        }
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.receiving.is_owing = false;
        }
        true
    }
}

/// Why a TPDU is thrown away.
enum Flaw {
    /// Its checksum is wrong, or is missing where checksums are in use, which is an error as much (X.224 §6.17.3).
    Corrupt,
    /// It is none, or none that may be sent.
    Malformed(Malformed),
}

/// The TPDU that `octets` are.
#[inline]
fn check(octets: &[u8], format: Format, checksum: bool) -> Result<Tpdu<'_>, Flaw> {
    match Tpdu::parse(octets, format) {
        Ok((tpdu, _)) if tpdu.has_checksum() && !is_intact(octets) || checksum && !tpdu.has_checksum() => {
            Err(Flaw::Corrupt)
        }
        Ok((tpdu, _)) => Ok(tpdu),
        Err(_) if checksum && !is_intact(octets) => Err(Flaw::Corrupt),
        Err(it) => Err(Flaw::Malformed(it)),
    }
}

/// What a selective acknowledgement says, out of the buffer that it came in.
#[derive(Default)]
struct Runs {
    all: [(u32, u32); Selective::MOST],
    len: usize,
}

impl Runs {
    /// More than there is room for are left out: they will be said again.
    fn push(&mut self, run: (u32, u32)) {
        if let Some(place) = self.all.get_mut(self.len) {
            *place = run;
            self.len += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.all[..self.len].iter().copied()
    }
}

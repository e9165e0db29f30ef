//! Transport of class 4 and class 2 (X.224) over a network without connections.
//!
//! The way of a TSDU: `sending` numbers its parts and retains them until they are acknowledged, `receiving` puts them in order
//! and acknowledges them; `negotiation` is how a connection comes and goes. A [`Transport`] is one entity with all its connections;
//! `slots` is what it knows of buffers, `wheel` of time.

mod congestion;
mod connection;
mod expedited;
mod negotiation;
mod number;
mod receiving;
mod references;
mod sending;
mod slots;
mod wheel;

use crate::layer::{Layer, Outbox};
use crate::service::{Cep, Indication, Peer, Request, Time};
use crate::wire::tpdu::{Acknowledge, Class, Envelope, Format, Reason, Selective, Tpdu, is_intact};
use connection::{Connection, State};
use references::References;
use slots::{Is, Slots};
use std::collections::HashMap;
use underpass_link::arena::{Arena, Buffer, Pool};
use wheel::Wheel;

/// What an entity offers and asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The class that is proposed: 4 over a network that may lose, 2 over one that does not.
    pub class: Class,
    /// Numbers of 31 bits and credits of 16.
    pub extended: bool,
    /// Whether TPDUs of class 4 carry a checksum. Without one, the network has to find what is corrupt.
    pub checksum: bool,
    /// Longest TPDU that the network carries, in octets; a multiple of 128 that fits into a frame.
    pub tpdu_size: u32,
    /// DT TPDUs that a connection takes at a time: buffers that its user may keep and those on their way.
    pub credit: u16,
    /// Selective acknowledgement, if the other end has it too.
    pub selective: bool,
    /// Request of acknowledgement, if the other end has it too.
    pub roa: bool,
    /// A window of the sender's own besides the credit, by delay.
    pub congestion_control: bool,
    /// Timers.
    pub times: Times,
}

/// Timers, in nanoseconds (X.224 §12.2.1.1; names as there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// T1 until a round trip was measured.
    pub t1: u64,
    /// T1 at least.
    pub t1_least: u64,
    /// N: how often something is sent before the connection is given up.
    pub n: u8,
    /// AL: how long an AK may be put off.
    pub al: u64,
    /// W: how long the other end hears nothing at most.
    pub w: u64,
    /// I: how long the other end may be silent.
    pub i: u64,
    /// L: how long a reference is not used again.
    pub l: u64,
    /// What a round trip may take beyond the shortest before the congestion window shrinks.
    pub slack: u64,
}

impl Default for Times {
    /// For a local network: T1 5 ms and 0.5 ms at least, N 8, AL 0.2 ms, W 1 s, I 16 s, L 2 s.
    fn default() -> Times {
        const MS: u64 = 1_000_000;
        Times {
            t1: 5 * MS,
            t1_least: MS / 2,
            n: 8,
            al: MS / 5,
            w: 1000 * MS,
            i: 16_000 * MS,
            l: 2000 * MS,
            slack: MS / 2,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            class: Class::Four,
            extended: true,
            checksum: true,
            tpdu_size: 1408,
            credit: 64,
            selective: true,
            roa: true,
            congestion_control: true,
            times: Times::default(),
        }
    }
}

/// What has happened, in numbers since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counters {
    pub data_sent: u64,
    pub data_sent_again: u64,
    pub data_received: u64,
    pub data_early: u64,
    pub data_duplicate: u64,
    pub data_outside_window: u64,
    pub acknowledges_sent: u64,
    pub acknowledges_received: u64,
    pub malformed: u64,
    pub corrupt: u64,
    pub unknown_reference: u64,
    pub unexpected: u64,
    pub given_up: u64,
    pub no_buffer: u64,
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
    references: References,
    /// Connections that the other end has asked for, by its address and reference.
    requested: HashMap<(Peer, u16), u32>,
    wheel: Wheel,
    /// Connections that owe an AK.
    owing: Vec<u32>,
    counters: Counters,
}

impl Transport {
    /// An entity over buffers of `arena`, of which `pool` are its own.
    pub fn new(config: Config, arena: Arena, pool: Pool, now: Time) -> Transport {
        let slots = Slots::new(arena.geometry().frames);
        Transport {
            config,
            arena,
            slots,
            pool,
            connections: Vec::new(),
            vacant: Vec::new(),
            references: References::default(),
            requested: HashMap::new(),
            wheel: Wheel::new(now),
            owing: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// What has happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.vacant.len()
    }

    /// Buffers of its own pool that are not under way.
    pub fn pooled(&self) -> usize {
        self.pool.len()
    }

    /// An NSDU: one TPDU, or several (X.224 §6.4).
    fn unitdata(&mut self, from: Peer, mut buffer: Buffer, now: Time, out: &mut Outbox) {
        loop {
            let octets = self.arena.octets(&buffer);
            let envelope = match Envelope::peek(octets) {
                Ok(it) => it,
                Err(_) => {
                    self.counters.malformed += 1;
                    return out.down(Request::Return { buffer });
                }
            };
            let index = envelope.dst_ref.and_then(|it| self.references.find(from, it));
            let terms = index.and_then(|index| Some(self.connections[index as usize].as_ref()?.terms));
            let format = terms.map_or(Format::Normal, |it| it.format);
            let (tpdu, rest) = match Tpdu::parse(octets, format) {
                Ok(it) => it,
                Err(_) => {
                    self.counters.malformed += 1;
                    return out.down(Request::Return { buffer });
                }
            };
            let behind = rest.len();
            let is_data = matches!(tpdu, Tpdu::Dt(_));
            let own = if is_data { octets.len() } else { octets.len() - behind };
            // Where checksums are in use, one that is missing is an error as much as a wrong one (X.224 §6.17.3).
            let wants_checksum = terms.is_some_and(|it| it.checksum);
            if wants_checksum && !tpdu.has_checksum() || tpdu.has_checksum() && !is_intact(&octets[..own]) {
                self.counters.corrupt += 1;
                return out.down(Request::Return { buffer });
            }
            match (tpdu, index) {
                (Tpdu::Dt(it), Some(index)) => {
                    buffer.pull(envelope.header_len);
                    return self.data(index, &it, buffer, now, out);
                }
                (Tpdu::Ed(it), Some(index)) => {
                    let number = it.number;
                    buffer.pull(envelope.header_len);
                    return self.expedited(index, number, buffer, now, out);
                }
                (Tpdu::Ea(it), Some(index)) => self.expedited_acknowledge(index, it.number, now, out),
                (Tpdu::Ak(it), Some(index)) => {
                    let mut runs = Runs::default();
                    it.selective.iter().flat_map(Selective::runs).for_each(|run| runs.push(run));
                    let it = Acknowledge { selective: None, ..it };
                    self.acknowledge(index, &it, &runs, now, out);
                }
                _ => {
                    let octets = octets[..own].to_vec();
                    self.other(from, &octets, format, index, now, out);
                }
            }
            if behind == 0 {
                return out.down(Request::Return { buffer });
            }
            let ahead = buffer.len() - behind;
            buffer.pull(ahead);
        }
    }

    fn connection(&mut self, cep: Cep) -> Option<&mut Connection> {
        self.connections.get_mut(cep.0 as usize)?.as_mut()
    }

    /// A buffer that was lent below is back.
    fn complete(&mut self, buffer: Buffer, now: Time, out: &mut Outbox) {
        let slot = self.slots.at(buffer.frame());
        match slot.is {
            Is::Control => {
                slot.is = Is::Elsewhere;
                self.pool.put(buffer);
                self.settle(now, out);
            }
            Is::Acknowledged => out.up(Indication::Complete { buffer: slot.release(buffer) }),
            _ => slot.buffer = Some(buffer),
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
            Request::Unitdata { buffer, .. } => out.up(Indication::Complete { buffer }),
        }
    }

    fn indication(&mut self, indication: Indication, now: Time, out: &mut Outbox) {
        match indication {
            Indication::Unitdata { from, buffer } => self.unitdata(from, buffer, now, out),
            Indication::Complete { buffer } => self.complete(buffer, now, out),
            Indication::Data { buffer, .. } | Indication::Expedited { buffer, .. } => {
                out.down(Request::Return { buffer })
            }
            Indication::Connect { cep, .. } => out.down(Request::Disconnect { cep, reason: Reason::NOT_ATTACHED }),
            Indication::Confirm { .. } | Indication::Refused { .. } | Indication::Disconnect { .. } => {}
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        while let Some(index) = self.owing.pop() {
            if !self.send_acknowledge(index, now, out) {
                self.owing.push(index);
                return;
            }
        }
    }

    fn due(&self) -> Option<Time> {
        [self.wheel.due(), self.references.due()].into_iter().flatten().min()
    }

    fn expire(&mut self, now: Time, out: &mut Outbox) {
        self.references.thaw(now);
        while let Some(index) = self.wheel.expire(now) {
            self.timers_ran_out(index, now, out);
        }
        self.settle(now, out);
    }
}

impl Transport {
    /// A connection's timers are looked at; those that are over run out.
    fn timers_ran_out(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let over = |deadline: &mut Option<Time>| deadline.take_if(|it| *it <= now).is_some();
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if over(&mut connection.timers.inactivity) {
            return self.give_up(index, now, out);
        }
        if over(&mut connection.timers.acknowledge) {
            self.owe(index);
        }
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if over(&mut connection.timers.window) {
            connection.timers.window = Some(now.after(self.config.times.w));
            self.owe(index);
        }
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if over(&mut connection.timers.retransmission) {
            match connection.state {
                State::Open => self.retransmission_ran_out(index, now, out),
                _ => self.setup_ran_out(index, now, out),
            }
        }
        if let Some(connection) = self.connections[index as usize].as_ref()
            && let Some(earliest) = connection.timers.earliest()
        {
            self.wheel.set(index, earliest);
        }
    }

    fn owe(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && !core::mem::replace(&mut connection.receiving.owes, true)
        {
            self.owing.push(index);
        }
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

#[cfg(test)]
mod tests;

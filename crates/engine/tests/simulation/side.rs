//! A user of the transport service at one end.

use crate::Script;
use crate::wire::{End, Wire};
use std::any::Any;
use std::collections::VecDeque;
use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::service::{Cep, Details, Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::transport::{Counters, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_engine::wire::tpdu::Reason;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};

const FRAMES: u32 = 512;
const OWN: usize = 16;
const RECEIVE: usize = 128;

pub struct Side {
    at: usize,
    stack: Stack<End>,
    arena: Arena,
    peer: Peer,
    connection: Option<(Cep, usize)>,
    released: bool,
    free: Vec<Buffer>,
    /// What is to be sent next: TSDU, and octet of it.
    next: (u32, usize),
    /// What is expected next.
    expected: (u32, usize),
    /// Expedited data: sent, and received.
    expedited: [u32; 2],
    /// Read, and not returned yet.
    kept: VecDeque<Buffer>,
    /// When a lazy reader reads on.
    reads_at: Time,
    random: fastrand::Rng,
    pub octets: u64,
    pub wrong: u64,
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "side {}: {:?} sends {:?}, expects {:?}, {} free, {} kept, {:?}",
            self.at,
            self.connection,
            self.next,
            self.expected,
            self.free.len(),
            self.kept.len(),
            self.counters()
        )
    }
}

/// Length of a TSDU that this side sends.
fn length(script: &Script, from: usize, tsdu: u32) -> usize {
    fastrand::Rng::with_seed(script.seed ^ u64::from(tsdu) << 1 ^ from as u64).usize(1..=script.longest)
}

/// An octet of it.
fn octet(from: usize, tsdu: u32, at: usize) -> u8 {
    ((at as u64 + 1).wrapping_mul(u64::from(tsdu) * 2 + from as u64 + 0x9e37_79b9) >> 7) as u8
}

impl Side {
    pub fn new(script: &Script, at: usize, wire: &Wire) -> Side {
        let (arena, mut all) = Arena::new(Geometry { frames: FRAMES, frame_size: 2048, headroom: 128 });
        let own = |number: usize| Mac([2, 0, 0, 0, 0, number as u8]);
        let mut network = Inactive::new(arena.clone(), own(at));
        let peer = network.peer(own(1 - at));
        let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(network)];
        for level in 0..script.layers {
            let pool = all.split_off(all.len() - OWN);
            let config = stack::config(script.config, level, script.layers);
            layers.append(&mut stack::transport(config, level, &arena, pool, Time(0)));
        }
        let mut end = wire.end(at, arena.clone());
        for buffer in all.split_off(all.len() - RECEIVE) {
            end.fill(buffer);
        }
        Side {
            at,
            stack: Stack::new(end, layers),
            arena,
            peer,
            connection: None,
            released: false,
            free: all,
            next: (0, 0),
            expected: (0, 0),
            expedited: [0; 2],
            kept: VecDeque::new(),
            reads_at: Time(0),
            random: fastrand::Rng::with_seed(script.seed ^ at as u64),
            octets: 0,
            wrong: 0,
        }
    }

    pub fn connect(&mut self, now: Time) {
        let details = Details { called: b"simulator".to_vec(), expedited: true, ..Details::default() };
        self.stack.request(Request::Connect { tag: 7, to: self.peer, details: Box::new(details) }, now);
    }

    pub fn disconnect(&mut self, now: Time) {
        let Some((cep, _)) = self.connection else { return };
        self.released = true;
        self.stack.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now);
    }

    /// Does what there is to do; whether there was anything.
    pub fn step(&mut self, now: Time, script: &Script) -> bool {
        let mut moved = self.stack.poll(now);
        while let Some(indication) = self.stack.indication() {
            moved = true;
            self.indicated(indication, now, script);
        }
        if script.lazy == 0 || now >= self.reads_at {
            if script.lazy > 0 && self.random.u32(..50) == 0 {
                self.reads_at = now.after(self.random.u64(..script.lazy));
            }
            while let Some(buffer) = self.kept.pop_front() {
                moved = true;
                self.stack.request(Request::Return { buffer }, now);
            }
        }
        moved | self.send(now, script)
    }

    fn send(&mut self, now: Time, script: &Script) -> bool {
        let Some((cep, most)) = self.connection.filter(|_| !self.released) else { return false };
        let mut moved = false;
        // Spread over the TSDUs.
        if self.expedited[0] < script.expedited
            && self.next.0 >= self.expedited[0] * script.tsdus / script.expedited
            && let Some(mut buffer) = self.free.pop()
        {
            let number = self.expedited[0].to_be_bytes();
            self.arena.room(&mut buffer)[..4].copy_from_slice(&number);
            self.arena.fill(&mut buffer, 4);
            self.expedited[0] += 1;
            self.stack.request(Request::Expedited { cep, buffer }, now);
            moved = true;
        }
        while self.next.0 < script.tsdus {
            // The first end begins.
            if script.turns && self.next.0 >= self.expected.0 + 1 - self.at as u32 {
                break;
            }
            let Some(mut buffer) = self.free.pop() else { break };
            let (tsdu, at) = self.next;
            let whole = length(script, self.at, tsdu);
            let part = (whole - at).min(most);
            for (offset, to) in self.arena.room(&mut buffer)[..part].iter_mut().enumerate() {
                *to = octet(self.at, tsdu, at + offset);
            }
            self.arena.fill(&mut buffer, part);
            let end = at + part == whole;
            self.next = if end { (tsdu + 1, 0) } else { (tsdu, at + part) };
            self.stack.request(Request::Data { cep, buffer, end }, now);
            moved = true;
        }
        moved
    }

    fn indicated(&mut self, indication: Indication, now: Time, script: &Script) {
        match indication {
            Indication::Connect { cep, most, details, .. } => {
                assert_eq!(details.called, b"simulator");
                self.connection = Some((cep, most as usize));
                self.stack.request(Request::Accept { cep, user_data: Vec::new() }, now);
            }
            Indication::Confirm { cep, most, tag, .. } => {
                assert_eq!(tag, 7);
                self.connection = Some((cep, most as usize));
            }
            Indication::Data { buffer, end, .. } => {
                let (tsdu, at) = self.expected;
                let octets = self.arena.octets(&buffer);
                let whole = length(script, 1 - self.at, tsdu);
                let right = octets.iter().enumerate().all(|(it, &is)| is == octet(1 - self.at, tsdu, at + it));
                assert_eq!(end, at + octets.len() == whole, "the end of TSDU {tsdu}");
                self.wrong += u64::from(!right);
                self.octets += octets.len() as u64;
                self.expected = if end { (tsdu + 1, 0) } else { (tsdu, at + octets.len()) };
                self.kept.push_back(buffer);
            }
            Indication::Expedited { buffer, .. } => {
                assert_eq!(self.arena.octets(&buffer), self.expedited[1].to_be_bytes(), "each once, and in order");
                self.expedited[1] += 1;
                self.stack.request(Request::Return { buffer }, now);
            }
            Indication::Complete { buffer, .. } => {
                assert_eq!(buffer.offset(), self.arena.geometry().headroom, "a buffer comes back as it was lent");
                self.free.push(buffer);
            }
            Indication::Disconnect { reason, .. } => {
                assert_eq!(reason, Reason::NORMAL, "{self:?}");
                self.released = true;
            }
            Indication::Stalled { .. } | Indication::Resumed { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    pub fn due(&self) -> Option<Time> {
        let lazy = (!self.kept.is_empty()).then_some(self.reads_at);
        [self.stack.due(), lazy].into_iter().flatten().min()
    }

    pub fn has_all(&self, script: &Script) -> bool {
        self.expected.0 == script.tsdus && self.expedited == [script.expedited; 2]
    }

    /// The connection is gone, and everything is where it began. Below the uppermost layer connections stay, but have
    /// nothing to do.
    pub fn is_released(&self) -> bool {
        let top = self.transports().last().unwrap();
        self.released && top.connections() == 0 && self.kept.is_empty() && self.found() == FRAMES as usize
    }

    /// The lowest first.
    fn transports(&self) -> impl Iterator<Item = &Transport> {
        self.stack.layers().iter().filter_map(|it| (&**it as &dyn Any).downcast_ref())
    }

    /// The counters of the uppermost layer.
    pub fn counters(&self) -> Counters {
        self.transports().last().unwrap().counters()
    }

    /// Buffers that are where they began.
    fn found(&self) -> usize {
        self.free.len() + self.stack.link().free() + self.transports().map(Transport::pooled).sum::<usize>()
    }
}

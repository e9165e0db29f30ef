//! A host: a transport entity over a network of two, and its user.

use std::collections::VecDeque;
use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Cep, Details, Fate, Indication, Peer, Request, Time};
use underpass_engine::transport::{Config, Counters, Transport};
use underpass_engine::wire::tpdu::Reason;
use underpass_link::arena::{Arena, Buffer, Geometry};

const FRAMES: u32 = 160;
const POOL: usize = 8;
const RECEIVE: usize = 64;

/// The honest other end. Any other peer is a stranger.
pub const OTHER: Peer = Peer(0);

pub struct Host {
    transport: Transport,
    arena: Arena,
    out: Outbox,
    free: Vec<Buffer>,
    receive: Vec<Buffer>,
    kept: Vec<Buffer>,
    /// Packets that were sent and not taken off yet.
    pub sent: VecDeque<(Peer, Vec<u8>)>,
    /// The connection of the honest ends, and octets of a data request.
    pub connection: Option<(Cep, usize)>,
    /// The connection of the honest ends existed, and is gone.
    pub ended: bool,
    /// Asked for, and left unanswered.
    unanswered: Vec<Cep>,
    /// Whether the user answers, and whether it reads.
    pub answers: bool,
    pub reads: bool,
    /// TSDUs that were sent and that came, expedited ones too; all in order.
    pub tsdus: [u32; 2],
    pub expedited: [u32; 2],
    /// Something came that was never sent, or not then.
    pub wrong: u32,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Host { connection, ended, tsdus, expedited, wrong, .. } = self;
        let open = self.connections();
        write!(f, "{open} connections, {connection:?}, ended {ended}, {tsdus:?}, {expedited:?}, wrong {wrong}")?;
        write!(f, ", {:?}", self.counters())
    }
}

impl Host {
    pub fn new(config: Config) -> Host {
        let (arena, mut free) = Arena::new(Geometry { frames: FRAMES, frame_size: 512, headroom: 128 });
        let pool = free.split_off(free.len() - POOL).into_iter().collect();
        let receive = free.split_off(free.len() - RECEIVE);
        Host {
            transport: Transport::new(config, arena.clone(), pool, Time(0)),
            arena,
            out: Outbox::default(),
            free,
            receive,
            kept: Vec::new(),
            sent: VecDeque::new(),
            connection: None,
            ended: false,
            unanswered: Vec::new(),
            answers: true,
            reads: true,
            tsdus: [0; 2],
            expedited: [0; 2],
            wrong: 0,
        }
    }

    pub fn counters(&self) -> Counters {
        self.transport.counters()
    }

    pub fn connections(&self) -> usize {
        self.transport.connections()
    }

    pub fn due(&self) -> Option<Time> {
        self.transport.due()
    }

    pub fn connect(&mut self, now: Time) {
        (self.connection, self.ended, self.tsdus, self.expedited) = (None, false, [0; 2], [0; 2]);
        let details = Details { expedited: true, called: b"B".to_vec(), ..Details::default() };
        self.request(Request::Connect { tag: 1, to: OTHER, details: Box::new(details) }, now);
    }

    pub fn disconnect(&mut self, now: Time) {
        if let Some((cep, _)) = self.connection.filter(|_| !self.ended) {
            self.ended = true;
            self.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now);
        }
    }

    /// The next TSDU: its number, and some more octets that follow from it.
    pub fn send(&mut self, now: Time) {
        let Some((cep, most)) = self.connection.filter(|_| !self.ended) else { return };
        let Some(mut buffer) = self.free.pop() else { return };
        let tsdu = tsdu(self.tsdus[0], most);
        self.tsdus[0] += 1;
        self.put(&mut buffer, &tsdu);
        self.request(Request::Data { cep, buffer, end: true }, now);
    }

    pub fn send_expedited(&mut self, now: Time) {
        let Some((cep, _)) = self.connection.filter(|_| !self.ended) else { return };
        let Some(mut buffer) = self.free.pop() else { return };
        let number = self.expedited[0].to_be_bytes();
        self.expedited[0] += 1;
        self.put(&mut buffer, &number);
        self.request(Request::Expedited { cep, buffer }, now);
    }

    fn put(&self, buffer: &mut Buffer, octets: &[u8]) {
        self.arena.room(buffer)[..octets.len()].copy_from_slice(octets);
        self.arena.fill(buffer, octets.len());
    }

    /// An NSDU has come. Without a buffer for it, it is lost.
    pub fn deliver(&mut self, from: Peer, octets: &[u8], now: Time) -> bool {
        let Some(mut buffer) = self.receive.pop() else { return false };
        self.put(&mut buffer, octets);
        self.transport.indication(Indication::Unitdata { from, buffer }, now, &mut self.out);
        self.run(now);
        true
    }

    pub fn expire(&mut self, now: Time) {
        self.transport.expire(now, &mut self.out);
        self.run(now);
    }

    /// The user reads what it has kept.
    pub fn read(&mut self, now: Time) {
        for buffer in std::mem::take(&mut self.kept) {
            self.request(Request::Return { buffer }, now);
        }
    }

    fn request(&mut self, request: Request, now: Time) {
        self.transport.request(request, now, &mut self.out);
        self.run(now);
    }

    fn run(&mut self, now: Time) {
        loop {
            let Some(indication) = self.out.up.pop_front() else {
                self.transport.settle(now, &mut self.out);
                let Some(request) = self.out.down.pop_front() else {
                    if self.out.up.is_empty() {
                        return;
                    }
                    continue;
                };
                match request {
                    Request::Unitdata { to, buffer } => {
                        self.sent.push_back((to, self.arena.octets(&buffer).to_vec()));
                        self.transport.indication(Indication::complete(buffer, Fate::Sent), now, &mut self.out);
                    }
                    Request::Return { buffer } => self.receive.push(buffer),
                    other => panic!("{other:?}"),
                }
                continue;
            };
            self.indicated(indication, now);
        }
    }

    fn indicated(&mut self, indication: Indication, now: Time) {
        let is_ours = |cep| self.connection.is_some_and(|it| it.0 == cep) && !self.ended;
        match indication {
            Indication::Connect { cep, from, details, most } => {
                let wanted = from == OTHER && details.called == b"B" && (self.connection.is_none() || self.ended);
                if wanted {
                    self.connection = Some((cep, most as usize));
                    (self.ended, self.tsdus, self.expedited) = (false, [0; 2], [0; 2]);
                }
                match self.answers {
                    false => self.unanswered.push(cep),
                    true => self.answer(cep, wanted, now),
                }
            }
            Indication::Confirm { cep, most, .. } if self.connection.is_none() || self.ended => {
                (self.connection, self.ended) = (Some((cep, most as usize)), false);
            }
            // This host has accepted another connection in the meantime.
            Indication::Confirm { cep, .. } => self.answer(cep, false, now),
            Indication::Refused { .. } => self.ended |= self.connection.is_none(),
            Indication::Disconnect { cep, .. } => {
                self.ended |= is_ours(cep);
                self.unanswered.retain(|&it| it != cep);
            }
            Indication::Data { cep, buffer, end } => {
                let most = self.connection.map_or(0, |it| it.1);
                let right = is_ours(cep) && end && self.arena.octets(&buffer) == tsdu(self.tsdus[1], most);
                self.wrong += u32::from(!right);
                self.tsdus[1] += 1;
                self.give(buffer, now);
            }
            Indication::Expedited { cep, buffer } => {
                let right = is_ours(cep) && self.arena.octets(&buffer) == self.expedited[1].to_be_bytes();
                self.wrong += u32::from(!right);
                self.expedited[1] += 1;
                self.give(buffer, now);
            }
            Indication::Complete { buffer, .. } => {
                assert_eq!(buffer.offset(), 128, "a buffer comes back as it was lent");
                self.free.push(buffer);
            }
            Indication::Stalled { .. } | Indication::Resumed { .. } => {}
            other @ Indication::Unitdata { .. } => panic!("{other:?}"),
        }
    }

    fn give(&mut self, buffer: Buffer, now: Time) {
        match self.reads {
            true => self.transport.request(Request::Return { buffer }, now, &mut self.out),
            false => self.kept.push(buffer),
        }
    }

    fn answer(&mut self, cep: Cep, accept: bool, now: Time) {
        let answer = match accept {
            true => Request::Accept { cep, user_data: Vec::new() },
            false => Request::Disconnect { cep, reason: Reason::NOT_ATTACHED },
        };
        self.transport.request(answer, now, &mut self.out);
    }

    /// The user answers those who have waited.
    pub fn answer_all(&mut self, now: Time) {
        self.answers = true;
        for cep in std::mem::take(&mut self.unanswered) {
            self.answer(cep, self.connection.is_some_and(|it| it.0 == cep), now);
        }
        self.run(now);
    }

    /// Where every buffer is that is not on its way.
    pub fn assert_nothing_is_lost(&self) {
        let own = self.transport.pooled();
        let all = self.free.len() + self.receive.len() + self.kept.len() + own;
        assert_eq!(all, FRAMES as usize, "{} free, {} to receive into, {own} own", self.free.len(), self.receive.len());
    }
}

fn tsdu(number: u32, most: usize) -> Vec<u8> {
    let mut octets = number.to_be_bytes().to_vec();
    octets.extend((0..number as usize * 37 % (most - 4)).map(|at| (at as u32 ^ number) as u8));
    octets
}

//! An entity, its user, and a network on which the test is the other end.

use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Cep, Details, Fate, Indication, Peer, Request, Time};
use underpass_engine::transport::{Config, Counters, Transport};
use underpass_engine::wire::Writer;
use underpass_engine::wire::tpdu::*;
use underpass_link::arena::{Arena, Buffer, Geometry};

/// The test's reference.
pub const THEIRS: u16 = 77;

pub struct Entity {
    transport: Transport,
    arena: Arena,
    out: Outbox,
    config: Config,
    pub now: Time,
    free: Vec<Buffer>,
    /// Of its own pool, transmitted and not given back yet; only where `keeps`.
    pub lent: Vec<Buffer>,
    pub keeps: bool,
    /// What it has said, and to which peer.
    sent: Vec<(Peer, Vec<u8>)>,
    /// What its user was told, but for data, and for stalls and their ends.
    pub told: Vec<Indication>,
    pub stalls: Vec<Indication>,
    /// What has become of what its user has sent.
    pub fates: Vec<(Option<Cep>, Fate)>,
    /// Data that its user has not read, expedited data too.
    pub data: Vec<Buffer>,
}

impl Entity {
    pub fn new(config: Config) -> Entity {
        Entity::over(config, Geometry { frames: 256, frame_size: 512, headroom: 128 }, 16)
    }

    /// Over frames of its own kind, so many of them its own.
    pub fn over(config: Config, geometry: Geometry, pool: usize) -> Entity {
        let (arena, mut free) = Arena::new(geometry);
        let pool = free.split_off(free.len() - pool).into_iter().collect();
        Entity {
            transport: Transport::new(config, arena.clone(), pool, Time(0)),
            arena,
            out: Outbox::default(),
            config,
            now: Time(1),
            free,
            lent: Vec::new(),
            keeps: false,
            sent: Vec::new(),
            told: Vec::new(),
            stalls: Vec::new(),
            fates: Vec::new(),
            data: Vec::new(),
        }
    }

    pub fn format(&self) -> Format {
        if self.config.extended { Format::Extended } else { Format::Normal }
    }

    pub fn counters(&self) -> Counters {
        self.transport.counters()
    }

    pub fn connections(&self) -> usize {
        self.transport.connections()
    }

    /// Its list of connections that wait for promises, in words.
    pub fn short(&self) -> String {
        let all = format!("{:?}", self.transport);
        let list = all.split_once("short: [").and_then(|it| it.1.split_once(']')).expect("a list");
        list.0.to_string()
    }

    pub fn request(&mut self, request: Request) {
        self.transport.request(request, self.now, &mut self.out);
        self.settle();
    }

    /// The user asks for a connection, which takes what goes with `details`.
    pub fn connect(&mut self, to: Peer, details: Details) {
        self.request(Request::Connect { tag: 1, to, details: Box::new(details) });
    }

    pub fn send(&mut self, cep: Cep, octets: &[u8]) {
        self.send_part(cep, octets, true);
    }

    /// A part of a TSDU, the last one or not.
    pub fn send_part(&mut self, cep: Cep, octets: &[u8], end: bool) {
        let buffer = self.buffer(octets);
        self.request(Request::Data { cep, buffer, end });
    }

    /// The network carries packets of so many octets from now on.
    pub fn resize(&mut self, most: usize) {
        self.transport.resize(most);
    }

    /// How much a connection would send at once.
    pub fn room(&self, cep: Cep) -> i64 {
        self.transport.room(cep)
    }

    /// Buffers that nobody uses.
    pub fn unused(&self) -> usize {
        self.free.len()
    }

    pub fn send_expedited(&mut self, cep: Cep, octets: &[u8]) {
        let buffer = self.buffer(octets);
        self.request(Request::Expedited { cep, buffer });
    }

    /// The user has read so many buffers.
    pub fn read(&mut self, buffers: usize) {
        for buffer in self.data.drain(..buffers).collect::<Vec<_>>() {
            self.request(Request::Return { buffer });
        }
    }

    fn buffer(&mut self, octets: &[u8]) -> Buffer {
        let mut buffer = self.free.pop().expect("a buffer is left");
        self.arena.room(&mut buffer)[..octets.len()].copy_from_slice(octets);
        self.arena.fill(&mut buffer, octets.len());
        buffer
    }

    /// A TPDU comes, and behind it user data where it is a DT.
    pub fn hear(&mut self, from: Peer, tpdu: &Tpdu<'_>, user_data: &[u8]) {
        let mut octets = [0; 512];
        let mut to = Writer::new(&mut octets);
        tpdu.emit(self.format(), user_data, &mut to).expect("it is short enough");
        if let Tpdu::Dt(_) = tpdu {
            to.put(user_data).expect("it is short enough");
        }
        let octets = to.written().to_vec();
        self.hear_octets(from, &octets);
    }

    pub fn hear_octets(&mut self, from: Peer, octets: &[u8]) {
        let buffer = self.buffer(octets);
        self.transport.indication(Indication::Unitdata { from, buffer }, self.now, &mut self.out);
        self.settle();
    }

    /// A DT comes that asks for an AK, and its user has read it before anything is said.
    pub fn data_comes_and_is_read(&mut self, from: Peer, dst_ref: u16, number: u32) {
        let dt = Data { dst_ref, number, eot: true, roa: true, checksum: self.config.checksum, expedited: None };
        let mut octets = [0; 64];
        let mut to = Writer::new(&mut octets);
        Tpdu::Dt(dt).emit(self.format(), b"data", &mut to).and_then(|()| to.put(b"data")).expect("it is short enough");
        let buffer = self.buffer(to.written());
        self.transport.indication(Indication::Unitdata { from, buffer }, self.now, &mut self.out);
        let Some(Indication::Data { buffer, .. }) = self.out.up.pop_front() else { panic!("{number} is not taken") };
        self.transport.request(Request::Return { buffer }, self.now, &mut self.out);
        self.settle();
    }

    /// Lets so much time pass.
    pub fn run(&mut self, nanoseconds: u64) {
        let until = self.now.after(nanoseconds);
        while let Some(due) = self.transport.due().filter(|&it| it <= until) {
            self.now = self.now.max(due);
            self.transport.expire(self.now, &mut self.out);
            self.settle();
        }
        self.now = until;
    }

    /// The network gives back what it has kept.
    pub fn complete(&mut self, buffers: usize) {
        self.complete_as(buffers, Fate::Sent);
    }

    /// The network gives back what it has kept, and says what has become of it.
    pub fn complete_as(&mut self, buffers: usize, fate: Fate) {
        for buffer in self.lent.drain(..buffers).collect::<Vec<_>>() {
            self.transport.indication(Indication::complete(buffer, fate), self.now, &mut self.out);
            self.settle();
        }
    }

    fn settle(&mut self) {
        loop {
            self.transport.settle(self.now, &mut self.out);
            if let Some(request) = self.out.down.pop_front() {
                match request {
                    Request::Unitdata { to, buffer } => {
                        self.sent.push((to, self.arena.octets(&buffer).to_vec()));
                        match self.keeps {
                            true => self.lent.push(buffer),
                            false => {
                                let complete = Indication::complete(buffer, Fate::Sent);
                                self.transport.indication(complete, self.now, &mut self.out);
                            }
                        }
                    }
                    Request::Return { buffer } => self.free.push(buffer),
                    other => panic!("{other:?}"),
                }
            } else if let Some(indication) = self.out.up.pop_front() {
                match indication {
                    Indication::Data { buffer, .. } | Indication::Expedited { buffer, .. } => self.data.push(buffer),
                    Indication::Complete { buffer, cep, fate } => {
                        self.fates.push((cep, fate));
                        self.free.push(buffer);
                    }
                    it @ (Indication::Stalled { .. } | Indication::Resumed { .. }) => self.stalls.push(it),
                    other => self.told.push(other),
                }
            } else {
                return;
            }
        }
    }

    /// The octets of what it has said since this was last asked.
    pub fn octets(&mut self) -> Vec<Vec<u8>> {
        self.sent.drain(..).map(|it| it.1).collect()
    }

    /// The peers that it has sent something to since.
    pub fn peers(&mut self) -> Vec<Peer> {
        self.sent.drain(..).map(|it| it.0).collect()
    }

    /// What it has said since, in words.
    pub fn said(&mut self) -> Vec<String> {
        self.words_of(|_| true)
    }

    /// What it has said since to this peer, in words; what it has said to others is forgotten.
    pub fn said_to(&mut self, peer: Peer) -> Vec<String> {
        self.words_of(|it| it == peer)
    }

    fn words_of(&mut self, is_asked: impl Fn(Peer) -> bool) -> Vec<String> {
        let format = self.format();
        let words = |octets: Vec<u8>| {
            let words = |tpdu| Tpdu::parse(tpdu, format).expect("a TPDU").0.to_string();
            separate(&octets).map(words).collect::<Vec<_>>().join("; ")
        };
        self.sent.drain(..).filter(|it| is_asked(it.0)).map(|it| words(it.1)).collect()
    }

    /// A connection that the user has asked for is open: its number, and its reference.
    pub fn opened(&mut self, to: Peer, credit: u8) -> (Cep, u16) {
        self.connect(to, Details { expedited: true, ..Details::default() });
        let cr = self.octets().pop().expect("a CR");
        let Ok((Tpdu::Cr(cr), _)) = Tpdu::parse(&cr, Format::Normal) else { panic!("{cr:?}") };
        let ours = cr.src_ref;
        let options = Some(AdditionalOptions(0x31 | if self.config.checksum { 0 } else { 2 }));
        let parameters = Parameters { preferred_size: cr.parameters.preferred_size, options, ..Parameters::default() };
        let checksum = self.config.checksum;
        let cc = Connect { credit, dst_ref: ours, src_ref: THEIRS, checksum, parameters, ..cr };
        self.hear(to, &Tpdu::Cc(cc), &[]);
        self.said();
        match self.told.pop() {
            Some(Indication::Confirm { cep, .. }) => (cep, ours),
            other => panic!("{other:?}"),
        }
    }

    /// An AK of the other end's.
    pub fn acknowledge(&mut self, dst_ref: u16, number: u32, credit: u16, subsequence: Option<u16>) {
        let checksum = self.config.checksum;
        let ak = Acknowledge {
            dst_ref,
            number,
            credit,
            checksum,
            subsequence,
            confirmation: None,
            selective: None,
            marks: None,
        };
        self.hear(Peer(0), &Tpdu::Ak(ak), &[]);
    }

    /// An AK of the other end's that says what has come behind gaps.
    pub fn selects(&mut self, dst_ref: u16, number: u32, credit: u16, runs: &[(u32, u32)]) {
        let mut room = [0; 8 * Selective::MOST];
        let selective = Some(Selective::new(runs.iter().copied(), self.format(), &mut room));
        let (checksum, subsequence, confirmation, marks) = (self.config.checksum, None, None, None);
        let ak = Acknowledge { dst_ref, number, credit, checksum, subsequence, confirmation, selective, marks };
        self.hear(Peer(0), &Tpdu::Ak(ak), &[]);
    }

    /// A DT of the other end's.
    pub fn data_comes(&mut self, from: Peer, dst_ref: u16, number: u32) {
        let checksum = self.config.checksum;
        let dt = Data { dst_ref, number, eot: true, roa: false, checksum, expedited: None };
        self.hear(from, &Tpdu::Dt(dt), &[1, 2, 3]);
    }
}

/// A CR as others send them.
pub fn cr<'a>() -> Connect<'a> {
    Connect {
        credit: 7,
        dst_ref: 0,
        src_ref: THEIRS,
        class: Class::Four,
        extended: true,
        no_flow_control: false,
        checksum: true,
        parameters: Parameters { options: Some(AdditionalOptions(0)), ..Parameters::default() },
        user_data: &[],
    }
}

//! Carries streams between programs of this host and of others: between the channel that a program shares with this
//! daemon ([`Far`]) and a transport connection to the other program's daemon.
//!
//! An octet is copied twice on either host: by the program and by the carrier. It goes from the program's ring straight
//! into a packet, and from a packet straight into the other program's ring. The carrier takes from a ring only what the
//! transport connection sends at once, and keeps a packet for which a ring has no room. So a slow reader stops its own
//! sender, and no other.

mod message;
mod name;
#[cfg(test)]
mod tests;

use message::{HEADER, Message};
pub use name::Name;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use underpass_engine::datagram::Datagram;
use underpass_engine::layer::Layer;
use underpass_engine::service::{Cep, Details, Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::transport::{Config, Transport};
use underpass_engine::wire::tpdu::Reason;
use underpass_link::arena::{Arena, Buffer};
use underpass_link::udp::Udp;
use underpass_link::{Link, Readiness};
use underpass_segment::far::{Far, Read, Said};
use underpass_segment::ring::Fault;

/// Octets of the longest packet.
const LONGEST_PACKET: usize = 1500;
/// Messages that a stream tells at a time, before the next stream's turn.
const TURN: usize = 32;
/// A daemon whose program has asked first asks the other daemon again after this time, in nanoseconds, then after two
/// times as long, up to the longest.
const AGAIN: u64 = 20_000_000;
const LONGEST: u64 = 2_000_000_000;

/// What has happened, to the stream of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both programs have asked: the daemons carry it from now on, with this key.
    Met(Name, [u64; 2]),
    /// A program sleeps, and there is something for it: it is rung by this line.
    Rings(u64),
    /// The daemons carry it no more. Its program may sleep, and is rung by this line.
    Lost(Name, u64),
}

/// An end of this host whose other end has not asked, as far as is known.
struct Offer {
    far: Far,
    /// The other host's daemon.
    daemon: Peer,
    /// The key of the stream if this daemon opens the connection.
    key: [u64; 2],
    /// When this daemon asks the other one again, and how long it waited the last time. `None`: the other one asks, or
    /// an answer is awaited.
    again: Option<Time>,
    waited: u64,
}

/// A stream that is carried.
struct Stream {
    name: Name,
    far: Far,
    /// Octets of a message at most.
    most: usize,
    /// Packets for which the program's ring has no room yet, and how many octets of the first one are in the ring.
    held: VecDeque<Buffer>,
    put: usize,
    /// What the other daemon was told: that the program is ready, and how far it has read.
    told_ready: bool,
    told_read: Read,
    /// The other program asks where the stream ends: it has come to the end of the kernel stream. It was told.
    is_asked_for_end: bool,
    told_end: bool,
    /// The other daemon was asked so for its program.
    has_asked_for_end: bool,
}

/// A stream is carried no more: its program has closed it, or has broken the rules of its ring.
struct Over;

impl From<Fault> for Over {
    fn from(Fault: Fault) -> Over {
        Over
    }
}

/// All streams of one address of this host.
pub struct Carrier {
    stack: Stack<Box<dyn Link>>,
    arena: Arena,
    free: Vec<Buffer>,
    /// The addresses of daemons.
    daemons: HashMap<Peer, SocketAddr>,
    offers: HashMap<Name, Offer>,
    /// Connections that this daemon has asked for, each with the key that it has told.
    asked: HashMap<u32, (Name, [u64; 2])>,
    last_tag: u32,
    streams: HashMap<Cep, Stream>,
    /// The order of turns.
    turns: VecDeque<Cep>,
    events: VecDeque<Event>,
}

impl Carrier {
    /// A carrier over a UDP socket. Of the buffers of its arena, `pool` are the transport's own and `receive` receive;
    /// the others are for what is sent.
    pub fn over(link: Udp, arena: Arena, mut free: Vec<Buffer>, pool: usize, receive: usize) -> Carrier {
        let mut some = |count: usize| free.split_off(free.len() - count);
        let (pool, buffers) = (some(pool), some(receive));
        let network = Datagram::new(arena.clone(), link.local());
        let most = LONGEST_PACKET - network.headers();
        let config = Config { receive: receive as u32, ..Config::over(link.guarantees(), most) };
        let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(network)];
        layers.append(&mut stack::transport(config, 0, &arena, pool, Time(0)));
        let mut stack = Stack::new(Box::new(link) as Box<dyn Link>, layers);
        buffers.into_iter().for_each(|buffer| stack.link_mut().fill(buffer));
        Carrier {
            stack,
            arena,
            free,
            daemons: HashMap::new(),
            offers: HashMap::new(),
            asked: HashMap::new(),
            last_tag: 0,
            streams: HashMap::new(),
            turns: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// A program of this host has asked for a connection, whose other end is a program of the host of `daemon`. Of the
    /// two daemons the one with the lesser address opens, with its key. False where there is no way to that daemon.
    pub fn offer(&mut self, name: Name, daemon: SocketAddr, far: Far, key: [u64; 2], now: Time) -> bool {
        let Some(peer) = self.stack.layer::<Datagram>().and_then(|it| it.peer(daemon)) else { return false };
        self.daemons.insert(peer, daemon);
        let again = name.opens().then_some(now);
        self.offers.insert(name, Offer { far, daemon: peer, key, again, waited: AGAIN / 2 });
        true
    }

    /// The stream of this name is over, or is carried no more.
    pub fn forget(&mut self, name: Name, now: Time) {
        self.offers.remove(&name);
        self.asked.retain(|_, (asked, _)| *asked != name);
        let ceps: Vec<Cep> = self.streams.iter().filter(|(_, it)| it.name == name).map(|(cep, _)| *cep).collect();
        for cep in ceps {
            self.let_go(cep);
            self.stack.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now);
        }
    }

    /// Whether a program may do something for a stream without ringing: read what was put into its ring, or begin to
    /// read by its library alone.
    pub fn awaits_programs(&self) -> bool {
        self.streams.values().any(|it| !it.told_ready || it.far.awaits_reader())
    }

    /// What has happened.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How many nanoseconds nothing has to be done; `None`: for ever.
    pub fn patience(&self, now: Time) -> Option<u64> {
        let asks = self.offers.values().filter_map(|it| it.again);
        self.stack.due().into_iter().chain(asks).min().map(|due| due.since(now))
    }

    /// What to sleep on.
    pub fn readiness(&self) -> Option<Readiness<'_>> {
        self.stack.link().readiness()
    }

    /// The carrier is about to sleep: programs ring from now on. It has to be [polled](Carrier::poll) once more before.
    pub fn raise_flags(&self) {
        self.streams.values().for_each(|it| it.far.raise_flag());
    }

    /// Carries what there is. Whether there was anything.
    pub fn poll(&mut self, now: Time) -> bool {
        let mut any = self.stack.poll(now);
        while let Some(indication) = self.stack.indication() {
            any = true;
            self.hear(indication, now);
        }
        self.ask(now);
        let mut requests = Vec::new();
        for _ in 0..self.turns.len() {
            let Some(cep) = self.turns.pop_front() else { break };
            any |= match self.carry(cep, &mut requests) {
                Ok(any) => any,
                Err(Over) => {
                    self.lose(cep);
                    requests.push(Request::Disconnect { cep, reason: Reason::UNSPECIFIED });
                    true
                }
            };
            if self.streams.contains_key(&cep) {
                self.turns.push_back(cep);
            }
        }
        if !requests.is_empty() {
            self.stack.requests(requests, now);
        }
        any
    }

    /// Opens connections whose time has come.
    fn ask(&mut self, now: Time) {
        let is_due = |it: &Offer| it.again.is_some_and(|again| again <= now);
        for (name, offer) in self.offers.iter_mut().filter(|(_, offer)| is_due(offer)) {
            self.last_tag = self.last_tag.wrapping_add(1);
            self.asked.insert(self.last_tag, (*name, offer.key));
            (offer.again, offer.waited) = (None, (offer.waited * 2).min(LONGEST));
            let details = name.details(offer.key);
            self.stack
                .request(Request::Connect { tag: self.last_tag, to: offer.daemon, details: Box::new(details) }, now);
        }
    }

    fn hear(&mut self, indication: Indication, now: Time) {
        match indication {
            Indication::Connect { cep, from, details, most } => self.accept(cep, from, &details, most, now),
            Indication::Confirm { tag, cep, most, .. } => match self.asked.remove(&tag) {
                Some((name, key)) if self.offers.get(&name).is_some_and(|it| it.key == key) => {
                    self.begin(name, cep, most, None);
                }
                // What it was asked for is over.
                _ => self.stack.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now),
            },
            Indication::Refused { tag, .. } => {
                if let Some(offer) = self.asked.remove(&tag).and_then(|(name, _)| self.offers.get_mut(&name)) {
                    offer.again = Some(now.after(offer.waited));
                }
            }
            Indication::Data { cep, buffer, .. } => match self.streams.get_mut(&cep) {
                Some(stream) => stream.held.push_back(buffer),
                None => self.stack.request(Request::Return { buffer }, now),
            },
            Indication::Complete { buffer, .. } => self.free.push(buffer),
            Indication::Expedited { buffer, .. } | Indication::Unitdata { buffer, .. } => {
                self.stack.request(Request::Return { buffer }, now);
            }
            Indication::Disconnect { cep, .. } => self.lose(cep),
            // The programs go on by the kernel. When they ask again, the way is tried again.
            Indication::Stalled { cep } => {
                self.lose(cep);
                self.stack.request(Request::Disconnect { cep, reason: Reason::CONGESTION }, now);
            }
            Indication::Resumed { .. } => {}
        }
    }

    /// Another daemon's program has asked.
    fn accept(&mut self, cep: Cep, from: Peer, details: &Details, most: u32, now: Time) {
        let named = Name::asked(details).filter(|(name, _)| !name.opens());
        let known = named.filter(|(name, _)| self.offers.get(name).is_some_and(|it| it.daemon == from));
        match known {
            Some((name, key)) => {
                self.stack.request(Request::Accept { cep, user_data: Vec::new() }, now);
                self.begin(name, cep, most, Some(key));
            }
            None => self.stack.request(Request::Disconnect { cep, reason: Reason::ADDRESS_UNKNOWN }, now),
        }
    }

    /// The connection for the stream of this name is open. `key`: the other daemon's, if it has opened it.
    fn begin(&mut self, name: Name, cep: Cep, most: u32, key: Option<[u64; 2]>) {
        let Some(Offer { far, key: own, .. }) = self.offers.remove(&name) else { return };
        let stream = Stream {
            name,
            far,
            most: most as usize,
            held: VecDeque::new(),
            put: 0,
            told_ready: false,
            told_read: Read::default(),
            is_asked_for_end: false,
            told_end: false,
            has_asked_for_end: false,
        };
        self.streams.insert(cep, stream);
        self.turns.push_back(cep);
        self.events.push_back(Event::Met(name, key.unwrap_or(own)));
    }

    /// The connection is gone.
    fn lose(&mut self, cep: Cep) {
        let lost = self.let_go(cep);
        self.events.extend(lost.map(|(name, line)| Event::Lost(name, line)));
    }

    /// The program of this stream goes on by the kernel. The stream's name, and the line by which its program is rung.
    fn let_go(&mut self, cep: Cep) -> Option<(Name, u64)> {
        let stream = self.streams.remove(&cep)?;
        stream.far.lose();
        let line = stream.far.line();
        let link = self.stack.link_mut();
        stream.held.into_iter().for_each(|buffer| link.fill(buffer));
        Some((stream.name, line))
    }

    /// Data requests that a connection would send at once.
    fn room(&self, cep: Cep) -> usize {
        let top = self.stack.layers().last();
        let transport = top.and_then(|it| (&**it as &dyn Any).downcast_ref::<Transport>());
        transport.map_or(0, |it| it.room(cep).max(0) as usize)
    }

    /// A turn of a stream. Whether there was anything to carry.
    fn carry(&mut self, cep: Cep, requests: &mut Vec<Request>) -> Result<bool, Over> {
        let room = self.room(cep).min(TURN);
        let Some(stream) = self.streams.get_mut(&cep) else { return Ok(false) };
        if stream.far.is_closed() {
            return Err(Over);
        }
        let mut any = stream.put_held(&self.arena, requests)?;
        for _ in 0..room {
            let Some(mut buffer) = self.free.pop() else { break };
            match stream.next(self.arena.room(&mut buffer))? {
                0 => {
                    self.free.push(buffer);
                    break;
                }
                len => {
                    self.arena.fill(&mut buffer, len);
                    requests.push(Request::Data { cep, buffer, end: true });
                    any = true;
                }
            }
        }
        if any && stream.far.takes_flag() {
            self.events.push_back(Event::Rings(stream.far.line()));
        }
        Ok(any)
    }
}

impl Stream {
    /// Puts what has come into the program's ring, as far as there is room. Whether there was anything.
    fn put_held(&mut self, arena: &Arena, requests: &mut Vec<Request>) -> Result<bool, Fault> {
        let mut any = false;
        while let Some(buffer) = self.held.front() {
            match Message::parse(arena.octets(buffer)).ok_or(Fault)? {
                Message::Octets(octets) => {
                    let n = self.far.put(&octets[self.put..])?;
                    any |= n > 0;
                    self.put += n;
                    if self.put < octets.len() {
                        break;
                    }
                }
                Message::Ready => self.far.other_is_ready(),
                Message::Up(number) => self.far.put_up(number),
                Message::End => self.far.put_end(),
                Message::Read(read) => self.far.has_read(read),
                Message::Asks => self.is_asked_for_end = true,
                Message::Plain => {}
            }
            (any, self.put) = (true, 0);
            requests.extend(self.held.pop_front().map(|buffer| Request::Return { buffer }));
        }
        Ok(any)
    }

    /// Writes the next message. Returns its length; 0: there is none.
    fn next(&mut self, to: &mut [u8]) -> Result<usize, Fault> {
        let most = self.most.min(to.len());
        let to = &mut to[..most];
        if !self.told_ready && self.far.is_ready() {
            self.told_ready = true;
            return Ok(Message::Ready.emit(to));
        }
        let read = self.far.progress()?;
        if read != self.told_read {
            self.told_read = read;
            return Ok(Message::Read(read).emit(to));
        }
        match self.far.take(&mut to[HEADER..])? {
            Some(Said::Up(number)) => Ok(Message::Up(number).emit(to)),
            Some(Said::Octets(n)) => Ok(Message::Octets(&[]).emit(to) + n),
            Some(Said::Plain) => Ok(Message::Plain.emit(to)),
            None if self.is_asked_for_end && !self.told_end => {
                self.told_end = true;
                Ok(Message::End.emit(to))
            }
            None if self.far.asks_end() && !self.has_asked_for_end => {
                self.has_asked_for_end = true;
                Ok(Message::Asks.emit(to))
            }
            None => Ok(0),
        }
    }
}

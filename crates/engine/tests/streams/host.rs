//! Hosts over links, and streams between them.

use std::any::Any;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use underpass_engine::datagram::{self, Datagram};
use underpass_engine::layer::Layer;
use underpass_engine::network::{self, Inactive};
use underpass_engine::service::{Cep, Details, Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::transport::{Config, Counters, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_engine::wire::tpdu::Reason;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::faults::{Faults, Odds};

/// What an end has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Its frames.
    pub frames: u32,
    /// How many of them receive.
    pub receive: usize,
    /// DTs that a connection takes at a time.
    pub credit: u16,
}

/// For a stream by itself.
const ROOM: Room = Room { frames: 640, receive: 256, credit: 64 };
/// Frames of an end that the transport has for itself, and that packets are copied into, where some are lost.
const POOL: usize = 64;
const COPIES: usize = 64;
/// Octets behind which something may happen to the ends.
pub const STEP: usize = 256 << 10;
/// How long a step may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub type Host = Stack<Box<dyn Link>>;

/// An address of a host.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// The address of a UDP socket, or of a link that speaks IP.
    Ip(SocketAddr),
    /// The address of an interface.
    Mac(Mac),
}

/// An end: its stack, its memory, and frames of its user.
pub struct End {
    pub host: Host,
    pub arena: Arena,
    pub free: Vec<Buffer>,
    pub address: Address,
}

/// An end over any link, on which something happens to packets.
pub fn over(odds: Odds, seed: u64, open: impl FnOnce(&Arena) -> (Address, Box<dyn Link>)) -> End {
    with(ROOM, odds, seed, open)
}

/// An end over any link, with so much room, on which something happens to packets.
pub fn with(room: Room, odds: Odds, seed: u64, open: impl FnOnce(&Arena) -> (Address, Box<dyn Link>)) -> End {
    let Room { frames, receive, credit } = room;
    let (arena, mut free) = Arena::new(Geometry { frames, frame_size: 2048, headroom: 128 });
    let mut some = |count: usize| free.split_off(free.len() - count);
    let (address, link) = open(&arena);
    let guarantees = link.guarantees();
    let link: Box<dyn Link> =
        if odds == Odds::default() { link } else { Box::new(Faults::new(link, &arena, some(COPIES), odds, seed)) };
    // On loopback a packet is as long as a frame has room for.
    let (network, headers): (Box<dyn Layer>, usize) = match address {
        Address::Ip(local) => (Box::new(Datagram::new(arena.clone(), local)), datagram::HEADERS),
        Address::Mac(own) => (Box::new(Inactive::new(arena.clone(), own)), network::HEADERS),
    };
    let config = Config { receive: receive as u32, credit, marks: true, ..Config::over(guarantees, 1500 - headers) };
    let mut layers = vec![network];
    layers.append(&mut stack::transport(config, 0, &arena, some(POOL), Time(0)));
    let mut host = Stack::new(link, layers);
    some(receive).into_iter().for_each(|buffer| host.link_mut().fill(buffer));
    End { host, arena, free, address }
}

impl End {
    /// Makes the peer with that address known to this host.
    pub fn introduce(&mut self, whom: Address) -> Peer {
        match whom {
            Address::Ip(whom) => {
                self.host.layer::<Datagram>().expect("the network").peer(whom).expect("of the same version")
            }
            Address::Mac(whom) => self.host.layer::<Inactive>().expect("the network").peer(whom),
        }
    }

    fn transport(layers: &[Box<dyn Layer>]) -> &Transport {
        let top: &dyn Any = &**layers.last().expect("two layers");
        top.downcast_ref().expect("transport is the upper one")
    }

    /// What its transport has counted.
    pub fn counters(&self) -> Counters {
        End::transport(self.host.layers()).counters()
    }

    /// Data requests that a connection would send at once.
    pub fn room(&self, cep: Cep) -> i64 {
        End::transport(self.host.layers()).room(cep)
    }

    fn connections(&self) -> usize {
        End::transport(self.host.layers()).connections()
    }

    /// All buffers are where they were.
    fn returns_all(self) {
        let End { host, free, arena, .. } = self;
        let (layers, returned) = host.close();
        let all = free.len() + End::transport(&layers).pooled() + returned.all().len();
        assert_eq!(all, arena.geometry().frames as usize, "buffers are lost");
    }
}

/// Sends so many octets from one end to the other, which must be what they were, in data requests of `piece` octets at
/// most. `between` is called behind each [`STEP`] of them. How many DTs that took, in which time.
pub fn stream(
    mut from: End,
    mut to: End,
    octets: usize,
    piece: usize,
    mut between: impl FnMut(&mut End, &mut End, Time),
) -> (u64, Duration) {
    let begin = Instant::now();
    let (here, there) = (from.address, to.address);
    let peer = from.introduce(there);
    to.introduce(here);
    let now = || Time(begin.elapsed().as_nanos() as u64);
    from.host.request(Request::Connect { tag: 1, to: peer, details: Box::new(Details::default()) }, now());
    let (all, mut progress) = (from.free.len(), begin);
    // Each side has the octets from the same seed.
    let (mut random, mut expected) = (fastrand::Rng::with_seed(5), fastrand::Rng::with_seed(5));
    let (mut open, mut sent, mut came, mut steps): (Option<(Cep, usize)>, usize, usize, usize) = (None, 0, 0, 0);
    while came < octets || from.free.len() < all {
        assert!(progress.elapsed() < PATIENCE, "{came} of {octets} octets, {} of {all} buffers", from.free.len());
        if came / STEP > steps {
            (steps, progress) = (steps + 1, Instant::now());
            between(&mut from, &mut to, now());
        }
        from.host.poll(now());
        to.host.poll(now());
        while let Some(indication) = to.host.indication() {
            match indication {
                Indication::Connect { cep, .. } => {
                    to.host.request(Request::Accept { cep, user_data: Vec::new() }, now());
                }
                Indication::Data { buffer, .. } => {
                    assert!(to.arena.octets(&buffer).iter().all(|it| *it == expected.u8(..)), "behind {came} octets");
                    came += buffer.len();
                    to.host.request(Request::Return { buffer }, now());
                }
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = from.host.indication() {
            match indication {
                Indication::Confirm { cep, most, .. } => open = Some((cep, most as usize)),
                Indication::Complete { buffer, .. } => from.free.push(buffer),
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let Some((cep, most)) = open else { continue };
        let mut requests = Vec::new();
        while sent < octets
            && let Some(mut buffer) = from.free.pop()
        {
            let len = most.min(piece).min(octets - sent);
            from.arena.room(&mut buffer)[..len].fill_with(|| random.u8(..));
            from.arena.fill(&mut buffer, len);
            sent += len;
            requests.push(Request::Data { cep, buffer, end: sent == octets });
        }
        from.host.requests(requests, now());
    }
    assert_eq!((sent, came), (octets, octets));
    let (took, sent) = (begin.elapsed(), from.counters().data_sent);
    if let Some((cep, _)) = open {
        from.host.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now());
    }
    let released = Instant::now();
    while from.connections() + to.connections() > 0 {
        assert!(released.elapsed() < PATIENCE, "the connection is not released");
        for end in [&mut from, &mut to] {
            end.host.poll(now());
            while end.host.indication().is_some() {}
        }
    }
    from.returns_all();
    to.returns_all();
    (sent, took)
}

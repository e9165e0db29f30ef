//! Two ends of a link over a cable.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::driver::Driver;
use underpass_link::error::OpenError;
use underpass_link::ethernet::Ethernet;
use underpass_link::filter::Filter;
use underpass_link::ip::{Header, Template};
use underpass_link::packet::Packet;
use underpass_link::rig::{Cable, INTERFACE, Namespace};
use underpass_link::udp::{self, Udp};
use underpass_link::xdp::{Config, Xdp};

/// How long something that must happen may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The cable, or `None`, said aloud, where none can be had: without root, or without what it needs.
pub fn cable(mtu: usize) -> Option<Cable> {
    let cable = Cable::new(mtu);
    cable.inspect_err(|error| println!("SKIPPED: {error}")).ok()
}

/// One end: a link, its arena, and the buffers that nobody uses.
pub struct End<L> {
    pub arena: Arena,
    pub link: L,
    pub free: Vec<Buffer>,
    out: VecDeque<Buffer>,
}

impl<L: Link> End<L> {
    pub fn new(arena: Arena, free: Vec<Buffer>, link: L) -> End<L> {
        End { arena, link, free, out: VecDeque::new() }
    }

    /// Lends the link so many buffers to receive into.
    pub fn listen(&mut self, buffers: usize) {
        for buffer in self.free.drain(self.free.len() - buffers..) {
            self.link.fill(buffer);
        }
    }

    /// Takes back what was transmitted.
    pub fn reclaim(&mut self) {
        self.link.complete(&mut self.free);
    }

    /// Sends a packet in pieces of so many octets, if there are buffers for it.
    pub fn send(&mut self, packet: &[u8], piece: usize) -> bool {
        let pieces = packet.len().div_ceil(piece);
        if self.free.len() < pieces {
            self.reclaim();
        }
        if self.free.len() < pieces {
            return false;
        }
        for (number, octets) in packet.chunks(piece).enumerate() {
            let Some(mut buffer) = self.free.pop() else { unreachable!("they were counted") };
            self.arena.fill(&mut buffer, octets.len());
            self.arena.octets_mut(&mut buffer).copy_from_slice(octets);
            buffer.go_on(number + 1 < pieces);
            self.out.push_back(buffer);
        }
        self.link.transmit(&mut self.out);
        true
    }

    /// Sends packets, each in one buffer, with one call of the link. There must be buffers for them.
    pub fn send_all(&mut self, packets: &[Vec<u8>]) {
        if self.free.len() < packets.len() {
            self.reclaim();
        }
        for packet in packets {
            let mut buffer = self.free.pop().expect("a buffer for each");
            self.arena.fill(&mut buffer, packet.len());
            self.arena.octets_mut(&mut buffer).copy_from_slice(packet);
            self.out.push_back(buffer);
        }
        self.link.transmit(&mut self.out);
    }

    /// Packets that the link has not taken.
    pub fn left(&self) -> usize {
        self.out.len()
    }

    /// The next packet, if one has come; its buffers are lent again.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let mut buffers = Vec::new();
        if self.link.receive(&mut buffers, 1) == 0 {
            return None;
        }
        let packet = buffers.iter().flat_map(|it| self.arena.octets(it)).copied().collect();
        buffers.into_iter().for_each(|it| self.link.fill(it));
        Some(packet)
    }

    /// The next packet, which must come.
    pub fn expect(&mut self) -> Vec<u8> {
        wait("a packet", || self.receive())
    }
}

impl End<Packet> {
    /// Opens the interface of a namespace.
    pub fn raw(namespace: &Namespace, geometry: Geometry, filter: Filter) -> Result<End<Packet>, OpenError> {
        let (arena, free) = Arena::new(geometry);
        let guarantees = Config::default().guarantees;
        let link = inside(namespace, || Packet::open(INTERFACE, &arena, filter, guarantees))?;
        Ok(End::new(arena, free, link))
    }
}

impl End<Xdp> {
    /// Opens the interface of a namespace.
    pub fn open(namespace: &Namespace, geometry: Geometry, config: &Config) -> Result<End<Xdp>, OpenError> {
        let (arena, free) = Arena::new(geometry);
        let link = inside(namespace, || Xdp::open(INTERFACE, &arena, config))?;
        Ok(End::new(arena, free, link))
    }
}

impl End<Udp> {
    /// Opens an address of a namespace.
    pub fn udp(
        namespace: &Namespace,
        geometry: Geometry,
        local: SocketAddr,
        config: &udp::Config,
    ) -> Result<End<Udp>, OpenError> {
        let (arena, free) = Arena::new(geometry);
        let link = inside(namespace, || Udp::open(local, &arena, config))?;
        Ok(End::new(arena, free, link))
    }
}

impl End<Ethernet> {
    /// Opens an interface of a namespace at an address.
    pub fn ethernet(
        namespace: &Namespace,
        geometry: Geometry,
        driver: Driver,
        local: SocketAddr,
    ) -> Result<End<Ethernet>, OpenError> {
        let (arena, free) = Arena::new(geometry);
        let link = inside(namespace, || Ethernet::open(driver, INTERFACE, local, &arena, &Config::default()))?;
        Ok(End::new(arena, free, link))
    }
}

/// Does something in a namespace.
pub fn inside<R: Send>(namespace: &Namespace, what: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            namespace.enter().expect("the namespace can be entered");
            what()
        });
        thread.join().expect("it does not panic")
    })
}

/// Both ends of a cable, or `None`, said aloud, where there is no AF_XDP.
pub fn ends(cable: &Cable, geometry: Geometry, config: &Config) -> Option<[End<Xdp>; 2]> {
    let [a, b] = cable.ends.each_ref().map(|end| match End::open(end, geometry, config) {
        Ok(end) => Some(end),
        Err(error @ (OpenError::NoPermission { .. } | OpenError::NotInKernel { .. })) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    });
    Some([a?, b?])
}

/// Tries until there is something; panics if that takes too long.
pub fn wait<R>(what: &str, mut get: impl FnMut() -> Option<R>) -> R {
    let begin = Instant::now();
    loop {
        if let Some(it) = get() {
            return it;
        }
        assert!(begin.elapsed() < PATIENCE, "{what} does not come");
        std::thread::yield_now();
    }
}

/// A frame of ours, to all: LLC, and octets that follow from its number, of which the first says that it is CLNP.
pub fn frame(number: u32, len: usize) -> Vec<u8> {
    let ethertype = if len > 1500 { 0x8870 } else { (len - 14) as u16 };
    let mut frame = vec![0xff; 12];
    frame.extend(ethertype.to_be_bytes());
    frame.extend([0xfe, 0xfe, 0x03]);
    assert!(number < 1 << 24, "the first octet of the number stands for CLNP's inactive subset");
    frame.extend(number.to_be_bytes());
    let mut octet = number as u8;
    frame.resize_with(len, || {
        octet = octet.wrapping_mul(5).wrapping_add(7);
        octet
    });
    frame
}

/// The addresses of the ends, with each version of IP; the rig gives the first two.
pub const FOUR: [&str; 2] = ["10.9.0.1:700", "10.9.0.2:700"];
pub const SIX: [&str; 2] = ["[fd09::1]:700", "[fd09::2]:700"];

pub fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address and a port")
}

/// A cable whose ends have addresses of both versions, and over which packets go: for a while after it was laid the
/// kernel throws them away, until it has noticed that the other end is up.
pub fn dual_cable(mtu: usize) -> Option<Cable> {
    let cable = cable(mtu)?;
    for (end, own) in cable.ends.iter().zip(SIX) {
        end.add_address(INTERFACE, address(own).ip(), 64).expect("an address of IPv6");
    }
    for at in [FOUR, SIX] {
        until_up(cable.ends.each_ref(), at);
    }
    Some(cable)
}

/// Waits until packets go from each of two addresses to the other.
pub fn until_up(namespaces: [&Namespace; 2], at: [&str; 2]) {
    let bind = |end: usize| inside(namespaces[end], || UdpSocket::bind(at[end])).expect("an address of its own");
    let ends = [bind(0), bind(1)];
    for (from, to) in [(0, 1), (1, 0)] {
        ends[to].set_nonblocking(true).expect("it is a socket");
        wait("a packet over the cable", || {
            ends[from].send_to(&[], at[to]).ok()?;
            ends[to].recv(&mut []).ok()
        });
    }
}

/// All buffers are where they were.
pub fn returns_all<L: Link>(end: End<L>, geometry: Geometry) {
    let all = end.free.len() + Box::new(end.link).close().all().len();
    assert_eq!(all, geometry.frames as usize, "buffers are lost");
}

/// A datagram from one end to another whose octets follow from its number, as it goes over a link that carries IP.
pub fn datagram(header: Header, number: u32, data: usize) -> Vec<u8> {
    let template = Template::new(header).expect("addresses of one version");
    let mut packet = vec![0; template.size()];
    template.write(&mut packet, data);
    let mut octet = number as u8;
    let octets = number.to_be_bytes().into_iter().chain(std::iter::from_fn(|| {
        octet = octet.wrapping_mul(5).wrapping_add(7);
        Some(octet)
    }));
    packet.extend(octets.take(data));
    packet
}

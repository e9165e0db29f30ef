//! The link over an interface whose packets are UDP datagrams: AF_XDP, or a packet socket, with Ethernet, IP and UDP in
//! front of what it carries, so that the other end may be a UDP socket ([`crate::udp`]) as well.
//!
//! Packets are as over [`crate::udp`]: they begin with the headers of IP and UDP, whose sums this link writes and
//! verifies. It has a UDP socket at the same address beside it. The kernel so takes the port for used and answers
//! nothing that comes to it; and what cannot be sent directly goes through that socket: to a neighbour that is not
//! known yet, by another interface, or within this host. Neighbours, routes and the length of packets are the kernel's,
//! which says when they change.
//!
//! Over AF_XDP datagrams come past the kernel; those that its program leaves to it (with options, in fragments, over
//! other queues) come by the UDP socket. A packet socket would see copies of what the kernel gives to the UDP socket in
//! any case, joined or unfinished as it has them, so there everything comes by the UDP socket, and the packet socket
//! sends.

mod frame;
mod ways;

use crate::arena::{Arena, Buffer};
use crate::driver::{Driven, Driver};
use crate::error::{Fault, OpenError};
use crate::filter::Filter;
use crate::interface::Interface;
use crate::ip::{self, Header};
use crate::udp::{self, Udp};
use crate::xdp::Config;
use crate::{Counters, Guarantees, LOOK, Link, Readiness, Returned, Watch};
use frame::{HEADER, Whom};
use rustix::event::{PollFlags, epoll};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use ways::Ways;

/// If the UDP socket is not the only one to receive, it gets one in [`PART`] frames to receive into, and at most
/// [`MOST`].
const PART: usize = 8;
const MOST: usize = 128;
/// Every so often the UDP socket is looked at, in calls, while packets come past it.
const TURNS: u32 = 8;
/// How often a sender that never sleeps hears what has changed.
const HEARING: Duration = Duration::from_millis(10);

/// What went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// Past the kernel.
    pub direct: Counters,
    /// Through the UDP socket.
    pub kernel: Counters,
    /// Frames that came past the kernel and were no datagrams for this address, or not as they were sent.
    pub wrong: u64,
}

/// A link over an interface and a UDP socket.
pub struct Ethernet {
    direct: Driven,
    kernel: Udp,
    /// How both were opened, and where.
    config: Config,
    interface: String,
    arena: Arena,
    ways: Ways,
    whom: Whom,
    mode: String,
    /// Octets of the longest packet that goes directly.
    longest: usize,
    /// Whether packets come directly; buffers that the UDP socket has to receive into, and how many it is to have.
    receives: bool,
    with_kernel: usize,
    share: usize,
    turn: u32,
    /// Packets that go either way, while a call lasts; and the last one was no whole packet.
    by_direct: VecDeque<Buffer>,
    by_kernel: VecDeque<Buffer>,
    in_pieces: bool,
    come: Vec<Buffer>,
    wrong: u64,
    /// When to hear what has changed.
    hears: Instant,
    fault: Option<Fault>,
    /// What is slept on: both descriptors, and what the UDP socket's and the interface's are waited for.
    both: OwnedFd,
    awaited: Cell<[PollFlags; 2]>,
}

impl Ethernet {
    /// Opens an interface and an address of this thread's network namespace; with port 0 the kernel chooses one. The
    /// configuration's filter is not heeded.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        driver: Driver,
        interface: &str,
        local: SocketAddr,
        arena: &Arena,
        config: &Config,
    ) -> Result<Ethernet, OpenError> {
        Ethernet::first(driver, interface, local, arena, config, false)
    }

    /// Opens an interface and an address as [`Ethernet::open`] does, so that others of this user may be bound to the
    /// same address, as [`Ethernet::beside`] is: each takes what comes over a queue of the interface, and the kernel
    /// gives what comes through it to one of them for each pair of addresses and ports.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_shared(
        driver: Driver,
        interface: &str,
        local: SocketAddr,
        arena: &Arena,
        config: &Config,
    ) -> Result<Ethernet, OpenError> {
        Ethernet::first(driver, interface, local, arena, config, true)
    }

    /// Another link at the same address, with buffers of the same arena, over this queue of the interface; from a
    /// thread in the same network namespace. Where the device chooses queues by addresses and ports, what a peer sends
    /// from one port comes over one link.
    ///
    /// # Errors
    /// See [`OpenError`]; this one was not opened to be [shared](Ethernet::open_shared), or the interface has no such
    /// queue.
    pub fn beside(&self, queue: u32) -> Result<Ethernet, OpenError> {
        let kernel = self.kernel.beside()?;
        let config = Config { queue, ..self.config.clone() };
        let direct = self.direct.beside(&self.interface, &self.arena, &config)?;
        Ethernet::over(kernel, direct, &self.interface, &self.arena, config)
    }

    fn first(
        driver: Driver,
        interface: &str,
        local: SocketAddr,
        arena: &Arena,
        config: &Config,
        shared: bool,
    ) -> Result<Ethernet, OpenError> {
        let kernel = udp::Config { shared, guarantees: config.guarantees, ..udp::Config::default() };
        let kernel = Udp::open(local, arena, &kernel)?;
        let config = Config { filter: Filter::Datagrams(kernel.local()), ..config.clone() };
        let (direct, _) = driver.choose(interface, arena, &config)?;
        Ethernet::over(kernel, direct, interface, arena, config)
    }

    /// A link that sends by `direct` what it can, and all else by the UDP socket.
    fn over(
        kernel: Udp,
        direct: Driven,
        interface: &str,
        arena: &Arena,
        config: Config,
    ) -> Result<Ethernet, OpenError> {
        let system = |doing| move |error| OpenError::System { doing, error };
        let (local, named) = (kernel.local(), Interface::named(interface)?);
        let gone = |_| OpenError::NoInterface { interface: interface.to_string() };
        let address = named.address().map_err(gone)?;
        let ways = Ways::new(named.index(), address, local).map_err(system("listening for changes of the network"))?;
        // If the kernel does not say whether the wire is within this host, checksums have to be right.
        let unfinished = ways.is_within().unwrap_or(false);
        let frames = arena.geometry().frames as usize;
        let receives = direct.driver() == Driver::Xdp;
        Ok(Ethernet {
            mode: format!("UDP in Ethernet over {}", direct.mode()),
            longest: direct.link().whole().saturating_sub(HEADER),
            both: watched(&kernel, direct.link(), receives).map_err(system("making what a thread sleeps on"))?,
            direct,
            kernel,
            config,
            interface: interface.to_string(),
            arena: arena.clone(),
            ways,
            whom: Whom { address, local, unfinished },
            receives,
            with_kernel: 0,
            share: if receives { (frames / PART).clamp(1, MOST) } else { frames },
            turn: 0,
            by_direct: VecDeque::with_capacity(frames),
            by_kernel: VecDeque::with_capacity(frames),
            in_pieces: false,
            come: Vec::with_capacity(frames),
            wrong: 0,
            hears: Instant::now(),
            fault: None,
            awaited: Cell::new([PollFlags::empty(); 2]),
        })
    }

    /// The address that the link is bound to: the source of packets that it sends, and the destination of packets that
    /// it receives.
    pub fn local(&self) -> SocketAddr {
        self.whom.local
    }

    /// How packets go, e.g. `UDP in Ethernet over native XDP, copy`.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// What went which way.
    pub fn sides(&self) -> Sides {
        Sides { direct: self.direct.link().counters(), kernel: self.kernel.counters(), wrong: self.wrong }
    }

    /// Octets of the longest packet that goes to a peer, as [`Udp::path`] says.
    ///
    /// # Errors
    /// There is no way to it.
    pub fn path(&mut self, peer: SocketAddr) -> Result<usize, Fault> {
        self.kernel.path(peer).map(|it| it.min(self.most()))
    }

    /// Octets that come and go in a frame, unless nothing comes directly: the UDP socket knows then.
    fn most(&self) -> usize {
        if self.receives && self.longest > 0 { self.longest } else { ip::LONGEST }
    }

    /// What goes in front of a packet; none if the kernel is to send it, or to refuse it.
    #[inline]
    fn front(&mut self, packet: &Buffer) -> Option<[u8; HEADER]> {
        let was_piece = std::mem::replace(&mut self.in_pieces, packet.goes_on());
        if was_piece || packet.goes_on() || (packet.offset() as usize) < HEADER {
            return None;
        }
        let octets = self.arena.octets(packet);
        let (header, data) = Header::parse(octets).ok()?;
        let peer = header.destination;
        let is_whole = header.size() + data.len() == octets.len();
        let is_ours = header.source == self.whom.local && peer.port() != 0;
        let fits = octets.len() <= self.longest && octets.len() <= self.kernel.longest(peer);
        if is_whole && is_ours && fits { self.ways.header(peer) } else { None }
    }

    /// Hears what has changed, if it did not a moment ago.
    fn keep_up(&mut self) {
        let now = Instant::now();
        if now >= self.hears {
            self.hears = now + HEARING;
            self.hear();
        }
    }

    /// Hears what has changed.
    fn hear(&mut self) {
        self.kernel.hear();
        if self.ways.hear() {
            self.kernel.renew();
            self.look();
        }
    }

    /// Looks at the interface.
    fn look(&mut self) {
        if let Err(fault) = self.direct.link_mut().check() {
            self.fault = Some(fault);
        }
        self.longest = self.direct.link().whole().saturating_sub(HEADER);
    }

    /// Takes packets that the kernel has received for the UDP socket.
    fn take_of_kernel(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let count = self.kernel.receive(packets, most);
        self.with_kernel -= count;
        count
    }

    /// Takes frames that have come directly.
    fn take(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let Ethernet { direct, arena, whom, come, wrong, .. } = self;
        let direct = direct.link_mut();
        direct.receive(come, most);
        let (before, mut is_piece) = (packets.len(), false);
        for mut buffer in come.drain(..) {
            let goes_on = buffer.goes_on();
            // A packet in pieces is longer than the longest that this link takes.
            let is_whole = !goes_on && !is_piece;
            is_piece = goes_on;
            match frame::parse(arena.octets(&buffer), whom) {
                Ok(len) if is_whole => {
                    buffer.pull(HEADER);
                    buffer.truncate(len);
                    ip::clear_sums(arena.octets_mut(&mut buffer));
                    packets.push(buffer);
                }
                _ => {
                    *wrong += u64::from(!goes_on);
                    direct.fill(buffer);
                }
            }
        }
        packets.len() - before
    }
}

/// What a thread sleeps on until either has something. What changes meanwhile is heard before the next packet is sent.
fn watched(kernel: &Udp, direct: &dyn Link, receives: bool) -> std::io::Result<OwnedFd> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let nothing = epoll::EventFlags::empty();
    if let Some(readiness) = kernel.readiness() {
        epoll::add(&both, readiness.descriptor, epoll::EventData::new_u64(0), nothing)?;
    }
    if let (true, Some(readiness)) = (receives, direct.readiness()) {
        epoll::add(&both, readiness.descriptor, epoll::EventData::new_u64(1), nothing)?;
    }
    Ok(both)
}

impl Debug for Ethernet {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.mode, self.local())
    }
}

impl Link for Ethernet {
    fn guarantees(&self) -> Guarantees {
        self.kernel.guarantees()
    }

    /// The longest packet that every peer takes to which packets went, or which was asked for ([`Ethernet::path`]).
    fn mtu(&self) -> usize {
        self.kernel.mtu().min(self.most())
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        self.keep_up();
        while let Some(mut packet) = packets.pop_front() {
            match self.front(&packet) {
                Some(header) => {
                    ip::write_sums(self.arena.octets_mut(&mut packet));
                    self.arena.push(&mut packet, HEADER).copy_from_slice(&header);
                    self.by_direct.push_back(packet);
                }
                None => self.by_kernel.push_back(packet),
            }
        }
        self.in_pieces = false;
        if !self.by_direct.is_empty() {
            self.direct.link_mut().transmit(&mut self.by_direct);
        }
        if !self.by_kernel.is_empty() {
            self.kernel.transmit(&mut self.by_kernel);
        }
        // What they have not taken is as it was.
        while let Some(packet) = self.by_kernel.pop_back() {
            packets.push_front(packet);
        }
        while let Some(mut packet) = self.by_direct.pop_back() {
            packet.pull(HEADER);
            packets.push_front(packet);
        }
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        let before = done.len();
        self.direct.link_mut().complete(done);
        done[before..].iter_mut().for_each(|it| it.pull(HEADER));
        self.kernel.complete(done);
    }

    fn holds_back(&self) -> bool {
        self.kernel.holds_back()
    }

    fn fill(&mut self, buffer: Buffer) {
        if self.with_kernel < self.share {
            self.with_kernel += 1;
            self.kernel.fill(buffer);
        } else {
            self.direct.link_mut().fill(buffer);
        }
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        self.turn = self.turn.wrapping_add(1);
        let is_kernels_turn = self.turn.is_multiple_of(TURNS);
        // First, since a busy direct side leaves no room behind it.
        let mut count = if is_kernels_turn { self.take_of_kernel(packets, most) } else { 0 };
        if self.receives {
            count += self.take(packets, most - count);
        }
        if count == 0 && !is_kernels_turn {
            count = self.take_of_kernel(packets, most);
        }
        count
    }

    fn watch(&mut self) -> Watch {
        self.keep_up();
        if self.receives && self.direct.link_mut().watch() == Watch::Ready {
            return Watch::Ready;
        }
        self.kernel.watch()
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        let (kernel, direct) = (self.kernel.readiness()?, self.direct.link().readiness()?);
        let wanted = [kernel.events, if self.receives { direct.events } else { PollFlags::empty() }];
        let mut heard = true;
        for ((number, readiness), (is, was)) in
            (0u64..).zip([kernel, direct]).zip(wanted.into_iter().zip(self.awaited.get()))
        {
            if is != was {
                let mut events = epoll::EventFlags::empty();
                events.set(epoll::EventFlags::IN, is.contains(PollFlags::IN));
                events.set(epoll::EventFlags::OUT, is.contains(PollFlags::OUT));
                let data = epoll::EventData::new_u64(number);
                heard &= epoll::modify(&self.both, readiness.descriptor, data, events).is_ok();
            }
        }
        if heard {
            self.awaited.set(wanted);
        }
        let readiness = Readiness { descriptor: self.both.as_fd(), events: PollFlags::IN, look: kernel.look };
        Some(readiness.look_after(direct.look).look_after((!heard).then_some(LOOK)))
    }

    fn counters(&self) -> Counters {
        let Sides { direct, kernel, wrong } = self.sides();
        Counters {
            sent: direct.sent + kernel.sent,
            received: direct.received - wrong.min(direct.received) + kernel.received,
            lost: direct.lost + kernel.lost + wrong,
            refused: direct.refused + kernel.refused,
            unsent: direct.unsent + kernel.unsent,
            wakeups: direct.wakeups + kernel.wakeups,
            polls: direct.polls + kernel.polls,
            switches: direct.switches + kernel.switches,
        }
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.hear();
        self.kernel.check()?;
        self.look();
        self.fault.take().map_or(Ok(()), Err)
    }

    fn close(self: Box<Self>) -> Returned {
        let Ethernet { direct, kernel, .. } = *self;
        let mut returned = direct.into_link().close();
        returned.lent.iter_mut().for_each(|it| it.pull(HEADER));
        let Returned { lent, given, own } = Box::new(kernel).close();
        returned.lent.extend(lent);
        returned.given.extend(given);
        returned.own.extend(own);
        returned
    }
}

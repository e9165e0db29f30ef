//! The link that every user may open: UDP sockets, whose packets go wherever IP goes.
//!
//! Packets begin with the headers of IP and UDP ([`crate::ip`]), as over a link that carries them on Ethernet. What
//! goes to one peer goes as segments of one message where the kernel can (`UDP_SEGMENT`), and comes likewise
//! (`UDP_GRO`), many messages with a system call. Packets are not fragmented: the kernel knows how long they may be on
//! the way to each peer, and says when that changes.

mod calls;
mod control;
mod errors;
mod name;
mod pace;
mod paths;
mod receiving;
mod sending;
mod socket;

use crate::arena::{Arena, Buffer, refused};
use crate::error::{Fault, OpenError};
use crate::ip::Header;
use crate::route::Routes;
use crate::{Counters, Guarantees, LOOK, Link, Readiness, Returned, Watch, ip};
use errors::Complaint;
use pace::Pace;
use paths::Paths;
use receiving::Receiving;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::time::{ClockId, clock_gettime};
use sending::{Outcome, Sending, Ways};
use socket::{Abilities, Socket};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

pub use pace::Timekeeper;

/// Errors that are taken from the kernel at a time, how often that is done before packets are given up, and ways that a
/// check asks for again.
const COMPLAINTS: usize = 64;
const TOLD: usize = 64;
const ASKED: usize = 16;

/// How to open a link.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whether packets may go, and come, as segments of one message where the kernel can.
    pub offload: bool,
    /// Whether others of this user may be bound to the same address, as [`Udp::beside`] is (`SO_REUSEPORT` of
    /// socket(7)): the kernel chooses one of them for each pair of addresses and ports.
    pub shared: bool,
    /// What the network promises. UDP's sum has 16 bits, and the kernel may throw away what it has no room for.
    pub guarantees: Guarantees,
}

impl Default for Config {
    fn default() -> Config {
        Config { offload: true, shared: false, guarantees: Guarantees { delivery: false, integrity: false } }
    }
}

/// Whether the kernel has room for what is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// The socket's buffer is full. The socket reports when there is room.
    Full,
    /// Another limit is reached, and no report comes.
    Later,
}

/// A link over a UDP socket.
pub struct Udp {
    socket: Socket,
    arena: Arena,
    config: Config,
    paths: Paths,
    sending: Sending,
    receiving: Receiving,
    /// Whether packets come as segments of a message; and why they do not go so, where the kernel has refused that.
    joins: bool,
    refusal: Option<io::Error>,
    /// Knows by which interface packets leave. Without it none is known to keep times.
    routes: Option<Routes>,
    /// Ways that have a pace, whether one of these may be about to end, and packets whose time has come.
    paced: usize,
    ending: bool,
    timely: VecDeque<Buffer>,
    /// Transmitted, or refused, and not yet asked for.
    done: Vec<Buffer>,
    counters: Counters,
    /// What the kernel has thrown away, of which it counts 32 bits.
    drops: Cell<u64>,
    fault: Option<Fault>,
    /// Whether the kernel has had room for what the user gave last, and for what has waited for its time.
    room: Room,
    timely_room: Room,
    /// A thread has slept on the socket, and may have been woken by an error.
    slept: Cell<bool>,
}

impl Udp {
    /// Opens a socket at an address of this thread's network namespace. With port 0 the kernel chooses one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(local: SocketAddr, arena: &Arena, config: &Config) -> Result<Udp, OpenError> {
        let geometry = arena.geometry();
        if geometry.room() < ip::headers(local) + 1 {
            let (frame_size, headroom) = (geometry.frame_size, geometry.headroom);
            return Err(OpenError::Frames { frame_size, headroom, remedy: "the headers of IP and UDP take 48 octets" });
        }
        let (socket, Abilities { segments, joins }) = Socket::open(local, config.shared, config.offload)?;
        Ok(Udp {
            paths: Paths::default(),
            sending: Sending::new(segments),
            receiving: Receiving::new(arena, socket.local()),
            arena: arena.clone(),
            config: *config,
            joins,
            refusal: None,
            routes: Routes::open().ok(),
            paced: 0,
            ending: false,
            timely: VecDeque::new(),
            done: Vec::with_capacity(geometry.frames as usize),
            counters: Counters::default(),
            drops: Cell::new(0),
            fault: None,
            room: Room::Free,
            timely_room: Room::Free,
            slept: Cell::new(false),
            socket,
        })
    }

    /// Another link at the same address, with buffers of the same arena: the kernel chooses between them for each pair
    /// of addresses and ports, so that what a peer sends from one port comes over one of them, as long as none is
    /// opened or closed.
    ///
    /// # Errors
    /// See [`OpenError`]; this one was not opened to be [shared](Config::shared), or the thread is in another network
    /// namespace.
    pub fn beside(&self) -> Result<Udp, OpenError> {
        Udp::open(self.socket.scoped(), &self.arena, &self.config)
    }

    /// The address that the link is bound to: the source of packets that it sends, and the destination of packets that
    /// it receives.
    pub fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    /// How packets go and come, e.g. `UDP, in segments both ways`.
    pub fn mode(&self) -> String {
        let segments = match (self.sending.joins, self.joins) {
            (true, true) => "in segments both ways",
            (true, false) => "in segments as they go",
            (false, true) => "in segments as they come",
            (false, false) => "each by itself",
        };
        format!("UDP, {segments}")
    }

    /// Why packets go each by itself, where the kernel or the device has refused segments since the link was opened.
    pub fn refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref()
    }

    /// Octets that the kernel keeps for the link until they are read, including its own overhead. Without privileges no
    /// more than twice `net.core.rmem_max`.
    pub fn backlog(&self) -> usize {
        self.socket.backlog()
    }

    /// Octets of the longest packet that goes to a peer, as the kernel knows the way now. From then on [`Link::mtu`]
    /// heeds it, as if a packet had gone there.
    ///
    /// # Errors
    /// There is no way to it.
    pub fn path(&mut self, peer: SocketAddr) -> Result<usize, Fault> {
        let path = self.way(peer)?;
        Ok(self.paths.get(path).mtu.min(self.frame_room()))
    }

    /// Has packets to a peer leave at so many octets in a second at most, headers of IP and UDP counted, or as fast as
    /// they go. Others are not held up meanwhile. Returns whether the kernel or this driver keeps the time.
    ///
    /// # Errors
    /// There is no way to it.
    pub fn pace(&mut self, peer: SocketAddr, rate: Option<NonZeroU64>) -> Result<Timekeeper, Fault> {
        let path = match self.paths.find(peer) {
            Some(path) => path,
            None => self.way(peer)?,
        };
        let (mut before, now) = (self.paths.get_mut(path).pace.take(), monotonic());
        if let (None, Some(pace)) = (rate, before.as_mut().filter(|it| it.is_ahead(now))) {
            pace.end();
            self.paths.get_mut(path).pace = before;
            self.ending = true;
            return Ok(Timekeeper::Link);
        }
        self.paced -= usize::from(before.is_some());
        let Some(rate) = rate else {
            // What waited goes before all that follows.
            self.timely.extend(before.into_iter().flat_map(Pace::into_held));
            self.flush(now);
            return Ok(Timekeeper::Link);
        };
        self.paced += 1;
        let mut pace = match before {
            Some(pace) => pace,
            None => Pace::new(rate, self.timekeeper(peer), now),
        };
        pace.go_on(rate, || self.timekeeper(peer));
        pace.change(rate, now);
        let keeper = pace.keeper;
        self.paths.get_mut(path).pace = Some(pace);
        Ok(keeper)
    }

    /// Whether the kernel can keep the times of packets to a peer, or this driver has to.
    fn timekeeper(&self, peer: SocketAddr) -> Timekeeper {
        let keeps_times = |routes: &Routes| {
            let hop = routes.hop(self.local().ip(), peer.ip(), self.socket.scope())?;
            Ok::<_, io::Error>(routes.keeps_times(hop.interface)? && self.socket.take_times().is_ok())
        };
        match self.routes.as_ref().map(keeps_times) {
            Some(Ok(true)) => Timekeeper::Kernel,
            _ => Timekeeper::Link,
        }
    }

    /// The number of the way to a peer, whose longest packet is asked for.
    fn way(&mut self, peer: SocketAddr) -> Result<u32, Fault> {
        let peer = SocketAddr::new(peer.ip(), peer.port());
        let mtu = self.socket.mtu(peer).map_err(|error| Fault::Unreachable { peer, error })?;
        Ok(match self.paths.find(peer) {
            Some(path) => {
                self.paths.get_mut(path).mtu = mtu;
                path
            }
            None => self.paths.add(peer, self.socket.name(peer), mtu),
        })
    }

    /// Has packets wait for their time whose way has a pace, and leaves the others.
    fn hold(&mut self, packets: &mut VecDeque<Buffer>) {
        for _ in 0..packets.len() {
            let Some(packet) = packets.pop_front() else { return };
            let to = Header::parse(self.arena.octets(&packet)).map(|(header, _)| header.destination);
            let path = to.ok().filter(|_| !packet.goes_on()).and_then(|peer| self.paths.find(peer));
            match path.and_then(|path| self.paths.get_mut(path).pace.as_mut()) {
                Some(pace) => pace.hold(packet),
                None => packets.push_back(packet),
            }
        }
    }

    /// Sends packets whose time has come.
    fn flush(&mut self, now: u64) {
        let mut timely = std::mem::take(&mut self.timely);
        self.timely_room = self.send(&mut timely, None);
        while timely.is_empty()
            && let Some(path) = self.paths.due(now)
        {
            let Some(pace) = &mut self.paths.get_mut(path).pace else { break };
            let departure = pace.take(now, &mut timely).filter(|_| pace.keeper == Timekeeper::Kernel);
            self.timely_room = self.send(&mut timely, departure);
            if let (false, Some(pace)) = (timely.is_empty(), &mut self.paths.get_mut(path).pace) {
                pace.put_back(&mut timely);
                break;
            }
        }
        self.timely = timely;
    }

    /// Sends packets whose time has come, if there may be any.
    fn advance(&mut self) {
        if self.paced > 0 || !self.timely.is_empty() {
            let now = monotonic();
            self.flush(now);
            if self.ending {
                self.paced -= self.paths.end_paces(now);
                self.ending = self.paths.iter().any(|it| it.pace.as_ref().is_some_and(Pace::ends));
            }
        }
    }

    /// Octets of the longest packet to a peer, which is asked for where it is not known; 0 where there is no way.
    #[inline]
    pub(crate) fn longest(&mut self, peer: SocketAddr) -> usize {
        let path = self.paths.find(peer).or_else(|| self.way(peer).ok());
        path.map_or(0, |path| self.paths.get(path).mtu)
    }

    /// Asks for all ways again, since something has changed.
    pub(crate) fn renew(&mut self) {
        for _ in 0..self.paths.len().div_ceil(ASKED) {
            // What hinders it is for `check` to say.
            let _ = self.ask();
        }
    }

    fn frame_room(&self) -> usize {
        self.arena.geometry().room()
    }

    /// What the socket is to be polled for.
    fn awaited(&self) -> PollFlags {
        let to_come = if self.receiving.has_room() { PollFlags::IN } else { PollFlags::empty() };
        if self.waits_for(Room::Full) { to_come | PollFlags::OUT } else { to_come }
    }

    /// Whether something waits for the kernel to have room, of which this is said.
    fn waits_for(&self, room: Room) -> bool {
        [self.room, self.timely_room].contains(&room)
    }

    /// Sends packets from the front, as many as go, which leave at `departure` if that is said.
    fn send(&mut self, packets: &mut VecDeque<Buffer>, departure: Option<u64>) -> Room {
        let (mut told, mut alone) = (0, false);
        while !packets.is_empty() {
            let ways = &mut Ways { arena: &self.arena, socket: &self.socket, paths: &mut self.paths };
            match self.sending.send(ways, packets, departure, alone) {
                Outcome::Nothing => break,
                // The kernel has copied them.
                Outcome::Sent(count) => {
                    self.counters.sent += count as u64;
                    self.done.extend(packets.drain(..count));
                    (told, alone) = (0, false);
                }
                Outcome::Refused(buffers) => self.refuse(packets, buffers),
                Outcome::Lost { packets: count, peer, error } => self.lose(packets, count, peer, error),
                Outcome::Failed { packets: count, peer, octets, error } => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Room::Full,
                    Some(libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => return Room::Later,
                    // Before Linux 6.14 the kernel says so too if the way takes no segments as long as these any more.
                    Some(libc::EIO | libc::EINVAL) if count > 1 => match self.longest_to(peer) {
                        // There is no way, so nothing is known of how long packets may be.
                        0 => self.lose(packets, count, peer, error),
                        longest if longest >= octets => {
                            self.sending.joins = false;
                            self.refusal = Some(error);
                        }
                        _ => {}
                    },
                    Some(libc::EMSGSIZE) => {
                        self.hear();
                        match self.longest_to(peer) {
                            0 => self.lose(packets, count, peer, error),
                            longest if longest < octets => {}
                            _ if count > 1 => alone = true,
                            // Whatever the kernel says of the way.
                            _ => self.refuse(packets, 1),
                        }
                    }
                    // A socket tells first what has become of datagrams of before, in place of sending this one.
                    _ if told < TOLD => {
                        told += 1;
                        self.hear();
                    }
                    _ => self.lose(packets, count, peer, error),
                },
            }
        }
        Room::Free
    }

    fn refuse(&mut self, packets: &mut VecDeque<Buffer>, buffers: usize) {
        self.counters.refused += 1;
        self.done.extend(packets.drain(..buffers).map(refused));
    }

    /// Gives up packets as any network may. They are not refused: the way may be there again when they are sent again.
    fn lose(&mut self, packets: &mut VecDeque<Buffer>, count: usize, peer: SocketAddr, error: io::Error) {
        self.counters.unsent += count as u64;
        self.done.extend(packets.drain(..count));
        self.fault = Some(Fault::Unreachable { peer, error });
    }

    /// Octets of the longest packet to a peer whose way is known, as the kernel knows it now; none where it knows none.
    fn longest_to(&mut self, peer: SocketAddr) -> usize {
        match (self.paths.find(peer), self.socket.mtu(peer)) {
            (Some(path), Ok(mtu)) => {
                self.paths.get_mut(path).mtu = mtu;
                mtu
            }
            _ => 0,
        }
    }

    /// Takes the errors that the kernel reports about earlier datagrams. Any host may have caused one by a forged ICMP
    /// message. So the length of packets is asked for anew, and an unreachable peer is reported upward, but later
    /// packets are sent all the same.
    pub(crate) fn hear(&mut self) {
        for _ in 0..COMPLAINTS {
            let Some(complaint) = errors::next(&self.socket) else { return };
            let Some(Complaint { peer, errno }) = complaint else { continue };
            if self.paths.find(peer).is_none() {
                continue;
            }
            match errno {
                libc::EMSGSIZE => drop(self.longest_to(peer)),
                errno => self.fault = Some(Fault::Unreachable { peer, error: io::Error::from_raw_os_error(errno) }),
            }
        }
    }

    /// Takes all that a thread that sleeps on the socket may have been woken for without a packet.
    #[cold]
    fn take_errors(&mut self) {
        self.hear();
        // What is received would take it.
        if !self.receiving.has_room() {
            self.socket.forget_error();
        }
    }

    /// Asks for the ways again, some at a time.
    fn ask(&mut self) -> Result<(), Fault> {
        let mut unreachable = Ok(());
        for _ in 0..ASKED.min(self.paths.len()) {
            let Some(path) = self.paths.turn() else { break };
            let peer = self.paths.get(path).peer;
            match self.socket.mtu(peer) {
                Ok(mtu) => self.paths.get_mut(path).mtu = mtu,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EADDRNOTAVAIL)) => {
                    return Err(Fault::NoAddress { address: self.local().ip() });
                }
                Err(error) => unreachable = Err(Fault::Unreachable { peer, error }),
            }
        }
        unreachable
    }
}

/// Nanoseconds of the clock by which the kernel has packets leave.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Debug for Udp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.mode(), self.local())
    }
}

impl Link for Udp {
    fn guarantees(&self) -> Guarantees {
        self.config.guarantees
    }

    /// The longest packet that every peer takes to which packets went, or which was asked for ([`Udp::path`]).
    fn mtu(&self) -> usize {
        self.paths.iter().map(|it| it.mtu).min().unwrap_or(ip::LONGEST).min(self.frame_room())
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        if self.paced > 0 {
            self.hold(packets);
        }
        self.advance();
        // What has waited goes first. Where the user has nothing more, it alone waits for room.
        self.room = match (self.timely.is_empty(), packets.is_empty()) {
            (true, _) => self.send(packets, None),
            (false, true) => Room::Free,
            (false, false) => self.timely_room,
        };
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        self.advance();
        done.append(&mut self.done);
    }

    fn holds_back(&self) -> bool {
        self.paced > 0 || !self.timely.is_empty()
    }

    fn fill(&mut self, buffer: Buffer) {
        self.arena.check(&buffer);
        self.receiving.fill(buffer);
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        self.advance();
        let slept = self.slept.replace(false);
        if !self.receiving.has_come() && most > 0 {
            // The first time a socket may tell what has become of what was sent, in place of giving what has come.
            for _ in 0..2 {
                self.counters.polls += 1;
                match self.receiving.receive(&self.socket, most) {
                    Ok(()) if self.receiving.has_room() || !slept => break,
                    Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && !slept => break,
                    _ => self.take_errors(),
                }
            }
        }
        let count = self.receiving.take(packets, most);
        self.counters.received += count as u64;
        count
    }

    fn watch(&mut self) -> Watch {
        self.advance();
        if self.receiving.has_come() {
            return Watch::Ready;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut socket = [PollFd::new(&self.socket, self.awaited())];
        let _ = poll(&mut socket, Some(&now));
        let came = socket[0].revents();
        if came.contains(PollFlags::ERR) {
            self.take_errors();
        }
        if came.contains(PollFlags::IN) { Watch::Ready } else { Watch::Unheard }
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        self.slept.set(true);
        let (come, again) = (self.receiving.has_come(), self.waits_for(Room::Later));
        let readiness = Readiness { descriptor: self.socket.as_fd(), events: self.awaited(), look: None };
        // What is due, and finds no room, is not looked at again before there may be some.
        let is_awaited = self.paced > 0 && self.timely_room == Room::Free;
        let due = if is_awaited { self.paths.next_due() } else { None };
        let due = due.map(|due| Duration::from_nanos(due.saturating_sub(monotonic())));
        Some(readiness.look_after(again.then_some(LOOK)).look_after(come.then_some(Duration::ZERO)).look_after(due))
    }

    fn counters(&self) -> Counters {
        let (before, now) = (self.drops.get(), self.socket.drops());
        self.drops.set(before + u64::from(now.wrapping_sub(before as u32)));
        let (lost, wakeups) = (self.receiving.lost + self.drops.get(), self.sending.calls_made);
        Counters { lost, wakeups, ..self.counters }
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.hear();
        let asked = self.ask();
        if let Err(gone @ Fault::NoAddress { .. }) = asked {
            return Err(gone);
        }
        if let Some((peer, was, is)) = self.paths.changed() {
            return Err(Fault::Path { peer, was, is });
        }
        self.fault.take().map_or(asked, Err)
    }

    fn close(self: Box<Self>) -> Returned {
        let Udp { done: mut lent, timely, paths, receiving, .. } = *self;
        lent.extend(timely.into_iter().chain(paths.into_held()));
        Returned { lent, given: receiving.into_buffers(), own: Vec::new() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

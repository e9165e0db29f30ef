//! The portable driver: a raw packet socket (packet(7)). Packets are copied by the kernel, many with each system call.
#![allow(unsafe_code, reason = "system calls that rustix does not have")]

mod bpf;

use crate::arena::{Arena, Buffer, refused};
use crate::error::{Fault, OpenError};
use crate::filter::Filter;
use crate::interface::Interface;
use crate::option::{get, set};
use crate::{Counters, Guarantees, LOOK, Link, Readiness, Returned, Watch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Packets of one system call, and pieces of one packet.
const BATCH: usize = 64;
const PIECES: usize = 64;
/// Packets that a call asks for at least. Laying out room for many packets of the greatest length takes longer than
/// receiving a short one.
const FEW: usize = 2;
/// The shortest packet: an Ethernet header.
const SHORTEST: usize = 14;
/// How soon to try again to send over an interface that was down.
const DOWN: Duration = Duration::from_millis(10);
/// The protocol of a packet socket to which nothing comes.
const NONE: u16 = 0;
/// Octets that the kernel holds for a socket that does not read.
const BACKLOG: i32 = 4 << 20;

/// A link over an interface.
#[derive(Debug)]
pub struct Packet {
    socket: OwnedFd,
    interface: Interface,
    /// Its address, which the filter knows.
    address: [u8; 6],
    arena: Arena,
    /// To receive into, the next first.
    room: VecDeque<Buffer>,
    /// The arrays of a call, while it lasts; and how many packets the next call asks for.
    calls: Calls,
    asks: usize,
    /// Transmitted, or refused, and not yet asked for.
    done: Vec<Buffer>,
    guarantees: Guarantees,
    longest: usize,
    counters: Counters,
    /// What the kernel says it has thrown away; it forgets that when it has said so.
    lost: Cell<u64>,
    fault: Option<Fault>,
    /// When to try again to send what was not taken; no descriptor tells.
    again: Option<Duration>,
}

/// What sendmmsg(2) and recvmmsg(2) read, laid out anew for each call.
#[derive(Debug)]
struct Calls {
    pieces: Vec<libc::iovec>,
    packets: Vec<libc::mmsghdr>,
}

// SAFETY: the addresses in it are those of a call that is over.
unsafe impl Send for Calls {}

impl Packet {
    /// Opens an interface in this thread's network namespace.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(interface: &str, arena: &Arena, filter: Filter, guarantees: Guarantees) -> Result<Packet, OpenError> {
        let interface = Interface::named(interface)?;
        let gone = |_| OpenError::NoInterface { interface: interface.name().to_string() };
        let address = interface.address().map_err(gone)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // The socket gets no protocol, and so no packets, until it has its filter.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let socket = socket.map_err(OpenError::system("opening a packet socket"))?;
        let configure = || -> io::Result<()> {
            let protocol = match filter.classic(address) {
                Some(mut code) => {
                    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &classic(&mut code))?;
                    libc::ETH_P_ALL as u16
                }
                None => NONE,
            };
            // What this host sends the filter throws away; Linux 4.20 does not even show it.
            let _ = set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
            // Packets go to the device past the queueing discipline, as with AF_XDP.
            set(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)?;
            // More than the user's limit if that is permitted.
            set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &BACKLOG)
                .or_else(|_| set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &BACKLOG))?;
            bind(&socket, interface.index(), protocol)
        };
        let doing = "binding a packet socket";
        configure().map_err(|error| OpenError::System { doing, error })?;
        let mut link = Packet {
            socket,
            interface,
            address,
            arena: arena.clone(),
            room: VecDeque::with_capacity(arena.geometry().frames as usize),
            calls: Calls { pieces: Vec::with_capacity(BATCH * PIECES), packets: Vec::with_capacity(BATCH) },
            asks: FEW,
            done: Vec::with_capacity(arena.geometry().frames as usize),
            guarantees,
            longest: 0,
            counters: Counters::default(),
            lost: Cell::new(0),
            fault: None,
            again: None,
        };
        // If the interface is down or gone by now, `check` reports it.
        link.longest = link.interface.longest().map_or(0, |longest| link.longest_of(longest));
        Ok(link)
    }

    /// The longest packet of this link over an interface with this longest packet.
    fn longest_of(&self, interface: usize) -> usize {
        interface.min(PIECES * self.frame_room())
    }

    fn frame_room(&self) -> usize {
        self.arena.geometry().room()
    }

    /// Buffers that a packet may need.
    fn pieces_of_longest(&self) -> usize {
        self.longest.div_ceil(self.frame_room()).max(1)
    }

    /// Whether a packet that has come could be taken.
    fn has_room(&self) -> bool {
        self.room.len() >= self.pieces_of_longest()
    }

    /// Buffers of the first packet, if it is whole.
    fn first(packets: &VecDeque<Buffer>, from: usize) -> Option<usize> {
        packets.iter().skip(from).position(|it| !it.goes_on()).map(|last| last + 1)
    }

    fn refuses(&self, packets: &VecDeque<Buffer>, from: usize, pieces: usize) -> bool {
        let octets: usize = packets.iter().skip(from).take(pieces).map(Buffer::len).sum();
        octets < SHORTEST || octets > self.longest || pieces > PIECES
    }

    /// Sends a batch from the front, of which nothing is refused: how many buffers were sent.
    fn send(&mut self, packets: &VecDeque<Buffer>) -> io::Result<usize> {
        self.calls.clear();
        let mut buffers = 0;
        while self.calls.packets.len() < BATCH
            && let Some(pieces) = Packet::first(packets, buffers)
            && !self.refuses(packets, buffers, pieces)
        {
            let octets = packets.iter().skip(buffers).take(pieces).map(|it| self.arena.octets(it));
            // Only read from: see below.
            self.calls.pieces.extend(octets.map(|it| piece(it.as_ptr().cast_mut(), it.len())));
            self.calls.add(pieces);
            buffers += pieces;
        }
        let (socket, count) = (self.socket.as_raw_fd(), self.calls.packets.len() as u32);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `count` packets whose pieces are octets of buffers that are borrowed until the call is over, and are
        // read.
        let sent = unsafe { libc::sendmmsg(socket, self.calls.packets.as_mut_ptr(), count, flags as _) };
        self.counters.wakeups += 1;
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        self.counters.sent += sent as u64;
        Ok(self.calls.packets.iter().take(sent as usize).map(|it| it.msg_hdr.msg_iovlen).sum())
    }

    /// Notes what went wrong, unless it is that the device or the kernel has no room just now. Whether it may pass:
    /// where it is none of what is known to, the packet is to blame as likely as the socket, and is not tried for ever.
    fn note(&mut self, error: &io::Error) -> bool {
        let interface = || self.interface.name().to_string();
        let (fault, passes) = match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => return true,
            Some(libc::ENETDOWN) => (Fault::Down { interface: interface() }, true),
            // The packets go back with the others when the link is closed.
            Some(libc::ENXIO | libc::ENODEV) => (Fault::Gone { interface: interface() }, true),
            // Longer than the interface takes, by now: `check` says so.
            Some(libc::EMSGSIZE) => return false,
            code => {
                let error = code.map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
                (Fault::System { doing: "using a packet socket", error }, false)
            }
        };
        self.fault = Some(fault);
        passes
    }

    /// Takes the buffers of a packet of so many octets from the front of the room.
    fn fill_in(&mut self, octets: usize, packets: &mut Vec<Buffer>) {
        let mut left = octets;
        loop {
            let len = left.min(self.frame_room());
            let Some(mut buffer) = self.room.pop_front() else { unreachable!("it was received into") };
            left -= len;
            self.arena.fill(&mut buffer, len);
            buffer.go_on(left > 0);
            packets.push(buffer);
            if left == 0 {
                return;
            }
        }
    }
}

impl Calls {
    fn clear(&mut self) {
        self.pieces.clear();
        self.packets.clear();
    }

    /// Makes a packet of the last so many pieces. The list of pieces does not move: it was made long enough.
    fn add(&mut self, pieces: usize) {
        let first = self.pieces.len() - pieces;
        // SAFETY: all of it may be zero.
        let mut packet: libc::mmsghdr = unsafe { std::mem::zeroed() };
        packet.msg_hdr.msg_iov = self.pieces[first..].as_mut_ptr();
        packet.msg_hdr.msg_iovlen = pieces;
        self.packets.push(packet);
    }
}

/// How many packets a call asks for after a call that has asked for so many, of which so many came: twice as many as
/// came, and no less than half of before, since what comes in bursts comes so again.
fn asks_next(asked: usize, came: usize) -> usize {
    (2 * came).max(asked / 2).clamp(FEW, BATCH)
}

fn piece(octets: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: octets.cast(), iov_len: len }
}

impl Link for Packet {
    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn mtu(&self) -> usize {
        self.longest
    }

    fn pieces(&self) -> usize {
        PIECES
    }

    fn whole(&self) -> usize {
        self.longest.min(self.frame_room())
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        // The kernel reports once to a socket that its interface was down, even if it is up again.
        let mut told = false;
        self.again = None;
        while let Some(pieces) = Packet::first(packets, 0) {
            let sent = if self.refuses(packets, 0, pieces) { Ok(0) } else { self.send(packets) };
            let over = match sent {
                // The kernel has copied them.
                Ok(sent @ 1..) => sent,
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) && !told => {
                    told = true;
                    continue;
                }
                Err(error) if self.note(&error) => {
                    let passes_soon = self.fault.is_none();
                    return self.again = Some(if passes_soon { LOOK } else { DOWN });
                }
                Ok(0) | Err(_) => {
                    self.counters.refused += 1;
                    self.done.extend(packets.drain(..pieces).map(refused));
                    continue;
                }
            };
            self.done.extend(packets.drain(..over));
        }
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        done.append(&mut self.done);
    }

    fn fill(&mut self, buffer: Buffer) {
        self.arena.check(&buffer);
        self.room.push_back(buffer);
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let pieces = self.pieces_of_longest();
        let count = (self.room.len() / pieces).min(most).min(self.asks);
        if count == 0 {
            // An error that stays in the socket would wake a sleeping thread time and again.
            if let Ok(Err(errno)) = socket_error(&self.socket) {
                self.note(&errno.into());
            }
            return 0;
        }
        self.calls.clear();
        for buffers in 0..count {
            for buffer in self.room.range_mut(buffers * pieces..(buffers + 1) * pieces) {
                let room = self.arena.room(buffer);
                self.calls.pieces.push(piece(room.as_mut_ptr(), room.len()));
            }
            self.calls.add(pieces);
        }
        let (socket, calls) = (self.socket.as_raw_fd(), self.calls.packets.as_mut_ptr());
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `count` packets whose pieces are room in buffers of ours, which nobody else reaches until the call is
        // over.
        let came = unsafe { libc::recvmmsg(socket, calls, count as u32, flags as _, std::ptr::null_mut()) };
        self.counters.polls += 1;
        self.asks = asks_next(self.asks, came.max(0) as usize);
        if came < 0 {
            self.note(&io::Error::last_os_error());
            return 0;
        }
        let mut good = 0;
        for packet in 0..came as usize {
            let (octets, flags) =
                (self.calls.packets[packet].msg_len as usize, self.calls.packets[packet].msg_hdr.msg_flags);
            let before = packets.len();
            let spare = pieces - octets.div_ceil(self.frame_room()).max(1);
            self.fill_in(octets, packets);
            if flags & libc::MSG_TRUNC == 0 {
                good += 1;
            } else {
                // Longer than the interface said.
                self.lost.set(self.lost.get() + 1);
                self.room.extend(packets.drain(before..));
            }
            // What it did not need is behind the others again.
            self.room.rotate_left(spare);
        }
        self.counters.received += good;
        good as usize
    }

    fn watch(&mut self) -> Watch {
        // This poll costs a system call, and spares a sleep, which would take longer.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_ready = self.has_room() && poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)) == Ok(1);
        if is_ready { Watch::Ready } else { Watch::Unheard }
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        let events = if self.has_room() { PollFlags::IN } else { PollFlags::empty() };
        Some(Readiness { descriptor: self.socket.as_fd(), events, look: self.again })
    }

    fn counters(&self) -> Counters {
        // `struct tpacket_stats`: what has come, and what was thrown away.
        if let Ok([_, dropped]) = get(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS) {
            self.lost.set(self.lost.get() + u64::from(dropped));
        }
        Counters { lost: self.lost.get(), ..self.counters }
    }

    fn check(&mut self) -> Result<(), Fault> {
        let fault = self.fault.take();
        self.interface.check()?;
        self.interface.has_still(self.address)?;
        let longest = self.interface.longest()?;
        let (was, is) = (self.longest, self.longest_of(longest));
        self.longest = is;
        if was != is && was != 0 {
            return Err(Fault::Mtu { interface: self.interface.name().to_string(), was, is });
        }
        match fault {
            // It is up again.
            None | Some(Fault::Down { .. }) => Ok(()),
            Some(fault) => Err(fault),
        }
    }

    fn close(self: Box<Self>) -> Returned {
        Returned { lent: self.done, given: self.room.into(), own: Vec::new() }
    }
}

fn classic(code: &mut [libc::sock_filter]) -> libc::sock_fprog {
    libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() }
}

/// Binds a packet socket twice, to protocols that are not in use. At the second bind the kernel takes the socket out of
/// the first protocol's list, and waits until no processor can see it there (`packet_do_bind`, by synchronize_net).
pub(crate) fn rebind() -> io::Result<()> {
    const NOBODYS: [u16; 2] = [libc::ETH_P_LOOPBACK as u16, libc::ETH_P_802_EX1 as u16];
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // The socket is bound to no interface in particular, since the link's may be gone.
    NOBODYS.iter().try_for_each(|protocol| bind(&socket, 0, *protocol))
}

fn bind(socket: &OwnedFd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: all of it may be zero.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as i32;
    let (address, len) = ((&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32);
    // SAFETY: an address of this length, which outlives the call.
    match unsafe { libc::bind(socket.as_raw_fd(), address, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::Geometry;
    use crate::rig::{Cable, INTERFACE};
    use std::thread;

    #[test]
    fn as_many_are_asked_for_as_come() {
        let follow = |begin, came: &[usize]| {
            let next = |asked: &mut usize, came: &usize| {
                *asked = asks_next(*asked, (*came).min(*asked));
                Some(*asked)
            };
            came.iter().scan(begin, next).collect::<Vec<_>>()
        };
        assert_eq!(follow(FEW, &[1, 1, 0, 0]), [2; 4], "one by one");
        assert_eq!(follow(FEW, &[BATCH; 7]), [4, 8, 16, 32, 64, 64, 64], "as many as go");
        assert_eq!(follow(BATCH, &[0, 0, 0, 0, 0, 0]), [32, 16, 8, 4, 2, 2], "none");
        assert_eq!(follow(BATCH, &[0, 40, 0, 20]), [32, 64, 32, 40], "bursts");
    }

    /// Room for packets in up to 17 pieces, as many as a call has always had room for.
    const GEOMETRY: Geometry = Geometry { frames: 4096, frame_size: 4096, headroom: 64 };

    /// A call lays out no room for packets that do not come, and takes ever more while they do.
    #[test]
    #[cfg_attr(miri, ignore = "network namespaces")]
    fn a_packet_by_itself_is_received_into_little_room() {
        let Some(cable) = Cable::for_test(65_535) else { return };
        let guarantees = Guarantees { delivery: false, integrity: true };
        let [(mut from, mut free), (mut to, given)] = cable.ends.each_ref().map(|end| {
            let (arena, free) = Arena::new(GEOMETRY);
            let open = || {
                end.enter().expect("the namespace can be entered");
                Packet::open(INTERFACE, &arena, Filter::EtherType(0x88b5), guarantees).expect("root may open it")
            };
            (thread::scope(|scope| scope.spawn(open).join().expect("it does not panic")), free)
        });
        assert_eq!(to.pieces_of_longest(), 17);
        given.into_iter().for_each(|buffer| to.fill(buffer));
        let mut send = |count: usize| {
            let mut packets: VecDeque<Buffer> = free.split_off(free.len() - count).into();
            for buffer in &mut packets {
                from.arena.fill(buffer, 60);
                let octets = from.arena.octets_mut(buffer);
                octets.fill(0xff);
                octets[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
            }
            while !packets.is_empty() {
                from.transmit(&mut packets);
            }
            from.complete(&mut free);
        };
        let mut come = Vec::new();
        let mut receive = |to: &mut Packet, count: usize| {
            let (begin, calls) = (std::time::Instant::now(), to.counters.polls);
            while come.len() < count {
                if to.watch() == Watch::Ready {
                    to.receive(&mut come, BATCH);
                }
                assert!(begin.elapsed() < Duration::from_secs(20), "{} of {count}: {:?}", come.len(), to.counters());
            }
            come.drain(..).for_each(|buffer| to.fill(buffer));
            (to.counters.polls - calls, to.calls.pieces.len())
        };
        for _ in 0..20 {
            send(1);
            assert_eq!(receive(&mut to, 1), (1, 2 * 17));
        }
        // 2, 4, 8, 16 and 32, and 64 with each further call; more calls where they come in parts.
        let begin = std::time::Instant::now();
        let pieces = loop {
            send(512);
            let (calls, pieces) = receive(&mut to, 512);
            if calls < 16 {
                break pieces;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{calls} calls");
        };
        assert_eq!(pieces, BATCH * 17);
    }
}

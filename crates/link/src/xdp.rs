//! The driver on AF_XDP: packets of ours go between a queue of an interface and the arena, past the kernel's protocol
//! stack.
//!
//! An XDP program sends our packets ([`Filter`]) to the socket of the queue that they came on and leaves all others to
//! the kernel. It hangs on a descriptor, and so goes with the process, however that ends; an interface that has a
//! program already is left alone. What the kernel has in hand is a [`Buffer`] that the driver keeps: the token comes
//! back with the frame.

mod assembler;
mod bpf;
mod port;
mod program;
mod rings;
mod socket;

use crate::arena::{Arena, Buffer, refused};
use crate::completion::{Completion, Frames, Pace};
use crate::error::{Fault, OpenError};
use crate::filter::Filter;
use crate::interface::Interface;
use crate::{Counters, Guarantees, LOOK, Link, Readiness, Returned, Watch};
use port::{Port, barrier};
use rustix::event::PollFlags;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::xdp_statistics;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket::{KERNEL_HEADROOM, Socket};
use std::collections::VecDeque;
use std::sync::Arc;

pub use port::Attach;
pub use socket::{Bind, BusyPoll};

/// How to open a link.
#[derive(Clone, Debug)]
pub struct Config {
    /// The queue of the interface.
    pub queue: u32,
    /// Which packets are ours.
    pub filter: Filter,
    /// Where the XDP program runs.
    pub attach: Attach,
    /// Whether packets are copied.
    pub bind: Bind,
    /// Whether the kernel does the device's work when the receiver asks for packets; `None`: it does not.
    pub busy_poll: Option<BusyPoll>,
    /// When to look for what was transmitted; [`Completion::adaptive`] if nothing is said.
    pub completion: Option<Completion>,
    /// What the network behind the interface promises. AF_XDP itself loses what comes while there is no buffer to
    /// receive into.
    pub guarantees: Guarantees,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            queue: 0,
            filter: Filter::default(),
            attach: Attach::default(),
            bind: Bind::default(),
            busy_poll: None,
            completion: None,
            guarantees: Guarantees { delivery: false, integrity: false },
        }
    }
}

/// Most frames of a packet: a packet of the kernel's has so many fragments (`MAX_SKB_FRAGS`).
const PIECES: usize = 17;
/// Most frames of a packet that is sent without a copy.
const ZERO_COPY_PIECES: usize = 2;
/// The shortest packet: an Ethernet header.
const SHORTEST: usize = 14;
/// A link over one queue of an interface.
#[derive(Debug)]
pub struct Xdp {
    port: Arc<Port>,
    socket: Socket,
    queue: u32,
    arena: Arena,
    /// What the kernel has in hand, by frame; and how many of these for transmission, and for reception.
    lent: Box<[Option<Buffer>]>,
    transmitting: u32,
    receiving: u32,
    /// Transmitted, or refused, and not yet asked for.
    done: Vec<Buffer>,
    /// The beginning of a packet whose end has not come.
    begun: Vec<Buffer>,
    busy_polls: bool,
    pace: Pace,
    guarantees: Guarantees,
    longest: usize,
    counters: Counters,
    fault: Option<Fault>,
}

impl Xdp {
    /// Opens a queue of an interface in this thread's network namespace, with the arena as its packet memory.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(interface: &str, arena: &Arena, config: &Config) -> Result<Xdp, OpenError> {
        let port = Port::open(Interface::named(interface)?, config.filter, config.attach)?;
        Xdp::on(Arc::new(port), config.queue, arena, config, None)
    }

    /// Opens another queue of the same interface, with the same arena, from a thread in the same network namespace.
    /// What the configuration says of program and copies is as with this one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn beside(&self, config: &Config) -> Result<Xdp, OpenError> {
        Xdp::on(Arc::clone(&self.port), config.queue, &self.arena, config, Some(&self.socket))
    }

    fn on(
        port: Arc<Port>,
        queue: u32,
        arena: &Arena,
        config: &Config,
        beside: Option<&Socket>,
    ) -> Result<Xdp, OpenError> {
        let mut socket = Socket::new(arena, beside.is_some())?;
        let interface = &port.interface;
        if beside.is_some() && !interface.is_seen_by(&socket).map_err(|_| namespaces())? {
            return Err(OpenError::NoInterface { interface: interface.name().to_string() });
        }
        // Before it is bound, since this says which of two on a queue was first.
        port.sockets.set(queue, socket.as_fd()).map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST) => OpenError::QueueTaken { interface: interface.name().to_string(), queue },
            Some(libc::E2BIG) => OpenError::NoQueue { interface: interface.name().to_string(), queue },
            _ => OpenError::System { doing: "giving a queue its socket", error },
        })?;
        socket.bind(interface, queue, config.bind, port.pieces, beside)?;
        if let Some(how) = config.busy_poll {
            socket.busy_poll(how)?;
        }
        let frames = arena.geometry().frames;
        let mut link = Xdp {
            lent: (0..frames).map(|_| None).collect(),
            transmitting: 0,
            receiving: 0,
            done: Vec::with_capacity(frames as usize),
            begun: Vec::with_capacity(PIECES),
            busy_polls: config.busy_poll.is_some(),
            pace: Pace::new(config.completion.unwrap_or(Completion::adaptive(frames))),
            guarantees: config.guarantees,
            longest: 0,
            counters: Counters::default(),
            fault: None,
            arena: arena.clone(),
            port,
            socket,
            queue,
        };
        // If the interface is down or gone by now, `check` reports it.
        link.longest = link.port.interface.longest().map_or(0, |longest| link.longest_of(longest));
        Ok(link)
    }

    /// How packets go: `native` or `generic` XDP, with or without a copy, and whether the receiver polls the device.
    pub fn mode(&self) -> String {
        let program = if self.port.native { "native" } else { "generic" };
        let memory = if self.socket.zero_copy { "zero-copy" } else { "copy" };
        let polls = if self.busy_polls { ", busy polling" } else { "" };
        format!("{program} XDP, {memory}{polls}")
    }

    /// Goes on by another algorithm of completion.
    pub fn complete_by(&mut self, how: Completion) {
        self.pace.change(how);
    }

    /// The number of its queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    fn frames(&self) -> Frames {
        let (all, receiving, transmitting) = (self.arena.geometry().frames, self.receiving, self.transmitting);
        Frames { all, receiving, transmitting }
    }

    /// The longest packet of this link over an interface with this longest packet.
    fn longest_of(&self, interface: usize) -> usize {
        interface.min(pieces(self.socket.pieces, self.socket.zero_copy) * self.frame_room())
    }

    /// How many octets of a packet come in one frame.
    fn frame_room(&self) -> usize {
        self.arena.geometry().room() - KERNEL_HEADROOM as usize
    }

    /// Puts the first packet into the ring, or aside if it cannot be sent; `false` if there is none that is whole.
    fn put(&mut self, packets: &mut VecDeque<Buffer>) -> bool {
        let Some(last) = packets.iter().position(|it| !it.goes_on()) else { return false };
        let pieces = packets.iter().take(last + 1);
        let octets: usize = pieces.clone().map(Buffer::len).sum();
        let ours = pieces.clone().all(|it| self.arena.owns(it));
        assert!(ours, "a buffer of another arena");
        if octets < SHORTEST || octets > self.longest || last >= self.pieces() || pieces.clone().any(Buffer::is_empty) {
            self.counters.refused += 1;
            self.done.extend(packets.drain(..=last).map(refused));
            return true;
        }
        for buffer in packets.drain(..=last) {
            let frame = buffer.frame();
            let addr = u64::from(frame) * u64::from(self.arena.geometry().frame_size) + u64::from(buffer.offset());
            let more = if buffer.goes_on() { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() };
            self.socket.transmit.push(XdpDesc { addr, len: buffer.len() as u32, options: more });
            self.lent[frame as usize] = Some(buffer);
            self.transmitting += 1;
        }
        self.counters.sent += 1;
        true
    }

    /// Has the kernel send what is in the ring, as far as it does at once.
    fn kick(&mut self) {
        let mut waiting = self.socket.transmit.waiting();
        while waiting > 0 && self.socket.transmit.needs_wakeup() {
            self.counters.wakeups += 1;
            match send(&self.socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // The kernel sends so many at a time; or it has no memory just now, or the device no room.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(errno) => return self.fault = Some(self.fault_of(errno)),
            }
            let left = self.socket.transmit.waiting();
            if left == waiting {
                return;
            }
            waiting = left;
        }
    }

    /// Asks the kernel to bring what has come, where that is ours to ask; and tells a device that has found no buffer,
    /// and says so in the ring, that there are some now.
    fn bring(&mut self) {
        if self.socket.receive.is_empty() && (self.busy_polls || self.socket.fill.needs_wakeup()) {
            self.counters.polls += 1;
            // Nothing is read: what comes of it is in the ring. What hinders it is for `check` to say.
            let _ = recv(&self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    fn fault_of(&self, errno: Errno) -> Fault {
        let interface = self.port.interface.name().to_string();
        match errno {
            Errno::NETDOWN => Fault::Down { interface },
            Errno::NXIO | Errno::NODEV | Errno::BADF => Fault::Gone { interface },
            errno => Fault::System { doing: "sending over AF_XDP", error: errno.into() },
        }
    }

    /// Takes back what was transmitted.
    fn reclaim(&mut self) {
        while let Some(addr) = self.socket.completion.pop() {
            if let Some(buffer) = self.token(addr) {
                self.transmitting -= 1;
                self.done.push(buffer);
            }
        }
        self.socket.completion.release();
    }

    /// The token of the frame at an address, if the kernel has it.
    fn token(&mut self, addr: u64) -> Option<Buffer> {
        let frame = addr / u64::from(self.arena.geometry().frame_size);
        let token = usize::try_from(frame).ok().and_then(|frame| self.lent.get_mut(frame)).and_then(Option::take);
        debug_assert!(token.is_some(), "the kernel gives back what it was not given: {addr:#x}");
        token
    }
}

impl Link for Xdp {
    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn mtu(&self) -> usize {
        self.longest
    }

    fn pieces(&self) -> usize {
        pieces(self.socket.pieces, self.socket.zero_copy)
    }

    fn whole(&self) -> usize {
        self.longest.min(self.frame_room())
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        self.reclaim();
        self.pace.sending(self.frames());
        while self.put(packets) {
            if self.pace.event_driven() {
                self.socket.transmit.publish();
                self.kick();
                self.reclaim();
            }
        }
        self.socket.transmit.publish();
        self.kick();
        if self.pace.looks() {
            self.reclaim();
        }
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        if self.pace.asked(self.frames()) {
            self.kick();
            self.reclaim();
        }
        done.append(&mut self.done);
    }

    fn fill(&mut self, mut buffer: Buffer) {
        self.arena.check(&buffer);
        // Buffers to receive into are empty, which tells them from buffers that are lent for transmission.
        self.arena.fill(&mut buffer, 0);
        let frame = buffer.frame();
        self.socket.fill.push(u64::from(frame) * u64::from(self.arena.geometry().frame_size));
        self.socket.fill.publish();
        self.lent[frame as usize] = Some(buffer);
        self.receiving += 1;
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let frame_size = self.arena.geometry().frame_size;
        let mut count = 0;
        self.bring();
        while count < most {
            let Some(descriptor) = self.socket.receive.pop() else { break };
            let Some(mut buffer) = self.token(descriptor.addr) else { continue };
            self.receiving -= 1;
            let offset = (descriptor.addr % u64::from(frame_size)) as u32;
            self.arena.restore(&mut buffer, offset, descriptor.len.min(frame_size - offset));
            buffer.go_on(descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD));
            let whole = !buffer.goes_on();
            self.begun.push(buffer);
            if whole {
                packets.append(&mut self.begun);
                count += 1;
            }
        }
        self.socket.receive.release();
        self.counters.received += count as u64;
        count
    }

    fn watch(&mut self) -> Watch {
        self.bring();
        // poll(2) has the kernel send what is in the ring. A thread that sleeps on a set of epoll looks here now and
        // then.
        if self.transmitting > 0 {
            self.kick();
        }
        if self.socket.receive.is_empty() { Watch::Unheard } else { Watch::Ready }
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        // Without a buffer to receive into, no packet comes. Buffers that were sent are reported only by their ring.
        let events = if self.receiving > 0 { PollFlags::IN } else { PollFlags::empty() };
        let look = (self.transmitting > 0).then_some(LOOK);
        Some(Readiness { descriptor: self.socket.as_fd(), events, look })
    }

    fn counters(&self) -> Counters {
        // Where the fill ring is empty, `rx_fill_ring_empty_descs` counts what `rx_dropped` does, or attempts of the
        // device.
        let lost = xdp_statistics(&self.socket).map_or(0, |it| it.rx_dropped + it.rx_ring_full.unwrap_or(0));
        Counters { lost, switches: self.pace.switches(), ..self.counters }
    }

    fn check(&mut self) -> Result<(), Fault> {
        let fault = self.fault.take();
        self.port.interface.check()?;
        self.port.interface.has_still(self.port.address)?;
        let longest = self.port.interface.longest()?;
        let (was, is) = (self.longest, self.longest_of(longest));
        self.longest = is;
        if was != is && was != 0 {
            return Err(Fault::Mtu { interface: self.port.interface.name().to_string(), was, is });
        }
        match fault {
            // It is up again.
            None | Some(Fault::Down { .. }) => Ok(()),
            Some(fault) => Err(fault),
        }
    }

    fn close(self: Box<Self>) -> Returned {
        let Xdp { port, socket, queue, lent, done, begun, .. } = *self;
        // What is under way to it now, on another processor, is there when the barrier is passed, which waits for all
        // that the kernel's network code does. That the socket is closed says less: a child that was forked may have it
        // for a moment.
        let quiet = port.sockets.clear(queue).is_ok() && barrier();
        let mut returned = Returned { lent: done, given: begun, own: Vec::new() };
        if quiet && !socket.zero_copy {
            for buffer in lent.into_iter().flatten() {
                // See `fill`: nothing empty is sent.
                if buffer.is_empty() { returned.given.push(buffer) } else { returned.lent.push(buffer) }
            }
        }
        returned
    }
}

/// Frames of a packet that is sent, at most.
///
/// A device that copies nothing takes so many as its driver says (`xdp_zc_max_segs`). Of a packet of more, Linux 6.18
/// takes the frames out of the ring and neither sends them nor gives them back (`xskq_cons_read_desc_batch`). A device
/// that takes packets in pieces at all takes two.
fn pieces(in_pieces: bool, zero_copy: bool) -> usize {
    match (in_pieces, zero_copy) {
        (false, _) => 1,
        (true, false) => PIECES,
        (true, true) => ZERO_COPY_PIECES,
    }
}

fn namespaces() -> OpenError {
    OpenError::NotInKernel { what: "cookies of network namespaces", since: "5.14" }
}

#[cfg(test)]
mod tests {
    use super::bpf::{Program, SocketMap};
    use super::*;
    use crate::arena::Geometry;
    use crate::rig::{Cable, INTERFACE};
    use std::thread;

    fn open(cable: &Cable, arena: &Arena, attach: Attach) -> Result<Xdp, OpenError> {
        let config = Config { attach, ..Config::default() };
        let open = || cable.ends[0].enter().map(|()| Xdp::open(INTERFACE, arena, &config));
        thread::scope(|scope| scope.spawn(open).join()).expect("it does not panic").expect("it can be entered")
    }

    /// A device that has found no buffer to receive into sets a flag in the ring, and looks again when it is woken.
    /// veth does not set it, so the test does.
    #[test]
    fn a_device_that_ran_out_of_buffers_is_told_of_new_ones() {
        let Some(cable) = Cable::for_test(1500) else { return };
        let (arena, mut free) = Arena::new(Geometry { frames: 8, frame_size: 2048, headroom: 0 });
        let mut link = match open(&cable, &arena, Attach::Auto) {
            Ok(link) => link,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        link.fill(free.pop().unwrap());
        assert_eq!((link.receive(&mut Vec::new(), 1), link.watch()), (0, Watch::Unheard));
        assert_eq!(link.counters().polls, 0);
        link.socket.fill.want_wakeup();
        assert_eq!((link.receive(&mut Vec::new(), 1), link.watch()), (0, Watch::Unheard));
        assert_eq!(link.counters().polls, 2);
    }

    /// The kernel publishes a packet before it gives back the place of its frame in the fill ring: a quick receiver
    /// fills all frames again while the ring still looks full. Over a veth that happens now and then within seconds;
    /// here its state is put in.
    #[test]
    fn frames_may_be_filled_again_before_the_kernel_says_that_it_has_taken_them() {
        let Some(cable) = Cable::for_test(1500) else { return };
        let (arena, free) = Arena::new(Geometry { frames: 8, frame_size: 2048, headroom: 0 });
        let mut link = match open(&cable, &arena, Attach::Auto) {
            Ok(link) => link,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        free.into_iter().for_each(|buffer| link.fill(buffer));
        for frame in 0..8 {
            let buffer = link.token(frame * 2048).expect("it was filled");
            link.receiving -= 1;
            link.fill(buffer);
        }
        assert_eq!(Box::new(link).close().given.len(), 8);
    }

    #[test]
    fn a_device_that_copies_nothing_gets_no_more_pieces_than_any_takes() {
        let all = [(false, false), (false, true), (true, false), (true, true)];
        assert_eq!(all.map(|(in_pieces, zero_copy)| pieces(in_pieces, zero_copy)), [1, 1, 17, 2]);
    }

    /// A program that hangs on no link of BPF, as `ip link set xdp` attaches it, is neither replaced nor taken away.
    #[test]
    fn a_foreign_program_is_left_alone() {
        let Some(cable) = Cable::for_test(1500) else { return };
        let here = &cable.ends[0];
        let foreign =
            SocketMap::new(1).and_then(|map| Program::load(&Filter::Llc.program([2; 6], map.descriptor()), true));
        let foreign = match foreign {
            Ok(foreign) => foreign,
            Err(error) => return println!("SKIPPED: no BPF here ({error}); run as root"),
        };
        let (arena, _) = Arena::new(Geometry { frames: 8, frame_size: 2048, headroom: 0 });
        here.attach(INTERFACE, Some(foreign.as_fd())).unwrap();
        for attach in [Attach::Auto, Attach::Native, Attach::Generic, Attach::Auto] {
            let error = open(&cable, &arena, attach).unwrap_err();
            assert!(matches!(error, OpenError::ForeignProgram { .. }), "{error}");
        }
        here.attach(INTERFACE, None).unwrap();
        let ours = open(&cable, &arena, Attach::Auto).unwrap();
        // Our program is not replaced either, while it is there.
        here.attach(INTERFACE, Some(foreign.as_fd())).unwrap_err();
        drop(ours);
        here.attach(INTERFACE, Some(foreign.as_fd())).unwrap();
    }
}

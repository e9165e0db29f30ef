//! Packet memory, and the links that packets go over. Knows no protocol.
//!
//! [`arena`] is the memory; a [`Link`] takes packets in it and gives packets in it. [`loopback`] is a link in memory,
//! [`xdp`] one over a network interface, [`packet`] one that every kernel has; [`driver`] chooses between these.
//! [`udp`] is a link over sockets that every user may open, whose packets begin with the headers of [`ip`]. [`filter`]
//! is which packets they take, [`completion`] when they look for what was transmitted, [`error`] what can go wrong. Any
//! link may be wrapped: [`bounce`] copies what lies in pieces, [`faults`] loses and changes packets, [`shape`] slows
//! them down, [`capture`] records them. [`table`] is what is known of peers. [`wait`] waits for packets. [`ring`] is a
//! queue from one thread to another, [`bell`] wakes one of them, [`rig`] two interfaces and a cable, for tests and
//! measurements.

pub mod arena;
pub mod bell;
pub mod bounce;
pub mod capture;
pub mod completion;
pub mod driver;
pub mod error;
pub mod ethernet;
pub mod faults;
pub mod filter;
pub mod interface;
pub mod ip;
pub mod loopback;
mod netlink;
mod option;
pub mod packet;
pub mod rig;
pub mod ring;
mod route;
pub mod shape;
mod sync;
pub mod table;
pub mod udp;
pub mod wait;
pub mod xdp;

use arena::Buffer;
use error::Fault;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::BorrowedFd;
use std::time::Duration;

/// What a link promises of the packets that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// Each arrives, once, and in order.
    pub delivery: bool,
    /// What is corrupt does not arrive.
    pub integrity: bool,
}

/// What comes of the wish to be unparked when something comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Something has come already.
    Ready,
    /// The thread that has asked will be unparked, if only once.
    Armed,
    /// The thread will not be unparked: it has to look again by itself.
    Unheard,
}

/// What a thread may sleep on until a link has something for it, together with whatever else it waits for.
///
/// By poll(2), and not by epoll(7): poll(2) is also what has the kernel send the rest of what is in AF_XDP's ring.
#[derive(Clone, Copy, Debug)]
pub struct Readiness<'a> {
    /// The descriptor that is ready while packets have come.
    pub descriptor: BorrowedFd<'a>,
    /// What it is to be polled for. Nothing, while no packet could be taken for want of a buffer: errors alone wake
    /// then.
    pub events: PollFlags,
    /// When to look at the link at the latest: something is under way that the descriptor does not report, such as a
    /// buffer that is lent, or a packet that a wrapper puts off.
    pub look: Option<Duration>,
}

impl<'a> Readiness<'a> {
    /// This readiness, to be looked at after so long as well.
    #[must_use]
    pub fn look_after(self, time: Option<Duration>) -> Readiness<'a> {
        let look = [self.look, time].into_iter().flatten().min();
        Readiness { look, ..self }
    }

    /// For poll(2).
    pub fn poll(&self) -> PollFd<'a> {
        PollFd::from_borrowed_fd(self.descriptor, self.events)
    }
}

/// How soon to look for what is lent and on its way.
pub(crate) const LOOK: Duration = Duration::from_micros(50);

/// What went over a link, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Taken to be sent.
    pub sent: u64,
    /// Received.
    pub received: u64,
    /// Packets that came and were lost, since there was no buffer for them, or no room.
    pub lost: u64,
    /// Not sent since they were too long, too short or in too many pieces. Their buffers say so
    /// ([`Buffer::is_refused`]).
    pub refused: u64,
    /// Taken to be sent and given up, because the system knows no way to their receiver.
    pub unsent: u64,
    /// Calls by which the kernel was told that there is something to be sent.
    pub wakeups: u64,
    /// Calls by which the kernel was asked to bring what has come.
    pub polls: u64,
    /// Changes of the algorithm of completion.
    pub switches: u64,
}

/// A way to the other end, in batches. Buffers are lent to it for transmission, and come back; buffers are given to it
/// for reception, and come back full.
pub trait Link: Send {
    /// What it promises.
    fn guarantees(&self) -> Guarantees;

    /// Octets of the longest packet.
    fn mtu(&self) -> usize;

    /// Most buffers that a packet may lie in; where there may be several, each but the last says that its packet goes
    /// on ([`Buffer::goes_on`]), and packets come likewise.
    fn pieces(&self) -> usize {
        1
    }

    /// Octets of the longest packet that goes, and comes, in one buffer. Layers take no packet in pieces, so it is this
    /// that bounds what they send and ask for.
    fn whole(&self) -> usize {
        self.mtu()
    }

    /// Takes packets to be sent from the front of `packets`, as many as it can.
    fn transmit(&mut self, packets: &mut std::collections::VecDeque<Buffer>);

    /// Buffers that were transmitted, or refused, as they were lent, appended to `done`.
    fn complete(&mut self, done: &mut Vec<Buffer>);

    /// Whether it holds packets back that it has taken, and may refuse them later than at the first look behind that.
    fn holds_back(&self) -> bool {
        false
    }

    /// Takes buffers to receive into. Over a link that passes buffers from end to end they are those that it gave.
    fn fill(&mut self, buffer: Buffer);

    /// Packets that have come, at most so many, appended to `packets`; how many.
    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize;

    /// The calling thread is about to park, and would be unparked when a packet or a buffer comes.
    fn watch(&mut self) -> Watch {
        Watch::Unheard
    }

    /// What to sleep on until packets have come; `None` if there is nothing to sleep on, and the caller has to look
    /// again.
    fn readiness(&self) -> Option<Readiness<'_>> {
        None
    }

    /// What has gone over it.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Whether it still carries packets. Asks the system: for when nothing gets on, not for each packet.
    ///
    /// # Errors
    /// What has happened to it.
    fn check(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Ends the link, and gives back its buffers, except those that the other end of a link in memory has, and those
    /// that a device which copies nothing may still write to.
    fn close(self: Box<Self>) -> Returned;
}

/// Any link, where it is not known before which.
impl<L: Link + ?Sized> Link for Box<L> {
    fn guarantees(&self) -> Guarantees {
        (**self).guarantees()
    }

    fn mtu(&self) -> usize {
        (**self).mtu()
    }

    fn pieces(&self) -> usize {
        (**self).pieces()
    }

    fn whole(&self) -> usize {
        (**self).whole()
    }

    fn transmit(&mut self, packets: &mut std::collections::VecDeque<Buffer>) {
        (**self).transmit(packets);
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        (**self).complete(done);
    }

    fn holds_back(&self) -> bool {
        (**self).holds_back()
    }

    fn fill(&mut self, buffer: Buffer) {
        (**self).fill(buffer);
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        (**self).receive(packets, most)
    }

    fn watch(&mut self) -> Watch {
        (**self).watch()
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        (**self).readiness()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }

    fn check(&mut self) -> Result<(), Fault> {
        (**self).check()
    }

    fn close(self: Box<Self>) -> Returned {
        (*self).close()
    }
}

/// The buffers of a link that was ended.
#[derive(Debug, Default)]
pub struct Returned {
    /// The buffers that were lent for transmission, as they were lent. Whether they were sent is not known.
    pub lent: Vec<Buffer>,
    /// The buffers to receive into, with any contents.
    pub given: Vec<Buffer>,
    /// The buffers that wrappers had for themselves.
    pub own: Vec<Buffer>,
}

impl Returned {
    /// All of them.
    pub fn all(self) -> Vec<Buffer> {
        let Returned { mut lent, given, own } = self;
        lent.extend(given);
        lent.extend(own);
        lent
    }
}

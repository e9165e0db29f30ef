//! At any byte, a direction of a connection is on the kernel path or on the fast path. This module sends and receives
//! on either path, and switches between them.
//!
//! Only the sender switches, by a mark in the ring. The mark *up* names the position up to which the reader has to read
//! the kernel first. The mark *down* names the number of doorbells that lie in the kernel before the data goes on
//! there. So the reader has one place to look: the record under its head.
//!
//! A reader that believes that it is on the kernel path says so before it looks at the ring and receives from the
//! kernel. Meanwhile the sender does not go down, and it goes up only if it said so before the reader did. So if such a
//! reader takes more from the kernel than comes before the ring, the rest is doorbells, at the very end.

mod away;
mod confined;
mod copied;
#[cfg(all(test, not(loom)))]
mod deaths;
mod doorbell;
mod doze;
mod ending;
mod entering;
#[cfg(all(test, not(loom)))]
mod executions;
mod failure;
mod flag;
mod give;
mod handing_over;
#[cfg(all(test, not(loom)))]
mod interruptions;
mod leaving;
#[cfg(all(test, not(loom)))]
mod lies;
mod liveness;
mod marks;
#[cfg(all(test, loom))]
mod models;
mod path;
mod peek;
mod position;
mod probe;
mod readiness;
mod receive;
mod remote;
mod repair;
mod room;
mod send;
mod sleep;
mod state;
mod take;
mod tapped;
mod turns;
mod unfinished;
mod wake;

pub use away::{Departure, begin_departing, departing, end_departing, forget_departing};
pub use confined::Receive;
pub use copied::Unread;
pub use doze::Dozed;
pub use handing_over::Recipient;
pub use leaving::LeftRing;
pub use readiness::{Ready, Told};
pub use sleep::Sleep;
pub use state::{ReaderState, SenderState};

use crate::channel::Channel;
use crate::clock::ticks_per_microsecond;
use crate::end::End;
use crate::raw::{Answer, Errno};
use crate::ring::{self, Place, Ring, Sender};
use crate::sync::Relaxed;
use crate::wait::Memory;

/// How a receive sleeps. Meanwhile its thread can be cancelled, and another thread can close its descriptor.
pub struct Waiting {
    /// Keeps the socket open for a receive, and finds a descriptor of it for [`Port::fd`]. The receive calls this
    /// before it sleeps, and each time that it is the only reader again.
    pub keep_socket: fn(port: &mut Port<'_>),
    /// Receives from the kernel by calls of libc's. If the socket blocks, this sleeps as long as the patience says.
    pub recv: unsafe fn(port: &Port<'_>, to: *mut u8, len: usize, flags: i32, patience: Patience) -> Answer,
    /// Makes a system call of the library's own, which sleeps. A thread that does not come back from it
    /// [abandons](Port::abandon_sleep) its sleep.
    pub call: fn(port: &Port<'_>, call: &dyn Fn() -> Answer) -> Answer,
    /// Calls [`Port::give_back_if_due`] for all connections of this process. False if the kernel has no room for all of
    /// it yet.
    pub give_back_everywhere: fn() -> bool,
    /// Whether each poll or set that may wait for room in the ring can look for it ([`Port::looks_for_room_in`]). Takes
    /// no lock.
    pub looks: fn(port: &Port<'_>) -> bool,
    /// Rings for the daemon, which carries what goes to another host.
    pub ring: fn(port: &Port<'_>),
    /// A send that does not block was refused, since the ring is full. From now on those polls and sets look for room.
    pub refused: fn(port: &Port<'_>),
}

/// How long a receive sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as the socket says (SO_RCVTIMEO). After a signal the sleep goes on where the program wants that
    /// (SA_RESTART).
    Socket,
    /// Until this time (CLOCK_MONOTONIC, ns), if there is one, or until a signal. The receive has a part of what it
    /// wants, or has slept before.
    Until(Option<u64>),
}

/// A joined end in the hands of one thread.
#[derive(Clone, Copy)]
pub struct Port<'a> {
    /// The end.
    pub end: &'a End,
    /// Its channel.
    pub channel: Channel,
    /// A descriptor of the socket. If another thread closes the program's descriptor under a receive, this becomes
    /// another one.
    pub fd: i32,
    /// Whether the socket is kept open for this receive, which sleeps or has slept.
    pub keeps_socket: bool,
    /// Number of this thread.
    pub me: u32,
    /// Tells `Port::waiting` which connection it is.
    pub token: u32,
    /// Longest poll before sleeping, in microseconds.
    pub spin_us: u32,
    /// Longest doze before sleeping, in microseconds; 0: none.
    pub doze_us: u32,
    /// How to sleep.
    pub waiting: &'static Waiting,
}

/// Not an error of the kernel's: a receive was asleep when the program installed a seccomp filter. The caller does it
/// anew by [`Port::receive_by`].
pub const ANEW: Errno = Errno(4096);
const BROKEN: Errno = Errno(libc::ECONNRESET);
const AGAIN: Errno = Errno(libc::EAGAIN);

/// A sender checks this often that an unmoving reader still lives.
const CHECK_EVERY_US: u64 = 50;
/// A receive that does not wait ends within this time, unless its thread was stopped in it.
const STOPPED_US: u64 = 100_000;
/// A receive that does not wait ends within this time where the other end has not ended its direction, because a reader
/// that was stopped may go on. On kernel TCP neither would delay a call that does not wait.
const LIES_US: u64 = 5_000_000;

/// What the kernel reports of a connection that has failed or ended.
const OVER: i16 = libc::POLLERR | libc::POLLHUP;

fn micros(n: u64) -> u64 {
    n * ticks_per_microsecond()
}

impl<'a> Port<'a> {
    /// What the incoming direction remembers of its waits.
    pub fn memory(&self) -> Memory<'a> {
        let reading = &self.end.reading;
        Memory { mean: &reading.mean_wait, waits: &reading.waits, bells: &reading.bells_before }
    }
}

impl Port<'_> {
    fn incoming(&self) -> Ring {
        self.channel.incoming_ring()
    }

    fn place(&self) -> Place {
        Place::unpack(self.end.reading.place.load(Relaxed))
    }

    fn sender(&self) -> Sender<'_> {
        self.sender_in(false)
    }

    #[inline]
    fn sender_in(&self, in_turn: bool) -> Sender<'_> {
        let sending = &self.end.sending;
        Sender {
            ring: self.channel.outgoing_ring(),
            tail: &sending.tail,
            seen_head: &sending.seen_head,
            hole: &sending.hole,
            behind: &sending.behind,
            head: &self.channel.outgoing().head.head,
            in_turn,
        }
    }

    /// Publishes the processor that this end waits on. Returns the processor that the other end last waited on, plus 1.
    #[inline]
    pub fn exchange_cpu(&self, mine: u32) -> u32 {
        let cpu = &self.channel.outgoing().sender.cpu;
        if cpu.load(Relaxed) != mine {
            cpu.store(mine, Relaxed);
        }
        self.channel.incoming().sender.cpu.load(Relaxed)
    }

    /// Whether the channel is still needed: by the other end to go on, or by other processes that have this end, for
    /// what is unread. `last`: no other process has this end.
    pub fn is_needed(&self, last: bool) -> bool {
        let needed = !self.reader_is_absent() || !last && self.incoming().published(self.place().head);
        needed && (self.other_executes() || self.end.was_fast() && !self.has_ended())
    }

    /// Bytes of the records that the other end has not read to their end.
    pub fn unsent(&self) -> u64 {
        let sender = self.sender();
        if !self.sends_fast() || !matches!(sender.used(true), Ok(1..)) {
            return 0;
        }
        // The bytes in use may be fillers alone, because a reader stops behind the last byte that it wants.
        let head = sender.seen_head.load(Relaxed);
        ring::unread(&sender.ring, Place { head, consumed: 0 }).unwrap_or(0)
    }
}

//! A direction of a connection is, at any byte, on the kernel path or on the fast path. This module sends and receives
//! on whichever it is, and switches.
//!
//! Only the sender of a direction switches it, by a mark in the ring. *Up*: the mark names the kernel position up to
//! which the reader has to read the kernel first. *Down*: the mark names the number of doorbells that lie in the kernel
//! stream before the data goes on there. The reader has one place to look: the record under its head.
//!
//! A reader that believes itself on the kernel path says so before it looks at the ring and receives from the kernel;
//! while it does, the sender may go up but not down again, and up only if it had said before that it is about to. So
//! when such a reader has taken too much from the kernel, what it took too much can only be doorbells, at the very end.

mod away;
mod confined;
mod doorbell;
mod doze;
mod ending;
mod entering;
mod failure;
mod flag;
mod give;
mod handing_over;
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
mod readiness;
mod receive;
mod repair;
mod room;
mod send;
mod sleep;
mod state;
mod take;
mod tapped;
mod wake;

pub use away::Departure;
pub use confined::Receive;
pub use doze::Dozed;
pub use handing_over::Recipient;
pub use leaving::LeftRing;
pub use readiness::{Ready, Told};
pub use sleep::Sleep;
pub use state::{ReaderState, SenderState};

use crate::clock::ticks_per_microsecond;
use crate::end::End;
use crate::link::Link;
use crate::raw::{Answer, Errno};
use crate::ring::{self, Place, Ring, Sender};
use crate::sync::Relaxed;
use crate::wait::Memory;

/// How a receive sleeps: so that its thread can be cancelled, and its descriptor closed by another, meanwhile.
pub struct Waiting {
    /// To be called before a receive sleeps, and whenever it is the only reader again: [`Port::fd`] is the socket then.
    pub keep_socket: fn(port: &mut Port<'_>),
    /// Receives from the kernel, sleeping if the socket blocks, as long as it says: by calls of libc's.
    pub recv: unsafe fn(port: &Port<'_>, to: *mut u8, len: usize, flags: i32, patience: Patience) -> Answer,
    /// Makes a system call of the library's own, which sleeps. A thread that does not come back from it
    /// [abandons](Port::abandon_sleep) its sleep.
    pub call: fn(port: &Port<'_>, call: &dyn Fn() -> Answer) -> Answer,
    /// Gives back ([`Port::give_back_if_due`]) on all connections of this process; false if the kernel has no room for all of it yet.
    pub give_back_everywhere: fn() -> bool,
    /// Whether whoever may wait for room in the ring can look for it ([`Port::looks_for_room_in`]). Takes no lock.
    pub looks: fn(port: &Port<'_>) -> bool,
    /// A send that does not block was refused, since the ring is full: those look from now on.
    pub refused: fn(port: &Port<'_>),
}

/// How long a receive sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As the socket says (SO_RCVTIMEO); after a signal it goes on where the program wants that (SA_RESTART).
    Socket,
    /// Until this time (CLOCK_MONOTONIC, ns), if any, or a signal: part of what is wanted has come, or of the time has gone.
    Until(Option<u64>),
}

/// A joined end in the hands of one thread.
#[derive(Clone, Copy)]
pub struct Port<'a> {
    /// The end.
    pub end: &'a End,
    /// Its segment.
    pub link: Link,
    /// A descriptor of the socket: another one, once that by which the program named it was closed under a receive.
    pub fd: i32,
    /// Whether the socket is kept open for this receive, which sleeps or has slept.
    pub keeps_socket: bool,
    /// Number of this thread.
    pub me: u32,
    /// Whatever tells `Port::waiting` which connection it is.
    pub token: u32,
    /// Longest poll before sleeping, in microseconds.
    pub spin_us: u32,
    /// Longest doze before sleeping, in microseconds; 0: none.
    pub doze_us: u32,
    /// How to sleep.
    pub waiting: &'static Waiting,
}

/// A receive was asleep when the program said which system calls it makes: it has to be done anew, by
/// [`Port::receive_by`]. No error of the kernel's.
pub const ANEW: Errno = Errno(4096);
const BROKEN: Errno = Errno(libc::ECONNRESET);
const AGAIN: Errno = Errno(libc::EAGAIN);

/// A sender checks this often that an unmoving reader still lives.
const CHECK_EVERY_US: u64 = 50;
/// A reader that does not come out of a receive which does not wait for so long was stopped there.
const STOPPED_US: u64 = 100_000;
/// The same where the other end has not ended its direction: a reader that was stopped there may go on. Kernel TCP would let
/// neither hold up what does not wait.
const LIES_US: u64 = 5_000_000;

/// What the kernel says of a connection that it holds no longer for whole.
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
        self.link.incoming_ring()
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
            ring: self.link.outgoing_ring(),
            tail: &sending.tail,
            seen_head: &sending.seen_head,
            hole: &sending.hole,
            behind: &sending.behind,
            head: &self.link.outgoing().head.head,
            in_turn,
        }
    }

    /// Publishes the processor that this end waits on; returns the one that the other end last waited on, plus 1.
    #[inline]
    pub fn exchange_cpu(&self, mine: u32) -> u32 {
        let cpu = &self.link.outgoing().sender.cpu;
        if cpu.load(Relaxed) != mine {
            cpu.store(mine, Relaxed);
        }
        self.link.incoming().sender.cpu.load(Relaxed)
    }

    /// Whether the other end needs the segment to go on; or, unless this process is the `last` that has this end, others for
    /// what is unread.
    pub fn is_needed(&self, last: bool) -> bool {
        let needed = !self.reader_is_absent() || !last && self.incoming().published(self.place().head);
        needed && self.end.was_fast() && !self.has_ended()
    }

    /// Bytes of the records that the other end has not read to their end.
    pub fn unsent(&self) -> u64 {
        let sender = self.sender();
        if !self.sends_fast() || !matches!(sender.used(true), Ok(1..)) {
            return 0;
        }
        // What is in use may be fillers alone: a reader stops behind the last byte that it wants.
        let head = sender.seen_head.load(Relaxed);
        ring::unread(&sender.ring, Place { head, consumed: 0 }).unwrap_or(0)
    }
}

//! The control words in the channel, by which the two ends of a direction talk to each other, and those of a group of
//! readers.
//!
//! The other end may write anything there at any time: each value is checked or masked before use.

use crate::layout::laid_out;
use crate::sync::{AcqRel, AtomicU32, AtomicU64, Relaxed, Release};

laid_out! {
    /// Words that a direction's reader writes and its sender looks at with every message. They change rarely.
    #[repr(C, align(128))]
    pub struct ReaderFlags {
        /// Not 0: the reader is going to sleep. [`ALONE`]: the sender that takes it to 0 owes a doorbell. Otherwise the
        /// number of a [`Group`], which is rung; [`RINGING`] stands beside meanwhile. [`DOZING`]: the sender owes a
        /// knock.
        pub waiting: AtomicU32,
        /// 1: all reads go through the library; doorbells cannot be taken for data.
        pub ready: AtomicU32,
        /// [`CLOSED`], [`ORPHANED`] or [`SHUT`]; 0: none of them.
        pub closed: AtomicU32,
        /// [`WANTS_DOWN`]: the reader asks the sender to go down. [`WANTS_DOWN_ONCE_READ`]: the reader asks it to do so
        /// once the ring is read.
        pub want_down: AtomicU32,
        /// [`RECEIVING`]: the reader believes that it is on the kernel path, and receives from it. Meanwhile the sender
        /// must not go down, and goes up only if the reader knows of that ([`SenderWords::switching`]). [`LEAVING`]:
        /// the sender must not go down in any case.
        pub in_kernel: AtomicU32,
        /// Bytes that the reader had read of the record under its head when it became absent.
        pub consumed: AtomicU32,
        /// 1: the thread that has raised the flag may ask again and again rather than sleep.
        pub asks_again: AtomicU32,
        /// 1: the reader's end is closed with a reset, whatever it has read (SO_LINGER with 0).
        pub resets: AtomicU32,
        /// How far the reader has read the kernel stream, doorbells included.
        pub position: AtomicU64,
        /// The thread, of either end, that puts on the kernel path what the reader has left in the ring; 0: none.
        /// Beside it [`BY_READER`].
        pub giver: AtomicU32,
        /// Of a stream to another host, 1: the reader has come to the end of the kernel stream, and asks the sender's
        /// daemon where the stream ends in the ring.
        pub asks_end: AtomicU32,
        /// Of a stream to another host: the number of the line by which the daemon rings the reader.
        pub line: AtomicU64,
    }
}

laid_out! {
    /// Where the reader publishes how far it has read.
    #[repr(C, align(128))]
    pub struct ReaderHead {
        /// Ring position before which everything may be overwritten.
        pub head: AtomicU64,
        /// Doorbells taken out of the kernel's queue since the beginning.
        pub bells_taken: AtomicU64,
    }
}

/// Value of [`ReaderFlags::closed`]: the reader's end has been closed by all its processes.
pub const CLOSED: u32 = 1;
/// Value of [`ReaderFlags::closed`]: the reader's processes are gone, and none of them has closed the end. A doorbell
/// may have been unread.
pub const ORPHANED: u32 = 3;
/// Value of [`ReaderFlags::closed`]: the reader lives, but has shut down both directions, so that its kernel answers
/// any further byte with a reset, a doorbell too. What is in the ring it can still read.
pub const SHUT: u32 = 2;
/// Whether no process has the reader's end any more.
pub const fn is_closed(word: u32) -> bool {
    matches!(word, CLOSED | ORPHANED)
}

/// Value of [`ReaderFlags::want_down`]: the sender goes down with its next send.
pub const WANTS_DOWN: u32 = 1;
/// Value of [`ReaderFlags::want_down`]: the sender goes down with the first send that finds the ring read.
pub const WANTS_DOWN_ONCE_READ: u32 = 2;

/// Value of [`ReaderFlags::waiting`] for a reader that wants a doorbell of its own.
pub const ALONE: u32 = 1;
/// Value of [`ReaderFlags::waiting`] for readers that sleep on that very word (futex(2)). The sender that takes it to 0
/// wakes them.
pub const DOZING: u32 = group_number(GROUPS);
/// Value of [`ReaderFlags::in_kernel`] while the reader receives from the kernel.
pub const RECEIVING: u32 = 1;
/// Value of [`ReaderFlags::in_kernel`] while the reader finds out whether it can leave the ring.
pub const LEAVING: u32 = 2;
/// Bit of [`ReaderFlags::waiting`] that is never taken down once [`LEAVING`] is: the reader has left the ring for good.
/// The next process that reads the socket knows nothing of ring and doorbells. So the sender puts on the kernel path
/// what is unread.
pub const LEFT: u32 = 1 << 31;
/// Bit of [`ReaderFlags::waiting`] while the reader executes another program. It works as [`LEFT`] does, but the new
/// image may take it down and read on, unless the sender has begun to put on the kernel path what was unread
/// ([`GIVING`]).
pub const AWAY: u32 = 1 << 29;
/// Bit of [`ReaderFlags::waiting`] that a sender sets beside [`AWAY`] before it gives anything back.
pub const GIVING: u32 = 1 << 28;
/// Bit of [`ReaderFlags::waiting`] that a sender sets beside [`GIVING`] when it has given everything back and goes on
/// by the kernel path. The ring is empty then, and a reader that comes back begins anew.
pub const GIVEN: u32 = 1 << 27;
/// Bit of [`ReaderFlags::giver`]: the reader has put something on the kernel path itself, which its sender has not
/// counted yet.
pub const BY_READER: u32 = 1 << 31;
/// The reader does not look at the ring, for now or for good.
pub const ABSENT: u32 = LEFT | AWAY;
/// Bit of [`ReaderFlags::waiting`] while a sender that has taken a group's number may still be about to ring it; beside
/// it stands what the flag was raised to since.
pub const RINGING: u32 = 1 << 30;
/// Bit of [`SenderWords::announced`] that a reader sets when it leaves: no further doorbell may be sent.
pub const NO_MORE_BELLS: u64 = 1 << 63;
/// What [`ReaderFlags::waiting`] said when it was read. A hostile end may have put any bits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(pub u32);

/// What a reader has raised its flag to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The flag is down: no reader asks to be woken.
    Down,
    /// [`ALONE`]: a reader asks for a doorbell of its own.
    Alone,
    /// [`DOZING`]: readers ask for a knock.
    Dozing,
    /// The [`Group`] of this number asks to be rung.
    Group(u32),
}

/// Whether a reader looks at its ring, as its flag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It does.
    Here,
    /// [`AWAY`]: it does not for now.
    Away,
    /// [`GIVING`]: it is away, and its sender puts on the kernel path what is unread.
    Giving,
    /// [`GIVEN`]: it is away, its sender has done so, and the ring is empty.
    Given,
    /// [`LEFT`]: it never looks again.
    Left,
}

impl Flag {
    /// What the flag is raised to, whatever stands beside.
    #[inline]
    pub const fn raised(self) -> Raised {
        match self.0 & !(RINGING | ABSENT | GIVING | GIVEN) {
            0 => Raised::Down,
            ALONE => Raised::Alone,
            DOZING => Raised::Dozing,
            number => Raised::Group(number),
        }
    }

    /// Whether the reader looks at the ring.
    #[inline]
    pub const fn presence(self) -> Presence {
        match self.0 {
            word if word & LEFT != 0 => Presence::Left,
            word if word & AWAY == 0 => Presence::Here,
            word if word & GIVEN != 0 => Presence::Given,
            word if word & GIVING != 0 => Presence::Giving,
            _ => Presence::Away,
        }
    }

    /// Whether the reader does not look at the ring, for now or for good.
    #[inline]
    pub const fn is_absent(self) -> bool {
        self.0 & ABSENT != 0
    }

    /// Whether a sender may still be about to ring a group.
    #[inline]
    pub const fn is_ringing(self) -> bool {
        self.0 & RINGING != 0
    }

    /// The word with the flag raised to `number`, and nothing but [`RINGING`] beside it.
    #[inline]
    pub const fn raised_to(self, number: u32) -> u32 {
        self.0 & RINGING | number
    }
}

/// Groups that a side of a pool has.
pub const GROUPS: usize = 14;

laid_out! {
    /// Readers on one side of a pool that sleep together (an epoll set). One doorbell wakes them all, and a bit for
    /// each slot says which connection it was for.
    #[repr(C, align(64))]
    pub struct Group {
        /// Process that has taken it; 0: nobody.
        owner: AtomicU32,
        /// 1: asleep; the sender that takes it to 0 owes a doorbell, on whichever connection it has just sent.
        pub asleep: AtomicU32,
        /// The slots that were sent to since the group last looked.
        pub rung: AtomicU64,
    }
}

impl Group {
    /// Takes the group for process `owner`, a [marked number](crate::kernel::marked), if no process has it. A killed
    /// process keeps its groups: a process of another PID namespace cannot tell whether the owner lives, and the pool
    /// goes with its processes anyway.
    pub(crate) fn take(&self, owner: u32) -> bool {
        let taken = self.owner.compare_exchange(0, owner, AcqRel, Relaxed).is_ok();
        if taken {
            self.asleep.store(0, Relaxed);
            self.rung.store(0, Relaxed);
        }
        taken
    }

    pub(crate) fn is_owned_by(&self, owner: u32) -> bool {
        self.owner.load(Relaxed) == owner
    }

    /// Its owner does not have it any more.
    pub fn release(&self) {
        self.owner.store(0, Release);
    }
}

/// Number of group `index` in [`ReaderFlags::waiting`].
pub(crate) const fn group_number(index: usize) -> u32 {
    index as u32 + 2
}

laid_out! {
    /// Words that a direction's sender writes.
    #[repr(C, align(128))]
    pub struct SenderWords {
        /// Doorbells sent, or just being sent, in this direction since the beginning.
        pub announced: AtomicU64,
        /// 1 + number of the processor on which this end last began to wait; 0 if never.
        pub cpu: AtomicU32,
        /// 1: the sender is about to end its direction, or has: the kernel may know of the end of the stream.
        pub ended: AtomicU32,
        /// 1: the sender may be about to go up, though a reader is receiving from the kernel, or down.
        pub switching: AtomicU32,
        /// The [number](crate::kernel::marked) of a process of this end that is between two program images, the second
        /// of which comes for the channel; 0: none is.
        pub executing: AtomicU32,
        /// Of a stream to another host whose sender has ended in the ring: 1 + the octets that it has put there since
        /// it last went up.
        pub ended_at: AtomicU64,
        /// How often it had gone up, written before [`SenderWords::ended_at`].
        pub ended_in: AtomicU64,
    }
}

laid_out! {
    /// Control words of one direction.
    #[repr(C)]
    pub struct Direction {
        /// The reader's flags.
        pub flags: ReaderFlags,
        /// The reader's head.
        pub head: ReaderHead,
        /// The sender's words.
        pub sender: SenderWords,
    }
}

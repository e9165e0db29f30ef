//! The segment: what the two ends of one connection share, and the pools that segments are cut from.
//!
//! A pool is one System V segment between two processes; its first page says what it is, then come equal slots, one
//! per connection: a page of control words and two rings. Pools exist because the kernel allows only 4,096 System V
//! segments and because attaching one costs more than taking a slot.
#![allow(unsafe_code, reason = "lays the segment over shared memory")]

use crate::kernel;
use crate::layout::{LaidOut, Spare, fold, laid_out};
use crate::raw::Errno;
use crate::ring::Ring;
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use crate::sysv::{Attested, Mapping};

const PAGE: usize = 4096;
/// Length of a pool modulo the page size: tells pools from other programs' segments.
const LEN_MARK: usize = 1367;
const MAGIC: u64 = u64::from_be_bytes(*b"UPpool10");
/// Tells pools of this version of the library from others'.
const MARK: u64 = fold(Control::LAYOUT, PoolHeader::LAYOUT);

laid_out! {
    /// Words that a direction's reader writes and its sender looks at with every message. They change rarely.
    #[repr(C, align(128))]
    pub struct ReaderFlags {
        /// Not 0: the reader is going to sleep. [`ALONE`]: the sender that takes it to 0 owes a doorbell. Otherwise the
        /// number of a [`Group`], which is rung; [`RINGING`] stands beside meanwhile. [`DOZING`]: the sender owes a knock.
        pub waiting: AtomicU32,
        /// 1: all reads go through the library; doorbells cannot be taken for data.
        pub ready: AtomicU32,
        /// [`CLOSED`] or [`SHUT`]; 0: neither.
        pub closed: AtomicU32,
        /// 1: the reader asks the sender to go down.
        pub want_down: AtomicU32,
        /// 1: the reader believes itself on the kernel path and is receiving from it; the sender must not go down meanwhile,
        /// nor up, unless the reader knows ([`SenderWords::switching`]). [`LEAVING`]: it must not go down in any case.
        pub in_kernel: AtomicU32,
        /// Bytes of the record under the head that a reader which has [`LEFT`] had read.
        pub taken: AtomicU32,
        /// 1: whoever has raised the flag may well not sleep but ask again and again.
        pub asks_again: AtomicU32,
        /// 1: the reader's end is closed with a reset, whatever it has read (SO_LINGER with 0).
        pub resets: AtomicU32,
        /// How far the reader has read the kernel stream, doorbells included.
        pub position: AtomicU64,
        /// The thread, of either end, that puts on the kernel path what the reader has left in the ring; 0: none. Beside it
        /// [`BY_READER`].
        pub giver: AtomicU32,
    }
}

laid_out! {
    /// Where the reader publishes how far it has read.
    #[repr(C, align(128))]
    pub struct ReaderHead {
        /// Ring position before which everything may be overwritten.
        pub head: AtomicU64,
        /// Doorbells taken out of the kernel's queue since the beginning.
        pub bells: AtomicU64,
    }
}

/// Value of [`ReaderFlags::closed`]: the reader's end has been closed by all its processes.
pub const CLOSED: u32 = 1;
/// Value of [`ReaderFlags::closed`]: the reader lives, but has shut down both directions, so that its kernel answers any
/// further byte with a reset, a doorbell too. What is in the ring it can still read.
pub const SHUT: u32 = 2;
/// Value of [`ReaderFlags::waiting`] for a reader that wants a doorbell of its own.
pub const ALONE: u32 = 1;
/// Value of [`ReaderFlags::waiting`] for readers that sleep on that very word (futex(2)). The sender that takes it to 0 wakes them.
pub const DOZING: u32 = group_number(GROUPS);
/// Value of [`ReaderFlags::in_kernel`] while the reader finds out whether it can leave the ring.
pub const LEAVING: u32 = 2;
/// Bit of [`ReaderFlags::waiting`] that is never taken down: the reader has left the ring for good. Whoever reads the
/// socket from now on knows nothing of ring and doorbells, so the sender puts whatever is unread on the kernel path.
pub const LEFT: u32 = 1 << 31;
/// Bit of [`ReaderFlags::waiting`] while the reader executes another program: as [`LEFT`], but the new image may take it down
/// and read on, unless the sender has begun to put on the kernel path what was unread ([`GIVING`]).
pub const AWAY: u32 = 1 << 29;
/// Bit of [`ReaderFlags::waiting`] that a sender sets beside [`AWAY`] before it gives anything back.
pub const GIVING: u32 = 1 << 28;
/// Bit of [`ReaderFlags::waiting`] that a sender sets beside [`GIVING`] when it has given everything back, and goes on by the
/// kernel path: the ring is empty, and a reader that comes back may begin anew.
pub const GIVEN: u32 = 1 << 27;
/// Bit of [`ReaderFlags::giver`]: the reader has put something on the kernel path itself, which its sender has not counted yet.
pub const BY_READER: u32 = 1 << 31;
/// The reader does not look at the ring, for now or for good.
pub const ABSENT: u32 = LEFT | AWAY;
/// Bit of [`ReaderFlags::waiting`] while a sender that has taken a group's number may still be about to ring it; beside it
/// stands what the flag was raised to since.
pub const RINGING: u32 = 1 << 30;
/// Bit of [`SenderWords::bells`] that a reader sets when it leaves: no further doorbell may be sent.
pub const NO_MORE_BELLS: u64 = 1 << 63;
/// Groups that a side of a pool has.
pub const GROUPS: usize = 14;

laid_out! {
    /// Readers on one side of a pool that sleep together (an epoll set): one doorbell wakes them all, and a bit for each
    /// slot says for whom it was.
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
    /// Takes it for process `owner`, if nobody has it. One that was killed keeps its own: whether it lives cannot be told
    /// from another PID namespace, and the pool goes with its processes anyway.
    fn take(&self, owner: u32) -> bool {
        let taken = self.owner.compare_exchange(0, owner, AcqRel, Relaxed).is_ok();
        if taken {
            self.asleep.store(0, Relaxed);
            self.rung.store(0, Relaxed);
        }
        taken
    }

    fn is_owned_by(&self, owner: u32) -> bool {
        self.owner.load(Relaxed) == owner
    }

    /// Gives it back.
    pub fn give_back(&self) {
        self.owner.store(0, Release);
    }
}

/// Number of group `index` in [`ReaderFlags::waiting`].
const fn group_number(index: usize) -> u32 {
    index as u32 + 2
}

laid_out! {
    /// Words that a direction's sender writes.
    #[repr(C, align(128))]
    pub struct SenderWords {
        /// Doorbells sent, or just being sent, in this direction since the beginning.
        pub bells: AtomicU64,
        /// 1 + number of the processor on which this end last began to wait; 0 if never.
        pub cpu: AtomicU32,
        /// 1: the sender is about to end its direction, or has: the kernel may know of the end of the stream.
        pub ended: AtomicU32,
        /// 1: the sender may be about to go up, though a reader is receiving from the kernel, or down.
        pub switching: AtomicU32,
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

laid_out! {
    /// First page of a slot.
    #[repr(C, align(128))]
    struct Control {
        /// The maker's and the joiner's; [`CLAIMED`] stands beside the joiner's once the offer is no more.
        cookies: [AtomicU64; 2],
        directions: [Direction; 2],
        spare: Spare,
    }
}

/// Bit of the joiner's cookie, which the kernel counts up from 1.
const CLAIMED: u64 = 1 << 63;

laid_out! {
    #[repr(C)]
    struct PoolHeader {
        magic: AtomicU64,
        ring_bytes: AtomicU32,
        slots: AtomicU32,
        /// [`MARK`].
        mark: AtomicU64,
        /// Times that readers of either side may have left something unread to senders that do not know: see [`Link::departures`].
        departures: AtomicU32,
        /// By side of the reader.
        groups: [[Group; GROUPS]; 2],
    }
}

/// Which end of a connection: the one that made the segment is `Maker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Made the segment; sends in direction 0.
    Maker = 0,
    /// Joined it; sends in direction 1.
    Joiner = 1,
}

/// Shape of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of each ring; a power of two, 64 KiB to 16 MiB.
    pub ring_bytes: u32,
    /// Number of slots, 1 to [`Shape::MAX_SLOTS`].
    pub slots: u32,
}

impl Shape {
    /// Most slots of a pool.
    pub const MAX_SLOTS: u32 = 64;

    /// Whether the shape is one that is ever made.
    pub fn is_sane(self) -> bool {
        self.ring_bytes.is_power_of_two()
            && (1 << 16..=1 << 24).contains(&self.ring_bytes)
            && (1..=Self::MAX_SLOTS).contains(&self.slots)
    }

    fn slot_bytes(self) -> usize {
        PAGE + 2 * self.ring_bytes as usize
    }

    /// Bytes of a pool of this shape.
    pub fn pool_bytes(self) -> usize {
        PAGE + self.slots as usize * self.slot_bytes() - LEN_MARK
    }
}

/// A pool that this process has attached.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    mapping: Mapping,
    shape: Shape,
}

impl Pool {
    /// Makes a pool.
    ///
    /// # Errors
    /// See [`Mapping::create`].
    pub fn create(shape: Shape) -> Result<Pool, Errno> {
        // The last page is whole in memory although the length is not a multiple of its size.
        let pool = Pool { mapping: Mapping::create(shape.pool_bytes())?, shape };
        let header = pool.header();
        header.ring_bytes.store(shape.ring_bytes, Relaxed);
        header.slots.store(shape.slots, Relaxed);
        header.mark.store(MARK, Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(pool)
    }

    /// Attaches the pool that the other end made.
    ///
    /// # Errors
    /// EACCES when it is not a pool of that shape, private to `uid`; otherwise what shmctl or shmat says.
    pub fn open(id: i32, shape: Shape, uid: u32) -> Result<(Pool, Attested), Errno> {
        if !shape.is_sane() {
            return Err(Errno(libc::EACCES));
        }
        let (mapping, attested) = Mapping::open(id, shape.pool_bytes(), uid)?;
        let pool = Pool { mapping, shape };
        let header = pool.header();
        if header.magic.load(Acquire) != MAGIC || header.mark.load(Relaxed) != MARK {
            // SAFETY: nothing refers into it yet.
            unsafe { mapping.detach() };
            return Err(Errno(libc::EACCES));
        }
        Ok((pool, attested))
    }

    /// Number of the System V segment.
    pub fn id(&self) -> i32 {
        self.mapping.id()
    }

    /// Where it begins in this process, as [`Link::pool`] says.
    pub fn begin(&self) -> *const u8 {
        self.mapping.base().as_ptr()
    }

    /// See [`Link::departures`].
    pub fn tell_of_departure(&self) {
        self.header().departures.fetch_add(1, AcqRel);
    }

    /// How many processes have it attached; `None` when the kernel does not say.
    pub fn attached(&self) -> Option<u64> {
        self.mapping.attached()
    }

    /// Whether another process of user `uid` could attach it.
    pub fn is_there(&self, uid: u32) -> bool {
        self.mapping.is_there(uid)
    }

    /// Shape it was made with.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Takes the pool out of this process.
    ///
    /// # Safety
    /// No [`Link`] of it may be used any more.
    pub unsafe fn detach(self) {
        // SAFETY: passed on to the caller.
        unsafe { self.mapping.detach() };
    }

    fn header(&self) -> &PoolHeader {
        // SAFETY: the mapping is at least a page long, page-aligned, and attached as long as the process uses it.
        unsafe { &*(self.mapping.base().as_ptr() as *const PoolHeader) }
    }

    /// The segment in slot `index`, seen from `side`; `None` when there is no such slot.
    pub fn slot(&self, index: u32, side: Side) -> Option<Link> {
        if index >= self.shape.slots {
            return None;
        }
        let at = PAGE + index as usize * self.shape.slot_bytes();
        // SAFETY: the index is within the pool; slots are page-aligned.
        let base = unsafe { self.mapping.base().as_ptr().add(at) };
        let header = self.mapping.base().as_ptr();
        Some(Link { base, header, ring_bytes: self.shape.ring_bytes, slot: index, side: side as u32 })
    }
}

/// One connection's segment as one end sees it.
///
/// Whole words without a niche, because each call copies it: an `Option` around it is then a copy as well.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    base: *mut u8,
    header: *const u8,
    ring_bytes: u32,
    slot: u32,
    /// A [`Side`].
    side: u32,
}

impl Link {
    fn control(&self) -> &Control {
        // SAFETY: `base` is the page-aligned beginning of a slot of an attached pool.
        unsafe { &*(self.base as *const Control) }
    }

    fn ring(&self, direction: usize) -> Ring {
        // SAFETY: the slot holds two rings behind its control page.
        unsafe { Ring::new(self.base.add(PAGE + direction * self.ring_bytes as usize), self.ring_bytes.into()) }
    }

    /// Which end this is.
    pub fn side(&self) -> Side {
        if self.side == Side::Maker as u32 { Side::Maker } else { Side::Joiner }
    }

    /// Where the pool begins in this process: tells pools apart.
    pub fn pool(&self) -> *const u8 {
        self.header
    }

    /// Its slot in the pool, below 64.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    fn group(&self, side: usize, number: u32) -> Option<&Group> {
        // SAFETY: the pool begins with its header and is attached as long as the link is used.
        let header = unsafe { &*(self.header as *const PoolHeader) };
        header.groups[side].get((number as usize).checked_sub(2)?)
    }

    /// Takes a group of readers on this side for process `owner`, with its number; `None` when all are in use.
    pub fn take_group(&self, owner: u32) -> Option<(u32, &Group)> {
        let mut numbers = (0..GROUPS).map(group_number);
        numbers.find_map(|number| {
            let group = self.group(self.side as usize, number)?;
            group.take(owner).then_some((number, group))
        })
    }

    /// Whether `number` is that of a group of readers on this side which another process than `me` has.
    pub fn is_anothers_group(&self, number: u32, me: u32) -> bool {
        self.group(self.side as usize, number).is_some_and(|group| !group.is_owned_by(me))
    }

    /// Times that readers have left rings of this pool, or of another pool of the same process, with something unread that they
    /// could not give themselves. Its senders may make no call on those connections: whoever of their process goes to sleep on one
    /// of this pool gives back on all.
    #[inline]
    pub fn departures(&self) -> u32 {
        // SAFETY: the pool begins with its header and is attached as long as the link is used.
        unsafe { &*(self.header as *const PoolHeader) }.departures.load(Acquire)
    }

    /// Group `number` of readers on the other side.
    #[inline]
    pub fn their_group(&self, number: u32) -> Option<&Group> {
        self.group(1 - self.side as usize, number)
    }

    /// Control words of the direction in which this end sends.
    #[inline]
    pub fn outgoing(&self) -> &Direction {
        &self.control().directions[self.side as usize]
    }

    /// Control words of the direction in which this end receives.
    #[inline]
    pub fn incoming(&self) -> &Direction {
        &self.control().directions[1 - self.side as usize]
    }

    /// Ring into which this end sends.
    #[inline]
    pub fn outgoing_ring(&self) -> Ring {
        self.ring(self.side as usize)
    }

    /// Ring from which this end receives.
    #[inline]
    pub fn incoming_ring(&self) -> Ring {
        self.ring(1 - self.side as usize)
    }

    /// Makes the slot ready for the connection between the sockets with these cookies (maker's, joiner's).
    pub fn prepare(&self, cookies: [u64; 2]) {
        let control = self.control();
        for direction in 0..2 {
            let words = &control.directions[direction];
            words.flags.ready.store(0, Relaxed);
            words.flags.closed.store(0, Relaxed);
            words.flags.want_down.store(0, Relaxed);
            words.flags.in_kernel.store(0, Relaxed);
            words.flags.taken.store(0, Relaxed);
            words.flags.asks_again.store(0, Relaxed);
            words.flags.resets.store(0, Relaxed);
            words.flags.position.store(0, Relaxed);
            words.flags.giver.store(0, Relaxed);
            words.head.head.store(0, Relaxed);
            words.head.bells.store(0, Relaxed);
            words.sender.cpu.store(0, Relaxed);
            words.sender.ended.store(0, Relaxed);
            words.sender.switching.store(0, Relaxed);
            words.sender.bells.store(0, Relaxed);
            // A reader counts as asleep until it has shown that it is not: it may be in a poll of the kernel's.
            words.flags.waiting.store(ALONE, Relaxed);
            // SAFETY: the first word of the ring; position 0 is where both sides begin.
            unsafe {
                (*(self.base.add(PAGE + direction * self.ring_bytes as usize) as *const AtomicU64)).store(0, Relaxed)
            };
        }
        control.cookies[0].store(cookies[0], Relaxed);
        control.cookies[1].store(cookies[1], Release);
    }

    /// Whether the slot was prepared for the connection between these sockets (maker's cookie, joiner's cookie).
    pub fn is_for(&self, cookies: [u64; 2]) -> bool {
        let control = self.control();
        control.cookies[1].load(Acquire) & !CLAIMED == cookies[1] && control.cookies[0].load(Relaxed) == cookies[0]
    }

    /// Decides what becomes of the slot that was prepared for the connection of the joiner with this cookie: true for one
    /// caller at most, the joiner, who has joined, or the maker, who has taken it back. What the directory says decides
    /// nothing: any process of the user may offer there what was taken back.
    pub fn claim(&self, joiner: u64) -> bool {
        let word = &self.control().cookies[1];
        word.compare_exchange(joiner, joiner | CLAIMED, AcqRel, Relaxed).is_ok()
    }

    /// Tells the other end whether this one, whose socket is `fd`, is closed with a reset.
    pub fn tell_of_close(&self, fd: i32) {
        self.incoming().flags.resets.store(kernel::resets_at_close(fd).into(), Release);
    }

    /// Whether both ends have closed, so that the slot may be used again.
    pub fn is_over(&self) -> bool {
        self.control().directions.iter().all(|d| d.flags.closed.load(Acquire) == CLOSED)
    }
}

const _: () = assert!(size_of::<Control>() <= PAGE && size_of::<PoolHeader>() <= PAGE);

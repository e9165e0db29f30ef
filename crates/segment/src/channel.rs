//! The channel: what the two ends of one connection share, and the pools that channels are cut from.
//!
//! A pool is one System V segment between two processes; its first page says what it is, then come equal slots, one
//! per connection: a page of control words and two rings. Pools exist because the kernel allows only 4,096 System V
//! segments and because attaching one costs more than taking a slot.
#![allow(unsafe_code, reason = "lays the channel over shared memory")]

use crate::kernel;
use crate::layout::{LaidOut, Spare, fold, laid_out};
use crate::raw::{Errno, is_quiet};
use crate::ring::Ring;
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release, SeqCst};
use crate::sysv::{Attested, Mapping};
use crate::words::{ALONE, CLOSED, Direction, GROUPS, Group, group_number, is_closed};

const PAGE: usize = 4096;
/// Length of a pool modulo the page size: tells pools from other programs' System V segments.
const LEN_MARK: usize = 1367;
const MAGIC: u64 = u64::from_be_bytes(*b"UPpool10");
/// Tells pools of this version of the library from others'.
pub const MARK: u64 = fold(Control::LAYOUT, PoolHeader::LAYOUT);

laid_out! {
    /// First page of a slot.
    #[repr(C, align(128))]
    struct Control {
        /// The maker's cookie and the joiner's. [`CLAIMED`] is set in the joiner's once the offer is over.
        cookies: [AtomicU64; 2],
        directions: [Direction; 2],
        spare: Spare,
    }
}

/// Bytes of a slot's control words.
pub const WORDS: usize = size_of::<Control>();

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
        /// How often readers of either side may have left unread bytes to senders that do not know of it: see
        /// [`Channel::departures`].
        departures: AtomicU32,
        /// The groups of readers of each side.
        groups: [[Group; GROUPS]; 2],
    }
}

/// Which end of a connection: the end that made the channel is `Maker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Made the channel; sends in direction 0.
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

    /// Whether pools of this shape are ever made.
    pub fn is_sane(self) -> bool {
        self.ring_bytes.is_power_of_two()
            && (1 << 16..=1 << 24).contains(&self.ring_bytes)
            && (1..=Self::MAX_SLOTS).contains(&self.slots)
    }

    /// The shape that the broker names.
    pub fn of_broker(shape: underpass_broker::Shape) -> Shape {
        Shape { ring_bytes: shape.ring_bytes(), slots: shape.slots() }
    }

    const fn slot_bytes(self) -> usize {
        PAGE + 2 * self.ring_bytes as usize
    }

    /// Bytes of a pool of this shape.
    pub const fn pool_bytes(self) -> usize {
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
        pool.lay();
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

    /// The pool in a memfd of the broker's, mapped once, and whether this call has mapped it. Nothing in it is relied
    /// on: the process that makes a slot ready lays out the first page as well.
    ///
    /// # Errors
    /// See [`Mapping::of_memfd`].
    pub fn of_memfd(fd: i32, shape: Shape) -> Result<(Pool, bool), Errno> {
        let (mapping, is_new) = Mapping::of_memfd(fd, shape.pool_bytes())?;
        Ok((Pool { mapping, shape }, is_new))
    }

    /// The pool of this number, which this process has mapped.
    pub fn of_number(number: i32, shape: Shape) -> Option<Pool> {
        shape
            .is_sane()
            .then(|| Mapping::of_number(number, shape.pool_bytes()))
            .flatten()
            .map(|mapping| Pool { mapping, shape })
    }

    /// Writes into the first page what this is. It is the same each time, so a process that uses the pool already is
    /// not disturbed.
    pub fn lay(&self) {
        let header = self.header();
        header.ring_bytes.store(self.shape.ring_bytes, Relaxed);
        header.slots.store(self.shape.slots, Relaxed);
        header.mark.store(MARK, Relaxed);
        header.magic.store(MAGIC, Release);
    }

    /// Whether its memory came from the broker.
    pub fn is_brokered(&self) -> bool {
        self.mapping.is_memfd()
    }

    /// Number of the System V segment; below 0 if there is none.
    pub fn id(&self) -> i32 {
        self.mapping.id()
    }

    /// Where it begins in this process, as [`Channel::pool`] says.
    pub fn begin(&self) -> *const u8 {
        self.mapping.base().as_ptr()
    }

    /// See [`Channel::departures`].
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
    /// No [`Channel`] of it may be used any more.
    pub unsafe fn detach(self) {
        // SAFETY: passed on to the caller.
        unsafe { self.mapping.detach() };
    }

    fn header(&self) -> &PoolHeader {
        // SAFETY: the mapping is at least a page long, page-aligned, and attached as long as the process uses it.
        unsafe { &*(self.mapping.base().as_ptr() as *const PoolHeader) }
    }

    /// The channel in slot `index`, seen from `side`; `None` when there is no such slot.
    pub fn slot(&self, index: u32, side: Side) -> Option<Channel> {
        if index >= self.shape.slots {
            return None;
        }
        let at = PAGE + index as usize * self.shape.slot_bytes();
        // SAFETY: the index is within the pool; slots are page-aligned.
        let base = unsafe { self.mapping.base().as_ptr().add(at) };
        let header = self.mapping.base().as_ptr();
        Some(Channel { base, header, ring_bytes: self.shape.ring_bytes, slot: index, side: side as u32 })
    }

    /// The channels that were ever used, as their makers see them. The lowest free slot is always taken, so behind the
    /// first that never was come no others: to look at these would fill their pages.
    pub fn channels(&self) -> impl Iterator<Item = Channel> {
        let all = (0..self.shape.slots).map_while(|slot| self.slot(slot, Side::Maker));
        all.take_while(|channel| channel.control().cookies[0].load(Relaxed) != 0)
    }
}

/// One connection's channel as one end sees it.
///
/// A channel in this process's memory. It consists of whole words without a niche, because each call copies it: an
/// `Option` around it is then a copy as well.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    base: *mut u8,
    header: *const u8,
    ring_bytes: u32,
    slot: u32,
    /// A [`Side`].
    side: u32,
}

impl Channel {
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
        // SAFETY: the pool begins with its header and is attached as long as the channel is used.
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

    /// Whether group `number` of readers on this side belongs to another process than `me`.
    pub fn is_anothers_group(&self, number: u32, me: u32) -> bool {
        self.group(self.side as usize, number).is_some_and(|group| !group.is_owned_by(me))
    }

    /// How often readers have left rings of this pool, or of another pool of the same process, with something unread
    /// that they could not give back themselves. The senders may make no call on those connections. So a thread of the
    /// senders' process that goes to sleep on a connection of this pool gives back on all connections.
    #[inline]
    pub fn departures(&self) -> u32 {
        // SAFETY: the pool begins with its header and is attached as long as the channel is used.
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
            words.flags.consumed.store(0, Relaxed);
            words.flags.asks_again.store(0, Relaxed);
            words.flags.resets.store(0, Relaxed);
            words.flags.line.store(0, Relaxed);
            words.flags.asks_end.store(0, Relaxed);
            words.flags.position.store(0, Relaxed);
            words.flags.giver.store(0, Relaxed);
            words.head.head.store(0, Relaxed);
            words.head.bells_taken.store(0, Relaxed);
            words.sender.cpu.store(0, Relaxed);
            words.sender.ended.store(0, Relaxed);
            words.sender.switching.store(0, Relaxed);
            words.sender.executing.store(0, Relaxed);
            words.sender.ended_at.store(0, Relaxed);
            words.sender.ended_in.store(0, Relaxed);
            words.sender.announced.store(0, Relaxed);
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

    /// Makes the slot one that both ends have closed, so that the joiner does not join.
    pub fn prepare_over(&self, [maker, joiner]: [u64; 2]) {
        self.prepare([maker, joiner | CLAIMED]);
        self.control().directions.iter().for_each(|it| it.flags.closed.store(CLOSED, Release));
    }

    /// The cookie of the maker's socket.
    pub fn maker(&self) -> u64 {
        self.control().cookies[0].load(Relaxed)
    }

    /// The control words of both directions, for a [copy](Channel::copy_from).
    pub fn words(&self) -> (*const u8, usize) {
        (self.base, WORDS)
    }

    /// Makes this slot, of which nobody else knows, a copy of another one: `words` are the [words](Channel::words) of
    /// that one, and `ring` is what its incoming ring had from position `from` on. False if that does not fit.
    pub fn copy_from(&self, words: &[u8], from: u64, ring: &[u8]) -> bool {
        if words.len() != WORDS {
            return false;
        }
        // SAFETY: the slot begins with so many bytes, at which nobody else looks. Any bytes are valid words.
        unsafe { core::ptr::copy_nonoverlapping(words.as_ptr(), self.base, WORDS) };
        // SAFETY: likewise.
        unsafe { self.incoming_ring().lay(from, ring) }
    }

    /// Whether the slot was prepared for the connection between these sockets (maker's cookie, joiner's cookie).
    pub fn is_for(&self, cookies: [u64; 2]) -> bool {
        let control = self.control();
        control.cookies[1].load(Acquire) & !CLAIMED == cookies[1] && control.cookies[0].load(Relaxed) == cookies[0]
    }

    /// Decides what becomes of the slot that was prepared for the connection of the joiner with this cookie. One caller
    /// at most gets true: the joiner has joined then, or the maker has taken the slot back. The directory decides
    /// nothing: any process of the user may offer there again what was taken back.
    pub fn claim(&self, joiner: u64) -> bool {
        let word = &self.control().cookies[1];
        word.compare_exchange(joiner, joiner | CLAIMED, AcqRel, Relaxed).is_ok()
    }

    /// Tells the other end whether this one, whose socket is `fd`, is closed with a reset.
    pub fn tell_of_close(&self, fd: i32) {
        self.incoming().flags.resets.store(kernel::resets_at_close(fd).into(), Release);
    }

    /// Whether a process of the other end is between two program images, and lives. Nobody waits for a process of
    /// another PID namespace, because nothing tells whether it lives.
    pub fn other_executes(&self) -> bool {
        is_executing(self.incoming())
    }

    /// Whether a process of either end is between two program images, and lives, for a process that ends. What it was
    /// about to execute itself does not come any more.
    pub fn is_awaited_by_image(&self) -> bool {
        let me = kernel::marked_process_id();
        let is_mine = |direction: &Direction| direction.sender.executing.load(SeqCst) == me;
        [self.outgoing(), self.incoming()].into_iter().any(|it| !is_mine(it) && is_executing(it))
    }

    /// Such a process was awaited for long enough, or somebody lies: nobody waits for it again.
    pub fn forget_image(&self) {
        [self.outgoing(), self.incoming()].iter().for_each(|direction| direction.sender.executing.store(0, Relaxed));
    }

    /// Whether both ends have closed, so that the slot may be used again.
    pub fn is_over(&self) -> bool {
        self.control().directions.iter().all(|d| is_closed(d.flags.closed.load(Acquire)))
    }
}

/// Whether a process of the end that sends in this direction is between two program images, and lives.
fn is_executing(direction: &Direction) -> bool {
    let number = direction.sender.executing.load(SeqCst);
    number != 0 && kernel::own(number).is_some_and(|process| is_quiet() || kernel::thread_lives(process))
}

const _: () = assert!(size_of::<Control>() <= PAGE && size_of::<PoolHeader>() <= PAGE);

/// The broker counts the same pages for a pool.
const _: () = {
    let mut slots = 1;
    while slots <= Shape::MAX_SLOTS {
        let ours = Shape { ring_bytes: 1 << 16, slots }.pool_bytes().next_multiple_of(PAGE);
        let Ok(its) = underpass_broker::Shape::new(1 << 16, slots) else { panic!("it has the same shapes") };
        assert!(ours as u64 == its.pool_bytes());
        slots += 1;
    }
};

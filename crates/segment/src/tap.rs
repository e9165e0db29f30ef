//! A tap: the memory to which senders copy what they publish while `underpass capture` runs.
//!
//! It is a System V segment that the capturing command makes and names in the [`directory`](crate::directory), for
//! connections that go fast later, and in the ends that there are. A process attaches it with the first send, and lets
//! go of it when the command is gone, however it ended, and before it sleeps: see `tap/kept.rs`. A process that finds
//! the command gone forgets the tap's name.
//!
//! Inside is a ring of records, each a [`Head`] and its bytes. Senders take turns by a lock; the command is the only
//! reader. A sender waits for neither a reader nor room: what does not fit is counted and left out.
//!
//! Neither side trusts the other, nor senders one another: any process of the user may write anything here. A sender
//! masks every offset, and the command checks every record and copies it before it looks at it.
#![allow(unsafe_code, reason = "lays records over shared memory")]

mod kept;

use crate::clock;
use crate::kernel::{self, Address, Process};
use crate::lock::alive;
use crate::raw::Errno;
use crate::ring::MAX_RECORD;
use crate::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release, pause};
use crate::sysv::Mapping;
pub use kept::let_go;

/// Bytes of the control words. With three pages of them no tap is as long as a directory, whatever its capacity.
const CONTROL: usize = 3 * 4096;
const MAGIC: u64 = u64::from_be_bytes(*b"UPtap_02");
/// Capacities are powers of two: 64 KiB to 1 GiB.
const ORDERS: core::ops::RangeInclusive<u32> = 16..=30;
/// How often a sender tries that finds another one inside; it gives way in between.
const ROUNDS: u32 = 400;

#[repr(C, align(128))]
struct Control {
    magic: AtomicU64,
    /// The position up to which the command has read.
    head: Line<AtomicU64>,
    /// The thread that is inside; 0: none.
    lock: Line<AtomicU32>,
    /// Behind the last record. Positions count bytes since the beginning.
    tail: AtomicU64,
    /// Bytes of the streams that were left out.
    lost: AtomicU64,
}

#[repr(C, align(128))]
struct Line<T>(T);

/// In a forked child: it has nothing of what its parent keeps, and may be in another PID namespace.
pub fn after_fork() {
    SPACE.store(0, Relaxed);
    kept::after_fork();
}

/// The PID namespace of this process, once that was asked for; 0: not known.
static SPACE: AtomicU32 = AtomicU32::new(0);

/// The PID namespace of this process, by its inode number; 0 where /proc does not say.
pub(crate) fn space() -> u32 {
    let known = SPACE.load(Relaxed);
    if known != 0 {
        return known;
    }
    let space = kernel::namespaces().map_or(0, |it| (it >> 32) as u32);
    SPACE.store(space, Relaxed);
    space
}

/// What names a tap: its number, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    id: i32,
    order: u32,
}

impl Name {
    /// From the word in which it is kept; `None` for 0, and for what names none.
    pub fn of(word: u64) -> Option<Name> {
        let order = (word >> 32) as u32;
        ORDERS.contains(&order).then_some(Name { id: word as i32, order })
    }

    /// Into one word, which is not 0.
    pub fn word(self) -> u64 {
        u64::from(self.order) << 32 | u64::from(self.id as u32)
    }

    /// Whether user `uid` has a tap of this name whose maker lives.
    pub fn is_there(self, uid: u32) -> bool {
        let maker = Mapping::creator_of(self.id, len(self.order), uid);
        maker.is_ok_and(|maker| kernel::process(maker as u32) != Process::Gone)
    }
}

const fn len(order: u32) -> usize {
    CONTROL + (1 << order)
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Head {
    /// Bytes that follow.
    pub len: u32,
    /// 1: the direction ends here.
    pub ends: u32,
    /// The process that sent them.
    pub pid: u32,
    /// The PID namespace in which that is told, by its inode number; 0: not known.
    pub space: u32,
    /// When, by CLOCK_MONOTONIC in nanoseconds.
    pub when: u64,
    /// The cookies of the sender's socket and of the other end's.
    pub cookies: [u64; 2],
    /// [`End::positions`](crate::end::End::positions) before them.
    pub positions: [u64; 2],
    /// The addresses of the sender's socket and of the other end's.
    pub addresses: [Address; 2],
}

const HEAD: usize = size_of::<Head>();

/// Bytes of a record with `len` bytes of the stream.
const fn record(len: u64) -> u64 {
    HEAD as u64 + len.next_multiple_of(8)
}

/// The memory of a tap as this process sees it.
#[derive(Debug)]
struct Memory {
    mapping: Mapping,
    capacity: u64,
}

impl Memory {
    fn control(&self) -> &Control {
        // SAFETY: the mapping begins with control pages and is attached as long as this value lives.
        unsafe { &*(self.mapping.base().as_ptr() as *const Control) }
    }

    /// The two stretches that `n` bytes from `position` on take, each where it begins and how long it is; at most the
    /// capacity.
    fn stretches(&self, position: u64, n: usize) -> [(*mut u8, usize); 2] {
        let n = n.min(self.capacity as usize);
        let offset = (position & (self.capacity - 1)) as usize;
        let first = n.min(self.capacity as usize - offset);
        // SAFETY: the capacity lies behind the control pages, and the offset is less than it.
        let base = unsafe { self.mapping.base().as_ptr().add(CONTROL) };
        // SAFETY: as above.
        [(unsafe { base.add(offset) }, first), (base, n - first)]
    }

    /// # Safety
    /// `from` must be valid for reading `n` bytes.
    unsafe fn write(&self, position: u64, from: *const u8, n: usize) {
        let [(to, first), (begin, rest)] = self.stretches(position, n);
        // SAFETY: the stretches lie in the mapping; the caller vouches for `from`.
        unsafe {
            core::ptr::copy_nonoverlapping(from, to, first);
            core::ptr::copy_nonoverlapping(from.add(first), begin, rest);
        }
    }

    /// # Safety
    /// `to` must be valid for writing `n` bytes.
    unsafe fn read(&self, position: u64, to: *mut u8, n: usize) {
        let [(from, first), (begin, rest)] = self.stretches(position, n);
        // SAFETY: the stretches lie in the mapping; the caller vouches for `to`.
        unsafe {
            core::ptr::copy_nonoverlapping(from, to, first);
            core::ptr::copy_nonoverlapping(begin, to.add(first), rest);
        }
    }
}

/// A sender's tap, for one call.
#[derive(Debug)]
pub struct Writer {
    memory: Memory,
    /// Set if the tap stays attached after this call.
    kept: Option<kept::Use>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.kept.is_none() {
            // SAFETY: nothing refers into it any more.
            unsafe { self.memory.mapping.detach() };
        }
    }
}

impl Writer {
    /// Finds it, or attaches it, for thread `me`, as the library knows it.
    ///
    /// # Errors
    /// `None`: there is no such tap any more. Otherwise what shmat says.
    pub fn open(name: Name, uid: u32, me: u32) -> Result<Writer, Option<Errno>> {
        let (capacity, now) = (1 << name.order, clock::nanoseconds());
        if let Some((mapping, found)) = kept::find(name, uid, now).map_err(|()| None)? {
            return Ok(Writer { memory: Memory { mapping, capacity }, kept: Some(found) });
        }
        let attached = Mapping::open(name.id, len(name.order), uid).map_err(|error| match error.0 {
            libc::EINVAL | libc::EIDRM | libc::EACCES => None,
            _ => Some(error),
        })?;
        let mut writer = Writer { memory: Memory { mapping: attached.0, capacity }, kept: None };
        if writer.memory.control().magic.load(Acquire) != MAGIC {
            return Err(None);
        }
        // A forked child would not know that it has the tap.
        if writer.memory.mapping.keep_from_children().is_ok() {
            writer.kept = kept::keep(name, (uid, me), now, attached).map_err(|()| None)?;
        }
        Ok(writer)
    }

    /// Puts a record of `head` and its bytes, which lie at `from`, if there is room and thread `me` has its turn soon.
    ///
    /// # Safety
    /// `from` must be valid for reading `head.len` bytes.
    pub unsafe fn put(&self, me: u32, head: &Head, from: *const u8) {
        let control = self.memory.control();
        if self.enter(me) {
            let tail = control.tail.load(Relaxed);
            let used = tail.wrapping_sub(control.head.0.load(Acquire));
            let size = record(head.len.into());
            let fits = used <= self.memory.capacity && size <= self.memory.capacity - used;
            if fits {
                // SAFETY: the head is as long as it is; the caller vouches for `from`.
                unsafe {
                    self.memory.write(tail, (head as *const Head).cast(), HEAD);
                    self.memory.write(tail.wrapping_add(HEAD as u64), from, head.len as usize);
                }
                control.tail.store(tail.wrapping_add(size), Release);
            }
            control.lock.0.store(0, Release);
            if fits {
                return;
            }
        }
        control.lost.fetch_add(head.len.into(), Relaxed);
    }

    /// Takes the tap's lock. A sender that was killed while it had the lock has published nothing, so there is nothing
    /// to mend.
    fn enter(&self, me: u32) -> bool {
        let lock = &self.memory.control().lock.0;
        for round in 0..=ROUNDS {
            let owner = lock.load(Relaxed);
            let is_free = owner == 0 || round == ROUNDS && !alive(owner);
            if is_free && lock.compare_exchange(owner, me, Acquire, Relaxed).is_ok() {
                return true;
            }
            match round {
                0..200 => pause(),
                200..300 => clock::give_way(),
                _ => clock::nap(50),
            }
        }
        false
    }
}

/// The capturing command's tap.
#[derive(Debug)]
pub struct Tap {
    memory: Memory,
    order: u32,
    head: u64,
    damaged: u64,
}

impl Drop for Tap {
    fn drop(&mut self) {
        // A process that neither sends nor sleeps may keep the tap attached for long, so this frees its memory.
        self.memory.mapping.empty();
        // SAFETY: nothing refers into it any more.
        unsafe { self.memory.mapping.detach() };
    }
}

impl Tap {
    /// Makes an empty one for `capacity` bytes, rounded up to what taps have.
    ///
    /// # Errors
    /// See [`Mapping::create`].
    pub fn create(capacity: u64) -> Result<Tap, Errno> {
        let order = capacity.clamp(1 << ORDERS.start(), 1 << ORDERS.end()).next_power_of_two().trailing_zeros();
        let memory = Memory { mapping: Mapping::create(len(order))?, capacity: 1 << order };
        memory.control().magic.store(MAGIC, Release);
        Ok(Tap { memory, order, head: 0, damaged: 0 })
    }

    /// The name by which senders find the tap.
    pub fn name(&self) -> Name {
        Name { id: self.memory.mapping.id(), order: self.order }
    }

    /// The next record, whose bytes replace those in `bytes`; `None` if there is none yet.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Option<Head> {
        let control = self.memory.control();
        let tail = control.tail.load(Acquire);
        let there = tail.wrapping_sub(self.head);
        if there == 0 {
            return None;
        }
        let head = (HEAD as u64..=self.memory.capacity).contains(&there).then(|| self.head_at(self.head));
        let is_sane = |head: &Head| head.len as usize <= MAX_RECORD && record(head.len.into()) <= there;
        let Some(head) = head.filter(is_sane) else {
            // No sender writes that, so the records that lie here cannot be told apart any more.
            self.damaged += 1;
            self.move_to(tail);
            return None;
        };
        bytes.resize(head.len as usize, 0);
        // SAFETY: the vector is that long.
        unsafe { self.memory.read(self.head.wrapping_add(HEAD as u64), bytes.as_mut_ptr(), bytes.len()) };
        self.move_to(self.head.wrapping_add(record(head.len.into())));
        Some(head)
    }

    /// Behind the last record that is there now.
    pub fn tail(&self) -> u64 {
        self.memory.control().tail.load(Acquire)
    }

    /// Whether there is something before this position that was not taken yet.
    pub fn is_before(&self, position: u64) -> bool {
        position.wrapping_sub(self.head) as i64 > 0
    }

    /// Bytes that senders have left out for want of room.
    pub fn lost(&self) -> u64 {
        self.memory.control().lost.load(Relaxed)
    }

    /// How often the command has found what no sender writes, and had to throw everything away.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    fn head_at(&self, position: u64) -> Head {
        let mut head = core::mem::MaybeUninit::<Head>::uninit();
        // SAFETY: it is written from end to end; any bytes are a valid head.
        unsafe {
            self.memory.read(position, head.as_mut_ptr().cast(), HEAD);
            head.assume_init()
        }
    }

    fn move_to(&mut self, head: u64) {
        self.head = head;
        self.memory.control().head.0.store(head, Release);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A process keeps one tap.
    pub(crate) static ALONE: Mutex<()> = Mutex::new(());

    fn head(len: usize) -> Head {
        let nobody = Address { family: 0, port: 0, bytes: [0; 16] };
        Head {
            len: len as u32,
            ends: 0,
            pid: 1,
            space: 0,
            when: 7,
            cookies: [1, 2],
            positions: [3, 4],
            addresses: [nobody; 2],
        }
    }

    fn put(writer: &Writer, bytes: &[u8]) {
        // SAFETY: the slice is that long.
        unsafe { writer.put(kernel::thread_id(), &head(bytes.len()), bytes.as_ptr()) };
    }

    fn open(tap: &Tap) -> Writer {
        Writer::open(tap.name(), kernel::user_id(), kernel::thread_id()).unwrap()
    }

    #[test]
    fn what_is_put_comes_out_in_order_and_what_does_not_fit_is_counted() {
        let _alone = ALONE.lock();
        let mut tap = Tap::create(1).unwrap();
        assert_eq!(tap.memory.capacity, 1 << 16);
        let mut bytes = vec![];
        for round in 0..1000usize {
            let writer = open(&tap);
            let sent: Vec<Vec<u8>> = (0..3).map(|n| vec![(round + n) as u8; (round * 37 + n * 4001) % 9000]).collect();
            sent.iter().for_each(|it| put(&writer, it));
            for it in &sent {
                assert_eq!((tap.next(&mut bytes), &bytes), (Some(head(it.len())), it));
            }
            assert_eq!(tap.next(&mut bytes), None);
        }
        assert_eq!((tap.lost(), tap.damaged()), (0, 0));
        let writer = open(&tap);
        (0..4).for_each(|n| put(&writer, &vec![n; 30_000]));
        assert_eq!(tap.lost(), 60_000);
        assert_eq!((0..9).filter_map(|_| tap.next(&mut bytes)).count(), 2);
    }

    #[test]
    fn it_is_gone_with_its_maker() {
        let _alone = ALONE.lock();
        let tap = Tap::create(1).unwrap();
        let (name, uid) = (tap.name(), kernel::user_id());
        assert_eq!(Name::of(name.word()), Some(name));
        assert!(name.is_there(uid) && !name.is_there(uid + 1));
        drop(open(&tap));
        let_go();
        drop(tap);
        assert!(!name.is_there(uid));
        assert!(matches!(Writer::open(name, uid, kernel::thread_id()), Err(None)));
        assert_eq!(Name::of(0), None);
    }

    #[test]
    fn lies_harm_nobody() {
        let _alone = ALONE.lock();
        let mut tap = Tap::create(1).unwrap();
        let mut bytes = vec![];
        let mut random = 88172645463325252u64;
        for round in 0..20_000 {
            let writer = open(&tap);
            put(&writer, &[1; 100]);
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let control = tap.memory.control();
            match round % 4 {
                0 => control.tail.store(random, Relaxed),
                1 => control.head.0.store(random, Relaxed),
                2 => {
                    let lie = [random as u32; 4];
                    let at = tap.head;
                    // SAFETY: the array is that long.
                    unsafe { tap.memory.write(at, lie.as_ptr().cast(), size_of_val(&lie)) };
                }
                _ => control.tail.store(tap.head.wrapping_add(random % 200), Relaxed),
            }
            put(&writer, &[2; 33_000][..MAX_RECORD]);
            (0..1000).find(|_| tap.next(&mut bytes).is_none());
        }
        assert!(tap.damaged() > 0);
    }

    #[test]
    fn who_was_killed_inside_holds_up_nobody() {
        let _alone = ALONE.lock();
        let mut tap = Tap::create(1).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        tap.memory.control().lock.0.store(child.id(), Relaxed);
        put(&open(&tap), b"on");
        let mut bytes = vec![];
        assert!(tap.next(&mut bytes).is_some());
        assert_eq!(bytes, b"on");
        // A live owner that does not come out costs the sender its bytes, not a wait.
        tap.memory.control().lock.0.store(kernel::thread_id(), Relaxed);
        put(&open(&tap), b"out");
        assert_eq!((tap.next(&mut bytes), tap.lost()), (None, 3));
    }
}

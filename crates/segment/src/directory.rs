//! Where the ends of a user's connections find each other: one table per user and IPC namespace, in a System V segment
//! of its own, which any process of that user can find and no other user can open.
//!
//! An end that wants to go up leaves its name here; whichever end comes second makes the channel. Nothing in the table
//! is believed without proof ([`crate::meeting`]): any process of the user may write anything here.
#![allow(unsafe_code, reason = "lays the table over shared memory")]

mod locking;
mod making;

use crate::channel::Shape;
use crate::kernel;
use crate::layout::{LaidOut, fold, laid_out};
use crate::sync::{AcqRel, Acquire, AtomicI32, AtomicU32, AtomicU64, Relaxed, Release, SeqCst};
use crate::sysv::Mapping;
use crate::tap::Name;
use locking::is_gone;

/// How many ends of a user can wait at one time. An end that finds no place asks again later.
const ENTRIES: usize = 1 << 15;
/// An entry lies within this many places of its key's hash.
const NEIGHBOURS: usize = 64;
/// Pieces of code that are known to set up no io_uring, all of a user's together.
const CODES: usize = 1 << 10;
const LEN_MARK: usize = 1889;
const LEN: usize = size_of::<Header>() + ENTRIES * size_of::<Entry>() + 4096 - LEN_MARK;
const MAGIC: u64 = u64::from_be_bytes(*b"UPdir_05");
/// Tells directories of this version of the library from others'.
const MARK: u64 = fold(fold(Header::LAYOUT, Entry::LAYOUT), ENTRIES as u64);

laid_out! {
    #[repr(C, align(64))]
    struct Header {
        magic: AtomicU64,
        lock: AtomicU32,
        /// The [`Name`] of the tap of a capture that runs; 0 if none does.
        tap: AtomicU64,
        /// [`MARK`].
        mark: AtomicU64,
        /// See [`Directory::is_harmless`]: 0, or the mark of a piece of code.
        harmless: [AtomicU64; CODES],
    }
}

const EMPTY: u32 = 0;
const WAITING: u32 = 1;
const OFFERED: u32 = 2;
const LENT: u32 = 3;
const SENT_ON: u32 = 4;

/// The cookies of a connection's two sockets: smaller, larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64, u64);

impl Key {
    /// The key of the connection between two sockets, whichever names it.
    pub fn of(one: u64, other: u64) -> Key {
        Key(one.min(other), one.max(other))
    }

    /// The key of the entry of a socket that was passed on.
    pub fn lent(cookie: u64) -> Key {
        Key(0, cookie)
    }

    fn place(self) -> usize {
        let mixed = (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.1).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed >> 40) as usize % ENTRIES
    }
}

/// The holder of an end: enough for the other end to have the kernel confirm it, in the same PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process, by its [marked number](kernel::marked).
    pub pid: i32,
    /// Its descriptor of the socket.
    pub fd: i32,
    /// Its family of processes (see [`crate::family::Family::id`]).
    pub family: i32,
}

/// This process as a [`Holder`].
pub fn holder(fd: i32, family: i32) -> Holder {
    Holder { pid: kernel::marked_process_id() as i32, fd, family }
}

/// A socket that was passed to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The process that has passed it.
    pub lender: Holder,
    /// Index of its end in that process's family.
    pub index: u32,
    /// Whether the channel may have had bytes for the receiver when the socket was passed.
    pub depends: bool,
    /// Index of the entry that says so.
    entry: u32,
}

/// A channel made for a waiting end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The process that made it.
    pub maker: Holder,
    /// System V number of the pool.
    pub pool: i32,
    /// Slot in the pool.
    pub slot: u32,
    /// Shape of the pool, as claimed.
    pub shape: Shape,
}

laid_out! {
    #[repr(C, align(64))]
    struct Entry {
        state: AtomicU32,
        key: [AtomicU64; 2],
        waiter: [AtomicI32; 3],
        maker: [AtomicI32; 3],
        pool: AtomicI32,
        slot: AtomicU32,
        shape: [AtomicU32; 2],
    }
}

impl Entry {
    fn is(&self, key: Key) -> bool {
        self.key[0].load(Relaxed) == key.0 && self.key[1].load(Relaxed) == key.1
    }
}

fn store(to: &[AtomicI32; 3], holder: Holder) {
    to[0].store(holder.pid, Relaxed);
    to[1].store(holder.fd, Relaxed);
    to[2].store(holder.family, Relaxed);
}

fn load(from: &[AtomicI32; 3]) -> Holder {
    Holder { pid: from[0].load(Relaxed), fd: from[1].load(Relaxed), family: from[2].load(Relaxed) }
}

/// The result of asking for the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The other end has not asked yet; this end's name is in the entry with this index.
    Nobody(u32),
    /// The other end waits; [`Directory::offer`] answers the entry with this index.
    Waiter(u32, Holder),
    /// All places for this key are taken.
    Full,
    /// Another process has had the table's lock for too long.
    Busy,
}

/// The table as this process sees it.
#[derive(Clone, Copy, Debug)]
pub struct Directory {
    mapping: Mapping,
    uid: u32,
}

impl Directory {
    /// User whose table it is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The tap to which connections that go fast from now on copy. A tap whose maker is gone is forgotten.
    pub fn tap(&self) -> Option<Name> {
        let name = Name::of(self.header().tap.load(SeqCst))?;
        if !name.is_there(self.uid) {
            self.forget_tap(name);
            return None;
        }
        Some(name)
    }

    /// Names the tap; false if another is named, and there.
    pub fn set_tap(&self, name: Name) -> bool {
        self.tap().is_none() && self.header().tap.compare_exchange(0, name.word(), SeqCst, Relaxed).is_ok()
    }

    /// Forgets the tap of this name: senders are not to copy there any more.
    pub fn forget_tap(&self, name: Name) {
        let _ = self.header().tap.compare_exchange(name.word(), 0, SeqCst, Relaxed);
    }

    /// Whether a process of the user has searched the piece of code with this mark, and found nothing that sets up an
    /// io_uring. Unlike the rest of the table, the library believes this: a process that could lie here could also
    /// trace this one.
    pub fn is_harmless(&self, code: u64) -> bool {
        self.places_of(code).any(|it| it.load(Relaxed) == code)
    }

    /// Records that. Where no place is free, another mark is overwritten, and its piece of code is searched again.
    pub fn set_harmless(&self, code: u64) {
        let Some(first) = self.places_of(code).next() else { return };
        self.places_of(code).find(|it| it.load(Relaxed) == 0).unwrap_or(first).store(code, Relaxed);
    }

    fn places_of(&self, code: u64) -> impl Iterator<Item = &AtomicU64> {
        const NEAR: usize = 8;
        let harmless = &self.header().harmless;
        (0..NEAR).map(move |step| &harmless[(code as usize).wrapping_add(step) % CODES])
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with the header and stays attached.
        unsafe { &*(self.mapping.base().as_ptr() as *const Header) }
    }

    fn entry(&self, index: usize) -> &Entry {
        let at = size_of::<Header>().next_multiple_of(align_of::<Entry>()) + (index % ENTRIES) * size_of::<Entry>();
        // SAFETY: within LEN; zeroed memory is an empty entry; everything in it is atomic.
        unsafe { &*(self.mapping.base().as_ptr().add(at) as *const Entry) }
    }

    /// Asks whether the other end of `key` waits; leaves `me` there if not.
    pub fn ask(&self, key: Key, me: Holder) -> Found {
        let Some(_held) = self.try_lock(me.pid) else { return Found::Busy };
        let start = key.place();
        let mut free = None;
        for step in 0..NEIGHBOURS {
            let index = (start + step) % ENTRIES;
            let entry = self.entry(index);
            let state = entry.state.load(Acquire);
            if state == EMPTY {
                free = free.or(Some(index));
            } else if entry.is(key) {
                if state == WAITING {
                    return Found::Waiter(index as u32, load(&entry.waiter));
                }
                // An entry of the same two sockets: it is stale or forged.
                free = Some(index);
                break;
            }
        }
        let index = match free.or_else(|| self.abandoned(start)) {
            Some(index) => index,
            None => return Found::Full,
        };
        let entry = self.entry(index);
        entry.key[0].store(key.0, Relaxed);
        entry.key[1].store(key.1, Relaxed);
        store(&entry.waiter, me);
        entry.state.store(WAITING, Release);
        Found::Nobody(index as u32)
    }

    /// Answers the waiting end of `key` with a channel. False when it does not wait any more.
    pub fn offer(&self, index: u32, key: Key, offer: Offer) -> bool {
        let Some(_held) = self.try_lock(offer.maker.pid) else { return false };
        let entry = self.entry(index as usize);
        if entry.state.load(Acquire) != WAITING || !entry.is(key) {
            return false;
        }
        store(&entry.maker, offer.maker);
        entry.pool.store(offer.pool, Relaxed);
        entry.slot.store(offer.slot, Relaxed);
        entry.shape[0].store(offer.shape.ring_bytes, Relaxed);
        entry.shape[1].store(offer.shape.slots, Relaxed);
        entry.state.store(OFFERED, Release);
        true
    }

    /// Whether a channel has been offered to the end that waits in entry `index`. One load, mostly.
    #[inline]
    pub fn offered(&self, index: u32, key: Key) -> Option<Offer> {
        let entry = self.entry(index as usize);
        if entry.state.load(Acquire) != OFFERED || !entry.is(key) {
            return None;
        }
        Some(Offer {
            maker: load(&entry.maker),
            pool: entry.pool.load(Relaxed),
            slot: entry.slot.load(Relaxed),
            shape: Shape { ring_bytes: entry.shape[0].load(Relaxed), slots: entry.shape[1].load(Relaxed) },
        })
    }

    /// Sends the waiting end of `key` to the broker, because one of the two ends cannot prove that it holds the
    /// connection. False when the end does not wait any more.
    pub fn send_on(&self, index: u32, key: Key, pid: i32) -> bool {
        let Some(_held) = self.try_lock(pid) else { return false };
        let entry = self.entry(index as usize);
        let waits = entry.state.load(Acquire) == WAITING && entry.is(key);
        if waits {
            entry.state.store(SENT_ON, Release);
        }
        waits
    }

    /// Whether the end that waits in entry `index` is sent to the broker.
    pub fn is_sent_on(&self, index: u32, key: Key) -> bool {
        let entry = self.entry(index as usize);
        entry.state.load(Acquire) == SENT_ON && entry.is(key)
    }

    /// Whether the entry is this connection's.
    pub fn is_there(&self, index: u32, key: Key) -> bool {
        let entry = self.entry(index as usize);
        entry.state.load(Acquire) != EMPTY && entry.is(key)
    }

    /// Makes an entry for a joined end whose socket is being passed to another process, with the end's index in its
    /// family. Returns the index of the entry, which is cleared when the end is over; `None` when there is no place for
    /// it.
    pub fn lend(&self, cookie: u64, me: Holder, index: u32, depends: bool) -> Option<u32> {
        let key = Key::lent(cookie);
        let _held = self.lock_patiently(me.pid)?;
        let start = key.place();
        let places = || (0..NEIGHBOURS).map(|step| (start + step) % ENTRIES);
        let same = places().find(|&at| self.entry(at).state.load(Acquire) != EMPTY && self.entry(at).is(key));
        let free = same.or_else(|| places().find(|&at| self.entry(at).state.load(Acquire) == EMPTY));
        let at = free.or_else(|| self.abandoned(start))?;
        let entry = self.entry(at);
        entry.key[0].store(key.0, Relaxed);
        entry.key[1].store(key.1, Relaxed);
        store(&entry.waiter, me);
        entry.slot.store(index, Relaxed);
        entry.pool.store(depends.into(), Relaxed);
        entry.state.store(LENT, Release);
        Some(at as u32)
    }

    /// Finds the entry of the lent socket with this cookie: the lender, and the end's index. The entry stays, because
    /// several processes may have been given the socket.
    pub fn borrow(&self, cookie: u64, pid: i32) -> Option<Lent> {
        let key = Key::lent(cookie);
        let _held = self.lock_patiently(pid)?;
        let start = key.place();
        let at = (0..NEIGHBOURS)
            .map(|step| (start + step) % ENTRIES)
            .find(|&at| self.entry(at).state.load(Acquire) == LENT && self.entry(at).is(key))?;
        let entry = self.entry(at);
        Some(Lent {
            lender: load(&entry.waiter),
            index: entry.slot.load(Relaxed),
            depends: entry.pool.load(Relaxed) != 0,
            entry: at as u32,
        })
    }

    /// Clears the entry of the socket with this cookie that [`Directory::borrow`] has found.
    pub fn end_lending(&self, lent: Lent, cookie: u64, pid: i32) {
        self.clear(lent.entry, Key::lent(cookie), pid);
    }

    /// Clears the entry, if it is still this connection's; false if it is not, or if the table is busy.
    pub fn clear(&self, index: u32, key: Key, pid: i32) -> bool {
        let entry = self.entry(index as usize);
        let Some(_held) = self.try_lock(pid).filter(|_| entry.is(key)) else { return false };
        entry.state.swap(EMPTY, AcqRel) != EMPTY
    }

    /// An entry near `start` whose process is gone.
    fn abandoned(&self, start: usize) -> Option<usize> {
        (0..NEIGHBOURS).map(|step| (start + step) % ENTRIES).find(|&index| {
            let entry = self.entry(index);
            let pid = entry.waiter[0].load(Relaxed);
            pid <= 0 || is_gone(pid as u32)
        })
    }
}

/// What the tests of forged entries need.
#[cfg(all(test, not(loom)))]
impl Key {
    pub(crate) fn cookies(self) -> (u64, u64) {
        (self.0, self.1)
    }
}

#[cfg(all(test, not(loom)))]
impl Directory {
    /// A table that no other process finds.
    pub(crate) fn private(uid: u32) -> Directory {
        let directory = Directory { mapping: Mapping::create(LEN).unwrap(), uid };
        directory.header().magic.store(1, Release);
        directory
    }

    /// The words of the entries in which the key may lie, 16 for each: state, nothing, key (4), waiter (3), maker (3),
    /// pool, slot, shape (2).
    pub(crate) fn words(&self, key: Key) -> Vec<&[AtomicU32]> {
        let entry = |step| self.entry((key.place() + step) % ENTRIES);
        // SAFETY: an entry is 16 words, all of which may be anything.
        let words = |it: &Entry| unsafe { core::slice::from_raw_parts((&raw const *it).cast(), 16) };
        (0..NEIGHBOURS).map(|step| words(entry(step))).collect()
    }

    /// Number of its System V segment.
    pub(crate) fn id(&self) -> i32 {
        self.mapping.id()
    }

    /// The lock.
    pub(crate) fn lock(&self) -> &AtomicU32 {
        &self.header().lock
    }
}

#[cfg(test)]
mod tests;

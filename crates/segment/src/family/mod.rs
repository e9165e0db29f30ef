//! The table of ends of a family of processes (a process and what it forks), in a System V segment of its own, so that
//! a forked child finds the same locks and positions as its parent.
#![allow(unsafe_code, reason = "lays the table of ends over shared memory")]

mod members;
mod membership;
mod ordering;
mod orders;

use crate::end::End;
use crate::layout::{LaidOut, fold, laid_out};
use crate::parted::Parted;
use crate::raw::Errno;
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use crate::sysv::{self, Mapping};
use core::ptr::NonNull;
use members::{Holders, Members};
pub use membership::Departing;
use orders::Orders;

/// Most ends that a family has at one time.
pub const MAX_ENDS: usize = 1 << 16;
/// How many ends lie in the beginning of the table, which is all that a process maps of it until it needs the rest: see
/// [`crate::parted`]. These take 2.6 MB, and the others 39 MB.
const FIRST_ENDS: usize = 1 << 12;
/// Number of an end in the beginning that is never used. A look-up of an end that cannot be reached finds this one.
const NOBODYS: usize = FIRST_ENDS;
/// Tells tables of this version of the library from others'.
const MARK: u64 = {
    let words = fold(fold(FamilyHeader::LAYOUT, End::LAYOUT), Holders::LAYOUT);
    fold(fold(words, FIRST_ENDS as u64), MAX_ENDS as u64)
};

laid_out! {
    #[repr(C, align(64))]
    struct FamilyHeader {
        /// Index + 1 of the first free end in the low half, a tag against ABA in the high half.
        free: AtomicU64,
        fresh: AtomicU32,
        /// How many images have been lent ends.
        images: AtomicU32,
        /// [`MARK`].
        mark: AtomicU64,
        members: Members,
        orders: Orders,
    }
}

/// Ends that lie one after another, and after them the bits of the members that have them: see [`Family::holders`].
struct Row {
    begin: usize,
    len: usize,
}

impl Row {
    #[inline]
    const fn end(&self, at: usize) -> usize {
        self.begin + at * size_of::<End>()
    }

    #[inline]
    const fn holders(&self, at: usize) -> usize {
        self.end(self.len) + at * size_of::<Holders>()
    }

    const fn behind(&self) -> usize {
        self.holders(self.len)
    }
}

const FIRST: Row = Row { begin: size_of::<FamilyHeader>(), len: FIRST_ENDS + 1 };
/// Begins with a page, however large pages are.
const REST: Row = Row { begin: FIRST.behind().next_multiple_of(1 << 16), len: MAX_ENDS - FIRST_ENDS };

/// The table of ends of a family of processes.
#[derive(Debug)]
pub struct Family {
    table: Parted,
}

impl Family {
    pub(crate) const LEN: usize = REST.behind().next_multiple_of(4096);

    /// Makes an empty table.
    ///
    /// # Errors
    /// See [`Mapping::create`].
    pub fn create() -> Result<Family, Errno> {
        let family = Family { table: Parted::of(Mapping::create(Self::LEN)?, REST.begin) };
        family.header().mark.store(MARK, Release);
        Ok(family.without_unused())
    }

    /// Attaches the table with number `id`, if it is private to user `uid`.
    ///
    /// # Errors
    /// EACCES when it is not, or when another version of the library made it; otherwise what shmctl or shmat says.
    pub fn open(id: i32, uid: u32) -> Result<Family, Errno> {
        Ok(Self::of(Mapping::open(id, Self::LEN, uid)?.0)?.without_unused())
    }

    /// Attaches a table to be looked at only: see [`crate::watch`].
    pub(crate) fn open_to_read(id: i32, uid: u32) -> Result<Family, Errno> {
        Self::of(Mapping::open_to_read(id, Self::LEN, uid)?)
    }

    fn of(mapping: Mapping) -> Result<Family, Errno> {
        let family = Family { table: Parted::of(mapping, REST.begin) };
        if family.header().mark.load(Acquire) != MARK {
            // SAFETY: nothing refers into it yet.
            unsafe { mapping.detach() };
            return Err(Errno(libc::EACCES));
        }
        Ok(family)
    }

    /// The table. This process keeps only its beginning if no end behind it was ever in use.
    fn without_unused(mut self) -> Family {
        if self.used() as usize <= FIRST_ENDS {
            // SAFETY: just attached, and nothing refers into it yet.
            unsafe { self.table.keep_beginning() };
        }
        self
    }

    /// Numbers of the tables of user `uid`, up to as many as `out` holds; returns how many.
    pub(crate) fn find(uid: u32, out: &mut [i32]) -> usize {
        sysv::find(Self::LEN, uid, out)
    }

    /// Calls `what` with the number and the user of the tables of all users: see [`sysv::find_of_all`].
    pub(crate) fn find_of_all(what: impl FnMut(i32, u32)) {
        sysv::find_of_all(Self::LEN, what);
    }

    /// Takes the table out of this process's address space.
    ///
    /// # Safety
    /// Neither it nor a reference into it may be used afterwards, by any thread.
    pub unsafe fn detach(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.table.detach() };
    }

    /// Number that tells this family from every other family that lives.
    pub fn id(&self) -> i32 {
        self.table.mapping().id()
    }

    fn header(&self) -> &FamilyHeader {
        // SAFETY: the mapping begins with the header and stays attached.
        unsafe { &*(self.table.base().as_ptr() as *const FamilyHeader) }
    }

    fn members(&self) -> &Members {
        &self.header().members
    }

    fn orders(&self) -> &Orders {
        &self.header().orders
    }

    /// A number for an image that is about to be lent ends: no other that is awaited has it. Not 0.
    pub fn next_image(&self) -> u32 {
        self.header().images.fetch_add(1, Relaxed).wrapping_add(1).max(1)
    }

    /// How many ends were ever in use.
    pub fn used(&self) -> u32 {
        self.header().fresh.load(Relaxed).min(MAX_ENDS as u32)
    }

    /// How many ends were ever in use, if no end is free.
    pub(crate) fn without_free(&self) -> Option<u32> {
        (self.header().free.load(Relaxed) as u32 == 0).then(|| self.used())
    }

    /// How many mappings of the table there are in all processes; `None` when the kernel does not say.
    pub(crate) fn attached(&self) -> Option<u64> {
        self.table.mapping().attached()
    }

    /// How many of them this process has.
    pub(crate) fn mappings(&self) -> u32 {
        1 + u32::from(self.table.is_in_two())
    }

    /// Whether this process can reach end number `index`.
    pub(crate) fn reaches(&self, index: u32) -> bool {
        (index as usize) < FIRST_ENDS || (index as usize) < MAX_ENDS && self.rest().is_some()
    }

    /// The address from which the ends behind the beginning are counted.
    fn rest(&self) -> Option<NonNull<u8>> {
        self.table.rest().or_else(|| self.attach_rest())
    }

    #[cold]
    fn attach_rest(&self) -> Option<NonNull<u8>> {
        let rest = self.table.attach_rest().ok()?;
        self.tell_mappings();
        Some(rest)
    }

    /// The address that `of` computes for end number `index`, from its row and its place in the row.
    #[inline]
    fn at(&self, index: u32, of: impl Fn(&Row, usize) -> usize) -> *const u8 {
        let (index, beginning) = (index as usize, self.table.base().as_ptr());
        if index < FIRST_ENDS {
            return beginning.wrapping_add(of(&FIRST, index));
        }
        match self.rest() {
            Some(base) if index < MAX_ENDS => base.as_ptr().wrapping_add(of(&REST, index - FIRST_ENDS)),
            _ => beginning.wrapping_add(of(&FIRST, NOBODYS)),
        }
    }

    /// Which members have end number `index`.
    pub(crate) fn holders(&self, index: u32) -> &Holders {
        // SAFETY: within the mapping; zeroed memory is nobody; everything in it is atomic.
        unsafe { &*self.at(index, Row::holders).cast() }
    }

    /// End number `index`. If this process cannot reach it, this is an end that is never used.
    #[inline]
    pub fn end(&self, index: u32) -> &End {
        // SAFETY: within the mapping; zeroed memory is an unused end; everything in it is atomic.
        unsafe { &*self.at(index, Row::end).cast() }
    }

    /// Takes an unused end, with one reference, which is `member`'s; `None` when all are in use that this process can
    /// reach.
    pub fn take(&self, member: Option<u32>) -> Option<u32> {
        let header = self.header();
        let mut free = header.free.load(Acquire);
        while free as u32 != 0 && self.reaches(free as u32 - 1) {
            let index = free as u32 - 1;
            let next = self.end(index).next_free.load(Relaxed);
            let tagged = (free >> 32).wrapping_add(1) << 32 | next as u64;
            match header.free.compare_exchange_weak(free, tagged, AcqRel, Acquire) {
                Ok(_) => {
                    self.reset(index, member);
                    return Some(index);
                }
                Err(now) => free = now,
            }
        }
        let next = |index| self.reaches(index).then(|| index + 1);
        let index = header.fresh.fetch_update(Relaxed, Relaxed, next).ok()?;
        self.reset(index, member);
        Some(index)
    }

    /// Makes an end free for another connection, once nothing refers to it.
    pub fn free(&self, index: u32) {
        // Otherwise a process that is killed as it comes for the connection that was here would have it ended again.
        self.end(index).owners.end();
        self.holders(index).reset(None);
        let header = self.header();
        let mut free = header.free.load(Acquire);
        loop {
            self.end(index).next_free.store(free as u32, Relaxed);
            let tagged = (free >> 32).wrapping_add(1) << 32 | (index + 1) as u64;
            match header.free.compare_exchange_weak(free, tagged, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    fn reset(&self, index: u32, member: Option<u32>) {
        let end = self.end(index);
        // SAFETY: the end is unused, so nobody else looks at it; all-zero is a valid value of every field.
        unsafe { core::ptr::write_bytes(end as *const End as *mut u8, 0, size_of::<End>()) };
        self.holders(index).reset(member);
        end.owners.begin();
    }
}

#[cfg(test)]
mod tests;

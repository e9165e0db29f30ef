//! The memory of a set's registrations, by descriptor: it grows with what it holds, since a program may have a set for
//! each of its connections.

use super::State;
use super::item::{Item, NONE};
use crate::guest::memory::{release, reserve};
use core::sync::atomic::{Ordering::SeqCst, compiler_fence};

/// How many registrations the set's own page has room for.
const FIRST: usize = 16;

/// A table of registrations, found by descriptor; the heads of the chains of registrations with equal data; and the
/// list of the active ones: `capacity` of each, a power of two, one after another.
///
/// A signal handler may interrupt any change of the table, and finds the table consistent.
#[repr(C)]
pub(super) struct Items {
    capacity: usize,
    /// Places that were ever taken.
    used: usize,
}

const fn bytes(capacity: usize) -> usize {
    size_of::<Items>() + capacity * (size_of::<Item>() + size_of::<u32>() + size_of::<i32>())
}

/// The first table of a set.
#[repr(C, align(16))]
pub(super) struct First([u8; bytes(FIRST)]);

impl First {
    /// Empty.
    pub(super) fn begin(&mut self) -> *mut Items {
        // Not the header, which may be in use.
        self.0[size_of::<Items>()..].fill(0);
        let items: *mut Items = (&raw mut self.0).cast();
        // SAFETY: aligned, and large enough.
        unsafe { ((*items).capacity, (*items).used) = (FIRST, 0) };
        items
    }
}

impl Items {
    fn make(capacity: usize) -> Option<*mut Items> {
        let made: *mut Items = reserve(bytes(capacity)).cast();
        // SAFETY: fresh memory; zeroed memory is an empty table.
        (!made.is_null()).then(|| unsafe {
            (*made).capacity = capacity;
            made
        })
    }

    fn place(&self, index: usize) -> *mut Item {
        debug_assert!(index < self.capacity);
        // SAFETY: behind the header there are so many.
        unsafe { (&raw const *self).add(1).cast::<Item>().cast_mut().add(index) }
    }

    fn head(&self, index: usize) -> *mut u32 {
        // SAFETY: as above; behind those there are so many heads.
        unsafe { self.place(0).add(self.capacity).cast::<u32>().add(index) }
    }

    fn active(&self, index: usize) -> Option<*mut i32> {
        // SAFETY: as above; behind those there is room for so many descriptors.
        (index < self.capacity).then(|| unsafe { self.head(0).add(self.capacity).cast::<i32>().add(index) })
    }

    /// The place of `fd`, or the place that it would get.
    fn find(&self, fd: i32) -> *mut Item {
        let mut index = fd as usize & (self.capacity - 1);
        loop {
            let place = self.place(index);
            // SAFETY: a place of the table; zeroed memory is a valid registration. Some are never taken.
            let key = unsafe { (*place).key };
            if key == 0 || key == fd as u32 + 1 {
                return place;
            }
            index = (index + 1) & (self.capacity - 1);
        }
    }
}

impl State {
    /// An empty table, the set's first.
    pub(super) fn begin_anew(&mut self) {
        // SAFETY: the first table is this set's own.
        let first = unsafe { (*self.first).begin() };
        self.use_items(first);
        (self.count, self.active_count, self.stale_count, self.turn) = (0, 0, 0, 0);
        self.looks_left = 0;
    }

    /// Replaces the table by `items`, and only then releases the old one: a signal handler might look at it.
    fn use_items(&mut self, items: *mut Items) {
        let old = core::mem::replace(&mut self.items, items);
        compiler_fence(SeqCst);
        if !old.is_null() && old != self.first.cast() {
            // SAFETY: a table that was mapped for itself, which nobody uses from now on.
            unsafe { release(old.cast(), bytes((*old).capacity)) };
        }
    }

    fn table(&self) -> &Items {
        // SAFETY: each set has one.
        unsafe { &*self.items }
    }

    pub(super) fn item(&mut self, fd: i32) -> Option<&mut Item> {
        if fd < 0 {
            return None;
        }
        // SAFETY: places are this set's own.
        Some(unsafe { &mut *self.table().find(fd) }).filter(|it| it.key != 0)
    }

    /// The place of `fd`, made if there is none yet; `None` without address space.
    pub(super) fn need_item(&mut self, fd: i32) -> Option<&mut Item> {
        if fd < 0 {
            return None;
        }
        if self.item(fd).is_none() {
            let table = self.table();
            // A quarter stays free, so that a search for a place ends soon.
            if 4 * (table.used + 1) > 3 * table.capacity {
                self.grow()?;
            }
            // SAFETY: the table is this set's own.
            unsafe {
                (*self.items).used += 1;
                (*self.table().find(fd)).key = fd as u32 + 1;
            }
        }
        self.item(fd)
    }

    /// Room for more: a new table without the places that are not in use any more.
    fn grow(&mut self) -> Option<()> {
        let old = self.table();
        let live = (0..old.capacity).map(|index| old.place(index));
        // SAFETY: places of the table, here and below.
        let live = || live.clone().filter(|&place| unsafe { (*place).is_live() });
        let count = live().count();
        let new = Items::make(if 2 * count < old.capacity { old.capacity } else { 2 * old.capacity })?;
        // SAFETY: nobody else has the new table.
        let table = unsafe { &mut *new };
        for place in live() {
            // SAFETY: as above.
            let mut item = unsafe { *place };
            let head = table.head(head_of(item.data, table.capacity));
            // SAFETY: as above; the new table is large enough for all.
            unsafe {
                item.next = core::mem::replace(&mut *head, item.key);
                *table.find(item.key as i32 - 1) = item;
            }
        }
        table.used = count;
        for index in 0..self.active_count {
            if let (Some(to), Some(from)) = (table.active(index), old.active(index)) {
                // SAFETY: entries of the lists.
                unsafe { *to = *from };
            }
        }
        self.use_items(new);
        Some(())
    }

    /// Calls `what` with every descriptor that has a place.
    pub(super) fn each(&mut self, mut what: impl FnMut(i32, &mut Item)) {
        for index in 0..self.table().capacity {
            // SAFETY: a place of the table.
            let item = unsafe { &mut *self.table().place(index) };
            if item.key != 0 {
                what(item.key as i32 - 1, item);
            }
        }
    }

    /// Places of the table.
    pub(super) fn places(&self) -> usize {
        self.table().capacity
    }

    /// The descriptor that is registered in place `index`; -1: none.
    pub(super) fn fd_at(&self, index: usize) -> i32 {
        // SAFETY: a place of the table; zeroed memory is a valid registration.
        unsafe { (*self.table().place(index)).key as i32 - 1 }
    }

    pub(super) fn active_at(&self, index: usize) -> i32 {
        // SAFETY: an entry of the list.
        self.table().active(index).map_or(-1, |fd| unsafe { *fd })
    }

    /// False beyond the end of the list: never, since each descriptor is in it once at most.
    pub(super) fn set_active_at(&mut self, index: usize, fd: i32) -> bool {
        // SAFETY: as above.
        self.table().active(index).map(|place| unsafe { *place = fd }).is_some()
    }

    /// The head of the chain of registrations with `data`.
    pub(super) fn bucket_of(&mut self, data: u64) -> &mut u32 {
        let table = self.table();
        // SAFETY: below the capacity.
        unsafe { &mut *table.head(head_of(data, table.capacity)) }
    }
}

fn head_of(data: u64, capacity: usize) -> usize {
    const { assert!(NONE == 0) };
    (data.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (capacity - 1)
}

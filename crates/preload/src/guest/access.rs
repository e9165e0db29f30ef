//! Whether the memory that the program points to can be read or written.
//!
//! The kernel answers a bad pointer with EFAULT; an access by this library would be SIGSEGV. So a call with a bad
//! pointer is left to the kernel before the library reads any of its arguments. The library asks the kernel about a
//! page once, by a call that changes nothing, and assumes that a page which was found stays: on the fast path this
//! costs one look at a table. The buffers of a send or a receive are not checked, because they may lie on any number of
//! pages.

use core::ffi::{c_char, c_void};
use libc::sigset_t;
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;
use underpass_segment::sync::{AtomicUsize, Relaxed};
use underpass_segment::vector::is_low;

/// The smallest page of any processor.
const PAGE: usize = 4096;
const READ: usize = 1;
const WRITE: usize = 2;
const SLOTS: usize = 4096;

/// Addresses of pages that were found, each with [`READ`] and [`WRITE`] as far as that was asked for.
static FOUND: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];

/// Whether `count` elements at `at` can be read. True where the library may make no system call to find out.
#[inline]
pub fn is_readable<T>(at: *const T, count: usize) -> bool {
    allows(at as usize, count.saturating_mul(size_of::<T>()), READ)
}

/// Whether `count` elements at `at` can be written, and so read.
#[inline]
pub fn is_writable<T>(at: *const T, count: usize) -> bool {
    allows(at as usize, count.saturating_mul(size_of::<T>()), READ | WRITE)
}

/// Whether `len` bytes at `at` can be read.
pub fn are_bytes_readable(at: *const c_void, len: usize) -> bool {
    is_readable(at.cast::<u8>(), len)
}

/// Whether a string can be read, with the NUL at its end.
pub fn is_string_readable(string: *const c_char) -> bool {
    let mut at = string as usize;
    while allows(at, 1, READ) {
        let left = PAGE - at % PAGE;
        // SAFETY: the rest of the page can be read.
        if unsafe { core::slice::from_raw_parts(at as *const u8, left) }.contains(&0) {
            return true;
        }
        at += left;
    }
    false
}

/// Whether there is no list of strings, or it can be read, with the null pointer at its end.
///
/// # Safety
/// What can be read of it must stay as it is meanwhile.
pub unsafe fn are_strings_readable(mut list: *const *const c_char) -> bool {
    if list.is_null() {
        return true;
    }
    while is_readable(list, 1) {
        // SAFETY: there is something to read.
        let string = unsafe { *list };
        if string.is_null() {
            return true;
        }
        if !is_string_readable(string) {
            return false;
        }
        list = list.wrapping_add(1);
    }
    false
}

/// Whether there is no mask, or what the kernel reads of it can be read: its first 64 bits.
#[inline]
pub fn is_mask_readable(mask: *const sigset_t) -> bool {
    mask.is_null() || is_readable(mask.cast::<u64>(), 1)
}

#[inline(always)]
fn allows(at: usize, len: usize, access: usize) -> bool {
    if len == 0 {
        return true;
    }
    let (first, last) = (at & !(PAGE - 1), at.saturating_add(len - 1) & !(PAGE - 1));
    if first == last { page_allows(first, access) } else { pages_allow(first, last, access) }
}

#[cold]
fn pages_allow(first: usize, last: usize, access: usize) -> bool {
    // The last page first: if the length is wrong, the last page is the missing one.
    page_allows(last, access) && (first / PAGE..last / PAGE).all(|number| page_allows(number * PAGE, access))
}

#[inline(always)]
fn page_allows(page: usize, access: usize) -> bool {
    let number = page / PAGE;
    // Pages at the same place of many stacks have slots of their own.
    let slot = &FOUND[(number ^ (number / SLOTS)) % SLOTS];
    slot.load(Relaxed) & (!(PAGE - 1) | access) == page | access || ask(slot, page, access)
}

#[cold]
fn ask(slot: &AtomicUsize, page: usize, access: usize) -> bool {
    if is_low(page as *const u8) {
        return false;
    }
    if is_quiet() {
        return true;
    }
    let page_at = page as *const u64;
    let allows = if access & WRITE == 0 { kernel::is_readable(page_at) } else { kernel::is_writable(page_at) };
    if allows {
        slot.store(page | access, Relaxed);
    }
    allows
}

//! The program's memory, where it may not be what the program says.
#![allow(unsafe_code, reason = "has the kernel look at addresses")]

use super::process_id;
use crate::raw::{Errno, is_quiet, syscall};
use core::mem::MaybeUninit;

/// Whether there is memory of this process.
#[cold]
pub fn is_mapped<T>(address: *const T) -> bool {
    const PAGE: usize = 4096;
    let mut resident = 0u8;
    let page = address as usize & !(PAGE - 1);
    // SAFETY: the kernel writes one byte for one page.
    !is_quiet() && unsafe { syscall(libc::SYS_mincore, [page, 1, &raw mut resident as usize, 0, 0, 0]) }.is_ok()
}

/// A copy of what lies at `from` in the program's memory.
///
/// # Errors
/// EFAULT where nothing lies that can be read, EPERM or ENOSYS where a sandbox does not allow to ask.
pub fn copy_of<T: Copy>(from: *const T) -> Result<T, Errno> {
    let mut copy = MaybeUninit::<T>::uninit();
    let piece = |at: *mut T| libc::iovec { iov_base: at.cast(), iov_len: size_of::<T>() };
    let (to, from) = (piece(copy.as_mut_ptr()), piece(from.cast_mut()));
    let (to, from) = (&raw const to as usize, &raw const from as usize);
    // SAFETY: the kernel writes to our own memory, and checks what it reads.
    match unsafe { syscall(libc::SYS_process_vm_readv, [process_id() as usize, to, 1, from, 1, 0]) }? {
        // SAFETY: all of it was written, and is a copy of a `T`.
        all if all == size_of::<T>() => Ok(unsafe { copy.assume_init() }),
        _ => Err(Errno(libc::EFAULT)),
    }
}

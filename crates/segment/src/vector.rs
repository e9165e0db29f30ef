//! The program's buffers: a cursor over an array of `iovec`.
#![allow(unsafe_code, reason = "copies to and from the memory that the program named")]

use crate::kernel;
use libc::iovec;

/// Most bytes that Linux moves in one call.
pub const MOST: usize = 0x7fff_f000;

/// Whether the address is a null pointer, with or without an offset: only a privileged program can map anything there
/// (vm.mmap_min_addr).
#[inline]
pub fn is_low<T>(address: *const T) -> bool {
    (address as usize) < 1 << 16
}

/// Bytes that a call with these buffers is to move.
///
/// # Safety
/// `vector` must point to `count` buffers.
pub unsafe fn length(vector: *const iovec, count: usize) -> usize {
    // SAFETY: the caller vouches for `count` elements.
    let total = (0..count).fold(0usize, |total, index| total.saturating_add(unsafe { (*vector.add(index)).iov_len }));
    total.min(MOST)
}

/// Where the next byte goes to or comes from in the buffers of one call.
///
/// Reading from the ring may have to be undone (a signal handler may have read the same bytes first), so the cursor can
/// be copied and put back.
#[derive(Clone, Copy)]
pub struct Cursor {
    vector: *const iovec,
    count: usize,
    offset: usize,
    left: usize,
    total: usize,
    discard: bool,
    faults: bool,
}

impl Cursor {
    /// A cursor over `count` buffers, up to the first that is a null pointer.
    ///
    /// # Safety
    /// `vector` must point to `count` buffers that stay valid for reading (a send) or writing (a receive) while the
    /// cursor is used.
    pub unsafe fn new(vector: *const iovec, count: usize) -> Cursor {
        let (mut left, mut faults) = (0usize, false);
        for index in 0..count {
            // SAFETY: the caller vouches for `count` elements.
            let buffer = unsafe { *vector.add(index) };
            if is_low(buffer.iov_base) && buffer.iov_len > 0 && !kernel::is_mapped(buffer.iov_base) {
                faults = true;
                break;
            }
            left = left.saturating_add(buffer.iov_len);
        }
        left = left.min(MOST);
        Cursor { vector, count, offset: 0, left, total: left, discard: false, faults }
    }

    /// A cursor that takes `len` bytes and keeps none (MSG_TRUNC).
    pub fn discarding(len: usize) -> Cursor {
        Cursor { vector: core::ptr::null(), count: 0, offset: 0, left: len, total: len, discard: true, faults: false }
    }

    /// Bytes that the call still wants.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Bytes that the call has had so far.
    pub fn taken(&self) -> usize {
        self.total - self.left
    }

    /// Copies `len` bytes out of the buffers to `to` and steps over them.
    ///
    /// # Safety
    /// `to` must be valid for writing `len` bytes, and `len <= self.left()`.
    #[inline]
    pub unsafe fn copy_to(&mut self, to: *mut u8, len: usize) {
        // SAFETY: `pieces` stays inside the buffers; the caller vouches for `to`.
        self.pieces(len, |piece, done, n| unsafe { copy(piece, to.add(done), n) });
    }

    /// Copies `len` bytes from `from` into the buffers and steps over them.
    ///
    /// # Safety
    /// `from` must be valid for reading `len` bytes, and `len <= self.left()`.
    #[inline]
    pub unsafe fn copy_from(&mut self, from: *const u8, len: usize) {
        // SAFETY: as in `copy_to`.
        self.pieces(len, |piece, done, n| unsafe { copy(from.add(done), piece, n) });
    }

    /// Steps over `len` bytes that something else has put there.
    pub fn skip(&mut self, len: usize) {
        self.pieces(len, |_, _, _| {});
    }

    #[inline]
    fn pieces(&mut self, len: usize, mut piece: impl FnMut(*mut u8, usize, usize)) {
        debug_assert!(len <= self.left);
        self.left -= len;
        if self.discard {
            return;
        }
        let mut done = 0;
        while done < len {
            // SAFETY: `left` counts what the remaining buffers hold, so there is a buffer as long as `done < len`.
            let buffer = unsafe { *self.vector };
            let n = (buffer.iov_len - self.offset).min(len - done);
            // SAFETY: `offset + n` stays within this buffer.
            piece(unsafe { (buffer.iov_base as *mut u8).add(self.offset) }, done, n);
            done += n;
            self.offset += n;
            if self.offset == buffer.iov_len && self.count > 1 {
                // SAFETY: one more buffer is there.
                self.vector = unsafe { self.vector.add(1) };
                self.count -= 1;
                self.offset = 0;
            }
        }
    }

    /// The part of the buffer under the cursor: where the kernel may read or write next, at most `limit` bytes.
    pub fn chunk(&mut self, limit: usize) -> (*mut u8, usize) {
        while !self.discard && self.count > 1 {
            // SAFETY: `count` buffers are left.
            let buffer = unsafe { *self.vector };
            if self.offset < buffer.iov_len {
                break;
            }
            // SAFETY: one more buffer is there.
            self.vector = unsafe { self.vector.add(1) };
            self.count -= 1;
            self.offset = 0;
        }
        if self.discard || self.count == 0 {
            return (core::ptr::null_mut(), self.left.min(limit));
        }
        // SAFETY: as above; the offset is within the buffer.
        let buffer = unsafe { *self.vector };
        let n = (buffer.iov_len - self.offset).min(limit).min(self.left);
        // SAFETY: within the buffer.
        (unsafe { (buffer.iov_base as *mut u8).add(self.offset) }, n)
    }

    /// What is left of the buffers, for recvmsg(2): at most `MAX_BUFFERS` of them, and `limit` bytes.
    pub fn message(&self, limit: usize) -> Message {
        let mut message =
            Message { vector: [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 2 * MAX_BUFFERS + 1], count: 0 };
        let mut rest = *self;
        let until = self.left.saturating_sub(limit);
        while rest.left > until && message.count < MAX_BUFFERS && !self.discard {
            let (base, len) = rest.chunk(rest.left - until);
            message.vector[message.count] = iovec { iov_base: base.cast(), iov_len: len };
            message.count += 1;
            rest.skip(len);
        }
        message
    }

    /// Whether buffers at which the kernel finds no memory follow those of the cursor.
    pub fn faults(&self) -> bool {
        self.faults
    }

    /// Whether the bytes are thrown away.
    pub fn discards(&self) -> bool {
        self.discard
    }
}

/// Most of the program's buffers that a [`Message`] names at a time.
pub const MAX_BUFFERS: usize = 16;

/// Buffers for one recvmsg(2).
pub struct Message {
    vector: [iovec; 2 * MAX_BUFFERS + 1],
    count: usize,
}

impl Message {
    /// Has what comes first go into the buffers of `first`, and what follows into `scratch`.
    pub fn behind(self, first: Message, scratch: &mut [u8]) -> Message {
        let scratch = iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: scratch.len() };
        let mut message = first;
        for &buffer in [scratch].iter().chain(&self.vector[..self.count]) {
            message.vector[message.count] = buffer;
            message.count += 1;
        }
        message
    }

    /// Bytes that the buffers hold.
    pub fn len(&self) -> usize {
        self.vector[..self.count].iter().map(|buffer| buffer.iov_len).sum()
    }

    /// Whether they hold none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The header that names them; valid as long as this value stays where it is.
    pub fn header(&mut self) -> libc::msghdr {
        // SAFETY: all-zero is a valid msghdr.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = self.vector.as_mut_ptr();
        header.msg_iovlen = self.count as _;
        header
    }
}

/// memcpy, without the call for the sizes of small messages.
///
/// # Safety
/// `from` and `to` must be valid for `n` bytes and not overlap.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    #[cfg(loom)]
    // SAFETY: as here.
    return unsafe { crate::sync::checked::copy(from, to, n) };
    #[cfg(not(loom))]
    // SAFETY: the caller vouches for both ranges; the pairs of overlapping loads stay within `n`.
    unsafe {
        match n {
            8..=16 => {
                let a = (from as *const u64).read_unaligned();
                let b = (from.add(n - 8) as *const u64).read_unaligned();
                (to as *mut u64).write_unaligned(a);
                (to.add(n - 8) as *mut u64).write_unaligned(b);
            }
            4..=7 => {
                let a = (from as *const u32).read_unaligned();
                let b = (from.add(n - 4) as *const u32).read_unaligned();
                (to as *mut u32).write_unaligned(a);
                (to.add(n - 4) as *mut u32).write_unaligned(b);
            }
            1 => *to = *from,
            _ => core::ptr::copy_nonoverlapping(from, to, n),
        }
    }
}

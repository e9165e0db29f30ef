//! A System V segment. A process has only its beginning in the address space until it needs the rest.
//!
//! Memory that is mapped and never touched costs nothing, but it counts in a program's virtual size, which programs
//! limit, lock and test. A segment can only be attached as a whole (shmat(2)), but it can be unmapped in part. So a
//! process that has attached a segment unmaps all but the beginning, and attaches it once more, without the beginning,
//! when it needs the rest.
//!
//! It stays one segment, of which each process has the beginning or all. A process that has the beginning keeps the
//! whole segment alive, under one number and attested once. The rest exists before any process needs it, so processes
//! need not agree on it, even if some are killed. (Segments that are made later, when they are needed, would have these
//! problems: a number goes stale with the last process that has the segment, while others have the first one; two
//! processes make the same segment at once; a maker is killed.)
//!
//! A process that has the rest has two mappings, and the kernel counts both as attached: see [`Parted::is_in_two`]. A
//! child that is forked while another thread attaches the rest may have one more mapping that it does not know of. That
//! takes address space, and makes the child count as two processes as long as it lives.
#![allow(unsafe_code, reason = "takes parts of segments out of the address space")]

use crate::raw::{Errno, is_quiet};
use crate::sync::{AcqRel, Acquire, AtomicPtr};
use crate::sysv::Mapping;
use core::ptr::{NonNull, null_mut};

#[derive(Debug)]
pub(crate) struct Parted {
    mapping: Mapping,
    /// Bytes of the beginning, whole pages of any size.
    beginning: usize,
    /// The segment's address in the mapping that has the rest, as if that began at the segment's beginning; null while
    /// the rest is not mapped.
    rest: AtomicPtr<u8>,
}

impl Parted {
    /// For a segment that was just attached as a whole, and whose first `beginning` bytes are to be kept.
    pub(crate) fn of(mapping: Mapping, beginning: usize) -> Parted {
        Parted { mapping, beginning, rest: AtomicPtr::new(mapping.base().as_ptr()) }
    }

    /// Takes the rest out of the address space, until it is needed.
    ///
    /// # Safety
    /// No other thread may have it yet, and nothing may refer into the rest.
    pub(crate) unsafe fn keep_beginning(&mut self) {
        // SAFETY: passed on to the caller.
        if *self.rest.get_mut() == self.mapping.base().as_ptr() && unsafe { self.mapping.keep(self.beginning) }.is_ok()
        {
            *self.rest.get_mut() = null_mut();
        }
    }

    /// The segment as a whole.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The segment's address in the mapping of its beginning.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// The segment's address in the mapping that has the rest; `None` while the rest is not mapped.
    #[inline]
    pub(crate) fn rest(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.rest.load(Acquire))
    }

    /// Whether this process has the rest as a mapping of its own.
    pub(crate) fn is_in_two(&self) -> bool {
        self.rest().is_some_and(|rest| rest != self.base())
    }

    /// Where the rest is to be looked for, which is attached if it was not.
    ///
    /// # Errors
    /// What shmat says: ENOMEM (address space). EPERM where the program has said which system calls it makes.
    #[cold]
    pub(crate) fn attach_rest(&self) -> Result<NonNull<u8>, Errno> {
        if let Some(rest) = self.rest() {
            return Ok(rest);
        }
        if is_quiet() {
            return Err(Errno(libc::EPERM));
        }
        let made = self.mapping.attach_behind(self.beginning)?;
        match self.rest.compare_exchange(null_mut(), made.as_ptr(), AcqRel, Acquire) {
            Ok(_) => Ok(made),
            Err(faster) => {
                // SAFETY: nobody else knows of it: another thread was faster, or a signal handler on top of this one.
                unsafe { self.mapping.detach_behind(self.beginning, made) };
                NonNull::new(faster).ok_or(Errno(libc::ENOMEM))
            }
        }
    }

    /// Takes the segment out of this process's address space.
    ///
    /// # Safety
    /// Neither it nor a reference into it may be used afterwards, by any thread.
    pub(crate) unsafe fn detach(&self) {
        if let Some(rest) = self.rest().filter(|_| self.is_in_two()) {
            // SAFETY: passed on to the caller.
            unsafe { self.mapping.detach_behind(self.beginning, rest) };
        }
        // SAFETY: likewise. shmdt(2) lets go of what is left of it there.
        unsafe { self.mapping.detach() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn parts_are_of_one_segment() {
        const LEN: usize = (1 << 20) + 12_345;
        let mut parted = Parted::of(Mapping::create(LEN).unwrap(), 1 << 16);
        let whole = Mapping::open(parted.mapping().id(), LEN, kernel::user_id()).unwrap().0;
        // SAFETY: nothing refers into it.
        unsafe { parted.keep_beginning() };
        whole.await_attached(2);
        assert!(parted.rest().is_none() && !parted.is_in_two());
        let rest = parted.attach_rest().unwrap();
        assert_eq!((parted.attach_rest(), parted.rest()), (Ok(rest), Some(rest)));
        whole.await_attached(3);
        assert!(parted.is_in_two());
        for (base, at) in [(parted.base(), 0), (parted.base(), (1 << 16) - 1), (rest, 1 << 16), (rest, LEN - 1)] {
            // SAFETY: within the parts, and within the whole.
            unsafe {
                base.as_ptr().add(at).write_volatile(7);
                assert_eq!(whole.base().as_ptr().add(at).read_volatile(), 7);
            }
        }
        // SAFETY: nothing refers into them any more.
        unsafe {
            parted.detach();
            whole.await_attached(1);
            whole.detach();
        }
    }
}

//! Memory that the broker hands out: a memfd that both ends map. It has no number in any System V namespace, so it
//! reaches where those do not.
//!
//! The descriptor is closed as soon as the memory is mapped, so nobody attaches it a second time; a forked child has
//! what its parent has mapped. It goes by a number below 0, made of its inode, which is the same in every process that
//! has it.

use super::{ATTACHED, Mapping, SHARE_OF_LIMIT, address_space, unlocked};
use crate::kernel;
use crate::raw::{Errno, syscall};
use crate::sync::{Acquire, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Relaxed, Release};
use core::ptr::NonNull;

/// It cannot shrink under this process, which would be killed for that; nor can it become so.
const SEALS: usize = (libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as usize;
/// The file system of memfds of ordinary pages. Of huge ones there may be none left when one is touched.
const TMPFS: u64 = 0x0102_1994;
/// Mappings that are kept at most.
const MOST: usize = 1024;

/// What this process has mapped: a child that was forked in the middle of a change of other lists finds it here. The
/// number is stored last, and taken away first.
struct Kept {
    number: AtomicI32,
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    inode: AtomicU64,
}

static KEPT: [Kept; MOST] = [const {
    Kept {
        number: AtomicI32::new(0),
        base: AtomicPtr::new(core::ptr::null_mut()),
        len: AtomicUsize::new(0),
        inode: AtomicU64::new(0),
    }
}; MOST];

fn kept(number: i32) -> Option<&'static Kept> {
    KEPT.iter().find(|it| it.number.load(Acquire) == number)
}

impl Mapping {
    /// The memfd `fd` of `len` bytes, to the page: mapped, unless this process has mapped it before. Whether it is new.
    /// Called by one thread at a time.
    ///
    /// # Errors
    /// EACCES where it is no memfd of ordinary pages, is not sealed against shrinking, growing and further seals, or
    /// has another length; EEXIST where another one goes by the same number; ENOSPC where too many are kept; otherwise
    /// what mmap says.
    pub fn of_memfd(fd: i32, len: usize) -> Result<(Mapping, bool), Errno> {
        let pages = len.next_multiple_of(super::PAGE);
        // SAFETY: no pointer.
        let seals = unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0]) }?;
        let file = kernel::identify(fd).ok_or(Errno(libc::EACCES))?;
        if seals & SEALS != SEALS || file.size != pages as u64 || file.system != TMPFS {
            return Err(Errno(libc::EACCES));
        }
        let number = -1 - (file.inode & 0x7fff_ffff) as i32;
        if let Some(it) = kept(number) {
            let same = it.inode.load(Relaxed) == file.inode && it.len.load(Relaxed) == len;
            let base = NonNull::new(it.base.load(Relaxed)).filter(|_| same).ok_or(Errno(libc::EEXIST))?;
            return Ok((Mapping { base, len, id: number }, false));
        }
        let place = kept(0).ok_or(Errno(libc::ENOSPC))?;
        if ATTACHED.load(Relaxed) + len as u64 > address_space() / SHARE_OF_LIMIT {
            return Err(Errno(libc::ENOMEM));
        }
        let base = unlocked(len, || {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
            // SAFETY: address 0 lets the kernel choose a free range.
            unsafe { syscall(libc::SYS_mmap, [0, pages, protection as usize, flags as usize, fd as usize, 0]) }
        })?;
        ATTACHED.fetch_add(len as u64, Relaxed);
        place.base.store(base.as_ptr(), Relaxed);
        place.len.store(len, Relaxed);
        place.inode.store(file.inode, Relaxed);
        place.number.store(number, Release);
        Ok((Mapping { base, len, id: number }, true))
    }

    /// One of `len` bytes that this process has mapped, by its number.
    pub fn of_number(number: i32, len: usize) -> Option<Mapping> {
        let it = kept(number).filter(|it| number < 0 && it.len.load(Relaxed) == len)?;
        Some(Mapping { base: NonNull::new(it.base.load(Relaxed))?, len, id: number })
    }

    /// Whether the memory came from the broker.
    pub fn is_memfd(&self) -> bool {
        self.id < 0
    }

    /// # Safety
    /// As for [`Mapping::detach`].
    pub(super) unsafe fn unmap_memfd(self) {
        if let Some(it) = kept(self.id) {
            it.number.store(0, Release);
        }
        // SAFETY: the pages of this mapping; the caller vouches that nothing uses them.
        let _ = unsafe { super::unmap(self.base.as_ptr() as usize, self.len.next_multiple_of(super::PAGE)) };
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn memfd(len: usize, seals: i32) -> i32 {
        // SAFETY: a name that ends with a NUL, and no other pointer.
        unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0 && libc::ftruncate(fd, len as i64) == 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
            fd
        }
    }

    /// Fails if `of_memfd` leaves out one of its conditions.
    #[test]
    fn only_memory_that_cannot_shrink_is_mapped() {
        const LEN: usize = (1 << 16) - 1367;
        let (seal, shrink, grow) = (libc::F_SEAL_SEAL, libc::F_SEAL_SHRINK, libc::F_SEAL_GROW);
        let try_out = |len: usize, seals: i32| {
            let fd = memfd(len, seals);
            let mapped = Mapping::of_memfd(fd, LEN);
            kernel::close(fd);
            mapped
        };
        for seals in [0, seal, seal | grow, shrink | grow, seal | shrink] {
            assert_eq!(try_out(1 << 16, seals).unwrap_err(), Errno(libc::EACCES), "{seals}");
        }
        for len in [4096, (1 << 16) - 4096, (1 << 16) - 1, 1 << 17] {
            assert_eq!(try_out(len, seal | shrink | grow).unwrap_err(), Errno(libc::EACCES), "{len} bytes");
        }
        let file = std::fs::File::open("/dev/zero").unwrap();
        assert!(Mapping::of_memfd(std::os::fd::AsRawFd::as_raw_fd(&file), LEN).is_err());
        let (mapping, is_new) = try_out(1 << 16, seal | shrink | grow).unwrap();
        assert!(is_new && mapping.is_memfd() && mapping.attached().is_none() && !mapping.is_there(kernel::user_id()));
        assert_eq!(Mapping::of_number(mapping.id(), LEN).unwrap().base(), mapping.base());
        assert!(Mapping::of_number(mapping.id(), LEN - 1).is_none());
        // SAFETY: nobody refers into it.
        unsafe { mapping.detach() };
        assert!(Mapping::of_number(mapping.id(), LEN).is_none());
    }

    #[test]
    fn what_is_mapped_is_not_mapped_twice() {
        const LEN: usize = (2 << 16) - 1367;
        let fd = memfd(2 << 16, libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        let [(one, is_new), (again, is_new_again)] = [(); 2].map(|()| Mapping::of_memfd(fd, LEN).unwrap());
        assert_eq!((one.base(), is_new, is_new_again), (again.base(), true, false));
        kernel::close(fd);
        // SAFETY: nobody refers into it.
        unsafe { one.detach() };
    }
}

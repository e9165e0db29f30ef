//! System V shared memory, used so that it is findable, sealed and gone with its last user, all at once.
//!
//! A segment is marked for removal the moment it is attached. From then on it has no name, no descriptor and no file,
//! its size can never change (so no SIGBUS), the kernel frees it when the last process lets go of it, however that
//! process ends, and yet Linux still lets a process of the same user attach it by its number (shmop(2), "Linux permits
//! a process to attach a shared memory segment that has already been marked for deletion").
//!
//! A process that is killed before it has marked its segment leaves an empty segment that nobody would ever remove. Its
//! size shows whose it is, and the next process of this user that looks for segments removes it.
#![allow(unsafe_code, reason = "attaches memory and calls shmctl")]

pub(crate) mod memfd;

use crate::raw::{Answer, Errno, syscall};
use crate::sync::{AtomicBool, AtomicU64, Relaxed};
use core::mem::MaybeUninit;
use core::ptr::NonNull;

const IPC_STAT: usize = 2;
const SHM_STAT: usize = 13;
const SHM_INFO: usize = 14;
const SHM_DEST: u32 = 0o1000;
const SHM_RDONLY: usize = 0o10000;
const SHM_NORESERVE: usize = 0o10000;
const OWNER_ONLY: usize = 0o600;
const PAGE: usize = 4096;
/// The size of every segment is this much more than whole pages, which no other program's is.
const BEHIND_PAGE: usize = 1993;

/// Where the program's address space is limited, all segments together take at most one part in this many, so that the
/// program does not lose more room than that.
const SHARE_OF_LIMIT: u64 = 8;
/// Bytes of the segments that this process has attached.
static ATTACHED: AtomicU64 = AtomicU64::new(0);
/// See [`set_locking`].
static LOCKING: AtomicBool = AtomicBool::new(false);

/// A segment that this process has attached. It stays attached until [`Mapping::detach`] or the process's end.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    id: i32,
}

// SAFETY: a mapping is an address range; what is done with it is fenced by the types laid over it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// What the kernel attests of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attested {
    /// Size in bytes as given at its creation, see [`size`].
    len: usize,
    /// User that owns it and user that made it.
    pub users: (u32, u32),
    /// Process that made it, as numbered in the caller's PID namespace.
    pub creator: i32,
    /// Processes that have it attached now.
    pub attached: u64,
    /// Marked for removal and closed to other users.
    pub private: bool,
    /// Made by a process that was killed before it could mark it for removal, as far as everything else shows.
    stray: bool,
}

impl Mapping {
    /// Makes a zeroed segment of `len` bytes, already marked for removal.
    ///
    /// # Errors
    /// What shmget or shmat says: ENOSPC (`kernel.shmmni` segments exist), ENOMEM (address space, memory), ENOSYS.
    pub fn create(len: usize) -> Result<Mapping, Errno> {
        // SAFETY: no pointer among the arguments.
        let id = unsafe {
            syscall(libc::SYS_shmget, [0, size(len), libc::IPC_CREAT as usize | SHM_NORESERVE | OWNER_ONLY, 0, 0, 0])
        }? as i32;
        let mapping = attach(id, len, 0);
        let removed = remove(id);
        let mapping = mapping?;
        removed?;
        Ok(mapping)
    }

    /// Attaches segment `id` if the kernel attests that it is private to user `uid` and `len` bytes long, to the page.
    ///
    /// # Errors
    /// EACCES when the attestation does not fit; otherwise what shmctl or shmat says.
    pub fn open(id: i32, len: usize, uid: u32) -> Result<(Mapping, Attested), Errno> {
        attest_private(id, len, uid)?;
        Self::attested(attach(id, len, 0)?, uid)
    }

    /// Whether [`Mapping::open`] would find it again.
    pub fn is_there(&self, uid: u32) -> bool {
        !self.is_memfd() && attest_private(self.id, self.len, uid).is_ok()
    }

    /// Attaches a segment to be read only: a write to it kills the process.
    ///
    /// # Errors
    /// As for [`Mapping::open`].
    pub fn open_to_read(id: i32, len: usize, uid: u32) -> Result<Mapping, Errno> {
        attest_private(id, len, uid)?;
        Ok(Self::attested(attach(id, len, SHM_RDONLY)?, uid)?.0)
    }

    /// What the kernel says of the segment that is attached now. Before it was attached, the number might have become
    /// another's.
    fn attested(self, uid: u32) -> Result<(Mapping, Attested), Errno> {
        let attested = attest_private(self.id, self.len, uid);
        if attested.is_err() {
            // SAFETY: nobody has looked into it.
            unsafe { self.detach() };
        }
        Ok((self, attested?))
    }

    /// The process that has made the segment that [`Mapping::open`] would find, by its number in this PID namespace.
    ///
    /// # Errors
    /// As there.
    pub fn creator_of(id: i32, len: usize, uid: u32) -> Result<i32, Errno> {
        Ok(attest_private(id, len, uid)?.creator)
    }

    /// A mapping that this process has attached, by its address.
    pub(crate) fn again(base: *mut u8, len: usize, id: i32) -> Option<Mapping> {
        Some(Mapping { base: NonNull::new(base)?, len, id })
    }

    /// Keeps it from children that are forked from now on.
    ///
    /// # Errors
    /// What madvise says.
    pub(crate) fn keep_from_children(&self) -> Result<(), Errno> {
        self.advise(libc::MADV_DONTFORK)
    }

    /// Gives its memory back: it is zeroed, for all processes that have it attached.
    pub(crate) fn empty(&self) {
        // Where that cannot be done it lasts as long as the segment.
        let _ = self.advise(libc::MADV_REMOVE);
    }

    /// Takes all but the first `len` bytes, which are whole pages, out of this process's address space. They still
    /// count against its share of a limited one, so that there is room when they come back.
    ///
    /// # Errors
    /// What munmap says; then all of it is there.
    ///
    /// # Safety
    /// No reference into them may be used afterwards, by any thread.
    pub(crate) unsafe fn keep(&self, len: usize) -> Result<(), Errno> {
        // SAFETY: behind the bytes that are kept lie pages of the segment alone; the caller vouches that nothing uses
        // them.
        unsafe { unmap(self.base.as_ptr() as usize + len, pages(self.len) - len) }
    }

    /// Attaches it once more, without the first `len` bytes, which are whole pages. Where these would lie.
    ///
    /// # Errors
    /// What shmat says.
    pub(crate) fn attach_behind(&self, len: usize) -> Result<NonNull<u8>, Errno> {
        // The number cannot have become another segment's, because this process has the segment attached.
        let base = attach_uncounted(self.id, self.len, 0)?;
        // SAFETY: just attached. What cannot be unmapped stays mapped, and is not used.
        let _ = unsafe { unmap(base.as_ptr() as usize, len) };
        Ok(base)
    }

    /// Takes away what [`Mapping::attach_behind`] has attached at `base`.
    ///
    /// # Safety
    /// No reference into it may be used afterwards, by any thread.
    pub(crate) unsafe fn detach_behind(&self, len: usize, base: NonNull<u8>) {
        // SAFETY: pages of the segment alone; the caller vouches that nothing uses them.
        let _ = unsafe { unmap(base.as_ptr() as usize + len, pages(self.len) - len) };
    }

    fn advise(&self, advice: i32) -> Result<(), Errno> {
        let (base, len) = (self.base.as_ptr() as usize, pages(self.len));
        // SAFETY: the segment's own pages. What is laid over them takes any value.
        unsafe { syscall(libc::SYS_madvise, [base, len, advice as usize, 0, 0, 0]) }.map(drop)
    }

    /// In a forked child, from which it was kept.
    pub(crate) fn forget(self) {
        ATTACHED.fetch_sub(self.len as u64, Relaxed);
    }

    /// How many processes have it attached; `None` when the kernel does not say.
    pub fn attached(&self) -> Option<u64> {
        if self.is_memfd() {
            return None;
        }
        Some(attest(self.id, IPC_STAT).ok()?.1.attached)
    }

    /// Number by which another process of this user attaches it; below 0 for memory of the broker, which is attached by
    /// nobody.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// First byte; page-aligned.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a segment has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the segment out of this process's address space.
    ///
    /// # Safety
    /// No reference into it may be used afterwards, by any thread.
    pub unsafe fn detach(self) {
        if self.is_memfd() {
            // SAFETY: passed on to the caller.
            unsafe { self.unmap_memfd() };
            ATTACHED.fetch_sub(self.len as u64, Relaxed);
            return;
        }
        // SAFETY: the address came from shmat; the caller vouches that nothing uses it.
        let _ = unsafe { syscall(libc::SYS_shmdt, [self.base.as_ptr() as usize, 0, 0, 0, 0, 0]) };
        ATTACHED.fetch_sub(self.len as u64, Relaxed);
    }
}

#[cfg(test)]
impl Mapping {
    /// Waits until it is mapped `times` times: processes that other tests fork have it for a moment.
    pub(crate) fn await_attached(&self, times: u64) {
        while self.attached() != Some(times) {
            crate::clock::nap(1000);
        }
    }
}

/// Which part of [`Mapping`] this system refuses to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Making a segment.
    Memory(Errno),
    /// Attaching, by its number, a segment that is marked for removal.
    Number(Errno),
}

impl Attested {
    fn is_in_use(&self, len: usize) -> bool {
        self.len == size(len) && self.private && self.attached > 0
    }
}

/// Makes a segment of `len` bytes, attaches it once more as another process would, and lets it go.
///
/// # Errors
/// What was refused.
pub fn try_out(len: usize) -> Result<(), Refusal> {
    let made = Mapping::create(len).map_err(Refusal::Memory)?;
    let again = Mapping::open(made.id(), len, crate::kernel::user_id());
    for mapping in again.into_iter().map(|it| it.0).chain([made]) {
        // SAFETY: nobody has looked into it.
        unsafe { mapping.detach() };
    }
    again.map(drop).map_err(Refusal::Number)
}

/// Whether a segment of `size` bytes, as the kernel says it, is Underpass's.
pub const fn is_ours(size: usize) -> bool {
    size % PAGE == BEHIND_PAGE
}

/// Size that the kernel is asked for.
const fn size(len: usize) -> usize {
    len.next_multiple_of(PAGE) + BEHIND_PAGE
}

/// Bytes of address space that a segment of `len` bytes takes.
const fn pages(len: usize) -> usize {
    size(len).next_multiple_of(PAGE)
}

/// # Safety
/// The pages must be the library's own, and not used afterwards.
unsafe fn unmap(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) }.map(drop)
}

fn remove(id: i32) -> Result<usize, Errno> {
    // SAFETY: IPC_RMID reads no buffer.
    unsafe { syscall(libc::SYS_shmctl, [id as usize, libc::IPC_RMID as usize, 0, 0, 0, 0]) }
}

/// Numbers of the segments of `len` bytes that are private to `uid`, up to as many as `out` holds; returns how many.
/// What killed processes of this user have left is removed.
pub fn find(len: usize, uid: u32, out: &mut [i32]) -> usize {
    let mut found = 0;
    for_each_segment(|id, it| {
        if it.users != (uid, uid) || found == out.len() {
            return;
        }
        if it.stray {
            // The first process that finds a stray one removes it.
            let _ = remove(id);
        } else if it.is_in_use(len) {
            out[found] = id;
            found += 1;
        }
    });
    found
}

/// Calls `what` with the number and the user of each segment of `len` bytes that is private to some user. Without
/// CAP_IPC_OWNER these are this user's segments only.
pub fn find_of_all(len: usize, mut what: impl FnMut(i32, u32)) {
    for_each_segment(|id, it| {
        if it.users.0 == it.users.1 && it.is_in_use(len) {
            what(id, it.users.0);
        }
    });
}

fn for_each_segment(mut what: impl FnMut(i32, &Attested)) {
    let mut info = MaybeUninit::<[u64; 16]>::zeroed();
    // SAFETY: SHM_INFO writes a struct shm_info (48 bytes) into the buffer, which is larger.
    let Ok(highest) = (unsafe { syscall(libc::SYS_shmctl, [0, SHM_INFO, info.as_mut_ptr() as usize, 0, 0, 0]) }) else {
        return;
    };
    for index in 0..=highest as i32 {
        if let Ok((id, it)) = attest(index, SHM_STAT) {
            what(id, &it);
        }
    }
}

/// Sets whether this process locks whatever it maps from now on (mlockall(2), MCL_FUTURE without MCL_ONFAULT). Segments
/// are then left unlocked: a lock would fill them with memory from end to end, and count them against RLIMIT_MEMLOCK.
pub fn set_locking(locking: bool) {
    LOCKING.store(locking, Relaxed);
}

/// Whether no process has the segment of this number any more, which this process or another image of it had attached.
pub fn is_freed(id: i32) -> bool {
    matches!(attest(id, IPC_STAT), Err(Errno(libc::EINVAL | libc::EIDRM)))
}

fn attach(id: i32, len: usize, flags: usize) -> Result<Mapping, Errno> {
    if ATTACHED.load(Relaxed) + len as u64 > address_space() / SHARE_OF_LIMIT {
        return Err(Errno(libc::ENOMEM));
    }
    let base = attach_uncounted(id, len, flags)?;
    ATTACHED.fetch_add(len as u64, Relaxed);
    Ok(Mapping { base, len, id })
}

fn attach_uncounted(id: i32, len: usize, flags: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: address 0 lets the kernel choose a free range.
    unlocked(len, || unsafe { syscall(libc::SYS_shmat, [id as usize, 0, flags, 0, 0, 0]) })
}

/// The address at which `map` has mapped `len` bytes, which are left unlocked: see [`set_locking`].
fn unlocked(len: usize, map: impl FnOnce() -> Answer) -> Result<NonNull<u8>, Errno> {
    let future = |flags: i32| {
        // SAFETY: without MCL_CURRENT it changes no mapping that exists.
        let _ = unsafe { syscall(libc::SYS_mlockall, [(libc::MCL_FUTURE | flags) as usize, 0, 0, 0, 0, 0]) };
    };
    let locking = LOCKING.load(Relaxed);
    if locking {
        future(libc::MCL_ONFAULT);
    }
    let base = map();
    if locking && LOCKING.load(Relaxed) {
        future(0);
    }
    let base = base?;
    if locking {
        // SAFETY: the range that was just attached.
        let _ = unsafe { syscall(libc::SYS_munlock, [base, len, 0, 0, 0, 0]) };
    }
    NonNull::new(base as *mut u8).ok_or(Errno(libc::ENOMEM))
}

/// Whether another program in this process could attach all that this one has attached, within its limit of address
/// space.
pub fn fits_again() -> bool {
    ATTACHED.load(Relaxed) <= address_space() / SHARE_OF_LIMIT
}

/// The limit of this process's address space in bytes; `u64::MAX` if none.
fn address_space() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    // SAFETY: the kernel writes one struct rlimit64; without a new limit it changes nothing.
    let _ = unsafe { syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_AS as usize, 0, &raw mut limit as usize, 0, 0]) };
    limit.rlim_cur
}

fn attest_private(id: i32, len: usize, uid: u32) -> Result<Attested, Errno> {
    let attested = attest(id, IPC_STAT)?.1;
    let fits = attested.len == size(len) && attested.users == (uid, uid) && attested.private;
    if fits { Ok(attested) } else { Err(Errno(libc::EACCES)) }
}

fn attest(id_or_index: i32, command: usize) -> Result<(i32, Attested), Errno> {
    let mut ds = MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: both commands write a struct shmid_ds into the buffer.
    let id = unsafe { syscall(libc::SYS_shmctl, [id_or_index as usize, command, ds.as_mut_ptr() as usize, 0, 0, 0]) }?
        as i32;
    // SAFETY: written by the kernel, and zeroed before.
    let ds = unsafe { ds.assume_init() };
    let mode = ds.shm_perm.mode as u32;
    let unmarked = ds.shm_perm.__key == libc::IPC_PRIVATE && mode & 0o1777 == OWNER_ONLY as u32;
    let ours = ds.shm_segsz > PAGE && ds.shm_segsz % PAGE == BEHIND_PAGE;
    let attested = Attested {
        len: ds.shm_segsz,
        users: (ds.shm_perm.uid, ds.shm_perm.cuid),
        creator: ds.shm_cpid,
        attached: ds.shm_nattch,
        private: mode & SHM_DEST != 0 && mode & 0o077 == 0,
        stray: unmarked && ours && ds.shm_nattch == 0 && is_gone(ds.shm_cpid),
    };
    Ok((id, attested))
}

/// Whether there is no process of this number, which is 0 for one of another PID namespace.
fn is_gone(process: i32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    let answer = unsafe { syscall(libc::SYS_kill, [process as usize, 0, 0, 0, 0, 0]) };
    process > 0 && answer == Err(Errno(libc::ESRCH))
}

#[cfg(test)]
mod tests;

//! Memory of the library's own: little at first and more as it is used, because the program's address space may be
//! limited (RLIMIT_AS) or locked (mlockall), and both count memory that is mapped and never touched.

use super::filter;
use core::ptr::NonNull;
use underpass_segment::raw::syscall;
use underpass_segment::sync::{AcqRel, Acquire, AtomicPtr};

/// `len` zeroed bytes, page-aligned; null when there is no address space or the program does not let us ask for it.
/// errno stays as it is.
pub fn reserve(len: usize) -> *mut u8 {
    if filter::is_confined() { core::ptr::null_mut() } else { map(len) }
}

/// `len` zeroed bytes, page-aligned, even if the program forbids to ask for memory.
fn map(len: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a private anonymous mapping of our own, where the kernel finds room.
    let memory = unsafe { syscall(libc::SYS_mmap, [0, len, protection as usize, kind as usize, usize::MAX, 0]) };
    memory.map_or(core::ptr::null_mut(), |address| address as *mut u8)
}

/// Gives back what [`reserve`] gave.
///
/// # Safety
/// The `len` bytes must be such a piece of memory, which nobody uses any more.
pub unsafe fn release(memory: *mut u8, len: usize) {
    // SAFETY: passed on to the caller.
    let _ = unsafe { syscall(libc::SYS_munmap, [memory as usize, len, 0, 0, 0, 0]) };
}

/// A list in memory of its own, with room for so many elements, which are not dropped.
pub struct Reserved<T> {
    items: NonNull<T>,
    len: usize,
    room: usize,
}

impl<T> Reserved<T> {
    /// An empty list; `None` without address space.
    pub fn new(room: usize) -> Option<Reserved<T>> {
        Reserved::by(reserve, room)
    }

    /// An empty list, even if the program has installed a seccomp filter, which may forbid mmap. For executing a
    /// program or passing a socket, where the stream would have a gap otherwise.
    pub fn even_confined(room: usize) -> Option<Reserved<T>> {
        Reserved::by(map, room)
    }

    fn by(reserve: fn(usize) -> *mut u8, room: usize) -> Option<Reserved<T>> {
        let bytes = room.max(1).checked_mul(size_of::<T>())?;
        Some(Reserved { items: NonNull::new(reserve(bytes).cast())?, len: 0, room })
    }

    /// Whether one more element goes in.
    pub fn has_room(&self) -> bool {
        self.len < self.room
    }

    /// Adds an element; false if there is no room.
    pub fn push(&mut self, item: T) -> bool {
        let has_room = self.has_room();
        if has_room {
            // SAFETY: within the memory, which is aligned to pages.
            unsafe { self.items.add(self.len).write(item) };
            self.len += 1;
        }
        has_room
    }

    /// Keeps those elements of which `is_kept` says so, in their order.
    pub fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            if is_kept(&self.items()[at]) {
                self.items_mut().swap(kept, at);
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// The memory, and its length in bytes.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.items.as_ptr().cast(), self.room.max(1) * size_of::<T>())
    }

    /// Where the elements are to lie.
    pub fn begin(&mut self) -> *mut T {
        self.items.as_ptr()
    }

    /// Sets the number of elements.
    ///
    /// # Safety
    /// They must have been written, and there must be room for them.
    pub unsafe fn assume(&mut self, len: usize) {
        self.len = len;
    }

    /// The elements.
    pub fn items(&self) -> &[T] {
        // SAFETY: so many were written.
        unsafe { core::slice::from_raw_parts(self.items.as_ptr(), self.len) }
    }

    /// The elements, to be changed.
    pub fn items_mut(&mut self) -> &mut [T] {
        // SAFETY: so many were written, and the list is borrowed.
        unsafe { core::slice::from_raw_parts_mut(self.items.as_ptr(), self.len) }
    }
}

impl Reserved<u8> {
    /// A list of so many zeros; `None` without address space.
    pub fn zeros(len: usize) -> Option<Reserved<u8>> {
        let mut list = Reserved::new(len)?;
        list.len = len;
        Some(list)
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        let (memory, len) = self.memory();
        // SAFETY: the mapping is this value's own.
        unsafe { release(memory, len) };
    }
}

/// Elements of a piece of a [`Sparse`] array.
pub const PIECE: usize = 1024;

/// An array of `PIECES` times [`PIECE`] elements, all zero at first. A piece is made when one of its elements is first
/// needed, and stays.
pub struct Sparse<T, const PIECES: usize>([AtomicPtr<T>; PIECES]);

impl<T, const PIECES: usize> Sparse<T, PIECES> {
    /// Without any piece; zeroed memory is that too.
    pub const fn new() -> Sparse<T, PIECES> {
        Sparse([const { AtomicPtr::new(core::ptr::null_mut()) }; PIECES])
    }

    /// Element `index`, unless its piece was never needed.
    #[inline]
    pub fn get(&self, index: usize) -> Option<NonNull<T>> {
        let piece = NonNull::new(self.0.get(index / PIECE)?.load(Acquire))?;
        // SAFETY: a piece has PIECE elements.
        Some(unsafe { piece.add(index % PIECE) })
    }

    /// Element `index`; `None` beyond the end and without address space.
    #[inline]
    pub fn need(&self, index: usize) -> Option<NonNull<T>> {
        self.get(index).or_else(|| self.make(index, reserve))
    }

    /// Element `index`, for a program that is about to install a seccomp filter, after which there is no more memory.
    pub fn need_before_filter(&self, index: usize) -> Option<NonNull<T>> {
        self.get(index).or_else(|| self.make(index, map))
    }

    #[cold]
    fn make(&self, index: usize, reserve: fn(usize) -> *mut u8) -> Option<NonNull<T>> {
        let place = self.0.get(index / PIECE)?;
        let made: *mut T = reserve(PIECE * size_of::<T>()).cast();
        if !made.is_null() && place.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire).is_err() {
            // SAFETY: just mapped, and nobody else has it: another thread was faster.
            unsafe { release(made.cast(), PIECE * size_of::<T>()) };
        }
        self.get(index)
    }

    /// Makes all elements zero again.
    ///
    /// # Safety
    /// No thread may use any of the elements meanwhile.
    pub unsafe fn clear(&self) {
        for place in &self.0 {
            if let Some(piece) = NonNull::new(place.load(Acquire)) {
                // SAFETY: PIECE elements, which are the caller's alone; all-zero is what they began as.
                unsafe { piece.write_bytes(0, PIECE) };
            }
        }
    }
}

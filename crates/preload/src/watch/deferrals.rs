//! What signal handlers leave to the thread that they have interrupted: that thread holds a lock, and does it in its
//! order before the lock is free.

use crate::guest::memory::{PIECE, Sparse};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::compiler_fence;
use underpass_segment::sync::{AtomicBool, AtomicU32, Relaxed, SeqCst};

/// How many have their place beside the lock; further ones need memory.
pub const FIRST: usize = 16;

/// A place for one; zeroed memory is a free place.
struct Place<T> {
    /// A handler may come while another one, which it interrupts, writes here.
    is_written: AtomicBool,
    what: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Place<T> {
    const fn free() -> Place<T> {
        Place { is_written: AtomicBool::new(false), what: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// The deferred values in their order, with room for [`FIRST`] and `PIECES` times [`PIECE`]; zeroed memory has none.
/// To be used by the thread that holds the lock, and by signal handlers that have interrupted that thread.
pub struct Deferrals<T, const PIECES: usize> {
    count: AtomicU32,
    first: [Place<T>; FIRST],
    more: Sparse<Place<T>, PIECES>,
}

// SAFETY: one thread at a time uses the places: the one that holds the lock.
unsafe impl<T: Send, const PIECES: usize> Sync for Deferrals<T, PIECES> {}

impl<T: Copy, const PIECES: usize> Deferrals<T, PIECES> {
    pub const fn new() -> Deferrals<T, PIECES> {
        let first = [const { Place::free() }; FIRST];
        Deferrals { count: AtomicU32::new(0), first, more: Sparse::new() }
    }

    /// The place of number `index`, made if there is none yet; `None` beyond the end and without address space.
    fn place(&self, index: usize) -> Option<&Place<T>> {
        match index.checked_sub(FIRST) {
            None => self.first.get(index),
            // SAFETY: places are never unmapped; zeroed memory is a free one.
            Some(above) => self.more.need(above).map(|place| unsafe { place.as_ref() }),
        }
    }

    /// Makes room for as many as there can be, even if the program is about to forbid to ask for memory.
    pub fn make_room(&self) {
        for piece in 0..PIECES {
            let _ = self.more.need_before_filter(piece * PIECE);
        }
    }

    /// Whether there is room for one more, and for `others`.
    pub fn has_room(&self, others: usize) -> bool {
        self.place(self.count() + others).is_some()
    }

    /// Defers `what`. If there is no room, it is lost.
    pub fn push(&self, what: T) {
        // Another handler may interrupt this one here, and return.
        let index = self.count.fetch_add(1, Relaxed) as usize;
        if let Some(place) = self.place(index) {
            // SAFETY: the place is this handler's own.
            unsafe { place.what.get().write(MaybeUninit::new(what)) };
            compiler_fence(SeqCst);
            place.is_written.store(true, Relaxed);
        }
    }

    /// Number `index`; `None` if it is done, was lost, or is still being written.
    pub fn at(&self, index: usize) -> Option<T> {
        let place = self.place(index).filter(|it| it.is_written.load(Relaxed))?;
        compiler_fence(SeqCst);
        // SAFETY: it is written, and nobody writes there before it is done.
        Some(unsafe { (*place.what.get()).assume_init() })
    }

    /// Number `index` is done.
    pub fn done(&self, index: usize) {
        self.place(index).into_iter().for_each(|it| it.is_written.store(false, Relaxed));
    }

    /// All before number `count` are done. False if handlers have deferred more meanwhile.
    pub fn clear_if_no_more(&self, count: usize) -> bool {
        self.count.compare_exchange(count as u32, 0, Relaxed, Relaxed).is_ok()
    }

    /// How many there are, with those that are done.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed) as usize
    }

    /// Whether there are any, those of handlers of this thread that have returned included.
    #[inline]
    pub fn is_any(&self) -> bool {
        compiler_fence(SeqCst);
        self.count.load(Relaxed) != 0
    }

    /// Shows all that there is, with its number.
    pub fn each(&self, mut show: impl FnMut(usize, T)) {
        for index in 0..self.count().min(FIRST + PIECES * PIECE) {
            if let Some(what) = self.at(index) {
                show(index, what);
            }
        }
    }
}

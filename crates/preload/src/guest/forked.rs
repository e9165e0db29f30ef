//! How a process finds out that it was forked, whichever call did it: the kernel zeroes a page in every child.

use super::given::Given;
use underpass_segment::sync::{Acquire, AtomicPtr, AtomicU32, Relaxed, Release};

/// The function that sets a child up.
pub struct Forked {
    /// The process is a child that has not been set up yet. Sets it up.
    pub become_child: fn(),
}

static NOTHING: Forked = Forked { become_child: || {} };
/// Given by the constructor before there is a page.
static FORKED: Given<Forked> = Given::new(&NOTHING);

/// A page that the kernel zeroes in every forked child, however it was forked. In a process whose state has been set up
/// its first word is [`SET_UP`] and the number of its children of vfork that have not executed a program yet.
static FRESH: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
const SET_UP: u32 = 1;

/// Has the kernel zero a page in every child, which then calls `forked`. Called once, by the constructor.
pub fn set_up(forked: &'static Forked) {
    const MADV_WIPEONFORK: i32 = 18;
    FORKED.give(forked);
    // SAFETY: a private anonymous page of our own.
    unsafe {
        let page = libc::mmap(
            core::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED || libc::madvise(page, 4096, MADV_WIPEONFORK) != 0 {
            return;
        }
        let word = page as *mut AtomicU32;
        (*word).store(SET_UP, Relaxed);
        FRESH.store(word, Release);
    }
}

/// Whether children can be found out.
pub fn is_found_out() -> bool {
    !FRESH.load(Acquire).is_null()
}

/// The first word, if there is the page.
#[inline]
fn word() -> Option<&'static AtomicU32> {
    // SAFETY: the page is never unmapped.
    unsafe { FRESH.load(Relaxed).as_ref() }
}

/// Whether this process is a forked child that has not been set up yet; sets it up. Every call that finds a connection
/// asks.
#[inline]
pub fn check() {
    if word().is_some_and(|it| it.load(Relaxed) == 0) {
        become_child();
    }
}

/// Whether [`check`] has something to do, or this may be a child of vfork.
#[inline]
pub fn is_unusual() -> bool {
    word().is_some_and(|it| it.load(Relaxed) != SET_UP)
}

/// Notes that a child of vfork is about to begin in this memory.
pub fn begin_vfork() {
    if let Some(word) = word() {
        word.fetch_add(1, Relaxed);
    }
}

/// Notes that a child of vfork has executed a program, or has ended.
pub fn end_vfork() {
    if let Some(word) = word() {
        word.fetch_sub(1, Relaxed);
    }
}

#[cold]
fn become_child() {
    // SAFETY: the page is never unmapped.
    unsafe { (*FRESH.load(Relaxed)).store(SET_UP, Relaxed) };
    (FORKED.get().become_child)();
}

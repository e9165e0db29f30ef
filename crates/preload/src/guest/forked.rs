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

/// A page that the kernel zeroes in every forked child, however it was forked: its first word is 1 in a process whose
/// state has been set up.
static FRESH: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

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
        (*word).store(1, Relaxed);
        FRESH.store(word, Release);
    }
}

/// Whether children can be found out.
pub fn is_found_out() -> bool {
    !FRESH.load(Acquire).is_null()
}

/// Whether this process is a forked child that has not been set up yet; sets it up. Every call that finds a connection
/// asks.
#[inline]
pub fn check() {
    let fresh = FRESH.load(Relaxed);
    // SAFETY: the page is never unmapped.
    if !fresh.is_null() && unsafe { (*fresh).load(Relaxed) } == 0 {
        become_child();
    }
}

#[cold]
fn become_child() {
    // SAFETY: the page is never unmapped.
    unsafe { (*FRESH.load(Relaxed)).store(1, Relaxed) };
    (FORKED.get().become_child)();
}

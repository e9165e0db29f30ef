//! What each descriptor number of this process is: the first thing that every call asks.

use crate::process;
use underpass_segment::sync::{Acquire, AtomicPtr, AtomicU32, Relaxed, Release};

/// Descriptors from this number on are left to the kernel.
pub const MAX_FDS: usize = 1 << 20;

/// What a descriptor number is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing yet.
    Nothing,
    /// No TCP connection, or one that is not ours: libc's own call does it.
    Other,
    /// A stream socket that this process made or accepted; whether it is a connection shows at its first use.
    Socket,
    /// A connection: the index of its end.
    Connection(u32),
}

const NOTHING: u32 = 0;
const OTHER: u32 = 1;
const SOCKET: u32 = 2;
const CONNECTION: u32 = 16;

static TABLE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static GENERATIONS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// One more than the highest number ever entered.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Reserves the table.
pub fn set_up() {
    GENERATIONS.store(process::reserve(MAX_FDS * size_of::<AtomicU32>()).cast(), Release);
    TABLE.store(process::reserve(MAX_FDS * size_of::<AtomicU32>()).cast(), Release);
}

#[inline]
fn word(fd: i32) -> Option<&'static AtomicU32> {
    in_array(&TABLE, fd)
}

/// How often `fd` has been closed: tells an old registration of the number from a new one.
#[inline]
pub fn generation(fd: i32) -> u32 {
    in_array(&GENERATIONS, fd).map_or(0, |w| w.load(Acquire))
}

/// `fd` is about to be closed.
pub fn next_generation(fd: i32) {
    if let Some(word) = in_array(&GENERATIONS, fd) {
        word.fetch_add(1, Release);
    }
}

#[inline]
fn in_array(array: &AtomicPtr<AtomicU32>, fd: i32) -> Option<&'static AtomicU32> {
    let table = array.load(Acquire);
    if table.is_null() || fd as u32 as usize >= MAX_FDS {
        return None;
    }
    // SAFETY: both arrays have MAX_FDS words and are never unmapped.
    Some(unsafe { &*table.add(fd as usize) })
}

fn encode(known: Known) -> u32 {
    match known {
        Known::Nothing => NOTHING,
        Known::Other => OTHER,
        Known::Socket => SOCKET,
        Known::Connection(index) => index + CONNECTION,
    }
}

fn decode(word: u32) -> Known {
    match word {
        NOTHING => Known::Nothing,
        OTHER => Known::Other,
        SOCKET => Known::Socket,
        index => Known::Connection(index - CONNECTION),
    }
}

/// What `fd` is known to be.
#[inline]
pub fn get(fd: i32) -> Known {
    word(fd).map_or(Known::Other, |w| decode(w.load(Acquire)))
}

/// Says what `fd` is; returns what it was.
pub fn set(fd: i32, known: Known) -> Known {
    let Some(word) = word(fd) else { return Known::Other };
    HIGHEST.fetch_max(fd as u32 + 1, Relaxed);
    decode(word.swap(encode(known), Release))
}

/// Says what `fd` is, if it still is what it was thought to be.
pub fn replace(fd: i32, was: Known, known: Known) -> bool {
    HIGHEST.fetch_max(fd as u32 + 1, Relaxed);
    word(fd).is_some_and(|w| w.compare_exchange(encode(was), encode(known), Release, Relaxed).is_ok())
}

/// One more than the highest descriptor that was ever entered.
pub fn highest() -> i32 {
    HIGHEST.load(Relaxed) as i32
}

//! What each descriptor number of this process is: the first thing that every call asks.

use crate::memory::{PIECE, Sparse};
use underpass_segment::sync::{Acquire, AtomicU32, Relaxed, Release};

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

type Words = Sparse<AtomicU32, { MAX_FDS / PIECE }>;

static TABLE: Words = Sparse::new();
static GENERATIONS: Words = Sparse::new();
/// One more than the highest number ever entered.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Makes room for the first descriptors, while the program cannot have forbidden it.
pub fn set_up() {
    let _ = (get(0), generation(0));
}

#[inline]
fn word(words: &'static Words, fd: i32) -> Option<&'static AtomicU32> {
    // SAFETY: words are never unmapped; zeroed memory is a valid one. A negative number is beyond the end.
    words.need(fd as u32 as usize).map(|word| unsafe { word.as_ref() })
}

/// How often `fd` has been closed: tells an old registration of the number from a new one.
#[inline]
pub fn generation(fd: i32) -> u32 {
    word(&GENERATIONS, fd).map_or(0, |w| w.load(Acquire))
}

/// `fd` is about to be closed.
pub fn next_generation(fd: i32) {
    if let Some(word) = word(&GENERATIONS, fd) {
        word.fetch_add(1, Release);
    }
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
    word(&TABLE, fd).map_or(Known::Other, |w| decode(w.load(Acquire)))
}

/// Says what `fd` is; returns what it was.
pub fn set(fd: i32, known: Known) -> Known {
    let Some(word) = word(&TABLE, fd) else { return Known::Other };
    HIGHEST.fetch_max(fd as u32 + 1, Relaxed);
    decode(word.swap(encode(known), Release))
}

/// Says what `fd` is, if it still is what it was thought to be.
pub fn replace(fd: i32, was: Known, known: Known) -> bool {
    HIGHEST.fetch_max(fd as u32 + 1, Relaxed);
    word(&TABLE, fd).is_some_and(|w| w.compare_exchange(encode(was), encode(known), Release, Relaxed).is_ok())
}

/// One more than the highest descriptor that was ever entered.
pub fn highest() -> i32 {
    HIGHEST.load(Relaxed) as i32
}

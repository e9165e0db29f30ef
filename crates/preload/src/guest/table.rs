//! What each descriptor number of this process is. Every call looks here first.

use super::memory::{PIECE, Sparse};
use underpass_segment::end::End;
use underpass_segment::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// Descriptors from this number on are left to the kernel.
pub const MAX_FDS: usize = 1 << 20;

/// What a descriptor number is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing yet.
    Nothing,
    /// No TCP connection, or a connection that the library does not follow: libc's own call does the work.
    Other,
    /// A stream socket that this process made or accepted; whether it is a connection shows at its first use.
    Socket(Socket),
    /// A connection: the index of its end.
    Connection(u32),
}

/// What this process has seen of a socket already, so that the kernel need not be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket {
    /// Its protocol is TCP.
    pub is_tcp: bool,
    /// It was connected, or will be by its first send (TCP Fast Open).
    pub is_connected: bool,
    /// Whether it has O_NONBLOCK.
    pub nonblocking: Nonblocking,
    /// Connections were accepted from it, so it will not be one.
    pub listens: bool,
    /// It was accepted.
    pub accepted: bool,
}

/// How a connection has begun in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Origin {
    /// Another process has begun it, or it was not seen.
    Unknown = 0,
    /// It was accepted.
    Accepted = 1,
    /// It was connected.
    Connected = 2,
}

impl Origin {
    /// The origin of a connection, by its end.
    pub fn of(end: &End) -> Origin {
        Origin::from_number(end.origin.load(Relaxed).into())
    }

    fn from_number(number: u32) -> Origin {
        match number {
            1 => Origin::Accepted,
            2 => Origin::Connected,
            _ => Origin::Unknown,
        }
    }
}

/// What this process knows of a socket's O_NONBLOCK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Nonblocking {
    #[default]
    Unknown,
    No,
    Yes,
    /// The socket has had another descriptor, or another process has it: the flag may change without this library's
    /// knowledge.
    Shared,
}

impl Socket {
    fn encode(self) -> u32 {
        let flags = u32::from(self.is_tcp) | u32::from(self.is_connected) << 1 | u32::from(self.listens) << 4;
        let flags = flags | u32::from(self.accepted) << 5;
        flags | (self.nonblocking as u32) << 2
    }

    fn decode(bits: u32) -> Socket {
        let nonblocking = match bits >> 2 & 3 {
            0 => Nonblocking::Unknown,
            1 => Nonblocking::No,
            2 => Nonblocking::Yes,
            _ => Nonblocking::Shared,
        };
        let has = |bit: u32| bits & bit != 0;
        Socket { is_tcp: has(1), is_connected: has(2), nonblocking, listens: has(16), accepted: has(32) }
    }

    /// How a connection of this socket has begun in this process.
    pub fn origin(self) -> Origin {
        if self.accepted { Origin::Accepted } else { Origin::Connected }
    }

    /// Whether only this process can change the flag, by this descriptor.
    fn is_private(self) -> bool {
        self.nonblocking != Nonblocking::Shared
    }
}

impl From<bool> for Nonblocking {
    fn from(is_nonblocking: bool) -> Nonblocking {
        if is_nonblocking { Nonblocking::Yes } else { Nonblocking::No }
    }
}

const NOTHING: u32 = 0;
const OTHER: u32 = 1;
/// A connection that is [given to libc](give_to_libc), with its [`Origin`].
const GIVEN: u32 = 2;
const GIVEN_LAST: u32 = GIVEN + Origin::Connected as u32;
const SOCKET: u32 = 64;
const CONNECTION: u32 = 128;
/// Set in the word of a connection that is [settled](settle). No end has so high an index.
const SETTLED: u32 = 1 << 31;

type Words<T> = Sparse<T, { MAX_FDS / PIECE }>;

static TABLE: Words<AtomicU32> = Sparse::new();
static GENERATIONS: Words<AtomicU64> = Sparse::new();
/// Closes of descriptors and finds of connections so far.
static EVENTS: AtomicU64 = AtomicU64::new(0);
/// One more than the highest number ever entered.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Makes room for the first descriptors, before the program can forbid that.
pub fn set_up() {
    let _ = (get(0), generation(0));
}

#[inline]
fn word<T>(words: &'static Words<T>, fd: i32) -> Option<&'static T> {
    // SAFETY: words are never unmapped; zeroed memory is a valid one. A negative number is beyond the end.
    words.need(fd as u32 as usize).map(|word| unsafe { word.as_ref() })
}

/// The event of the last close of `fd`: tells an old registration of the number from a new one.
#[inline]
pub fn generation(fd: i32) -> u64 {
    word(&GENERATIONS, fd).map_or(0, |w| w.load(Acquire))
}

/// `fd` is about to be closed.
pub fn next_generation(fd: i32) {
    if let Some(word) = word(&GENERATIONS, fd) {
        word.store(next_event(), Release);
    }
}

/// Something happens to a descriptor: the number of this event in this process.
pub fn next_event() -> u64 {
    EVENTS.fetch_add(1, AcqRel) + 1
}

/// The number of the last such event.
pub fn last_event() -> u64 {
    EVENTS.load(Acquire)
}

fn encode(known: Known) -> u32 {
    match known {
        Known::Nothing => NOTHING,
        Known::Other => OTHER,
        Known::Socket(socket) => SOCKET + socket.encode(),
        Known::Connection(index) => index + CONNECTION,
    }
}

fn decode(word: u32) -> Known {
    match word {
        NOTHING => Known::Nothing,
        OTHER | GIVEN..=GIVEN_LAST => Known::Other,
        CONNECTION.. => Known::Connection((word & !SETTLED) - CONNECTION),
        bits => Known::Socket(Socket::decode(bits - SOCKET)),
    }
}

/// What `fd` is known to be.
#[inline]
pub fn get(fd: i32) -> Known {
    word(&TABLE, fd).map_or(Known::Other, |w| decode(w.load(Acquire)))
}

/// What `fd` is known to be for a call that sends, receives or waits, to which a settled connection counts as
/// [`Known::Other`].
#[inline]
pub fn get_for_call(fd: i32) -> Known {
    let word = word(&TABLE, fd).map_or(OTHER, |w| w.load(Acquire));
    if word & SETTLED != 0 { Known::Other } else { decode(word) }
}

/// The connection `fd` was always on kernel TCP, and stays there. From now on libc's own calls are enough for it, until
/// its descriptors are duplicated, handed on or closed. False if it is another connection by now.
pub fn settle(fd: i32, index: u32) -> bool {
    let settle = |now| (decode(now) == Known::Connection(index)).then_some(now | SETTLED);
    word(&TABLE, fd).is_some_and(|w| w.fetch_update(Release, Relaxed, settle).is_ok())
}

/// Whether it is a settled connection.
pub fn is_settled(fd: i32) -> bool {
    word(&TABLE, fd).is_some_and(|w| w.load(Acquire) & SETTLED != 0)
}

/// Gives the connection `fd`, so far known as this socket, to libc. False if it is something else by now, or the
/// socket may have other descriptors.
pub fn give_to_libc(fd: i32, socket: Socket) -> bool {
    let give = |now| (decode(now) == Known::Socket(socket)).then_some(GIVEN + socket.origin() as u32);
    socket.is_private() && word(&TABLE, fd).is_some_and(|w| w.fetch_update(Release, Relaxed, give).is_ok())
}

/// The origin of `fd`, if it is a connection that was [given to libc](give_to_libc).
pub fn given_to_libc(fd: i32) -> Option<Origin> {
    match word(&TABLE, fd)?.load(Acquire) {
        word @ GIVEN..=GIVEN_LAST => Some(Origin::from_number(word - GIVEN)),
        _ => None,
    }
}

/// A connection was accepted from `fd`. Whether that was not known before.
#[cold]
pub fn note_listening(fd: i32) -> bool {
    note_if(fd, |_| true, |socket| Socket { listens: true, ..socket })
}

/// Makes [`highest`] greater than `fd`.
pub fn reach(fd: i32) {
    HIGHEST.fetch_max(fd as u32 + 1, Relaxed);
}

/// Sets what `fd` is; returns what it was.
pub fn set(fd: i32, known: Known) -> Known {
    let Some(word) = word(&TABLE, fd) else { return Known::Other };
    reach(fd);
    decode(word.swap(encode(known), Release))
}

/// Sets what `fd` is, if it still is what it was thought to be.
pub fn replace(fd: i32, was: Known, known: Known) -> bool {
    reach(fd);
    let replace = |now| (decode(now) == was).then_some(encode(known));
    word(&TABLE, fd).is_some_and(|w| w.fetch_update(Release, Relaxed, replace).is_ok())
}

/// If `fd` is a socket that only this process has, by this descriptor, changes by `change` what is known of it.
pub fn note(fd: i32, change: impl Fn(Socket) -> Socket) {
    note_if(fd, Socket::is_private, change);
}

/// If `fd` is a socket for which `may` says yes, changes by `change` what is known of it. Whether that was a change.
fn note_if(fd: i32, may: impl Fn(Socket) -> bool, change: impl Fn(Socket) -> Socket) -> bool {
    while let was @ Known::Socket(socket) = get(fd)
        && may(socket)
    {
        let now = change(socket);
        if now == socket {
            return false;
        }
        if replace(fd, was, Known::Socket(now)) {
            return true;
        }
    }
    false
}

/// One more than the highest descriptor that was ever entered.
pub fn highest() -> i32 {
    HIGHEST.load(Relaxed) as i32
}

//! What a connection has the epoll sets do that watch it. The floor above gives the functions.

use super::Connection;
use crate::guest::given::Given;
use underpass_segment::switch::Port;

/// The functions of the sets that watch connections.
pub struct Watchers {
    /// Whether this thread is in the middle of a look at a set in which the descriptor may be registered, below this
    /// signal handler.
    pub is_looked_at: fn(i32) -> bool,
    /// The connection has joined its other end.
    pub note_joined: fn(Connection),
    /// The connection of the descriptor, in this generation of the number, stays on the kernel path for good: its
    /// registrations become foreign.
    pub make_foreign: fn(i32, u64),
    /// A receive outside of any epoll set has used up the waiting flag of the descriptor and left data.
    pub take_back: fn(i32),
    /// Whether sets that may tell of room in the ring of the port can look for it.
    pub looks_for_room: fn(&Port<'_>) -> bool,
    /// A send by the port was refused, since its ring is full: sets are to tell of room.
    pub await_room: fn(&Port<'_>),
}

static NOBODY: Watchers = Watchers {
    is_looked_at: |_| false,
    note_joined: |_| {},
    make_foreign: |_, _| {},
    take_back: |_| {},
    looks_for_room: |_| true,
    await_room: |_| {},
};

/// Given by the constructor, before there is a connection.
pub static WATCHERS: Given<Watchers> = Given::new(&NOBODY);

/// The functions that were given, or functions that do nothing.
pub fn watchers() -> &'static Watchers {
    WATCHERS.get()
}

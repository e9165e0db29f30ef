//! The calls that wait for a connection: polls, selects and epoll sets.

mod deferrals;
pub mod epoll;
pub mod poll;
pub mod set;

use crate::connection::watchers::Watchers;

/// What a connection has its watchers do.
pub static WATCHERS: Watchers = Watchers {
    is_looked_at: epoll::is_looked_at,
    note_joined: set::note_joined,
    make_foreign: epoll::make_foreign,
    take_back: epoll::take_back,
    looks_for_room: epoll::looks_for_room,
    await_room: epoll::await_room,
};

//! A descriptor that is a TCP connection: how each call on it goes, and what this process keeps of it.

pub mod confined;
pub mod count;
pub mod handle;
pub mod inside;
pub mod insiders;
pub mod io_uring;
pub mod leaving;
pub mod lent;
pub mod lines;
pub mod look;
pub mod lost;
pub mod options;
mod plain;
mod port;
pub mod references;
mod settle;
pub mod share;
pub mod short_lived;
mod shut_down;
pub mod state;
mod tagged;
pub mod unclaimed;
pub mod vforked;
pub mod watchers;
pub mod way;

use crate::guest::table::{self, Known};
use crate::guest::{family, forked, thread};
use handle::handle;
use underpass_segment::end::End;
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::sync::Relaxed;

/// The connection that `fd` is already known to be, also a settled one.
#[inline]
pub fn known(fd: i32) -> Option<Connection> {
    let Known::Connection(index) = table::get(fd) else { return None };
    forked::check();
    Some(Connection::at(family::existing()?, index, fd))
}

/// The connection that `fd` is already known to be, for a call of the program that names `fd`.
pub fn named(fd: i32) -> Option<Connection> {
    known(fd).filter(|it| !forked::is_unusual() || is_own(fd, it.index))
}

/// Whether `fd` is the connection that the table has for it. In a child of vfork the number may be another file, since
/// the table is its parent's. A forked child is set up first.
#[cold]
pub fn is_own(fd: i32, index: u32) -> bool {
    forked::check();
    let is_it = |family: &Family| kernel::cookie(fd) == Ok(family.end(index).cookie.load(Relaxed));
    !thread::is_vfork_child() || family::existing().is_some_and(is_it)
}

/// A connection in the hands of one call.
#[derive(Clone, Copy)]
pub struct Connection {
    /// Its end.
    pub end: &'static End,
    /// Index of its end in the family's table.
    pub index: u32,
    /// The descriptor by which the program named it.
    pub fd: i32,
}

impl Connection {
    /// The connection of `fd`, whose end is number `index` of the family.
    #[inline(always)]
    pub fn at(family: &'static Family, index: u32, fd: i32) -> Connection {
        Connection { end: family.end(index), index, fd }
    }

    /// Whether the descriptor was this very connection already when `event` was the last ([`table::last_event`]).
    pub fn is_as_of(&self, event: u64) -> bool {
        let found = handle(self.index).is_some_and(|handle| handle.found.load(Relaxed) <= event);
        found && table::generation(self.fd) <= event
    }
}

//! Threads that look at connections without a call of the program on them: to execute or spawn a program, or to give
//! back. Other threads may close these connections meanwhile. A close lets the look finish first, because the
//! descriptor's number, and perhaps the end, is another connection's soon.

use super::handle::handle;
use super::{Connection, known};
use crate::guest::cancellation::unless_left;
use crate::guest::table::{self, Known};
use crate::guest::{family, thread};
use core::cell::Cell;
use underpass_segment::family::Family;
use underpass_segment::lock::Lock;
use underpass_segment::sync::{Relaxed, SeqCst, fence};
use underpass_segment::{clock, of_each_thread};

of_each_thread! {
    /// How many looks of this thread are under way.
    static MINE: u32 = 0;
    /// 1 + the index of the connection at which this thread looks in a child of vfork; 0: none.
    static OF_CHILD: u32 = 0;
}

/// A look at a connection, which is not closed before the look ends.
pub struct Look(u32);

impl Look {
    /// A look at the connection of `fd`, if there is one.
    pub fn begin(fd: i32) -> Option<(Connection, Look)> {
        let connection = known(fd)?;
        let look = Look(connection.index);
        if let Some(handle) = handle(connection.index) {
            // This comes first, and is taken back last: a look that a killed child has begun is ended for it.
            if thread::is_vfork_child() {
                OF_CHILD.set(1 + connection.index);
            }
            handle.lookers.fetch_add(1, SeqCst);
            MINE.set(MINE.get() + 1);
        }
        // A thread that closes the descriptor changes the table first, and then waits for the threads that look.
        fence(SeqCst);
        (table::get(fd) == Known::Connection(connection.index)).then_some((connection, look))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if let Some(handle) = handle(self.0) {
            // A child that was forked meanwhile counts none.
            let less = |n: u32| n.checked_sub(1);
            if handle.lookers.fetch_update(SeqCst, SeqCst, less).is_ok() {
                MINE.set(MINE.get().saturating_sub(1));
            }
            OF_CHILD.set(0);
        }
    }
}

/// Calls `what` for the connections of all descriptors, each of which is not closed meanwhile.
pub fn look_at_all(mut what: impl FnMut(Connection)) {
    for fd in 0..table::highest() {
        look_at(fd, &mut what);
    }
}

/// Calls `what` for the connection of `fd`, if there is one, which is not closed meanwhile.
pub fn look_at(fd: i32, what: impl FnOnce(Connection)) {
    if thread::is_vfork_child() {
        // The descriptors are this child's own, and nobody else closes them.
        if let Some(connection) = known(fd) {
            what(connection);
        }
        return;
    }
    look_at_parents(fd, what);
}

/// In a child of vfork: calls `what` for the connection that `fd` is in the parent, whose other threads do not close it
/// meanwhile. In any other process as [`look_at`].
pub fn look_at_parents(fd: i32, what: impl FnOnce(Connection)) {
    if let Some((connection, look)) = Look::begin(fd) {
        let look = Cell::new(Some(look));
        // A signal handler may jump away.
        unless_left(|| drop(look.take()), || what(connection));
    }
}

/// A child of vfork has executed a program, or ended. If it was killed in a look, it does not look any more.
pub fn after_vfork() {
    if let index @ 1.. = OF_CHILD.get() {
        drop(Look(index - 1));
    }
}

/// Calls `what` for every end that this process has, once.
pub fn for_each(mut what: impl FnMut(u32, i32)) {
    for fd in 0..table::highest() {
        if let Known::Connection(index) = table::get(fd) {
            // An end with several descriptors comes up at the first of them only.
            let first = handle(index).is_some_and(|h| h.descriptors.load(Relaxed) == 1)
                || (0..fd).all(|earlier| table::get(earlier) != Known::Connection(index));
            if first {
                // The descriptor may be another connection's by now.
                look_at(fd, |it| {
                    if it.index == index {
                        what(index, fd);
                    }
                });
            }
        }
    }
}

/// Calls `what` for every end that this process has, once, with the family that has the end.
pub fn for_each_end(mut what: impl FnMut(&'static Family, u32, i32)) {
    if let Some(family) = family::existing() {
        for_each(|index, fd| what(family, index, fd));
    }
}

/// In a forked child, which has none of the threads that looked.
pub fn forget_looks() {
    MINE.set(0);
}

impl Connection {
    /// The locks of its end: the reader's and the sender's.
    pub fn locks(&self) -> [&Lock; 2] {
        [&self.end.reading.lock, &self.end.sending.lock]
    }

    /// This descriptor is about to be closed, and no thread finds the connection by it any more: returns once the
    /// threads that look at the connection have finished.
    pub fn outlast_lookers(&self) {
        // A peer that lies is not awaited for longer either.
        const PATIENCE_NS: u64 = 5_000_000_000;
        let Some(handle) = handle(self.index) else { return };
        fence(SeqCst);
        if handle.lookers.load(SeqCst) == 0 {
            return;
        }
        // A signal handler may have interrupted a look of this thread, or a call of this thread that a look waits for.
        let me = thread::number();
        if MINE.get() > 0 || self.locks().iter().any(|lock| lock.owner() == me) {
            return;
        }
        let deadline = clock::nanoseconds() + PATIENCE_NS;
        while handle.lookers.load(SeqCst) > 0 && clock::nanoseconds() < deadline {
            clock::nap(20);
        }
    }
}

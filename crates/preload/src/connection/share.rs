//! A connection that several descriptors or several processes have.

use super::{Connection, handle, known, recognise};
use crate::process;
use crate::table::{self, Known};
use underpass_segment::sync::{AcqRel, Relaxed};

impl Connection {
    /// Whether it has several descriptors in this process.
    pub fn has_duplicates(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.descriptors.load(Relaxed) > 1)
    }

    /// The connection by another descriptor of the socket.
    pub fn by(&self, fd: i32) -> Connection {
        Connection { fd, ..*self }
    }

    /// Whether no other process has it.
    pub fn is_last(&self) -> bool {
        self.end.references.load(Relaxed) == 1
    }

    /// A child that is spawned may get it.
    pub fn give(&self) {
        if let Some(handle) = handle(self.index) {
            handle.given.store(1, Relaxed);
        }
    }

    /// Whether a child that is spawned may get it.
    pub fn is_given(&self) -> bool {
        handle(self.index).is_some_and(|it| it.given.load(Relaxed) != 0)
    }
}

/// `copy` is a new descriptor for what `fd` is.
pub fn duplicate(fd: i32, copy: i32) {
    if process::borrowed() || copy < 0 {
        return;
    }
    let it = match recognise(fd) {
        Some(connection) => Known::Connection(connection.index),
        None => table::get(fd),
    };
    if let Known::Connection(index) = it
        && let Some(handle) = handle(index)
    {
        handle.descriptors.fetch_add(1, AcqRel);
    }
    table::set(copy, it);
    if let Some(connection) = known(copy) {
        connection.mind_stdio();
    }
    if let Some(connection) = known(fd).filter(|it| it.end.watched.load(Relaxed) != 0) {
        crate::epoll::wake_by_itself(connection);
    }
}

/// Another descriptor of the same connection.
pub(super) fn twin(connection: Connection) -> Option<i32> {
    let known = Known::Connection(connection.index);
    (0..table::highest()).find(|&fd| fd != connection.fd && table::get(fd) == known)
}

/// A fork is about to share every socket.
pub fn recognise_all() {
    for fd in 0..table::highest() {
        if table::get(fd) == Known::Socket {
            recognise(fd);
        }
    }
}

/// Adds (or takes back) a reference to every end, around a fork.
pub fn reference_all(add: bool) {
    if let Some(family) = process::existing_family() {
        for_each(|index, _| {
            let references = &family.end(index).references;
            if add {
                references.fetch_add(1, AcqRel)
            } else {
                references.fetch_sub(1, AcqRel)
            };
        });
    }
}

/// Calls `what` for every end that this process has, once.
pub(super) fn for_each(mut what: impl FnMut(u32, i32)) {
    for fd in 0..table::highest() {
        if let Known::Connection(index) = table::get(fd) {
            // An end with several descriptors comes up at the first of them only.
            let first = handle(index).is_some_and(|h| h.descriptors.load(Relaxed) == 1)
                || (0..fd).all(|earlier| table::get(earlier) != Known::Connection(index));
            if first {
                what(index, fd);
            }
        }
    }
}

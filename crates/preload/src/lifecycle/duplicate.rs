//! The program duplicates a descriptor: from then on both numbers are the same connection, or the same epoll set.

use super::adopt::recognise;
use super::reuse::forget_closed;
use crate::connection::handle::handle;
use crate::connection::known;
use crate::connection::share::set_made_input;
use crate::guest::table::{self, Known};
use crate::guest::thread;
use crate::watch::epoll;
use underpass_segment::sync::AcqRel;

/// `copy` is a new descriptor for what `fd` is.
pub fn duplicate(fd: i32, copy: i32) {
    if thread::is_vfork_child() || copy < 0 {
        return;
    }
    forget_closed(copy);
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
    if matches!(it, Known::Nothing | Known::Other) {
        epoll::duplicate(fd, copy);
    }
    if let Some(connection) = known(copy) {
        if copy == libc::STDIN_FILENO {
            set_made_input(Some(connection.index));
        }
        connection.mind_stdio();
    }
    if let Some(connection) = known(fd).filter(|it| it.end.is_watched() && !it.end.is_watched_unseen()) {
        epoll::wake_by_itself(connection);
    }
}

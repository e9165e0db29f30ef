//! The kernel gives out a number that the library knows as something else: libc has closed that descriptor by a call of
//! its own.

use crate::connection::references::release;
use crate::guest::table::{self, Known};
use crate::guest::{forked, thread};
use crate::watch::epoll;

/// The kernel has just given out the number `fd`, so the descriptor that the library knew under it is closed: libc
/// closes some descriptors by calls of its own.
pub fn forget_closed(fd: i32) {
    if thread::is_vfork_child() {
        return;
    }
    if !epoll::forget_set(fd) && table::get(fd) == Known::Nothing {
        return;
    }
    forked::check();
    table::next_generation(fd);
    if let Known::Connection(index) = table::set(fd, Known::Nothing) {
        release(index, None);
    }
}

//! Another program image is about to take this one's place. This process relinquishes the ends that the image does not
//! get: it lets go of them, and keeps their descriptors.

use crate::connection::Connection;
use crate::connection::handle::handle;
use crate::connection::leaving::end_lost;
use crate::connection::look::for_each_end;
use crate::connection::references::drop_reference;
use crate::connection::state::Attachment;
use crate::guest::family;
use crate::guest::table::{self, Known};
use crate::watch::epoll;
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::sync::{Acquire, Relaxed, Release};

/// Takes every end back that was relinquished: the execution has failed.
pub fn take_back_all() {
    for_each_end(|family, index, fd| take_back(&Connection::at(family, index, fd), family));
}

/// Relinquishes every end, before an execution.
pub fn relinquish_all() {
    for_each_end(|family, index, fd| {
        let connection = Connection::at(family, index, fd);
        connection.take_back_from_dead_images();
        if connection.relinquish() {
            connection.leave_no_gap();
        }
    });
}

/// Takes the end back.
fn take_back(connection: &Connection, family: &'static Family) {
    let (end, index) = (connection.end, connection.index);
    let Some(handle) = handle(index).filter(|it| it.relinquished.load(Acquire)) else { return };
    // The end may be another connection's by now, if the other processes have ended this one.
    let is_there = family.add_reference(index, family::member()) && {
        let is_same = kernel::cookie(connection.fd) == Ok(end.cookie.load(Relaxed));
        if !is_same {
            family.forget_reference(index, family::member());
            drop_reference(family, index, None, None);
        }
        is_same
    };
    if is_there {
        handle.relinquished.store(false, Release);
        return;
    }
    // For the other processes it is over, and bytes that were in its ring are lost.
    for fd in connection.descriptors() {
        if table::replace(fd, Known::Connection(index), Known::Other) {
            epoll::disown(fd);
        }
    }
    handle.descriptors.store(0, Relaxed);
    handle.attachment.store(Attachment::Absent, Release);
    if !handle.was_plain.load(Relaxed) {
        end_lost(connection.fd);
    }
}

impl Connection {
    /// It was passed to this process, or is passed on, and was handed over for good since: if nothing is left in its
    /// ring, a program image that comes for it later misses nothing.
    pub fn end_passing(&self) {
        let is_plain = || match self.port_even_confined() {
            Some(port) => port.leaves_all_to_kernel(),
            None => self.end.needs_no_channel(),
        };
        if self.end.is_passed() && self.end.is_pinned() && is_plain() {
            family::with_meeting_surely(|meeting| meeting.end_lending(self.end));
        }
    }

    /// Another program image is about to take this one's place. Its sets will be gone, so no connection is left to
    /// them. If the image does not come, the sets look at the connection themselves.
    pub fn leave_sets(self) {
        for fd in self.descriptors() {
            epoll::let_go(self.by(fd), table::generation(fd));
            epoll::take_back(fd);
        }
    }

    /// An execution is about to close this process's last descriptor. When this returns, another image that was to come
    /// for the connection has come, or does not come any more.
    pub fn leave_behind(&self, deadline: u64) {
        self.take_back_from_dead_images();
        self.await_heir(deadline);
        // If other processes have it, they may close it before the new image is there.
        if self.has_outsider() && (self.is_last() || self.relinquish()) {
            self.leave_no_gap();
        }
    }
}

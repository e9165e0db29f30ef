//! The line of a set: the daemon rings by it, and wakes a thread that sleeps on streams to other hosts.

use super::register::tell_change;
use super::{IN, port};
use crate::connection::lines::{self, LONGEST_NS, Owner};
use crate::guest::{errno, real};
use crate::watch::set::Set;
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::switch::Port;

/// Before the waiting flag of `port` is raised for the set: the daemon rings by the set's line.
pub(super) fn be_rung(set: &Set, port: &Port<'_>) {
    if port.end.is_remote() {
        set.set_remote();
        lines::be_rung(Owner::set(set), port);
    }
}

/// Before a thread sleeps on the set: registers its line, if it has one. For how many nanoseconds the thread may sleep.
#[inline]
pub(super) fn listen(epfd: c_int, set: &Set) -> u64 {
    if set.is_remote() { register(epfd, set) } else { u64::MAX }
}

#[cold]
fn register(epfd: c_int, set: &Set) -> u64 {
    let Some(line) = lines::existing(Owner::set(set)) else { return lines::BRIEFLY_NS };
    if set.has_line(line.number()) {
        return LONGEST_NS;
    }
    let Some(fd) = line.fd() else { return lines::BRIEFLY_NS };
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: set.line_data() };
    let before = errno::get();
    // SAFETY: one event.
    let added = unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event) };
    let is_there = added == 0 || errno::get() == libc::EEXIST;
    errno::set(before);
    if !is_there {
        return lines::BRIEFLY_NS;
    }
    set.set_line(line.number());
    LONGEST_NS
}

/// The daemon has rung: the set looks at the streams to other hosts for which it was.
pub(super) fn hear(epfd: c_int, set: &Set) {
    let line = lines::existing(Owner::set(set));
    if !line.is_some_and(lines::hear) {
        // A closed descriptor is no longer registered.
        line.into_iter().for_each(|line| tell_change(epfd, line.parts().0, None));
        set.set_line(0);
    }
    // The daemon has taken the flag of each for which it has rung, also where there is no news yet. One that is to go
    // down does so before the next sleep.
    let is_due = |port: &Port<'_>| port.end.is_remote() && (!port.asks_for_ring() || port.is_to_fall());
    set.activate_if(|fd, item| item.wants(IN) && port(fd).as_ref().is_some_and(is_due));
}

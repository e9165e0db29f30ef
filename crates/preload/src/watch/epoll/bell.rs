//! The daemon's bell in a set: it wakes a thread that sleeps on streams to other hosts.

use super::register::tell_change;
use super::{IN, port};
use crate::connection::inside::{LONGEST_BESIDE_BELL_NS, hear_bell};
use crate::guest::{errno, real};
use crate::watch::set::Set;
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::meeting;

/// Where the bell cannot be registered, a sleep lasts no longer.
const BRIEFLY_NS: u64 = 10_000_000;

/// Before a thread sleeps on the set: registers the bell, if the daemon carries streams of this process. For how many
/// nanoseconds the thread may sleep.
pub(super) fn listen(epfd: c_int, set: &Set) -> u64 {
    let Some(fd) = meeting::bell() else { return u64::MAX };
    if set.has_bell(fd) {
        return LONGEST_BESIDE_BELL_NS;
    }
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: set.bell_data() };
    let before = errno::get();
    // SAFETY: one event.
    let added = unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event) };
    let is_there = added == 0 || errno::get() == libc::EEXIST;
    errno::set(before);
    if !is_there {
        return BRIEFLY_NS;
    }
    set.set_bell(Some(fd));
    LONGEST_BESIDE_BELL_NS
}

/// The bell has rung: the set looks at the streams to other hosts for which it was.
pub(super) fn hear(epfd: c_int, set: &Set) {
    let fd = meeting::bell();
    if !hear_bell() || fd.is_none() {
        // A closed descriptor is no longer registered.
        fd.into_iter().for_each(|fd| tell_change(epfd, fd, None));
        set.set_bell(None);
    }
    // The daemon has taken the flag of each for which it has rung, also where there is no news yet.
    set.activate_if(|fd, item| item.wants(IN) && port(fd).is_some_and(|it| it.end.is_remote() && !it.asks_for_bell()));
}

//! Sets in which a confined process registers connections (see `connection::confined`): the kernel does not know what they have left
//! in their rings. No memory may be asked for, so each connection keeps one registration.

use super::{EDGE, IN, ONCE};
use crate::connection::{self, Connection};
use crate::{real, table};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::sync::{AtomicBool, Relaxed};

/// Whether any such connection was ever registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// The kernel has done `operation` of epoll_ctl.
pub(super) fn follow(epfd: c_int, operation: c_int, fd: c_int, wanted: Option<(u32, u64)>) {
    // First: every epoll_ctl comes here, and hardly any process has rests.
    let Some(connection) = connection::has_rests().then(|| connection::known(fd)).flatten() else { return };
    let registered = wanted.filter(|(events, _)| events & IN != 0);
    if registered.is_some() && !connection.has_rest() || operation != libc::EPOLL_CTL_DEL && wanted.is_none() {
        return;
    }
    connection.register_rest(epfd, registered);
    REGISTERED.fetch_or(registered.is_some(), Relaxed);
}

/// `epfd` is about to be closed.
pub(super) fn forget_set(epfd: c_int) {
    for_each(|connection| connection.register_rest(epfd, None));
}

fn for_each(what: impl FnMut(Connection)) {
    if REGISTERED.load(Relaxed) {
        (0..table::highest()).filter_map(connection::known).for_each(what);
    }
}

/// What is left in rings, and behind it what the kernel says by `look`, the program's own call without waiting; `None` if nothing
/// is left.
///
/// # Safety
/// The array must be the program's, of so many events.
pub(super) unsafe fn tell(
    epfd: c_int,
    events: *mut epoll_event,
    most: usize,
    look: impl FnOnce(*mut epoll_event, usize) -> c_int,
) -> Option<c_int> {
    let mut count = 0;
    for_each(|connection| {
        let registered = if count < most { connection.registered_rest(epfd) } else { None };
        let Some((wanted, data)) = registered else { return };
        if wanted & (EDGE | ONCE) != 0 {
            connection.register_rest(epfd, None);
        }
        if wanted & ONCE != 0 {
            let mut disarmed = epoll_event { events: wanted & (EDGE | ONCE), u64: data };
            // SAFETY: an event of this frame. The program has made this system call before.
            unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, connection.fd, &mut disarmed) };
        }
        // SAFETY: below `most`.
        unsafe { events.add(count).write_unaligned(epoll_event { events: wanted & IN, u64: data }) };
        count += 1;
    });
    if count == 0 {
        return None;
    }
    let mine = count;
    // SAFETY: the room behind them.
    let by_kernel = if count < most { look(unsafe { events.add(count) }, most - count) } else { 0 };
    for index in mine..mine + by_kernel.max(0) as usize {
        // SAFETY: the kernel has written so many; what is told already gets the rest of its events there.
        unsafe {
            let it = events.add(index).read_unaligned();
            let same = (0..mine).find(|&earlier| events.add(earlier).read_unaligned().u64 == it.u64);
            match same.map(|earlier| &raw mut (*events.add(earlier)).events) {
                Some(told) => told.write_unaligned(told.read_unaligned() | it.events),
                None => {
                    events.add(count).write_unaligned(it);
                    count += 1;
                }
            }
        }
    }
    Some(count as c_int)
}

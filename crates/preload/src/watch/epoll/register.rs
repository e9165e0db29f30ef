//! The library's own changes of the kernel's registrations: the program's changes that were put off, and changes that
//! wake a sleeper.

use super::{EDGE, EXCLUSIVE, IN, ONCE, has_kernel_room, port};
use crate::guest::{errno, real};
use crate::watch::set::{Room, Set};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;

/// Changes the kernel's registration without the program's knowledge.
pub(super) fn register(epfd: c_int, fd: c_int, events: u32, data: u64) {
    let mut event = epoll_event { events, u64: data };
    let before = errno::get();
    // SAFETY: one event.
    unsafe {
        if events & EXCLUSIVE == 0 {
            real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &mut event);
        } else {
            // An exclusive registration cannot be changed.
            real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut());
            real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event);
        }
    }
    errno::set(before);
}

/// In a signal handler that has interrupted a look at the set, and is about to take `fd` out of its connection: the
/// kernel gets the registration back as the program has made it, because the look may go on when `fd` is closed.
pub(super) fn give_back(set: &Set, fd: c_int) {
    let Some(item) = set.item(fd).filter(|it| !it.is_gone() && !it.is_disarmed()) else { return };
    // The look may have changed the kernel's registration, and not noted it yet. One that is level-triggered can be
    // made as often as one likes.
    let is_level = item.events & (EDGE | ONCE | EXCLUSIVE) == 0 && !is_quiet();
    if is_level || item.room != Room::Kernel || item.is_kicked() {
        register(set.epfd(), fd, item.events, item.data);
    }
}

pub(super) fn tell_change(epfd: c_int, fd: c_int, change: Option<(u32, u64)>) {
    match change {
        Some((events, data)) => register(epfd, fd, events, data),
        None => {
            let before = errno::get();
            // SAFETY: no event is read.
            unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) };
            errno::set(before);
        }
    }
}

/// Tells the kernel of the registrations that were changed without it.
pub(super) fn tell_all(epfd: c_int, set: &Set) {
    set.tell_all(|fd, change| tell_change(epfd, fd, change));
}

/// Makes the kernel's epoll report `fd`, which has something to read, at once. If the socket is writable, it is enough
/// to ask for room.
pub(super) fn kick(epfd: c_int, set: &Set, fd: c_int) {
    // Not in a signal handler that has interrupted a look at the set: before that thread goes back to the program, it
    // leaves to sleepers what is active, as the handler has made `fd`.
    set.with_item(fd, |item| {
        if item.wants(IN) {
            // This comes first: a thread that the kernel wakes for it does not take the event as it is.
            set.note_kicked(fd);
            item.set_kicked(true);
            if item.room == Room::SetAlone {
                item.set_room(Room::Set);
            }
            // Only EPOLLOUT: an exclusive registration must not have EPOLLWRNORM.
            register(epfd, fd, item.events | libc::EPOLLOUT as u32, item.data);
        }
    });
    sound_if_full(epfd, set, fd);
}

/// Takes back all kicks of the set.
pub(super) fn calm_all(set: &Set) {
    set.each(|fd, item| {
        if item.is_kicked() {
            item.set_kicked(false);
            // What asks for room anyway is told no more by it.
            if !item.wants(libc::EPOLLOUT as u32) {
                register(set.epfd(), fd, item.events, item.data);
            }
        }
    });
}

/// Wakes a sleeper by a descriptor of the library's own, where `fd` is not writable: the other end may read nothing
/// before it is answered.
pub(super) fn sound_if_full(epfd: c_int, set: &Set, fd: c_int) {
    if set.has_alarm() || is_quiet() || port(fd).is_none_or(|port| has_kernel_room(&port)) {
        return;
    }
    let Some(alarm) = kernel::always_readable() else { return };
    if !set.set_alarm(alarm) {
        return kernel::close(alarm);
    }
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: set.alarm_data() };
    let before = errno::get();
    // SAFETY: one event.
    unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, alarm, &mut event) };
    errno::set(before);
}

/// The descriptor has woken the sleeper, and is taken out.
pub(super) fn silence(epfd: c_int, set: &Set) {
    if is_quiet() {
        return;
    }
    if let Some(alarm) = set.take_alarm() {
        tell_change(epfd, alarm, None);
        kernel::close(alarm);
    }
}

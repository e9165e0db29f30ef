//! epoll_create, epoll_ctl, epoll_wait and its variants.

use crate::guest::access::{is_mask_readable, is_readable};
use crate::guest::deadline::{after, after_ms, invalid, let_signals_in};
use crate::guest::table::{self, Known, Socket};
use crate::guest::{real, settings, thread};
use crate::lifecycle::{adopt, reuse};
use crate::watch::epoll::{self, Call, Control, Controlled, sleep_natively, wait, whole_ms};
use core::ffi::c_int;
use libc::{epoll_event, sigset_t, timespec};
use underpass_segment::reason::Reason;

/// # Safety
/// As epoll_create(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: no pointers.
    created(unsafe { real::epoll_create(size) })
}

/// # Safety
/// As epoll_create1(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    created(unsafe { real::epoll_create1(flags) })
}

fn created(epfd: c_int) -> c_int {
    if epfd >= 0 {
        reuse::forget_closed(epfd);
        epoll::note_set(epfd);
    }
    epfd
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let known = table::get_for_call(fd);
    let listens = matches!(known, Known::Socket(Socket { listens: true, .. }));
    let is_socket = matches!(known, Known::Socket(_) | Known::Connection(_)) && !listens;
    if thread::is_vfork_child() || !settings::config().enabled {
        // SAFETY: passed on to the caller.
        return unsafe { real::epoll_ctl(epfd, operation, fd, event) };
    }
    let is_read = operation != libc::EPOLL_CTL_DEL && is_readable(event, 1);
    // SAFETY: there is something to read.
    let wanted = is_read.then(|| unsafe { ((*event).events, (*event).u64) });
    let control = Control { epfd, operation, fd, wanted, is_socket, listens };
    let call = || {
        control.call(|other| match other {
            // SAFETY: an event of this frame.
            Some(mut other) => unsafe { real::epoll_ctl(epfd, operation, fd, &mut other) },
            // SAFETY: passed on to the caller.
            None => unsafe { real::epoll_ctl(epfd, operation, fd, event) },
        })
    };
    if let Some(set) = control.interrupted_set() {
        let (answer, registers) = control.make_above(set, call);
        if registers && let Some(connection) = adopt::of(fd) {
            connection.end.watch();
            epoll::wake_by_itself(connection);
        }
        return answer;
    }
    match control.make(call) {
        Controlled::Answered(answer) => answer,
        Controlled::NoMemory => {
            adopt::give_up(fd, Reason::NoMemory);
            call()
        }
        Controlled::Unfollowed(answer) => {
            adopt::give_up(fd, Reason::NoMemory);
            answer
        }
        Controlled::Followed(set, generation) => {
            if let Some(connection) = adopt::of(fd) {
                if operation == libc::EPOLL_CTL_ADD {
                    epoll::watch(connection, generation);
                }
                if wanted.is_some_and(|(events, _)| events & epoll::IN != 0) {
                    adopt::hasten(fd);
                }
                control.attend(connection, set, generation);
            }
            0
        }
    }
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    let deadline = after_ms(timeout);
    // SAFETY: the program vouches for its array, here and below.
    let sleep = |set, at, most, left: Option<timespec>| unsafe { real::epoll_wait(set, at, most, whole_ms(left)) };
    let call = Call { epfd, sleep: &sleep, mask: core::ptr::null() };
    if let Some(answer) = wait(events, most, deadline, &call) {
        return answer;
    }
    // SAFETY: passed on to the caller.
    sleep_natively(events, most, deadline, &call, || unsafe { real::epoll_wait(epfd, events, most, timeout) })
}

/// # Safety
/// As epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if !is_mask_readable(mask) {
        // SAFETY: passed on to the caller; refused for the mask.
        return unsafe { real::epoll_pwait(epfd, events, most, timeout, mask) };
    }
    let deadline = after_ms(timeout);
    // SAFETY: as in `epoll_wait`.
    let sleep =
        |set, at, most, left: Option<timespec>| unsafe { real::epoll_pwait(set, at, most, whole_ms(left), mask) };
    let call = Call { epfd, sleep: &sleep, mask };
    if let Some(answer) = wait(events, most, deadline, &call) {
        // The kernel's call does not let signals in if it need not wait.
        return if answer == 0 && timeout != 0 { let_signals_in(mask) } else { answer };
    }
    // SAFETY: passed on to the caller.
    sleep_natively(events, most, deadline, &call, || unsafe { real::epoll_pwait(epfd, events, most, timeout, mask) })
}

/// # Safety
/// As epoll_pwait2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sleep = |set, at, most, left: Option<timespec>| {
        let left = left.as_ref().map_or(core::ptr::null(), |t| t as *const timespec);
        // SAFETY: as in `epoll_wait`.
        unsafe { real::epoll_pwait2(set, at, most, left, mask) }
    };
    if invalid(timeout) || !is_mask_readable(mask) {
        // SAFETY: passed on to the caller.
        return unsafe { real::epoll_pwait2(epfd, events, most, timeout, mask) };
    }
    // SAFETY: as above.
    let deadline = unsafe { after(timeout) };
    let call = Call { epfd, sleep: &sleep, mask };
    if let Some(answer) = wait(events, most, deadline, &call) {
        // SAFETY: null or the program's.
        let waits = unsafe { timeout.as_ref() }.is_none_or(|t| t.tv_sec != 0 || t.tv_nsec != 0);
        return if answer == 0 && waits { let_signals_in(mask) } else { answer };
    }
    // SAFETY: passed on to the caller.
    sleep_natively(events, most, deadline, &call, || unsafe { real::epoll_pwait2(epfd, events, most, timeout, mask) })
}

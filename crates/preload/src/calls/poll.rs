//! poll and ppoll.

use crate::connection;
use crate::guest::access::{is_mask_readable, is_readable, is_writable};
use crate::guest::buffers::check_room;
use crate::guest::cancellation::test_cancel;
use crate::guest::deadline::{Deadline, after, after_ms, invalid};
use crate::guest::{errno, real};
use crate::lifecycle::adopt;
use crate::watch::poll::{IN, answer_confined, at_rest, concerns_us, mind_room, tell_whole, unless_rests, wait};
use core::ffi::c_int;
use core::slice::{from_raw_parts, from_raw_parts_mut};
use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program vouches for `count` entries.
    unsafe {
        let plain = || real::poll(fds, count, timeout);
        if count == 0 {
            return plain();
        }
        let look = |fds: &mut [pollfd]| real::poll(fds.as_mut_ptr(), count, 0);
        serve(fds, count, after_ms(timeout), core::ptr::null(), look, plain)
    }
}

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { poll(fds, count, timeout) }
}

/// # Safety
/// As poll(2); `room` is the size of the array as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    check_room(count as size_t, room / size_of::<pollfd>());
    // SAFETY: passed on to the caller.
    unsafe { poll(fds, count, timeout) }
}

/// # Safety
/// As ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe {
        let plain = || real::ppoll(fds, count, timeout, mask);
        if count == 0 || invalid(timeout) || !is_mask_readable(mask) {
            return plain();
        }
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        let look = |fds: &mut [pollfd]| real::ppoll(fds.as_mut_ptr(), count, &at_once, mask);
        serve(fds, count, after(timeout), mask, look, plain)
    }
}

/// # Safety
/// As ppoll(2); `room` is the size of the array as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check_room(count as size_t, room / size_of::<pollfd>());
    // SAFETY: passed on to the caller.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// Polls by `plain`, the kernel's own call, if there is nothing else to look at; `look` is the same without waiting.
///
/// # Safety
/// As poll(2), where a bad pointer is an error.
unsafe fn serve(
    fds: *mut pollfd,
    count: nfds_t,
    deadline: Deadline,
    mask: *const sigset_t,
    look: impl Fn(&mut [pollfd]) -> c_int,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    if !is_writable(fds, count as usize) {
        // SAFETY: passed on to the caller.
        return unsafe { serve_in_vain(fds, count as usize, plain) };
    }
    // SAFETY: there are `count` entries; the slice is not used across `plain`, which writes there.
    let entries = || unsafe { from_raw_parts_mut(fds, count as usize) };
    test_cancel();
    if adopt::hastens() {
        entries().iter().filter(|it| it.events & IN != 0).for_each(|it| adopt::hasten(it.fd));
    }
    mind_room(entries());
    let mut plain = Some(plain);
    loop {
        if let Some(count) = answer_confined(entries(), &look) {
            return count;
        }
        if concerns_us(entries()) {
            break;
        }
        let sleep = || unless_rests(entries(), &mut plain);
        // SAFETY: passed on to the caller; the kernel writes the answers alone.
        let Some(answer) = (unsafe { at_rest(fds, count as usize, adopt::of, sleep) }) else { continue };
        // Another thread may have taken a connection up while this one slept in the kernel's call. Then a doorbell may
        // have woken this thread, and that is not data.
        if answer <= 0 || !concerns_us(entries()) {
            entries().iter_mut().filter(|it| connection::named(it.fd).is_some()).for_each(tell_whole);
            return answer;
        }
        break;
    }
    wait(entries(), deadline, mask, adopt::of)
}

/// Polls where the answers cannot be written, which is an error that the kernel finds. But the kernel does not know
/// everything that this call has to wait for.
///
/// # Safety
/// As poll(2), where a bad pointer is an error.
#[cold]
unsafe fn serve_in_vain(fds: *const pollfd, count: usize, plain: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: there are `count` entries to read.
    if is_readable(fds, count) && concerns_us(unsafe { from_raw_parts(fds, count) }) {
        errno::set(libc::EFAULT);
        return -1;
    }
    plain()
}

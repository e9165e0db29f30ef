//! Epoll sets; in this file, the sets of this process and the threads that sleep on them.
//!
//! Every socket stays registered with the kernel exactly as the program registered it. For stream sockets the library
//! keeps a copy of the registration. Those that were active lately are looked at in user space; the quiet ones have
//! their waiting flag up, so that what arrives for them rings a doorbell, which the kernel's epoll reports natively.
//! So cost follows activity, nested sets and sleeping need nothing of ours, and the kernel's own descriptors are asked
//! for at least every [`wait::KERNEL_EVERY_US`].

mod control;
mod events;
mod line;
mod news;
mod register;
mod rests;
mod room;
mod sleep;
mod wait;

pub use control::{Control, Controlled, claim, freeze_registrations, tell_anew};
pub use rests::{
    enter_all as enter_rests, is_any as has_rest, make_registrations_foreign, note_set, prepare as prepare_rests,
    wake_all as wake_for_rests,
};
pub use room::{await_room, looks_for_room};
pub use sleep::{
    confirm, forget_socket, has_ready, let_go, outlast_looks, prepare_to_sleep, take_back, wake_by_itself, watch,
    watch_by_poll,
};
pub use wait::{Call, sleep_natively, wait, whole_ms};

use super::set::{self, Change, Deferred, Set};
use crate::connection::{self, known};
use crate::guest::cancellation::unless_left;
use crate::guest::memory::{PIECE, Sparse};
use crate::guest::{settings, table};
use core::ffi::c_int;
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;
use underpass_segment::reason::Reason;
use underpass_segment::switch::Port;
use underpass_segment::sync::{AcqRel, Acquire, AtomicPtr, AtomicU32, Release};
use underpass_segment::tap;
use underpass_segment::words::ALONE;

/// Something to read.
pub const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const OVER: u32 = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;
/// The deepest nesting of sets that the kernel allows.
const MAX_DEPTH: u32 = 4;
/// Reported even if the program does not ask for it.
const UNASKED: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

static SETS: Sparse<AtomicPtr<Set>, { table::MAX_FDS / PIECE }> = Sparse::new();
/// Threads asleep in the kernel on each descriptor, by epoll_wait or by a poll, whether it is a set of ours or not.
static SLEEPERS: Sparse<AtomicU32, { table::MAX_FDS / PIECE }> = Sparse::new();

fn place(epfd: c_int) -> Option<&'static AtomicPtr<Set>> {
    // SAFETY: places are never unmapped; zeroed memory is a null pointer. A negative number is beyond the end.
    SETS.get(epfd as u32 as usize).map(|place| unsafe { place.as_ref() })
}

fn set_of(epfd: c_int) -> Option<&'static Set> {
    // SAFETY: a set, once made, is never unmapped.
    unsafe { place(epfd)?.load(Acquire).as_ref() }
}

fn make_set(epfd: c_int) -> Option<&'static Set> {
    // SAFETY: as in `place`.
    let place = unsafe { SETS.need(epfd as u32 as usize)?.as_ref() };
    if place.load(Acquire).is_null() {
        let made = Set::make(epfd)?;
        table::reach(epfd);
        if place.compare_exchange(core::ptr::null_mut(), made, Release, Acquire).is_err() {
            // SAFETY: just made, and nobody else has it.
            Set::release(unsafe { &*made });
        }
    }
    set_of(epfd)
}

/// The library's copy of the set, made if there is none yet. What was registered before is taken for no socket of ours.
fn need_set(epfd: c_int) -> Option<&'static Set> {
    if let Some(set) = set_of(epfd) {
        return Some(set);
    }
    let set = make_set(epfd)?;
    if !is_quiet() {
        // Without /proc no registration is known.
        let _ = kernel::for_each_registration(epfd, |fd, events, data| set.note_foreign(fd, events, data));
    }
    Some(set)
}

/// Whether `fd` is an epoll set that has sockets of ours.
pub fn is_ours(fd: c_int) -> bool {
    set_of(fd).is_some_and(|set| set.count() > 0 || set.has_inner())
}

/// Whether `fd` is registered in any set.
fn watches(fd: c_int) -> bool {
    set::sets_of(fd).any(|set| set.item(fd).is_some())
}

/// Whether `fd` is registered in a set, or may be: a set that this thread is in the middle of is not asked.
pub fn may_watch(fd: c_int) -> bool {
    is_looked_at(fd) || watches(fd)
}

/// `fd` is left to the kernel.
pub fn disown(fd: c_int) {
    set::sets_of(fd).for_each(|set| set.change(Change::Forgotten { fd }));
}

/// Whether this is a signal handler that has interrupted a look at a set in which `fd` may be registered.
pub fn is_looked_at(fd: c_int) -> bool {
    set::sets_of(fd).any(Set::is_interrupted)
}

/// Makes the registrations of `fd`, a socket in this generation of the number, foreign: they are the kernel's for good.
pub fn make_foreign(fd: c_int, generation: u64) {
    for set in set::sets_of(fd) {
        set.change(Change::Foreign { fd, generation });
    }
}

/// `copy` is a new descriptor of the same file as `fd`, perhaps of a set.
pub fn duplicate(fd: c_int, copy: c_int) {
    // Also for a set in which nothing is registered yet: the program may use it by either descriptor from now on.
    let may_be_set = settings::config().enabled && !is_quiet();
    let is_set = set_of(fd).is_some() || may_be_set && kernel::is_epoll(fd);
    if is_set
        && let Some(set) = need_set(fd)
        && let Some(place) = SETS.need(copy as u32 as usize)
        && set.names().add(copy)
    {
        // SAFETY: as in `place`.
        unsafe { place.as_ref() }.store(core::ptr::from_ref(set).cast_mut(), Release);
        // Another thread may have closed `fd` meanwhile, and the set may be another's.
        if !set_of(fd).is_some_and(|it| core::ptr::eq(it, set)) {
            forget_set(copy);
        }
    }
}

/// The descriptors of `set`.
fn descriptors(set: &Set) -> impl Iterator<Item = c_int> {
    set.names().possible(table::highest()).filter(move |&fd| set_of(fd).is_some_and(|it| core::ptr::eq(it, set)))
}

/// `epfd` is about to be closed, and is in the same generation yet; or libc has closed it by calls of its own.
/// Whether it was a set of ours.
pub fn forget_set(epfd: c_int) -> bool {
    set::forget_alarm(epfd);
    // SAFETY: a set, once made, is never unmapped.
    let set = place(epfd).and_then(|place| unsafe { place.swap(core::ptr::null_mut(), Acquire).as_ref() });
    let Some(set) = set else {
        rests::forget(epfd);
        return false;
    };
    if !set.names().remove(epfd) {
        // No other descriptor is left if they are being closed at this moment: closing the last of them ends the set.
        if let Some(heir) = descriptors(set).next() {
            if is_slept_on(epfd) {
                set.set_slept_on();
            }
            let name = set.epfd();
            set.set_epfd(heir);
            rests::rename((name, epfd), heir);
            for outer in set::sets_of(epfd).filter(|outer| outer.inner().any(|inner| inner == epfd)) {
                outer.add_inner(heir);
                outer.remove_inner(epfd);
                outer.adopt(epfd, heir);
            }
        }
        return true;
    }
    rests::forget(epfd);
    if is_slept_on(epfd) {
        leave_to_kernel(set);
    }
    if set.is_inner() {
        set::made().for_each(|outer| outer.remove_inner(epfd));
    }
    register::silence(epfd, set);
    if set.is_interrupted() {
        set.defer(Deferred::Closed);
    } else {
        Set::release(set);
    }
    true
}

/// The set ends while a thread sleeps on it: the thread goes on with the kernel's set alone, which learns of nothing
/// that comes by a ring.
#[cold]
fn leave_to_kernel(set: &Set) {
    registered(set).filter_map(known).for_each(|it| it.pin(Reason::Unsupported));
}

/// The sockets that are registered in the set.
fn registered(set: &Set) -> impl Iterator<Item = c_int> {
    (0..table::highest()).filter(|&fd| set.item(fd).is_some())
}

/// Another process is about to have the kernel's sets too, by a fork or an execution: tells the kernel what was put
/// off. Not in a child of vfork, whose descriptors may be others than those of this table.
pub fn tell_kernel() {
    for set in set::made().filter(|set| set.is_stale()) {
        register::tell_all(set.epfd(), set);
    }
}

/// An executed image is about to have the kernel's sets: it must not be told of room for which the program has not
/// asked. A set on which a thread sleeps stays as it is, because the execution may fail and the thread has to be woken.
pub fn leave_to_image() {
    for set in set::made().filter(|set| !set.is_interrupted() && !has_sleepers(set.epfd())) {
        register::calm_all(set);
    }
    tell_kernel();
}

/// In a forked child. The threads that slept are its parent's, and so are the groups that the waiting flags name. The
/// child's copies of the sets rely on the flags too, and look at each connection once more to raise its flag for
/// themselves.
pub fn after_fork() {
    // SAFETY: a forked child has one thread.
    unsafe { SLEEPERS.clear() };
    rests::after_fork();
    for alarm in set::made().filter_map(Set::take_alarm) {
        kernel::close(alarm);
    }
    for set in set::made().filter(|set| set.count() > 0) {
        set.activate_if(|fd, item| {
            let connection = connection::known(fd).filter(|_| item.is_resting());
            connection.inspect(|it| it.end.reading.resting.add(ALONE)).is_some()
        });
    }
}

/// Number of threads asleep in the kernel on `epfd`.
fn sleepers(epfd: c_int) -> Option<&'static AtomicU32> {
    // SAFETY: counts are never unmapped; zeroed memory is none.
    SLEEPERS.need(epfd as u32 as usize).map(|count| unsafe { count.as_ref() })
}

/// Whether a thread sleeps on `epfd`, or on a set in which it is registered.
fn has_sleepers(epfd: c_int) -> bool {
    has_sleepers_around(epfd, 0)
}

fn has_sleepers_around(epfd: c_int, depth: u32) -> bool {
    let Some(set) = set_of(epfd) else { return is_slept_on(epfd) };
    let by_copy = || set.names().are_several() && descriptors(set).any(is_slept_on);
    let is_it = |inner| set_of(inner).is_some_and(|it| core::ptr::eq(it, set));
    let is_around = |outer: &&Set| outer.inner().any(is_it);
    is_slept_on(epfd)
        || set.is_slept_on()
        || by_copy()
        || depth < MAX_DEPTH
            && set.is_inner()
            && set::made().filter(is_around).any(|outer| has_sleepers_around(outer.epfd(), depth + 1))
}

/// Whether a thread sleeps on the set by this very descriptor.
pub fn is_slept_on(epfd: c_int) -> bool {
    // SAFETY: as in `sleepers`.
    SLEEPERS.get(epfd as u32 as usize).is_some_and(|count| unsafe { count.as_ref() }.load(Acquire) > 0)
}

/// This thread is about to sleep on `epfd`. It says so before it looks at the set, so that a thread that makes a socket
/// active afterwards hands the socket over.
pub fn fall_asleep(epfd: c_int) {
    if let Some(count) = sleepers(epfd) {
        count.fetch_add(1, AcqRel);
    }
}

/// This thread has slept on `epfd`.
pub fn wake(epfd: c_int) {
    if let Some(count) = sleepers(epfd) {
        count.fetch_sub(1, AcqRel);
    }
}

/// Sleeps in the kernel on `epfd`, by `sleep`.
fn asleep<T>(epfd: c_int, sleep: impl FnOnce() -> T) -> T {
    tap::let_go();
    fall_asleep(epfd);
    let answer = unless_left(|| wake(epfd), sleep);
    wake(epfd);
    answer
}

// Every look at the active sockets calls this for each of them. A result in memory would cost a sixth of the look.
#[inline(always)]
fn port(fd: c_int) -> Option<Port<'static>> {
    connection::known(fd)?.ready_port()
}

/// Whether a send would find room now.
fn has_room(port: &Port<'_>) -> bool {
    if port.sends_fast() { port.offers_room() } else { has_kernel_room(port) }
}

/// Whether the kernel says that there is room, as it does while the direction is in the ring.
fn has_kernel_room(port: &Port<'_>) -> bool {
    port.sends_fast() || kernel::poll_now(port.fd, libc::POLLOUT) & libc::POLLOUT != 0
}

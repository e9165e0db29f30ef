//! poll, ppoll, select, pselect.

use super::epoll;
use crate::connection::{self, confined};
use crate::guest::access::{is_mask_readable, is_readable, is_writable};
use crate::guest::buffers::check_room;
use crate::guest::cancellation::{self, test_cancel, unless_left};
use crate::guest::deadline::{Deadline, after, after_ms, invalid, left, let_signals_in};
use crate::guest::memory::{release, reserve};
use crate::guest::{errno, real, table};
use crate::lifecycle::adopt;
use core::ffi::c_int;
use core::slice::{from_raw_parts, from_raw_parts_mut};
use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use underpass_segment::clock::{self, ticks, ticks_per_microsecond};
use underpass_segment::link::ALONE;
use underpass_segment::raw::is_quiet;
use underpass_segment::switch::{Dozed, Port, Ready, Sleep};
use underpass_segment::sync::{AcqRel, AtomicPtr, AtomicU32, Relaxed};
use underpass_segment::wait::{Polled, Wait};
use underpass_segment::{kernel, of_each_thread, tap};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// What a reset is told by.
const RESET: i16 = libc::POLLHUP | libc::POLLERR;
/// While polling, the kernel's own descriptors are looked at this often.
const KERNEL_EVERY_US: u64 = 4;
/// A thread whose polls the rings can always answer asks the kernel this often, for what only that knows.
const KERNEL_WHEN_BUSY_US: u64 = 50;
/// Where another thread may take the doorbell, a sleep lasts no longer.
const BRIEFLY_NS: u64 = 10_000_000;

of_each_thread! {
    /// When a poll of this thread last asked the kernel, in ticks.
    static ASKED: u64 = 0;
}

/// What a descriptor in a poll is to the library.
fn port(fd: c_int) -> Option<Port<'static>> {
    connection::known(fd)?.ready_port()
}

fn concerns_us(fds: &[pollfd]) -> bool {
    // What is in a set of a confined process, the kernel knows; and nothing but the program's own call may be made.
    let is_set = |fd| !is_quiet() && epoll::is_ours(fd);
    fds.iter().any(|it| it.fd >= 0 && (port(it.fd).is_some() || is_set(it.fd)))
}

/// poll over `fds`, sleeping in ppoll with `mask`.
fn wait(fds: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> c_int {
    let mut began: Option<Option<Wait>> = None;
    let mut slept = false;
    let mut polled_enough = false;
    loop {
        // A filter may have come while this thread slept.
        if let Some(count) = answer_confined(fds, |_| 0) {
            return count;
        }
        if let Some(count) = answer_alone(fds) {
            end_wait(fds, began.flatten(), slept);
            return count;
        }
        let count = ask(fds, Some(timespec { tv_sec: 0, tv_nsec: 0 }), core::ptr::null());
        if count != 0 {
            end_wait(fds, began.flatten(), slept);
            return count;
        }
        if deadline.is_some_and(|at| clock::nanoseconds() >= at) {
            return let_signals_in(mask);
        }
        if !polled_enough && let Some(wait) = began.get_or_insert_with(|| begin(fds)) {
            let slice = KERNEL_EVERY_US * ticks_per_microsecond();
            let news = || fds.iter().any(|it| it.events & IN != 0 && is_ready(it.fd));
            // Who waits for room leaves the processor to the one who makes it.
            polled_enough = fds.iter().any(waits_for_room) || wait.poll_for(slice, news) == Polled::Enough;
            continue;
        }
        match doze(fds, deadline, mask) {
            Dozed::Awake => {
                slept = true;
                continue;
            }
            Dozed::Interrupted => {
                errno::set(libc::EINTR);
                return -1;
            }
            Dozed::Over => {}
        }
        // SAFETY: `ask` lets the kernel write what it answers; nobody else does.
        let count = unsafe {
            at_rest(fds.as_ptr(), fds.len(), || {
                let mut longest = u64::MAX;
                // Behind the count of those who sleep.
                if have_rests(fds) {
                    return 0;
                }
                for it in fds.iter() {
                    match prepare(it) {
                        Sleep::Yes => {}
                        Sleep::No => return 0,
                        Sleep::Briefly => longest = longest.min(BRIEFLY_NS),
                    }
                    if waits_for_room(it) {
                        let Some(ns) = port(it.fd).and_then(|port| port.looks_for_room_in()) else { return 0 };
                        longest = longest.min(ns);
                    }
                }
                slept = true;
                ask(fds, left(deadline, longest), mask)
            })
        };
        if count != 0 {
            end_wait(fds, began.flatten(), slept);
            return count;
        }
    }
}

/// Dozes, where all that is waited for is what comes by a single connection.
fn doze(fds: &[pollfd], deadline: Deadline, mask: *const sigset_t) -> Dozed {
    let mut asked = fds.iter().filter(|it| it.fd >= 0);
    let (Some(it), None) = (asked.next(), asked.next()) else { return Dozed::Over };
    // A mask holds during the sleep only, which is poll's own work.
    if !mask.is_null() || it.events & OUT != 0 || it.events & IN == 0 {
        return Dozed::Over;
    }
    let Some(connection) = connection::known(it.fd) else { return Dozed::Over };
    let Some(port) = connection.ready_port() else { return Dozed::Over };
    // Closed meanwhile, it is kept.
    let inside = connection.inside();
    inside.during(|| {}, || port.doze_in_poll(deadline, |call| cancellation::cancellable(|| {}, call)))
}

/// Does `sleep`, in which this thread sleeps in the kernel and relies on being woken even if another takes what arrives.
///
/// # Safety
/// There must be `count` entries, of which nobody changes more than the answers meanwhile.
unsafe fn at_rest<T>(fds: *const pollfd, count: usize, sleep: impl FnOnce() -> T) -> T {
    // SAFETY: passed on to the caller; no reference to an answer is made.
    let entry = |at| unsafe { ((*fds.add(at)).events, (*fds.add(at)).fd) };
    let read = || (0..count).map(entry).filter(|(events, _)| events & IN != 0).map(|(_, fd)| fd);
    tap::let_go();
    read().for_each(epoll::fall_asleep);
    for connection in read().filter_map(adopt::of) {
        epoll::watch_by_poll(connection);
    }
    // Under the same number there may be another connection before this thread is awake again.
    let event = table::last_event();
    let those = || read().filter_map(connection::known).filter(|it| it.is_as_of(event));
    let wake_up = || {
        those().for_each(|connection| connection.end.reading.resting.leave());
        read().for_each(epoll::wake);
    };
    those().for_each(|connection| connection.end.reading.resting.add(ALONE));
    let answer = unless_left(wake_up, sleep);
    wake_up();
    answer
}

fn prepare(it: &pollfd) -> Sleep {
    match port(it.fd) {
        Some(port) if it.events & IN != 0 => port.prepare_to_sleep(ALONE),
        Some(port) if port.reader_is_gone() => Sleep::No,
        // The FIN of an end that is killed with data unread does not wake such a poll.
        Some(port) if it.events & libc::POLLRDHUP == 0 && port.unsent() > 0 => Sleep::Briefly,
        None if it.fd >= 0 && it.events & IN != 0 => epoll::prepare_to_sleep(it.fd),
        _ => Sleep::Yes,
    }
}

/// Whether the program waits for room in a ring.
fn waits_for_room(it: &pollfd) -> bool {
    it.events & OUT != 0 && port(it.fd).is_some_and(|port| !port.offers_room())
}

fn end_wait(fds: &[pollfd], began: Option<Wait>, slept: bool) {
    if let Some(wait) = began
        && let Some(port) = fds.iter().find_map(|it| port(it.fd))
    {
        wait.end(port.memory(), slept);
    }
}

/// Begins a wait, if there is a ring to poll: meets the other ends.
fn begin(fds: &[pollfd]) -> Option<Wait> {
    let first = fds.iter().find_map(|it| port(it.fd))?;
    let mut wait = Wait::begin(first.memory(), 0, first.spin_us);
    let mut apart = false;
    for port in fds.iter().filter_map(|it| port(it.fd)) {
        apart |= port.exchange_cpu(wait.cpu()) != wait.cpu();
    }
    wait.share(!apart);
    Some(wait)
}

fn is_ready(fd: c_int) -> bool {
    match port(fd) {
        Some(port) => port.ready() == Ready::Yes,
        None => fd >= 0 && epoll::has_ready(fd),
    }
}

/// The answer when the rings alone give it: all that is asked for is whether fast connections can be read or written.
/// What is not there in a ring may have come in the kernel, as the end of a stream does.
fn answer_alone(fds: &mut [pollfd]) -> Option<c_int> {
    let mut count = 0;
    let mut all_ready = true;
    for it in fds.iter_mut() {
        it.revents = 0;
        if it.fd < 0 {
            continue;
        }
        let port = port(it.fd)?;
        let beyond_us = it.events & !(IN | OUT) != 0 || it.events == 0;
        if beyond_us || it.events & OUT != 0 && !port.sends_fast() || port.needs_kernel() {
            return None;
        }
        if it.events & OUT != 0 {
            if port.offers_room() {
                it.revents = it.events & OUT;
            } else {
                all_ready = false;
            }
        }
        if it.events & IN != 0 {
            match port.ready() {
                Ready::Yes => it.revents |= it.events & IN,
                Ready::No => all_ready = false,
                Ready::AskKernel => return None,
            }
        }
        count += c_int::from(it.revents != 0);
    }
    let due = || ticks().wrapping_sub(ASKED.get()) > KERNEL_WHEN_BUSY_US * ticks_per_microsecond();
    (count > 0 && (all_ready || !due())).then_some(count)
}

/// Whether something is left in the ring of a confined end, or of one in a set, for which `it` asks.
fn has_rest(it: &pollfd) -> bool {
    let connection = connection::known(it.fd);
    it.events & IN != 0 && connection.map_or_else(|| epoll::has_rest(it.fd), |connection| connection.has_rest())
}

fn have_rests(fds: &[pollfd]) -> bool {
    confined::has_rests() && fds.iter().any(has_rest)
}

/// The answer when something is left in the rings of a confined process, of which the kernel does not know, with what that says
/// in a `look`: the program's own call, without waiting.
fn answer_confined(fds: &mut [pollfd], look: impl FnOnce(&mut [pollfd]) -> c_int) -> Option<c_int> {
    if !have_rests(fds) {
        return None;
    }
    fds.iter_mut().for_each(|it| it.revents = 0);
    if look(fds) < 0 {
        fds.iter_mut().for_each(|it| it.revents = 0);
    }
    let mut count = 0;
    for it in fds {
        it.revents |= if has_rest(it) { it.events & IN } else { 0 };
        count += c_int::from(it.revents != 0);
    }
    Some(count).filter(|&count| count > 0)
}

/// Asks the kernel, and puts what it says of doorbells right.
fn ask(fds: &mut [pollfd], timeout: Option<timespec>, mask: *const sigset_t) -> c_int {
    ASKED.set(ticks());
    let mut those = [Select::NONE; FEW];
    let answer = if let Some(those) = without_room(fds, &mut those) {
        // Something may wait for room since the caller has looked.
        let brief = timespec { tv_sec: 0, tv_nsec: BRIEFLY_NS as i64 };
        let timeout = timeout.filter(|it| it.tv_sec == 0 && it.tv_nsec < brief.tv_nsec).unwrap_or(brief);
        // SAFETY: as below.
        let answer = unsafe { real::ppoll(those.as_mut_ptr(), those.len() as nfds_t, &timeout, mask) };
        fds.iter_mut().zip(those).for_each(|(it, asked)| it.revents = asked.revents);
        answer
    } else {
        let timeout = timeout.as_ref().map_or(core::ptr::null(), |t| t as *const timespec);
        // SAFETY: the array is valid for its length; the mask is the program's.
        unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout, mask) }
    };
    if answer < 0 {
        return answer;
    }
    let mut count = 0;
    for it in fds.iter_mut() {
        tell_whole(it);
        if it.fd >= 0 && it.events & (IN | libc::POLLRDHUP) != 0 {
            correct(it);
        } else if it.revents & RESET != 0
            && let Some(port) = port(it.fd)
        {
            port.heed_reset();
        }
        if it.revents & RESET != 0 && port(it.fd).is_some_and(|port| port.end.keeps_error()) {
            it.revents |= libc::POLLERR;
        }
        if it.events & OUT != 0
            && let Some(port) = port(it.fd)
        {
            if !port.offers_room() {
                // The kernel means its own.
                it.revents &= !OUT;
            } else if port.sends_fast() {
                it.revents |= it.events & OUT;
            }
        }
        count += c_int::from(it.revents != 0);
    }
    count
}

/// What the kernel is asked for where the program waits for room in a ring: not for its own, which there is. `None` if nothing
/// does, or there is too much to copy: then the kernel is to be asked for all.
fn without_room<'a>(fds: &[pollfd], those: &'a mut [pollfd]) -> Option<&'a mut [pollfd]> {
    if !fds.iter().any(waits_for_room) {
        return None;
    }
    let Some(those) = those.get_mut(..fds.len()) else {
        fds.iter().filter(|it| waits_for_room(it)).filter_map(|it| port(it.fd)).for_each(|it| it.go_down_for_room());
        return None;
    };
    those.copy_from_slice(fds);
    those.iter_mut().filter(|it| waits_for_room(it)).for_each(|it| it.events &= !OUT);
    Some(those)
}

fn correct(it: &mut pollfd) {
    let Some(port) = port(it.fd) else {
        if it.revents & IN != 0 && epoll::is_ours(it.fd) {
            it.revents = epoll::confirm(it.fd, it.events);
        } else if it.revents & IN == 0 && epoll::has_ready(it.fd) {
            it.revents |= it.events & IN;
        }
        return;
    };
    if it.revents & !(libc::POLLOUT | libc::POLLWRNORM) != 0 {
        port.heed_kernel();
    }
    if it.revents & (IN | libc::POLLRDHUP) != 0 && port.reader_is_gone() {
        it.revents = kernel::poll_now(it.fd, it.events);
    }
    if it.revents & RESET != 0 && port.heed_reset() {
        it.revents &= !RESET;
    }
    let over = it.revents & (RESET | libc::POLLRDHUP) != 0;
    if port.ready() == Ready::Yes {
        it.revents |= it.events & IN;
    } else if it.revents & IN != 0 && !over && !port.readable() {
        it.revents &= !IN;
    }
}

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

/// Polls by `plain`, the kernel's own call, if there is nothing else to look at; `look` is the same without waiting.
///
/// # Safety
/// As poll(2), where a bad pointer is an error.
unsafe fn serve(
    fds: *mut pollfd,
    count: nfds_t,
    deadline: Deadline,
    mask: *const sigset_t,
    look: impl FnOnce(&mut [pollfd]) -> c_int,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    if !is_writable(fds, count as usize) {
        // SAFETY: passed on to the caller.
        return unsafe { serve_in_vain(fds, count as usize, plain) };
    }
    // SAFETY: there are `count` entries; the slice is not used across `plain`, which writes there.
    let entries = || unsafe { from_raw_parts_mut(fds, count as usize) };
    test_cancel();
    if let Some(count) = answer_confined(entries(), look) {
        return count;
    }
    if adopt::hastens() {
        entries().iter().filter(|it| it.events & IN != 0).for_each(|it| adopt::hasten(it.fd));
    }
    if !concerns_us(entries()) {
        // SAFETY: passed on to the caller; the kernel writes the answers alone.
        let answer = unsafe { at_rest(fds, count as usize, plain) };
        // A connection may have gone up, by another thread, while this one slept plainly: then the doorbell that woke
        // it is no data yet.
        if answer <= 0 || !concerns_us(entries()) {
            entries().iter_mut().filter(|it| connection::known(it.fd).is_some()).for_each(tell_whole);
            return answer;
        }
    }
    wait(entries(), deadline, mask)
}

/// A single look of the kernel's may fall between the error of a reset and its end. This library's work makes a program that is
/// about to sleep in poll come later, so it would meet that more often.
fn tell_whole(it: &mut pollfd) {
    if kernel::is_half_told(it.events, it.revents) {
        it.revents = kernel::poll_now(it.fd, it.events);
    }
}

/// The same where the answers cannot be written: an error, which the kernel finds. But what it knows of our connections is
/// not all there is to wait for.
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

/// # Safety
/// As poll(2); `room` is the size of the array as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    check_room(count as size_t, room / size_of::<pollfd>());
    // SAFETY: passed on to the caller.
    unsafe { poll(fds, count, timeout) }
}

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
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

/// Who has answered a select.
enum Served {
    /// The kernel's own call.
    Plainly(c_int),
    /// The library; the sets say what is ready.
    Here(c_int),
}

/// So many descriptors of a select have their place on the stack, of which a thread may have little.
const FEW: usize = 64;
/// Descriptors of a select for which memory is kept from one call to the next.
const MANY: usize = libc::FD_SETSIZE;
/// That memory, while no call uses it.
static SPARE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The size of the kernel's table of this process's descriptors, as it was last told; 0: not known.
static TABLE_SIZE: AtomicU32 = AtomicU32::new(0);

/// In a forked child: its table is its own.
pub fn after_fork() {
    TABLE_SIZE.store(0, Relaxed);
}

/// How many bits of its sets the kernel looks at when a program names `count`: as many as its table of descriptors has
/// room for, and some programs rely on that. `None` where it looks at none or refuses the sets, and without /proc. Also
/// whether all sets can be written.
fn looked_at(count: c_int, sets: [*mut u64; 3]) -> Option<(usize, bool)> {
    let count = usize::try_from(count).ok().filter(|&count| count > 0)?;
    let count = if count <= libc::FD_SETSIZE || count <= TABLE_SIZE.load(Relaxed) as usize {
        count
    } else {
        let size = if is_quiet() { None } else { kernel::descriptor_table_size() }?;
        // It only grows.
        TABLE_SIZE.store(size as u32, Relaxed);
        count.min(size)
    };
    let words = count.div_ceil(Select::WORD);
    let mut are_writable = true;
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        if !is_writable(set, words) {
            are_writable = false;
            if !is_readable(set, words) {
                return None;
            }
        }
    }
    Some((count, are_writable))
}

/// Memory for the descriptors of a select, as many as the stack may have no room for.
struct Room {
    at: *mut u8,
    count: usize,
}

impl Room {
    /// For `count` descriptors; `None` without address space.
    fn of(count: usize) -> Option<Room> {
        let count = count.max(MANY);
        let spare = if count == MANY { SPARE.swap(core::ptr::null_mut(), AcqRel) } else { core::ptr::null_mut() };
        let at = if spare.is_null() { reserve(Room::bytes(count)) } else { spare };
        (!at.is_null()).then_some(Room { at, count })
    }

    fn bytes(count: usize) -> usize {
        count * (size_of::<pollfd>() + size_of::<bool>())
    }

    fn give_back(&self) {
        let kept =
            self.count == MANY && SPARE.compare_exchange(core::ptr::null_mut(), self.at, AcqRel, Relaxed).is_ok();
        if !kept {
            // SAFETY: the memory is this value's, and used no more.
            unsafe { release(self.at, Room::bytes(self.count)) };
        }
    }
}

/// A select.
#[derive(Clone, Copy)]
struct Select {
    /// To read, to write, and for urgent data; null: none.
    sets: [*mut u64; 3],
    /// Descriptors below this number are looked at.
    count: usize,
    are_writable: bool,
    deadline: Deadline,
    mask: *const sigset_t,
}

impl Select {
    const WORD: usize = u64::BITS as usize;
    const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

    /// What is asked for of the descriptors of word `index`: a bit for each, by set.
    ///
    /// # Safety
    /// The sets must be null or valid for `count` bits.
    unsafe fn word(&self, index: usize) -> [u64; 3] {
        let left = self.count - index * Select::WORD;
        let looked_at = if left < Select::WORD { (1 << left) - 1 } else { u64::MAX };
        // SAFETY: passed on to the caller.
        self.sets.map(|set| if set.is_null() { 0 } else { looked_at & unsafe { *set.add(index) } })
    }

    fn words(&self) -> usize {
        self.count.div_ceil(Select::WORD)
    }

    /// Calls `what` with every descriptor and the events that are asked for.
    ///
    /// # Safety
    /// As [`Select::word`].
    unsafe fn each(&self, mut what: impl FnMut(c_int, i16)) {
        for index in 0..self.words() {
            // SAFETY: passed on to the caller.
            let [read, write, except] = unsafe { self.word(index) };
            let mut any = read | write | except;
            while any != 0 {
                let bit = any & any.wrapping_neg();
                let events = [(read, IN), (write, OUT), (except, libc::POLLPRI)];
                let events =
                    events.iter().fold(0, |all, (set, events)| if set & bit != 0 { all | events } else { all });
                what((index * Select::WORD) as c_int + bit.trailing_zeros() as c_int, events);
                any ^= bit;
            }
        }
    }

    /// Selects, by `plain`, the kernel's own call, if there is nothing else to look at.
    ///
    /// # Safety
    /// As [`Select::word`].
    unsafe fn serve(self, plain: impl FnOnce() -> c_int) -> Served {
        let mut asked = 0;
        // SAFETY: passed on to the caller, here and below.
        unsafe { self.each(|_, _| asked += 1) };
        if asked == 0 {
            return Served::Plainly(plain());
        }
        if asked <= FEW {
            // SAFETY: as above.
            return unsafe { self.serve_on_stack::<FEW>(asked, plain) };
        }
        let Some(room) = Room::of(asked) else {
            if asked > MANY {
                return Served::Plainly(plain());
            }
            // SAFETY: as above.
            return unsafe { self.serve_on_stack::<MANY>(asked, plain) };
        };
        let call = || {
            // SAFETY: the memory has room for so many of both; zeroed memory is valid.
            let (fds, ours) = unsafe {
                let ours = room.at.add(room.count * size_of::<pollfd>());
                (from_raw_parts_mut(room.at.cast::<pollfd>(), asked), from_raw_parts_mut(ours.cast::<bool>(), asked))
            };
            // SAFETY: as above.
            unsafe { self.serve_with(fds, ours, plain) }
        };
        let served = unless_left(|| room.give_back(), call);
        room.give_back();
        served
    }

    /// # Safety
    /// As [`Select::word`].
    #[inline(never)]
    unsafe fn serve_on_stack<const MOST: usize>(self, asked: usize, plain: impl FnOnce() -> c_int) -> Served {
        let (mut fds, mut ours) = ([Select::NONE; MOST], [false; MOST]);
        // SAFETY: passed on to the caller.
        unsafe { self.serve_with(&mut fds[..asked], &mut ours[..asked], plain) }
    }

    /// # Safety
    /// As [`Select::word`].
    unsafe fn serve_with(self, fds: &mut [pollfd], ours: &mut [bool], plain: impl FnOnce() -> c_int) -> Served {
        let mut found = 0;
        let hastens = adopt::hastens();
        // SAFETY: passed on to the caller, here and below.
        unsafe {
            self.each(|fd, events| {
                if hastens && events & IN != 0 {
                    adopt::hasten(fd);
                }
                // Another thread may add to the sets meanwhile.
                if let (Some(it), Some(ours)) = (fds.get_mut(found), ours.get_mut(found)) {
                    (*it, *ours) = (pollfd { fd, events, revents: 0 }, port(fd).is_some());
                    found += 1;
                }
            });
        }
        // Or take from them: the rest is of another call.
        let fds = &mut fds[..found];
        if answer_confined(fds, |_| 0).is_none() {
            if !concerns_us(fds) {
                // SAFETY: nobody changes them meanwhile.
                let answer = unsafe { at_rest(fds.as_ptr(), fds.len(), plain) };
                if answer <= 0 || !concerns_us(fds) {
                    return Served::Plainly(answer);
                }
            }
            let answer = wait(fds, self.deadline, self.mask);
            if answer < 0 {
                return Served::Here(answer);
            }
        }
        // What another thread has closed meanwhile is ready: the next call will say so.
        if fds.iter().zip(ours).any(|(it, ours)| it.revents & libc::POLLNVAL != 0 && !*ours) {
            errno::set(libc::EBADF);
            return Served::Here(-1);
        }
        if !self.are_writable {
            errno::set(libc::EFAULT);
            return Served::Here(-1);
        }
        // SAFETY: as above.
        Served::Here(unsafe { self.write(fds) })
    }

    /// Writes the answer; returns how many bits are set.
    ///
    /// # Safety
    /// As [`Select::word`].
    unsafe fn write(&self, fds: &[pollfd]) -> c_int {
        const READABLE: i16 = IN | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        const WRITABLE: i16 = OUT | libc::POLLERR | libc::POLLNVAL;
        let mut bits = 0;
        let answers = [(IN, READABLE), (OUT, WRITABLE), (libc::POLLPRI, libc::POLLPRI)];
        for (&set, (asked, answers)) in self.sets.iter().zip(answers).filter(|(set, _)| !set.is_null()) {
            // SAFETY: the caller vouches for so many bits; each descriptor is below.
            unsafe {
                set.write_bytes(0, self.words());
                for it in fds.iter().filter(|it| it.events & asked != 0 && it.revents & answers != 0) {
                    *set.add(it.fd as usize / Select::WORD) |= 1 << (it.fd as usize % Select::WORD);
                    bits += 1;
                }
            }
        }
        bits
    }
}

/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { select_by(count, read, write, except, timeout, || real::select(count, read, write, except, timeout)) }
}

/// select(2), by `plain`, the kernel's own call, if there is nothing else to look at.
///
/// # Safety
/// As select(2).
pub unsafe fn select_by(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe {
        let invalid = |t: timeval| t.tv_sec < 0 || t.tv_usec < 0;
        let sets = [read.cast(), write.cast(), except.cast()];
        let Some((looked_at, are_writable)) = looked_at(count, sets) else { return plain() };
        let is_time_fixed = !timeout.is_null() && !is_writable(timeout, 1);
        if is_time_fixed && !is_readable(timeout, 1) || !timeout.is_null() && invalid(*timeout) {
            return plain();
        }
        let deadline = (!timeout.is_null()).then(|| {
            let t = *timeout;
            clock::nanoseconds()
                .saturating_add((t.tv_sec as u64).saturating_mul(1_000_000_000))
                .saturating_add(t.tv_usec as u64 * 1000)
        });
        test_cancel();
        let select = Select { sets, count: looked_at, are_writable, deadline, mask: core::ptr::null() };
        match select.serve(plain) {
            Served::Plainly(answer) => answer,
            Served::Here(answer) => {
                // The kernel leaves alone what cannot be written.
                if let Some(left) = left(deadline, u64::MAX).filter(|_| !is_time_fixed) {
                    *timeout = timeval { tv_sec: left.tv_sec, tv_usec: left.tv_nsec / 1000 };
                }
                answer
            }
        }
    }
}

/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { select(count, read, write, except, timeout) }
}

/// # Safety
/// As pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe {
        let plain = || real::pselect(count, read, write, except, timeout, mask);
        let sets = [read.cast(), write.cast(), except.cast()];
        let is_good = !invalid(timeout) && is_mask_readable(mask);
        let Some((count, are_writable)) = looked_at(count, sets).filter(|_| is_good) else { return plain() };
        test_cancel();
        match (Select { sets, count, are_writable, deadline: after(timeout), mask }).serve(plain) {
            Served::Plainly(answer) | Served::Here(answer) => answer,
        }
    }
}

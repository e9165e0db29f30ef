//! What a poll or a select waits for: connections, epoll sets that have connections, and the kernel's other
//! descriptors.

use super::epoll;
use crate::connection::lines::{self, Owner};
use crate::connection::{self, Connection, confined};
use crate::guest::cancellation::{self, unless_left};
use crate::guest::deadline::{AT_ONCE, Deadline, left, let_signals_in};
use crate::guest::{errno, real, statistics, table};
use core::ffi::c_int;
use libc::{nfds_t, pollfd, sigset_t, timespec};
use underpass_segment::clock::{self, ticks, ticks_per_microsecond};
use underpass_segment::end::End;
use underpass_segment::raw::is_quiet;
use underpass_segment::switch::{Dozed, Port, Ready, Sleep};
use underpass_segment::sync::Relaxed;
use underpass_segment::wait::{Polled, Wait};
use underpass_segment::words::ALONE;
use underpass_segment::{kernel, of_each_thread, tap};

/// Something to read.
pub const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
/// Room to write.
pub const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// The events that report a reset.
const RESET: i16 = libc::POLLHUP | libc::POLLERR;
/// While polling, the kernel's own descriptors are looked at this often.
const KERNEL_EVERY_US: u64 = 4;
/// A thread whose polls the rings can always answer asks the kernel this often for what only the kernel knows.
const KERNEL_WHEN_BUSY_US: u64 = 50;
/// Where another thread may take the doorbell, a sleep lasts no longer.
const BRIEFLY_NS: u64 = 10_000_000;

/// How many descriptors are copied to the stack, which may be small.
pub const FEW: usize = 64;
/// No descriptor.
pub const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

of_each_thread! {
    /// When a poll of this thread last asked the kernel, in ticks.
    static ASKED: u64 = 0;
}

/// What a descriptor in a poll is to the library.
pub fn port(fd: c_int) -> Option<Port<'static>> {
    connection::named(fd)?.ready_port()
}

/// A program waits only for room in a ring, and will be told of it. So from now on a send that does not block may
/// return EAGAIN. Without this, polls would not notice a connection by which the program only sends.
pub fn mind_room(fds: &[pollfd]) {
    let is_minded = |end: &End| end.is_watched() && end.read_gate.is_shut();
    for it in fds.iter().filter(|it| it.events & IN == 0 && it.events & OUT != 0) {
        if let Some(connection) = connection::named(it.fd)
            && !is_minded(connection.end)
            && let Some(port) = connection.joined_port()
            && port.sends_fast()
            && port.become_ready()
        {
            connection.end.sending.only_sends.store(1, Relaxed);
            epoll::watch_by_poll(connection);
        }
    }
}

pub fn concerns_us(fds: &[pollfd]) -> bool {
    // In a confined process the kernel reports what a set has, and only the program's own call may be made.
    let is_set = |fd| !is_quiet() && epoll::is_ours(fd);
    fds.iter().any(|it| it.fd >= 0 && (port(it.fd).is_some() || is_set(it.fd)))
}

/// poll over `fds`, sleeping in ppoll with `mask`; `of` finds out whether a descriptor is a connection.
pub fn wait(
    fds: &mut [pollfd],
    deadline: Deadline,
    mask: *const sigset_t,
    of: impl Fn(c_int) -> Option<Connection>,
) -> c_int {
    let mut began: Option<Option<Wait>> = None;
    let mut slept = false;
    let mut polled_enough = false;
    loop {
        // A filter may have come while this thread slept.
        if let Some(count) = answer_confined(fds, |_| 0) {
            return count;
        }
        if let Some(count) = answer_alone(fds, deadline) {
            end_wait(fds, began.flatten(), slept);
            return count;
        }
        let count = ask(fds, Some(AT_ONCE), core::ptr::null());
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
            // A thread that waits for room leaves the processor to the reader that makes it.
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
            at_rest(fds.as_ptr(), fds.len(), &of, || {
                let mut longest = u64::MAX;
                // After this thread was counted among the sleepers.
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
                statistics::count_poll_sleep();
                ask(fds, left(deadline, longest), mask)
            })
        };
        if count != 0 {
            end_wait(fds, began.flatten(), slept);
            return count;
        }
    }
}

/// Dozes, if the poll waits only for data of a single connection.
fn doze(fds: &[pollfd], deadline: Deadline, mask: *const sigset_t) -> Dozed {
    let mut asked = fds.iter().filter(|it| it.fd >= 0);
    let (Some(it), None) = (asked.next(), asked.next()) else { return Dozed::Over };
    // A mask holds during the sleep only, which is poll's own work.
    if !mask.is_null() || it.events & OUT != 0 || it.events & IN == 0 {
        return Dozed::Over;
    }
    let Some(connection) = connection::named(it.fd) else { return Dozed::Over };
    let Some(port) = connection.ready_port() else { return Dozed::Over };
    // If the connection is closed meanwhile, it is kept until this returns.
    let inside = connection.inside();
    inside.during(|| {}, || port.doze_in_poll(deadline, |call| cancellation::cancellable(|| {}, call)))
}

/// Calls `sleep`, in which this thread sleeps in the kernel. The thread is woken even if another thread takes what
/// arrives.
///
/// # Safety
/// There must be `count` entries, of which nobody changes more than the answers meanwhile.
pub unsafe fn at_rest<T>(
    fds: *const pollfd,
    count: usize,
    of: impl Fn(c_int) -> Option<Connection>,
    sleep: impl FnOnce() -> T,
) -> T {
    // SAFETY: passed on to the caller; no reference to an answer is made.
    let entry = |at| unsafe { ((*fds.add(at)).events, (*fds.add(at)).fd) };
    let read = || (0..count).map(entry).filter(|(events, _)| events & IN != 0).map(|(_, fd)| fd);
    tap::let_go();
    read().for_each(epoll::fall_asleep);
    for connection in read().filter_map(of) {
        epoll::watch_by_poll(connection);
    }
    // The number may be another connection's before this thread is awake again.
    let event = table::last_event();
    let those = || read().filter_map(connection::known).filter(|it| it.is_as_of(event));
    let wake_up = || {
        those().for_each(|connection| connection.end.reading.resting.remove());
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
        // The FIN of an end that is killed with data unread does not wake a poll without POLLRDHUP.
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

/// The answer where the rings alone can give it: the poll asks only whether fast connections can be read or written,
/// and the rings say yes. What is not in a ring may have come in the kernel, such as the end of a stream. If the poll
/// would wait, the program waits by polls: its next read that finds nothing asks for no doorbell.
fn answer_alone(fds: &mut [pollfd], deadline: Deadline) -> Option<c_int> {
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
            let would_wait = || deadline.is_none_or(|at| at > clock::nanoseconds());
            if port.end.is_watched_unseen() && would_wait() {
                epoll::watch_by_poll(connection::named(it.fd)?);
            }
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

/// Whether something for which `it` asks is left in the ring of a confined end, or of a confined end in a set.
fn has_rest(it: &pollfd) -> bool {
    let connection = connection::named(it.fd);
    it.events & IN != 0 && connection.map_or_else(|| epoll::has_rest(it.fd), |connection| connection.has_rest())
}

fn have_rests(fds: &[pollfd]) -> bool {
    confined::has_rests() && fds.iter().any(has_rest)
}

/// The answer when something is left in the rings of a confined process, of which the kernel does not know, together
/// with the kernel's answer to `look`: the program's own call, without waiting.
pub fn answer_confined(fds: &mut [pollfd], look: impl Fn(&mut [pollfd]) -> c_int) -> Option<c_int> {
    if !have_rests(fds) {
        return None;
    }
    fds.iter_mut().for_each(|it| it.revents = 0);
    // Where the filter was refused, other connections may be fast.
    let answer = if is_quiet() { look(fds) } else { ask(fds, Some(AT_ONCE), core::ptr::null()) };
    if answer < 0 {
        fds.iter_mut().for_each(|it| it.revents = 0);
    }
    let mut count = 0;
    for it in fds {
        it.revents |= if has_rest(it) { it.events & IN } else { 0 };
        count += c_int::from(it.revents != 0);
    }
    Some(count).filter(|&count| count > 0)
}

/// Polls by `plain`, once, with this thread counted among the sleepers; not if a filter has come meanwhile, and
/// something is left in rings.
pub fn unless_rests(fds: &[pollfd], plain: &mut Option<impl FnOnce() -> c_int>) -> Option<c_int> {
    if have_rests(fds) { None } else { plain.take().map(|plain| plain()) }
}

/// Asks the kernel, and corrects its answer where that means doorbells.
fn ask(fds: &mut [pollfd], timeout: Option<timespec>, mask: *const sigset_t) -> c_int {
    ASKED.set(ticks());
    let mut those = [NONE; FEW];
    let answer = if let Some(those) = without_room(fds, &mut those) {
        // Something may wait for room since the caller has looked.
        let brief = timespec { tv_sec: 0, tv_nsec: BRIEFLY_NS as i64 };
        let timeout = timeout.filter(|it| it.tv_sec == 0 && it.tv_nsec < brief.tv_nsec).unwrap_or(brief);
        // SAFETY: as below.
        let answer = unsafe { real::ppoll(those.as_mut_ptr(), those.len() as nfds_t, &timeout, mask) };
        fds.iter_mut().zip(those).for_each(|(it, asked)| it.revents = asked.revents);
        answer
    } else if has_remote(fds, timeout) {
        ask_beside_line(fds, timeout, mask)
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
            port.judge_reset();
        }
        if it.revents & RESET != 0 && port(it.fd).is_some_and(|port| port.end.keeps_error()) {
            it.revents |= libc::POLLERR;
        }
        if it.events & OUT != 0
            && let Some(port) = port(it.fd)
        {
            if !port.offers_room() {
                // The kernel means room in its own buffers.
                it.revents &= !OUT;
            } else if port.sends_fast() {
                it.revents |= it.events & OUT;
            }
        }
        count += c_int::from(it.revents != 0);
    }
    count
}

/// The streams to other hosts on which a poll sleeps.
fn remote(fds: &[pollfd]) -> impl Iterator<Item = Port<'static>> {
    fds.iter().filter(|it| it.events & IN != 0).filter_map(|it| port(it.fd)).filter(|port| port.end.is_remote())
}

/// Whether a poll sleeps on streams to other hosts.
fn has_remote(fds: &[pollfd], timeout: Option<timespec>) -> bool {
    let sleeps = timeout.is_none_or(|it| it.tv_sec != 0 || it.tv_nsec != 0);
    sleeps && lines::has_remote() && remote(fds).next().is_some()
}

/// Asks the kernel, beside this thread's line. Without room for it the poll looks again after a while.
fn ask_beside_line(fds: &mut [pollfd], timeout: Option<timespec>, mask: *const sigset_t) -> c_int {
    let mut those = [NONE; FEW + 1];
    let line = if fds.len() <= FEW { lines::of(Owner::thread()) } else { None };
    // Each has to know the line.
    let is_rung = remote(fds).fold(false, |is_rung, port| is_rung | !lines::be_rung(Owner::thread(), &port));
    let longest = match (is_rung, line) {
        (true, _) => 1_000_000,
        (false, Some(_)) => lines::LONGEST_NS,
        (false, None) => lines::BRIEFLY_NS,
    };
    let ns = |it: timespec| it.tv_sec as u64 * 1_000_000_000 + it.tv_nsec as u64;
    let timeout = timeout.filter(|it| ns(*it) < longest).unwrap_or(timespec { tv_sec: 0, tv_nsec: longest as i64 });
    let Some(line) = line else {
        // SAFETY: the array is valid for its length; the mask is the program's.
        return unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, &timeout, mask) };
    };
    those[..fds.len()].copy_from_slice(fds);
    those[fds.len()] = pollfd { fd: line.fd().unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    // SAFETY: as above.
    let answer = unsafe { real::ppoll(those.as_mut_ptr(), fds.len() as nfds_t + 1, &timeout, mask) };
    if answer >= 0 {
        fds.iter_mut().zip(&those).for_each(|(it, asked)| it.revents = asked.revents);
        if those[fds.len()].revents != 0 {
            lines::hear(line);
        }
    }
    answer
}

/// What the kernel is asked for where the program waits for room in a ring: not for the kernel's own room, of which
/// there is enough. `None` if nothing waits for room, or there are too many descriptors to copy: then the kernel is
/// asked for everything.
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
    let bells = port.bells_of_all_times();
    if it.revents & !(libc::POLLOUT | libc::POLLWRNORM) != 0 {
        port.ask_kernel_next();
    }
    if it.revents & (IN | libc::POLLRDHUP) != 0 && port.reader_is_gone() {
        it.revents = kernel::poll_now(it.fd, it.events);
    }
    if it.revents & RESET != 0 && port.judge_reset() {
        it.revents &= !RESET;
    }
    let over = it.revents & (RESET | libc::POLLRDHUP) != 0;
    if port.ready() == Ready::Yes {
        it.revents |= it.events & IN;
    } else if it.revents & IN != 0 && !over && !port.is_readable_as_told(bells) {
        it.revents &= !IN;
    }
}

/// A single look of the kernel's may fall between the error of a reset and its end. This library's work makes a program
/// that is about to sleep in poll come later, so it would meet that more often.
pub fn tell_whole(it: &mut pollfd) {
    if kernel::is_half_told(it.events, it.revents) {
        it.revents = kernel::poll_now(it.fd, it.events);
    }
}

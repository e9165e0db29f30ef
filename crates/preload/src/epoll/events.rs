//! What is told to the program: news of the active sockets, and what the kernel's events mean.

use super::control::{register, settle, tell};
use super::sleep::{rest, wake_up};
use super::{EDGE, IN, ONCE, OUT, OVER, port};
use crate::connection;
use crate::set::{Item, Scan, Set, WithData};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::clock::{ticks, ticks_per_microsecond};
use underpass_segment::kernel;
use underpass_segment::switch::{Port, Ready, Sleep, Told};
use underpass_segment::sync::Relaxed;

/// A connection without news for so long is left to the kernel.
const QUIET_AFTER_US: u64 = 1000;
/// A set that never sleeps tells the kernel so late of changed registrations. Until then the kernel may know nothing of
/// what only it can report, such as the end of a stream.
const TELL_AFTER_US: u64 = 10_000;

/// Whether a fast connection is to be reported for its room: again and again, if it is level-triggered.
pub(super) fn writable(port: &Port<'_>, item: &Item) -> bool {
    item.wants(OUT) && item.events & (EDGE | ONCE) == 0 && port.sends_fast()
}

/// What `item` has been told of from now on, if there is any data in the ring of which it has not been (or,
/// level-triggered, any at all).
pub(super) fn news(port: &Port<'_>, item: &Item) -> Option<Told> {
    match port.ready() {
        Ready::Yes if item.events & EDGE == 0 => Some(Told::default()),
        // Behind what is left in the kernel there may be more in the ring, which the kernel does not know of.
        Ready::Yes | Ready::AskKernel if item.events & EDGE != 0 => port.newer(item.told),
        _ => None,
    }
}

pub(super) struct Events {
    pub(super) at: *mut epoll_event,
    pub(super) most: usize,
    pub(super) count: usize,
    /// The kernel has news of a socket whose turn it is not yet.
    pub(super) put_off: bool,
}

impl Events {
    /// Adds to what is told of `data` already: the kernel tells nothing of a registration twice in one answer, and who has
    /// handled an event may have removed the socket before he comes to another.
    fn push(&mut self, events: u32, data: u64) -> bool {
        for index in 0..self.count {
            // SAFETY: below `count`.
            let earlier = unsafe { &mut *self.at.add(index) };
            if earlier.u64 == data {
                earlier.events |= events;
                return true;
            }
        }
        if self.count == self.most {
            return false;
        }
        // SAFETY: the program's array has room for `most`.
        unsafe { self.at.add(self.count).write_unaligned(epoll_event { events, u64: data }) };
        self.count += 1;
        true
    }
}

/// Reports the active sockets that have news.
pub(super) fn collect(epfd: c_int, set: &Set, events: &mut Events) {
    let now = ticks();
    let quiet_after = QUIET_AFTER_US * ticks_per_microsecond();
    let tell_after = TELL_AFTER_US * ticks_per_microsecond();
    let mut late = false;
    set.answer_bells();
    set.scan_in_turn(|fd, item, joining| {
        late |= item.is_stale_for(tell_after, now);
        if events.count == events.most {
            return Scan::Enough;
        }
        let Some(port) = port(fd) else { return Scan::Leave };
        wake_up(item, port.end);
        if !item.wants(IN | OUT) {
            return Scan::Leave;
        }
        if writable(&port, item) {
            events.push(item.events & OUT, item.data);
            item.set_last_news(now);
        }
        if !item.wants(IN) {
            return Scan::Keep;
        }
        match news(&port, item) {
            Some(told) => {
                let room = item.events & OUT == 0
                    || port.sends_fast()
                    || kernel::poll_now(fd, libc::POLLOUT) & libc::POLLOUT != 0;
                let writable = if item.events & OUT != 0 && room { item.events & OUT } else { 0 };
                events.push(item.events & IN | writable | ended(&port, item), item.data);
                item.set_told(told);
                item.set_last_news(now);
                if item.events & ONCE == 0 {
                    return Scan::Keep;
                }
                // Used up: in the kernel as well.
                item.set_disarmed(true);
                register(epfd, fd, ONCE | item.events & EDGE, item.data);
                Scan::Leave
            }
            None if now.wrapping_sub(item.last_news) > quiet_after
                && rest(set, item, joining, &port, false) == Sleep::Yes =>
            {
                Scan::Leave
            }
            None => Scan::Keep,
        }
    });
    if late {
        settle(epfd, set);
    }
}

/// A one-shot event has to say everything at once.
fn ended(port: &Port<'_>, item: &Item) -> u32 {
    if item.events & ONCE == 0 {
        return 0;
    }
    let asked = if item.events & libc::EPOLLRDHUP as u32 != 0 { libc::POLLRDHUP } else { 0 };
    kernel::poll_now(port.fd, asked) as u16 as u32 & OVER
}

/// Asks the kernel through `call` and puts what it says of fast connections right. -1 with errno set, or 0.
pub(super) fn ask(
    epfd: c_int,
    set: &Set,
    events: &mut Events,
    call: impl FnOnce(*mut epoll_event, c_int) -> c_int,
) -> c_int {
    let room = events.most - events.count;
    if room == 0 {
        return 0;
    }
    // SAFETY: `count` is at most `most`.
    let from = unsafe { events.at.add(events.count) };
    let changes = set.changes();
    let answer = call(from, room.min(c_int::MAX as usize) as c_int);
    if answer < 0 {
        return answer;
    }
    for index in 0..answer as usize {
        // SAFETY: the kernel has written `answer` events from `from` on; `push` writes behind none that is not read.
        let event = unsafe { from.add(index).read_unaligned() };
        let (mask, data) = (event.events, event.u64);
        match truth(epfd, set, changes, mask, data) {
            Truth::Nothing => {}
            Truth::PutOff => events.put_off = true,
            Truth::Events(mask) => {
                events.push(mask, data);
            }
        }
    }
    0
}

/// What an event of the kernel's means for the program.
enum Truth {
    Nothing,
    Events(u32),
    /// There is data in the ring: told when its turn comes among the active sockets.
    PutOff,
}

impl From<u32> for Truth {
    fn from(mask: u32) -> Truth {
        if mask == 0 { Truth::Nothing } else { Truth::Events(mask) }
    }
}

/// What the kernel's event `mask` of what is registered with `data` means; `changes` is of before the kernel was asked.
fn truth(epfd: c_int, set: &Set, changes: u32, mask: u32, data: u64) -> Truth {
    let mut fds = [0; 16];
    match set.with_data(data, &mut fds) {
        WithData::Sockets(1) => truth_of(epfd, set, fds[0], mask, set.changes() != changes),
        WithData::Sockets(count) => match fds.get(..count) {
            Some(fds) => truth_of_several(epfd, set, fds, mask),
            None => {
                set.activate_with(data);
                Truth::from(mask)
            }
        },
        // Another thread has been told of the same in user space, and has closed the socket since.
        WithData::Closed => Truth::Nothing,
        WithData::Unknown => Truth::from(mask),
    }
}

/// The event is of one of `fds`, which are registered with the same data: what each would say to it, together.
fn truth_of_several(epfd: c_int, set: &Set, fds: &[c_int], mask: u32) -> Truth {
    let (mut all, mut put_off) = (0, false);
    for &fd in fds {
        match truth_of(epfd, set, fd, mask, true) {
            Truth::Nothing => {}
            Truth::Events(mask) => all |= mask,
            Truth::PutOff => put_off = true,
        }
    }
    if all == 0 && put_off { Truth::PutOff } else { Truth::from(all) }
}

/// What the kernel's event `mask` of `fd` means; registrations may have `changed` since the kernel was asked.
fn truth_of(epfd: c_int, set: &Set, fd: c_int, mask: u32, changed: bool) -> Truth {
    let mut truth = Truth::Nothing;
    let mut gone = false;
    // Under the set's lock, without which nobody lets go of the socket.
    set.look_at(fd, |item| {
        gone = item.is_gone();
        // The kernel may know an older registration.
        let mask = mask & (item.events | OVER | if item.kicked { OUT } else { 0 });
        // Disarmed: another thread has used it up.
        if mask == 0 || item.is_disarmed() || gone {
            return false;
        }
        let (said, activate) = judge(epfd, fd, item, mask);
        truth = match said {
            Truth::Events(told) if item.events & ONCE != 0 => claim(epfd, fd, item, told, changed).into(),
            Truth::Nothing if item.events & ONCE != 0 => claim(epfd, fd, item, 0, changed).into(),
            said => said,
        };
        activate
    });
    if gone {
        // The kernel reports ends and errors whatever it was asked for, again and again until it is told.
        set.tell(fd, |change| tell(epfd, fd, change));
    }
    truth
}

/// What the kernel's event `mask` of `fd` means, and whether the set has to look at it itself from now on.
fn judge(epfd: c_int, fd: c_int, item: &mut Item, mut mask: u32) -> (Truth, bool) {
    if item.kicked {
        mask &= !OUT | item.events;
        item.set_kicked(false);
        if item.events & ONCE == 0 {
            register(epfd, fd, item.events, item.data);
        }
    }
    let Some(port) = port(fd) else { return (Truth::from(mask), false) };
    wake_up(item, port.end);
    if mask & (IN | OVER) != 0 {
        port.heed_kernel();
        if port.reader_is_gone() {
            mask |= kernel::poll_now(fd, item.events as i16) as u16 as u32;
        }
    }
    const RESET: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
    // Without another event the program would not be told at all.
    if mask & RESET != 0 && mask & !RESET != 0 && port.is_false_reset() {
        mask &= !RESET;
    }
    if mask & !IN == 0 && item.wants(IN) && item.events & (EDGE | ONCE) == 0 && port.ready() == Ready::Yes {
        return (Truth::PutOff, true);
    }
    if !item.wants(IN) {
        return (Truth::from(mask), false);
    }
    // Before anything else is looked at: what comes later is told later.
    let news = news(&port, item);
    let readable = if mask & OVER != 0 { mask & IN != 0 || port.ready() == Ready::Yes } else { port.readable() };
    let known = item.events & EDGE != 0
        && mask & OVER == 0
        && news.is_none()
        && port.ready() == Ready::Yes
        && port.is_all_in_ring();
    // Of data it has been told; of the end of the stream perhaps not.
    let stale = known && kernel::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0;
    if readable && !stale {
        mask |= item.events & IN;
    } else if item.events & EDGE != 0 && mask & IN != 0 && mask & OVER == 0 && !refused(fd) {
        // The edge was the doorbell's; that the socket is writable as well is no news.
        mask = 0;
    } else {
        mask &= !IN;
    }
    if mask & OUT != 0 {
        set_refused(fd, false);
    }
    if let Some(told) = news.filter(|_| mask & IN != 0) {
        item.set_told(told);
    }
    item.set_last_news(ticks());
    // What is armed stays armed for whoever sleeps natively; here it is active again.
    (Truth::from(mask), true)
}

/// Uses up a one-shot registration for the event `mask`; what is left of the event if registrations have `changed` since
/// the kernel was asked: it may be of the registration before, even of another connection that had the number.
fn claim(epfd: c_int, fd: c_int, item: &mut Item, mask: u32, changed: bool) -> u32 {
    let true_now = if changed { kernel::poll_now(fd, item.events as i16) as u16 as u32 | mask & IN } else { mask };
    let claimed = mask & true_now & (item.events | OVER);
    if claimed == 0 {
        // The kernel believes that it has fired.
        register(epfd, fd, item.events, item.data);
        return 0;
    }
    item.set_disarmed(true);
    if changed {
        // Then the kernel's is armed again.
        register(epfd, fd, ONCE | item.events & EDGE, item.data);
    }
    claimed
}

/// Whether a send was refused for want of room since the program was last told of room.
fn refused(fd: c_int) -> bool {
    connection::known(fd).is_some_and(|connection| connection.end.refused.load(Relaxed) != 0)
}

fn set_refused(fd: c_int, refused: bool) {
    if let Some(connection) = connection::known(fd) {
        connection.end.refused.store(refused.into(), Relaxed);
    }
}

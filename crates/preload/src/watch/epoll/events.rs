//! The events that the program gets: news of the active sockets, and what the kernel's events mean.

use super::line;
use super::news::{ended, news, over_now, without_false_reset};
use super::register::{register, silence, tell_all, tell_change};
use super::rests;
use super::room::{Found, is_about_the_kernel, look_anew};
use super::sleep::{confirm, rest};
use super::{EDGE, IN, ONCE, OUT, OVER, UNASKED, has_room, port, set_of};
use crate::connection::{self, confined};
use crate::watch::set::{Item, Registered, Room, Scan, Set, WithData};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::clock::{ticks, ticks_per_microsecond};
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;
use underpass_segment::switch::{Port, Ready, Sleep};
use underpass_segment::sync::Relaxed;

/// A connection without news for this long is left to the kernel.
const QUIET_AFTER_US: u64 = 1000;
/// A set that never sleeps tells the kernel this late of changed registrations. Until then the kernel may not be asked
/// for what only it can report, such as the end of a stream.
const TELL_AFTER_US: u64 = 10_000;

/// The events that the program gets.
pub(super) struct Events {
    pub(super) at: *mut epoll_event,
    pub(super) most: usize,
    pub(super) count: usize,
    /// The kernel has reported a socket that waits for its turn.
    pub(super) put_off: bool,
    /// This is the last look of the call: it has to ask the kernel for what only the kernel knows.
    pub(super) last_look: bool,
    /// Only the kernel knows what is true of a level-triggered active socket. It is asked at the last look.
    pub(super) in_doubt: bool,
    /// How many events may be written by now: behind them lie events of the kernel's that are not read yet.
    room: usize,
    /// The descriptors of the first events; -1: not known.
    fds: [c_int; 64],
}

impl Events {
    /// No events yet, with room for `most` at `at`.
    pub(super) fn new(at: *mut epoll_event, most: usize) -> Events {
        Events { at, most, count: 0, put_off: false, last_look: false, in_doubt: false, room: most, fds: [-1; 64] }
    }

    /// Adds to what is reported of `fd` already: the kernel reports a registration once in an answer, and a program
    /// that has handled an event may have removed the socket before it comes to a second one.
    #[inline(always)]
    pub(super) fn push(&mut self, fd: c_int, events: u32, data: u64) {
        // Without room it is added to an event with the same data, if there is one.
        let full = self.count == self.room;
        for index in 0..self.count {
            // SAFETY: below `count`.
            let earlier = unsafe { &mut *self.at.add(index) };
            let same = full || self.fds.get(index).is_none_or(|&it| it == fd && fd >= 0);
            if earlier.u64 == data && same {
                earlier.events |= events;
                return;
            }
        }
        if full {
            return;
        }
        // SAFETY: the program's array has room for `most`.
        unsafe { self.at.add(self.count).write_unaligned(epoll_event { events, u64: data }) };
        if let Some(place) = self.fds.get_mut(self.count) {
            *place = fd;
        }
        self.count += 1;
    }
}

/// The kernel reports a socket at once for all its registered descriptors. Where the library looks at some of them
/// itself, the doorbell for the other registrations may not have arrived yet.
pub(super) fn tell_twins(epfd: c_int, set: &Set, events: &mut Events) {
    set.activate_if(|fd, item| item.wants(IN) && port(fd).is_some_and(|port| news(&port, item).is_some()));
    collect(epfd, set, events);
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
        item.wake_up(port.end);
        if !item.wants(IN | OUT) {
            return Scan::Leave;
        }
        let room = look_anew(epfd, fd, &port, item);
        if room == Found::Room {
            let beside =
                if item.events & EDGE == 0 { known_to_kernel(set, fd, &port, item) } else { beside_edge(&port, item) };
            events.push(fd, item.events & OUT | beside, item.data);
            item.set_owes_room(false);
            item.set_last_news(now);
        } else if events.last_look && item.events & EDGE == 0 {
            events.in_doubt |= item.wants(OUT) || port.needs_kernel();
        }
        if !item.wants(IN) {
            return Scan::Keep;
        }
        match news(&port, item) {
            Some(told) => {
                let writable = if item.events & OUT != 0 && has_room(&port) { item.events & OUT } else { 0 };
                item.set_owes_room(item.owes_room() && writable == 0);
                events.push(fd, item.events & IN | writable | ended(&port, item), item.data);
                item.set_told(told);
                item.set_last_news(now);
                if item.is_kicked() {
                    calm(epfd, fd, item);
                }
                if item.events & ONCE == 0 {
                    return Scan::Keep;
                }
                // A one-shot registration is used up in the kernel as well.
                use_up(item, Some(&port));
                register(epfd, fd, ONCE | item.events & EDGE, item.data);
                Scan::Leave
            }
            None if now.wrapping_sub(item.last_news) > quiet_after
                && room != Found::None
                && rest(set, item, joining, &port, false) == Sleep::Yes =>
            {
                Scan::Leave
            }
            None => Scan::Keep,
        }
    });
    if late {
        tell_all(epfd, set);
    }
}

/// What is true of a level-triggered registration besides room, where the ring may not show it.
#[inline]
fn known_to_kernel(set: &Set, fd: c_int, port: &Port<'_>, item: &mut Item) -> u32 {
    let in_doubt = if item.wants(IN) { port.needs_kernel() } else { port.may_have_ended() };
    if !in_doubt {
        return 0;
    }
    match judge(set, fd, item, kernel::poll_now(fd, item.events as i16) as u16 as u32).0 {
        Truth::Events(mask) => mask,
        // The caller reports what is in the ring.
        Truth::Nothing | Truth::PutOff => 0,
    }
}

/// What is true of an edge-triggered registration besides room: one edge reports everything.
#[inline]
fn beside_edge(port: &Port<'_>, item: &Item) -> u32 {
    let over = if port.may_have_ended() { over_now(port, libc::POLLRDHUP) } else { 0 };
    let readable = over != 0 || port.ready() == Ready::Yes;
    (if readable { item.events & IN } else { 0 }) | over & (item.events | UNASKED)
}

/// Whether a changed registration, of which the kernel has an older version, asks for something that only the kernel
/// can report.
fn is_kernel_concerned(set: &Set) -> bool {
    let mut concerned = false;
    set.scan(|fd, item, _| {
        concerned |= item.is_stale_for(0, ticks())
            && port(fd)
                .is_none_or(|port| item.wants(IN) && port.needs_kernel() || item.wants(OUT) && !port.sends_fast());
        if concerned { Scan::Enough } else { Scan::Keep }
    });
    concerned
}

/// Asks the kernel through `call`, and corrects its events of fast connections. -1 with errno set, or 0.
pub(super) fn ask(
    epfd: c_int,
    set: &Set,
    events: &mut Events,
    call: impl FnOnce(*mut epoll_event, c_int) -> c_int,
) -> c_int {
    let first = events.count;
    let room = events.most - first;
    if room == 0 {
        return 0;
    }
    // SAFETY: `count` is at most `most`.
    let from = unsafe { events.at.add(events.count) };
    if set.is_stale() && is_kernel_concerned(set) {
        tell_all(epfd, set);
    }
    let before = set.changes();
    let answer = call(from, room.min(c_int::MAX as usize) as c_int);
    if answer < 0 {
        return answer;
    }
    tell_each(epfd, set, events, Some(before), answer as usize);
    0
}

/// Corrects `count` events that the kernel has just written behind those of `events`. `before` is how often
/// registrations had changed before the kernel was asked, if the library's set existed.
pub(super) fn tell_each(epfd: c_int, set: &Set, events: &mut Events, before: Option<u32>, count: usize) {
    let first = events.count;
    // SAFETY: `first` is at most `most`.
    let from = unsafe { events.at.add(first) };
    for index in 0..count {
        // SAFETY: the kernel has written `count` events from `from` on; `push` writes behind none that is not read.
        let event = unsafe { from.add(index).read_unaligned() };
        events.room = first + index + 1;
        tell_truth(epfd, set, before, (event.events, event.u64), events);
    }
    events.room = events.most;
}

/// What an event of the kernel's means for the program.
enum Truth {
    Nothing,
    Events(u32),
    /// Data is in the ring: the event is reported when the socket's turn comes among the active ones.
    PutOff,
}

impl From<u32> for Truth {
    fn from(mask: u32) -> Truth {
        if mask == 0 { Truth::Nothing } else { Truth::Events(mask) }
    }
}

/// Reports what the kernel's event `mask` for `data` means; `before` as in [`tell_each`].
fn tell_truth(epfd: c_int, set: &Set, before: Option<u32>, (mask, data): (u32, u64), events: &mut Events) {
    if data == set.alarm_data() {
        return silence(epfd, set);
    }
    if data == set.line_data() {
        line::hear(epfd, set);
        events.put_off = true;
        return;
    }
    if let Some(truth) = rests::truth(epfd, mask, data) {
        if truth != 0 {
            events.push(-1, truth, data);
        }
        return;
    }
    let has_changed = || before != Some(set.changes());
    let mut found = [Registered::default(); 16];
    let mut answer = set.with_data(data, 0, &mut found);
    if answer == WithData::Unknown && !is_quiet() && has_changed() && kernel::is_registered(epfd, data) {
        // Another thread may have registered it meanwhile.
        answer = set.with_data(data, 0, &mut found);
    }
    let count = match answer {
        WithData::Some(count) => count,
        // Another thread got the same event in user space, and has closed the socket since.
        WithData::Closed => return,
        // The event is of a registration that has been removed meanwhile, and whose number another has by now.
        WithData::Unknown if !is_quiet() && has_changed() && !kernel::is_registered(epfd, data) => return,
        WithData::Unknown => return events.push(-1, mask, data),
    };
    let alone = count == 1;
    let changed = !is_quiet() && (!alone || has_changed());
    for index in 0..count {
        let at = index % found.len();
        if index > 0 && at == 0 {
            set.with_data(data, index, &mut found);
        }
        let Registered { fd, foreign } = found[at];
        let truth = match foreign {
            None if is_confined(fd) => truth_of_confined(epfd, set, fd, (mask, data)),
            None => match truth_of(epfd, set, fd, (mask, data), changed) {
                // The connection was confined since it was found.
                Truth::Nothing if is_confined(fd) => truth_of_confined(epfd, set, fd, (mask, data)),
                truth => truth,
            },
            Some(_) if is_confined(fd) => Truth::from(rests::truth(epfd, mask, data).unwrap_or(mask)),
            // Only the program's own call may be made here.
            Some(_) if is_quiet() => Truth::Events(mask),
            Some(wanted) if set_of(fd).is_some() => {
                let now = confirm(fd, wanted as i16) as u16 as u32;
                if now == 0 && wanted & ONCE != 0 {
                    register(epfd, fd, wanted, data);
                }
                Truth::from(now)
            }
            Some(_) if alone => Truth::Events(mask),
            // The event may be of any of these registrations: reports what is true of each.
            Some(wanted) => {
                let now = kernel::poll_now(fd, wanted as i16) as u16 as u32;
                Truth::from(now & (wanted | UNASKED))
            }
        };
        match truth {
            Truth::Nothing => {}
            Truth::PutOff => events.put_off = true,
            Truth::Events(mask) => events.push(fd, mask, data),
        }
    }
}

fn is_confined(fd: c_int) -> bool {
    confined::are_any_confined() && connection::known(fd).is_some_and(|it| it.is_confined())
}

/// What the kernel's event `mask` for `data` means while the filter is coming: the registration is about to go to the
/// list of [`super::rests`], or to the kernel, which has used up a one-shot one.
fn truth_of_confined(epfd: c_int, set: &Set, fd: c_int, (mask, data): (u32, u64)) -> Truth {
    // This comes first: either the list has the registration by now, or it will see this change.
    let mut is_used_up = false;
    set.with_item(fd, |item| {
        is_used_up = item.is_disarmed();
        item.set_disarmed(item.events & ONCE != 0);
    });
    Truth::from(rests::truth(epfd, mask, data).unwrap_or(if is_used_up { 0 } else { mask }))
}

/// What the kernel's event `mask` of `fd` means; registrations may have `changed` since the kernel was asked.
fn truth_of(epfd: c_int, set: &Set, fd: c_int, (mask, data): (u32, u64), changed: bool) -> Truth {
    let mut truth = Truth::Nothing;
    let mut gone = false;
    // Under the set's lock, so that no thread lets go of the socket meanwhile.
    set.look_at(fd, |item| {
        // Registered anew since it was found: the kernel reports the new registration by itself.
        if item.data != data {
            return false;
        }
        gone = item.is_gone();
        // Disarmed: another thread has used it up. Confined: the list of rests may have it.
        if gone || item.is_disarmed() || is_confined(fd) {
            return false;
        }
        let kicked = item.is_kicked();
        if kicked {
            calm(epfd, fd, item);
        }
        // The kernel may know an older registration.
        let mut mask = mask & (item.events | UNASKED);
        if mask == 0 && !kicked && !changed && !item.is_stale() && item.room == Room::Kernel && item.events & ONCE == 0
        {
            // Another process has changed the shared registration: the kernel would report it again and again.
            register(epfd, fd, item.events, item.data);
        }
        if changed && port(fd).is_none() {
            mask &= kernel::poll_now(fd, item.events as i16) as u16 as u32;
        }
        let (said, activate) = if mask != 0 || kicked { judge(set, fd, item, mask) } else { (Truth::Nothing, false) };
        truth = match said {
            Truth::Events(told) if item.events & ONCE != 0 => claim(epfd, fd, item, told, changed).into(),
            Truth::Nothing if item.events & ONCE != 0 => claim(epfd, fd, item, 0, changed).into(),
            said => said,
        };
        activate
    });
    if gone {
        // The kernel reports ends and errors whatever it was asked for, again and again until it is told.
        set.tell(fd, |change| tell_change(epfd, fd, change));
    }
    truth
}

/// What the kernel's event `mask` of `fd` means, and whether the set has to look at it itself from now on.
fn judge(set: &Set, fd: c_int, item: &mut Item, mut mask: u32) -> (Truth, bool) {
    if kernel::is_half_told(item.events as i16, mask as i16) {
        mask |= kernel::poll_now(fd, item.events as i16) as u16 as u32;
    }
    let Some(port) = port(fd) else { return (Truth::from(mask), false) };
    item.wake_up(port.end);
    if mask & OVER & UNASKED != 0 && item.room == Room::SetAlone {
        // There may be room as well.
        mask |= kernel::poll_now(fd, item.events as i16) as u16 as u32 & OUT;
    }
    let awaits_room = mask & OUT != 0 && is_about_the_kernel(set, &port, item);
    if awaits_room {
        mask &= !OUT;
    }
    let is_level = item.events & (EDGE | ONCE) == 0;
    let is_doorbell = is_level && mask & OVER == 0 && port.ready() == Ready::Yes;
    if mask & (IN | OVER) != 0 {
        if is_doorbell {
            // Once the ring is read, the kernel reports what else there is.
            port.kernel_was_asked();
        } else {
            port.ask_kernel_next();
        }
        if port.reader_is_gone() {
            mask |= kernel::poll_now(fd, item.events as i16) as u16 as u32;
        }
    }
    if mask & UNASKED != 0 && port.end.keeps_error() {
        mask |= libc::EPOLLERR as u32;
    }
    // Without another event the program would not be told at all.
    if mask & !UNASKED != 0 {
        mask = without_false_reset(&port, mask);
    }
    if is_doorbell && mask & !IN == 0 && item.wants(IN) && set.count() > 1 {
        return (Truth::PutOff, true);
    }
    if !item.wants(IN) {
        return (Truth::from(mask), awaits_room);
    }
    // Before the other looks: what comes later is reported later.
    let news = news(&port, item);
    // The event may be another registration's with the same data, so this asks what is there.
    let readable = if mask & OVER != 0 { mask & IN != 0 || port.ready() == Ready::Yes } else { port.readable() };
    let known = item.events & EDGE != 0
        && mask & OVER == 0
        && news.is_none()
        && port.ready() == Ready::Yes
        && port.is_all_in_ring();
    // The program was told of the data, but perhaps not of the end of the stream.
    let stale = known && kernel::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0;
    if readable && !stale {
        mask |= item.events & IN;
    } else if item.events & EDGE != 0
        && mask & IN != 0
        && mask & OVER == 0
        && !refused(fd)
        && !(item.owes_room() && mask & OUT != 0)
    {
        // The doorbell made the edge; that the socket is also writable is not news.
        mask = 0;
    } else if readable && mask & !IN != 0 {
        // Something else made the edge, and an edge reports everything that is true.
        mask |= item.events & IN;
    } else {
        mask &= !IN;
    }
    if mask & OUT != 0 {
        set_refused(fd, false);
        item.set_owes_room(false);
    }
    if let Some(told) = news.filter(|_| mask & IN != 0) {
        item.set_told(told);
    }
    item.set_last_news(ticks());
    // The kernel's registration stays armed for threads that sleep in the kernel; in the library's copy it is active
    // again.
    (Truth::from(mask), true)
}

/// Uses up a one-shot registration for the event `mask`, and returns what is left of the event. If registrations have
/// `changed` since the kernel was asked, the event may be of an earlier registration, even of another connection that
/// had the number.
fn claim(epfd: c_int, fd: c_int, item: &mut Item, mask: u32, changed: bool) -> u32 {
    // `mask` is right already about what may be in the ring only.
    let in_ring = if port(fd).is_some() { mask & IN } else { 0 };
    let true_now = if changed { kernel::poll_now(fd, item.events as i16) as u16 as u32 | in_ring } else { mask };
    let claimed = mask & true_now & (item.events | UNASKED);
    if claimed == 0 {
        // The kernel believes that the one-shot registration has fired.
        register(epfd, fd, item.events, item.data);
        return 0;
    }
    use_up(item, port(fd).as_ref());
    if changed {
        // Arms the kernel's registration again.
        register(epfd, fd, ONCE | item.events & EDGE, item.data);
    }
    claimed
}

/// Takes back what was to wake a sleeper. A one-shot registration is used up by having woken it.
fn calm(epfd: c_int, fd: c_int, item: &mut Item) {
    item.set_kicked(false);
    // The kernel was asked for nothing more than the program asks for: asked again, it would report room as another
    // edge.
    let same = item.events & libc::EPOLLOUT as u32 != 0;
    if item.events & ONCE == 0 && !same {
        register(epfd, fd, item.events, item.data);
    }
}

/// The one-shot registration is used up: a doorbell on the socket wakes no thread until it is armed again.
fn use_up(item: &mut Item, port: Option<&Port<'_>>) {
    item.set_disarmed(true);
    if let Some(port) = port {
        port.quit_group();
    }
}

/// Whether a send was refused for want of room since room was last reported to the program.
fn refused(fd: c_int) -> bool {
    connection::known(fd).is_some_and(|connection| connection.end.refused.load(Relaxed) != 0)
}

fn set_refused(fd: c_int, refused: bool) {
    if let Some(connection) = connection::known(fd) {
        connection.end.refused.store(refused.into(), Relaxed);
    }
}

//! epoll_create, epoll_ctl, epoll_wait and their variants.
//!
//! Every socket stays registered with the kernel exactly as the program registered it. For stream sockets the library
//! keeps a copy of the registration. Those that were active lately are looked at in user space; the quiet ones have
//! their waiting flag up, so that what arrives for them rings a doorbell, which the kernel's epoll reports natively.
//! So cost follows activity, nested sets and sleeping need nothing of ours, and the kernel's own descriptors are asked
//! for at least every [`KERNEL_EVERY_US`].

use crate::connection::{self, Connection};
use crate::memory::{PIECE, Sparse};
use crate::poll::{Deadline, after, after_ms, invalid, left};
use crate::set::{self, Item, Joining, Later, Scan, Set};
use crate::table::{self, Known};
use crate::{process, real};
use core::ffi::c_int;
use libc::{epoll_event, sigset_t, timespec};
use underpass_segment::clock::{self, ticks, ticks_per_microsecond};
use underpass_segment::end::{End, WATCHED_BY_SEVERAL};
use underpass_segment::kernel;
use underpass_segment::link::ALONE;
use underpass_segment::reason::Reason;
use underpass_segment::switch::{Port, Ready, Sleep};
use underpass_segment::sync::{AcqRel, Acquire, AtomicPtr, AtomicU32, Relaxed, Release};
use underpass_segment::wait::{Polled, Wait};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const OVER: u32 = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// A set that is busy with fast connections asks the kernel for the others this often.
const KERNEL_EVERY_US: u64 = 50;
/// The same while there is nothing to report.
const KERNEL_WHEN_IDLE_US: u64 = 4;
/// A connection without news for so long is left to the kernel.
const QUIET_AFTER_US: u64 = 1000;
/// Nothing is mapped below. An array there, at a null pointer or near it, is none.
const FIRST_PAGE: usize = 4096;
/// Where another thread may take the doorbell, a sleep lasts no longer.
const BRIEFLY_NS: u64 = 10_000_000;

static SETS: Sparse<AtomicPtr<Set>, { table::MAX_FDS / PIECE }> = Sparse::new();
/// Threads asleep in the kernel on each epoll descriptor, whether it has sockets of ours or not.
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
        let made = Set::make()?;
        if place.compare_exchange(core::ptr::null_mut(), made, Release, Acquire).is_err() {
            // SAFETY: just made, and nobody else has it.
            Set::give_back(unsafe { &*made });
        }
    }
    let set = set_of(epfd)?;
    set.set_epfd(epfd);
    Some(set)
}

/// Whether `fd` is an epoll set that has sockets of ours.
pub fn is_ours(fd: c_int) -> bool {
    set_of(fd).is_some_and(|set| set.count() > 0 || set.has_inner())
}

/// Whether `fd` is registered in any set.
fn watches(fd: c_int) -> bool {
    set::made().any(|set| set.item(fd).is_some())
}

/// `fd` is left to the kernel.
pub fn disown(fd: c_int) {
    set::made().for_each(|set| set.remove(fd));
}

/// `epfd` is about to be closed.
pub fn forget_set(epfd: c_int) {
    if let Some(place) = place(epfd) {
        let set = place.swap(core::ptr::null_mut(), Acquire);
        // SAFETY: a set, once made, is never unmapped.
        if let Some(set) = unsafe { set.as_ref() } {
            for fd in 0..table::highest() {
                if let Some(connection) = connection::known(fd) {
                    set.with_item(fd, |item| wake_up(item, connection.end));
                }
            }
            Set::give_back(set);
        }
    }
}

/// In a forked child: its copies of the sets rely on the waiting flags too; the threads that slept are its parent's.
pub fn after_fork() {
    // SAFETY: a forked child has one thread.
    unsafe { SLEEPERS.clear() };
    for set in set::made().filter(|set| set.count() > 0) {
        for fd in 0..table::highest() {
            if let Some(connection) = connection::known(fd)
                && set.item(fd).is_some_and(|item| item.resting)
            {
                connection.end.reading.resting.add(ALONE);
            }
        }
    }
}

/// Number of threads asleep in the kernel on `epfd`.
fn sleepers(epfd: c_int) -> Option<&'static AtomicU32> {
    // SAFETY: counts are never unmapped; zeroed memory is none.
    SLEEPERS.need(epfd as u32 as usize).map(|count| unsafe { count.as_ref() })
}

fn has_sleepers(epfd: c_int) -> bool {
    sleepers(epfd).is_some_and(|count| count.load(Acquire) > 0)
}

/// Sleeps in the kernel on `epfd`, by `sleep`.
fn asleep<T>(epfd: c_int, sleep: impl FnOnce() -> T) -> T {
    let count = sleepers(epfd);
    if let Some(count) = count {
        count.fetch_add(1, AcqRel);
    }
    let answer = sleep();
    if let Some(count) = count {
        count.fetch_sub(1, AcqRel);
    }
    answer
}

fn port(fd: c_int) -> Option<Port<'static>> {
    connection::known(fd)?.ready_port()
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let ours = !process::borrowed()
        && (matches!(table::get(fd), Known::Socket | Known::Connection(_)) || set_of(fd).is_some());
    if ours {
        // SAFETY: the program vouches for its event.
        let wanted = (!event.is_null()).then(|| unsafe { ((*event).events, (*event).u64) });
        match postpone(epfd, operation, fd, wanted) {
            Later::Done => return 0,
            Later::Absent => {
                crate::set_errno(libc::ENOENT);
                return -1;
            }
            Later::Now => {}
        }
    }
    // SAFETY: passed on to the caller.
    let answer = unsafe { real::epoll_ctl(epfd, operation, fd, event) };
    if answer != 0 || !ours {
        return answer;
    }
    if operation == libc::EPOLL_CTL_DEL {
        if let Some(set) = set_of(epfd) {
            if let Some(connection) = connection::known(fd) {
                set.with_item(fd, |item| wake_up(item, connection.end));
            }
            set.remove(fd);
        }
        return answer;
    }
    // SAFETY: the kernel has just read it.
    let (events, data) = unsafe { ((*event).events, (*event).u64) };
    let Some(set) = make_set(epfd) else {
        connection::give_up(fd, Reason::NoMemory);
        return answer;
    };
    if set_of(fd).is_some() {
        set.add_inner(fd);
        if let Some(inner) = set_of(fd) {
            settle(fd, inner);
            inner.set_inner();
        }
        return answer;
    }
    if !set.put(fd, events, data) {
        connection::give_up(fd, Reason::NoMemory);
        return answer;
    }
    if let Some(connection) = connection::of(fd) {
        if operation == libc::EPOLL_CTL_ADD {
            watch(connection);
        }
        if let Some(port) = connection.ready_port() {
            set.with_item(fd, |item| item.set_seen(0));
            set.activate(fd);
            wake_sleepers(epfd, set, &port, events);
        }
    }
    answer
}

/// A thread may be asleep on the set already: what is there by now must wake it, and what comes.
fn wake_sleepers(epfd: c_int, set: &Set, port: &Port<'_>, events: u32) {
    if events & IN == 0 {
        return;
    }
    set.with_item(port.fd, |item| {
        if !item.set_resting(true) {
            port.end.reading.resting.add(ALONE);
        }
    });
    if port.prepare_to_sleep(ALONE) == Sleep::No {
        kick(epfd, set, port.fd);
    }
}

/// Sets watch `connection`: those that do not look at it themselves rely on its waiting flag.
pub fn watch(connection: Connection) {
    let mut watching = 0;
    for set in set::made() {
        set.with_item(connection.fd, |item| {
            watching += 1;
            if !item.set_resting(true) {
                connection.end.reading.resting.add(ALONE);
            }
        });
    }
    if watching > 0 && connection.end.watched.load(Relaxed) == 0 {
        connection.end.watched.store(1, Relaxed);
    }
    if watching > 1 || watching > 0 && connection.has_duplicates() {
        wake_by_itself(connection);
    }
}

/// A poll is about to watch `connection`.
pub fn watch_by_poll(connection: Connection) {
    if connection.end.watched.load(Relaxed) == 0 {
        connection.end.watched.store(1, Relaxed);
    }
    if connection.end.watched.load(Relaxed) != WATCHED_BY_SEVERAL && watches(connection.fd) {
        wake_by_itself(connection);
    }
}

/// More than one poll, select or epoll set may watch `connection`: from now on it wakes each of them by a doorbell of
/// its own, since a doorbell that woke a group may be taken by none but that group.
pub fn wake_by_itself(connection: Connection) {
    if connection.end.watched.swap(WATCHED_BY_SEVERAL, AcqRel) != WATCHED_BY_SEVERAL {
        take_back(connection.fd);
    }
}

/// `fd` is about to be closed: its sets do not rely on it any more.
pub fn forget_socket(connection: Connection) {
    if connection.end.watched.load(Relaxed) != 0 {
        for set in set::made() {
            set.with_item(connection.fd, |item| wake_up(item, connection.end));
        }
    }
}

/// The set looks at the socket in user space again.
fn wake_up(item: &mut Item, end: &End) {
    if item.resting {
        item.set_resting(false);
        end.reading.resting.leave();
    }
}

/// Leaves a socket to the kernel: from now on whatever arrives wakes the set.
fn rest(set: &Set, item: &mut Item, joining: &mut Joining<'_>, port: &Port<'_>, alone: bool) -> Sleep {
    let shared = port.end.watched.load(Relaxed) == WATCHED_BY_SEVERAL || port.end.references.load(Relaxed) > 1;
    let number = if alone || shared { ALONE } else { set.number_for(joining, port.fd, &port.link) };
    let resting = &port.end.reading.resting;
    resting.add(number);
    if item.set_resting(true) {
        resting.leave();
    }
    port.prepare_to_sleep(resting.number())
}

/// A program that asks for room and stops asking with every message changes its registration several times a message.
/// While the connection is fast the set answers that in user space, and the kernel is told before the next sleep on it
/// only.
fn postpone(epfd: c_int, operation: c_int, fd: c_int, wanted: Option<(u32, u64)>) -> Later {
    let Some(set) = set_of(epfd) else { return Later::Now };
    let fast = port(fd).filter(|port| port.sends_fast() && !has_sleepers(epfd) && !set.is_inner());
    let later = match (operation, wanted, fast.is_some()) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some((events, data)), true) => {
            set.change_later(fd, Some((events, data)), operation == libc::EPOLL_CTL_ADD)
        }
        (libc::EPOLL_CTL_DEL, _, true) => set.change_later(fd, None, false),
        _ => Later::Now,
    };
    if later == Later::Now {
        // The kernel is about to be asked for itself: it must know what was put off.
        set.tell(fd, |change| tell(epfd, fd, change));
    }
    if let (Later::Done, Some(port)) = (later, fast) {
        if wanted.is_none() {
            set.with_item(fd, |item| wake_up(item, port.end));
        }
        // A thread may have gone to sleep meanwhile.
        if has_sleepers(epfd) {
            set.tell(fd, |change| tell(epfd, fd, change));
            wake_sleepers(epfd, set, &port, wanted.map_or(0, |(events, _)| events));
        }
    }
    later
}

fn tell(epfd: c_int, fd: c_int, change: Option<(u32, u64)>) {
    match change {
        Some((events, data)) => register(epfd, fd, events, data),
        None => {
            let before = crate::errno();
            // SAFETY: no event is read.
            unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) };
            crate::set_errno(before);
        }
    }
}

/// A descriptor is about to be closed while its socket stays open by another: its registrations go on as the kernel has
/// them, and cannot be changed any more.
pub fn settle_socket(connection: Connection) {
    if connection.end.watched.load(Relaxed) == 0 {
        return;
    }
    let fd = connection.fd;
    for set in set::made() {
        set.tell(fd, |change| tell(set.epfd(), fd, change));
        if let Some(item) = set.item(fd).filter(|it| it.kicked) {
            set.with_item(fd, |it| it.set_kicked(false));
            register(set.epfd(), fd, item.events, item.data);
        }
    }
}

/// Tells the kernel of the registrations that were changed without it.
fn settle(epfd: c_int, set: &Set) {
    set.tell_all(|fd, change| tell(epfd, fd, change));
}

/// A receive outside of any epoll set has used up the waiting flag of `fd` and left data: its sets look at it again.
pub fn take_back(fd: c_int) {
    if let Some(connection) = connection::known(fd) {
        connection.end.reading.resting.set_stray(false);
    }
    for set in set::made() {
        if set.item(fd).is_some() {
            set.activate(fd);
            if has_sleepers(set.epfd()) {
                kick(set.epfd(), set, fd);
            }
        }
    }
}

/// A thread goes back to the program while others sleep on the set: what it leaves behind has to wake them.
fn hand_over(epfd: c_int, set: &Set) {
    if !has_sleepers(epfd) {
        return;
    }
    let mut left = None;
    set.scan(|fd, item, joining| {
        let Some(port) = port(fd).filter(|_| item.wants(IN)) else { return Scan::Leave };
        match rest(set, item, joining, &port, false) {
            Sleep::No if news(&port, item).is_some() => {
                left = Some(fd);
                Scan::Keep
            }
            Sleep::Briefly => Scan::Keep,
            _ => Scan::Leave,
        }
    });
    if let Some(fd) = left {
        kick(epfd, set, fd);
    }
}

/// Makes the kernel's epoll report `fd` at once: the socket is writable, so asking for that does.
fn kick(epfd: c_int, set: &Set, fd: c_int) {
    let Some(item) = set.item(fd) else { return };
    set.with_item(fd, |it| it.set_kicked(true));
    register(epfd, fd, item.events | OUT, item.data);
}

/// Changes the kernel's registration without the program's knowledge.
fn register(epfd: c_int, fd: c_int, events: u32, data: u64) {
    let mut event = epoll_event { events, u64: data };
    let before = crate::errno();
    // SAFETY: one event.
    unsafe {
        if events & EXCLUSIVE == 0 {
            real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &mut event);
        } else {
            // Such a registration cannot be changed.
            real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut());
            real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event);
        }
    }
    crate::set_errno(before);
}

/// Whether a fast connection in the set can be read now.
pub fn has_ready(epfd: c_int) -> bool {
    set_of(epfd).is_some_and(|set| any_news(set) || set.inner().filter_map(set_of).any(any_news))
}

/// Whether an active socket of the set has news.
fn any_news(set: &Set) -> bool {
    let mut found = set.answer_bells();
    set.scan(|fd, item, _| {
        found |= item.wants(IN | OUT)
            && port(fd).is_some_and(|port| writable(&port, item) || item.wants(IN) && news(&port, item).is_some());
        if found { Scan::Enough } else { Scan::Keep }
    });
    found
}

/// Before something sleeps on the set itself (a poll, or an outer set): raises every waiting flag.
pub fn prepare_to_sleep(epfd: c_int) -> Sleep {
    match set_of(epfd) {
        Some(set) => {
            settle(epfd, set);
            set.set_inner();
            arm(set, true, 0)
        }
        None => Sleep::Yes,
    }
}

/// Whether a fast connection is to be reported for its room: always, level-triggered.
fn writable(port: &Port<'_>, item: &Item) -> bool {
    item.events & (OUT | EDGE) == OUT && item.wants(OUT) && port.sends_fast()
}

/// Where the ring's data ends, if there is any that `item` has not been told of (or, level-triggered, any at all).
fn news(port: &Port<'_>, item: &Item) -> Option<u64> {
    match port.ready() {
        Ready::Yes if item.events & EDGE == 0 => Some(0),
        // Behind what is left in the kernel there may be more in the ring, which the kernel does not know of.
        Ready::Yes | Ready::AskKernel if item.events & EDGE != 0 => port.newer(item.seen),
        _ => None,
    }
}

/// Raises the waiting flags of the active sockets and leaves them to the kernel.
///
/// With `alone` each rings a doorbell of its own, for somebody who sleeps on the set from outside.
fn arm(set: &Set, alone: bool, depth: u32) -> Sleep {
    let mut sleep = Sleep::Yes;
    set.scan(|fd, item, joining| {
        let Some(port) = port(fd) else { return Scan::Leave };
        if !item.wants(IN) {
            wake_up(item, port.end);
            return Scan::Leave;
        }
        match rest(set, item, joining, &port, alone) {
            Sleep::Yes => Scan::Leave,
            // Edge-triggered, and told of it already: it may well sleep on that.
            Sleep::No if port.ready() == Ready::Yes && news(&port, item).is_none() => Scan::Leave,
            Sleep::No => {
                sleep = Sleep::No;
                Scan::Enough
            }
            Sleep::Briefly => {
                sleep = Sleep::Briefly;
                Scan::Keep
            }
        }
    });
    for inner in set.inner() {
        if depth < 4
            && sleep == Sleep::Yes
            && let Some(inner) = set_of(inner)
        {
            sleep = arm(inner, true, depth + 1);
        }
    }
    sleep
}

struct Events {
    at: *mut epoll_event,
    most: usize,
    count: usize,
    /// The kernel has news of a socket whose turn it is not yet.
    put_off: bool,
}

impl Events {
    fn push(&mut self, events: u32, data: u64) -> bool {
        for index in 0..self.count {
            // SAFETY: below `count`.
            let earlier = unsafe { &mut *self.at.add(index) };
            if earlier.u64 == data && { earlier.events } & (IN | OUT) != 0 {
                earlier.events |= events;
                return true;
            }
        }
        self.push_new(events, data)
    }

    fn push_new(&mut self, events: u32, data: u64) -> bool {
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
fn collect(epfd: c_int, set: &Set, events: &mut Events) {
    let now = ticks();
    let quiet_after = QUIET_AFTER_US * ticks_per_microsecond();
    set.answer_bells();
    set.scan_in_turn(|fd, item, joining| {
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
            Some(seen) => {
                let room = item.events & OUT == 0
                    || port.sends_fast()
                    || kernel::poll_now(fd, libc::POLLOUT) & libc::POLLOUT != 0;
                let writable = if item.events & OUT != 0 && room { item.events & OUT } else { 0 };
                events.push(item.events & IN | writable | ended(&port, item), item.data);
                item.set_seen(seen);
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
fn ask(epfd: c_int, set: &Set, events: &mut Events, call: impl FnOnce(*mut epoll_event, c_int) -> c_int) -> c_int {
    let room = events.most - events.count;
    if room == 0 {
        return 0;
    }
    // SAFETY: `count` is at most `most`.
    let from = unsafe { events.at.add(events.count) };
    let answer = call(from, room.min(c_int::MAX as usize) as c_int);
    if answer < 0 {
        return answer;
    }
    for index in 0..answer as usize {
        // SAFETY: the kernel has written `answer` events from `from` on; `push` writes behind none that is not read.
        let event = unsafe { from.add(index).read_unaligned() };
        let (mask, data) = (event.events, event.u64);
        match truth(epfd, set, mask, data) {
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

fn truth(epfd: c_int, set: &Set, mask: u32, data: u64) -> Truth {
    let Some(fd) = set.only_item_with(data) else {
        // Several, or none of ours.
        set.activate_with(data);
        return Truth::from(mask);
    };
    let Some(item) = set.item(fd) else { return Truth::Nothing };
    // The kernel may know an older registration.
    let mut mask = mask & (item.events | OVER | if item.kicked { OUT } else { 0 });
    if mask == 0 {
        return Truth::Nothing;
    }
    if item.kicked {
        set.with_item(fd, |it| it.set_kicked(false));
        mask &= !OUT | item.events;
        if item.events & ONCE == 0 {
            register(epfd, fd, item.events, item.data);
        }
    }
    let Some(port) = port(fd) else { return Truth::from(mask) };
    set.with_item(fd, |it| wake_up(it, port.end));
    if mask & (IN | OVER) != 0 && port.reader_is_gone() {
        mask |= kernel::poll_now(fd, item.events as i16) as u16 as u32;
    }
    const RESET: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
    // Without another event the program would not be told at all.
    if mask & RESET != 0 && mask & !RESET != 0 && port.is_false_reset() {
        mask &= !RESET;
    }
    if mask & !IN == 0 && item.wants(IN) && item.events & (EDGE | ONCE) == 0 && port.ready() == Ready::Yes {
        set.activate(fd);
        return Truth::PutOff;
    }
    if item.wants(IN) {
        let readable = if mask & OVER != 0 { mask & IN != 0 || port.ready() == Ready::Yes } else { port.readable() };
        let news = news(&port, &item);
        let told = item.events & EDGE != 0 && port.ready() == Ready::Yes && news.is_none() && mask & OVER == 0;
        // Of data it has been told; of the end of the stream perhaps not.
        let stale =
            told && kernel::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0;
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
        set.with_item(fd, |it| {
            it.set_seen(news.unwrap_or(item.seen));
            it.set_last_news(ticks());
        });
        set.activate(fd);
        // What is armed stays armed for whoever sleeps natively; here it is active again.
    }
    if item.events & ONCE != 0 {
        if mask == 0 {
            // The kernel believes that it has fired.
            register(epfd, fd, item.events, item.data);
        } else {
            set.with_item(fd, |it| it.set_disarmed(true));
        }
    }
    Truth::from(mask)
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

/// epoll_wait, sleeping by `sleep`, which is given what is left of the time.
fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    deadline: Deadline,
    sleep: &dyn Fn(*mut epoll_event, c_int, Option<timespec>) -> c_int,
) -> Option<c_int> {
    let set = set_of(epfd).filter(|set| set.count() > 0 || set.has_inner())?;
    if most <= 0 {
        return None;
    }
    let mut one = epoll_event { events: 0, u64: 0 };
    let usable = events as usize >= FIRST_PAGE;
    let (at, most) = if usable { (events, most as usize) } else { (&raw mut one, 1) };
    let answer = wait_in(epfd, set, Events { at, most, count: 0, put_off: false }, deadline, sleep);
    hand_over(epfd, set);
    if answer > 0 && !usable {
        crate::set_errno(libc::EFAULT);
        return Some(-1);
    }
    Some(answer)
}

fn wait_in(
    epfd: c_int,
    set: &Set,
    mut events: Events,
    deadline: Deadline,
    sleep: &dyn Fn(*mut epoll_event, c_int, Option<timespec>) -> c_int,
) -> c_int {
    // SAFETY: the kernel writes at most as many events as it is told.
    let look = |at, most| unsafe { real::epoll_wait(epfd, at, most, 0) };
    let mut began: Option<Wait> = None;
    let mut slept = false;
    let mut polled_enough = false;
    loop {
        let idle_for = ticks().wrapping_sub(set.asked().load(Relaxed));
        // The kernel's own must not starve, nor starve the others.
        let overdue = idle_for > KERNEL_EVERY_US * ticks_per_microsecond() && !set.others_first().swap(false, Relaxed);
        if !overdue {
            collect(epfd, set, &mut events);
        }
        let idle = idle_for > KERNEL_WHEN_IDLE_US * ticks_per_microsecond();
        let expired = deadline.is_some_and(|at| clock::nanoseconds() >= at);
        if overdue || (events.count == 0 && (idle || expired)) {
            set.asked().store(ticks(), Relaxed);
            if ask(epfd, set, &mut events, look) < 0 {
                return -1;
            }
            if events.count == events.most {
                set.others_first().store(true, Relaxed);
            } else if overdue || core::mem::take(&mut events.put_off) {
                collect(epfd, set, &mut events);
            }
        }
        if events.count > 0 || expired {
            if let Some(wait) = began {
                wait.end(set.memory(), slept);
            }
            return events.count as c_int;
        }
        let wait = began.get_or_insert_with(|| begin(set));
        let slice = KERNEL_WHEN_IDLE_US * ticks_per_microsecond();
        if !polled_enough && set.is_active() {
            polled_enough = wait.poll_for(slice, || any_news(set)) == Polled::Enough;
            continue;
        }
        settle(epfd, set);
        let brief = match arm(set, false, 0) {
            Sleep::Yes => u64::MAX,
            Sleep::No => continue,
            Sleep::Briefly => BRIEFLY_NS,
        };
        slept = true;
        let answer = asleep(epfd, || {
            // Whoever has made a socket active since looks for sleepers afterwards.
            let nothing = brief != u64::MAX || !set.is_active();
            if set.set_asleep(true) && nothing {
                ask(epfd, set, &mut events, |at, most| sleep(at, most, left(deadline, brief)))
            } else {
                0
            }
        });
        // Others that sleep on the same set still want the next doorbell.
        set.set_asleep(has_sleepers(epfd));
        if answer < 0 {
            return answer;
        }
        set.asked().store(ticks(), Relaxed);
    }
}

/// Begins a wait: meets the other ends of the active connections.
fn begin(set: &Set) -> Wait {
    let mut wait = Wait::begin(set.memory(), 0, process::config().spin_us);
    let (mut ports, mut together) = (0, 0);
    set.scan(|fd, _, _| {
        if let Some(port) = port(fd) {
            together += u32::from(port.exchange_cpu(wait.cpu()) == wait.cpu());
            ports += 1;
        }
        Scan::Keep
    });
    wait.share(ports > 0 && together == ports);
    wait
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    let deadline = after_ms(timeout);
    // SAFETY: the program vouches for its array, here and below.
    let sleep = |at, most, left: Option<timespec>| unsafe { real::epoll_wait(epfd, at, most, whole_ms(left)) };
    if let Some(answer) = wait(epfd, events, most, deadline, &sleep) {
        return answer;
    }
    // SAFETY: passed on to the caller.
    let answer = asleep(epfd, || unsafe { real::epoll_wait(epfd, events, most, timeout) });
    corrected(epfd, events, most, answer, deadline, &sleep)
}

/// A set that had no sockets of ours when this thread went to sleep on it may have some by now: then what woke it may be
/// a doorbell.
fn corrected(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    answer: c_int,
    deadline: Deadline,
    sleep: &dyn Fn(*mut epoll_event, c_int, Option<timespec>) -> c_int,
) -> c_int {
    let Some(set) = set_of(epfd).filter(|set| answer > 0 && set.count() > 0) else { return answer };
    let mut all = Events { at: events, most: most as usize, count: 0, put_off: false };
    if ask(epfd, set, &mut all, |_, _| answer) < 0 || all.count > 0 {
        hand_over(epfd, set);
        return all.count as c_int;
    }
    wait(epfd, events, most, deadline, sleep).unwrap_or(0)
}

/// Milliseconds of a remaining time, rounded up, for calls that count in them; -1: forever.
fn whole_ms(left: Option<timespec>) -> c_int {
    left.map_or(-1, |t| (t.tv_sec * 1000 + (t.tv_nsec + 999_999) / 1_000_000).min(c_int::MAX.into()) as c_int)
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
    let deadline = after_ms(timeout);
    // SAFETY: as in `epoll_wait`.
    let sleep = |at, most, left: Option<timespec>| unsafe { real::epoll_pwait(epfd, at, most, whole_ms(left), mask) };
    if let Some(answer) = wait(epfd, events, most, deadline, &sleep) {
        return answer;
    }
    // SAFETY: passed on to the caller.
    let answer = asleep(epfd, || unsafe { real::epoll_pwait(epfd, events, most, timeout, mask) });
    corrected(epfd, events, most, answer, deadline, &sleep)
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
    let sleep = |at, most, left: Option<timespec>| {
        let left = left.as_ref().map_or(core::ptr::null(), |t| t as *const timespec);
        // SAFETY: as in `epoll_wait`.
        unsafe { real::epoll_pwait2(epfd, at, most, left, mask) }
    };
    // SAFETY: the program vouches for its timeout.
    if unsafe { invalid(timeout) } {
        // SAFETY: passed on to the caller.
        return unsafe { real::epoll_pwait2(epfd, events, most, timeout, mask) };
    }
    // SAFETY: as above.
    let deadline = unsafe { after(timeout) };
    if let Some(answer) = wait(epfd, events, most, deadline, &sleep) {
        return answer;
    }
    // SAFETY: passed on to the caller.
    let answer = asleep(epfd, || unsafe { real::epoll_pwait2(epfd, events, most, timeout, mask) });
    corrected(epfd, events, most, answer, deadline, &sleep)
}

//! What wakes a set that sleeps: sockets are left to the kernel with their waiting flags up, and taken back.

use super::line;
use super::news::{news, writable};
use super::register::{kick, register, silence, sound_if_full, tell_all};
use super::room::{Found, ask_kernel_for_room, look, mute};
use super::{IN, MAX_DEPTH, OUT, has_sleepers, port, registered, set_of, watches};
use crate::connection::{self, Connection};
use crate::guest::table;
use crate::watch::set::{self, Change, Item, Joining, Room, Scan, Set};
use core::ffi::c_int;
use underpass_segment::end::Stage;
use underpass_segment::kernel;
use underpass_segment::switch::{Port, Ready, Sleep};
use underpass_segment::words::ALONE;

/// Sets watch `connection`: a set that does not look at it itself relies on its waiting flag.
pub fn watch(connection: Connection, generation: u64) {
    let mut watching = 0;
    for set in set::sets_of(connection.fd) {
        // In a signal handler that has interrupted a look at the set: see below.
        set.with_item(connection.fd, |item| {
            if table::generation(connection.fd) != generation {
                return;
            }
            watching += 1;
            if !item.set_resting(true) {
                connection.end.reading.resting.add(ALONE);
            }
        });
        // This signal handler has interrupted a look at the set, which may have the connection.
        watching += 2 * u32::from(set.is_interrupted());
    }
    if watching > 0 {
        connection.end.watch();
    }
    if watching > 1 || watching > 0 && connection.has_duplicates() {
        wake_by_itself(connection);
    }
    if connection.has_duplicates() {
        let is_in = |set: &Set| connection.descriptors().any(|fd| fd != connection.fd && set.item(fd).is_some());
        set::sets_of(connection.fd).filter(|set| is_in(set)).for_each(Set::set_twins);
    }
}

/// A poll is about to watch `connection`.
pub fn watch_by_poll(connection: Connection) {
    connection.end.watch();
    if !connection.end.is_watched_by_several() && watches(connection.fd) {
        wake_by_itself(connection);
    }
}

/// More than one poll, select or epoll set may watch `connection`: from now on a doorbell of its own wakes them,
/// because only the group may take a doorbell that woke a group.
pub fn wake_by_itself(connection: Connection) {
    if connection.end.watch_by_several() {
        take_back(connection.fd);
    }
}

/// `fd` is about to be closed, and its socket with it if it is the `last`: begins the number's next generation, in
/// which nobody looks at the connection in a set any more.
pub fn forget_socket(connection: Connection, last: bool) {
    let generation = table::generation(connection.fd);
    if last && connection.end.is_watched() {
        let ended = Change::Ended { fd: connection.fd, generation };
        set::sets_of(connection.fd).for_each(|set| set.change(ended));
    }
    table::next_generation(connection.fd);
    let_go(connection, generation);
}

/// The sets in which the connection was registered in the number's generation `generation` do not rely on it any more.
/// If that generation is over, no thread looks at the connection in a set from now on: none raises its waiting flag, or
/// takes what belongs to the number's next socket.
pub fn let_go(connection: Connection, generation: u64) {
    if !connection.end.is_watched() {
        return;
    }
    for set in set::sets_of(connection.fd) {
        let mut was_in = set.is_interrupted();
        if was_in {
            set.change(Change::LetGo { fd: connection.fd, generation, index: connection.index });
        }
        set.with_item_of(connection.fd, generation, |item| {
            was_in = true;
            ask_kernel_for_room(set.epfd(), connection.fd, item);
            item.wake_up(connection.end);
        });
        if was_in && let Some(port) = connection.ready_port() {
            leave_group(set.epfd(), set, &port);
        }
    }
}

/// The set does not ask any more for what comes on the connection, so a doorbell of the group that is sent there wakes
/// nobody. A sender may believe that it has woken the threads that sleep on the set by such a doorbell.
pub(super) fn leave_group(epfd: c_int, set: &Set, port: &Port<'_>) {
    port.quit_group();
    leave_to_sleepers(epfd, set);
}

/// A descriptor is not known as a connection any more, and about to be closed: returns once no thread looks at it in a
/// set, where it would take what belongs to the number's next socket.
pub fn outlast_looks(fd: c_int) {
    for set in set::sets_of(fd) {
        set.outlast();
    }
}

/// Leaves a socket to the kernel: from now on whatever arrives wakes the set.
pub(super) fn rest(set: &Set, item: &mut Item, joining: &mut Joining<'_>, port: &Port<'_>, alone: bool) -> Sleep {
    let shared = port.end.is_watched_by_several() || port.end.owners.are_several();
    let number = if alone || shared { ALONE } else { set.number_for(joining, port.fd, &port.channel) };
    let resting = &port.end.reading.resting;
    resting.add(number);
    if item.set_resting(true) {
        resting.remove();
    }
    // The set must not rely on a flag that is not raised.
    if resting.number() == 0 {
        resting.add(number);
    }
    line::be_rung(set, port);
    port.prepare_to_sleep(resting.number())
}

/// A receive outside of any epoll set has used up the waiting flag of `fd` and left data: its sets look at it again.
#[cold]
pub fn take_back(fd: c_int) {
    let connection = connection::known(fd);
    if let Some(connection) = connection {
        connection.end.reading.resting.set_stray(false);
    }
    // Before it has joined, the kernel alone wakes a sleeper, and knows all.
    let has_joined = connection.is_some_and(|it| it.end.stage() == Stage::Joined);
    for set in set::sets_of(fd) {
        if set.item(fd).is_some() {
            set.activate(fd);
            if has_joined && has_sleepers(set.epfd()) {
                kick(set.epfd(), set, fd);
            }
        }
    }
}

/// A thread goes back to the program while others sleep on the set: what it leaves behind has to wake them.
#[inline]
pub(super) fn leave_to_sleepers(epfd: c_int, set: &Set) {
    // A look at the set that this signal handler has interrupted does so when it returns to the program.
    if has_sleepers(epfd) && !set.is_interrupted() {
        wake_sleepers(epfd, set);
    }
}

/// Sees to it that what is left in the set wakes the threads that sleep on it.
fn wake_sleepers(epfd: c_int, set: &Set) {
    if !set.set_asleep(|| true) {
        set.answer_bells();
    }
    let mut left = None;
    set.scan(|fd, item, joining| {
        let Some(port) = port(fd) else { return Scan::Leave };
        if item.room != Room::Kernel {
            // One of the sleepers is to look for room.
            register(epfd, fd, item.events, item.data);
            item.set_room(Room::Set);
        }
        if !item.wants(IN) {
            return Scan::Leave;
        }
        match rest(set, item, joining, &port, false) {
            // A sleeper that is to look again looks now, and then by itself.
            Sleep::No if news(&port, item).is_some() || may_be_told_again(&port) => {
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

/// Whether a fast connection in the set can be read now.
pub fn has_ready(epfd: c_int) -> bool {
    set_of(epfd).is_some_and(|set| any_news_within(set, 0))
}

fn any_news_within(set: &Set, depth: u32) -> bool {
    any_news(set) || depth < MAX_DEPTH && set.inner().filter_map(set_of).any(|inner| any_news_within(inner, depth + 1))
}

/// Whether an active socket of the set has news.
pub(super) fn any_news(set: &Set) -> bool {
    let has_news = |fd, item: &Item| {
        item.wants(IN | OUT)
            && port(fd).is_some_and(|port| writable(&port, item) || item.wants(IN) && news(&port, item).is_some())
    };
    if set.is_interrupted() {
        let mut found = false;
        set.peek_active(|fd, item| found |= has_news(fd, item));
        return found;
    }
    let mut found = set.answer_bells();
    set.scan(|fd, item, _| {
        found |= has_news(fd, item);
        if found { Scan::Enough } else { Scan::Keep }
    });
    found
}

/// Before something sleeps on the set itself (a poll, or an outer set): raises every waiting flag.
pub fn prepare_to_sleep(epfd: c_int) -> Sleep {
    match set_of(epfd) {
        // The look at the set that this signal handler has interrupted raises the flags, or does not.
        Some(set) if set.is_interrupted() => Sleep::Briefly,
        Some(set) => {
            set.set_inner();
            tell_all(epfd, set);
            arm(set, true, 0)
        }
        None => Sleep::Yes,
    }
}

/// What is true of the set `epfd`, which the kernel reports as ready: the bytes that made it ready may have been read
/// already.
pub fn confirm(epfd: c_int, events: i16) -> i16 {
    if has_ready(epfd) {
        return events & IN as i16;
    }
    // From now on doorbells wake the sleeper, and a look here may take them.
    prepare_to_sleep(epfd);
    if let Some(set) = set_of(epfd) {
        calm_all(set, 0);
    }
    kernel::poll_now(epfd, events)
}

/// Takes back whatever was to wake a sleeper on the set and has been read since.
fn calm_all(set: &Set, depth: u32) {
    silence(set.epfd(), set);
    if set.is_interrupted() {
        for port in registered(set).filter_map(port) {
            port.take_late_bells();
        }
    }
    // A signal handler that has interrupted a look at the set leaves kicks as they are: at worst it is told of a set
    // that has nothing, as a thread is that another has overtaken.
    set.each(|fd, item| {
        let Some(port) = port(fd).filter(|_| item.wants(IN)) else { return };
        port.take_late_bells();
        if item.is_kicked() && port.ready() != Ready::Yes {
            item.set_kicked(false);
            register(set.epfd(), fd, item.events, item.data);
        }
    });
    for inner in set.inner().filter_map(set_of).filter(|_| depth < MAX_DEPTH) {
        calm_all(inner, depth + 1);
    }
}

/// Raises the waiting flags of the active sockets and leaves them to the kernel.
///
/// With `alone` each socket gets a doorbell of its own, for a thread that sleeps on the set from outside. That includes
/// sockets at which something is there already, because it may be reported once only.
pub(super) fn arm(set: &Set, alone: bool, depth: u32) -> Sleep {
    if set.is_interrupted() {
        return Sleep::Briefly;
    }
    let mut sleep = Sleep::Yes;
    let mut ready = None;
    set.scan(|fd, item, joining| {
        let Some(port) = port(fd) else { return Scan::Leave };
        let (epfd, before) = (set.epfd(), item.room);
        if alone {
            // A thread that sleeps on the set from outside is woken by the kernel's room.
            if before != Room::Kernel {
                port.go_down_for_room();
            }
            ask_kernel_for_room(epfd, fd, item);
        } else {
            match look(&port, item) {
                Found::None => mute(epfd, fd, item),
                Found::Room => sleep = Sleep::No,
                Found::Nothing => ask_kernel_for_room(epfd, fd, item),
            }
        }
        if !item.wants(IN) {
            item.wake_up(port.end);
            return Scan::Leave;
        }
        match rest(set, item, joining, &port, alone) {
            Sleep::Yes => Scan::Leave,
            // Edge-triggered, and the data was reported already: the program may sleep with it unread.
            Sleep::No if port.ready() == Ready::Yes && news(&port, item).is_none() => {
                if !may_be_told_again(&port) {
                    return Scan::Leave;
                }
                if sleep == Sleep::Yes {
                    sleep = Sleep::Briefly;
                }
                Scan::Keep
            }
            Sleep::No => {
                (sleep, ready) = (Sleep::No, Some(fd));
                if alone { Scan::Keep } else { Scan::Enough }
            }
            Sleep::Briefly => {
                if sleep == Sleep::Yes {
                    sleep = Sleep::Briefly;
                }
                Scan::Keep
            }
        }
    });
    if let Some(fd) = ready.filter(|_| depth > 0) {
        // An outer set learns of what lies in an inner set's rings only from the kernel, and only once.
        if set.item(fd).is_none_or(|item| !item.is_kicked()) {
            kick(set.epfd(), set, fd);
        } else {
            sound_if_full(set.epfd(), set, fd);
        }
        sleep = Sleep::Yes;
    }
    if sleep == Sleep::Yes { arm_inner(set, depth) } else { sleep }
}

/// Whether another process may shut the connection down. That makes another edge, which reports again data that was
/// reported before. As long as that data lies in the ring, nothing wakes a sleeper for that edge.
fn may_be_told_again(port: &Port<'_>) -> bool {
    port.end.owners.are_several()
}

/// Arms the sets that are registered in this one: the kernel reports what is true of them.
pub(super) fn arm_inner(set: &Set, depth: u32) -> Sleep {
    let mut inner = set.inner().filter_map(set_of).filter(|_| depth < MAX_DEPTH);
    inner
        .try_fold(Sleep::Yes, |_, inner| match arm(inner, true, depth + 1) {
            Sleep::Yes => Ok(Sleep::Yes),
            sleep => Err(sleep),
        })
        .unwrap_or_else(|sleep| sleep)
}

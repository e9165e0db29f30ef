//! epoll_create; epoll_ctl: the program's registrations, at once or put off, and the library's own changes of them.

use super::room::give_back;
use super::sleep::{hand_over, leave_group, wake_by_itself, wake_up, watch};
use super::{EDGE, EXCLUSIVE, IN, has_kernel_room, has_sleepers, need_set, port, rests, set_of};
use crate::connection::{self, Connection, confined};
use crate::guest::access::is_readable;
use crate::guest::table::{self, Known, Socket};
use crate::guest::{errno, filter, real, settings, thread};
use crate::lifecycle::{adopt, reuse};
use crate::watch::set::{self, Later, Left, Room, Set};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::kernel;
use underpass_segment::link::ALONE;
use underpass_segment::raw::is_quiet;
use underpass_segment::reason::Reason;
use underpass_segment::switch::{Port, Sleep, Told};
use underpass_segment::sync::Relaxed;

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
        rests::note_set(epfd);
    }
    epfd
}

/// `epfd` came over an execution: if it is a set, what is registered there of the connections that came along is followed.
pub fn claim(epfd: c_int) {
    if !kernel::is_epoll(epfd) {
        return;
    }
    let follow = |fd, events, data| {
        let Some(connection) = connection::known(fd) else { return };
        // The set is made with what is there, none of it ours.
        if need_set(epfd).is_none_or(|set| set.follow(fd, events, data, || 0).is_err()) {
            return adopt::give_up(fd, Reason::NoMemory);
        }
        watch(connection, table::generation(fd));
        if let Some(set) = set_of(epfd) {
            set.activate(fd);
        }
    };
    // Without /proc no set is known.
    let _ = kernel::for_each_registration(epfd, follow);
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let known = table::get_for_call(fd);
    let listens = matches!(known, Known::Socket(Socket { listens: true, .. }));
    let socket = matches!(known, Known::Socket(_) | Known::Connection(_)) && !listens;
    // SAFETY: passed on to the caller.
    let plain = || unsafe { real::epoll_ctl(epfd, operation, fd, event) };
    if thread::is_vfork_child() || !settings::config().enabled {
        return plain();
    }
    let is_read = operation != libc::EPOLL_CTL_DEL && is_readable(event, 1);
    // SAFETY: there is something to read.
    let wanted = is_read.then(|| unsafe { ((*event).events, (*event).u64) });
    let call = || {
        let change = rests::Change::begin(epfd, operation, fd, wanted);
        let answer = match change.as_ref().and_then(rests::Change::event) {
            // SAFETY: an event of this frame.
            Some(mut event) => unsafe { real::epoll_ctl(epfd, operation, fd, &mut event) },
            None => plain(),
        };
        if let Some(change) = change {
            change.end(answer == 0);
        }
        answer
    };
    if let Some(set) = set_of(epfd).filter(|set| set.is_below()) {
        return control_above(set, operation, fd, wanted, socket, call);
    }
    // A confined connection is the kernel's, also if the filter was refused; not one in which a thread slept when it came.
    let behind_filter = filter::is_confined();
    let is_confined = || connection::known(fd).map_or(behind_filter, |it| it.is_confined());
    if (behind_filter || confined::has_rests()) && is_confined() {
        return control_foreign(epfd, operation, fd, wanted, call);
    }
    if !socket && (listens || table::is_settled(fd) || !is_set(operation, fd)) {
        return control_foreign(epfd, operation, fd, wanted, call);
    }
    match postpone(epfd, operation, fd, wanted) {
        Later::Done => return 0,
        Later::Absent => {
            errno::set(libc::ENOENT);
            return -1;
        }
        Later::Now => {}
    }
    if operation == libc::EPOLL_CTL_DEL {
        let Some(set) = set_of(epfd) else { return call() };
        let end = connection::known(fd).map(|connection| connection.end);
        let answer = set.follow_removal(fd, call, |item| {
            if let Some(end) = end {
                wake_up(item, end);
            }
        });
        if answer == 0 {
            set.remove_inner(fd);
            if let Some(port) = port(fd) {
                leave_group(epfd, set, &port);
            }
        }
        return answer;
    }
    // A socket that was once taken for a set, and refused, is none.
    if let Some(inner) = set_of(fd).filter(|_| !socket) {
        let answer = call();
        if answer == 0
            && let Some(set) = need_set(epfd)
        {
            set.add_inner(fd);
            if let Some((events, data)) = wanted {
                set.note_foreign(fd, events, data);
            }
            inner.set_inner();
            settle(fd, inner);
            // A thread may be asleep on the outer set already.
            hand_over(fd, inner);
        }
        return answer;
    }
    let Some((events, data)) = wanted else { return call() };
    // As soon as the kernel knows, another thread may be told of the socket, close it and have the number for another.
    let generation = table::generation(fd);
    let Some(set) = need_set(epfd) else {
        adopt::give_up(fd, Reason::NoMemory);
        return call();
    };
    let answer = match set.follow(fd, events, data, call) {
        Ok(answer) => answer,
        Err(answer) => {
            adopt::give_up(fd, Reason::NoMemory);
            return answer;
        }
    };
    if connection::known(fd).is_some_and(|it| it.is_confined()) {
        // The filter came meanwhile.
        super::settle(fd, generation);
        return answer;
    }
    if answer == 0
        && table::generation(fd) == generation
        && let Some(connection) = adopt::of(fd)
    {
        if operation == libc::EPOLL_CTL_ADD {
            watch(connection, generation);
        }
        if events & IN != 0 {
            adopt::hasten(fd);
        }
        if let Some(port) = connection.ready_port() {
            set.look_at(fd, |item| {
                item.set_told(Told::default());
                true
            });
            if events & IN == 0 {
                leave_group(epfd, set, &port);
            }
            wake_sleepers(epfd, set, &port, events, generation);
        }
    }
    answer
}

/// epoll_ctl in a signal handler on top of a look at the set, to which it leaves what has changed.
fn control_above(
    set: &Set,
    operation: c_int,
    fd: c_int,
    wanted: Option<(u32, u64)>,
    socket: bool,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // What was put off, the kernel must know first.
    set.tell(fd, |change| tell(set.epfd(), fd, change));
    let answer = call();
    if answer == 0 {
        match wanted {
            Some((events, data)) => {
                let generation = table::generation(fd);
                set.leave(Left::Changed { fd, generation, events, data, foreign: !socket });
                if socket && let Some(connection) = adopt::of(fd) {
                    connection.end.watch();
                    wake_by_itself(connection);
                }
            }
            None if operation == libc::EPOLL_CTL_DEL => set.leave(Left::Removed { fd }),
            None => {}
        }
    }
    answer
}

/// Whether `fd`, which is no socket of ours, is an epoll set; it has to be known before it is registered in another.
fn is_set(operation: c_int, fd: c_int) -> bool {
    set_of(fd).is_some()
        || operation == libc::EPOLL_CTL_ADD && !is_quiet() && kernel::is_epoll(fd) && need_set(fd).is_some()
}

/// epoll_ctl for what is no socket of ours: a set that has any takes note, for events tell no descriptors.
fn control_foreign(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    wanted: Option<(u32, u64)>,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(set) = set_of(epfd) else { return call() };
    match wanted {
        _ if operation == libc::EPOLL_CTL_DEL => set.follow_removal(fd, call, |_| {}),
        Some((events, data)) => {
            set.forget_closed(data);
            let answer = call();
            if answer == 0 {
                set.note_foreign(fd, events, data);
            }
            answer
        }
        None => call(),
    }
}

/// A thread may be asleep on the set already: what is there by now must wake it, and what comes.
fn wake_sleepers(epfd: c_int, set: &Set, port: &Port<'_>, events: u32, generation: u64) {
    if events & IN == 0 {
        return;
    }
    let mut sleep = Sleep::Yes;
    set.with_item(port.fd, |item| {
        // Used up: whoever has it arms it again.
        if table::generation(port.fd) != generation || item.is_disarmed() {
            return;
        }
        if !item.set_resting(true) {
            port.end.reading.resting.add(ALONE);
        }
        sleep = port.prepare_to_sleep(ALONE);
    });
    if sleep == Sleep::No {
        kick(epfd, set, port.fd);
    }
}

/// The program has shut a direction of the connection down, of which the kernel tells all who watch it, of what has come too:
/// an edge that was told of before is one again. Sets of other processes find out by themselves.
pub fn tell_anew(connection: Connection) {
    for fd in connection.descriptors() {
        let Some(port) = port(fd) else { continue };
        // A signal handler on top of a look leaves it at that: whoever looks tells what it finds.
        for set in set::having(fd).filter(|set| !set.is_below()) {
            let mut events = 0;
            set.look_at(fd, |item| {
                events = item.events;
                if events & EDGE != 0 {
                    item.set_told(Told::default());
                }
                events & EDGE != 0
            });
            if events & EDGE != 0 {
                wake_sleepers(set.epfd(), set, &port, events, table::generation(fd));
            }
        }
    }
}

/// A program that asks for room and stops asking with every message changes its registration several times a message.
/// While the connection is fast the set answers that in user space, and the kernel is told before the next sleep on it
/// only.
fn postpone(epfd: c_int, operation: c_int, fd: c_int, wanted: Option<(u32, u64)>) -> Later {
    let Some(set) = set_of(epfd) else { return Later::Now };
    if !set.is_mine() {
        // Another thread may be about to be told of what this one removes.
        settle(epfd, set);
        return Later::Now;
    }
    let fast = port(fd).filter(|port| port.sends_fast() && !has_sleepers(epfd));
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
        if wanted.is_none_or(|(events, _)| events & IN == 0) {
            leave_group(epfd, set, &port);
        }
        // A thread may have gone to sleep meanwhile.
        if has_sleepers(epfd) {
            set.tell(fd, |change| tell(epfd, fd, change));
            wake_sleepers(epfd, set, &port, wanted.map_or(0, |(events, _)| events), table::generation(fd));
        }
    }
    later
}

pub(super) fn tell(epfd: c_int, fd: c_int, change: Option<(u32, u64)>) {
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

/// A descriptor is about to be closed while its socket stays open by another, perhaps `heir`: its registrations go on as
/// the kernel has them, and cannot be changed any more.
pub fn settle_socket(connection: Connection, heir: impl FnOnce() -> Option<c_int>) {
    if connection.end.watched.load(Relaxed) == 0 {
        return;
    }
    let (fd, heir) = (connection.fd, heir());
    for set in set::having(fd) {
        set.tell(fd, |change| tell(set.epfd(), fd, change));
        set.with_item(fd, |item| {
            give_back(set.epfd(), fd, item);
            if item.kicked {
                item.set_kicked(false);
                register(set.epfd(), fd, item.events, item.data);
            }
        });
        if let Some(heir) = heir {
            set.adopt(fd, heir);
        }
    }
}

/// Tells the kernel of the registrations that were changed without it.
pub(super) fn settle(epfd: c_int, set: &Set) {
    set.tell_all(|fd, change| tell(epfd, fd, change));
}

/// Makes the kernel's epoll report `fd`, which has something to read, at once: if the socket is writable, asking for that
/// does.
pub(super) fn kick(epfd: c_int, set: &Set, fd: c_int) {
    set.with_item(fd, |item| {
        if item.wants(IN) {
            item.set_kicked(true);
            if item.room == Room::SetAlone {
                item.set_room(Room::Set);
            }
            // Nothing more: an exclusive registration must not have EPOLLWRNORM.
            register(epfd, fd, item.events | libc::EPOLLOUT as u32, item.data);
        }
    });
    sound_if_full(epfd, set, fd);
}

/// Wakes a sleeper by a descriptor of the library's own, where `fd` is not writable: the other end may read nothing before
/// it is answered.
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

/// It has done so.
pub(super) fn silence(epfd: c_int, set: &Set) {
    if is_quiet() {
        return;
    }
    if let Some(alarm) = set.take_alarm() {
        tell(epfd, alarm, None);
        kernel::close(alarm);
    }
}

/// Changes the kernel's registration without the program's knowledge.
pub(super) fn register(epfd: c_int, fd: c_int, events: u32, data: u64) {
    let mut event = epoll_event { events, u64: data };
    let before = errno::get();
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
    errno::set(before);
}

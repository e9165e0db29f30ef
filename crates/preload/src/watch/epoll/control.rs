//! The program's registrations (epoll_ctl): made at once, or put off.

use super::line;
use super::register::{give_back, kick, register, tell_all, tell_change};
use super::room::ask_kernel_for_room;
use super::sleep::{leave_group, leave_to_sleepers, watch};
use super::{EDGE, IN, has_sleepers, need_set, port, rests, set_of};
use crate::connection::{self, Connection, confined, known};
use crate::guest::{errno, filter, table};
use crate::watch::set::{self, Change, Later, Set};
use core::ffi::c_int;
use libc::epoll_event;
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;
use underpass_segment::switch::{Port, Sleep, Told};
use underpass_segment::words::ALONE;

/// A call of epoll_ctl(2) by a process that follows what it registers.
pub struct Control {
    /// The set.
    pub epfd: c_int,
    /// What is to be done.
    pub operation: c_int,
    /// The descriptor in question.
    pub fd: c_int,
    /// Events and data; `None` if the call has none.
    pub wanted: Option<(u32, u64)>,
    /// It is a stream socket that may be, or become, a connection.
    pub is_socket: bool,
    /// It listens.
    pub listens: bool,
}

/// The result of a call.
pub enum Controlled {
    /// The call was made, or refused: the program's answer.
    Answered(c_int),
    /// The call was not made yet, because there is no memory to follow the registration.
    NoMemory,
    /// The call was made, and the registration is not followed for want of memory.
    Unfollowed(c_int),
    /// A socket is registered, in this generation of its number.
    Followed(&'static Set, u64),
}

impl Control {
    /// The set, if this is a signal handler that has interrupted a look at it.
    pub fn interrupted_set(&self) -> Option<&'static Set> {
        set_of(self.epfd).filter(|set| set.is_interrupted())
    }

    /// Makes the call by `plain`, the program's own, which may get another event than the program's; follows it in
    /// [`rests`] too.
    pub fn call(&self, plain: impl Fn(Option<epoll_event>) -> c_int) -> c_int {
        rests::change(self.epfd, self.operation, self.fd, self.wanted, plain)
    }

    /// Makes the call by `call`, unless the set answers it in user space.
    pub fn make(&self, call: impl Fn() -> c_int) -> Controlled {
        let Control { epfd, operation, fd, wanted, .. } = *self;
        // A confined connection is left to the kernel, also if the filter was refused; but not a connection in which a
        // thread slept when the filter came.
        let is_confined = || known(fd).map_or_else(filter::is_confined, |it| it.is_confined());
        if confined::are_any_confined() && is_confined() {
            return Controlled::Answered(self.make_foreign(call));
        }
        if !self.is_socket && (self.is_surely_no_set() || !self.is_set()) {
            return Controlled::Answered(self.make_foreign(call));
        }
        match self.postpone() {
            Later::Done => return Controlled::Answered(0),
            Later::Absent => {
                errno::set(libc::ENOENT);
                return Controlled::Answered(-1);
            }
            Later::Now => {}
        }
        if operation == libc::EPOLL_CTL_DEL {
            return Controlled::Answered(self.remove(call));
        }
        // A socket that was once taken for a set, and refused, is not a set.
        if let Some(inner) = set_of(fd).filter(|_| !self.is_socket) {
            return Controlled::Answered(self.add_set(inner, call));
        }
        let Some((events, data)) = wanted else { return Controlled::Answered(call()) };
        // As soon as the kernel knows the registration, another thread may get an event of the socket, close it and get
        // the number for another one.
        let generation = table::generation(fd);
        let Some(set) = need_set(epfd) else { return Controlled::NoMemory };
        let answer = match set.follow(fd, events, data, call) {
            Ok(answer) => answer,
            Err(answer) => return Controlled::Unfollowed(answer),
        };
        if known(fd).is_some_and(|it| it.is_confined()) {
            // The seccomp filter came meanwhile.
            super::make_foreign(fd, generation);
            return Controlled::Answered(answer);
        }
        if answer == 0 && table::generation(fd) == generation {
            return Controlled::Followed(set, generation);
        }
        Controlled::Answered(answer)
    }

    fn remove(&self, call: impl FnOnce() -> c_int) -> c_int {
        let (epfd, fd) = (self.epfd, self.fd);
        let Some(set) = set_of(epfd) else { return call() };
        let answer = set.follow_removal(fd, call);
        if answer == 0
            && let Some(port) = port(fd)
        {
            leave_group(epfd, set, &port);
        }
        answer
    }

    /// Registers a descriptor that is a set itself.
    fn add_set(&self, inner: &Set, call: impl FnOnce() -> c_int) -> c_int {
        let (epfd, fd) = (self.epfd, self.fd);
        let answer = call();
        if answer == 0
            && let Some(set) = need_set(epfd)
        {
            if let Some((events, data)) = self.wanted {
                set.note_foreign(fd, events, data);
            }
            self.nest(set, inner);
        }
        answer
    }

    /// `inner` has been registered in `set`.
    fn nest(&self, set: &Set, inner: &Set) {
        set.add_inner(self.fd);
        inner.set_inner();
        tell_all(self.fd, inner);
        // A thread may be asleep on the outer set already.
        leave_to_sleepers(self.fd, inner);
    }

    /// The socket that was registered in `set` is a connection: looks at it.
    pub fn attend(&self, connection: Connection, set: &Set, generation: u64) {
        let (epfd, fd) = (self.epfd, self.fd);
        let events = self.wanted.map_or(0, |(events, _)| events);
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

    /// Makes the call by `call` in a signal handler that has interrupted a look at the set: that look makes the change
    /// later. Returns also whether a socket is registered.
    pub fn make_above(&self, set: &Set, call: impl FnOnce() -> c_int) -> (c_int, bool) {
        let Control { operation, fd, wanted, is_socket, .. } = *self;
        // The kernel must know first what was put off.
        set.tell(fd, |change| tell_change(set.epfd(), fd, change));
        set.expect_for_native(fd, wanted.map_or(0, |(events, _)| events));
        let inner = if !is_socket && !self.is_surely_no_set() && self.is_set() { set_of(fd) } else { None };
        let answer = call();
        if answer != 0 {
            return (answer, false);
        }
        if let Some((events, data)) = wanted {
            let generation = table::generation(fd);
            set.change(Change::Registered { fd, generation, events, data, foreign: !is_socket });
            set.change(Change::Active { fd });
            inner.into_iter().for_each(|inner| self.nest(set, inner));
        } else if operation == libc::EPOLL_CTL_DEL {
            set.change(Change::Removed { fd });
            set.remove_inner(fd);
        }
        (answer, is_socket && wanted.is_some())
    }

    /// Whether `fd`, which is no socket of ours, is an epoll set. A set has to be known before it is registered in
    /// another set.
    fn is_set(&self) -> bool {
        let (operation, fd) = (self.operation, self.fd);
        set_of(fd).is_some()
            || operation == libc::EPOLL_CTL_ADD && !is_quiet() && kernel::is_epoll(fd) && need_set(fd).is_some()
    }

    /// Whether it is a socket that is not followed.
    fn is_surely_no_set(&self) -> bool {
        self.listens || table::is_settled(self.fd) || table::given_to_libc(self.fd).is_some()
    }

    /// Makes the call by `call` for a descriptor that is no socket of ours. A set that has sockets of ours keeps it,
    /// because events do not name descriptors.
    fn make_foreign(&self, call: impl FnOnce() -> c_int) -> c_int {
        let Control { epfd, operation, fd, wanted, .. } = *self;
        let Some(set) = set_of(epfd) else { return call() };
        match wanted {
            _ if operation == libc::EPOLL_CTL_DEL => set.follow_removal(fd, call),
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

    /// A program that asks for room and stops asking with every message changes its registration several times a
    /// message. While the connection is fast the set answers that in user space, and tells the kernel only before the
    /// next sleep on the set.
    fn postpone(&self) -> Later {
        let Control { epfd, operation, fd, wanted, .. } = *self;
        let Some(set) = set_of(epfd) else { return Later::Now };
        if !set.is_mine() {
            // Another thread may be about to get an event of the registration that this one removes.
            tell_all(epfd, set);
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
            // The kernel must know what was put off before this call.
            set.tell(fd, |change| tell_change(epfd, fd, change));
        }
        if let (Later::Done, Some(port)) = (later, fast) {
            if wanted.is_none() {
                set.with_item(fd, |item| item.wake_up(port.end));
            }
            if wanted.is_none_or(|(events, _)| events & IN == 0) {
                leave_group(epfd, set, &port);
            }
            // A thread may have gone to sleep meanwhile.
            if has_sleepers(epfd) {
                set.tell(fd, |change| tell_change(epfd, fd, change));
                wake_sleepers(epfd, set, &port, wanted.map_or(0, |(events, _)| events), table::generation(fd));
            }
        }
        later
    }
}

/// A thread may be asleep on the set already: what is there by now must wake it, and so must what comes later.
fn wake_sleepers(epfd: c_int, set: &Set, port: &Port<'_>, events: u32, generation: u64) {
    if events & IN == 0 {
        return;
    }
    let mut sleep = Sleep::Yes;
    set.with_item(port.fd, |item| {
        // Used up: the thread that was given its event arms it again.
        if table::generation(port.fd) != generation || item.is_disarmed() {
            return;
        }
        if !item.set_resting(true) {
            port.end.reading.resting.add(ALONE);
        }
        line::be_rung(set, port);
        sleep = port.prepare_to_sleep(ALONE);
    });
    if sleep == Sleep::No {
        kick(epfd, set, port.fd);
    }
}

/// `epfd` came over an execution. If it is a set, the connections that are registered in it are followed from now on.
/// `give_up` is called for those that cannot be followed for want of memory.
pub fn claim(epfd: c_int, give_up: impl Fn(c_int)) {
    if !kernel::is_epoll(epfd) {
        return;
    }
    let follow = |fd, events, data| {
        let Some(connection) = connection::known(fd) else { return };
        // A new set takes over what is registered there, as descriptors that are no sockets of ours.
        if need_set(epfd).is_none_or(|set| set.follow(fd, events, data, || 0).is_err()) {
            return give_up(fd);
        }
        watch(connection, table::generation(fd));
        if let Some(set) = set_of(epfd) {
            set.activate(fd);
        }
    };
    // Without /proc no set is known.
    let _ = kernel::for_each_registration(epfd, follow);
}

/// The program has shut a direction of the connection down. The kernel reports that to all that watch the connection,
/// together with what has come before: an edge that was reported is an edge again. Sets of other processes find out by
/// themselves.
pub fn tell_anew(connection: Connection) {
    for fd in connection.descriptors() {
        let Some(port) = port(fd) else { continue };
        // A signal handler that has interrupted a look at the set does no more: that look reports what it finds.
        for set in set::sets_of(fd).filter(|set| !set.is_interrupted()) {
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

/// A descriptor is about to be closed while its socket stays open by another, perhaps `heir`. Its registrations stay as
/// the kernel has them, and cannot be changed any more.
pub fn freeze_registrations(connection: Connection, heir: impl FnOnce() -> Option<c_int>) {
    if !connection.end.is_watched() {
        return;
    }
    let (fd, heir) = (connection.fd, heir());
    for set in set::sets_of(fd) {
        set.tell(fd, |change| tell_change(set.epfd(), fd, change));
        if set.is_interrupted() {
            give_back(set, fd);
        }
        set.with_item(fd, |item| {
            ask_kernel_for_room(set.epfd(), fd, item);
            if item.is_kicked() {
                item.set_kicked(false);
                register(set.epfd(), fd, item.events, item.data);
            }
        });
        if let Some(heir) = heir {
            set.adopt(fd, heir);
        }
    }
}

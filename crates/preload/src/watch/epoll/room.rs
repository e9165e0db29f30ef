//! Sets whose program waits for room in a ring. The kernel's own buffers are empty meanwhile, and it must not report
//! room. Nothing reports room in the ring, so the set sleeps briefly and looks.
//!
//! A registration for which the set looks ([`Room`]) stays active. As soon as the set cannot look (the direction leaves
//! the ring, the socket or the set goes elsewhere), the kernel gets its registration back, and reports its own room.

use super::register::register;
use super::{EDGE, ONCE, OUT, has_sleepers, port};
use crate::connection;
use crate::watch::set::{self, Item, Room, Scan, Set};
use core::ffi::c_int;
use underpass_segment::switch::Port;

/// Whether sets that may tell of room in the ring of `port` can look for it.
pub fn looks_for_room(port: &Port<'_>) -> bool {
    let Some(connection) = connection::known(port.fd) else { return false };
    // A set that this signal handler has interrupted cannot be told now; on an inner set a thread sleeps from outside.
    connection.descriptors().all(|fd| set::sets_of(fd).all(|set| !set.is_interrupted() && !set.is_inner()))
}

/// A send on `port` was refused, because its ring is full. Sets that have to report room look at it from now on, also
/// sets on which a thread sleeps.
pub fn await_room(port: &Port<'_>) {
    let Some(connection) = connection::known(port.fd) else { return };
    for fd in connection.descriptors() {
        for set in set::sets_of(fd).filter(|set| !set.is_interrupted()) {
            set.look_at(fd, |item| {
                item.set_owes_room(true);
                let is_new = item.wants(OUT) && can_look(item) && item.room == Room::Kernel;
                if is_new {
                    item.set_room(Room::Set);
                    if has_sleepers(set.epfd()) || set.is_inner() {
                        // The kernel looks for its own room once more, finds it, and wakes a sleeper, which looks at
                        // the ring's.
                        register(set.epfd(), fd, item.events, item.data);
                    }
                }
                is_new
            });
        }
    }
}

/// The result of a set's look for room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The set has nothing to report: the kernel does, if necessary.
    Nothing,
    /// Room in the ring is to be reported.
    Room,
    /// The ring has no room yet.
    None,
}

/// Whether room in the ring is to be reported to the program.
pub(super) fn look(port: &Port<'_>, item: &Item) -> Found {
    let level = item.events & (EDGE | ONCE) == 0;
    match item.room {
        _ if !item.wants(OUT) => Found::Nothing,
        Room::Kernel if level && port.sends_fast() => {
            if port.offers_room() {
                Found::Room
            } else {
                Found::None
            }
        }
        Room::Kernel => Found::Nothing,
        Room::Set | Room::SetAlone if port.has_room_again() => Found::Room,
        Room::Set | Room::SetAlone if port.keeps_waiting() => Found::None,
        Room::Set | Room::SetAlone => Found::Nothing,
    }
}

/// Whether room in the ring is to be reported to the program. Gives the kernel its registration back where the set has
/// nothing to look for any more.
pub(super) fn look_anew(epfd: c_int, fd: c_int, port: &Port<'_>, item: &mut Item) -> Found {
    let found = look(port, item);
    if found == Found::Room {
        port.told_of_room();
    }
    match found {
        Found::Nothing => ask_kernel_for_room(epfd, fd, item),
        Found::Room if item.room == Room::SetAlone => ask_kernel_for_room(epfd, fd, item),
        Found::Room => item.set_room(Room::Kernel),
        Found::None if item.room == Room::Kernel && can_look(item) => item.set_room(Room::Set),
        Found::None => {}
    }
    found
}

/// The kernel reports room. Whether that is only room in the kernel's own buffers.
pub(super) fn is_about_the_kernel(set: &Set, port: &Port<'_>, item: &mut Item) -> bool {
    let told = if !port.stays_in_ring() || port.offers_room() {
        true
    } else {
        // No set looks for room in the ring for these. If the direction cannot go down just now, the kernel reports
        // again.
        if !can_look(item) || set.is_inner() {
            port.go_down_for_room();
        }
        !port.sends_fast()
    };
    if told {
        if item.room == Room::SetAlone {
            ask_kernel_for_room(set.epfd(), port.fd, item);
        }
        item.set_room(Room::Kernel);
        return false;
    }
    // The kernel has reported room, so its registration asks for that: `Set`, and not `SetAlone`.
    if can_look(item) {
        item.set_room(Room::Set);
    }
    true
}

/// Whether the set can look for room: it gives the registration back to the kernel afterwards, which takes none that is
/// used up, or whose descriptor is closed.
fn can_look(item: &Item) -> bool {
    item.events & ONCE == 0 && !item.is_adopted()
}

/// Before a sleep on the set: from now on the kernel does not report its own room. An edge of it was reported before.
pub(super) fn mute(epfd: c_int, fd: c_int, item: &mut Item) {
    if item.events & EDGE == 0 && item.room != Room::SetAlone {
        register(epfd, fd, item.events & !OUT, item.data);
        item.set_room(Room::SetAlone);
    }
}

/// The set does not look for room any more: has the kernel report room, even if it has done so before.
pub(super) fn ask_kernel_for_room(epfd: c_int, fd: c_int, item: &mut Item) {
    if item.room != Room::Kernel {
        item.set_room(Room::Kernel);
        register(epfd, fd, item.events, item.data);
    }
}

/// How long a sleep on the set may last, in nanoseconds, where something waits for room; 0: nothing waits.
pub(super) fn look_in(epfd: c_int, set: &Set) -> u64 {
    let mut soonest = u64::MAX;
    set.scan(|fd, item, _| {
        if item.room == Room::Kernel {
            return Scan::Keep;
        }
        let Some(port) = port(fd) else {
            ask_kernel_for_room(epfd, fd, item);
            return Scan::Keep;
        };
        let next = port.looks_for_room_in();
        match look(&port, item) {
            Found::None => soonest = soonest.min(next.unwrap_or(0)),
            Found::Room => soonest = 0,
            Found::Nothing => ask_kernel_for_room(epfd, fd, item),
        }
        Scan::Keep
    });
    soonest
}

/// Whether a socket that the set looks at waits for room.
pub(super) fn any_waits(set: &Set) -> bool {
    let mut any = false;
    set.scan(|_, item, _| {
        any |= item.room != Room::Kernel;
        if any { Scan::Enough } else { Scan::Keep }
    });
    any
}

//! The library finds out whether a descriptor is a TCP connection, and adopts it: gives it an end, or finds the end
//! that it has.

use super::handoff::carried::{self, Carried};
use crate::connection::count::{after_execution, count_reason, forget_carried};
use crate::connection::handle::{HIGHEST, Handle, handle};
use crate::connection::leaving::{end_lost, end_lost_for};
use crate::connection::look::for_each;
use crate::connection::references::{close_orphan, drop_reference, is_pool_used, take_back_what_is_left};
use crate::connection::state::{Attachment, Usage};
use crate::connection::way::Way;
use crate::connection::{Connection, is_own};
use crate::guest::table::{self, Known, Nonblocking, Socket};
use crate::guest::{family, filter, forked, settings, statistics, thread};
use crate::watch::{epoll, set};
use underpass_segment::end::{End, Stage};
use underpass_segment::family::{Departing, Family};
use underpass_segment::kernel;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AcqRel, Relaxed, Release};

/// The connection that `fd` is; `None` if libc's own call is all there is to do.
#[inline(always)]
pub fn of(fd: i32) -> Option<Connection> {
    // Plain numbers on all branches: if one branch returned a connection in memory, every call would copy it.
    let index = match table::get_for_call(fd) {
        Known::Other | Known::Socket(Socket { listens: true, .. }) => return None,
        Known::Connection(index) if forked::is_unusual() && !is_own(fd, index) => return None,
        Known::Connection(index) => index,
        known => classify(fd, known, kernel::carries)?,
    };
    Some(Connection { end: family::existing()?.end(index), index, fd })
}

/// The connection of a socket that is about to get another descriptor, or another process. Whichever process connects
/// it, by whichever descriptor, all of them must have one end for it.
pub fn recognise(fd: i32) -> Option<Connection> {
    if let known @ Known::Socket(_) = table::get(fd)
        && classify(fd, known, kernel::may_carry).is_none()
    {
        table::note(fd, |socket| Socket { nonblocking: Nonblocking::Shared, is_connected: false, ..socket });
        return None;
    }
    of(fd)
}

/// The index of the end of `fd`, which gets one if it is a connection in one of the wanted TCP states.
#[cold]
fn classify(fd: i32, known: Known, wanted: fn(u8) -> bool) -> Option<u32> {
    if fd < 0 || thread::is_vfork_child() {
        return None;
    }
    forked::check();
    let generation = table::generation(fd);
    let socket = if let Known::Socket(socket) = known { Some(socket) } else { None };
    if filter::is_confined() {
        disown(fd, known);
        if socket.is_some() {
            seen(Reason::Seccomp);
        }
        return None;
    }
    let seen_before = socket.unwrap_or_default();
    if !seen_before.is_tcp && !kernel::is_tcp(fd) {
        // A number that is free, or not yet a socket of ours, may become something else later.
        disown(fd, known);
        return None;
    }
    // In any TCP state: data may be in the ring even when both ends have sent their FIN.
    if known == Known::Nothing
        && let Some(index) = brought(fd, CameBy::Message)
    {
        return Some(index);
    }
    if !seen_before.is_connected && !wanted(kernel::counters(fd).ok()?.state) {
        return None;
    }
    if known == Known::Nothing {
        // It came by exec or over a Unix socket: another program may use it without the library's knowledge.
        disown(fd, known);
        seen(Reason::Inherited);
        return None;
    }
    let Some(family) = family::family(let_go_of_pool) else {
        if let Some(reason) = family::none() {
            disown(fd, known);
            seen(reason);
        }
        return None;
    };
    let Some((index, handle)) = take(family) else {
        disown(fd, known);
        seen(Reason::NoMemory);
        return None;
    };
    let end = family.end(index);
    end.nonblocking.store(is_nonblocking(fd, seen_before).into(), Relaxed);
    end.origin.store(seen_before.origin() as u8, Relaxed);
    handle.attachment.store(Attachment::Absent, Relaxed);
    handle.usage.store(Usage::Unused, Relaxed);
    handle.inside.clear();
    handle.begin();
    HIGHEST.fetch_max(index + 1, Relaxed);
    handle.descriptors.store(1, Release);
    let connection = Connection { end, index, fd };
    if let Err(now) = enter(connection, known, generation) {
        handle.descriptors.store(0, Relaxed);
        family.free(index);
        // Another thread was faster.
        return if let Known::Connection(index) = now { Some(index) } else { None };
    }
    epoll::watch(connection, table::generation(fd));
    connection.mind_stdio();
    Some(index)
}

/// Enters the connection into the table, in which its descriptor was `known` as something else in this `generation`.
/// `Err` with what another thread has entered meanwhile.
fn enter(connection: Connection, known: Known, generation: u64) -> Result<(), Known> {
    let Connection { end, index, fd } = connection;
    let mut known = known;
    while !table::replace(fd, known, Known::Connection(index)) {
        known = table::get(fd);
        match known {
            // Another thread has entered more about the socket meanwhile.
            Known::Socket(socket) if table::generation(fd) == generation => {
                end.nonblocking.store(is_nonblocking(fd, socket).into(), Relaxed);
            }
            _ => return Err(known),
        }
    }
    Ok(())
}

fn is_nonblocking(fd: i32, socket: Socket) -> bool {
    match socket.nonblocking {
        Nonblocking::No => false,
        Nonblocking::Yes => true,
        Nonblocking::Unknown | Nonblocking::Shared => kernel::is_nonblocking(fd),
    }
}

/// Takes an unused end; `None` when all are in use, or there is no address space for what this process keeps of it.
fn take(family: &Family) -> Option<(u32, &'static Handle)> {
    if family.is_short() {
        take_back_what_is_left(family);
    }
    let index = family.take(family::member())?;
    let handle = handle(index);
    if handle.is_none() {
        family.free(index);
    }
    Some((index, handle?))
}

/// How a connection comes to this process.
#[derive(Clone, Copy)]
pub enum CameBy<'a> {
    /// This program image was executed with it.
    Execution(&'a Carried<'a>),
    /// It was passed over a Unix socket.
    Message,
    /// It was passed over a Unix socket by a message that was only peeked at: the message is still to be received.
    Peek,
}

/// Enters the connection that `fd` is, if it is a connection that came so. Whether it is.
pub fn claim(fd: i32, how: CameBy<'_>) -> bool {
    let is_new = table::get(fd) == Known::Nothing && !thread::is_vfork_child() && !filter::is_confined();
    is_new && kernel::is_tcp(fd) && brought(fd, how).is_some()
}

/// This process was `member` of family `id` before it executed its program, and has claimed all ends that it still has.
/// Lets go of its other ends there, which the execution has closed.
pub fn keep_claimed(id: i32, member: u32) {
    let mine = family::existing().filter(|family| family.id() == id);
    let opened = if mine.is_none() { Family::open(id, kernel::user_id()).ok() } else { None };
    let Some(family) = mine.or(opened.as_ref()) else { return };
    if family.was(member) {
        match mine {
            Some(_) => _ = family.stay(member),
            None => family.force_departure(Some(member), Departing::ForGood),
        }
        let me = thread::number();
        let has = |index| {
            family.end(index).forsake(me);
            mine.is_some() && handle(index).is_some_and(|it| it.descriptors.load(Relaxed) > 0)
        };
        family.keep_only(member, has, |index| close_orphan(family, index));
    }
    if let Some(family) = opened {
        // SAFETY: nobody else knows of this mapping.
        unsafe { family.detach() };
    }
}

/// Leaves `fd`, so far `known` as something else, to the kernel. The library's epoll sets forget it, because they do
/// not see later changes of its registration.
fn disown(fd: i32, known: Known) {
    if table::replace(fd, known, Known::Other) && matches!(known, Known::Socket(_)) {
        epoll::disown(fd);
    }
}

/// Gives the new connection `fd` to libc, as one of many short ones, unless the socket has other names by now.
pub fn give_to_libc(fd: i32) {
    let generation = table::generation(fd);
    if let Known::Socket(socket) = table::get(fd)
        && !epoll::is_looked_at(fd)
        && table::give_to_libc(fd, socket)
    {
        epoll::make_foreign(fd, generation);
        seen(Reason::ShortLived);
    }
}

/// The library cannot follow what the program does with `fd`: the connection stays on the kernel path.
#[cold]
pub fn give_up(fd: i32, reason: Reason) {
    pin_or_disown(fd, |connection| connection.pin(reason));
}

/// The library cannot follow what the program sends by `fd`, and still serves its receives.
#[cold]
pub fn give_up_sends(fd: i32, reason: Reason) {
    pin_or_disown(fd, |connection| connection.pin_once_read(reason));
}

fn pin_or_disown(fd: i32, pin: impl FnOnce(Connection)) {
    if let Some(connection) = of(fd) {
        pin(connection);
    } else if let known @ Known::Socket(_) = table::get(fd) {
        disown(fd, known);
    }
}

/// The connection that `fd` is, if it came to this process so.
fn brought(fd: i32, how: CameBy<'_>) -> Option<u32> {
    let cookie = kernel::cookie(fd).ok()?;
    let borrowed = || family::with_meeting_surely(|m| m.borrow(cookie)).flatten();
    match how {
        CameBy::Execution(carried) => bring(fd, cookie, *carried),
        CameBy::Peek => {
            let lent = borrowed()?;
            bring(fd, cookie, Carried::peeked(lent.lender.family, lent.index))
        }
        CameBy::Message => {
            let lent = borrowed()?;
            let index = bring(fd, cookie, Carried::lent(lent.lender.family, lent.index));
            if index.is_none() {
                // The other end, while it lives, gives back what the process that passed the socket has left unread.
                if lent.depends && kernel::counters(fd).is_ok_and(|it| kernel::has_fin(it.state)) {
                    end_lost(fd);
                }
                // From now on it is plain TCP, however it ends.
                family::with_meeting_surely(|meeting| meeting.forget_lent(lent, cookie));
            }
            index
        }
    }
}

/// Makes the connection of `fd`, whose socket has this cookie, one of this process. `None` if its end cannot be had.
fn bring(fd: i32, cookie: u64, carried: Carried<'_>) -> Option<u32> {
    let (family, index, held) = match family::adopt(carried.family, carried.member, let_go_of_pool) {
        // The end that the family has now: a second end for the same socket would switch paths by itself.
        Some(family) => {
            let (end, index) = (family.end(carried.index), carried.index);
            handle(index)?;
            // This image takes over the old image's reference.
            let held = carried.member.is_some() && family.has_reference(index, family::member());
            if held {
                end.forsake(thread::number());
            }
            let is_its = || end.cookie.load(Relaxed) == cookie;
            if !is_its() || !held && !family.arrive(index, family::member()) {
                return None;
            }
            if !is_its() {
                // It became another connection's before this process was counted.
                end.owners.has_arrived();
                family.forget_reference(index, family::member());
                drop_reference(family, index, None, None);
                return None;
            }
            (family, index, held)
        }
        None => {
            let family = family::family(let_go_of_pool)?;
            let restore = || {
                restore(family, |end| {
                    if carried.is_whole() {
                        let is_it = carried.restore(end) && end.cookie.load(Relaxed) == cookie;
                        if is_it && end.is_passed() {
                            // The table where a process would look for it that was passed the socket is gone.
                            family::with_meeting_surely(|meeting| meeting.end_lending(end));
                        }
                        is_it
                    } else {
                        carried::take_over(end, carried.family, carried.index, cookie)
                    }
                })
            };
            let again = if carried.is_first { None } else { restored(family, cookie) };
            (family, again.or_else(restore)?, false)
        }
    };
    let handle = handle(index)?;
    HIGHEST.fetch_max(index + 1, Relaxed);
    let is_known = handle.descriptors.fetch_add(1, AcqRel) > 0;
    if is_known && !held {
        // This end was claimed under another descriptor before.
        family.end(index).owners.drop_reference();
    }
    handle.begin();
    if !is_known {
        after_execution(handle, family.end(index), carried.counted, carried.member.is_some());
    }
    family.note_reference(index, family::member());
    table::set(fd, Known::Connection(index));
    let connection = Connection::at(family, index, fd);
    // The process that handed it on may be gone before this one uses it.
    if connection.end.stage() == Stage::Joined {
        connection.go_on(&carried);
        // The children of this process find there what one of them passes to another, also once that one has ended.
        family::with_meeting(|meeting| meeting.directory(kernel::user_id()));
    }
    if !held {
        // Only now: a process that leaves keeps the channel until then.
        connection.end.owners.has_arrived();
    }
    // Likewise. An image was lent the end once, and a process once with each message that it receives.
    connection.take_up_loan(&carried);
    connection.mind_stdio();
    Some(index)
}

impl Connection {
    /// What this process was lent it for has come about.
    fn take_up_loan(&self, carried: &Carried<'_>) {
        let owners = &self.end.owners;
        match carried.image {
            0 if carried.is_passed() && !carried.is_peeked => owners.take_up_passed(),
            0 => return,
            image => owners.take_up_by_image(image),
        }
        self.untag_unless_lent();
    }

    /// Goes on with a connection that was handed to this image.
    fn go_on(&self, carried: &Carried<'_>) {
        if let Some(port) = self.port() {
            port.come_back();
            if carried.has_copy() {
                port.go_up_again();
            }
            // This comes last: the other end awaits that the mark of going down is taken back.
            port.end_execution();
            return;
        }
        if self.end.is_remote() {
            return self.go_on_without_daemon();
        }
        // Where both ends have let go of the channel, and nothing was left in it, everything goes by the kernel path.
        // An image whose socket has no tag any more finds all of the stream there, whoever put it there.
        let is_complete = carried.image != 0 && !kernel::is_tagged(self.fd);
        let is_plain = self.end.stay_away(self.fd, if is_complete { 0 } else { carried.left_behind });
        if !is_plain && carried.has_copy() {
            if self.go_on_in_copy(carried) {
                return;
            }
            // Nor is what came along read by anybody.
            self.end.advance(Stage::Broken);
        }
        if self.way() == Way::Broken {
            // The bytes in its channel are lost, and neither end is to wait for them.
            let reason = self.end.lack().unwrap_or(Reason::HandOver);
            end_lost_for(self.fd, reason);
        }
    }

    /// The daemon that carried its stream to another host is gone.
    fn go_on_without_daemon(&self) {
        let make = || family::with_meeting_surely(|meeting| meeting.replace_daemons_channel(self.end)).flatten();
        let goes_on = !self.end.owners.are_several()
            && make().is_some()
            && self.port().is_some_and(|port| port.go_on_without_daemon());
        if !goes_on {
            self.end.advance(Stage::Broken);
            end_lost_for(self.fd, self.end.lack().unwrap_or(Reason::HandOver));
        }
    }

    /// Goes on in a copy of the channel, which no process has any more. False if that cannot be.
    fn go_on_in_copy(&self, carried: &Carried<'_>) -> bool {
        let make = || family::with_meeting_surely(|meeting| meeting.replace_channel(self.end)).flatten();
        let unread = make().and_then(|channel| carried.fill(&channel));
        unread.is_some_and(|unread| self.port().is_some_and(|port| port.go_on_in_copy(unread)))
    }
}

/// The end with this cookie, if it was restored for another descriptor already; one reference more.
fn restored(family: &Family, cookie: u64) -> Option<u32> {
    let mut found = None;
    for_each(|index, _| {
        let end = family.end(index);
        if end.cookie.load(Relaxed) == cookie && end.owners.add_if_used() {
            found = Some(index);
        }
    });
    found
}

/// Takes an end, and has `fill` copy the end of another family into it. `None` if `fill` finds no such end.
fn restore(family: &Family, fill: impl FnOnce(&End) -> bool) -> Option<u32> {
    let (index, _) = take(family)?;
    if fill(family.end(index)) {
        // The process that has the other copy counts its calls and bytes.
        forget_carried(family.end(index));
        return Some(index);
    }
    family.free(index);
    None
}

/// Whether nothing of this process refers to the pool any more, so that it may be detached.
fn let_go_of_pool(id: i32, begin: *const u8) -> bool {
    // A look at a set that this signal handler has interrupted may be using the pool.
    let unused = !is_pool_used(id) && !set::is_any_interrupted();
    if unused {
        set::forget_pool(begin);
    }
    unused
}

/// A fork is about to share every socket.
pub fn recognise_all() {
    for fd in 0..table::highest() {
        if let Known::Socket(_) = table::get(fd) {
            recognise(fd);
        }
    }
}

/// Whether [`hasten`] does anything, for callers with many descriptors.
#[inline]
pub fn hastens() -> bool {
    // The filter first: it may kill the process for the calls that read the configuration.
    !filter::is_confined() && settings::config().goes_up_at_once() && !thread::is_vfork_child()
}

/// Where connections go up at once, `fd` looks for its other end before it has carried anything: when it is polled or
/// registered. Otherwise both ends would have to send and receive before a byte could go fast. Not when it is accepted:
/// many a server forks then, and this process would be gone by the time that the other end looks for the holder of the
/// connection.
#[inline]
pub fn hasten(fd: i32) {
    if hastens()
        && matches!(table::get(fd), table::Known::Socket(_) | table::Known::Connection(_))
        && let Some(connection) = of(fd)
    {
        connection.way();
    }
}

/// Counts a connection that the library does not follow.
fn seen(reason: Reason) {
    if let Some(record) = statistics::record() {
        record.connections.fetch_add(1, Relaxed);
        record.unfollowed.fetch_add(1, Relaxed);
    }
    count_reason(reason);
}

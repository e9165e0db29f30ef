//! The end of a connection: descriptors are closed one by one, and the last tells the other end.

use super::count::tell;
use super::inside::Kept;
use super::share::{for_each, part, twin};
use super::{ABSENT, CONFINED, Connection, PRESENT, UNTOUCHED, handle, known};
use crate::guest::table::{self, Known, Socket};
use crate::guest::{family, forked, thread};
use core::ffi::c_int;
use underpass_segment::end::Stage;
use underpass_segment::family::Family;
use underpass_segment::link::Link;
use underpass_segment::reason::Reason;
use underpass_segment::switch::{Port, Recipient, Told};
use underpass_segment::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use underpass_segment::{clock, kernel};

/// A program image that has not begun after so long is not awaited.
const IMAGE_WITHIN_NS: u64 = 1_000_000_000;

/// Program images that are on their way are awaited until then (CLOCK_MONOTONIC, ns), for all connections together.
pub fn images_awaited_until() -> u64 {
    clock::nanoseconds() + IMAGE_WITHIN_NS
}

/// `fd` is about to be closed or replaced: forgets what it was. To be called before the number can be used again.
pub fn forget(fd: i32) {
    if thread::is_vfork_child() {
        return;
    }
    crate::watch::epoll::forget_set(fd);
    let in_set = crate::watch::epoll::may_watch(fd);
    if let Some(connection) = known(fd) {
        connection.count_settled();
        connection.keep_open();
        // Before the number's next generation, to which nothing of this one is known.
        let last = !connection.has_duplicates() && connection.is_last();
        if !last {
            crate::watch::epoll::settle_socket(connection, || twin(connection));
        }
        crate::watch::epoll::forget_socket(connection, last);
    } else {
        table::next_generation(fd);
    }
    crate::watch::set::forget_having(fd);
    if let Known::Connection(index) = table::get(fd)
        && let Some(family) = family::existing()
    {
        forked::check();
        let connection = Connection::at(family, index, fd);
        let alone = handle(index).is_some_and(|h| h.descriptors.load(Relaxed) == 1);
        if alone {
            connection.hush();
        }
        if table::replace(fd, Known::Connection(index), Known::Nothing) {
            // Behind the number's end: a poll that comes later finds no connection there, and relies on nothing.
            let goes_on = in_set && connection.end.watched.load(Relaxed) != 0 || crate::watch::epoll::is_slept_on(fd);
            if goes_on && !alone {
                // Its registrations, and polls that sleep on it, go on in the kernel, which alone has to see what arrives from
                // now on. Who sleeps by another descriptor, here or in another process, is woken by a doorbell as before.
                connection.pin(Reason::Unsupported);
            }
            connection.outlast_calls();
            if !crate::watch::set::leave_end(index) {
                release(index, Some(fd));
            }
        }
    } else {
        table::set(fd, Known::Nothing);
    }
}

/// `disconnect` is about to take the socket out of its connection (connect(2) to AF_UNSPEC), which resets that, and the
/// program may connect the socket again: that is another connection.
pub fn dissolve(connection: Connection, disconnect: impl FnOnce() -> c_int) -> c_int {
    if thread::is_vfork_child() {
        return disconnect();
    }
    let Connection { end, index, fd } = connection;
    let alone = !connection.has_duplicates() && connection.is_last() && !connection.is_lent();
    let renew = alone && end.stage() != Stage::Pinned;
    if end.stage() == Stage::Joined {
        // Before: what another thread sends from now on is the kernel's to refuse.
        connection.attend();
        connection.pin(Reason::Closed);
        // The other end must not take the reset for that of a doorbell.
        if let Some(port) = connection.ready_port() {
            port.hush(true);
        }
    }
    let answer = disconnect();
    if answer != 0 {
        return answer;
    }
    if !renew {
        // Nobody can tell the others that it is another connection: all keep to the kernel path.
        connection.leave_to_kernel();
    } else if table::replace(fd, Known::Connection(index), Known::Socket(Socket::default())) {
        connection.give_options_back();
        // It stays in its sets, which know nothing of the next connection yet.
        crate::watch::epoll::settle_socket(connection, || None);
        crate::watch::epoll::outlast_looks(fd);
        crate::watch::epoll::let_go(connection, table::generation(fd));
        crate::watch::set::having(fd).for_each(|set| set.with_item(fd, |item| item.set_told(Told::default())));
        connection.outlast_calls();
        release(index, None);
    }
    answer
}

impl Connection {
    /// Whether a program may have the socket that is not counted among its processes.
    pub fn is_lent(&self) -> bool {
        self.end.lent_until.load(Acquire) != 0 || self.has_outsider()
    }

    /// Whether a program image is on its way that was given it.
    fn is_awaited(&self) -> bool {
        self.end.lent_until.load(Acquire) > clock::nanoseconds()
    }

    /// Whether a program may have the socket that knows nothing of the ring.
    fn has_outsider(&self) -> bool {
        self.end.outsider.load(Acquire) != 0
    }

    /// No process is left that reads the ring. A program without the library that has the socket would read what comes behind
    /// that, if it cannot be put on the kernel path: then the connection is reset. Whether it is.
    pub fn leave_no_gap(&self) -> bool {
        self.has_outsider() && self.port_even_confined().is_some_and(|port| self.leave_no_gap_by(&port))
    }

    /// Processes that were killed keep nothing open, and tell the other end nothing: what they had is taken back.
    pub(super) fn heed_deaths(&self) {
        if !self.is_last()
            && self.end.stage() == Stage::Joined
            && let Some(family) = family::existing()
            && family.is_held_by_gone(self.index)
        {
            family.look_again();
            take_back_what_is_left(family);
        }
    }

    /// An execution is about to close the last descriptor of this process. An image that comes for the connection beside that has
    /// come when this returns, or does not come.
    pub fn leave_behind(&self, deadline: u64) {
        self.heed_deaths();
        self.await_heir(deadline);
        // If others have it, they may close it before the new image is there.
        if self.has_outsider() && (self.is_last() || self.part()) {
            self.leave_no_gap();
        }
    }

    /// This process lets go of it, and keeps its descriptors: see [`part`]. Whether it was the last.
    pub(super) fn part(&self) -> bool {
        self.learn_cookie();
        if let Some(handle) = handle(self.index) {
            let is_plain = self.joined_port().is_none_or(|port| port.reads_plainly() && !port.sends_fast());
            handle.was_plain.store(is_plain, Relaxed);
        }
        family::existing().is_some_and(|family| part(family, self.index) == Some(true))
    }

    /// Awaits a program image that is on its way, if nobody else has the connection.
    fn await_heir(&self, deadline: u64) {
        if self.is_last() && self.is_awaited() {
            // Until it is there, nobody reads the ring.
            self.go_away();
            while self.is_last() && self.is_awaited() && clock::nanoseconds() < deadline {
                clock::nap(200);
            }
        }
    }

    fn leave_no_gap_by(&self, port: &Port<'_>) -> bool {
        let has_gap = !port.hand_over(Reason::Inherited, Recipient::Alone, false);
        if has_gap {
            // Once is enough.
            self.end.outsider.store(0, Release);
            self.reset_by(Some(port));
        }
        has_gap
    }

    /// The kernel has TCP_NODELAY and TCP_CORK as the program has set them again.
    fn give_options_back(&self) {
        if self.end.was_fast.load(Relaxed) & 1 != 0 {
            for (name, kept) in [(libc::TCP_NODELAY, &self.end.no_delay), (libc::TCP_CORK, &self.end.cork)] {
                let _ = kernel::set_int_option(self.fd, libc::IPPROTO_TCP, name, kept.load(Relaxed).into());
            }
        }
    }

    /// Whatever the socket is from now on goes the kernel path, in every process.
    fn leave_to_kernel(&self) {
        self.end.pin(Reason::Closed);
        self.end.leave_to_kernel();
    }

    /// Another program image is about to take this one's place: its sets are gone then, and nothing is left to them. If it
    /// does not come, they look at the connection themselves.
    pub fn leave_sets(self) {
        for fd in self.descriptors() {
            crate::watch::epoll::let_go(self.by(fd), table::generation(fd));
            crate::watch::epoll::take_back(fd);
        }
    }

    /// Another program image is about to take this one's place, which has no segment until that one comes for it: where no
    /// other process keeps it meanwhile, both ends, if they are here, go to the kernel path.
    pub fn outlast_image(self, deadline: u64) {
        let Some(port) = self.joined_port() else { return };
        if self.company() != Some(1) {
            return;
        }
        if let Some(other) = self.other_end() {
            match other.pinned_port(Reason::Inherited) {
                Some(other) => port.hand_over_with(&other, Reason::Inherited),
                None => port.pin(Reason::Inherited),
            }
        } else {
            self.await_images(&port, false, deadline);
        }
    }

    /// The other end, if this process has it.
    fn other_end(&self) -> Option<Connection> {
        let cookie = self.end.peer_cookie.load(Relaxed);
        (0..table::highest()).filter_map(known).find(|it| it.end.cookie.load(Relaxed) == cookie)
    }

    /// The segment may be about to go with this process, perhaps `last` of those that have this end, while the others that have
    /// either are between two program images: awaits that one has come for it.
    fn await_images(&self, port: &Port<'_>, last: bool, deadline: u64) {
        while port.is_needed(last)
            && self.company() == Some(1)
            && self.other_end().is_none()
            && clock::nanoseconds() < deadline
        {
            clock::nap(100);
        }
    }

    /// How many processes have its segment.
    fn company(&self) -> Option<u64> {
        family::with_meeting_surely(|meeting| meeting.company(self.end)).flatten()
    }

    /// The last descriptor of this process is about to be closed: what kernel TCP would do about unread data, it does.
    fn hush(&self) {
        self.heed_deaths();
        // In this order: whoever comes for the end counts its reference before it takes up the loan.
        let is_lent = self.is_lent();
        let is_awaited = self.is_awaited();
        let last = self.is_last();
        if last && !is_awaited && self.leave_no_gap() {
            return;
        }
        if last && is_awaited {
            // A program image is on its way that was given it: until that is there, nobody reads the ring.
            self.go_away();
        }
        // A program that was given the socket closes it later, and perhaps in another way.
        let ends = last && !is_lent;
        match self.joined_port() {
            // A reader that is just leaving its ring is told that nobody will give back what it leaves.
            Some(port) if ends => port.end_sending(),
            _ => {
                self.attend();
            }
        }
        if let Some(port) = self.ready_port() {
            port.hush(last);
            if ends && port.unread() > 0 {
                kernel::reset_at_close(self.fd);
            }
        }
    }
}

/// One descriptor less: `fd`, unless that is closed already. The last one is left to the threads that are inside, of whom the last
/// comes here again.
pub fn release(index: u32, fd: Option<i32>) {
    let (Some(family), Some(handle)) = (family::existing(), handle(index)) else { return };
    let less = |n: u32| (n > 1 || !handle.inside.any()).then(|| n - 1);
    let before = loop {
        match handle.descriptors.fetch_update(AcqRel, Acquire, less) {
            Ok(before) => break before,
            Err(_) if handle.inside.keep(Kept::End) => return,
            // They have come out meanwhile.
            Err(_) => {}
        }
    };
    if before == 1 {
        let attached = matches!(handle.attached.swap(ABSENT, AcqRel), PRESENT | UNTOUCHED | CONFINED);
        // SAFETY: it was there, and the last descriptor is gone.
        let link = attached.then(|| unsafe { (*handle.link.get()).assume_init() });
        if !handle.parted.swap(true, AcqRel) {
            family.let_go(index, family::member());
            tell(family.end(index), index, false);
            drop_reference(family, index, link, fd);
        }
    }
}

/// One process less, which has the socket as `fd`.
pub(super) fn drop_reference(family: &'static Family, index: u32, link: Option<Link>, fd: Option<i32>) {
    let end = family.end(index);
    // One that another family has taken over has none any more, but this process may have attached it.
    let joined = end.has_segment() || link.is_some();
    // Before: another process that has lent it may end the loan as soon as nobody refers to it.
    let until = end.lent_until.load(Acquire);
    let last = end.references.fetch_sub(1, AcqRel) == 1;
    reap(family);
    if last && until > clock::nanoseconds() && keep(index, until) {
        return;
    }
    let closed = fd.filter(|_| last).map(|fd| Connection::at(family, index, fd));
    if let Some(connection) = closed.filter(Connection::has_outsider)
        && let Some(link) = link.or_else(|| family::with_meeting_surely(|m| m.link(end)).flatten())
    {
        // Of several that let go of it at the same time, none saw before that it was the last.
        connection.leave_no_gap_by(&connection.port_with(link, thread::number()));
    }
    if last {
        finish(family, index, link);
    }
    if joined {
        family::with_meeting_surely(|m| m.release(end));
    }
    if last {
        family.give_back(index);
    }
}

/// The last reference is gone: tells the other end.
fn finish(family: &Family, index: u32, link: Option<Link>) {
    let end = family.end(index);
    end.end_loans();
    tell(end, index, true);
    if end.has_segment() {
        family::with_meeting_surely(|m| {
            if let Some(link) = link.or_else(|| m.link(end)) {
                m.close(end, &link);
            }
        });
    } else if end.entry.load(Relaxed) != 0 {
        family::with_meeting_surely(|m| m.withdraw(end));
    }
}

/// Ends that this process has let go of and that a program image to come, or another process, may still claim: index + 1 of
/// the first; the `kept` of its handle goes on. 0: none.
static KEPT: AtomicU32 = AtomicU32::new(0);
/// When it is time to look through them (CLOCK_MONOTONIC, ns).
static REAP_AT: AtomicU64 = AtomicU64::new(0);
/// So often at most, since each close may be one of thousands.
const REAP_EVERY_NS: u64 = 10_000_000;

/// What a process keeps of an end that it has let go of. Zeroed memory is nothing.
pub(super) struct Keeping {
    /// [`underpass_segment::end::End::lent_until`] when it was let go of.
    until: AtomicU64,
    /// 1: among [`KEPT`].
    listed: AtomicU32,
    /// As [`KEPT`].
    next: AtomicU32,
}

fn keep(index: u32, until: u64) -> bool {
    let Some(handle) = handle(index) else { return false };
    handle.kept.until.store(until, Relaxed);
    list(index);
    true
}

/// Puts the end among those that are kept, if it is not.
fn list(index: u32) {
    let Some(kept) = handle(index).map(|handle| &handle.kept) else { return };
    if kept.listed.swap(1, AcqRel) == 0 {
        let mut first = KEPT.load(Relaxed);
        loop {
            kept.next.store(first, Relaxed);
            match KEPT.compare_exchange(first, index + 1, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// Takes all out of the list, and calls `what` for each.
fn for_each_kept(mut what: impl FnMut(u32, &Keeping)) {
    let mut first = KEPT.swap(0, AcqRel);
    while let Some(index) = first.checked_sub(1)
        && let Some(kept) = handle(index).map(|handle| &handle.kept)
    {
        first = kept.next.load(Relaxed);
        // Before the look at the rest: whoever keeps it again does so the other way round.
        kept.listed.swap(0, AcqRel);
        what(index, kept);
    }
}

/// In a forked child: its parent ends them.
pub(super) fn forget_kept() {
    for_each_kept(|_, _| {});
}

/// Ends what was kept for whoever has come, or has not come in time.
fn reap(family: &Family) {
    if KEPT.load(Relaxed) == 0 {
        return;
    }
    let now = clock::nanoseconds();
    let at = REAP_AT.load(Relaxed);
    if now < at || REAP_AT.compare_exchange(at, now + REAP_EVERY_NS, Relaxed, Relaxed).is_err() {
        return;
    }
    for_each_kept(|index, kept| {
        let end = family.end(index);
        let until = kept.until.load(Acquire);
        // If not, whoever claimed it has lent it again, and keeps it for that; or has ended it.
        let is_as_kept = end.lent_until.load(Acquire) == until;
        let claimed = end.references.load(Acquire) > 0;
        if is_as_kept && !claimed && until > now {
            return list(index);
        }
        // Whoever has claimed it ends it itself.
        let is_over = !claimed && is_as_kept && end.lent_until.compare_exchange(until, 0, AcqRel, Relaxed).is_ok();
        let last = is_over && end.references.load(Acquire) == 0;
        if last {
            finish(family, index, None);
        }
        if end.has_segment() {
            family::with_meeting_surely(|m| m.release(end));
        }
        if last {
            family.give_back(index);
        }
    });
}

/// Before the process ends: awaits that the images to come for which ends are kept have come for them.
fn await_claims(family: &Family, deadline: u64) {
    let mut waits = true;
    while core::mem::take(&mut waits) && clock::nanoseconds() < deadline {
        for_each_kept(|index, kept| {
            let end = family.end(index);
            let awaited = end.references.load(Acquire) == 0 && end.lent_until.load(Acquire) == kept.until.load(Acquire);
            if awaited {
                list(index);
                waits = true;
            }
        });
        if waits {
            clock::nap(200);
        }
    }
}

/// At exit: counts what is still open and lets go of it, leaving no doorbell unread.
pub fn leave_all() {
    if let Some(family) = family::existing() {
        let deadline = images_awaited_until();
        await_claims(family, deadline);
        for_each(|index, fd| {
            let end = family.end(index);
            let connection = Connection { end, index, fd };
            connection.count_settled();
            connection.await_heir(deadline);
            if let Some(port) = connection.joined_port() {
                connection.await_images(&port, connection.is_last(), deadline);
            }
            connection.hush();
            crate::watch::epoll::let_go(connection, table::generation(fd));
            // Before: see `hush`.
            let is_awaited = connection.is_awaited();
            let last = part(family, index) == Some(true);
            if last && !is_awaited {
                // As where a descriptor is closed: see `drop_reference`.
                connection.leave_no_gap();
            }
            tell(end, index, last);
            if last
                && !is_awaited
                && end.stage() == Stage::Joined
                && let Some(port) = connection.port()
            {
                port.end_sending();
                // Others of the family may live on, who keep the segment: nobody would find out that its reader is gone.
                port.shut();
            }
        });
    }
}

/// Ends what processes have left that are gone: they were killed, or have ended without closing.
pub(super) fn take_back_what_is_left(family: &Family) {
    kernel::undisturbed(|| {
        family.sweep(|index| bury(family, index));
    });
}

/// Ends what nobody has any more, and this process never had.
pub(super) fn bury(family: &Family, index: u32) {
    family::with_meeting_surely(|m| m.bury(family.end(index)));
    family.give_back(index);
}

//! The references that processes have to an end. The process that drops the last reference tells the other end.

use super::count::report;
use super::handle::{HIGHEST, Handle, Unclaimed, handle};
use super::insiders::Kept;
use super::state::Attachment;
use super::{Connection, lent, lost, short_lived, unclaimed};
use crate::guest::{departure, family, filter, thread};
use underpass_segment::channel::Channel;
use underpass_segment::end::{End, Stage};
use underpass_segment::family::Family;
use underpass_segment::meeting::Meeting;
use underpass_segment::reason::Reason;
use underpass_segment::switch::{Port, Recipient};
use underpass_segment::sync::{AcqRel, Acquire, AtomicU64, Relaxed, Release};
use underpass_segment::{clock, kernel};

/// How much longer than an image a process is awaited that a socket was passed to, in nanoseconds.
const IN_QUEUE_NS: u64 = 600_000_000_000;

/// How long processes are awaited that are dying, in nanoseconds: beside heavy load one takes more than 250 ms.
const DYING_WITHIN_NS: u64 = 1_000_000_000;
/// How often they are looked for at most where ends are let go of, because each close may be one of thousands.
const LOOK_EVERY_NS: u64 = 1_000_000;

/// One descriptor less: `fd`, unless that is closed already. While threads are inside, the last descriptor is left to
/// them, and the last thread to leave calls this again.
pub fn release(index: u32, fd: Option<i32>) {
    let (Some(family), Some(handle)) = (family::existing(), handle(index)) else { return };
    let less = |n: u32| (n > 1 || !handle.inside.any()).then(|| n - 1);
    let before = loop {
        match handle.descriptors.fetch_update(AcqRel, Acquire, less) {
            Ok(before) => break before,
            Err(_) if handle.inside.keep(Kept::End) => return,
            // The threads have come out meanwhile.
            Err(_) => {}
        }
    };
    if before == 1 {
        let attached = matches!(
            handle.attachment.swap(Attachment::Absent, AcqRel),
            Attachment::Present | Attachment::Untouched | Attachment::Confined
        );
        // SAFETY: it was there, and the last descriptor is gone.
        let channel = attached.then(|| unsafe { (*handle.channel.get()).assume_init() });
        if !handle.relinquished.swap(true, AcqRel) {
            family.forget_reference(index, family::member());
            report(family.end(index), index, false);
            drop_reference(family, index, channel, fd);
        }
    }
}

/// One process less, which has the socket as `fd`.
pub fn drop_reference(family: &'static Family, index: u32, channel: Option<Channel>, fd: Option<i32>) {
    let end = family.end(index);
    // An end that another family has taken over has no channel any more, but this process may have attached it.
    let joined = end.has_channel() || channel.is_some();
    let last = uncount_reference(family, index, channel, fd.filter(|_| joined));
    // Afterwards: another process may have lent it and left meanwhile, as a process that was not the last.
    let until = end.owners.lent_until();
    reap(family);
    let now = clock::nanoseconds();
    // Nobody else may have the channel until a process that arrives, or is between two images, has attached it.
    let lack_channel = || end.owners.are_any_arriving() || are_between_images(family, index);
    let may_be_claimed = until > now && lack_channel() || last && kept_until(end, until) > now;
    if may_be_claimed && unclaimed::add(index, until) {
        if let Some(fd) = fd.filter(|_| !end.owners.are_any()) {
            Connection::at(family, index, fd).leave_to_kernel_for_image(channel_of(end, channel));
        }
        return;
    }
    // An image may have come for it since, or another process that had lent it may end it.
    let last = last && end.owners.end_if_unused();
    if let Some(fd) = fd.filter(|_| last && !joined) {
        Connection::at(family, index, fd).untag_plain();
    }
    if let Some(connection) = fd.filter(|_| last && joined).map(|fd| Connection::at(family, index, fd))
        && let Some(channel) = channel_of(end, channel)
    {
        // Where several processes or threads let go of it at the same time, none of them knew before that it was the
        // last.
        let port = connection.port_with(channel, thread::number());
        // Behind a filter the connection is the kernel's, and another holder of the socket may be behind one too.
        let is_used = end.stage() == Stage::Joined && !filter::is_confined();
        if connection.has_outsider() {
            connection.leave_no_gap_by(&port);
        } else if is_used && end.owners.is_lent() {
            connection.leave_to_unawaited_image(&port);
        } else if is_used && !port.has_said_end() {
            connection.end_by(&port);
        }
    }
    let is_lost = last && until != 0 && takes_unread_along(family, index, channel);
    if last {
        finish(family, index, channel, is_lost, Meeting::close);
    }
    if joined {
        let_go_of_channel(end);
    }
    if last {
        free_place(family, index, is_lost);
    }
}

/// One process less refers to the end, which has the socket as `fd`. Whether it was the last. Then the end leaves its
/// ring for an image that is awaited: several processes may let go of it at the same moment, each of them beside the
/// others.
fn uncount_reference(family: &'static Family, index: u32, channel: Option<Channel>, fd: Option<i32>) -> bool {
    let end = family.end(index);
    let owners = &end.owners;
    let goes_away = end.stage() == Stage::Joined && end.read_gate.is_shut() && !filter::is_confined();
    if let Some(fd) = fd.filter(|_| goes_away && owners.is_awaited(clock::nanoseconds())) {
        if !owners.drop_reference_unless_last() {
            return false;
        }
        // Nobody else can drop this reference.
        if owners.are_any()
            && let Some(channel) = channel_of(end, channel)
        {
            Connection::at(family, index, fd).port_with(channel, thread::number()).go_away(|| !owners.are_several());
        }
    }
    owners.drop_reference()
}

/// Whether unread bytes are lost with the channel of an end that no process has any more.
fn takes_unread_along(family: &'static Family, index: u32, channel: Option<Channel>) -> bool {
    let port = channel_of(family.end(index), channel)
        .map(|it| Connection::at(family, index, -1).port_with(it, thread::number()));
    port.is_some_and(|port| port.goes_with_channel())
}

/// The channel of an end that this process has let go of: the channel that it had, or attached once more.
fn channel_of(end: &End, channel: Option<Channel>) -> Option<Channel> {
    let attach = || family::with_meeting_surely(|m| m.channel(end, None)).flatten();
    channel.or_else(|| if end.has_channel() { attach() } else { None })
}

/// No process has the end any more: it is free for another connection. If it `is_lost`, it becomes free later, because
/// an image may come for it after all.
fn free_place(family: &Family, index: u32, is_lost: bool) {
    let free = if is_lost {
        family.end(index).advance(Stage::Broken);
        lost::keep(index)
    } else {
        Some(index)
    };
    free.inspect(|&index| family.free(index));
}

/// The last reference is gone: tells the other end by `close`. Unread bytes are lost by that if it `is_lost`.
fn finish(
    family: &Family,
    index: u32,
    channel: Option<Channel>,
    is_lost: bool,
    close: fn(&mut Meeting, &End, &Channel),
) {
    let end = family.end(index);
    if is_lost {
        end.keep_entry();
    }
    end.owners.end_loans();
    short_lived::ended(end);
    report(end, index, true);
    if end.has_channel() {
        family::with_meeting_surely(|m| {
            if let Some(channel) = channel.or_else(|| m.channel(end, None)) {
                close(m, end, &channel);
            }
        });
    } else if end.entry.load(Relaxed) != 0 || end.is_passed() {
        family::with_meeting_surely(|m| {
            m.withdraw(end);
            m.end_lending(end);
        });
    }
}

/// Looks at the unclaimed ends: another process has claimed an end meanwhile, or the time to claim it is over and it
/// ends.
fn reap(family: &'static Family) {
    if !unclaimed::are_any() {
        return;
    }
    let now = clock::nanoseconds();
    if !unclaimed::is_time(now) {
        return;
    }
    unclaimed::take_each(|index, it| {
        let owners = &family.end(index).owners;
        lent::take_back_if_image_died_lately(owners);
        let (until, is_arriving) = (it.until.load(Acquire), owners.are_any_arriving());
        let has_half_come = is_arriving && until > now && owners.lent_until() == until;
        if has_half_come || !end_unless_awaited(family, index, it, is_claimed(family, index, it), Keeper::Stays) {
            unclaimed::enlist(index);
        }
    });
}

/// Whether a process that has the end may be between two images: it keeps the end, and the channel not yet.
pub fn are_between_images(family: &Family, index: u32) -> bool {
    family.is_referred_to_by_departed(index, family::member())
}

/// Whether a process has an unclaimed end, and keeps its channel too if an image may still come for it.
pub fn is_claimed(family: &Family, index: u32, it: &Unclaimed) -> bool {
    let owners = &family.end(index).owners;
    let is_awaited = || owners.lent_until() == it.until.load(Acquire) && owners.is_awaited(clock::nanoseconds());
    owners.are_any() && !(is_awaited() && are_between_images(family, index))
}

/// What the process that keeps an unclaimed end is about to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// It goes on.
    Stays,
    /// It ends, or executes a program.
    Leaves,
}

/// Until when (CLOCK_MONOTONIC, ns) a process keeps an end that may be claimed `until` then. A socket that was passed
/// may lie in a queue for long, and is closed with that queue: its message is awaited longer by a process that stays.
fn kept_until(end: &End, until: u64) -> u64 {
    let is_in_queue = until != 0 && end.owners.is_lent_to_processes() && !departure::is_exit();
    if is_in_queue { until.saturating_add(IN_QUEUE_NS) } else { until }
}

/// Ends an unclaimed end, which a process has `claimed` or not, if the time to claim it is over, or the image that was
/// to claim it does not come. False if an image may still come, and none has.
pub fn end_unless_awaited(family: &'static Family, index: u32, it: &Unclaimed, claimed: bool, keeper: Keeper) -> bool {
    let end = family.end(index);
    lent::take_back_if_image_died_lately(&end.owners);
    let until = it.until.load(Acquire);
    // If not, a process has claimed the end and has lent it again, for which that process keeps it; or has ended it; or
    // the loan was taken back.
    let is_as_kept = end.owners.lent_until() == until;
    let kept_until = if keeper == Keeper::Leaves { until } else { kept_until(end, until) };
    if is_as_kept && !claimed && kept_until > clock::nanoseconds() {
        return false;
    }
    // A process that has claimed the end ends it itself. If this process ends and has left the end to an image, its
    // other threads may still be using it: see `leave_to_image`.
    let is_mine = handle(index).is_some_and(|it| it.descriptors.load(Relaxed) > 0);
    let is_over = || is_as_kept && end.owners.end_loan(until) || end.owners.end_taken_back();
    let last = !claimed && !is_mine && is_over() && end.owners.end_if_unused();
    let is_lost = last && takes_unread_along(family, index, None);
    if last {
        finish(family, index, None, is_lost, Meeting::close_for_killed);
    }
    if end.has_channel() {
        let_go_of_channel(end);
    }
    if last {
        free_place(family, index, is_lost);
    }
    true
}

/// Ends connections of processes that are gone: they were killed, or have ended without closing.
pub fn take_back_what_is_left(family: &Family) {
    kernel::undisturbed(|| {
        family.sweep(|index| close_orphan(family, index));
    });
}

/// Ends connections of processes that are gone, however short ago a process looked.
pub fn take_back_at_once(family: &Family) {
    family.look_again();
    take_back_what_is_left(family);
}

/// Awaits processes of the family that were killed a moment ago: until they are gone, they count as processes that have
/// their ends. A process that was killed while it sleeps in the kernel, or is traced, may take longer than this waits,
/// and is awaited once.
pub fn await_dying(family: &Family) {
    static IN_VAIN_AT: AtomicU64 = AtomicU64::new(0);
    let began = clock::nanoseconds();
    let last = IN_VAIN_AT.load(Relaxed);
    let was_in_vain = last != 0 && began.saturating_sub(last) < 10 * DYING_WITHIN_NS;
    let deadline = began + if was_in_vain { LOOK_EVERY_NS } else { DYING_WITHIN_NS };
    while family.has_dying(family::member()) {
        if clock::nanoseconds() > deadline {
            return IN_VAIN_AT.store(began, Relaxed);
        }
        clock::nap(100);
    }
}

/// Awaits processes that were killed a moment ago, for one of many ends that are let go of: no process is awaited that
/// was killed since a look a moment ago.
fn await_dying_once(family: &Family) {
    static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
    if clock::nanoseconds().wrapping_sub(LOOKED_AT.load(Relaxed)) > LOOK_EVERY_NS {
        await_dying(family);
        LOOKED_AT.store(clock::nanoseconds(), Relaxed);
    }
}

/// Ends a connection that no process has any more, and that this process never had.
pub fn close_orphan(family: &Family, index: u32) {
    family::with_meeting_surely(|m| m.close_orphan(family.end(index)));
    family.free(index);
}

/// This process lets go of an end, but keeps its descriptors: they will be closed without the library's knowledge. The
/// last process keeps its reference until it is gone. Whether it is the last; `None` if it has let go of the end
/// already.
pub fn relinquish(family: &Family, index: u32) -> Option<bool> {
    let handle = handle(index)?;
    if handle.relinquished.swap(true, AcqRel) {
        return None;
    }
    let member = family::member();
    family.forget_reference(index, member);
    let last = family.end(index).owners.drop_reference_unless_last();
    if last {
        family.note_reference(index, member);
        handle.relinquished.store(false, Release);
    }
    Some(last)
}

/// This process ends, and lets go of an end for which an image is awaited. If none comes, the end stays in the family's
/// table as long as that is there.
pub fn leave_to_image(family: &'static Family, index: u32, fd: i32) {
    if let Some(handle) = handle(index)
        && !handle.relinquished.swap(true, AcqRel)
    {
        family.forget_reference(index, family::member());
        report(family.end(index), index, false);
        drop_reference(family, index, None, Some(fd));
    }
}

/// Lets go of the channel of an end that this process has no more. If the process ends, its other threads may still be
/// using the channel, which goes with the process.
fn let_go_of_channel(end: &End) {
    if !departure::is_exit() {
        family::with_meeting_surely(|m| m.release(end));
    }
}

/// Whether any end that this process has is in pool `id`.
pub fn is_pool_used(id: i32) -> bool {
    let Some(family) = family::existing() else { return false };
    (0..HIGHEST.load(Relaxed)).any(|index| {
        let has = |it: &Handle| it.descriptors.load(Relaxed) > 0;
        handle(index).is_some_and(has) && family.end(index).pool_id() == Some(id)
    })
}

impl Connection {
    /// Whether a process that is not counted among the end's owners may have the socket.
    pub fn is_lent(&self) -> bool {
        self.end.owners.is_lent() || self.has_outsider()
    }

    /// Whether a program image that was given the connection is still on its way.
    pub fn is_awaited(&self) -> bool {
        let is_awaited = || self.end.owners.is_awaited(clock::nanoseconds());
        is_awaited() && {
            lent::take_back_if_image_died(&self.end.owners);
            is_awaited()
        }
    }

    /// Whether a program without the library may have the socket.
    pub fn has_outsider(&self) -> bool {
        self.end.owners.has_outsider()
    }

    /// No process that reads the ring is left. A program without the library that has the socket would miss the bytes
    /// in the ring if they cannot be put on the kernel path: then the connection is reset. Whether it is reset.
    pub fn leave_no_gap(&self) -> bool {
        self.has_outsider() && self.port_even_confined().is_some_and(|port| self.leave_no_gap_by(&port))
    }

    pub fn leave_no_gap_by(&self, port: &Port<'_>) -> bool {
        let has_gap = !port.hand_over(Reason::Inherited, Recipient::Alone, false);
        if has_gap {
            // Once is enough.
            self.end.owners.forget_outsider();
            self.reset_by(Some(port));
        } else {
            // The program may be one with the library that comes too late for the end.
            self.leave_to_kernel_for_image(Some(port.channel));
        }
        has_gap
    }

    /// Takes back what processes had that were killed: they keep nothing open, and tell the other end nothing. Likewise
    /// what an image was lent that has ended before it came.
    pub fn take_back_from_dead_images(&self) {
        lent::take_back_if_image_died(&self.end.owners);
        let family = family::existing().filter(|_| !self.is_last() && self.end.stage() == Stage::Joined);
        if let Some(family) = family {
            if self.is_awaited() {
                // An end that nobody else has leaves its ring for the image.
                await_dying_once(family);
            }
            if family.has_reference_of_gone(self.index) {
                take_back_at_once(family);
            }
        }
    }

    /// Whether this process has let go of it, and keeps its descriptors.
    pub fn is_relinquished(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.relinquished.load(Acquire))
    }

    /// This process lets go of it, and keeps its descriptors: see [`relinquish`]. Whether it was the last.
    pub fn relinquish(&self) -> bool {
        self.learn_cookie();
        if let Some(handle) = handle(self.index) {
            let is_plain = |port: Port<'_>| port.leaves_all_to_kernel() || port.reads_plainly() && !port.sends_fast();
            let is_plain = self.joined_port().is_none_or(is_plain);
            handle.was_plain.store(is_plain, Relaxed);
        }
        family::existing().is_some_and(|family| relinquish(family, self.index) == Some(true))
    }
}

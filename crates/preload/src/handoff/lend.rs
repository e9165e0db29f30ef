//! A socket that is passed to another process over a Unix socket (SCM_RIGHTS).

use super::parcel::bytes_of;
use super::{LENT_NS, LIBRARY, fill};
use crate::connection::Connection;
use crate::{process, seccomp};
use underpass_segment::clock;
use underpass_segment::end::{End, Family, Stage};
use underpass_segment::kernel;
use underpass_segment::meeting::Meeting;
use underpass_segment::raw::Errno;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AcqRel, Relaxed};

/// A socket is about to be passed to another process over `channel`: one of the same family finds its end again, any
/// other sees plain TCP.
pub fn lend(connection: &Connection, channel: i32) {
    connection.end.pin(Reason::Passed);
    if connection.end.stage() != Stage::Joined {
        return;
    }
    if seccomp::is_confined() {
        connection.hand_over_or_reset(Reason::Passed);
    } else {
        match taker(channel) {
            Taker::Relative => connection.pin(Reason::Passed),
            Taker::Unknown => {
                connection.offer(Reason::Passed);
                if connection.has_unread_out_of_reach() && !is_had_by_guests(channel) {
                    connection.reset();
                }
            }
            Taker::Stranger => connection.hand_over_or_reset(Reason::Passed),
        }
        connection.end.lend(clock::nanoseconds() + LENT_NS);
        let lend = |meeting: &mut Meeting| meeting.lend(connection.end, connection.index(), connection.fd);
        if process::with_meeting_surely(lend) != Some(true) {
            // Nobody will find its end.
            connection.hand_over_or_reset(Reason::Passed);
        }
    }
}

/// Who will take what is passed.
enum Taker {
    /// One that has this family's ends, as far as can be told; perhaps this process itself.
    Relative,
    /// One that has none of them yet, and may know how to come to them.
    Unknown,
    /// One without the library.
    Stranger,
}

/// Who takes what is sent over a Unix socket: whoever made its other end. A process that is gone may have left it to its
/// children, and this one to whatever they have executed.
fn taker(channel: i32) -> Taker {
    let Some(family) = process::existing_family() else { return Taker::Stranger };
    let maker = kernel::maker_of_peer(channel).ok().filter(|&pid| pid > 0);
    let asked = maker.map_or(Ok(true), |pid| kernel::has_segment(pid, family.id()));
    match asked {
        Ok(true) | Err(Errno(libc::ENOENT)) if family.has_others(process::member()) => Taker::Relative,
        Ok(true)
            if maker == Some(kernel::process_id()) && kernel::unix_peer(channel).is_some_and(kernel::has_alone) =>
        {
            Taker::Relative
        }
        Ok(true) | Err(Errno(libc::ENOENT)) => Taker::Unknown,
        _ if maker.is_some_and(|pid| kernel::has_file(pid, LIBRARY)) => Taker::Unknown,
        _ => Taker::Stranger,
    }
}

/// Whether all processes that have the other end of a Unix socket by now have loaded the library, as far as /proc tells.
fn is_had_by_guests(channel: i32) -> bool {
    let Some(inode) = kernel::unix_peer(channel) else { return false };
    let (mut some, mut all) = (false, true);
    kernel::for_each_holder(inode, |pid| {
        let is_guest = kernel::has_file(pid, LIBRARY);
        (some, all) = (some || is_guest, all && is_guest);
    });
    some && all
}

/// Fills `end` from end number `index` of family `id`, which is another than this process's and has passed the socket here:
/// to that family the connection is plain TCP from then on. False if that cannot be.
pub fn take_over(end: &End, id: i32, index: u32, cookie: u64) -> bool {
    let Ok(lender) = Family::open(id, kernel::user_id()) else { return false };
    let old = lender.end(index);
    let is_there = old.cookie.load(Relaxed) == cookie && !old.needs_no_segment() && old.add_reference();
    let copy = || {
        fill(end, bytes_of(old));
        // Nobody was inside but this thread.
        end.reading.lock.open();
        end.sending.lock.open();
    };
    let taken = is_there && kernel::undisturbed(|| old.give_away(process::thread(), copy));
    if taken {
        end.forget_watchers();
    }
    if is_there && old.references.fetch_sub(1, AcqRel) == 1 && taken {
        lender.give_back(index);
    }
    // SAFETY: the reference to the end was the only one, and is not used any more.
    unsafe { lender.detach() };
    taken
}

//! How the next call on a connection goes, and when it looks for its other end.

use super::handle::{Handle, handle};
use super::references::take_back_what_is_left;
use super::state::Attachment;
use super::watchers::watchers;
use super::{Connection, io_uring, options};
use crate::guest::{departure, family, filter, table};
use underpass_segment::end::{End, Stage};
use underpass_segment::kernel;
use underpass_segment::meeting::{Answer, Meeting};
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AcqRel, Acquire, Relaxed};

/// How a call on a connection has to go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// libc's call, counted.
    Plain,
    /// libc's call, and no other from now on: the connection was just settled.
    Settled,
    /// Through the channel, by [`Connection::port`].
    Joined,
    /// libc's call, behind what [`Connection::receive_rest`] finds.
    Confined,
    /// Nothing goes any more.
    Broken,
    /// The descriptor was closed by another thread meanwhile.
    Closed,
}

impl Connection {
    /// Decides how the next call goes; looks for the other end when the time has come.
    #[inline(always)]
    pub fn way(&self) -> Way {
        if matches!(self.end.stage(), Stage::Plain | Stage::Waiting) {
            let generation = table::generation(self.fd);
            self.consider();
            if table::generation(self.fd) != generation {
                return Way::Closed;
            }
            if self.end.stage() == Stage::Pinned && self.settle() {
                return Way::Settled;
            }
        }
        match self.end.stage() {
            Stage::Joined if self.has_channel() => Way::Joined,
            Stage::Joined => self.without_channel(),
            Stage::Plain | Stage::Waiting | Stage::Pinned => Way::Plain,
            Stage::Broken => Way::Broken,
        }
    }

    #[inline(always)]
    fn has_channel(&self) -> bool {
        handle(self.index)
            .is_some_and(|handle| handle.attachment.load(Acquire) == Attachment::Present || self.begin_use(handle))
    }

    /// The first send or receive of this process.
    #[cold]
    fn begin_use(&self, handle: &Handle) -> bool {
        let attached = self.attached(handle);
        let _ = handle.attachment.compare_exchange(Attachment::Untouched, Attachment::Present, AcqRel, Acquire);
        self.count_use();
        attached
    }

    /// The way of an end whose channel is gone. Other processes of the family had it, and it went with them: a process
    /// that makes a channel may end before the other end has come. Or no process had it while both ends executed a
    /// program, or while one did so and the other end was gone.
    #[cold]
    fn without_channel(&self) -> Way {
        if self.is_confined() {
            return Way::Confined;
        }
        let end = self.end;
        if !end.read_gate.is_shut() && !end.write_gate.is_shut() {
            return Way::Plain;
        }
        if !end.needs_no_channel() {
            let unused = !end.has_met()
                && family::with_meeting_surely(|meeting| meeting.is_unmet(end, self.fd)).unwrap_or(false);
            if !unused {
                // What was in the channel is lost.
                return Way::Broken;
            }
            end.set_reason(Reason::Unproven);
        }
        end.become_plain();
        self.untag_plain();
        if end.is_passed() {
            // What was said of it in the directory is not so any more.
            family::with_meeting_surely(|meeting| meeting.end_lending(end));
        }
        Way::Plain
    }

    #[cold]
    fn consider(&self) {
        let end = self.end;
        self.count_use();
        if filter::is_confined() {
            return end.pin(Reason::Seccomp);
        }
        let calls = end.calls.fetch_add(1, Relaxed) + 1;
        self.carry_out_orders();
        if end.is_held() {
            // When it is let go of, it may look for its other end at once.
            return end.next_try.store(0, Relaxed);
        }
        if departure::is_under_way() {
            return;
        }
        let ask = || family::with_meeting(|meeting| meeting.answer(end)).unwrap_or(Answer::None);
        let answer = if end.stage() == Stage::Waiting { ask() } else { Answer::Forgotten };
        let is_time = match answer {
            Answer::None => false,
            Answer::Offer => true,
            Answer::Forgotten => self.proves_itself(calls) && calls >= end.next_try.load(Relaxed),
        };
        if !is_time {
            return;
        }
        if !self.is_last() {
            // Only this process would have the channel, which would be lost with the process.
            self.stop_asking();
            end.set_reason(Reason::Shared);
            if calls.is_power_of_two()
                && let Some(family) = family::existing()
            {
                // The others may have been killed.
                take_back_what_is_left(family);
            }
            return;
        }
        // Asked again inside the meeting, because a fork counts there what it shares, and a thread that leaves has
        // entered it before it packs what is joined.
        let meet = |how: fn(&mut Meeting, &End, i32)| {
            let alone = |meeting: &mut Meeting| {
                if self.is_last() && !departure::is_under_way() {
                    how(meeting, end, self.fd)
                }
            };
            kernel::undisturbed(|| family::with_meeting(alone));
            if end.stage() == Stage::Joined {
                (watchers().note_joined)(*self);
            }
            // Not earlier: this look takes longer than the rest, and most connections never meet their other end.
            if end.stage() == Stage::Joined && io_uring::is_possible() {
                return;
            }
            // The other end may go up with the next that it sends, before this one has received.
            if let Some(port) = self.port().filter(|port| end.stage() == Stage::Joined && !port.reads_plainly()) {
                port.become_ready();
            }
        };
        if answer == Answer::Offer {
            return meet(Meeting::take_offer);
        }
        end.next_try.store(calls.saturating_mul(2), Relaxed);
        if let Some(reason) = options::unsuitable(self.fd).or_else(|| options::set_before(*self)) {
            return end.pin(reason);
        }
        meet(Meeting::seek);
        // `underpass pin` may have asked since the look above, before the cookie was known.
        self.carry_out_orders();
        if end.stage() == Stage::Plain {
            end.next_try.store(calls + 1 + calls / 4, Relaxed);
        }
    }

    /// Carries out what `underpass pin` has ordered for it before its cookie was known.
    fn carry_out_orders(&self) {
        if let Some(family) = family::existing().filter(|family| family.has_orders()) {
            self.learn_cookie();
            family.carry_out_order(self.end);
        }
    }
}

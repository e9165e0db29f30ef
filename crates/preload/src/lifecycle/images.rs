//! Program images that were given a connection and have not begun yet: this process waits for them before it lets go.

use super::census::Census;
use crate::connection::references::{
    Keeper, are_between_images, await_dying, end_unless_awaited, is_claimed, take_back_at_once,
};
use crate::connection::{Connection, lent, look, unclaimed};
use crate::guest::{family, filter};
use underpass_segment::clock;
use underpass_segment::end::{IMAGE_WITHIN_NS, Stage};
use underpass_segment::family::{Departing, Family};
use underpass_segment::reason::Reason;
use underpass_segment::switch::Port;
use underpass_segment::sync::Acquire;

/// How long a program image that has not begun is awaited, if nothing is lost without it.
const PATIENCE_NS: u64 = 1_000_000_000;

/// How long the images of other ends are awaited. The channel says which processes execute programs, and a liar may
/// write there: so this is no longer than it takes a large program to begin beside heavy load.
const OTHERS_WITHIN_NS: u64 = PATIENCE_NS;

/// Until when program images that are on their way are awaited (CLOCK_MONOTONIC, ns), for all connections together.
pub fn images_awaited_until() -> u64 {
    clock::nanoseconds() + PATIENCE_NS
}

/// Before the process ends, or executes a program: awaits the program images that may claim ends that it has let go
/// of, until `deadline`. If unread bytes for them would be lost with this image, it waits as long as they may come.
pub fn await_claims(family: &'static Family, deadline: u64) {
    let mut waits = true;
    // An image that has begun to come is there soon.
    let soon = images_awaited_until();
    while core::mem::take(&mut waits) {
        let now = clock::nanoseconds();
        unclaimed::take_each(|index, it| {
            let connection = Connection::at(family, index, -1);
            let is_as_kept = connection.end.owners.lent_until() == it.until.load(Acquire);
            // This comes first: an image that comes after this look is looked at again.
            let claimed = is_claimed(family, index, it);
            if is_as_kept && claimed && connection.has_half_come(soon) {
                unclaimed::enlist(index);
                waits = true;
            } else if !end_unless_awaited(family, index, it, claimed, Keeper::Leaves) {
                unclaimed::enlist(index);
                waits |= now < deadline && connection.is_missed_without() || connection.is_lost_with_process();
            }
        });
        if waits {
            clock::nap(200);
        }
    }
}

/// Before the process ends, or executes a program: it keeps the family's table no more. If it alone has the table, it
/// awaits the new images of processes that share ends with it, and would otherwise go on with what these ends were when
/// they executed their programs. A seccomp filter may kill for the calls that say which processes these are.
pub fn depart(family: &Family, how: Departing) {
    let member = family::member();
    if !filter::is_confined() {
        let began = clock::nanoseconds();
        // Two processes may look at the same moment, and each find the other: not again, though.
        let pause = 100 + member.unwrap_or(0) % 128;
        while let waited = clock::nanoseconds() - began
            && waited < IMAGE_WITHIN_NS
        {
            if family.begin_departure(member, how) {
                if waited > PATIENCE_NS || !is_table_awaited(family, member) {
                    return;
                }
                family.end_departure(member);
            }
            clock::nap(pause);
        }
    }
    family.force_departure(member, how);
}

/// After [`depart`], which may have waited: awaits the images that have come for ends meanwhile, but not yet for their
/// channels. Other processes that had the ends may have let go of them meanwhile, too.
pub fn await_arrivals(family: &'static Family, deadline: u64) {
    let soon = images_awaited_until();
    look::for_each(|index, fd| {
        let connection = Connection::at(family, index, fd);
        if connection.is_awaited() && !connection.is_relinquished() {
            connection.await_heir(deadline);
        }
        while connection.has_half_come(soon) {
            clock::nap(200);
        }
    });
    await_claims(family, deadline);
    look::for_each(|index, fd| {
        let connection = Connection::at(family, index, fd);
        if connection.is_awaited() && connection.is_relinquished() && !connection.end.owners.are_any() {
            connection.leave_to_kernel_for_image(None);
        }
    });
}

/// Before the process executes a program: takes back what processes had that were killed. Otherwise they count as
/// processes that may still change the connections, and their copies in the new image would not be valid.
pub fn take_back_from_dead_images(family: &Family) {
    if !take_back_loans_of_dead() {
        return;
    }
    await_dying(family);
    // An end that an image is awaited for may keep the references of the dead, so this comes first: the image may have
    // died just now.
    lent::look_again();
    take_back_loans_of_dead();
    take_back_at_once(family);
}

/// Takes back what killed processes had, before the process awaits the images to which it has lent ends that others
/// seem to have, too: an end that nobody else has leaves its ring for them.
pub fn take_back_beside_loans(family: &Family) {
    let mut is_needed = false;
    look::look_at_all(|it| is_needed |= !it.is_last() && it.end.stage() == Stage::Joined && it.is_awaited());
    if is_needed {
        take_back_from_dead_images(family);
    }
}

/// Takes back what images were lent that have died. Whether other processes may have a fast connection all the same.
fn take_back_loans_of_dead() -> bool {
    let mut is_any_shared = false;
    look::look_at_all(|it| {
        lent::take_back_if_image_died(&it.end.owners);
        is_any_shared |= !it.is_last() && it.end.stage() == Stage::Joined;
    });
    is_any_shared
}

/// Before the process executes a program, which gets the connections that `stay`: awaits the new images of the
/// processes that have the other ends. See [`Port::begin_execution`].
pub fn take_turns(stays: impl Fn(&Connection) -> bool) {
    let deadline = clock::nanoseconds() + OTHERS_WITHIN_NS;
    let census = Census::new();
    // Two processes that have found each other try again at different moments.
    let pause = 100 + family::member().unwrap_or(0) % 128;
    let for_each_port = |what: &mut dyn FnMut(&Port<'_>)| {
        look::look_at_all(|it| {
            if stays(&it)
                && census.other_end(&it).is_none()
                && let Some(port) = it.joined_port()
            {
                what(&port);
            }
        });
    };
    while clock::nanoseconds() < deadline {
        let mut is_free = true;
        for_each_port(&mut |port| is_free = is_free && port.begin_execution());
        if is_free {
            return;
        }
        // Meanwhile others may wait for this process.
        for_each_port(&mut |port| port.end_execution());
        clock::nap(pause);
    }
    for_each_port(&mut |port| port.insist_on_execution());
}

/// Before the process ends, or executes a program: awaits the new images of processes that have the other ends of
/// connections, for which this process alone keeps the channels. It may have closed its own ends.
pub fn await_other_ends() {
    let deadline = clock::nanoseconds() + OTHERS_WITHIN_NS;
    let keeps = || family::with_meeting_surely(|meeting| meeting.keeps_for_images()) == Some(true);
    while !filter::is_confined() && keeps() {
        if clock::nanoseconds() > deadline {
            family::with_meeting_surely(|meeting| meeting.forget_images());
            return;
        }
        clock::nap(200);
    }
}

/// Whether a program image that was spawned is on its way to an end in the family's table, which only this process
/// keeps. The processes that had the end may have let go of it at the same moment, each of them beside the others.
fn is_table_awaited(family: &Family, member: Option<u32>) -> bool {
    let is_awaited = |index| {
        let end = family.end(index);
        let owners = &end.owners;
        let lasts = || owners.is_awaited(clock::nanoseconds()) && !owners.is_lent_to_processes();
        end.stage() == Stage::Joined && lasts() && {
            lent::take_back_if_image_died(owners);
            lasts()
        }
    };
    family.keeps_alone(member) && (0..family.used()).any(is_awaited)
}

impl Connection {
    /// Awaits a program image that is on its way, if no other process has the connection, or others have it that do not
    /// keep its channel.
    pub fn await_heir(&self, deadline: u64) {
        let is_waited_for = || {
            let is_in_time = || clock::nanoseconds() < deadline && self.is_missed_without();
            let is_missed = || is_in_time() || self.is_lost_with_process();
            (self.is_last() || self.are_others_between_images()) && is_missed() || self.has_half_come(deadline)
        };
        if self.is_last() && self.is_awaited() {
            // Until the image is there, no process reads the ring.
            self.go_away();
        }
        while self.is_awaited() && is_waited_for() {
            clock::nap(200);
        }
    }

    fn are_others_between_images(&self) -> bool {
        family::existing().is_some_and(|family| are_between_images(family, self.index))
    }

    /// Whether the process that is awaited would miss something if this process, which has gone away from the ring, did
    /// not wait. A process that the socket was passed to finds plain TCP, as it would behind the ring.
    fn is_missed_without(&self) -> bool {
        let has_unread = || self.port_even_confined().is_some_and(|port| !port.is_absent() || port.left_behind() > 0);
        !self.end.owners.is_lent_to_processes() || has_unread()
    }

    /// Whether an image has come for the connection but not yet for its channel. It is awaited until `deadline`,
    /// even if another process has the channel: the other end's process may let go of it at the same moment. It is
    /// awaited longer where only this process has unread bytes.
    pub fn has_half_come(&self, deadline: u64) -> bool {
        let is_lost = || self.company() == Some(1) && self.has_lost_unread();
        let may_be_lost = || !self.end.is_plain_for_good() && clock::nanoseconds() < deadline;
        let owners = &self.end.owners;
        owners.are_any_arriving() && self.is_awaited() && (may_be_lost() || is_lost()) && !self.have_arriving_died()
    }

    /// Whether those are gone that have come for the connection and not attached its channel: a process that has it is
    /// gone, and all others have attached the channel.
    fn have_arriving_died(&self) -> bool {
        let (Some(family), Some(pool)) = (family::existing(), self.end.pool_id()) else { return false };
        family.has_reference_of_gone(self.index)
            && !family.is_referred_to_by_process_without(self.index, family::member(), pool)
    }

    /// Whether bytes lie unread in the ring that the sender cannot put on the kernel path, or that only this process
    /// has.
    fn has_lost_unread(&self) -> bool {
        let is_left_to_sender = |port: &Port<'_>| port.is_absent() && self.company() != Some(1);
        let port = self.port_even_confined().filter(|port| port.goes_with_channel());
        port.is_some_and(|port| !is_left_to_sender(&port))
    }

    /// Whether the unread bytes are lost with this process: no other process keeps the end for an image that comes for
    /// it.
    pub fn is_lost_with_process(&self) -> bool {
        let has_others = || family::existing().is_some_and(|family| family.has_others(family::member()));
        self.has_lost_unread() && !has_others()
    }

    /// An image was to come for the connection, and would come too late for its unread bytes: then the connection is
    /// reset. Whether it is.
    pub fn reset_if_lost(&self) -> bool {
        let is_lost = self.has_lost_unread();
        if is_lost {
            self.reset();
        }
        is_lost
    }

    /// Another program image is about to take this one's place, and nobody has the channel until that image comes for
    /// it. Where this process has both ends, and no other process keeps the channel meanwhile, both go to the kernel
    /// path.
    pub fn outlast_image(self, census: &Census, deadline: u64) {
        let Some(port) = self.joined_port() else { return };
        if let Some(other) = census.other_end(&self) {
            match other.pinned_port(Reason::Inherited) {
                Some(other) => port.hand_over_with(&other, Reason::Inherited),
                None => port.pin(Reason::Inherited),
            }
        } else {
            // The image reads on from a copy of the ring, if no process with the other end comes back to it.
            let is_copied = self.is_last() && port.has_all_that_comes();
            self.await_images(&port, is_copied, census, deadline);
        }
    }

    /// Whether nobody has its channel when this image is gone, as far as can be told. A stream to another host goes on
    /// without.
    pub fn is_lost_to_image(&self, census: &Census) -> bool {
        if self.end.is_remote() {
            return false;
        }
        let has_both = || self.end.is_brokered() && census.other_end(self).is_some();
        self.end.stage() == Stage::Joined && (census.company(self) == Some(1) || has_both())
    }

    /// Awaits the image to which an end is lent of which the new image gets a descriptor if it `stays`. An image that
    /// finds its end in the family's table, and comes only after this image has taken the table along, would not share
    /// the new image's end.
    pub fn outlast_heir(&self, stays: bool, deadline: u64) {
        let takes_table_along = || family::existing().is_some_and(|family| !family.has_others(family::member()));
        let is_lost = || self.is_last() && self.is_awaited() && takes_table_along();
        self.await_heir(deadline);
        if is_lost() {
            // The others may have let go of it just now. Nobody but that image comes for it any more.
            self.await_heir(deadline);
        }
        if is_lost() {
            if stays {
                self.hand_over_or_reset(Reason::Inherited);
            } else {
                self.reset_if_lost();
            }
        }
    }

    /// The channel may be about to be lost with this process, perhaps the `last` that has this end, while the other
    /// processes that have an end of it are between two program images: awaits that an image has come for the channel.
    pub fn await_images(&self, port: &Port<'_>, last: bool, census: &Census, deadline: u64) {
        while port.is_needed(last)
            && self.company() == Some(1)
            && census.other_end(self).is_none()
            && clock::nanoseconds() < deadline
        {
            clock::nap(100);
        }
    }

    /// Another process that has the connection may be about to hand it over to a program without the library, which
    /// does not come back to the family's table. A copy of the end that was taken before that is done would be out of
    /// date: waits for it.
    pub fn await_hand_over(&self, family: &Family) {
        let is_handed_over = || !self.has_outsider() || self.end.is_plain_for_good();
        let deadline = images_awaited_until();
        while !is_handed_over()
            && family.is_referred_to_by_departed(self.index, family::member())
            && clock::nanoseconds() < deadline
        {
            clock::nap(100);
        }
    }

    /// How many processes have its channel.
    pub fn company(&self) -> Option<u64> {
        family::with_meeting_surely(|meeting| meeting.company(self.end)).flatten()
    }
}

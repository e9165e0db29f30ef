//! A reader that executes another program is away from its ring until the new image has attached it.
//!
//! The socket is plain TCP meanwhile, whatever the new image turns out to be: no doorbell is on its way, this end's own
//! direction has gone down, and the sender puts on the kernel path what is unread as soon as it sends or wakes. An
//! image with this version of the library takes the bit [`AWAY`] down and reads on where the old image stood. If the
//! sender has begun to give back, which it says first by [`GIVING`], the image reads the kernel path until that is
//! done. Then it begins anew with an empty ring. An image without the library never notices.

use super::doze::wake_dozers;
use super::entering::Beside;
use super::{Port, Ready};
use crate::end::{End, Whereabouts};
use crate::kernel;
use crate::lock::Entered;
use crate::raw::is_quiet;
use crate::reason::Reason;
use crate::ring::{self, Place, Record};
use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed, Release, SeqCst, fence};
use crate::words::{ALONE, AWAY, Flag, GIVING, LEFT, NO_MORE_BELLS, Presence};

/// How many threads of this process end it, or execute a program.
static DEPARTING: AtomicU32 = AtomicU32::new(0);

/// The number of the thread that began to last.
static DEPARTER: AtomicU32 = AtomicU32::new(0);

/// Thread `me` ends this process, or executes a program: ends that are away stay so, whatever other threads receive.
/// These read the kernel path, as every process may that has the socket of such an end.
pub fn begin_departing(me: u32) {
    DEPARTER.store(me, SeqCst);
    DEPARTING.fetch_add(1, SeqCst);
}

/// Whether a thread does beside thread `me`.
pub(super) fn another_departs(me: u32) -> bool {
    departing() > 0 && DEPARTER.load(SeqCst) != me
}

/// How many threads do.
pub fn departing() -> u32 {
    DEPARTING.load(SeqCst)
}

/// It has failed to.
pub fn end_departing() {
    let _ = DEPARTING.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
}

/// In a forked child, which has none of these threads.
pub fn forget_departing() {
    DEPARTING.store(0, SeqCst);
}

/// What has become of a reader that was to go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It is away, or has left the ring for good.
    Gone,
    /// Something is unread that the sender could not put on the kernel path. Only a process that attaches the ring can
    /// go on.
    Stuck,
    /// Another thread or process reads.
    NotAlone,
}

impl Port<'_> {
    /// The reader goes away until a process with the library comes back to the ring: this process executes a program,
    /// or has given the socket to an image to come, or to a process that may have the library. `is_alone` says whether
    /// no other process reads. It is asked under the reader's lock, which a process that comes for the end takes
    /// afterwards ([`Port::come_back`]).
    pub fn go_away(&self, is_alone: impl Fn() -> bool) -> Departure {
        // Outside the lock as well: its owner may wait for this process.
        if !is_alone() {
            return Departure::NotAlone;
        }
        // The daemon gives an image the memory again. If it is lost before, what was sent is not.
        if self.end.is_remote() {
            self.fall_before_end();
            return Departure::Stuck;
        }
        let flags = &self.channel.incoming().flags;
        let reading = &self.end.reading;
        let (departure, unread) = self.with_all_reading(|beside| {
            if !is_alone() {
                return (Departure::NotAlone, 0);
            }
            if self.is_absent() {
                return (Departure::Gone, 0);
            }
            if self.may_take(beside) {
                self.pass_marks();
            }
            flags.consumed.store(self.place().consumed as u32, Relaxed);
            if !kernel::undisturbed(|| self.leave_what_can_be_given_back(AWAY)) {
                // Should it leave later, then at the beginning of a record.
                flags.consumed.store(0, Relaxed);
                self.end.note_met();
                return (Departure::Stuck, 0);
            }
            fence(SeqCst);
            // A thread that dozes takes no doorbell, and is awaited below.
            wake_dozers(&flags.waiting, flags.waiting.load(Relaxed));
            flags.ready.store(0, Relaxed);
            let missing = self.await_bells(beside, self.refuse_bells(), u64::MAX);
            if missing > 0 {
                // A doorbell that comes later would be data to an image without the library.
                flags.waiting.fetch_or(LEFT, SeqCst);
                self.forget_ring(beside, u64::MAX);
                return (Departure::Gone, 0);
            }
            let from_ring = reading.fast.swap(0, Relaxed) != 0;
            reading.set_whereabouts(if from_ring { Whereabouts::AwayFromRing } else { Whereabouts::AwayFromKernel });
            let left = self.left_behind();
            reading.left.store(left, Relaxed);
            reading.away_at.store(self.kernel_position(), Relaxed);
            reading.vain_looks.store(0, Relaxed);
            (Departure::Gone, left)
        });
        if departure == Departure::Gone {
            self.go_down_away(unread);
        }
        departure
    }

    /// This end, which is away, goes down. A mark alone wakes no sender that sleeps, and the image may wait for what is
    /// `unread`. A sender that does not sleep looks at the flag with its next call: a doorbell that it does not take
    /// would make its kernel reset the connection if its process is killed.
    fn go_down_away(&self, unread: u64) {
        let is_asleep = || unread > 0 && self.reader_may_sleep();
        let wakes = is_asleep();
        self.go_down_for_now(Reason::Met, wakes);
        // In this order: a reader that goes to sleep raises its flag, then looks for the mark.
        if !wakes && is_asleep() {
            self.take_mark_back();
            self.go_down_for_now(Reason::Met, true);
        }
    }

    /// Where this end is in the kernel stream; where it was when it went away, if it is away.
    fn departed_at(&self) -> u64 {
        if self.end.is_away() { self.end.reading.away_at.load(Relaxed) } else { self.kernel_position() }
    }

    /// Where in the kernel stream that begins which the sender gives back: behind what comes before the ring.
    pub(super) fn given_from(&self) -> u64 {
        match self.front_from(self.place().head) {
            Ok((_, Record::Up(position))) => position,
            _ => self.departed_at(),
        }
    }

    /// Bytes that were unread in the ring when this end went [away](Port::go_away).
    pub fn left_behind(&self) -> u64 {
        let (ring, mut place) = (self.incoming(), self.place());
        if let Ok((at, mark @ Record::Up(_))) = self.front_from(place.head) {
            place = Place { head: ring.behind(at, mark), consumed: 0 };
        }
        ring::unread(&ring, place).unwrap_or(0)
    }

    /// How many bytes the kernel will have received behind those that this end has read once what was unread, when this
    /// end went [away](Port::go_away), is given back; 0 if nothing was.
    pub fn until_given(&self) -> u64 {
        let before = self.given_from().saturating_sub(self.departed_at());
        let unread = self.left_behind();
        if unread > 0 { before.saturating_add(unread) } else { 0 }
    }

    /// Whether all that this end has left in its ring, where it is away, has come by the kernel.
    pub(super) fn has_been_given_all(&self) -> bool {
        self.left_behind() > 0 && self.end.was_given(self.fd, self.until_given())
    }

    /// Whether something lies unread in the ring that no sender has put on the kernel path: it goes with the channel.
    pub fn goes_with_channel(&self) -> bool {
        !matches!(self.presence(), Presence::Left | Presence::Given) && self.left_behind() > 0
    }

    /// A process with the library has come for the end, and reads on if the end is away. Its reference is counted
    /// before: a process that is [going away](Port::go_away) finds the reference, or is away when this process has the
    /// lock.
    pub fn come_back(&self) {
        // A receive comes back later, if the end goes away now.
        if !self.end.is_away() && self.end.reading.lock.may_await_this_process(self.me) {
            return;
        }
        kernel::undisturbed(|| self.come_back_unless(|| false));
    }

    /// The execution for which this end went away has failed. A poll that sleeps may have lost its doorbell by that, so
    /// this end sends the doorbell again, through a copy of the sender's socket. Where it gets no copy, the poll sleeps
    /// until more comes.
    pub fn come_back_beside_polls(&self) {
        self.come_back();
        if self.end.is_watched()
            && self.receives_fast()
            && self.ready() == Ready::Yes
            && let Some(socket) = self.copy_of_peer()
        {
            self.with_all_reading(|_| kernel::undisturbed(|| self.ring_itself(socket)));
            kernel::close(socket);
        }
    }

    /// Sends this end a doorbell by `socket`, a copy of the sender's. It must not come behind data that the sender puts
    /// on the kernel path, so this does nothing once the sender has gone down.
    fn ring_itself(&self, socket: i32) {
        let announced = &self.channel.incoming().sender.announced;
        self.beside_switch(|is_switching| {
            let is_all_in_ring =
                || self.presence() == Presence::Here && !self.sender_has_ended() && self.is_all_in_ring();
            if is_switching() || !is_all_in_ring() {
                return;
            }
            let is_refused = announced.fetch_add(1, AcqRel) & NO_MORE_BELLS != 0;
            if is_refused || kernel::send_bell(socket) != Ok(1) {
                announced.fetch_sub(1, Release);
            }
        });
    }

    /// A thread that sleeps in a receive stays outside meanwhile, should it wake: it would take a doorbell for data.
    fn come_back_unless(&self, stays: impl Fn() -> bool) {
        self.with_all_unrepaired(|entered| {
            if self.end.is_away() && !stays() {
                // This comes first: a sender that sees this end back finds no mark that this end takes back.
                self.take_mark_back();
                self.read_on();
            }
            // This comes second: what is to be repaired depends on where this end reads.
            self.repair_after(entered);
        });
    }

    /// This end went down when it went away. If the other end has not passed that mark, and nothing was sent on the
    /// kernel path since, the stream goes on in the ring, as if this end had not gone down: otherwise what lies before
    /// the mark could not be put on the kernel path any more, behind which the stream would go on.
    pub(super) fn take_mark_back(&self) {
        let sending = &self.end.sending;
        let entered = self.enter_sending();
        let goes_on = entered != Entered::Nested
            && !self.sends_fast()
            && !self.end.sends_by_kernel()
            && !self.has_to_go_down()
            && sending.kernel_sends.load(Acquire) == 0;
        if goes_on {
            let switching = &self.channel.outgoing().sender.switching;
            switching.swap(1, SeqCst);
            // What was given back has passed the mark as well.
            let is_ahead = matches!(self.sender().used(true), Ok(1..));
            if is_ahead && self.given_since() == Some(0) {
                // This comes first: if this process is killed in between, the mark says that the direction is down.
                sending.fast.store(1, Relaxed);
                if !self.sender().take_mark_back() {
                    sending.fast.store(0, Relaxed);
                }
            }
            switching.store(0, Release);
        }
        sending.lock.exit(entered);
    }

    /// This end goes back to the ring, unless somebody else has read the socket.
    pub(super) fn read_on(&self) {
        let reading = &self.end.reading;
        let flags = &self.channel.incoming().flags;
        if self.flag().0 & GIVING != 0 {
            // This end stays away until the sender has given back, or ends. What was read meanwhile is not counted.
            return;
        }
        if !self.is_untouched() {
            // A process without the library has.
            flags.waiting.fetch_or(LEFT, SeqCst);
            reading.set_whereabouts(Whereabouts::Left);
            return;
        }
        // This comes first: from the next step on something may be in the ring alone, and an image may be awaited.
        let is_tagged = self.tag_if_lent();
        let bells = &self.channel.incoming().sender.announced;
        // This comes before the flag: a sender that finds the flag raised sends a doorbell.
        bells.fetch_and(!NO_MORE_BELLS, AcqRel);
        let is_in_time = |flag: Flag| flag.presence() != Presence::Left && flag.0 & GIVING == 0;
        let raised = if self.is_before_ring() { 0 } else { ALONE };
        let back = |word| is_in_time(Flag(word)).then_some(raised);
        if let Ok(before) = flags.waiting.fetch_update(SeqCst, SeqCst, back) {
            wake_dozers(&flags.waiting, before);
            flags.consumed.store(0, Relaxed);
            reading.fast.store((reading.whereabouts() == Whereabouts::AwayFromRing).into(), Relaxed);
            self.be_here(raised);
        } else {
            bells.fetch_or(NO_MORE_BELLS, AcqRel);
            if is_tagged && self.leaves_all_to_kernel() {
                kernel::set_tagged(self.fd, false);
            }
        }
    }

    /// Tags the socket if an image is awaited for the end, which then reads the ring: see [`kernel::set_tagged`].
    fn tag_if_lent(&self) -> bool {
        let is_lent = self.end.owners.is_lent() && !is_quiet();
        if is_lent {
            kernel::set_tagged(self.fd, true);
        }
        is_lent
    }

    /// A process that knows of the ring is about to read, and goes back to the ring if it can, unless it
    /// [departs](begin_departing). If the sender was giving back and has finished, the ring is empty, and both ends
    /// begin anew.
    pub(super) fn return_to_ring(&self) {
        if !self.end.is_away() || self.stays_away() {
            return;
        }
        let is_given = || self.presence() == Presence::Given;
        if self.flag().0 & GIVING == 0 {
            return kernel::undisturbed(|| self.come_back_unless(|| self.stays_away()));
        }
        if !is_given() {
            return self.take_up_unfinished();
        }
        self.with_reading(|beside| {
            if beside == Beside::Nobody && self.end.is_away() && is_given() {
                kernel::undisturbed(|| self.begin_anew());
            }
        });
    }

    /// A receive finds the end of the stream. Whether this end was away, and is back: the sender was killed, and what
    /// it has not given back is in the ring.
    pub(super) fn comes_back_at_end(&self) -> bool {
        self.end.is_away() && {
            self.return_to_ring();
            !self.end.is_away()
        }
    }

    /// Whether this process departs, and the sender, which lives, gives back what is left in the ring.
    fn stays_away(&self) -> bool {
        departing() != 0 && !self.sender_is_gone()
    }

    fn begin_anew(&self) {
        let reading = &self.end.reading;
        let Some((position, true)) = self.read_position() else { return };
        let words = self.channel.incoming();
        reading.kernel.store(position.wrapping_sub(reading.all_bells.load(Relaxed)), Relaxed);
        let head = words.head.head.load(Acquire);
        // The other end may have written anything there: this end keeps and publishes the position that the word is
        // masked to.
        reading.place.store(Place { head, consumed: 0 }.pack(), Relaxed);
        words.head.head.store(self.place().head, Release);
        words.flags.consumed.store(0, Relaxed);
        self.tag_if_lent();
        words.sender.announced.fetch_and(!NO_MORE_BELLS, AcqRel);
        let given = |word| (Flag(word).presence() == Presence::Given).then_some(ALONE);
        if let Ok(before) = words.flags.waiting.fetch_update(SeqCst, SeqCst, given) {
            wake_dozers(&words.flags.waiting, before);
            self.be_here(ALONE);
        }
    }

    /// Whether this end, which is away, has still to read what comes before the ring. What wakes a sleeper is that, and
    /// a doorbell would lie behind it, where it keeps this end from leaving the ring.
    fn is_before_ring(&self) -> bool {
        let is_ahead = |up| !self.has_reached(up);
        self.end.reading.whereabouts() == Whereabouts::AwayFromKernel
            && matches!(self.front_from(self.place().head), Ok((_, Record::Up(up))) if is_ahead(up))
    }

    /// This end looks at the ring again, with its flag `raised` so.
    pub(super) fn be_here(&self, raised: u32) {
        let reading = &self.end.reading;
        reading.armed.store(raised, Relaxed);
        reading.set_whereabouts(Whereabouts::Here);
        self.publish_position();
        // SeqCst: as in `declare_ready`.
        self.channel.incoming().flags.ready.swap(1, SeqCst);
    }
}

impl End {
    /// Whether its reader is away from the ring: see [`Port::go_away`].
    pub fn is_away(&self) -> bool {
        matches!(self.reading.whereabouts(), Whereabouts::AwayFromKernel | Whereabouts::AwayFromRing)
    }

    /// Whether the kernel has received `left_behind` bytes since the reader of socket `fd` went away, so that the
    /// sender has given them back.
    pub(super) fn was_given(&self, fd: i32, left_behind: u64) -> bool {
        let position = self.reading.away_at.load(Relaxed);
        let Ok(counters) = kernel::counters(fd) else { return false };
        // The other end's FIN counts as a byte, and nothing tells whether it has come where the connection is over.
        let ended = kernel::has_fin(counters.state) || counters.state == kernel::CLOSED;
        position.checked_add(left_behind).is_some_and(|all| counters.received >= all + u64::from(ended))
    }

    /// The channel is gone. Whether nothing was left in it, or `left_behind` bytes that were given back to socket `fd`
    /// since. Then the connection is plain TCP from now on.
    pub fn stay_away(&self, fd: i32, left_behind: u64) -> bool {
        let has_all = self.has_left_nothing() || self.is_away() && self.was_given(fd, left_behind);
        if has_all {
            self.reading.set_whereabouts(Whereabouts::Left);
            self.pin_sending();
        }
        has_all
    }
}

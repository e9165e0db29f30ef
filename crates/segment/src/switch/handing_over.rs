//! A process hands a socket over, or pins its connection: the reader leaves the ring, and the sender goes down for
//! good.

use super::away::Departure;
use super::doze::LOOKS_WHILE_AWAY;
use super::leaving::{Fate, Leave};
use super::{LeftRing, Port, micros};
use crate::clock::{nap, ticks};
use crate::end::{IMAGE_WITHIN_NS, Whereabouts};
use crate::kernel;
use crate::raw::is_quiet;
use crate::reason::Reason;
use crate::sync::{AtomicU64, Relaxed};

/// How long an end that was rung is awaited. Beside heavy load it may have to wait long for a processor.
const PASSES_MARK_WITHIN_US: u64 = 500_000;

/// A sender that was woken has given back within this time, if it gets a processor.
const GIVES_WITHIN_US: u64 = 20_000;

/// A process without the library that gets the socket. It decides how surely the socket has to be plain TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// Perhaps no such process comes. The ring is left only if the other end can be woken to give back what is unread.
    Unsure,
    /// The process comes beside processes with the library, which go on reading what cannot be given back.
    Beside,
    /// The process alone has the socket.
    Alone,
}

impl Port<'_> {
    /// Takes both directions down for good. The incoming direction goes down at once if everything in its ring was
    /// read, otherwise as soon as the other end sends again.
    pub fn pin(&self, reason: Reason) {
        if self.end.is_remote() {
            return self.go_down_for_good(reason, false, u64::MAX);
        }
        self.ask_for_down_unless_awaited();
        self.leave_if_read(u64::MAX);
        self.go_down_for_good(reason, false, u64::MAX);
    }

    /// As [`Port::pin`], for a program whose receives the library still serves: the incoming direction goes down once
    /// everything in its ring was read. Until then the sender can give that back, should a process without the library
    /// get the socket.
    pub fn pin_once_read(&self, reason: Reason) {
        if self.end.is_remote() {
            return self.go_down_for_good(reason, false, u64::MAX);
        }
        self.ask_for_down_once_read();
        self.leave_if_read(u64::MAX);
        self.go_down_for_good(reason, false, u64::MAX);
    }

    /// Asks the sender for the kernel path: where the sender has gone down behind what is unread because its process
    /// executes a program, for once the ring is read. A sender that heeded it before could not take that mark back,
    /// should the execution fail, and could never give back what is unread.
    fn ask_for_down_unless_awaited(&self) {
        if self.fate_of_unread() == Fate::Awaited {
            self.ask_for_down_once_read();
        } else {
            self.ask_for_down();
        }
    }

    /// Asks the sender for the kernel path where that costs nothing: this end has left the ring, or the sender has gone
    /// down for good. Any other sender would go down behind what is unread, and could never give that back.
    fn ask_for_down_if_left(&self) {
        if self.is_absent() || self.fate_of_unread() == Fate::Lost {
            self.ask_for_down();
        }
    }

    /// Hands the socket over to a process without the library. Both directions go down for good, and what is unread
    /// goes the kernel path. Where it cannot, this does what [`Port::pin`] does, for an [unsure](Recipient::Unsure)
    /// recipient what [`Port::pin_once_read`] does, and returns false. It returns false as well where the library
    /// has taken data from the kernel that the program has not read. With `wakes`, the other end is woken in any case.
    pub fn hand_over(&self, reason: Reason, recipient: Recipient, wakes: bool) -> bool {
        if self.end.is_remote() {
            self.go_down_for_good(reason, false, u64::MAX);
            return self.hears_no_statements();
        }
        let left = self.leave_to(recipient);
        if recipient == Recipient::Unsure {
            self.ask_for_down_if_left();
            self.ask_for_down_once_read();
        } else {
            self.ask_for_down_unless_awaited();
        }
        self.go_down_for_good(reason, wakes || left == LeftRing::Unread, u64::MAX);
        let is_left = left != LeftRing::No || self.is_absent();
        is_left && self.end.reading.is_where_kernel_is() && !self.is_cut_short()
    }

    /// Leaves the ring for the recipient. For a recipient that is sure to come, this end puts on the kernel path itself
    /// what it can. The ring is not left to a sender that nothing wakes.
    pub fn leave_to(&self, recipient: Recipient) -> LeftRing {
        if self.end.is_remote() {
            return LeftRing::No;
        }
        let left = match recipient {
            Recipient::Unsure if self.can_wake_once_back() => self.leave(Leave::OnceGivenBack, u64::MAX),
            Recipient::Unsure => LeftRing::No,
            Recipient::Beside | Recipient::Alone if self.leaves_to_sleeper() => LeftRing::No,
            Recipient::Beside => self.leave(Leave::OnceGivenBack, u64::MAX),
            Recipient::Alone => self.leave(Leave::UnlessLost, u64::MAX),
        };
        if left == LeftRing::No {
            self.leave_if_read(u64::MAX);
        } else if recipient != Recipient::Unsure {
            return LeftRing::with(self.has_left_unread() && !self.give_itself());
        }
        left
    }

    /// As [`Port::can_wake`]. A sender whose process executes a program cannot be woken until the image is there.
    fn can_wake_once_back(&self) -> bool {
        let began = ticks();
        loop {
            if self.can_wake() {
                return true;
            }
            let is_over = ticks().wrapping_sub(began) > micros(IMAGE_WITHIN_NS / 1000);
            if is_over || self.fate_of_unread() != Fate::Awaited {
                return false;
            }
            nap(200);
        }
    }

    /// The thread that left the ring for good may have been killed before it gave back what it had left there, or woke
    /// the sender for that. Before this end sleeps, or says that nothing has come, it does so. False if what was left
    /// has still to come.
    pub(super) fn has_what_was_left(&self) -> bool {
        self.end.reading.whereabouts() != Whereabouts::Left || self.gets_what_was_left()
    }

    #[cold]
    fn gets_what_was_left(&self) -> bool {
        let vain_looks = &self.end.reading.vain_looks;
        let looks = vain_looks.load(Relaxed);
        let is_owed = self.awaits_given() && kernel::inq(self.fd) == Ok(0) && !self.has_ended();
        if !is_owed || is_quiet() || looks >= LOOKS_WHILE_AWAY {
            return true;
        }
        vain_looks.store(looks + 1, Relaxed);
        // Rarer and rarer: each try may walk through /proc.
        if looks.count_ones() <= 1 && !(self.has_left_unread() && self.give_itself()) {
            self.go_down_for_good(Reason::Inherited, true, u64::MAX);
        }
        false
    }

    /// Whether what is unread would be left to a sender that sleeps and that nothing wakes: it has not passed this
    /// direction's mark of going down, and this process cannot have a copy of its socket. The recipient would wait for
    /// ever.
    fn leaves_to_sleeper(&self) -> bool {
        let has_copy = || self.copy_of_peer().map(kernel::close).is_some();
        self.has_something()
            && !self.sends_fast()
            && self.reader_may_sleep()
            && !has_copy()
            && !self.wakes_or_will_wake()
    }

    /// Whether the other end can be woken, or a doorbell that it has not taken wakes it. It was rung when this
    /// direction went down. Once it has taken that doorbell it is on its way to the mark of going down, and has only to
    /// get a processor: this waits until it has passed the mark, behind which it can be woken again.
    pub(super) fn wakes_or_will_wake(&self) -> bool {
        let began = ticks();
        loop {
            if self.can_wake() || self.awaits_answer() {
                return true;
            }
            // Not by a doorbell, which would be data behind the mark.
            let is_on_its_way = self.bells_since_up() > 0 && self.reader_may_sleep() && self.connected();
            if !is_on_its_way || ticks().wrapping_sub(began) > micros(PASSES_MARK_WITHIN_US) {
                return false;
            }
            nap(50);
        }
    }

    /// Hands the socket over to a process that may have the library and come back to the ring, or not.
    pub fn offer(&self, reason: Reason) {
        if self.end.is_remote() {
            return self.go_down_for_good(reason, false, u64::MAX);
        }
        if self.can_wake() || self.left_behind() > 0 && self.wakes_or_will_wake() {
            if self.go_away(|| true) == Departure::Gone && self.left_behind() > 0 {
                self.give_itself();
            }
        } else {
            self.leave_if_read(u64::MAX);
        }
        self.ask_for_down_if_left();
        self.go_down_for_good(reason, false, u64::MAX);
    }

    /// This end is away, and its process is about to let go of it: what is unread is put on the kernel path, as far as
    /// that can be done at once. A sender that sleeps was woken for it. Beside a sender that is not about to wake, this
    /// end gives itself; where it cannot, the sender may do so with its next call.
    pub fn give_for_image(&self) {
        /// The last wait in vain (ticks): there may be thousands of connections.
        static IN_VAIN_AT: AtomicU64 = AtomicU64::new(0);
        let began = ticks();
        let last = IN_VAIN_AT.load(Relaxed);
        let was_in_vain = last != 0 && began.wrapping_sub(last) < micros(10 * GIVES_WITHIN_US);
        let within = micros(if was_in_vain { GIVES_WITHIN_US / 20 } else { GIVES_WITHIN_US });
        let is_due = || self.end.is_away() && !self.leaves_all_to_kernel();
        let mut gives = true;
        while is_due() && ticks().wrapping_sub(began) < within {
            if gives && !self.reader_may_sleep() && !self.awaits_answer() {
                gives = false;
                self.give_itself();
            } else {
                nap(50);
            }
        }
        if is_due() && (!gives || !self.give_itself()) {
            IN_VAIN_AT.store(ticks(), Relaxed);
        }
    }

    /// Hands over both ends of a connection of this process, which is about to give up the channel. What cannot be put
    /// on the kernel path, or finds no room there while nobody reads, stays in the ring.
    pub fn hand_over_with(&self, other: &Port<'_>, reason: Reason) {
        // Both ends leave their rings before one goes down. Otherwise it would go down behind what is unread.
        for (reader, sender) in [(self, other), (other, self)] {
            if kernel::has_room_for(sender.fd, sender.unsent()) {
                reader.leave(Leave::IfGivenBack, u64::MAX);
            }
        }
        for port in [self, other] {
            port.go_down_unnoticed(reason);
        }
    }
}

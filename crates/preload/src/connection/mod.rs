//! A descriptor that is a TCP connection: how each call on it goes, and what this process keeps of it.

pub mod confined;
pub mod count;
pub mod inside;
pub mod insiders;
pub mod io_uring;
pub mod kept;
pub mod look;
pub mod options;
pub mod references;
mod settle;
pub mod share;
pub mod watchers;

use crate::guest::errno::to_c;
use crate::guest::memory::{PIECE, Sparse};
use crate::guest::table::{self, Known};
use crate::guest::{family, filter, forked, settings, thread};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use count::{COUNTERS, TOLD, UNCOUNTED, count_reason};
use inside::WAITING;
use insiders::Insiders;
use kept::Keeping;
use references::take_back_what_is_left;
use underpass_segment::end::{End, SHUT_IN, SHUT_OUT, Stage};
use underpass_segment::family::{Family, MAX_ENDS};
use underpass_segment::link::Link;
use underpass_segment::meeting::{Answer, Meeting};
use underpass_segment::reason::Reason;
use underpass_segment::switch::{Departure, Port, Recipient};
use underpass_segment::sync::{AcqRel, Acquire, AtomicBool, AtomicU32, AtomicU64, Relaxed, Release};
use underpass_segment::{clock, kernel};

/// What this process keeps of an end, beside the end itself.
pub struct Handle {
    /// Descriptors of this process that refer to it; 0: not in use.
    pub descriptors: AtomicU32,
    /// Threads of this process that are inside a call on it.
    pub inside: Insiders,
    /// Looks at it that have not ended: see [`look`].
    pub lookers: AtomicU32,
    /// This process has no reference any more, though it has descriptors: see [`part`].
    ///
    /// [`part`]: references::part
    pub parted: AtomicBool,
    /// Both directions were on the kernel path for good by then.
    pub was_plain: AtomicBool,
    /// The event in which the connection was found: see [`Connection::is_as_of`].
    pub found: AtomicU64,
    /// [`ABSENT`], [`WORKING`], [`UNTOUCHED`], [`PRESENT`] or [`CONFINED`]: whether `link` is there, and may be used.
    pub attached: AtomicU32,
    /// Whether the connection is in the statistics: see [`count`].
    pub counted: AtomicU32,
    /// What the end's counters said when this process began to use it.
    pub before: [AtomicU64; COUNTERS],
    /// What the kernel had sent and received of it when it was settled: see [`Connection::settle`].
    pub settled: [AtomicU64; 2],
    /// What is kept of it for a program image to come.
    pub kept: Keeping,
    pub link: UnsafeCell<MaybeUninit<Link>>,
}

pub const ABSENT: u32 = 0;
pub const WORKING: u32 = 1;
pub const PRESENT: u32 = 2;
/// It is there, but this process has gone to the kernel path for good.
pub const CONFINED: u32 = 3;
/// As [`PRESENT`], but no send or receive has used it yet.
pub const UNTOUCHED: u32 = 4;

static HANDLES: Sparse<Handle, { MAX_ENDS / PIECE }> = Sparse::new();
/// One more than the highest index of an end that this process ever had.
pub static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// What this process keeps of the end with this index; `None` without address space.
#[inline(always)]
pub fn handle(index: u32) -> Option<&'static Handle> {
    // SAFETY: handles are never unmapped; zeroed memory is an unused one.
    HANDLES.need(index as usize).map(|handle| unsafe { handle.as_ref() })
}

/// The connection that `fd` is already known to be, also a settled one.
#[inline]
pub fn known(fd: i32) -> Option<Connection> {
    let Known::Connection(index) = table::get(fd) else { return None };
    forked::check();
    Some(Connection::at(family::existing()?, index, fd))
}

/// The bytes that were in the segment of the connection `fd` are out of reach: ends it by a reset, so that neither end waits
/// for them.
pub fn end_lost(fd: i32) {
    kernel::reset(fd);
    count_reason(Reason::HandOver);
}

/// A connection in the hands of one call.
#[derive(Clone, Copy)]
pub struct Connection {
    /// Its end.
    pub end: &'static End,
    /// Index of its end in the family's table.
    pub index: u32,
    /// The descriptor by which the program named it.
    pub fd: i32,
}

/// How a call on a connection has to go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// libc's call, counted.
    Plain,
    /// libc's call, and no other from now on: the connection was just settled.
    Settled,
    /// Through the segment, by [`Connection::port`].
    Joined,
    /// libc's call, behind what [`Connection::receive_rest`] finds.
    Confined,
    /// Nothing goes any more.
    Broken,
    /// The descriptor was closed by another thread meanwhile.
    Closed,
}

impl Handle {
    /// This process has the end from now on.
    pub fn begin(&self) {
        self.parted.store(false, Relaxed);
        // What comes back after this process had told of it, or another with the same end, is counted anew.
        let _ = self.counted.compare_exchange(TOLD, UNCOUNTED, Relaxed, Relaxed);
        self.before.iter().for_each(|counter| counter.store(0, Relaxed));
        self.found.store(table::next_event(), Relaxed);
    }
}

impl Connection {
    /// The connection of `fd`, whose end is number `index` of the family.
    pub fn at(family: &'static Family, index: u32, fd: i32) -> Connection {
        Connection { end: family.end(index), index, fd }
    }

    /// Index of its end in the family's table.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether the descriptor was this very connection already when `event` was the last ([`table::last_event`]).
    pub fn is_as_of(&self, event: u64) -> bool {
        let found = handle(self.index).is_some_and(|handle| handle.found.load(Relaxed) <= event);
        found && table::generation(self.fd) <= event
    }

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
            Stage::Joined if self.has_segment() => Way::Joined,
            Stage::Joined => self.without_segment(),
            Stage::Plain | Stage::Waiting | Stage::Pinned => Way::Plain,
            Stage::Broken => Way::Broken,
        }
    }

    #[inline(always)]
    fn has_segment(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.attached.load(Acquire) == PRESENT || self.begin_use(handle))
    }

    /// The first send or receive of this process.
    #[cold]
    fn begin_use(&self, handle: &Handle) -> bool {
        let attached = self.attached(handle);
        let _ = handle.attached.compare_exchange(UNTOUCHED, PRESENT, AcqRel, Acquire);
        self.count_use();
        attached
    }

    #[inline(always)]
    fn attached(&self, handle: &Handle) -> bool {
        match handle.attached.load(Acquire) {
            PRESENT | UNTOUCHED => true,
            CONFINED => false,
            // A signal handler that comes here in the middle of it would wait for ever.
            _ => kernel::undisturbed(|| self.attach(handle)),
        }
    }

    /// Other processes of the family had the segment, and it went with them: whoever makes one may end before the other
    /// end has come. Or neither end had it while both executed a program, or one did and the other was gone.
    #[cold]
    fn without_segment(&self) -> Way {
        if self.is_confined() {
            return Way::Confined;
        }
        let end = self.end;
        if !end.read_gate.is_shut() && !end.write_gate.is_shut() {
            return Way::Plain;
        }
        if !end.needs_no_segment() {
            let unused = end.was_fast.load(Relaxed) == 0
                && family::with_meeting_surely(|meeting| meeting.is_unmet(end, self.fd)).unwrap_or(false);
            if !unused {
                // What was in it is lost.
                return Way::Broken;
            }
            end.set_reason(Reason::Unproven);
        }
        end.leave_to_kernel();
        Way::Plain
    }

    #[cold]
    fn consider(&self) {
        let end = self.end;
        self.count_use();
        if filter::is_confined() {
            return end.pin(Reason::Seccomp);
        }
        let config = settings::config();
        let calls = end.calls.fetch_add(1, Relaxed) + 1;
        if self.is_held() {
            // One that is let go of has proven itself.
            return end.next_try.store(0, Relaxed);
        }
        let ask = || family::with_meeting(|meeting| meeting.answer(end)).unwrap_or(Answer::None);
        let answer = if end.stage() == Stage::Waiting { ask() } else { Answer::Forgotten };
        let is_time = match answer {
            Answer::None => false,
            Answer::Offer => true,
            Answer::Forgotten => {
                let proven = calls > config.go_up_messages || end.bytes.load(Relaxed) >= config.go_up_bytes;
                proven && calls >= end.next_try.load(Relaxed)
            }
        };
        if !is_time {
            return;
        }
        if !self.is_last() {
            // Only this process would have the segment, which would go with it.
            end.set_reason(Reason::Shared);
            if calls.is_power_of_two()
                && let Some(family) = family::existing()
            {
                // The others may have been killed.
                take_back_what_is_left(family);
            }
            return;
        }
        // Asked again in the meeting: a fork counts what it shares there.
        let meet = |how: fn(&mut Meeting, &End, i32)| {
            let alone = |meeting: &mut Meeting| {
                if self.is_last() {
                    how(meeting, end, self.fd)
                }
            };
            kernel::undisturbed(|| family::with_meeting(alone));
            // Not before: it takes longer than the rest, and most connections never meet their other end.
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
        // What was asked before the cookie was known, and after the look above.
        self.is_held();
        if end.stage() == Stage::Plain {
            end.next_try.store(calls + 1 + calls / 4, Relaxed);
        }
    }

    /// Whether somebody asks from outside that it stays on the kernel path.
    fn is_held(&self) -> bool {
        if let Some(family) = family::existing().filter(|family| family.has_orders()) {
            self.learn_cookie();
            family.carry_out_order(self.end);
        }
        self.end.is_held()
    }

    /// The segment's port, for a joined end.
    #[inline(always)]
    pub fn port(&self) -> Option<Port<'static>> {
        let handle = handle(self.index)?;
        if !self.attached(handle) {
            return None;
        }
        // SAFETY: written before UNTOUCHED was stored; not written again while the handle is in use.
        let link = unsafe { (*handle.link.get()).assume_init() };
        Some(self.port_with(link, thread::number()))
    }

    #[inline(always)]
    pub fn port_with(&self, link: Link, me: u32) -> Port<'static> {
        Port {
            end: self.end,
            link,
            fd: self.fd,
            is_held: false,
            me,
            token: self.index,
            spin_us: settings::config().spin_us,
            doze_us: settings::config().doze_us,
            waiting: &WAITING,
        }
    }

    #[cold]
    fn attach(&self, handle: &Handle) -> bool {
        if handle.attached.compare_exchange(ABSENT, WORKING, AcqRel, Acquire).is_err() {
            while handle.attached.load(Acquire) == WORKING {
                clock::give_way();
            }
            return matches!(handle.attached.load(Acquire), PRESENT | UNTOUCHED);
        }
        let link = family::with_meeting_surely(|meeting| meeting.link(self.end)).flatten();
        if let Some(link) = link {
            // SAFETY: WORKING makes this thread the only writer, and nobody reads before UNTOUCHED.
            unsafe { (*handle.link.get()).write(link) };
        }
        handle.attached.store(if link.is_some() { UNTOUCHED } else { ABSENT }, Release);
        link.is_some()
    }

    /// The port, if every read of the socket goes through it.
    #[inline]
    pub fn ready_port(&self) -> Option<Port<'static>> {
        if self.end.stage() != Stage::Joined || !self.end.read_gate.is_shut() {
            return None;
        }
        self.port()
    }

    /// The direction out is about to end: what a reader has left in the ring could not follow behind the FIN.
    /// False if the kernel has no room for all of it yet.
    pub fn attend(&self) -> bool {
        self.joined_port().is_none_or(|port| port.attend())
    }

    /// The program has set how the socket is closed: the other end is told whether it is with a reset.
    pub fn tell_of_close(&self) {
        if let Some(port) = self.joined_port() {
            port.link.tell_of_close(self.fd);
        }
    }

    /// The program shuts down `directions` ([`SHUT_IN`], [`SHUT_OUT`]), by `shut`, and the other end is to know why before
    /// the kernel tells it.
    pub fn shut_down(&self, directions: u8, shut: impl FnOnce() -> i32) -> i32 {
        let before = self.end.shut.fetch_or(directions, AcqRel);
        if directions == SHUT_OUT {
            // Before the kernel does it: whom that wakes finds it.
            self.end.shutdowns.fetch_add(1, AcqRel);
        }
        let both = before | directions == SHUT_IN | SHUT_OUT;
        if both {
            // Not worth a segment any more.
            self.end.pin(Reason::Closed);
        }
        if let Some(port) = self.joined_port() {
            if directions & SHUT_OUT != 0 {
                port.end_sending();
            }
            if both {
                port.shut();
            }
            if directions & SHUT_IN != 0 {
                port.rouse();
            }
            if directions & SHUT_OUT != 0 {
                return port.between_sends(shut);
            }
        }
        shut()
    }

    /// One plain receive, counted; `None` when the connection has a segment by now and none may be begun.
    #[inline]
    pub fn receive_plainly(&self, flags: i32, plain: impl FnOnce() -> isize) -> Option<isize> {
        let inside = self.inside();
        inside.enter();
        let gate = &self.end.read_gate;
        if !gate.enter() {
            return None;
        }
        let answer = inside.during(|| gate.leave(), plain);
        gate.leave();
        if answer == 0
            && let Some(error) = self.end.take_kept_error()
        {
            return Some(to_c(Err(error)));
        }
        self.count_received(answer, flags);
        Some(answer)
    }

    /// The same once this end has left the ring of its segment for good.
    #[cold]
    pub fn receive_past(&self, flags: i32, plain: impl FnOnce() -> isize) -> isize {
        let answer = self.by_kernel(plain);
        self.count_received(answer, flags);
        answer
    }

    fn count_received(&self, answer: isize, flags: i32) {
        if answer > 0 && flags & libc::MSG_PEEK == 0 {
            self.end.reading.kernel_bytes.fetch_add(answer as u64, Relaxed);
            self.end.bytes.fetch_add(answer as u64, Relaxed);
        }
    }

    /// As [`Connection::receive_plainly`], for a send.
    #[inline]
    pub fn send_plainly(&self, plain: impl FnOnce() -> isize) -> Option<isize> {
        let inside = self.inside();
        inside.enter();
        let gate = &self.end.write_gate;
        if !gate.enter() {
            return None;
        }
        if let Some(error) = self.end.take_kept_error() {
            gate.leave();
            return Some(to_c(Err(error)));
        }
        let answer = inside.during(|| gate.leave(), plain);
        gate.leave();
        if answer > 0 {
            self.end.sending.kernel_bytes.fetch_add(answer as u64, Relaxed);
            self.end.bytes.fetch_add(answer as u64, Relaxed);
        }
        Some(answer)
    }

    /// Keeps the connection on the kernel path for good, whatever it is on now.
    pub fn pin(&self, reason: Reason) {
        if let Some(port) = self.pinned_port(reason) {
            port.pin(reason);
        }
    }

    /// The same, for a socket that goes to somebody who does not know what lies in the ring. False if bytes there are lost to
    /// that one.
    pub fn hand_over(&self, reason: Reason) -> bool {
        self.hand_over_to(Recipient::Alone, reason, false)
    }

    /// The same as [`Port::hand_over`] has it.
    pub fn hand_over_to(&self, recipient: Recipient, reason: Reason, wakes: bool) -> bool {
        self.port_for(recipient, reason).is_none_or(|(port, recipient)| port.hand_over(reason, recipient, wakes))
    }

    /// The port of the end, pinned, by which it is left to the recipient. A confined one is on kernel TCP already, and may not be
    /// able to wake a sender to which it leaves something: it is left as if the recipient were unsure.
    fn port_for(&self, recipient: Recipient, reason: Reason) -> Option<(Port<'static>, Recipient)> {
        self.pin_end(reason);
        let recipient = if self.is_confined() { Recipient::Unsure } else { recipient };
        Some((self.port_even_confined()?, recipient))
    }

    /// Hands it over to somebody who is to read it.
    pub fn hand_over_or_reset(&self, reason: Reason) {
        if !self.hand_over(reason) {
            self.reset();
        }
    }

    /// Leaves the ring before that. Whether something unread is left to the sender.
    pub fn leave_to(&self, recipient: Recipient, reason: Reason) -> bool {
        self.port_for(recipient, reason).is_some_and(|(port, recipient)| port.leave_to(recipient) == Some(true))
    }

    /// A program is about to be executed in this image's place: if nobody else has the connection, it is plain TCP until the new
    /// image comes back to the ring. How many bytes it has left there; `None` if it has not.
    pub fn go_away(&self) -> Option<u64> {
        let port = self.joined_port().filter(|_| self.end.read_gate.is_shut())?;
        let is_gone = port.go_away(|| self.is_last()) == Departure::Gone;
        is_gone.then(|| if self.end.is_away() { port.left_behind() } else { 0 })
    }

    /// The image was not executed.
    pub fn come_back(&self) {
        if self.end.is_away()
            && let Some(port) = self.joined_port()
        {
            port.come_back();
        }
    }

    /// Ends the connection by a reset: bytes of it are lost to whoever has the socket from now on.
    pub fn reset(&self) {
        self.reset_by(self.port_even_confined().as_ref());
    }

    pub fn reset_by(&self, port: Option<&Port<'_>>) {
        kernel::reset_at_close(self.fd);
        // The other end must not take it for the doing of a doorbell.
        if let Some(port) = port {
            port.link.tell_of_close(self.fd);
        }
        end_lost(self.fd);
    }

    /// The same for somebody who may know of it, if the other end can put it on the kernel path.
    pub fn hand_over_if_possible(&self, reason: Reason) {
        self.hand_over_to(Recipient::Unsure, reason, false);
    }

    /// The same for somebody who may have the library.
    pub fn offer(&self, reason: Reason) {
        if let Some(port) = self.pinned_port(reason) {
            port.offer(reason);
        }
    }

    /// stdin, stdout and stderr pass the library by, where the program does not use them by their descriptors.
    pub fn mind_stdio(&self) {
        if self.fd <= libc::STDERR_FILENO {
            self.hand_over_if_possible(Reason::Stdio);
        }
    }

    pub fn pinned_port(&self, reason: Reason) -> Option<Port<'static>> {
        self.pin_end(reason);
        self.joined_port()
    }

    fn pin_end(&self, reason: Reason) {
        if reason == Reason::Inherited {
            // Whoever pins it for that gives the socket to a program without the library, or may do so.
            self.end.outsider.store(1, Release);
        }
        self.end.pin(reason);
    }

    pub fn joined_port(&self) -> Option<Port<'static>> {
        if self.end.stage() == Stage::Joined { self.port() } else { None }
    }

    /// The port of a joined end, even of a confined one. Whoever uses it makes system calls of the library's own.
    pub fn port_even_confined(&self) -> Option<Port<'static>> {
        if self.end.stage() != Stage::Joined {
            return None;
        }
        self.port().or_else(|| Some(Port { me: thread::number(), ..self.confined_port()? }))
    }
}

//! Ends that cannot see their other end ask the broker: it is another user's, in another namespace, or hidden by the
//! kernel.
//!
//! Two ends of one user in two IPC namespaces each wait in a directory of their own, and neither can tell. So an end
//! that waits there for long asks the broker as well, and takes whichever comes first.
//!
//! An ask is spread over calls of the program, none of which waits for long: one connects, one sends, later ones look
//! for the answer, the more rarely the longer it takes. The library believes what the broker says of the other end,
//! because the broker has the kernel's word for both sockets. That the broker's memory cannot shrink, the library asks
//! the kernel. Where there is no broker, or it does not answer, the connection stays on kernel TCP.

use super::broker::{Broker, HEED_NS, NOBODY, Outcome, Place, Try};
use super::{Answer, Meeting, unless_closed};
use crate::channel::{Channel, MARK, Pool, Shape, Side};
use crate::clock;
use crate::dial::{Beside, Dial, Gift};
use crate::directory::{Directory, Key};
use crate::end::{Asked, End, Stage};
use crate::kernel;
use crate::line::Line;
use crate::raw::Errno;
use crate::reason::Reason;
use crate::sync::Relaxed;
use underpass_broker as wire;
use underpass_broker::{Freed, Refusal, Verdict};

/// If the kernel has withheld memory so often in a row, it is not asked for again. Once may be by chance, where another
/// thread has closed a descriptor in between.
const TIMES_WITHHELD: u32 = 3;
/// How long to wait for the broker to say whether it would give a pool again.
const PATIENCE_NS: u64 = 50_000_000;
/// How long to wait for a pool that the broker has said it would give again: without it the connection is lost.
const PATIENCE_TO_FETCH_NS: u64 = 1_000_000_000;
/// How long the last close waits for an answer. While a copy of the socket lies with the broker, the kernel neither
/// ends the connection nor takes it out of epoll sets. The broker was at work a moment ago.
const WAIT_AT_END_NS: i64 = 10_000_000;
/// The answer to an ask is looked for after this many further calls at the latest.
const MOST_CALLS: u32 = 64;
/// An end that waits in the directory asks the broker as well, after a multiple of this many calls. Two ends that talk
/// to each other make about as many calls, so an other end that uses the same directory has come by then.
const CALLS_ALONE: u32 = 64;
/// The more ends of a process have asked so in vain, the later the next ones ask: after so many times [`CALLS_ALONE`]
/// at most. An ask takes about as long as 20 calls on kernel TCP.
const MOST_TIMES_IN_VAIN: u32 = 32;

impl Meeting {
    /// The directory cannot lead `end` to its other end, so this asks the broker. Without a broker the end stays on
    /// kernel TCP for the reason `otherwise`.
    pub(super) fn seek_by_broker(&mut self, end: &End, fd: i32, otherwise: Reason) {
        let tried = self.ask_broker(end, fd);
        match tried {
            Try::Asked | Try::Knocking => {
                end.look_after(1);
                end.advance(Stage::Waiting);
            }
            Try::Later | Try::Scarce | Try::NoDescriptor => end.seek_later(),
            Try::Nobody => return end.pin(otherwise),
        }
        end.set_reason(tried.reason());
    }

    /// Whether the broker may be asked, as far as is known.
    pub(super) fn has_broker(&self) -> bool {
        self.broker.may_be_there(clock::nanoseconds())
    }

    /// Whether an end that waits in the directory is to ask the broker as well.
    pub(super) fn is_left_alone(&self, end: &End) -> bool {
        let calls = end.calls.load(Relaxed);
        let times = (1u32 << self.asked_in_vain.min(31)).min(MOST_TIMES_IN_VAIN);
        calls.is_multiple_of(CALLS_ALONE)
            && calls >= end.next_try.load(Relaxed).max(CALLS_ALONE * times)
            && self.has_broker()
    }

    /// No other end has come to the directory, where `end` goes on waiting: asks the broker as well, if there is one.
    pub(super) fn ask_broker_as_well(&mut self, end: &End, fd: i32) {
        match self.ask_broker(end, fd) {
            Try::Asked | Try::Knocking => {
                self.asked_in_vain = self.asked_in_vain.saturating_add(1);
                end.look_after(1);
            }
            Try::Later | Try::Scarce | Try::NoDescriptor | Try::Nobody => end.seek_later(),
        }
    }

    /// The other end waits in the directory, and one of the two cannot be shown to hold the connection: both ask the
    /// broker.
    pub(super) fn send_both_on(&mut self, end: &End, fd: i32, (directory, index, key): (Directory, u32, Key)) {
        self.seek_by_broker(end, fd, Reason::Unproven);
        let pid = kernel::process_id();
        if end.stage() == Stage::Pinned {
            directory.clear(index, key, pid);
            end.set_reason(unless_closed(fd, Reason::Unproven));
        } else {
            // If the table is busy, the next try does it.
            directory.send_on(index, key, pid);
        }
    }

    fn ask_broker(&mut self, end: &End, fd: i32) -> Try {
        let freed = self.freed();
        let tried = self.broker.ask(end.cookie.load(Relaxed), fd, self.ring_bytes, freed);
        if tried == Try::Asked {
            self.forget_freed(freed);
        }
        end.set_asked(match tried {
            Try::Asked => Asked::Pending,
            Try::Knocking => Asked::Knocking,
            Try::Later | Try::Scarce | Try::NoDescriptor | Try::Nobody => Asked::Nothing,
        });
        tried
    }

    /// What the broker says to an end that has asked.
    pub(super) fn answer_of_broker(&mut self, end: &End) -> Answer {
        let is_time = || end.calls.load(Relaxed) >= end.next_try.load(Relaxed);
        match end.asked() {
            Asked::Nothing => Answer::Forgotten,
            // There was no memory for it.
            Asked::Place if !is_time() => Answer::None,
            Asked::Place => match self.place(end) {
                // Where there was no memory there may be some now, though its maker may still have none.
                Some(it) if it.is_ready() || end.reason() == Reason::NoMemory => Answer::Offer,
                Some(_) => Answer::None,
                None => Answer::Forgotten,
            },
            // This is a forked child, and its parent has asked.
            Asked::Pending if self.broker.find(end.cookie.load(Relaxed)).is_none() => Answer::Forgotten,
            Asked::Pending | Asked::Knocking if is_time() => Answer::Offer,
            Asked::Pending | Asked::Knocking => Answer::None,
        }
    }

    /// Looks for the broker's answer to `end`, and does what follows from it.
    pub(super) fn follow_broker(&mut self, end: &End, fd: i32) {
        match end.asked() {
            Asked::Nothing => {}
            Asked::Knocking => {
                self.hear();
                let mut tried = self.ask_broker(end, fd);
                if tried == Try::Knocking {
                    // The answer may have come while this call waited.
                    self.hear();
                    tried = self.ask_broker(end, fd);
                }
                match tried {
                    Try::Asked => end.look_after(1),
                    Try::Knocking => end.look_later(),
                    Try::Later | Try::Scarce | Try::NoDescriptor | Try::Nobody => end.seek_later(),
                }
                if !end.waits_in_directory() {
                    end.set_reason(tried.reason());
                }
            }
            Asked::Pending => {
                self.hear();
                self.take_answer(end, fd);
            }
            Asked::Place => self.take_place(end, fd),
        }
    }

    fn take_answer(&mut self, end: &End, fd: i32) {
        let cookie = end.cookie.load(Relaxed);
        let Some(ask) = self.broker.find(cookie) else { return end.set_asked(Asked::Nothing) };
        let (outcome, since) = (ask.outcome, ask.since);
        match outcome {
            Outcome::None => return end.look_later(),
            Outcome::Waiting if clock::nanoseconds().saturating_sub(since) <= HEED_NS => {
                end.set_reason(Reason::PeerSilent);
                return end.look_later();
            }
            Outcome::Waiting => end.ask_later(),
            // The kernel has named another socket.
            Outcome::Met(place) if end.waits_in_directory() && place.other() != end.peer_cookie.load(Relaxed) => {
                return self.abandon_for_directory(end, cookie, outcome);
            }
            Outcome::Met(place) => {
                self.broker.forget(cookie);
                self.asked_in_vain = 0;
                self.leave_directory(end);
                end.put_in(&place);
                end.set_reason(Reason::PeerSilent);
                end.set_asked(Asked::Place);
                return self.take_place(end, fd);
            }
            // The other end may not have asked, and may still come to the directory.
            Outcome::Refused(refusal) if end.waits_in_directory() && !is_told_to_both(refusal) => end.ask_later(),
            Outcome::Refused(refusal) => {
                self.leave_directory(end);
                refuse(end, refusal);
            }
            // The other end, which was given the same, waits in vain.
            Outcome::Withheld if self.withheld >= TIMES_WITHHELD => {
                self.leave_directory(end);
                end.pin(Reason::NoMemory);
            }
            Outcome::NoMemory | Outcome::Withheld | Outcome::NoDescriptor => {
                end.set_reason(lack(outcome).unwrap_or(Reason::NoMemory));
                end.ask_later();
            }
            Outcome::Lost => end.seek_later(),
        }
        self.broker.forget(cookie);
        end.set_asked(Asked::Nothing);
    }

    /// Gives this ask up; the end goes on waiting in the directory.
    fn abandon_for_directory(&mut self, end: &End, cookie: u64, outcome: Outcome) {
        self.abandon(cookie, outcome, true);
        end.set_asked(Asked::Nothing);
        end.ask_later();
    }

    /// An end waits in the directory no more, if it did.
    fn leave_directory(&mut self, end: &End) {
        self.withdraw(end);
        end.entry.store(0, Relaxed);
    }

    /// An end that has a place joins, as soon as the place is ready and there is memory for it.
    fn take_place(&mut self, end: &End, fd: i32) {
        let Some(place) = self.place(end) else { return };
        let Some(channel) = place.pool.slot(place.slot, place.side) else { return };
        // Also of a place that is not ready: its maker may lack the same memory, and never make it ready.
        if !self.has_memory_for_place(&place) {
            // Other processes of its control groups may give some back.
            end.set_reason(Reason::NoMemory);
            return end.seek_later();
        }
        if !place.is_ready() {
            return end.set_reason(Reason::PeerSilent);
        }
        match place.side {
            Side::Maker => {
                place.pool.lay();
                channel.prepare(place.cookies);
            }
            Side::Joiner if channel.claim(place.cookies[1]) => {}
            // Its maker has closed.
            Side::Joiner => return end.pin(Reason::Closed),
        }
        if let Some(it) = self.attached(place.pool.id()) {
            it.users += 1;
            if let (Some(given), Side::Maker) = (&mut it.given, place.side) {
                given.made |= 1 << place.slot;
            }
        }
        end.set_asked(Asked::Nothing);
        // For what is captured.
        let _ = self.directory(kernel::user_id());
        self.join(end, fd, place.pool, place.slot, &channel);
    }

    /// The place that an end was given, if its pool is still there. A forked child does not know what its parent was
    /// given, and asks for itself.
    fn place(&mut self, end: &End) -> Option<Place> {
        let pool = self.attached(end.pool.load(Relaxed)).filter(|it| it.given.is_some())?.pool;
        let (mine, its) = (end.cookie.load(Relaxed), end.peer_cookie.load(Relaxed));
        let side = end.side();
        let cookies = if side == Side::Maker { [mine, its] } else { [its, mine] };
        let key = end.is_remote().then(|| (end.remote.key(), end.remote.daemon()));
        Some(Place { pool, slot: end.slot.load(Relaxed), side, cookies, key })
    }

    /// Makes a line to the broker, for a sleeper of this process.
    ///
    /// # Errors
    /// See [`Line::open`].
    pub fn open_line(&self) -> Result<Line, Errno> {
        Line::open(self.broker.path())
    }

    /// Takes all answers that have come.
    fn hear(&mut self) {
        while let Some((answer, beside)) = self.broker.hear() {
            self.note(answer, beside);
        }
    }

    pub(super) fn note(&mut self, answer: wire::Answer, beside: Beside) {
        let outcome = match (answer.verdict, beside) {
            (Verdict::Waiting, _) => Outcome::Waiting,
            (Verdict::Refused(refusal), _) => Outcome::Refused(refusal),
            (Verdict::Met { .. }, Beside::Lost) if self.broker.has_room_for_memory() => {
                self.withheld = self.withheld.saturating_add(1);
                Outcome::Withheld
            }
            (Verdict::Met { .. }, Beside::Lost) => Outcome::NoDescriptor,
            (Verdict::Met { pool, shape, slot, side, cookies }, Beside::Gift(memory)) if answer.mark == MARK => {
                self.withheld = 0;
                let side = if side == wire::Side::Maker { Side::Maker } else { Side::Joiner };
                match self.pool_of(memory, Shape::of_broker(shape), pool) {
                    Some(pool) => Outcome::Met(Place { pool, slot: slot.into(), side, cookies, key: None }),
                    None => Outcome::NoMemory,
                }
            }
            (Verdict::Carried { .. }, Beside::Lost) => Outcome::NoDescriptor,
            (Verdict::Carried { pool, shape, cookies, key }, Beside::Gift(memory)) if answer.mark == MARK => {
                match self.pool_of_daemon(memory, Shape::of_broker(shape), pool, NOBODY) {
                    Some(pool) => Outcome::Met(Place {
                        pool,
                        slot: 0,
                        side: Side::Joiner,
                        cookies,
                        key: Some((key, self.broker.daemon)),
                    }),
                    None => Outcome::NoMemory,
                }
            }
            (Verdict::Met { .. } | Verdict::Carried { .. } | Verdict::Here { .. }, _) => {
                Outcome::Refused(Refusal::Malformed)
            }
        };
        let outcome = match outcome {
            Outcome::Met(place) if !place.is_of(answer.token) => Outcome::Refused(Refusal::Malformed),
            outcome => outcome,
        };
        if let Some(ask) = self.broker.find(answer.token) {
            match ask.abandoned {
                Some(last) => self.abandon(answer.token, outcome, last),
                None => ask.outcome = outcome,
            }
        }
    }

    /// The memory, as a pool of this process.
    fn pool_of(&mut self, memory: Gift, shape: Shape, number: u64) -> Option<Pool> {
        self.pool_of_daemon(memory, shape, number, self.broker.daemon)
    }

    fn pool_of_daemon(&mut self, memory: Gift, shape: Shape, number: u64, daemon: u64) -> Option<Pool> {
        let (pool, is_new) = Pool::of_memfd(memory.fd(), shape).ok()?;
        if self.attached(pool.id()).is_none() && self.remember(pool, 0, None).is_err() {
            if is_new {
                // SAFETY: mapped just now, and nobody has been told of it.
                unsafe { pool.detach() };
            }
            return None;
        }
        if let Some(it) = self.attached(pool.id()) {
            it.daemon = daemon;
            if it.given.is_none_or(|given| given.pool != number) {
                it.given = Some(Given { pool: number, made: 0, room: 0 });
            }
        }
        Some(pool)
    }

    /// The pool of a joined end, which the broker gave to another process or to another image of this one: asks the
    /// broker to give it again, and waits for it, within limits.
    pub(super) fn fetch(&mut self, end: &End, fd: i32) -> Option<Pool> {
        self.fetch_until(end, fd, clock::nanoseconds() + PATIENCE_TO_FETCH_NS)
    }

    pub(super) fn fetch_until(&mut self, end: &End, fd: i32, until: u64) -> Option<Pool> {
        let cookie = end.cookie.load(Relaxed);
        if kernel::cookie(fd) != Ok(cookie) {
            return None;
        }
        let place = loop {
            match self.outcome_for(cookie, fd, until)? {
                Outcome::Met(place) => break place,
                Outcome::NoDescriptor if self.comes_to_descriptors(until) => {}
                outcome => {
                    // For what is said of a connection that is lost now.
                    lack(outcome).into_iter().for_each(|reason| end.set_reason(reason));
                    return None;
                }
            }
        };
        let is_same =
            (place.pool.id(), place.slot, place.side) == (end.pool.load(Relaxed), end.slot.load(Relaxed), end.side());
        if !is_same || place.pool.shape() != end.shape() {
            return None;
        }
        if let (Some(given), Side::Maker) = (self.attached(place.pool.id())?.given.as_mut(), place.side) {
            given.made |= 1 << place.slot;
        }
        Some(place.pool)
    }

    /// Waits until this process has descriptors to fetch memory with, until `until` (CLOCK_MONOTONIC, ns). Whether that
    /// is so. Only another thread can close one meanwhile. Where none has done so once, nobody waits for that again.
    fn comes_to_descriptors(&mut self, until: u64) -> bool {
        if self.lacks_descriptors || kernel::has_one_thread() || clock::nanoseconds() >= until {
            return false;
        }
        while clock::nanoseconds() < until {
            clock::nap(1000);
            if Dial::has_room() {
                return true;
            }
        }
        self.lacks_descriptors = true;
        false
    }

    /// What becomes of an ask for this socket, until `until` (CLOCK_MONOTONIC, ns); `None` where it cannot be made.
    fn outcome_for(&mut self, cookie: u64, fd: i32, until: u64) -> Option<Outcome> {
        let ring_bytes = self.ring_bytes;
        match self.gets_through(until, |broker| broker.ask(cookie, fd, ring_bytes, None)) {
            Ok(()) => {}
            Err(Try::NoDescriptor | Try::Scarce) => return Some(Outcome::NoDescriptor),
            Err(_) => return None,
        }
        let outcome = loop {
            self.hear();
            let outcome = self.broker.find(cookie)?.outcome;
            match outcome {
                Outcome::None if self.broker.wait(until) => {}
                outcome => break outcome,
            }
        };
        self.broker.forget(cookie);
        Some(outcome)
    }

    /// Whether the broker would give again all memory that this process has from it, to a program image that has the
    /// descriptors which this one has.
    pub(super) fn would_be_given_again(&mut self) -> bool {
        let is_needed = |it: &super::Attached| it.users > 0 && it.pool.is_brokered() && it.daemon != NOBODY;
        if !self.pools.iter().flatten().any(is_needed) {
            return true;
        }
        let until = clock::nanoseconds() + PATIENCE_NS;
        if self.gets_through(until, Broker::greet).is_err() {
            return false;
        }
        let (daemon, has_room) = (self.broker.daemon, self.broker.has_room_for_memory());
        self.broker.rest();
        has_room && self.pools.iter().flatten().all(|it| !is_needed(it) || it.daemon == daemon)
    }

    /// Tries to ask the broker, until `until` (CLOCK_MONOTONIC, ns): again whenever the broker has to show first that
    /// it is at work.
    ///
    /// # Errors
    /// It was not asked, and why.
    pub(super) fn gets_through(&mut self, until: u64, what: impl Fn(&mut Broker) -> Try) -> Result<(), Try> {
        loop {
            match what(&mut self.broker) {
                Try::Asked => return Ok(()),
                Try::Knocking if self.broker.wait(until) => self.hear(),
                // Others may connect to it at this moment, more than it takes at once.
                Try::Later | Try::Scarce
                    if self.broker.is_sought(clock::nanoseconds()) && clock::nanoseconds() < until =>
                {
                    clock::nap(1000);
                }
                why => return Err(why),
            }
        }
    }

    /// This process does not follow this ask any more. If it is the `last` with the end, the other end is told, and the
    /// slot is free; otherwise another process may ask, and is given the same slot.
    fn abandon(&mut self, cookie: u64, outcome: Outcome, last: bool) {
        self.broker.forget(cookie);
        if let Outcome::Met(Place { pool, slot, side: Side::Maker, cookies, .. }) = outcome
            && last
            && let Some(channel) = pool.slot(slot, Side::Maker)
            && let Some(given) = self.attached(pool.id()).and_then(|it| it.given.as_mut())
        {
            pool.lay();
            channel.prepare_over(cookies);
            given.made |= 1 << slot;
        }
    }

    /// This process does not ask for `end` any more; `last`: no other process has it. Whether a copy of its socket may
    /// lie with the broker.
    pub fn leave_broker(&mut self, end: &End, last: bool) -> bool {
        let (cookie, asked) = (end.cookie.load(Relaxed), end.asked());
        end.set_asked(Asked::Nothing);
        if asked == Asked::Place
            && let Some(place) = self.place(end)
        {
            // It had no memory for the place, or the place was not ready.
            self.abandon(cookie, Outcome::Met(place), last);
        }
        // Another process of the family, which has not asked, may have noted that the ask is over.
        if self.broker.find(cookie).is_none() {
            self.broker.rest();
            return asked == Asked::Pending;
        }
        self.hear();
        if self.broker.find(cookie).is_some_and(|it| matches!(it.outcome, Outcome::None)) {
            // The answer will hardly take longer, and no other call looks for it.
            self.broker.look(WAIT_AT_END_NS);
            self.hear();
        }
        let Some(ask) = self.broker.find(cookie) else { return true };
        let outcome = ask.outcome;
        ask.abandoned = Some(last);
        if !matches!(outcome, Outcome::None) {
            self.abandon(cookie, outcome, last);
        }
        self.broker.rest();
        matches!(outcome, Outcome::None)
    }

    /// A slot that this process has made ready, and that no end uses any more.
    fn freed(&mut self) -> Option<Freed> {
        self.pools.iter().flatten().find_map(|it| {
            let given = it.given.filter(Given::is_any)?;
            let mut made = (0..it.pool.shape().slots).filter(|&slot| given.made & 1 << slot != 0);
            made.find_map(|slot| {
                let channel = it.pool.slot(slot, Side::Maker).filter(Channel::is_over)?;
                Some(Freed { pool: given.pool, slot, maker: channel.maker() })
            })
        })
    }

    fn forget_freed(&mut self, freed: Option<Freed>) {
        let Some(Freed { pool, slot, .. }) = freed else { return };
        for given in self.pools.iter_mut().flatten().filter_map(|it| it.given.as_mut()).filter(|it| it.pool == pool) {
            given.made &= !(1 << slot);
        }
    }
}

impl End {
    /// Notes where its channel will be.
    fn put_in(&self, place: &Place) {
        self.peer_cookie.store(place.cookies[1 - place.side as usize], Relaxed);
        self.pool.store(place.pool.id(), Relaxed);
        self.slot.store(place.slot, Relaxed);
        self.side.store(place.side as u8, Relaxed);
        if let Some((key, daemon)) = place.key {
            self.remote.begin(key, daemon);
        }
    }

    /// Whether its name is in the directory.
    fn waits_in_directory(&self) -> bool {
        self.entry.load(Relaxed) != 0
    }

    /// Has this end look for the answer after this many further calls.
    fn look_after(&self, calls: u32) {
        self.next_try.store(self.calls.load(Relaxed).saturating_add(calls), Relaxed);
    }

    /// Has this end look for the answer again; the more calls it has waited, the later.
    fn look_later(&self) {
        let calls = self.calls.load(Relaxed);
        self.look_after((calls / 8).clamp(1, MOST_CALLS));
    }

    /// Looks for its other end again soon.
    fn seek_later(&self) {
        self.look_after(1 + self.calls.load(Relaxed) / 4);
    }
}

/// Whether the broker gives this refusal only when both ends have asked, or when this end is over.
fn is_told_to_both(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Policy | Refusal::Layout | Refusal::NotConnection)
}

/// The broker refuses to let `end` meet its other end, for now or for good.
fn refuse(end: &End, refusal: Refusal) {
    match refusal {
        Refusal::Policy => end.pin(Reason::Policy),
        Refusal::Unproven => end.pin(Reason::Unproven),
        Refusal::Elsewhere => end.pin(Reason::Remote),
        // The reason that an end has where the two ends use different directories.
        Refusal::Layout => end.pin(Reason::PeerSilent),
        Refusal::NotConnection => end.pin(Reason::Closed),
        Refusal::Version | Refusal::Malformed => end.pin(Reason::NoBroker),
        Refusal::Limit | Refusal::NoMemory => {
            end.set_reason(Reason::NoMemory);
            end.ask_later();
        }
    }
}

/// What a process lacks whose ask comes to this.
fn lack(outcome: Outcome) -> Option<Reason> {
    match outcome {
        Outcome::NoDescriptor => Some(Reason::NoDescriptor),
        Outcome::NoMemory | Outcome::Withheld => Some(Reason::NoMemory),
        _ => None,
    }
}

/// What this process has to tell the broker of one of its pools.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// The broker's number of the pool.
    pool: u64,
    /// Slots that ends of this process have made ready, a bit each.
    made: u64,
    /// For so many slots there was memory.
    pub(super) room: u32,
}

impl Given {
    /// Whether there is something to tell, or will be.
    pub(super) fn is_any(&self) -> bool {
        self.made != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Attached, POOLS};
    use super::*;
    use crate::sysv::memfd::tests::memfd;

    const SHAPE: Shape = Shape { ring_bytes: 1 << 16, slots: 4 };

    fn memory() -> Gift {
        let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        Gift::of(memfd(SHAPE.pool_bytes().next_multiple_of(4096), seals))
    }

    fn pool() -> Pool {
        Pool::of_memfd(memory().fd(), SHAPE).unwrap().0
    }

    fn is_mapped(pool: &Pool) -> bool {
        Pool::of_number(pool.id(), SHAPE).is_some() && kernel::is_mapped(pool.begin())
    }

    /// The table of a child that was forked in the middle of a meeting is empty, and the child's ends go on in memory
    /// that is mapped. Fails if `remember` unmaps what it has no room for, or `pool_of` what was mapped before.
    #[test]
    #[cfg_attr(miri, ignore = "maps memfds")]
    fn a_full_table_takes_no_memory_from_ends_that_use_it() {
        let (mut meeting, in_use, memory_of_end) = (Box::new(Meeting::new()), pool(), memory());
        let (of_end, is_new) = Pool::of_memfd(memory_of_end.fd(), SHAPE).unwrap();
        assert!(is_new);
        let taken =
            Attached { pool: in_use, creator: 0, users: 1, unused_since: 0, made_for: None, given: None, daemon: 0 };
        meeting.pools.fill(Some(taken));
        // SAFETY: zeroed memory is an unused end.
        let end: Box<End> = unsafe { Box::new(core::mem::zeroed()) };
        end.put_in(&Place { pool: of_end, slot: 0, side: Side::Maker, cookies: [11, 12], key: None });
        end.set_shape(SHAPE);
        assert!(meeting.channel(&end, None).is_none() && is_mapped(&of_end));
        // The broker gives the same memory again.
        assert!(meeting.pool_of(memory_of_end, SHAPE, 7).is_none() && is_mapped(&of_end));
        // Other memory is not kept, nor mapped for nothing.
        let other = memory();
        let (tried, _) = Pool::of_memfd(other.fd(), SHAPE).unwrap();
        // SAFETY: nothing refers into it.
        unsafe { tried.detach() };
        assert!(meeting.pool_of(other, SHAPE, 8).is_none() && !is_mapped(&tried));
        // Once there is room, the end goes on.
        meeting.pools[POOLS - 1] = None;
        assert!(meeting.channel(&end, None).is_some());
    }

    /// Fails if an end that waits for memory, or whose memory has come back, is looked after in vain; if it goes on
    /// saying that it lacks memory; or if a child takes its parent's place without a look at the memory.
    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn an_end_with_a_place_waits_for_what_it_lacks() {
        let (mut meeting, pool) = (Box::new(Meeting::new()), pool());
        meeting.remember(pool, 0, None).unwrap();
        meeting.attached(pool.id()).unwrap().given = Some(Given { pool: 7, made: 0, room: 0 });
        // SAFETY: zeroed memory is an unused end.
        let end: Box<End> = unsafe { Box::new(core::mem::zeroed()) };
        end.put_in(&Place { pool, slot: 0, side: Side::Joiner, cookies: [11, 12], key: None });
        end.cookie.store(12, Relaxed);
        // So that no reason is hidden by its having carried nothing.
        end.bytes.store(1, Relaxed);
        end.set_asked(Asked::Place);
        assert_eq!(meeting.answer_of_broker(&end), Answer::None);
        end.set_reason(Reason::NoMemory);
        end.look_after(1);
        assert_eq!(meeting.answer_of_broker(&end), Answer::None);
        end.calls.fetch_add(1, Relaxed);
        assert_eq!(meeting.answer_of_broker(&end), Answer::Offer);
        // There is memory, and its maker has not come.
        meeting.follow_broker(&end, -1);
        assert_eq!((end.reason(), meeting.answer_of_broker(&end)), (Reason::PeerSilent, Answer::None));
        meeting.after_fork();
        assert_eq!(meeting.answer_of_broker(&end), Answer::Forgotten);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn a_slot_that_was_given_in_vain_is_free_once_no_other_process_may_ask_for_it() {
        let (mut meeting, pool) = (Box::new(Meeting::new()), pool());
        meeting.remember(pool, 0, None).unwrap();
        meeting.attached(pool.id()).unwrap().given = Some(Given { pool: 7, made: 0, room: 0 });
        let place = Place { pool, slot: 2, side: Side::Maker, cookies: [11, 12], key: None };
        meeting.abandon(11, Outcome::Met(place), false);
        assert_eq!(meeting.freed(), None);
        meeting.abandon(11, Outcome::Met(place), true);
        let freed = meeting.freed();
        assert_eq!(freed, Some(Freed { pool: 7, slot: 2, maker: 11 }));
        // The other end finds that it does not come.
        let joiner = pool.slot(2, Side::Joiner).unwrap();
        assert!(joiner.is_for([11, 12]) && !joiner.claim(12));
        meeting.forget_freed(freed);
        assert_eq!(meeting.freed(), None);
    }
}

//! A doze: a short sleep on the waiting flag itself, by futex(2).
//!
//! A sleep in the kernel's TCP costs both ends some 26 us of processor time for a question and its answer, because the
//! doorbell goes through the whole protocol stack. A futex costs half of that. But no end wakes a dozing thread for
//! what the kernel alone knows, such as that the other end was killed. So a doze lasts [`Port::doze_us`] at most, and a
//! sleep in the kernel follows. A sender that publishes, goes down or ends its direction wakes the threads that doze at
//! the other end.
//!
//! The order is that of all sleepers. The reader raises the flag to [`DOZING`] and looks at the ring once more; the
//! sender publishes and looks at the flag. The sender that takes the flag down owes a knock, which wakes all threads
//! that sleep on the flag. A reader does not take it down when it wakes, because other threads may doze by it. One
//! knock too many does no harm. A sender that is killed before it knocks costs the rest of the doze, and no more.

use super::entering::Beside;
use super::take::Taken;
use super::{Patience, Port, ReaderState, Ready};
use crate::clock::nanoseconds;
use crate::raw::{Answer, Errno, is_quiet};
use crate::sync::{AtomicBool, AtomicU32, Relaxed, SeqCst, fence};
use crate::words::{DOZING, Flag, Raised};
use crate::{kernel, tap, wait};

/// A receive whose socket has a time of its own, which the kernel counts, dozes for at most this part of it.
const PART_OF_TIMEOUT: u64 = 100;
/// A receive of an end that is away looks again after this time.
const AWAY_NS: u64 = 1_000_000;
/// After so many looks in vain it looks again only after [`LONG_AWAY_NS`], and a receive that does not wait looks no
/// more: the sender may give back only with its next call.
pub(super) const LOOKS_WHILE_AWAY: u8 = 100;
const LONG_AWAY_NS: u64 = 10_000_000;
/// After n dozes in vain 2^n - 1 sleeps begin without one; n is at most this.
const MOST_IN_VAIN: u32 = 6;

/// This kernel, or a filter, knows no sleep that goes on after signals.
static NO_RESTARTS: AtomicBool = AtomicBool::new(false);

/// How a doze has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dozed {
    /// There may be something in the ring.
    Awake,
    /// The time is over, or this end may not doze now: what is left is to sleep in the kernel.
    Over,
    /// A signal has been handled.
    Interrupted,
}

/// What a signal does to a doze.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signals {
    /// It ends, as poll(2) does.
    End,
    /// It goes on where the handler is to restart system calls, as recv(2) does.
    Restart,
}

impl Signals {
    /// Sleeps while the flag is `word`, until `at` at most. Notes if this kernel, or a filter, knows no such sleep.
    fn sleep(self, waiting: &AtomicU32, word: u32, at: u64) -> Answer {
        if self == Signals::End {
            return kernel::wait_for_change(waiting, word, Some(at));
        }
        let answer = kernel::wait_for_change_across_restarts(waiting, word, at);
        if matches!(answer, Err(Errno(libc::ENOSYS | libc::EPERM | libc::EINVAL))) {
            NO_RESTARTS.store(true, Relaxed);
        }
        answer
    }
}

/// When a doze ends.
#[derive(Clone, Copy)]
struct Limit {
    /// In nanoseconds of CLOCK_MONOTONIC.
    at: u64,
    /// Whether the wait ends with it.
    ends_wait: bool,
    signals: Signals,
}

/// How many dozes in a row were in vain, and how many sleeps are to begin without one.
fn unpack(word: u32) -> (u32, u32) {
    (word >> 16, word & 0xffff)
}

fn pack(in_vain: u32, to_skip: u32) -> u32 {
    in_vain << 16 | to_skip
}

/// A flag that was `before` has been raised or taken down. Wakes the threads that dozed by it.
pub(super) fn wake_dozers(waiting: &AtomicU32, before: u32) {
    if Flag(before).raised() == Raised::Dozing {
        kernel::wake_all(waiting);
    }
}

impl Port<'_> {
    /// Before a poll of this connection alone sleeps in the kernel: dozes until `deadline` (CLOCK_MONOTONIC, ns) at
    /// most, by `sleep`, which makes the system call that it is given.
    pub fn doze_in_poll(&self, deadline: Option<u64>, sleep: impl FnOnce(&dyn Fn() -> Answer) -> Answer) -> Dozed {
        match self.ready() {
            Ready::Yes => return Dozed::Awake,
            Ready::No if self.may_doze() => {}
            // A mark of the path is passed before a sleep in the kernel.
            Ready::AskKernel | Ready::No => return Dozed::Over,
        }
        self.end.watch();
        self.asks_again(false);
        if !self.give_back_before_sleep() {
            return Dozed::Over;
        }
        let limit = self.limit(deadline, Signals::End);
        self.raise_to_doze().unwrap_or_else(|| self.doze(limit, sleep))
    }

    /// Dozes before a receive, which has the lock, sleeps in the kernel. `None`: the receive has still to sleep there.
    pub(super) fn doze_in_receive(&mut self, patience: Patience) -> Option<Taken> {
        if !self.may_doze() {
            return None;
        }
        (self.waiting.keep_socket)(self);
        // Its descriptor may have been closed.
        let limit = self.limit_of(patience).filter(|_| self.fd >= 0)?;
        let dozed = self.raise_to_doze().unwrap_or_else(|| {
            // The flag is up, and the ring was seen empty. A thread that comes beside this one relies on both.
            let above = self.end.reading.lock.fall_asleep();
            let dozed = self.doze(limit, |call| (self.waiting.call)(self, call));
            self.end.reading.lock.wake(above);
            dozed
        });
        (self.waiting.keep_socket)(self);
        if self.reader_state() == ReaderState::Leaving {
            // The thread that set out to leave beside this sleep was killed.
            self.forget_ring(Beside::Nobody, u64::MAX);
        }
        match dozed {
            // From now on the program makes its own calls.
            _ if is_quiet() => Some(Taken::Nothing),
            Dozed::Awake => Some(Taken::Nothing),
            Dozed::Interrupted => Some(Taken::Failed(Errno(libc::EINTR))),
            Dozed::Over => None,
        }
    }

    /// A receive, which has the lock and first slept at `since`, waits for a moment while this end is away: what is
    /// left in the ring comes by the kernel, or this end comes back to it, and no doorbell tells which.
    pub(super) fn wait_while_away(&mut self, patience: Patience, since: u64) -> Taken {
        let deadline = match patience {
            Patience::Socket => self.receive_deadline(Some(since)),
            Patience::Until(deadline) => deadline,
        };
        // The kernel goes on after a signal where the socket has no time of its own.
        let restarts = patience == Patience::Socket && deadline.is_none() && !NO_RESTARTS.load(Relaxed);
        let signals = if restarts { Signals::Restart } else { Signals::End };
        let vain_looks = &self.end.reading.vain_looks;
        let looks = vain_looks.load(Relaxed);
        let soon = nanoseconds() + if looks < LOOKS_WHILE_AWAY { AWAY_NS } else { LONG_AWAY_NS };
        let at = deadline.map_or(soon, |at| at.min(soon));
        let waiting = &self.channel.incoming().flags.waiting;
        let word = waiting.load(SeqCst);
        let above = self.end.reading.lock.fall_asleep();
        let answer = (self.waiting.call)(self, &|| signals.sleep(waiting, word, at));
        self.end.reading.lock.wake(above);
        (self.waiting.keep_socket)(self);
        match answer {
            Err(Errno(libc::EINTR)) => Taken::Failed(Errno(libc::EINTR)),
            Err(Errno(libc::ETIMEDOUT)) if deadline == Some(at) => Taken::Failed(Errno(libc::EAGAIN)),
            Err(Errno(libc::ETIMEDOUT)) => {
                vain_looks.store(looks.saturating_add(1), Relaxed);
                Taken::Nothing
            }
            _ => Taken::Nothing,
        }
    }

    /// How long a receive of this patience dozes, if it may doze.
    fn limit_of(&self, patience: Patience) -> Option<Limit> {
        if let Patience::Until(deadline) = patience {
            return Some(self.limit(deadline, Signals::End));
        }
        match kernel::timeout(self.fd, libc::SO_RCVTIMEO) {
            None => (!NO_RESTARTS.load(Relaxed)).then(|| self.limit(None, Signals::Restart)),
            Some(timeout) => {
                let limit = self.limit(None, Signals::End);
                Some(Limit { at: limit.at.min(nanoseconds() + timeout / PART_OF_TIMEOUT), ..limit })
            }
        }
    }

    fn limit(&self, deadline: Option<u64>, signals: Signals) -> Limit {
        let longest = nanoseconds() + u64::from(self.doze_us) * 1000;
        let ends_wait = deadline.is_some_and(|at| at <= longest);
        Limit { at: deadline.map_or(longest, |at| at.min(longest)), ends_wait, signals }
    }

    /// Whether a doze may pay, and no sleeper relies on a doorbell. A doorbell that was not taken yet is taken before a
    /// sleep in the kernel: the next poll of the kernel's would report it.
    fn may_doze(&self) -> bool {
        let reading = &self.end.reading;
        let is_alone = || !reading.resting.any() && !reading.lock.is_asleep() && self.owed() == 0;
        self.doze_us > 0 && is_alone() && !is_quiet() && !self.needs_kernel() && !self.is_absent() && self.pays()
    }

    fn pays(&self) -> bool {
        let word = &self.end.reading.dozes;
        let (in_vain, to_skip) = unpack(word.load(Relaxed));
        if to_skip > 0 {
            word.store(pack(in_vain, to_skip - 1), Relaxed);
        }
        to_skip == 0
    }

    /// Raises the flag. `Some` where that does not let it doze.
    fn raise_to_doze(&self) -> Option<Dozed> {
        let waiting = &self.channel.incoming().flags.waiting;
        if !matches!(waiting.compare_exchange(0, DOZING, SeqCst, SeqCst), Ok(_) | Err(DOZING)) {
            return Some(Dozed::Over);
        }
        // The flag is up before this end looks at the ring, and at what the other end says of its end.
        fence(SeqCst);
        match () {
            _ if self.has_something() => Some(Dozed::Awake),
            _ if self.needs_kernel() => Some(Dozed::Over),
            _ => None,
        }
    }

    /// Sleeps while the flag is up.
    fn doze(&self, limit: Limit, sleep: impl FnOnce(&dyn Fn() -> Answer) -> Answer) -> Dozed {
        let waiting = &self.channel.incoming().flags.waiting;
        self.end.sleeps.fetch_add(1, Relaxed);
        tap::let_go();
        let answer = sleep(&|| limit.signals.sleep(waiting, DOZING, limit.at));
        let dozes = &self.end.reading.dozes;
        match answer {
            Ok(_) | Err(Errno(libc::EAGAIN)) => {
                if self.has_something() {
                    dozes.store(0, Relaxed);
                }
                Dozed::Awake
            }
            Err(Errno(libc::EINTR)) => Dozed::Interrupted,
            Err(Errno(libc::ETIMEDOUT)) => {
                if !limit.ends_wait {
                    let in_vain = (unpack(dozes.load(Relaxed)).0 + 1).min(MOST_IN_VAIN);
                    dozes.store(pack(in_vain, (1 << in_vain) - 1), Relaxed);
                }
                Dozed::Over
            }
            Err(_) => Dozed::Over,
        }
    }

    /// Wakes the threads that doze at this end, for what is about to come by the kernel.
    pub fn rouse(&self) {
        let waiting = &self.channel.incoming().flags.waiting;
        if waiting.compare_exchange(DOZING, 0, SeqCst, SeqCst).is_ok() {
            kernel::wake_all(waiting);
        }
    }

    /// Wakes the threads that doze at the other end, for what is about to come by the kernel.
    pub(super) fn rouse_other(&self) {
        if self.channel.outgoing().flags.waiting.compare_exchange(DOZING, 0, SeqCst, SeqCst).is_ok() {
            self.knock();
        }
    }

    /// Wakes the threads at the other end whose flag was just taken down.
    pub(super) fn knock(&self) {
        kernel::wake_all(&self.channel.outgoing().flags.waiting);
        self.end.bells_sent.fetch_add(1, Relaxed);
        wait::rang();
    }
}

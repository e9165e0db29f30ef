//! A lock for one side of a connection. The processes that share the socket share the lock; it costs little when no
//! other thread wants it; a signal handler of its owner's thread may enter it; and other threads go on when its owner
//! is killed.
//!
//! While its owner sleeps inside, another thread may visit: what the lock guards is the visitor's until it ends the
//! visit, and an owner that wakes waits for that. A visitor that would sleep inside as well sleeps behind the owner,
//! and tries again when the owner wakes.
//!
//! It lies in memory that the other end of the connection does not have. What it guards is built so that a signal
//! handler may run in the middle of it (a sender's commit is one compare-and-swap, and a reader holds signals back
//! while it passes a mark), so entering twice by one thread is fine.

use crate::clock;
use crate::kernel;
use crate::layout::laid_out;
use crate::raw::{Answer, Errno, is_quiet};
use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed, Release, pause};

laid_out! {
    /// The lock. Zeroed memory is an open one.
    #[repr(C)]
    pub struct Lock {
        owner: AtomicU32,
        /// [`ASLEEP`], [`ABOVE`], [`AWAITED`], and the number of the thread that visits.
        asleep: AtomicU32,
    }
}

/// The owner sleeps inside.
const ASLEEP: u32 = 1 << 31;
/// A signal handler that has interrupted that sleep is inside.
const ABOVE: u32 = 1 << 30;
/// Threads sleep until the owner wakes.
const AWAITED: u32 = 1 << 29;
const VISITOR: u32 = AWAITED - 1;
/// The owner [keeps others out](Lock::keep_out), and does nothing inside that might need repair: [`ABOVE`] without
/// [`ASLEEP`].
const KEPT: u32 = ABOVE;
/// An owner or visitor that is no thread any more; more than any thread's [marked number](kernel::marked).
const GONE: u32 = VISITOR;

/// How a lock was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// No thread was inside.
    Alone,
    /// This thread was inside already, and this is a signal handler that has interrupted it.
    Nested,
    /// This thread sleeps inside, and this is a signal handler that has interrupted the sleep.
    AboveSleep,
    /// The owner was killed inside; what the lock guards may need repair.
    AfterDeath,
    /// Not entered: the owner sleeps inside until something arrives.
    Asleep,
}

/// How long a thread is awaited that is inside and awake, where that may be for ever.
const AWAITED_WITHIN_NS: u64 = 100_000_000;

/// See [`note_forker`].
static FORKER: AtomicU32 = AtomicU32::new(0);

/// This process was forked by a thread of this number, if it had one.
pub fn note_forker(number: Option<u32>) {
    FORKER.store(number.unwrap_or(0), Relaxed);
}

impl Lock {
    /// Enters as thread `me` (not 0), if no other thread sleeps inside.
    #[inline]
    pub fn enter(&self, me: u32) -> Entered {
        match self.owner.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => Entered::Alone,
            Err(owner) if owner == me => self.enter_again(),
            Err(_) => self.contend(me),
        }
    }

    /// Enters as thread `me`, but does not wait for another thread: `None` if a thread that lives is inside.
    pub fn try_enter(&self, me: u32) -> Option<Entered> {
        match self.owner() {
            0 => self.enter_at_once(me).then_some(Entered::Alone),
            owner if owner == me || self.is_visited_by(me) => Some(self.enter(me)),
            owner => self.inherit(owner, me).then_some(Entered::AfterDeath),
        }
    }

    /// Enters as thread `me`, which is not inside already, if no thread is inside, or the owner comes out within 100
    /// ms.
    pub fn enter_if_free(&self, me: u32) -> bool {
        (0..1000).any(|round| {
            if round > 0 {
                clock::nap(100);
            }
            self.enter_at_once(me)
        })
    }

    /// Enters as thread `me` if no thread is inside, without waiting.
    pub fn enter_at_once(&self, me: u32) -> bool {
        self.owner.compare_exchange(0, me, Acquire, Relaxed).is_ok()
    }

    /// Whether the owner may wait for this process to end: a signal handler on top of what the owner does inside has
    /// forked this process. That is the [thread](note_forker) that has forked this process, or one that has not come
    /// out within 100 ms, if this process has executed a program since. It does not sleep inside.
    pub fn may_await_this_process(&self, me: u32) -> bool {
        let began = clock::nanoseconds();
        loop {
            let owner = self.owner();
            if owner == 0 || owner == me || self.is_asleep() || !alive(owner) {
                return false;
            }
            if owner == FORKER.load(Relaxed) || clock::nanoseconds() - began > AWAITED_WITHIN_NS {
                return true;
            }
            clock::nap(100);
        }
    }

    /// Keeps every other thread from what it guards until [`Lock::let_in`], also a thread that sleeps inside, should it
    /// wake. `None`: this thread was inside already, or another has not come out within 100 ms.
    pub fn keep_out(&self, me: u32) -> Option<Entered> {
        let rounds = (0..1000).map(|round| {
            if round > 0 {
                clock::nap(100);
            }
            match self.owner.compare_exchange(0, me, Acquire, Relaxed) {
                Ok(_) => {
                    self.asleep.fetch_or(KEPT, AcqRel);
                    Some(Some(Entered::Alone))
                }
                Err(owner) if owner == me || self.is_visited_by(me) => Some(None),
                Err(_) => self.visit(me).then_some(Some(Entered::Asleep)),
            }
        });
        rounds.flatten().next().flatten()
    }

    /// Lets others in again.
    pub fn let_in(&self, kept_out: Entered) {
        if kept_out == Entered::Asleep {
            return self.end_visit();
        }
        let _ = self.asleep.compare_exchange(KEPT, 0, AcqRel, Relaxed);
        self.exit(kept_out);
    }

    fn is_visited_by(&self, me: u32) -> bool {
        self.asleep.load(Relaxed) & VISITOR == me
    }

    /// Exits, where [`Lock::enter`] returned `entered`.
    #[inline]
    pub fn exit(&self, entered: Entered) {
        match entered {
            Entered::Alone | Entered::AfterDeath => self.owner.store(0, Release),
            Entered::AboveSleep => {
                self.asleep.fetch_and(!ABOVE, Release);
            }
            Entered::Nested | Entered::Asleep => {}
        }
    }

    /// Thread `me` has begun anew: its process has executed a program, perhaps while this thread, or the thread whose
    /// number it took, was inside. Or a child of vfork that had its number was killed inside.
    pub fn forsake(&self, me: u32) {
        if self.owner() == me && self.asleep.compare_exchange(KEPT, 0, AcqRel, Relaxed).is_ok() {
            self.owner.store(0, Release);
        }
        if self.owner.compare_exchange(me, GONE, AcqRel, Relaxed).is_ok() {
            // It does not wake those that sleep behind it.
            self.wake_others(self.asleep.load(Acquire));
        }
        let visited = |now| (now & VISITOR == me).then_some(now | GONE);
        let _ = self.asleep.fetch_update(AcqRel, Relaxed, visited);
    }

    /// For a copy of a lock that only the caller has: the threads that were inside of the original do not come back to
    /// the copy.
    pub fn forsake_all(&self) {
        if self.owner.load(Relaxed) != 0 {
            let is_whole = self.asleep.load(Acquire) == KEPT;
            self.owner.store(if is_whole { 0 } else { GONE }, Relaxed);
        }
        self.asleep.store(0, Release);
    }

    /// Opens the lock, even if its owner's number is in it: no thread is inside that uses this copy of it.
    pub fn open(&self) {
        self.owner.store(0, Release);
        self.asleep.store(0, Release);
    }

    /// Whether thread `me` is inside, as owner or visitor.
    pub fn is_of(&self, me: u32) -> bool {
        self.owner() == me || self.is_visited_by(me)
    }

    /// Whether the owner sleeps inside. To a caller that has entered it says whether the caller, a signal handler, has
    /// interrupted a sleep of its own thread.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Acquire) & ASLEEP != 0
    }

    /// The owner is about to sleep inside. Returns whether it has interrupted another sleep of its thread, for
    /// [`Lock::wake`].
    pub fn fall_asleep(&self) -> bool {
        let asleep = |now| Some(now & AWAITED | ASLEEP);
        self.asleep.fetch_update(AcqRel, Relaxed, asleep).is_ok_and(|before| before & ASLEEP != 0)
    }

    /// The owner sleeps no more; waits for a visitor.
    pub fn wake(&self, above: bool) {
        let awake = if above { ASLEEP | ABOVE } else { 0 };
        let before = self.asleep.fetch_update(AcqRel, Relaxed, |now| Some(now & VISITOR | awake));
        self.wake_others(before.unwrap_or_else(|now| now));
        self.await_visitor();
    }

    /// Sleeps until the owner, which sleeps inside, wakes. A signal or the `deadline` (CLOCK_MONOTONIC, ns) ends that
    /// as it ends a receive of the kernel's: a system call that has no time limit goes on if the program's handler
    /// wants that.
    ///
    /// # Errors
    /// EINTR; EAGAIN when the time is over.
    pub fn sleep_behind(&self, deadline: Option<u64>) -> Answer {
        /// An owner that is killed with its process wakes nobody.
        const LOOK_EVERY_NS: u64 = 100_000_000;
        let now = self.asleep.load(Acquire);
        let awaited = now | AWAITED;
        if now & ASLEEP == 0 || self.asleep.compare_exchange(now, awaited, AcqRel, Relaxed).is_err() {
            return Ok(0);
        }
        let is_ours = kernel::own(self.owner()).is_some_and(kernel::is_thread_of_this_process);
        let look = (!is_ours).then(|| clock::nanoseconds() + LOOK_EVERY_NS);
        let until = deadline.into_iter().chain(look).min();
        match kernel::wait_for_change(&self.asleep, awaited, until) {
            Err(Errno(libc::ETIMEDOUT)) if until == deadline => Err(Errno(libc::EAGAIN)),
            Err(Errno(libc::EINTR)) => Err(Errno(libc::EINTR)),
            _ => Ok(0),
        }
    }

    /// Wakes the threads that sleep behind the owner, if the word said before that there are any. A program that has
    /// threads makes futex calls whichever other calls its filter forbids.
    fn wake_others(&self, before: u32) {
        if before & AWAITED != 0 {
            kernel::wake_all(&self.asleep);
        }
    }

    /// Visits a sleeping owner; false when it does not sleep, or another thread visits. To be called with signals held
    /// back: a handler that interrupts the visit would wait for it for ever.
    pub fn visit(&self, me: u32) -> bool {
        let visited = |now| (now & !AWAITED == ASLEEP).then_some(now | me);
        match self.asleep.fetch_update(AcqRel, Relaxed, visited) {
            Ok(_) => true,
            Err(now) => {
                self.dismiss(now);
                false
            }
        }
    }

    /// Ends the visit.
    pub fn end_visit(&self) {
        self.asleep.fetch_and(!VISITOR, Release);
    }

    /// Whether the owner that is visited has woken, and waits.
    pub fn is_awaited(&self) -> bool {
        self.asleep.load(Acquire) & ASLEEP == 0
    }

    /// Ends the visit of a thread that was killed.
    fn dismiss(&self, now: u32) {
        let visitor = now & VISITOR;
        if visitor != 0 && !alive(visitor) {
            let _ = self.asleep.compare_exchange(now, now & !VISITOR, AcqRel, Relaxed);
        }
    }

    fn await_visitor(&self) {
        let mut rounds = 0u32;
        while let now = self.asleep.load(Acquire)
            && now & VISITOR != 0
        {
            if wait(rounds) {
                self.dismiss(now);
            }
            rounds = rounds.wrapping_add(1);
        }
    }

    #[cold]
    fn enter_again(&self) -> Entered {
        let above = self.asleep.load(Relaxed) & (ASLEEP | ABOVE) == ASLEEP;
        if above {
            self.asleep.fetch_or(ABOVE, AcqRel);
        }
        self.await_visitor();
        if above { Entered::AboveSleep } else { Entered::Nested }
    }

    /// The number of the thread that is inside; 0: none.
    pub fn owner(&self) -> u32 {
        self.owner.load(Acquire)
    }

    #[cold]
    fn contend(&self, me: u32) -> Entered {
        for round in 0u32.. {
            let owner = self.owner.load(Relaxed);
            if owner == 0 && self.owner.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                return Entered::Alone;
            }
            if self.is_visited_by(me) {
                // A signal handler that has interrupted a visit of its own thread.
                return Entered::Nested;
            }
            if owner != 0 && self.asleep.load(Acquire) & ASLEEP != 0 {
                // No later check is certain, so this one tests whether the owner has died.
                return if self.inherit(owner, me) { Entered::AfterDeath } else { Entered::Asleep };
            }
            // An owner that is known to be gone need not be tested.
            if (owner == GONE || wait(round) && owner != 0) && self.inherit(owner, me) {
                return Entered::AfterDeath;
            }
        }
        Entered::Asleep
    }

    /// Takes the lock over from an owner that does not live any more.
    fn inherit(&self, owner: u32, me: u32) -> bool {
        if alive(owner) {
            return false;
        }
        let now = self.asleep.load(Acquire);
        if now & VISITOR != 0 {
            self.dismiss(now);
            return false;
        }
        // As a visitor first, so that no other visitor is inside at the same time.
        if now != 0 && self.asleep.compare_exchange(now, now | me, AcqRel, Relaxed).is_err() {
            return false;
        }
        let inherited = self.owner.compare_exchange(owner, me, AcqRel, Relaxed).is_ok();
        if inherited {
            self.wake_others(self.asleep.swap(0, AcqRel));
        } else if now != 0 {
            self.end_visit();
        }
        inherited
    }
}

/// Whether the thread of this [number](kernel::marked) exists and is not merely waiting to be reaped. A thread of
/// another PID namespace is taken to live.
pub fn alive(number: u32) -> bool {
    number != GONE && (is_quiet() || kernel::own(number).is_none_or(kernel::thread_lives))
}

/// One round of waiting for another thread; true now and then, when it has lasted so long that the other may be dead.
fn wait(round: u32) -> bool {
    if cfg!(loom) {
        // In a model the owner may be dead in any round.
        pause();
        return true;
    }
    match round {
        0..200 => pause(),
        200..220 => clock::give_way(),
        _ => clock::nap(50),
    }
    round >= 220 && round.is_multiple_of(64)
}

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod tests;

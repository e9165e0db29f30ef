//! The owners of an end: the processes that refer to it, the processes that may still come for it, and a program
//! without the library that may have its socket.
//!
//! A process that refers to an end is counted once, however many descriptors it has. A program image that is being executed, or a
//! process to which the socket was passed, is a *loan* until it has come and counts as a process. A program without the
//! library is an *outsider*: it is not counted, and nothing shows when it has closed the socket.
//!
//! The last process that leaves ends the connection, unless an image or a process may still come: [`Owners::leave`],
//! [`Owners::lent_until`].

use crate::layout::laid_out;
use crate::sync::{AcqRel, Acquire, AtomicU8, AtomicU32, AtomicU64, Relaxed, Release};

laid_out! {
    /// The owners of an end. Zeroed memory has none.
    #[repr(C)]
    pub struct Owners {
        /// How many processes refer to the end. 0: the end is unused, or on loan. [`ENDED`]: neither.
        processes: AtomicU32,
        /// How many images and processes may still come.
        loans: AtomicU32,
        /// Until when they may come (CLOCK_MONOTONIC, ns); 0: none is awaited.
        lent_until: AtomicU64,
        /// 1: a program that knows nothing of the ring may have the socket.
        outsider: AtomicU8,
    }
}

/// A new image that has not begun to run after so long is not awaited, in nanoseconds. Beside heavy load one has begun after 6.5 s.
pub const IMAGE_WITHIN_NS: u64 = 20_000_000_000;

/// Value of [`Owners::processes`]: no process refers to the end, and none may come for it any more.
const ENDED: u32 = 1 << 31;

impl Owners {
    /// One process has the end: the caller's, which has just taken it.
    pub(crate) fn begin(&self) {
        self.processes.store(1, Release);
    }

    /// How many processes refer to the end.
    pub fn count(&self) -> u32 {
        self.processes.load(Acquire) & !ENDED
    }

    /// Whether any process refers to it.
    pub fn are_any(&self) -> bool {
        self.count() != 0
    }

    /// Whether more than one process refers to it.
    #[inline]
    pub fn are_several(&self) -> bool {
        self.count() > 1
    }

    /// Sets how many processes refer to the end, and returns how many did before. For an end at which no other thread
    /// looks yet.
    pub fn replace(&self, count: u32) -> u32 {
        self.processes.swap(count, Relaxed)
    }

    /// One more process refers to the end. False if no process does any more, and the end is not kept for an image to
    /// come.
    pub fn add(&self) -> bool {
        let lent = self.is_lent();
        let more = |n: u32| (n != ENDED && (n > 0 || lent)).then(|| n + 1);
        self.processes.fetch_update(AcqRel, Acquire, more).is_ok()
    }

    /// One more process refers to the end; false if none did any more.
    pub fn add_if_used(&self) -> bool {
        self.processes.fetch_update(AcqRel, Acquire, |n| (1..ENDED).contains(&n).then(|| n + 1)).is_ok()
    }

    /// A child that was just forked refers to it as well as its parent.
    pub fn add_child(&self) {
        self.processes.fetch_add(1, AcqRel);
    }

    /// One process less refers to the end. Whether it was the last.
    pub fn leave(&self) -> bool {
        self.processes.fetch_sub(1, AcqRel) == 1
    }

    /// One process less, unless it is the last. Whether it is.
    pub fn leave_unless_last(&self) -> bool {
        self.processes.fetch_update(AcqRel, Acquire, |n| (n > 1).then(|| n - 1)).is_err()
    }

    /// Takes back the references of `left` processes that are gone; `live` counts the processes that live. Whether that
    /// was the last reference.
    pub(crate) fn take_back(&self, left: u32, live: impl Fn() -> u32) -> bool {
        // Whatever was counted, the count does not fall below the number of processes that live.
        let fewer = |n: u32| Some(n.saturating_sub(left).max(live())).filter(|&less| less < n && n != ENDED);
        self.processes.fetch_update(AcqRel, Acquire, fewer).is_ok_and(|n| fewer(n) == Some(0))
    }

    /// A program image, or a process that the socket is passed to, may come for it until then (CLOCK_MONOTONIC, ns).
    pub fn lend(&self, until: u64) {
        self.loans.fetch_add(1, AcqRel);
        self.lent_until.store(until, Release);
    }

    /// An image, or a process, for which [`Owners::lend`] was called has come. Once all have come, none is awaited.
    pub fn take_up_loan(&self) {
        let until = self.lent_until();
        let one_less = |n: u32| n.checked_sub(1);
        if self.loans.fetch_update(AcqRel, Acquire, one_less).is_ok_and(|before| before == 1) {
            self.end_loan(until);
        }
    }

    /// Until when an image or a process may come for the end (CLOCK_MONOTONIC, ns), which may be past; 0: none is
    /// awaited.
    pub fn lent_until(&self) -> u64 {
        self.lent_until.load(Acquire)
    }

    /// Whether an image or a process was to come for the end and has not.
    pub fn is_lent(&self) -> bool {
        self.lent_until() != 0
    }

    /// Whether an image or a process may still come for the end at the time `now` (CLOCK_MONOTONIC, ns).
    pub fn is_awaited(&self, now: u64) -> bool {
        self.lent_until() > now
    }

    /// Ends the loan that lasts `until` then. False if the end was lent again meanwhile.
    pub fn end_loan(&self, until: u64) -> bool {
        self.lent_until.compare_exchange(until, 0, AcqRel, Relaxed).is_ok()
    }

    /// Ends an end to which no process refers: an image that still comes for it does not get it. False if one has come.
    pub fn turn_away(&self) -> bool {
        self.processes.compare_exchange(0, ENDED, AcqRel, Acquire).is_ok()
    }

    /// Ends all loans: no image or process may come for the end any more.
    pub fn end_loans(&self) {
        self.loans.store(0, Relaxed);
        self.lent_until.store(0, Release);
    }

    /// A program that knows nothing of the ring may have the socket from now on.
    pub fn note_outsider(&self) {
        self.outsider.store(1, Release);
    }

    /// Forgets what [`Owners::note_outsider`] noted: it has been acted on.
    pub fn forget_outsider(&self) {
        self.outsider.store(0, Release);
    }

    /// Whether a program that knows nothing of the ring may have the socket.
    pub fn has_outsider(&self) -> bool {
        self.outsider.load(Acquire) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn owners() -> Owners {
        Owners {
            processes: AtomicU32::new(0),
            loans: AtomicU32::new(0),
            lent_until: AtomicU64::new(0),
            outsider: AtomicU8::new(0),
        }
    }

    #[test]
    fn the_last_that_leaves_is_told() {
        let owners = owners();
        owners.begin();
        assert!(owners.add() && owners.are_several());
        assert_eq!([owners.leave_unless_last(), owners.leave_unless_last()], [false, true]);
        assert_eq!([owners.leave(), owners.are_any(), owners.add(), owners.add_if_used()], [true, false, false, false]);
    }

    #[test]
    fn who_was_to_come_finds_it_though_all_have_left() {
        let owners = owners();
        owners.begin();
        owners.lend(100);
        owners.lend(200);
        assert!(owners.leave());
        assert!(owners.is_awaited(199) && !owners.is_awaited(200) && owners.is_lent());
        assert!(!owners.add_if_used() && owners.add());
        owners.take_up_loan();
        assert!(owners.is_lent());
        owners.take_up_loan();
        assert_eq!([owners.is_lent(), owners.end_loan(200)], [false, false]);
    }

    #[test]
    fn who_comes_too_late_does_not_get_it() {
        let owners = owners();
        owners.begin();
        owners.lend(100);
        assert!(!owners.turn_away() && owners.leave() && owners.turn_away() && !owners.turn_away());
        assert_eq!([owners.add(), owners.add_if_used(), owners.are_any(), owners.take_back(1, || 0)], [false; 4]);
        owners.begin();
        assert!(owners.add() && owners.count() == 2);
    }

    #[test]
    fn what_the_dead_have_counted_is_not_taken_from_the_living() {
        let owners = owners();
        owners.begin();
        assert!(owners.add() && owners.add());
        assert!(!owners.take_back(3, || 1));
        assert_eq!(owners.count(), 1);
        assert!(owners.take_back(1, || 0) && !owners.take_back(1, || 0));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::model;
    use std::sync::Arc;

    /// Fails if `Owners::add` takes an end that has ended: a process would have one that is another connection's soon.
    #[test]
    fn what_has_ended_nobody_gets() {
        model::check(3, || {
            let owners = Arc::new(Owners {
                processes: AtomicU32::new(0),
                loans: AtomicU32::new(0),
                lent_until: AtomicU64::new(0),
                outsider: AtomicU8::new(0),
            });
            owners.lend(100);
            owners.processes.share();
            owners.lent_until.share();
            let late = owners.clone();
            let image = loom::thread::spawn(move || late.add());
            let is_over = owners.end_loan(100) && owners.turn_away();
            assert!(image.join().unwrap() ^ is_over, "one of them has it");
        });
    }
}

//! The owners of an end: the processes that refer to it, the processes that may still come for it, and a program
//! without the library that may have its socket.
//!
//! A process that refers to an end is counted once, however many descriptors it has. A program image that is being
//! executed, or a process to which the socket was passed, is a *loan* until it has come and counts as a process. A
//! program without the library is an *outsider*: it is not counted, and nothing shows when it has closed the socket.
//!
//! The last process that leaves ends the connection, unless an image or a process may still come:
//! [`Owners::drop_reference`], [`Owners::lent_until`].

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
        /// How many of these are processes that the socket was passed to.
        passed: AtomicU32,
        /// How many are counted in `processes` and have not attached the channel yet.
        arriving: AtomicU32,
        /// Until when they may come (CLOCK_MONOTONIC, ns); 0: none is awaited. [`TAKEN_BACK`]: neither.
        lent_until: AtomicU64,
        /// The images that may still come, by their [numbers](crate::family::Family::next_image); 0 is none.
        images: [AtomicU32; KNOWN],
        /// How many more may come, of which no number is kept.
        others: AtomicU32,
        /// 1: a program that knows nothing of the ring may have the socket.
        outsider: AtomicU8,
        /// 1: a process has taken a copy of the end along into a new image, while others had the end.
        copied: AtomicU8,
    }
}

/// Of how many images that are awaited at the same time an end keeps the numbers.
const KNOWN: usize = 4;

/// A new image that has not begun to run after so long is not awaited, in nanoseconds. Beside heavy load one has begun
/// after 6.5 s.
pub const IMAGE_WITHIN_NS: u64 = 20_000_000_000;

/// Value of [`Owners::processes`]: no process refers to the end, and none may come for it any more.
const ENDED: u32 = 1 << 31;

/// Value of [`Owners::lent_until`], a time long past: the image that the end was lent to does not come. If no process
/// refers to the end either, the lender still has to end it.
const TAKEN_BACK: u64 = 1;

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

    /// One more process refers to the end, which has yet to attach the channel: [`Owners::has_arrived`].
    pub fn arrive(&self) -> bool {
        // In this order: a process that leaves finds this one arriving, or was the last.
        self.arriving.fetch_add(1, AcqRel);
        let is_counted = self.add();
        if !is_counted {
            self.has_arrived();
        }
        is_counted
    }

    /// A process that [arrived](Owners::arrive) has attached the channel.
    pub fn has_arrived(&self) {
        let _ = self.arriving.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
    }

    /// Whether an image or a process has come and not attached the channel yet. A process that was killed meanwhile
    /// counts until its loan has ended.
    pub fn are_any_arriving(&self) -> bool {
        self.arriving.load(Acquire) != 0 && self.is_lent()
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
    pub fn drop_reference(&self) -> bool {
        // A sweep may have taken the reference for that of a process that is gone.
        let fewer = |n| (1..ENDED).contains(&n).then(|| n - 1);
        self.processes.fetch_update(AcqRel, Acquire, fewer) == Ok(1)
    }

    /// One process less, unless it is the last. Whether it is.
    pub fn drop_reference_unless_last(&self) -> bool {
        self.processes.fetch_update(AcqRel, Acquire, |n| (2..ENDED).contains(&n).then(|| n - 1)).is_err()
    }

    /// Takes back the references of `left` processes that are gone; `live` counts the processes that live. Whether that
    /// was the last reference.
    pub(crate) fn take_back(&self, left: u32, live: impl Fn() -> u32) -> bool {
        // They may have been arriving.
        let _ = self.arriving.fetch_update(AcqRel, Acquire, |n| Some(n.saturating_sub(left)));
        self.count_off(left, live, ENDED)
    }

    /// Takes back references to an end for which an image or a process is still awaited, and none is arriving: it does
    /// not end.
    pub(crate) fn take_back_beside(&self, left: u32, live: impl Fn() -> u32) {
        self.count_off(left, live, 0);
    }

    /// Whatever was counted, the count does not fall below the number of processes that live. Where no process is
    /// counted, another one acts on that. Without any, it is `none`. Whether that is so, and was not before.
    fn count_off(&self, left: u32, live: impl Fn() -> u32, none: u32) -> bool {
        let fewer = |n: u32| match n.saturating_sub(left).max(live()) {
            _ if n == 0 || n == ENDED => None,
            0 => Some(none),
            less => Some(less).filter(|&less| less < n),
        };
        self.processes.fetch_update(AcqRel, Acquire, fewer).is_ok_and(|n| fewer(n) == Some(ENDED))
    }

    /// Image number `image`, of which 0 is none, may come for it until then (CLOCK_MONOTONIC, ns). An image is lent an
    /// end once, however many descriptors it gets.
    pub fn lend_to_image(&self, until: u64, image: u32) {
        if self.images.iter().any(|it| it.load(Acquire) == image) {
            return;
        }
        // This comes first: an image that has died is looked for by its number.
        let is_free = |it: &&AtomicU32| it.compare_exchange(0, image, AcqRel, Relaxed).is_ok();
        if self.images.iter().find(is_free).is_none() {
            self.others.fetch_add(1, AcqRel);
        }
        self.add_loan(until);
    }

    /// A process that the socket is passed to may come for it until then (CLOCK_MONOTONIC, ns).
    pub fn lend_passed(&self, until: u64) {
        // This comes first: see `is_lent_to_processes`.
        self.passed.fetch_add(1, AcqRel);
        self.add_loan(until);
    }

    fn add_loan(&self, until: u64) {
        self.loans.fetch_add(1, AcqRel);
        self.lent_until.store(until, Release);
    }

    /// Image number `image` has come. Once all have come, none is awaited. An image that inherits the socket although
    /// it was not lent the end, because another thread was just closing that, takes up nobody else's loan, unless so
    /// many are awaited that the end does not keep all their numbers.
    pub fn take_up_by_image(&self, image: u32) {
        if self.forget_image(image) || self.forget_other() {
            self.end_one_loan(0);
        }
    }

    /// Forgets one image of which no number is kept. False if there is none.
    fn forget_other(&self) -> bool {
        self.others.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1)).is_ok()
    }

    /// A process has come that the socket was passed to.
    pub fn take_up_passed(&self) {
        if self.forget_passed() {
            self.end_one_loan(0);
        }
    }

    /// Forgets one process that the socket was passed to. False if there is none.
    fn forget_passed(&self) -> bool {
        self.passed.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1)).is_ok()
    }

    /// Image number `image` does not come: its execution has failed, or it has ended. False if it was not lent the end,
    /// has come, or its number is not kept.
    pub fn take_back_loan(&self, image: u32) -> bool {
        let is_back = self.forget_image(image);
        if is_back {
            self.end_one_loan(TAKEN_BACK);
        }
        is_back
    }

    /// A process that the socket was to be passed to does not come: the message was not sent.
    pub fn take_back_passed(&self) {
        // The end may be another connection's by now.
        if self.forget_passed() {
            self.end_one_loan(TAKEN_BACK);
        }
    }

    /// Forgets that image. False if it is not to come.
    fn forget_image(&self, image: u32) -> bool {
        let is_its = |it: &&AtomicU32| it.compare_exchange(image, 0, AcqRel, Relaxed).is_ok();
        image != 0 && self.images.iter().find(is_its).is_some()
    }

    fn end_one_loan(&self, last: u64) {
        let until = self.lent_until();
        let one_less = |n: u32| n.checked_sub(1);
        if self.loans.fetch_update(AcqRel, Acquire, one_less).is_ok_and(|before| before == 1) {
            let _ = self.lent_until.compare_exchange(until, last, AcqRel, Relaxed);
        }
    }

    /// The images that are awaited, as far as their numbers are kept.
    pub fn awaited_images(&self) -> impl Iterator<Item = u32> {
        let images = if self.is_lent() { &self.images[..] } else { &[] };
        images.iter().map(|it| it.load(Acquire)).filter(|&image| image != 0)
    }

    /// Whether processes that the socket was passed to are awaited, and no image.
    pub fn is_lent_to_processes(&self) -> bool {
        self.is_lent() && self.loans.load(Acquire) == self.passed.load(Acquire)
    }

    /// Until when an image or a process may come for the end (CLOCK_MONOTONIC, ns), which may be past; 0: none is
    /// awaited.
    pub fn lent_until(&self) -> u64 {
        self.lent_until.load(Acquire)
    }

    /// Whether an image or a process was to come for the end and has not.
    pub fn is_lent(&self) -> bool {
        self.lent_until() > TAKEN_BACK
    }

    /// Whether an image or a process may still come for the end at the time `now` (CLOCK_MONOTONIC, ns).
    pub fn is_awaited(&self, now: u64) -> bool {
        self.lent_until() > now
    }

    /// Ends the loan that lasts `until` then. False if the end was lent again meanwhile.
    pub fn end_loan(&self, until: u64) -> bool {
        self.lent_until.compare_exchange(until, 0, AcqRel, Relaxed).is_ok()
    }

    /// Whether the last loan was taken back, and nobody has acted on that. Forgets it.
    pub fn end_taken_back(&self) -> bool {
        self.end_loan(TAKEN_BACK)
    }

    /// Ends an end to which no process refers: an image that still comes for it does not get it. False if one has come.
    pub fn end_if_unused(&self) -> bool {
        self.processes.compare_exchange(0, ENDED, AcqRel, Acquire).is_ok()
    }

    /// The end is free: no process has it, nor gets it.
    pub(crate) fn end(&self) {
        self.end_loans();
        self.processes.store(ENDED, Release);
    }

    /// Ends all loans: no image or process may come for the end any more.
    pub fn end_loans(&self) {
        self.loans.store(0, Relaxed);
        self.passed.store(0, Relaxed);
        self.arriving.store(0, Relaxed);
        self.images.iter().for_each(|it| it.store(0, Relaxed));
        self.others.store(0, Relaxed);
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

    /// A process takes a copy of the end along into a new image, and others may use the end meanwhile: the copy is out
    /// of date then.
    pub fn note_copied(&self) {
        self.copied.store(1, Release);
    }

    /// Whether a process has ever done so.
    pub fn is_copied(&self) -> bool {
        self.copied.load(Acquire) != 0
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
            passed: AtomicU32::new(0),
            arriving: AtomicU32::new(0),
            lent_until: AtomicU64::new(0),
            images: [const { AtomicU32::new(0) }; KNOWN],
            others: AtomicU32::new(0),
            outsider: AtomicU8::new(0),
            copied: AtomicU8::new(0),
        }
    }

    #[test]
    fn the_last_that_leaves_is_told() {
        let owners = owners();
        owners.begin();
        assert!(owners.add() && owners.are_several());
        assert_eq!([owners.drop_reference_unless_last(), owners.drop_reference_unless_last()], [false, true]);
        assert_eq!(
            [owners.drop_reference(), owners.are_any(), owners.add(), owners.add_if_used()],
            [true, false, false, false]
        );
    }

    #[test]
    fn who_was_to_come_finds_it_though_all_have_left() {
        let owners = owners();
        owners.begin();
        owners.lend_passed(100);
        owners.lend_passed(200);
        assert!(owners.drop_reference() && owners.is_lent_to_processes());
        assert!(owners.is_awaited(199) && !owners.is_awaited(200) && owners.is_lent());
        assert!(!owners.add_if_used() && owners.add());
        owners.take_up_passed();
        assert!(owners.is_lent());
        owners.take_up_passed();
        assert_eq!([owners.is_lent(), owners.end_loan(200)], [false, false]);
    }

    #[test]
    fn who_was_not_awaited_ends_no_loan() {
        let owners = owners();
        owners.begin();
        owners.lend_to_image(100, 7);
        // A socket that was passed before, and has come.
        owners.take_up_passed();
        assert!(owners.is_lent() && owners.awaited_images().eq([7]));
    }

    #[test]
    fn who_leaves_what_a_sweep_has_ended_is_not_the_last() {
        let owners = owners();
        owners.begin();
        assert!(owners.take_back(1, || 0));
        assert_eq!([owners.drop_reference(), owners.drop_reference(), owners.add(), owners.add_if_used()], [false; 4]);
        owners.begin();
        assert!(owners.drop_reference() && !owners.drop_reference() && owners.end_if_unused());
    }

    #[test]
    fn a_loan_to_an_image_that_does_not_come_is_taken_back_once() {
        let owners = owners();
        owners.begin();
        owners.lend_to_image(100, 7);
        // By another descriptor.
        owners.lend_to_image(100, 7);
        assert!(owners.awaited_images().eq([7]));
        assert_eq!(
            [owners.take_back_loan(8), owners.take_back_loan(7), owners.take_back_loan(7)],
            [false, true, false]
        );
        assert_eq!([owners.is_lent(), owners.is_awaited(TAKEN_BACK)], [false, false]);
        assert!(
            owners.drop_reference() && owners.end_taken_back() && !owners.end_taken_back() && owners.end_if_unused()
        );
    }

    #[test]
    fn a_loan_to_another_image_stays() {
        let owners = owners();
        owners.begin();
        owners.lend_to_image(100, 7);
        owners.lend_to_image(200, 8);
        owners.lend_to_image(200, 7);
        assert!(owners.awaited_images().eq([7, 8]) && !owners.take_back_loan(7 + 64));
        assert!(owners.take_back_loan(8) && !owners.take_back_loan(8) && owners.is_lent());
        assert!(owners.awaited_images().eq([7]));
        assert!(owners.take_back_loan(7) && !owners.is_lent() && owners.end_taken_back());

        owners.lend_to_image(300, 9);
        assert!(!owners.is_lent_to_processes());
        owners.take_up_by_image(9);
        assert!(!owners.is_lent_to_processes());
        assert_eq!([owners.is_lent(), owners.take_back_loan(9)], [false, false]);
    }

    #[test]
    fn who_inherits_what_was_not_lent_takes_up_no_loan() {
        let owners = owners();
        owners.begin();
        owners.lend_to_image(100, 7);
        owners.lend_passed(200);
        owners.take_up_by_image(8);
        assert_eq!((owners.loans.load(Relaxed), owners.lent_until()), (2, 200));
        owners.take_up_by_image(7);
        owners.take_up_by_image(7);
        assert!(owners.is_lent_to_processes(), "the message is still to be received");
        owners.take_up_passed();
        assert!(!owners.is_lent());
        // More than it keeps the numbers of.
        (1..=66).for_each(|image| owners.lend_to_image(300, image));
        assert!(owners.awaited_images().eq(1..=KNOWN as u32) && !owners.take_back_loan(66));
        (1..=66).rev().for_each(|image| owners.take_up_by_image(image));
        assert!(!owners.is_lent());
    }

    #[test]
    fn an_image_is_awaited_though_the_socket_was_passed_since() {
        let owners = owners();
        owners.begin();
        owners.lend_to_image(100, 7);
        owners.lend_passed(200);
        assert!(owners.awaited_images().eq([7]) && !owners.is_lent_to_processes());
        owners.take_up_passed();
        assert!(owners.awaited_images().eq([7]) && !owners.is_lent_to_processes());
        owners.lend_passed(300);
        owners.take_up_by_image(7);
        assert!(owners.awaited_images().eq([]) && owners.is_lent_to_processes());
    }

    #[test]
    fn who_comes_too_late_does_not_get_it() {
        let owners = owners();
        owners.begin();
        owners.lend_passed(100);
        assert!(
            !owners.end_if_unused() && owners.drop_reference() && owners.end_if_unused() && !owners.end_if_unused()
        );
        assert_eq!([owners.add(), owners.add_if_used(), owners.are_any(), owners.take_back(1, || 0)], [false; 4]);
        owners.begin();
        assert!(owners.add() && owners.count() == 2);
    }

    #[test]
    fn who_has_come_is_arriving_until_it_has_the_channel() {
        let owners = owners();
        owners.begin();
        assert!(owners.arrive() && !owners.are_any_arriving(), "nothing was lent");
        owners.has_arrived();
        owners.lend_to_image(100, 7);
        assert!(!owners.are_any_arriving() && owners.arrive() && owners.are_any_arriving() && owners.count() == 3);
        owners.has_arrived();
        assert!(!owners.are_any_arriving() && owners.is_lent());
        // Killed.
        assert!(owners.arrive() && owners.take_back_loan(7) && !owners.are_any_arriving());
        owners.end_loans();
        assert!(
            !owners.drop_reference_unless_last()
                && !owners.drop_reference()
                && !owners.drop_reference()
                && owners.drop_reference()
        );
        owners.lend_to_image(100, 8);
        assert!(owners.end_if_unused() && !owners.arrive() && !owners.are_any_arriving());
    }

    #[test]
    fn what_the_dead_have_counted_is_not_taken_from_the_living() {
        let owners = owners();
        owners.begin();
        assert!(owners.add() && owners.add());
        assert!(!owners.take_back(3, || 1));
        assert_eq!(owners.count(), 1);
        assert!(owners.take_back(1, || 0) && !owners.take_back(1, || 0));
        // It was left to an image that has not come.
        owners.begin();
        owners.lend_passed(100);
        assert!(owners.drop_reference() && !owners.take_back(1, || 0) && owners.end_if_unused());
        // A process lives that has it as well, or had a moment ago.
        owners.end_loans();
        owners.begin();
        owners.lend_to_image(100, 7);
        assert!(owners.add());
        owners.take_back_beside(1, || 1);
        assert_eq!(owners.count(), 1);
        owners.take_back_beside(1, || 0);
        assert!(owners.count() == 0 && owners.add(), "the image does not get it");
        // The message was not sent.
        owners.end_loans();
        owners.begin();
        owners.lend_passed(100);
        owners.take_back_passed();
        owners.take_back_passed();
        assert!(!owners.is_lent() && owners.drop_reference() && owners.end_taken_back() && !owners.end_taken_back());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::model;
    use std::sync::Arc;

    /// Fails if `Owners::add` takes an end that has ended: a process would have an end that is another connection's
    /// soon.
    #[test]
    fn what_has_ended_nobody_gets() {
        model::check(3, || {
            let owners = Arc::new(Owners {
                processes: AtomicU32::new(0),
                loans: AtomicU32::new(0),
                passed: AtomicU32::new(0),
                arriving: AtomicU32::new(0),
                lent_until: AtomicU64::new(0),
                images: std::array::from_fn(|_| AtomicU32::new(0)),
                others: AtomicU32::new(0),
                outsider: AtomicU8::new(0),
                copied: AtomicU8::new(0),
            });
            owners.lend_passed(100);
            owners.processes.share();
            owners.lent_until.share();
            let late = owners.clone();
            let image = loom::thread::spawn(move || late.add());
            let is_over = owners.end_loan(100) && owners.end_if_unused();
            assert!(image.join().unwrap() ^ is_over, "one of them has it");
        });
    }
}

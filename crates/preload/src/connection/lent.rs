//! The program images to which this process, or its parent before the fork, has lent ends: a loan to an image that ends
//! before it comes for its ends is taken back.

use underpass_segment::end::Owners;
use underpass_segment::kernel::{self, Process};
use underpass_segment::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use underpass_segment::{clock, family::Family};

/// An image that was lent ends, and its process. Zeroed memory is none.
struct Borrower {
    image: AtomicU32,
    process: AtomicU32,
    /// When the process was last looked up, and lived (CLOCK_MONOTONIC, ns); [`ENDED`]: it did not.
    lived_at: AtomicU64,
}

/// Value of [`Borrower::lived_at`].
const ENDED: u64 = u64::MAX;
/// How often a process is looked up at most, because an image may have been lent thousands of ends.
const LOOK_EVERY_NS: u64 = 2_000_000;

/// How many are remembered. An image that is not remembered is awaited as long as one may take to begin.
const MOST: usize = 64;

static BORROWERS: [Borrower; MOST] =
    [const { Borrower { image: AtomicU32::new(0), process: AtomicU32::new(0), lived_at: AtomicU64::new(0) } }; MOST];
/// How many have been remembered so far.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Image number `image`, which has been lent ends, runs in `process`.
pub fn note(image: u32, process: u32) {
    let it = &BORROWERS[COUNT.fetch_add(1, Relaxed) as usize % MOST];
    it.image.store(0, Release);
    it.process.store(process, Release);
    it.lived_at.store(long_ago(image), Release);
    it.image.store(image, Release);
}

/// A time long past, and another one for each image: see [`has_ended`].
fn long_ago(image: u32) -> u64 {
    image.into()
}

/// Has the process of each image looked up anew, however short ago that was: a process has died since.
pub fn look_again() {
    for it in &BORROWERS {
        let (image, lived_at) = (it.image.load(Acquire), it.lived_at.load(Acquire));
        // Another thread may note another image here meanwhile.
        if lived_at != ENDED && it.image.load(Acquire) == image {
            let _ = it.lived_at.compare_exchange(lived_at, long_ago(image), Release, Relaxed);
        }
    }
}

/// Whether image number `image` is known to have ended. Its process is looked up at most once each [`LOOK_EVERY_NS`].
/// In between, `looks_closely` says whether to ask for a process that has been waited for: that takes one system call.
fn has_ended(image: u32, looks_closely: bool) -> bool {
    let is_its = |it: &&Borrower| it.image.load(Acquire) == image;
    let Some(it) = BORROWERS.iter().find(is_its) else { return false };
    let (process, lived_at) = (it.process.load(Acquire), it.lived_at.load(Acquire));
    let now = clock::nanoseconds();
    let has_ended = match lived_at {
        ENDED => true,
        _ if now.wrapping_sub(lived_at) < LOOK_EVERY_NS => looks_closely && !kernel::exists(process),
        _ => kernel::process(process) == Process::Gone,
    };
    // Another thread may have noted another image here meanwhile, to which what was seen says nothing.
    if !is_its(&it) {
        return false;
    }
    let seen = if has_ended { ENDED } else { now };
    let is_due = has_ended || now.wrapping_sub(lived_at) >= LOOK_EVERY_NS;
    if is_due && lived_at != ENDED {
        let _ = it.lived_at.compare_exchange(lived_at, seen, Release, Relaxed);
    }
    has_ended
}

/// Takes the loans back of images that are awaited and have ended.
#[cold]
pub fn take_back_if_image_died(owners: &Owners) {
    take_back_of_ended(owners, true);
}

/// Takes the loans back of images that have ended, for one of many ends, which are looked at again soon:
/// learns of a death by [`LOOK_EVERY_NS`] later.
#[cold]
pub fn take_back_if_image_died_lately(owners: &Owners) {
    take_back_of_ended(owners, false);
}

fn take_back_of_ended(owners: &Owners, looks_closely: bool) {
    owners.awaited_images().filter(|&image| has_ended(image, looks_closely)).for_each(|image| {
        owners.take_back_loan(image);
    });
}

/// Image number `image` does not come: takes back what it was lent of `family`.
pub fn take_back_all(family: &Family, image: u32) {
    (0..family.used()).for_each(|index| {
        family.end(index).owners.take_back_loan(image);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn an_image_has_ended_once_its_process_has_and_not_before() {
        const IMAGE: u32 = 70_001;
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        note(IMAGE, child.id());
        assert!(!has_ended(IMAGE, false) && !has_ended(IMAGE, true) && !has_ended(IMAGE + 1, true));
        child.kill().unwrap();
        child.wait().unwrap();
        // However short ago its process was looked up.
        assert!(has_ended(IMAGE, true) && has_ended(IMAGE, false));

        // Its place was another image's meanwhile.
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        (1..=MOST as u32).for_each(|more| note(IMAGE + more, child.id()));
        assert!(!has_ended(IMAGE, true) && !has_ended(IMAGE + MOST as u32, true));
        child.kill().unwrap();
        // It is not waited for yet.
        while !has_ended(IMAGE + MOST as u32, false) {
            clock::nap(100);
        }
        child.wait().unwrap();
    }

    #[test]
    fn the_process_of_an_image_is_looked_up_once_in_a_while() {
        const IMAGE: u32 = 80_001;
        note(IMAGE, std::process::id());
        let began = clock::nanoseconds();
        let mut looks = std::collections::BTreeSet::new();
        (0..1000).for_each(|_| {
            assert!(!has_ended(IMAGE, false));
            let it = BORROWERS.iter().find(|it| it.image.load(Acquire) == IMAGE);
            it.inspect(|it| _ = looks.insert(it.lived_at.load(Acquire)));
        });
        let lasted = clock::nanoseconds() - began;
        assert!(looks.len() as u64 <= 1 + lasted / LOOK_EVERY_NS, "{} looks in {lasted} ns", looks.len());
    }
}

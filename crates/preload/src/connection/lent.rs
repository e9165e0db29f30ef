//! The program images to which this process, or its parent before the fork, has lent ends: a loan to an image that ends
//! before it comes for its ends is taken back.

use underpass_segment::end::Owners;
use underpass_segment::family::Family;
use underpass_segment::kernel::{self, Process};
use underpass_segment::sync::{Acquire, AtomicU32, Relaxed, Release};

/// An image that was lent ends, and its process. Zeroed memory is none.
struct Borrower {
    image: AtomicU32,
    process: AtomicU32,
}

/// How many are remembered. An image that is not remembered is awaited as long as one may take to begin.
const MOST: usize = 64;

static BORROWERS: [Borrower; MOST] =
    [const { Borrower { image: AtomicU32::new(0), process: AtomicU32::new(0) } }; MOST];
/// How many have been remembered so far.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Image number `image`, which has been lent ends, runs in `process`.
pub fn note(image: u32, process: u32) {
    let it = &BORROWERS[COUNT.fetch_add(1, Relaxed) as usize % MOST];
    it.image.store(0, Release);
    it.process.store(process, Release);
    it.image.store(image, Release);
}

/// The process of image number `image`; `None` if it is not remembered.
fn process_of(image: u32) -> Option<u32> {
    let is_its = |it: &&Borrower| it.image.load(Acquire) == image;
    let it = BORROWERS.iter().find(is_its)?;
    let process = it.process.load(Acquire);
    is_its(&it).then_some(process)
}

/// Takes the loan back if the image that is awaited has ended.
#[cold]
pub fn heed_dead_image(owners: &Owners) {
    if let Some(image) = owners.awaited_image()
        && let Some(process) = process_of(image)
        && kernel::process(process) == Process::Gone
    {
        owners.take_back_loan(image);
    }
}

/// Image number `image` does not come: takes back what it was lent of `family`.
pub fn take_back_all(family: &Family, image: u32) {
    (0..family.used()).for_each(|index| {
        family.end(index).owners.take_back_loan(image);
    });
}

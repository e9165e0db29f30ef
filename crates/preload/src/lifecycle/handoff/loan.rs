//! What a new image is lent: ends that it finds in the family's table, and that this process keeps until it has come.

use crate::connection::{Connection, lent};
use underpass_segment::clock;
use underpass_segment::end::{IMAGE_WITHIN_NS, Stage};
use underpass_segment::family::Family;

/// What an image is lent. Dropped, it is taken back: the execution has failed.
pub struct Loan {
    family: &'static Family,
    image: u32,
}

impl Loan {
    /// Nothing yet, of what `family` has.
    pub fn new(family: &'static Family) -> Loan {
        Loan { family, image: family.next_image() }
    }

    /// The image's number.
    pub fn image(&self) -> u32 {
        self.image
    }

    /// Lends the connection: a process that closes it here must not end it before the new image has come for it.
    pub fn add(&self, connection: &Connection) {
        if connection.end.stage() <= Stage::Joined {
            connection.learn_cookie();
            // What an image was lent that has ended would not be known any more.
            lent::heed_dead_image(&connection.end.owners);
            connection.end.owners.lend(clock::nanoseconds() + IMAGE_WITHIN_NS, self.image);
        }
    }

    /// The image is executed in `process`: if that ends before the image has come, the loan is over.
    pub fn note_process(&self, process: i32) {
        lent::note(self.image, process as u32);
    }

    /// The image has begun.
    pub fn stay(self) {
        core::mem::forget(self);
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        lent::take_back_all(self.family, self.image);
    }
}

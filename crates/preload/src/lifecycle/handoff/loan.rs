//! What a new image is lent: ends that it finds in the family's table, and that this process keeps until it has come.

use super::Execution;
use super::inherited::inherited;
use crate::connection::{Connection, lent, look};
use crate::guest::thread;
use core::fmt::{self, Display, Formatter};
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

    /// Lends the connection: a process that closes it here must not end it before the new image has come for it.
    pub fn add(&mut self, connection: &Connection) {
        if connection.end.stage() <= Stage::Joined {
            connection.learn_cookie();
            // What an image was lent that has ended would not be known any more.
            lent::take_back_if_image_died(&connection.end.owners);
            connection.end.owners.lend_to_image(clock::nanoseconds() + IMAGE_WITHIN_NS, self.image);
        }
        // Also a connection that is pinned: it may have the tag of an earlier loan.
        connection.tag_for_loan();
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
        if thread::is_vfork_child() {
            // Its descriptors are its own, and the table is its parent's.
            inherited(Execution::Borrowed, |it| it.untag_unless_lent());
        } else {
            look::look_at_all(|it| it.untag_unless_lent());
        }
    }
}

/// What an image that begins beside this one is told of its loan, as `FAMILY.IMAGE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number of the family's table.
    pub family: i32,
    /// The image's number.
    pub image: u32,
}

impl Offer {
    /// What was lent.
    pub fn of(loan: &Loan) -> Offer {
        Offer { family: loan.family.id(), image: loan.image }
    }

    /// Reads what [`Display`] writes.
    pub fn read(text: &str) -> Option<Offer> {
        let (family, image) = text.split_once('.')?;
        Some(Offer { family: family.parse().ok()?, image: image.parse().ok()? })
    }
}

impl Display for Offer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.family, self.image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_as_it_was_written() {
        let offer = Offer { family: -1, image: u32::MAX };
        let text = offer.to_string();
        assert_eq!(Offer::read(&text), Some(offer));
        assert!(text.len() + 30 < super::super::environment::MOST);
        assert_eq!(["1", "1.x", "", "1.2.3"].map(Offer::read), [None; 4]);
    }
}

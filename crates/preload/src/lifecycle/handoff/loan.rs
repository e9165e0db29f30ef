//! What a new image is lent: ends that it finds in the family's table, and that this process keeps until it has come.

use crate::connection::{Connection, lent};
use core::fmt::{self, Display, Formatter};
use underpass_segment::clock;
use underpass_segment::end::{IMAGE_WITHIN_NS, Stage};
use underpass_segment::family::Family;
use underpass_segment::sync::Relaxed;

/// What an image is lent. Dropped, it is taken back: the execution has failed.
pub struct Loan {
    family: &'static Family,
    image: u32,
    /// See [`Offer::fast`].
    fast: u64,
}

impl Loan {
    /// Nothing yet, of what `family` has.
    pub fn new(family: &'static Family) -> Loan {
        Loan { family, image: family.next_image(), fast: 0 }
    }

    /// Lends the connection: a process that closes it here must not end it before the new image has come for it.
    pub fn add(&mut self, connection: &Connection) {
        if connection.end.stage() <= Stage::Joined {
            connection.learn_cookie();
            // What an image was lent that has ended would not be known any more.
            lent::take_back_if_image_died(&connection.end.owners);
            connection.end.owners.lend(clock::nanoseconds() + IMAGE_WITHIN_NS, self.image);
            if !connection.end.is_plain_for_good() {
                self.fast |= bit_of(connection.end.cookie.load(Relaxed));
            }
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

/// What an image that begins beside this one is told of its loan, as `FAMILY.IMAGE.FAST.TIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number of the family's table.
    pub family: i32,
    /// The image's number.
    pub image: u32,
    /// A bit for each connection that was lent with its ring, by the cookie: neighbours have bits of their own, and
    /// others may share one.
    fast: u64,
    /// When it was lent (CLOCK_MONOTONIC, ns).
    time: u64,
}

/// For so long a process that ends keeps what it has lent, and leaves it to the kernel afterwards where nothing is
/// lost.
const KEPT_NS: u64 = 1_000_000_000;

impl Offer {
    /// What was lent by now.
    pub fn of(loan: &Loan) -> Offer {
        Offer { family: loan.family.id(), image: loan.image, fast: loan.fast, time: clock::nanoseconds() }
    }

    /// Reads what [`Display`] writes.
    pub fn read(text: &str) -> Option<Offer> {
        let mut parts = text.split('.');
        let (family, image) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        Some(Offer { family, image, fast: number()?, time: number()? })
    }

    /// Whether the connection with this cookie was lent with its ring, and cannot have been left to the kernel since: a
    /// process that has it waits longer than that before it lets go of it. (One that was killed does not wait.)
    pub fn is_lost(&self, cookie: u64) -> bool {
        self.fast & bit_of(cookie) != 0 && clock::nanoseconds().saturating_sub(self.time) < KEPT_NS
    }
}

impl Display for Offer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:x}.{:x}", self.family, self.image, self.fast, self.time)
    }
}

fn bit_of(cookie: u64) -> u64 {
    1 << (cookie % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_as_it_was_written() {
        let offer = Offer { family: -1, image: u32::MAX, fast: u64::MAX - 2, time: u64::MAX };
        let text = offer.to_string();
        assert_eq!(Offer::read(&text), Some(offer));
        assert!(text.len() + 30 < super::super::environment::MOST);
        assert_eq!(["1.2.f", "1.x.f.f", "", "1.2.f.g"].map(Offer::read), [None; 4]);
    }

    #[test]
    fn what_was_lent_with_its_ring_is_lost_with_its_family_at_once_only() {
        let now = clock::nanoseconds();
        let offer = Offer { family: 1, image: 1, fast: bit_of(65), time: now };
        assert!(offer.is_lost(65) && !offer.is_lost(66));
        assert!(!Offer { time: now.saturating_sub(2 * KEPT_NS), ..offer }.is_lost(65));
    }
}

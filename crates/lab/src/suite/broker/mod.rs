//! What it costs that `underpassd` leads two ends to each other: programs of two users against programs of one, and
//! meeting.
//!
//! Only root can take part: it runs programs as users that the system has, and a daemon of its own for them.

mod household;
mod meeting;
mod ratio;
mod rest;

use anyhow::Result;

use crate::bench::{Chosen, Lab, skipped};
use crate::record::Skipped;
use crate::suite::apps::Shared;
use household::{Household, Means};

/// The group of what programs of two users do.
pub const BETWEEN_USERS: &str = "between users";
/// The group of what a program does whose other end is not under Underpass.
pub const ALONE: &str = "alone";

/// Sizes of messages at which two users are compared.
#[derive(Debug)]
pub struct Comparisons {
    /// Round trips.
    pub round_trips: Vec<u64>,
    /// Streams.
    pub streams: Vec<u64>,
}

/// Adds other sizes: round trips and streams of two users.
pub fn add_comparisons(lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>, sizes: &Comparisons) {
    if sizes.round_trips.is_empty() && sizes.streams.is_empty() {
        return;
    }
    match Means::find() {
        Ok(means) => ratio::add_comparisons(lab, &House { means, made: Shared::default() }, chosen, sizes),
        Err(reason) => missing.push(skipped("what goes through underpassd", reason)),
    }
}

/// Names the experiments, if this process can be several users.
pub fn add(lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let means = match Means::find() {
        Ok(means) => means,
        Err(reason) => return missing.push(skipped("what goes through underpassd", reason)),
    };
    let house = House { means, made: Shared::default() };
    ratio::add(lab, &house, chosen, missing);
    meeting::add(&house, chosen);
    rest::add(lab, &house, chosen);
}

/// A household that is made when it is first needed.
#[derive(Clone, Debug)]
struct House {
    means: Means,
    made: Shared<Household>,
}

impl House {
    fn get(&self, lab: &Lab) -> Result<&Household> {
        self.made.get_or_make(|| Household::new(&self.means, lab))
    }
}

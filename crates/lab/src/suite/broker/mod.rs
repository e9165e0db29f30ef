//! What it costs that `underpassd` leads two ends to each other: programs of two users against programs of one, and meeting.
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

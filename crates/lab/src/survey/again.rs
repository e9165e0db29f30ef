//! Endpoints of a survey that are measured between again, at other sizes, to see whether what was predicted from it is
//! so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Result;

use super::endpoints::Place;
use super::journal::changed;
use super::record::{Endpoint, Head, Key};
use super::roster::{Connect, OtherVersion, Roster, Taken, check_version};
use crate::bench::{Experiment, Lab};
use crate::interrupt::Interrupted;
use crate::launcher::{Reading, Session, Side};
use crate::plan::Plan;
use crate::unit::Unit;

/// The endpoints, and their agents.
pub struct Again {
    roster: Roster<'static>,
    /// How the survey's version differs from this one.
    other: Option<OtherVersion>,
}

/// The endpoints are not those of the survey.
#[derive(Debug, thiserror::Error)]
#[error(
    "the endpoints are not as they were in the survey: {0}; predictions from it say nothing of them: survey them \
         again"
)]
pub struct Changed(String);

impl Again {
    /// Connects to the agents of the endpoints of a survey.
    ///
    /// # Errors
    /// Not all can be reached, or one is not as it was in the survey.
    pub fn meet(head: &Head, places: &[Place], connect: Connect<'static>) -> Result<Again> {
        let (roster, _) = Roster::meet(places, &head.plan, connect)?;
        let now = |before: &Endpoint| {
            let now = roster.endpoints().iter().find(|it| it.name == before.name);
            now.cloned().ok_or_else(|| Changed(format!("{} is not there", before.name)))
        };
        let now: Vec<Endpoint> = head.endpoints.iter().map(now).collect::<Result<_, _>>()?;
        if let Some(difference) = changed(&head.endpoints, &now) {
            return Err(Changed(difference.what).into());
        }
        let other = check_version("it is by", &head.version, head.revision.as_deref()).err();
        Ok(Again { roster, other })
    }

    /// Endpoints whose agent was lost, with the reason. Nothing more can be measured between these.
    pub fn lost(&self) -> Vec<(String, String)> {
        self.roster.lost()
    }

    /// Why figures under Underpass cannot be compared with those of the survey, if they cannot.
    pub fn other_version(&self) -> Option<String> {
        self.other.as_ref().map(|other| format!("{other}; survey again"))
    }
}

/// Figures of which each sample is taken in turn, so that what changes with time changes all of them alike.
pub struct Samples {
    again: Rc<RefCell<Again>>,
    keys: Vec<Key>,
    /// Why there is no figure, by the place in `keys`: one sample that failed is enough, and a further one of an agent
    /// that does not answer takes a minute.
    failed: BTreeMap<usize, String>,
    turn: usize,
}

impl Samples {
    /// Samples of these figures.
    pub fn new(again: &Rc<RefCell<Again>>, keys: Vec<Key>) -> Samples {
        Samples { again: again.clone(), keys, failed: BTreeMap::new(), turn: 0 }
    }
}

impl Experiment for Samples {
    fn sides(&self) -> &'static [Side] {
        // A survey's figures are of kernel TCP; what has one side has it as the other.
        &[Side::Underpass]
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = |key: &Key| {
            let plan = match key.metric.unit() {
                Unit::Nanoseconds => Plan::duration(&key.curve(), key.to_string()),
                unit => Plan::rate(&key.curve(), key.to_string(), unit),
            };
            plan.of_size(key.size)
        };
        self.keys.iter().map(plan).collect()
    }

    fn sample(&mut self, _: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let count = self.keys.len();
        let mut readings = vec![Err("not measured".to_string()); count];
        self.turn += 1;
        for at in (0..count).map(|at| (at + self.turn) % count) {
            readings[at] = match self.failed.get(&at) {
                Some(reason) => Err(reason.clone()),
                None => self.again.borrow_mut().reading(&self.keys[at])?,
            };
            if let Err(reason) = &readings[at] {
                self.failed.insert(at, reason.clone());
            }
        }
        Ok(readings)
    }
}

impl Again {
    /// A sample, or why there is none. An endpoint that was lost, or has changed, concerns its own figures alone.
    fn reading(&mut self, key: &Key) -> Result<Reading, Interrupted> {
        loop {
            if let Some(loss) = self.roster.loss(key) {
                return Ok(Err(loss));
            }
            match self.roster.take(key) {
                Ok(Taken::Sample(sample)) => return Ok(Ok(sample.value)),
                Ok(Taken::Failed(reason)) => return Ok(Err(reason)),
                Ok(Taken::Interrupted) => return Err(Interrupted),
                // One more endpoint is lost. If it is none of these, they can be measured.
                Ok(Taken::Lost) | Err(_) => {}
            }
        }
    }
}

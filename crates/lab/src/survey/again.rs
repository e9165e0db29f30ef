//! Endpoints of a survey that are measured between again, at other sizes, to see whether what was predicted from it is
//! so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Result, bail};

use super::endpoints::Place;
use super::journal::changed;
use super::record::{Head, Key};
use super::roster::{Connect, Roster};
use super::sample::Trouble;
use crate::bench::{Experiment, Lab};
use crate::interrupt::Interrupted;
use crate::launcher::{Reading, Session, Side};
use crate::plan::Plan;
use crate::unit::Unit;

/// How often a sample is tried.
const TRIES: u32 = 3;

/// The endpoints, and their agents.
pub struct Again {
    roster: Roster<'static>,
    /// Endpoints whose agent is gone, by their number, with the reason.
    lost: BTreeMap<usize, String>,
}

/// The endpoints are not those of the survey.
#[derive(Debug, thiserror::Error)]
#[error("the endpoints are not as they were in the survey: {0}; predictions from it say nothing of them")]
pub struct Changed(String);

impl Again {
    /// Connects to the agents of the endpoints of a survey.
    ///
    /// # Errors
    /// Not all can be reached, or one has another kernel, processor, tool or address than in the survey.
    pub fn meet(head: &Head, places: &[Place], connect: Connect<'static>) -> Result<Again> {
        let (roster, _) = Roster::meet(places, &head.plan, connect)?;
        for before in &head.endpoints {
            let now = roster.endpoints().iter().find(|it| it.name == before.name);
            let what = now.map_or_else(|| Some(format!("{} is not there", before.name)), |now| changed(before, now));
            if let Some(what) = what {
                return Err(Changed(what).into());
            }
        }
        Ok(Again { roster, lost: BTreeMap::new() })
    }

    /// Endpoints whose agent was lost, with the reason. Nothing more can be measured between these.
    pub fn lost(&self) -> Vec<(String, String)> {
        self.lost.iter().map(|(index, reason)| (self.roster.name(*index).to_string(), reason.clone())).collect()
    }
}

/// Figures of which each sample is taken in turn, so that what changes with time changes all of them alike.
pub struct Samples {
    again: Rc<RefCell<Again>>,
    keys: Vec<Key>,
    turn: usize,
}

impl Samples {
    /// Samples of these figures.
    pub fn new(again: &Rc<RefCell<Again>>, keys: Vec<Key>) -> Samples {
        Samples { again: again.clone(), keys, turn: 0 }
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
            readings[at] = self.again.borrow_mut().reading(&self.keys[at])?;
        }
        Ok(readings)
    }
}

impl Again {
    fn reading(&mut self, key: &Key) -> Result<Reading> {
        let mut failed = String::new();
        for _ in 0..TRIES {
            match self.roster.sample(key) {
                Ok(sample) => return Ok(Ok(sample.value)),
                Err(Trouble::Failed(reason)) => failed = reason,
                Err(Trouble::Lost(index, error)) => {
                    // Later errors say only that it is gone.
                    let reason = self.lost.entry(index).or_insert_with(|| error.to_string());
                    bail!("{} was lost: {reason}", self.roster.name(index));
                }
                Err(Trouble::Interrupted) => return Err(Interrupted.into()),
            }
        }
        Ok(Err(format!("{failed} ({TRIES} times)")))
    }
}

//! ZeroMQ for Python: messages of 64 KiB from a PUSH to a PULL socket.

use anyhow::Result;

use super::load::{self, NOT_SLOWER};
use super::python::Python;
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::record::Skipped;
use crate::unit::Unit;
use crate::witness::Rule;

const NAME: &str = "ZeroMQ";
const SCRIPT: &str = include_str!("zeromq.py");

/// Names the experiment.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match Python::with(NAME, "pyzmq", "python3-zmq") {
        Ok(python) => {
            chosen.versions.push(python.version.clone());
            chosen.add("apps", ZeroMq { python });
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct ZeroMq {
    python: Python,
}

impl Experiment for ZeroMq {
    fn plans(&self) -> Vec<Plan> {
        let rate = Plan::rate(NAME, "ZeroMQ PUSH to PULL, 64 KiB", Unit::PerSecond).target(NOT_SLOWER);
        let rate = rate.note("pyzmq, until the last message has arrived").note(load::IN_PART);
        load::plans(rate, "message", false)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        self.python.sample(SCRIPT, Rule::Connections, lab, session)
    }
}

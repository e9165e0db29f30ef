//! gRPC for Python: unary calls of 64 B, one after the other.

use anyhow::Result;

use super::load::{self, NOT_SLOWER};
use super::python::Python;
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::record::Skipped;
use crate::unit::Unit;
use crate::witness::Rule;

const NAME: &str = "gRPC";
const SCRIPT: &str = include_str!("grpc.py");

/// Names the experiment.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match Python::with(NAME, "grpcio", "python3-grpcio") {
        Ok(python) => {
            chosen.versions.push(python.version.clone());
            chosen.add("apps", Grpc { python });
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Grpc {
    python: Python,
}

impl Experiment for Grpc {
    fn plans(&self) -> Vec<Plan> {
        let rate = Plan::rate(NAME, "gRPC unary, 1 client", Unit::PerSecond).target(NOT_SLOWER);
        load::plans(rate.note("grpcio for Python, 64 B there and back"), "call", true)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        self.python.sample(SCRIPT, Rule::Bytes, lab, session)
    }
}

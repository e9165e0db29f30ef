//! What the library costs programs that do not communicate: at start-up, and in calls on other descriptors.

use std::time::Instant;

use anyhow::Result;
use serde::Deserialize;

use super::arguments;
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::finish;
use crate::programs::Program;
use crate::statistic::median;
use crate::unit::Unit;
use crate::witness::{Rule, VARIABLE};

/// Names the suite's experiments.
pub fn add(chosen: &mut Chosen) {
    chosen.add("setup", StartUp);
    chosen.add("setup", Calls);
}

/// The time from the call that starts the smallest program to its end.
#[derive(Debug)]
struct StartUp;

impl Experiment for StartUp {
    fn plans(&self) -> Vec<Plan> {
        let plan = Plan::cost("overhead", "starting a program", Unit::Nanoseconds);
        vec![
            plan.target(Target::KernelPlus(5e6))
                .note("median of each sample, until the end of a program that does nothing"),
        ]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let one = finish(&mut lab.command(session, Program::NOTHING)?, LIMIT)?;
        let mut command = lab.command(session, Program::NOTHING)?;
        command.env_remove(VARIABLE); // as users run it; that the library is loaded shows the run above
        let mut durations = Vec::new();
        for _ in 0..lab.count(200) {
            let begin = Instant::now();
            let status = command.status()?;
            durations.push(begin.elapsed().as_nanos() as f64);
            anyhow::ensure!(status.success(), "a program that does nothing failed ({status})");
        }
        Ok(vec![session.proven(one.pid, Rule::Loaded, median(&durations).unwrap_or_default())])
    }
}

/// read and write of one byte on /dev/zero and /dev/null.
#[derive(Debug)]
struct Calls;

#[derive(Debug, Deserialize)]
struct PerCall {
    read_ns: f64,
    write_ns: f64,
}

impl Experiment for Calls {
    fn plans(&self) -> Vec<Plan> {
        ["read of 1 B from /dev/zero", "write of 1 B to /dev/null"]
            .map(|call| Plan::cost("overhead", call, Unit::Nanoseconds).target(Target::KernelPlus(20.0)))
            .to_vec()
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let mut command = lab.command(session, Program::CALLS)?;
        if let Some(pair) = lab.processors {
            command.args(arguments!["--cpu", pair.second]);
        }
        let calls = finish(command.args(arguments!["--count", lab.count(100)]), LIMIT)?;
        let PerCall { read_ns, write_ns } = calls.json()?;
        Ok([read_ns, write_ns].map(|ns| session.proven(calls.pid, Rule::Loaded, ns)).to_vec())
    }
}

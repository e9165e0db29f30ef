//! Ten thousand connections that have gone fast and then rest: what they cost in processor time and memory.

use anyhow::Result;
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;

use super::arguments;
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::Finished;
use crate::programs::Program;
use crate::unit::{Unit, thousands};
use crate::witness::Rule;

/// Descriptors that a process needs besides.
const SPARE: u64 = 64;

/// Names the suite's experiments.
pub fn add(lab: &Lab, chosen: &mut Chosen) {
    chosen.add("setup", Idle::of(lab));
}

/// How many connections rest.
#[derive(Debug)]
pub struct Idle {
    connections: u64,
    /// Whether RLIMIT_NOFILE allowed no more.
    limited: bool,
}

#[derive(Debug, Deserialize)]
struct Cost {
    client_cpu_percent: f64,
    server_cpu_percent: f64,
    client_memory: f64,
    server_memory: f64,
}

impl Idle {
    /// As many connections as are wanted, or as this process may have.
    pub fn of(lab: &Lab) -> Idle {
        let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).saturating_sub(SPARE);
        let connections = lab.count(10_000).min(allowed);
        Idle { connections, limited: connections == allowed }
    }

    /// What [`read`] reads, in `group`, of connections that are `what`.
    pub fn plans_of(&self, group: &str, what: &str) -> Vec<Plan> {
        let count = thousands(self.connections);
        let processor = Plan::cost(group, format!("{count} {what}: CPU use"), Unit::Percent)
            .target(Target::AtMost(1.0))
            .note("of one processor, by the busier of the two processes");
        let memory = Plan::cost(group, format!("{count} {what}: memory each"), Unit::Bytes)
            .target(Target::AtMost(16384.0))
            .note("growth of the proportional set (PSS) of both processes over the connections");
        let limit = format!("RLIMIT_NOFILE allows no more than {count} connections");
        [processor, memory].map(|plan| if self.limited { plan.note(limit.clone()) } else { plan }).to_vec()
    }

    /// The arguments of the helper program, at either end.
    pub fn arguments(&self, lab: &Lab) -> Vec<String> {
        arguments!["--count", self.connections, "--seconds", if lab.quick { 1 } else { 2 }]
    }
}

/// What the helper program has printed.
///
/// # Errors
/// It is not what the program prints.
pub fn read(session: &Session, client: &Finished) -> Result<Vec<Reading>> {
    let cost: Cost = client.json()?;
    let figures = [cost.client_cpu_percent.max(cost.server_cpu_percent), cost.client_memory + cost.server_memory];
    Ok(figures.map(|figure| session.proven(client.pid, Rule::Connections, figure)).to_vec())
}

impl Experiment for Idle {
    fn plans(&self) -> Vec<Plan> {
        self.plans_of("idle", "idle connections")
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let client = lab.converse(session, Program::IDLE, &self.arguments(lab), None)?;
        read(session, &client)
    }
}

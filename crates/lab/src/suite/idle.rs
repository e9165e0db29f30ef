//! Ten thousand connections that have gone fast and then rest: what they cost in processor time and memory.

use anyhow::Result;
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;

use super::arguments;
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::programs::Program;
use crate::unit::{Unit, thousands};
use crate::witness::Rule;

/// Descriptors that a process needs besides.
const SPARE: u64 = 64;

/// Names the suite's experiments.
pub fn add(lab: &Lab, chosen: &mut Chosen) {
    let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).saturating_sub(SPARE);
    let connections = lab.count(10_000).min(allowed);
    chosen.add("setup", Idle { connections, limited: connections == allowed });
}

#[derive(Debug)]
struct Idle {
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

impl Experiment for Idle {
    fn plans(&self) -> Vec<Plan> {
        let count = thousands(self.connections);
        let processor = Plan::cost("idle", format!("{count} idle connections: CPU use"), Unit::Percent)
            .target(Target::AtMost(1.0))
            .note("of one processor, by the busier of the two processes");
        let memory = Plan::cost("idle", format!("{count} idle connections: memory each"), Unit::Bytes)
            .target(Target::AtMost(16384.0))
            .note("growth of the proportional set (PSS) of both processes over the connections");
        let limit = format!("RLIMIT_NOFILE allows no more than {count} connections");
        [processor, memory].map(|plan| if self.limited { plan.note(limit.clone()) } else { plan }).to_vec()
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let arguments = arguments!["--count", self.connections, "--seconds", if lab.quick { 1 } else { 2 }];
        let client = lab.converse(session, Program::IDLE, &arguments, None)?;
        let cost: Cost = client.json()?;
        let figures = [cost.client_cpu_percent.max(cost.server_cpu_percent), cost.client_memory + cost.server_memory];
        Ok(figures.map(|figure| session.proven(client.pid, Rule::Connections, figure)).to_vec())
    }
}

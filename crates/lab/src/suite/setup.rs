//! What must not get worse: connecting, and many pairs on two processors; and how soon a sleeper wakes.

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::arguments;
use super::pingpong::Durations;
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::Running;
use crate::programs::Program;
use crate::unit::Unit;
use crate::witness::Rule;

const PAIRS: usize = 32;

/// Names the suite's experiments.
pub fn add(chosen: &mut Chosen) {
    chosen.add("setup", Churn);
    chosen.add("setup", Pairs);
    chosen.add("setup", Wake { epoll: false });
    chosen.add("setup", Wake { epoll: true });
}

/// Connect, one exchange of 64 B, close.
#[derive(Debug)]
struct Churn;

#[derive(Debug, Deserialize)]
struct Rate {
    per_second: f64,
}

impl Experiment for Churn {
    fn plans(&self) -> Vec<Plan> {
        let plan = Plan::rate("connect", "connect, one exchange, close", Unit::PerSecond);
        vec![plan.target(Target::TimesBetter(0.95)).note("such connections stay on the kernel path, by design")]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let arguments = arguments!["--size", 64, "--count", lab.count(20_000), "--warm-up", lab.count(2000)];
        let client = lab.converse(session, Program::CHURN, &arguments, None)?;
        let rate: Rate = client.json()?;
        Ok(vec![session.proven(client.pid, Rule::Loaded, rate.per_second)])
    }
}

/// Many blocking ping-pongs at once, each between two processes, all of them on two processors.
#[derive(Debug)]
struct Pairs;

impl Experiment for Pairs {
    fn plans(&self) -> Vec<Plan> {
        let name = format!("{PAIRS} ping-pong pairs, 2 processors");
        vec![
            Plan::rate("pairs", name, Unit::PerSecond)
                .target(Target::TimesBetter(1.0))
                .note("round trips of all pairs together"),
        ]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let _confined = lab.processors.map(|pair| pair.confine()).transpose()?;
        let mut servers = Vec::new();
        for _ in 0..PAIRS {
            servers.push(Running::announced(&mut lab.command(session, Program::PINGPONG)?)?);
        }
        let start = monotonic_ns() + 1_000_000_000;
        let mut clients = Vec::new();
        for (_, port) in &servers {
            let arguments =
                arguments!["--port", port, "--warm-up", 50, "--start-at", start, "--seconds", lab.clock() * 2.0];
            clients.push(Running::start(lab.command(session, Program::PINGPONG)?.args(arguments))?);
        }
        let mut total = Ok(0.0);
        for client in clients {
            let client = client.finish(LIMIT)?;
            let durations: Durations = client.json()?;
            let rate = session.proven(client.pid, Rule::Bytes, durations.count / durations.seconds);
            total = total.and_then(|total| rate.map(|rate| total + rate));
        }
        for (server, _) in servers {
            server.finish(LIMIT)?;
        }
        Ok(vec![total])
    }
}

/// How long after a send a receiver that has slept for 110 ms returns.
#[derive(Debug)]
struct Wake {
    epoll: bool,
}

impl Experiment for Wake {
    fn plans(&self) -> Vec<Plan> {
        let call = if self.epoll { "epoll_wait" } else { "recv" };
        let plan = Plan::cost("wake", format!("waking a sleeper in {call}"), Unit::Nanoseconds);
        vec![plan.target(Target::KernelPlus(5000.0)).note("median of each sample, from before send to the return")]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let mode = if self.epoll { "epoll" } else { "blocking" };
        let arguments = arguments!["--mode", mode, "--count", if lab.quick { 5 } else { 15 }];
        let client = lab.converse(session, Program::WAKE, &arguments, lab.processors)?;
        let durations: Durations = client.json()?;
        Ok(vec![session.proven(client.pid, Rule::Connections, durations.p50_ns)])
    }
}

/// The clock that the helper programs use.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

//! What it costs when nothing happens: the daemon, and brokered connections.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;

use super::House;
use super::household::{AT_ONCE, Ends, Household, Means};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::programs::Program;
use crate::suite::arguments;
use crate::unit::{Unit, thousands};
use crate::witness::Rule;

/// Descriptors that a process needs besides.
const SPARE: u64 = 64;
const MIB: f64 = 1_048_576.0;

/// Names the experiments.
pub fn add(lab: &Lab, means: &Means, house: &House, chosen: &mut Chosen) {
    chosen.add("broker", Daemon { means: means.clone() });
    let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).saturating_sub(SPARE);
    let connections = lab.count(10_000).min(allowed);
    let limited = connections == allowed;
    chosen.add("broker", Idle { connections, limited, means: means.clone(), house: house.clone() });
}

/// A daemon that nobody asks.
#[derive(Debug)]
struct Daemon {
    means: Means,
}

impl Experiment for Daemon {
    fn plans(&self) -> Vec<Plan> {
        let processor = Plan::cost("rest", "underpassd at rest: CPU use", Unit::Percent).target(Target::AtMost(0.0));
        let memory = Plan::cost("rest", "underpassd at rest: memory", Unit::Bytes).target(Target::AtMost(16.0 * MIB));
        vec![processor, memory.note("resident set of its two processes, with what the second shares with the first")]
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::Underpass]
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let folder = crate::suite::apps::folder()?;
        let daemon = self.means.daemon(&folder.path().join("broker.sock"))?;
        let pids = family(daemon.pid())?;
        let total = |what: fn(u32) -> Result<u64>| pids.iter().map(|pid| what(*pid)).sum::<Result<u64>>();
        // Who has looked whether it listens is forgotten by then.
        sleep(Duration::from_secs(3));
        let before = total(processor_ns)?;
        let rest = Duration::from_secs(if lab.quick { 1 } else { 3 });
        sleep(rest);
        let used = total(processor_ns)? - before;
        let percent = 100.0 * used as f64 / rest.as_nanos() as f64;
        Ok(vec![Ok(percent), Ok(total(resident)? as f64)])
    }
}

/// A process and its children.
fn family(pid: u32) -> Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_whitespace().map(|it| it.parse().context("the number of a child"));
    std::iter::once(Ok(pid)).chain(children).collect()
}

/// The time that all threads of a process have run (`schedstat`, in nanoseconds).
fn processor_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split(' ').next().and_then(|it| it.parse::<u64>().ok()).context("schedstat")?;
    }
    Ok(sum)
}

/// Its resident set in bytes.
fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Connections of two users that have gone fast and then rest.
#[derive(Debug)]
struct Idle {
    connections: u64,
    /// Whether RLIMIT_NOFILE allowed no more.
    limited: bool,
    means: Means,
    house: House,
}

#[derive(Debug, Deserialize)]
struct Cost {
    client_cpu_percent: f64,
    server_cpu_percent: f64,
    client_memory: f64,
    server_memory: f64,
}

/// Messages on each connection, in which it meets.
const ROUNDS: u64 = 200;

impl Experiment for Idle {
    fn plans(&self) -> Vec<Plan> {
        let count = thousands(self.connections);
        let processor = Plan::cost("rest", format!("{count} idle, brokered: CPU use"), Unit::Percent)
            .target(Target::AtMost(1.0))
            .note("of one processor, by the busier of the two processes");
        let memory = Plan::cost("rest", format!("{count} idle, brokered: memory each"), Unit::Bytes)
            .target(Target::AtMost(16384.0))
            .note("growth of the proportional set (PSS) of both processes over the connections");
        let limit = format!("RLIMIT_NOFILE allows no more than {count} connections");
        [processor, memory].map(|plan| if self.limited { plan.note(limit.clone()) } else { plan }).to_vec()
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::Underpass]
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        self.house.get_or_make(|| Household::new(&self.means, lab)).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let house = self.house.get_or_make(|| Household::new(&self.means, lab))?;
        let session = house.session(session.side())?;
        let users = house.users(Ends::TwoUsers);
        let [server, client] = users.map(|user| house.helper(lab, &session, Program::IDLE, user));
        let (mut server, mut client) = (server?, client?);
        for command in [&mut server, &mut client] {
            command.envs(AT_ONCE);
        }
        let seconds = if lab.quick { 1 } else { 2 };
        let arguments = arguments!["--count", self.connections, "--warm-up", ROUNDS, "--seconds", seconds];
        let client = house.converse([&mut server, &mut client], &arguments, None)?;
        let cost: Cost = client.json()?;
        let figures = [cost.client_cpu_percent.max(cost.server_cpu_percent), cost.client_memory + cost.server_memory];
        Ok(figures.map(|figure| session.proven(client.pid, Rule::Connections, figure)).to_vec())
    }
}

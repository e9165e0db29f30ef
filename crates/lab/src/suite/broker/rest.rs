//! What it costs when nothing happens: the daemon, and brokered connections.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use super::House;
use super::household::{AT_ONCE, Ends, Means};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::programs::Program;
use crate::suite::arguments;
use crate::suite::idle::{self, Idle};
use crate::unit::Unit;

const MIB: f64 = 1_048_576.0;

/// Names the experiments.
pub fn add(lab: &Lab, house: &House, chosen: &mut Chosen) {
    chosen.add("broker", Daemon { means: house.means.clone() });
    chosen.add("broker", Brokered { idle: Idle::of(lab), house: house.clone() });
}

/// A daemon without clients.
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
        // After this, the daemon has forgotten the client that looked whether it listens.
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
struct Brokered {
    idle: Idle,
    house: House,
}

/// Messages on each connection, in which it meets.
const ROUNDS: u64 = 200;

impl Experiment for Brokered {
    fn plans(&self) -> Vec<Plan> {
        self.idle.plans_of("rest", "idle, brokered")
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::Underpass]
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        self.house.get(lab).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let house = self.house.get(lab)?;
        let session = house.session(session.side())?;
        let mut ends = house.helpers(lab, &session, Program::IDLE, Ends::TwoUsers)?;
        for command in &mut ends {
            command.envs(AT_ONCE);
        }
        let arguments = [self.idle.arguments(lab), arguments!["--warm-up", ROUNDS]].concat();
        let client = house.converse(ends.each_mut(), &arguments, None)?;
        idle::read(&session, &client)
    }
}

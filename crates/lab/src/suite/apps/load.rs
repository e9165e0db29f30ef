//! What an application is judged by under a load: requests per second, the processor time of each, and, where the load
//! generator tells it, the 99th percentile of their durations.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use crate::bench::LIMIT;
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Finished, Running, finish};
use crate::usage::Meter;
use crate::witness::Rule;

/// What ends the name of a figure of processor time.
pub const PROCESSOR_TIME: &str = ": CPU";
/// What ends the name of a 99th percentile.
pub const P99: &str = ": p99";

/// What an application under Underpass must not fall below. Equal figures differ by a few per cent from run to run.
pub const NOT_SLOWER: Target = Target::TimesBetter(0.95);

/// What the 99th percentile must not fall below where both sides bear the same load.
pub const NOT_LATER: Target = Target::TimesBetter(0.9);

/// A note for streams in one direction, of which [`Rule::Connections`] is asked.
pub const IN_PART: &str = "where the reader is slower, a part of the bytes goes through the kernel, by design";

/// What a load generator tells.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Told {
    /// Requests that were answered.
    pub count: f64,
    /// The rate of the load, in the unit of its plan: requests per second, or bytes.
    pub per_second: f64,
    /// The 99th percentile of a request's duration, in nanoseconds; an experiment has it in all samples or in none.
    pub p99_ns: Option<f64>,
}

/// The figures of a load whose rate is `rate`, in the order of [`Told::readings`]; `each` says what is counted, e.g.
/// `request`.
pub fn plans(rate: Plan, each: &str, has_p99: bool) -> Vec<Plan> {
    let processor = processor_time(&rate.group, &rate.name, each);
    let p99 = has_p99.then(|| p99(&rate.group, &rate.name));
    [rate, processor].into_iter().chain(p99).collect()
}

/// The processor time of each request of the load `name`.
pub fn processor_time(group: &str, name: &str, each: &str) -> Plan {
    let plan = Plan::duration(group, format!("{name}{PROCESSOR_TIME}")).target(NOT_SLOWER);
    plan.note(format!("processor time of one {each}, by server and load generator together"))
}

/// The 99th percentile of the load `name`.
pub fn p99(group: &str, name: &str) -> Plan {
    Plan::duration(group, format!("{name}{P99}")).note("99th percentile, as the load generator tells it")
}

/// Runs a load generator to its end: what it said, and the processor time that it and the servers took.
///
/// # Errors
/// It cannot be started, fails, or hangs.
pub fn drive(command: &mut Command, servers: &[&Running]) -> Result<(Finished, Duration)> {
    let meter = Meter::begin(servers);
    let generator = finish(command, LIMIT)?;
    let time = meter.end() + generator.processor_time;
    Ok((generator, time))
}

impl Told {
    /// The figures, if process `pid` kept the rule; `time` is the processor time of all requests together.
    pub fn readings(&self, session: &Session, pid: u32, rule: Rule, time: Duration) -> Vec<Reading> {
        let each = time.as_nanos() as f64 / self.count;
        let figures = [Some(self.per_second), Some(each), self.p99_ns];
        figures.into_iter().flatten().map(|figure| session.proven(pid, rule, figure)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::{Launcher, Side};
    use crate::unit::Unit;

    #[test]
    fn a_load_has_as_many_readings_as_plans() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let launcher = Launcher::new(file.path(), &[]).unwrap();
        let session = launcher.session(Side::Kernel).unwrap();
        for p99_ns in [None, Some(3e6)] {
            let rate = Plan::rate("server", "server, 1 client", Unit::PerSecond);
            let plans = plans(rate, "request", p99_ns.is_some());
            let told = Told { count: 4000.0, per_second: 2000.0, p99_ns };
            let readings = told.readings(&session, 1, Rule::Bytes, Duration::from_millis(1800));
            let expected = [Some(2000.0), Some(450_000.0), p99_ns];
            let expected: Vec<Reading> = expected.into_iter().flatten().map(Ok).collect();
            assert_eq!((plans.len(), &readings), (expected.len(), &expected));
            assert_eq!(plans[1].name, "server, 1 client: CPU");
        }
    }
}

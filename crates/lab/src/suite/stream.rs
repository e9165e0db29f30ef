//! Throughput in one direction, over write size, with a bare ring beside; and to a reader that is slower than the
//! writer.

use anyhow::Result;
use serde::Deserialize;

use super::apps::load;
use super::arguments;
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::processors::Pair;
use crate::programs::Program;
use crate::unit::{self, Unit};
use crate::witness::Rule;

const SIZES: [u64; 8] = [64, 256, 1024, 4096, 16384, 65536, 262_144, 1 << 20];
const QUICK_SIZES: [u64; 4] = [64, 4096, 65536, 1 << 20];
/// Name of the baseline: a ring in shared memory, one copy in and one out.
const BARE_RING: &str = "bare ring";

/// Names the suite's experiments.
pub fn add(lab: &Lab, chosen: &mut Chosen) {
    if lab.processors.is_some() {
        for size in if lab.quick { &QUICK_SIZES[..] } else { &SIZES } {
            chosen.add("stream", Stream { size: *size, pair: lab.processors });
        }
    }
    chosen.add("stream", Stream { size: 65536, pair: None });
    chosen.add("stream", SlowReader);
}

/// Names experiments of streams at these sizes, as they are on the curve over size.
pub fn add_comparisons(lab: &Lab, chosen: &mut Chosen, sizes: &[u64]) {
    if lab.processors.is_some() {
        sizes.iter().for_each(|size| chosen.add("stream", Stream { size: *size, pair: lab.processors }));
    }
}

#[derive(Debug)]
struct Stream {
    size: u64,
    /// The processors that the ends are pinned to, if they are.
    pair: Option<Pair>,
}

#[derive(Debug, Deserialize)]
struct Throughput {
    bytes_per_second: f64,
}

impl Experiment for Stream {
    fn plans(&self) -> Vec<Plan> {
        let (group, unpinned) = if self.pair.is_some() { ("stream", "") } else { ("variant", ", unpinned") };
        let name = format!("{} writes{unpinned}", unit::size(self.size));
        let mut plan = Plan::rate(group, name, Unit::BytesPerSecond).of_size(self.size);
        plan.targets = match (self.size, self.pair) {
            (_, None) => vec![],
            (64, _) => vec![Target::TimesBetter(20.0)],
            (4096, _) => vec![Target::TimesBetter(5.0)],
            (65536, _) => vec![Target::TimesBetter(3.0), Target::ShareOfBaseline(0.8)],
            (1_048_576, _) => vec![Target::TimesBetter(3.0)],
            _ => vec![],
        };
        vec![plan]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let arguments = arguments!["--size", self.size, "--seconds", lab.clock()];
        let client = lab.converse(session, Program::STREAM, &arguments, self.pair)?;
        let throughput: Throughput = client.json()?;
        Ok(vec![session.proven(client.pid, Rule::Bytes, throughput.bytes_per_second)])
    }

    fn baseline(&mut self, lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        let Some(pair) = self.pair else { return Ok(None) };
        let mut arguments = arguments!["--size", self.size, "--seconds", lab.clock()];
        arguments.extend(arguments!["--cpu", pair.first, "--peer-cpu", pair.second]);
        let throughput: Throughput = lab.alone(Program::RING, &arguments)?.json()?;
        Ok(Some((BARE_RING, throughput.bytes_per_second)))
    }
}

/// The time that the slow reader rests after each receive of up to 64 KiB.
const PAUSE_US: u32 = 200;
const MIB: f64 = 1_048_576.0;

/// A writer that is always ahead of its reader, so that it waits for room again and again.
#[derive(Debug)]
struct SlowReader;

/// What the writer prints.
#[derive(Debug, Deserialize)]
struct Bulk {
    bytes_per_second: f64,
    /// Bytes of the whole run, the warm-up included.
    total: f64,
}

impl Experiment for SlowReader {
    fn plans(&self) -> Vec<Plan> {
        let rate = Plan::rate("variant", "64 KiB writes, slow reader", Unit::BytesPerSecond).target(load::NOT_SLOWER);
        let rate = rate.note(format!("unpinned; the reader rests for {PAUSE_US} µs after each receive"));
        load::plans(rate.note(load::IN_PART), "MiB", false)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let arguments = arguments!["--size", 65536, "--seconds", lab.clock() * 4.0, "--pause", PAUSE_US];
        let (server, client) = lab.converse_both(session, Program::STREAM, &arguments, None)?;
        let bulk: Bulk = client.json()?;
        let each = (server.processor_time + client.processor_time).as_nanos() as f64 / (bulk.total / MIB);
        let reading = |figure| session.proven(client.pid, Rule::Connections, figure);
        Ok(vec![reading(bulk.bytes_per_second), reading(each)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::LIMIT;
    use crate::process::Running;
    use crate::programs::Programs;
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    /// The reader gets no processor until the writer's time is over. What the kernel has buffered comes within the
    /// warm-up then.
    #[test]
    fn a_stream_that_comes_within_the_warm_up_is_sent_again() {
        const SECONDS: f64 = 0.1;
        let programs = Programs::new().unwrap();
        let program = || Command::new(programs.path(Program::STREAM).unwrap());
        let arguments = arguments!["--size", 65536, "--seconds", SECONDS];
        let (server, port) = Running::announced(program().args(&arguments)).unwrap();
        let signal = |signal| kill_process(Pid::from_raw(server.pid() as i32).unwrap(), signal).unwrap();
        signal(Signal::STOP);
        let client = Running::start(program().args(&arguments).args(["--port", &port.to_string()])).unwrap();
        thread::sleep(Duration::from_secs(1));
        signal(Signal::CONT);
        let throughput: Throughput = client.finish(LIMIT).unwrap().json().unwrap();
        server.finish(LIMIT).unwrap();
        assert!(throughput.bytes_per_second > 0.0, "{throughput:?}");
    }
}

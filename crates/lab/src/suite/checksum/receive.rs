//! The paper's measurements of its receive path: throughput by size (figure 5), the processor's idle share at a load
//! (table 4), and where its time goes (table 5).

use std::rc::Rc;

use anyhow::{Context, Result};

use super::load::{Load, Run, Socket, Stage};
use super::path::Path;
use super::sums::Way;
use super::{ALONE, table};
use crate::bench::{Experiment, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::statistic::median;
use crate::unit::{self, Unit};

/// A run that is quoted has at least so many packets, as in the paper.
const PACKETS: u64 = 10_000;
/// The load at which processors are idle, of what the scalar way carries at most.
const LOAD: f64 = 0.7;
/// The share of the load that a way must carry for its idle share to count.
const CARRIED: f64 = 0.97;
/// How often a run is repeated of which a stage came out shorter than nothing.
const REPEATS: u32 = 3;

/// One way of many, over one socket, at one size.
#[derive(Clone, Debug)]
pub struct Receive {
    pub path: Rc<Path>,
    pub socket: Socket,
    pub size: u64,
    /// The first is judged.
    pub ways: Vec<Way>,
}

impl Receive {
    fn name(&self) -> String {
        format!("{}, {}", self.socket.name(), unit::size(self.size))
    }

    fn load(&self, lab: &Lab, way: Way, seconds: f64) -> Load {
        let (socket, size) = (self.socket, self.size as usize);
        Load { socket, way, size, seconds, packets: lab.count(PACKETS), rate: None, stages: false, beside: false }
    }

    fn run(&self, load: Load) -> Result<Run> {
        self.path.run(load).with_context(|| format!("{}, {}", self.name(), load.way.name()))
    }

    /// Each way once; the way that begins changes from sample to sample, as `turn` says.
    fn by_turns(&self, turn: usize, mut run: impl FnMut(Way) -> Result<Run>) -> Result<Vec<Run>> {
        let count = self.ways.len();
        let mut runs = vec![None; count];
        for place in (0..count).map(|at| (at + turn) % count) {
            runs[place] = Some(run(self.ways[place])?);
        }
        Ok(runs.into_iter().flatten().collect())
    }
}

/// Measures how fast packets go at most.
#[derive(Debug)]
pub struct Throughput {
    pub receive: Receive,
    pub turn: usize,
    /// The figure without sums in the last sample.
    pub skip: Option<f64>,
}

impl Experiment for Throughput {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = |way: &Way| {
            let name = format!("{}, {}", self.receive.name(), way.name());
            Plan::rate(&table::throughput(self.receive.socket, *way), name, Unit::BytesPerSecond)
                .of_size(self.receive.size)
        };
        let mut plans: Vec<Plan> = self.receive.ways.iter().map(plan).collect();
        plans[0] = plans[0].clone().target(Target::ShareOfBaseline(0.97));
        plans
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        self.turn += 1;
        let runs =
            self.receive.by_turns(self.turn, |way| self.receive.run(self.receive.load(lab, way, lab.clock() / 2.0)))?;
        self.skip = runs.get(1).map(|run| run.octets_per_second);
        Ok(runs.iter().map(|run| Ok(run.octets_per_second)).collect())
    }

    fn baseline(&mut self, _: &Lab) -> Result<Option<(&'static str, f64)>> {
        Ok(self.skip.map(|skip| (Way::Skip.name(), skip)))
    }
}

/// Measures how idle the processor is at a load that the scalar way carries with ease, the same for all ways.
#[derive(Debug)]
pub struct Idle {
    pub receive: Receive,
    pub turn: usize,
    /// Octets in a second.
    pub rate: f64,
    /// The scalar way's figure in the last sample.
    pub scalar: Option<f64>,
}

impl Idle {
    /// Whether the first way is judged by the scalar one.
    fn is_judged(&self) -> bool {
        self.receive.ways.first().is_some_and(|way| way.is_gpu())
    }
}

impl Experiment for Idle {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let name = |what: &str| format!("{}, {what}: idle", self.receive.name());
        let plan = |way: &Way| {
            let plan = Plan::rate(&table::idle(self.receive.socket, *way), name(way.name()), Unit::Percent);
            plan.of_size(self.receive.size)
        };
        let mut plans: Vec<Plan> = self.receive.ways.iter().map(plan).collect();
        if self.is_judged() {
            plans[0] = plans[0].clone().target(Target::BaselinePlus(20.0));
        }
        let load = Plan::rate("load", format!("{}: load", self.receive.name()), Unit::BytesPerSecond);
        let share = LOAD * 100.0;
        plans.push(load.of_size(self.receive.size).note(format!(
            "{share:.0} % of what the scalar way carries, at which all ways' idle shares of the receiver's processor \
             are taken"
        )));
        plans
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        let load = self.receive.load(lab, Way::Scalar, lab.clock() / 2.0);
        let rates: Vec<f64> = (0..3).map(|_| Ok(self.receive.run(load)?.octets_per_second)).collect::<Result<_>>()?;
        self.rate = LOAD * median(&rates).context("no rate")?;
        Ok(())
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        self.turn += 1;
        let runs = self.receive.by_turns(self.turn, |way| {
            self.receive.run(Load { rate: Some(self.rate), ..self.receive.load(lab, way, 2.0 * lab.clock()) })
        })?;
        let scalar = self.receive.ways.iter().position(|way| *way == Way::Scalar);
        self.scalar = scalar.map(|at| runs[at].idle);
        let reading = |run: &Run| {
            let carried = run.octets_per_second / self.rate;
            if carried >= CARRIED {
                Ok(run.idle)
            } else {
                Err(format!("only {:.1} % of the load was carried", carried * 100.0))
            }
        };
        let mut readings: Vec<Reading> = runs.iter().map(reading).collect();
        readings.push(Ok(self.rate));
        Ok(readings)
    }

    fn baseline(&mut self, _: &Lab) -> Result<Option<(&'static str, f64)>> {
        Ok(self.scalar.filter(|_| self.is_judged()).map(|idle| (Way::Scalar.name(), idle)))
    }
}

/// What each stage takes of the receiver's processor, by itself and while something else computes there.
#[derive(Debug)]
pub struct Stages {
    pub receive: Receive,
    pub turn: usize,
    pub beside: bool,
}

impl Stages {
    fn suffix(&self) -> &'static str {
        if self.beside { ", under other load" } else { "" }
    }
}

impl Experiment for Stages {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        let Receive { socket, size, .. } = self.receive;
        for &way in &self.receive.ways {
            let name = format!("{}, {}{}", self.receive.name(), way.name(), self.suffix());
            let plan = |stage: Stage| {
                let name = format!("{name}: {}", stage.name(socket, way));
                Plan::duration(&table::stage(socket, way, stage, self.beside), name).of_size(size)
            };
            plans.extend(Stage::of(way).iter().map(|stage| plan(*stage)));
        }
        plans
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        self.turn += 1;
        let runs = self.receive.by_turns(self.turn, |way| {
            let load = self.receive.load(lab, way, lab.clock() / 2.0);
            let load = Load { stages: true, beside: self.beside, ..load };
            let mut run = self.receive.run(load)?;
            // The clock was dearer when its cost was taken than in the run, so that all stages are too short.
            for _ in 0..REPEATS {
                if run.stages.iter().all(|ns| *ns >= 0.0) {
                    break;
                }
                run = self.receive.run(load)?;
            }
            Ok(run)
        })?;
        let reading = |ns: f64| {
            if ns < 0.0 { Err(format!("a stage took {ns:.0} ns, less the clock's own time")) } else { Ok(ns) }
        };
        let stages =
            |(way, run): (&Way, Run)| Stage::of(*way).iter().map(move |stage| reading(run.stages[*stage as usize]));
        Ok(self.receive.ways.iter().zip(runs).flat_map(stages).collect())
    }
}

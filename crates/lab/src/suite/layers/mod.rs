//! The protocol engine: the same transport layer once, twice and three times on a looped-back link, with kinds of work
//! on the user data in every layer, in line and by a thread for each layer. The experiment, and the way to count, are
//! those of Sato, Kato and Suzuki ("Layer-parallel protocol processing", HIPPI and TP4).
//!
//! One stack sends to itself: the link's output is its input, and copies each packet as a device does. One processor's
//! work is thus both ends' work.

mod hop;
mod tower;
mod user;
mod work;

use anyhow::Result;

use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::unit::{self, Unit, counted};
use tower::Tower;

pub use tower::Scheduler;
pub use work::Work;

const SIZES: [u64; 6] = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20];
const QUICK_SIZES: [u64; 3] = [1 << 10, 1 << 16, 1 << 20];
/// From this size of a message on, the layers themselves should cost next to nothing.
const LARGE: u64 = 1 << 16;
/// Transport layers of the highest tower.
pub const HIGHEST: u32 = 3;

/// Name of the baseline without a layer.
pub const LINK_ALONE: &str = "link alone";

/// Names the suite's experiments.
pub fn add(lab: &Lab, chosen: &mut Chosen) {
    let sizes = if lab.quick { &QUICK_SIZES[..] } else { &SIZES };
    for scheduler in Scheduler::ALL {
        for layers in 1..=HIGHEST {
            for &size in sizes {
                chosen.add("layers", Throughput::of(Tower { layers, size, work: Work::None, scheduler }));
            }
        }
        for work in Work::ALL.into_iter().filter(|work| *work != Work::None) {
            for &size in sizes {
                chosen.add("layers", Throughput::of(Tower { layers: HIGHEST, size, work, scheduler }));
            }
        }
    }
    for scheduler in Scheduler::ALL {
        // The link alone is one thread's work.
        for layers in if scheduler == Scheduler::InLine { 0..=HIGHEST } else { 1..=HIGHEST } {
            chosen.add("layers", Passage(Tower { layers, size: 1 << 10, work: Work::None, scheduler }));
        }
    }
    for (sums, batch) in [(false, 32), (true, 32), (false, 1)] {
        chosen.add("layers", PerTpdu { sums, batch });
    }
    chosen.add("layers", hop::Hop { pair: lab.processors });
    chosen.add("layers", hop::Batched { pair: lab.processors });
}

/// Names experiments that run the same tower by each scheduler in turn, at these sizes: to compare the schedulers.
pub fn add_comparisons(chosen: &mut Chosen, sizes: &[u64]) {
    let unworked = (1..HIGHEST).map(|layers| (layers, Work::None));
    for (layers, work) in unworked.chain(Work::ALL.map(|work| (HIGHEST, work))) {
        for &size in sizes {
            chosen.add("layers", Comparison { layers, work, size });
        }
    }
}

/// The group of the measurements of so many layers: a curve over size.
pub fn curve(layers: u32, work: Work, scheduler: Scheduler) -> String {
    format!("{work}, {scheduler}, {layers}")
}

/// What has nothing to do with sockets has one side.
const ALONE: &[Side] = &[Side::Underpass];

/// Octets of user data per second, as the receiver's uppermost layer sees them.
#[derive(Debug)]
struct Throughput {
    tower: Tower,
    /// What it is set against.
    beside: (&'static str, Tower),
}

impl Throughput {
    fn of(tower: Tower) -> Throughput {
        let link = Tower { layers: 0, work: Work::None, scheduler: Scheduler::InLine, ..tower };
        let beside = match (tower.work, tower.scheduler, tower.layers) {
            (Work::None, Scheduler::InLine, 2 | HIGHEST) => ("1 layer", Tower { layers: 1, ..tower }),
            _ => (LINK_ALONE, link),
        };
        Throughput { tower, beside }
    }

    /// Whether the number of processors that were used is measured, too.
    fn tells_use(&self) -> bool {
        self.tower.size == LARGE
    }
}

impl Experiment for Throughput {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let Tower { layers, size, work, scheduler } = self.tower;
        let what = format!("{}, {layers} × {work}{}", unit::size(size), scheduler.suffix());
        let group = curve(layers, work, scheduler);
        let mut plan = Plan::rate(&group, what.clone(), Unit::BytesPerSecond).of_size(size);
        if work == Work::None && scheduler == Scheduler::InLine && size >= LARGE && layers != 2 {
            plan = plan.target(Target::ShareOfBaseline(0.9));
        }
        let mut plans = vec![self.tower.placement().into_iter().fold(plan, Plan::note)];
        if self.tells_use() {
            let note = "processor time over time: 100 % is one processor";
            plans.push(Plan::cost("use", format!("{what}: CPU"), Unit::Percent).note(note));
        }
        plans
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let run = self.tower.run(lab.clock() / 2.0)?;
        let mut readings = vec![Ok(run.octets_per_second)];
        if self.tells_use() {
            readings.push(Ok(run.processors * 100.0));
        }
        Ok(readings)
    }

    fn baseline(&mut self, lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        let (name, tower) = &self.beside;
        Ok(Some((name, tower.run(lab.clock() / 2.0)?.octets_per_second)))
    }
}

/// One tower by each scheduler.
#[derive(Debug)]
struct Comparison {
    layers: u32,
    work: Work,
    size: u64,
}

impl Comparison {
    fn towers(&self) -> [Tower; Scheduler::ALL.len()] {
        let Comparison { layers, work, size } = *self;
        Scheduler::ALL.map(|scheduler| Tower { layers, size, work, scheduler })
    }
}

impl Experiment for Comparison {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = |Tower { layers, size, work, scheduler }: Tower| {
            let name = format!("{}, {layers} × {work}{}", unit::size(size), scheduler.suffix());
            Plan::rate(&curve(layers, work, scheduler), name, Unit::BytesPerSecond).of_size(size)
        };
        self.towers().map(plan).into()
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        self.towers().iter().map(|tower| Ok(Ok(tower.run(lab.clock() / 2.0)?.octets_per_second))).collect()
    }
}

/// How long one message takes from the user down, over the link, and up to the user again.
#[derive(Debug)]
struct Passage(Tower);

impl Experiment for Passage {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let Tower { layers, scheduler, .. } = self.0;
        let through = if layers == 0 { "the link alone".to_string() } else { counted(layers, "layer") };
        let plan = Plan::duration("passage", format!("1 KiB through {through}{}", scheduler.suffix()));
        let plan = plan.note("down, over the link and up; the next one leaves then. Each layer more is two hops more");
        vec![self.0.placement().into_iter().fold(plan, Plan::note)]
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        Ok(vec![Ok(self.0.passage(lab.count(20_000))?)])
    }
}

/// Processor time of a TPDU of 1,408 octets: two stacks of one layer in line, over a link that passes buffers.
#[derive(Debug)]
struct PerTpdu {
    sums: bool,
    batch: usize,
}

impl Experiment for PerTpdu {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let sums = if self.sums { "SIMD checksum" } else { "no checksum" };
        let batch = if self.batch == 1 { ", singly" } else { "" };
        let plan = Plan::cost("tpdu", format!("TPDU of 1,408 B, {sums}{batch}"), Unit::Nanoseconds);
        let plan = plan.note(
            "class 4; processor time of send, receive and the share of an acknowledgement, both ends on one processor",
        );
        vec![match (self.sums, self.batch) {
            (false, 1) => plan.note("against batches of 32, which go through each layer together"),
            (false, _) => plan.target(Target::AtMost(150.0)),
            (true, _) => plan.target(Target::WithinBaseline(1.5)),
        }]
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        Ok(vec![Ok(tower::per_tpdu(self.sums, self.batch, lab.count(1_000_000))?)])
    }

    fn baseline(&mut self, lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        let compared = self.sums || self.batch == 1;
        let without = || tower::per_tpdu(false, 32, lab.count(1_000_000));
        compared.then(|| Ok(("no checksum", without()?))).transpose()
    }
}

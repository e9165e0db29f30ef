//! What a GPU sums by itself, without a receive path: at which rate, and from which size of batch on it pays, as
//! measured and as predicted.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::cold::Cold;
use super::load::BATCH;
use super::sums::Way;
use super::{ALONE, table};
use crate::bench::{Experiment, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::statistic::median;
use crate::unit::{self, Unit};
use underpass_checksum::batch::Algorithm;
use underpass_checksum::gpu::Gpu;

/// Packets of a batch.
const BATCHES: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];
const LARGEST: usize = BATCHES[BATCHES.len() - 1];
/// The size at which the bus is judged: a jumbo frame's.
const JUMBO: u64 = 9000;
/// Times that a batch is sent by itself for one sample.
const REPEATS: usize = 5;

/// A GPU, and packets for it, which experiments share.
#[derive(Clone, Debug)]
pub struct Offload {
    pub gpu: Rc<Gpu>,
    pub cold: Rc<RefCell<Cold>>,
    pub size: u64,
}

impl Offload {
    fn rate(&self, lab: &Lab, way: Way, algorithm: Algorithm) -> Result<f64> {
        let mut cold = self.cold.borrow_mut();
        let mut sums = cold.sums(way, algorithm, &self.gpu, BATCH)?;
        cold.rate(&mut sums, self.size as usize, lab.clock() / 4.0)
    }
}

/// Octets that are summed in a second, in batches of 1,024, by the GPU in either way and by the processor.
#[derive(Debug)]
pub struct Rate {
    pub offload: Offload,
    pub algorithm: Algorithm,
}

impl Rate {
    const WAYS: [Way; 4] = [Way::GpuUmem, Way::GpuStaged, Way::Simd, Way::Scalar];
}

impl Experiment for Rate {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let Offload { size, .. } = self.offload;
        let plan = |way: Way| {
            let name = format!("{:?} sums out of cold memory, {}, {}", self.algorithm, unit::size(size), way.name());
            let group =
                if self.algorithm == Algorithm::Internet { table::cold(way) } else { "cold, Fletcher".to_string() };
            Plan::rate(&group, name, Unit::BytesPerSecond).of_size(size)
        };
        let mut plans = Vec::from(Rate::WAYS.map(plan));
        if size == JUMBO && self.algorithm == Algorithm::Internet {
            plans[0] = plans[0].clone().target(Target::ShareOfBaseline(0.85));
        }
        plans
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        Rate::WAYS.iter().map(|way| Ok(Ok(self.offload.rate(lab, *way, self.algorithm)?))).collect()
    }

    fn baseline(&mut self, _: &Lab) -> Result<Option<(&'static str, f64)>> {
        Ok(Some(("host to device", self.offload.gpu.host_to_device_rate()?)))
    }
}

/// From how many packets on the GPU is done sooner than the processor, and from how many on a batch for the GPU takes
/// less of the processor's time.
#[derive(Debug)]
pub struct BreakEven {
    pub offload: Offload,
}

/// Batches by themselves, in ns, by [`BATCHES`]: how long each takes, and the processor's part of it.
struct Alone([[f64; 2]; BATCHES.len()]);

impl Alone {
    fn measure(offload: &Offload, way: Way) -> Result<Alone> {
        let mut cold = offload.cold.borrow_mut();
        let mut sums = cold.sums(way, Algorithm::Internet, &offload.gpu, LARGEST)?;
        let mut all = [[0.0; 2]; BATCHES.len()];
        for (batch, place) in BATCHES.iter().zip(&mut all) {
            let runs: Vec<[f64; 2]> =
                (0..REPEATS).map(|_| cold.alone(&mut sums, offload.size as usize, *batch)).collect::<Result<_>>()?;
            let of = |which: usize| median(&runs.iter().map(|run| run[which]).collect::<Vec<f64>>());
            *place = [of(0).context("no run")?, of(1).context("no run")?];
        }
        Ok(Alone(all))
    }

    /// The batch from which on the GPU takes less than `packet` ns for each packet.
    fn measured(&self, which: usize, packet: f64) -> Reading {
        let loses = |at: &usize| self.0[*at][which] >= packet * BATCHES[*at] as f64;
        let first = (0..BATCHES.len()).rev().find(loses).map_or(0, |last| last + 1);
        let found = BATCHES.get(first).map(|batch| *batch as f64);
        found.ok_or_else(|| format!("not with {} packets", unit::thousands(LARGEST as u64)))
    }

    /// The batch from which on the GPU takes less than `packet` ns for each packet, if a batch takes as long as one
    /// packet and `each` ns for every further one.
    fn predicted(&self, which: usize, packet: f64, each: f64) -> Reading {
        if packet <= each {
            return Err("with no number of packets".to_string());
        }
        Ok(((self.0[0][which] - each).max(0.0) / (packet - each)).ceil().max(1.0))
    }

    /// The processor's time for each packet of a batch.
    fn each(&self) -> f64 {
        let (Some(at), [_, first]) = (BATCHES.iter().position(|it| *it == BATCH), self.0[0]) else { return 0.0 };
        (self.0[at][1] - first).max(0.0) / (BATCH - 1) as f64
    }
}

impl BreakEven {
    const AGAINST: [Way; 2] = [Way::Simd, Way::Scalar];
    const WHAT: [&str; 2] = ["sooner done", "less processor time"];
}

impl Experiment for BreakEven {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        for way in Way::GPU {
            for (what, against) in BreakEven::WHAT.iter().flat_map(|it| BreakEven::AGAINST.map(|way| (it, way))) {
                for how in ["measured", "predicted"] {
                    let (size, way, against) = (unit::size(self.offload.size), way.name(), against.name());
                    let name = format!("{way}, {size}, {what} than {against} from so many packets on, {how}");
                    plans.push(Plan::cost("break-even", name, Unit::Count).of_size(self.offload.size));
                }
            }
        }
        plans
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let (octets, mut readings) = (self.offload.size as f64, Vec::new());
        let bus = octets * 1e9 / self.offload.gpu.host_to_device_rate()?;
        let mut packet = [0.0; 2];
        for (packet, way) in packet.iter_mut().zip(BreakEven::AGAINST) {
            *packet = octets * 1e9 / self.offload.rate(lab, way, Algorithm::Internet)?;
        }
        for way in Way::GPU {
            let alone = Alone::measure(&self.offload, way)?;
            // What goes over the bus takes its time; what the processor does for a packet, its own.
            for (which, each) in [bus, alone.each()].into_iter().enumerate() {
                for packet in packet {
                    readings.push(alone.measured(which, packet));
                    readings.push(alone.predicted(which, packet, each));
                }
            }
        }
        Ok(readings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fixed cost, and one for each packet.
    fn line(fixed: f64, each: f64) -> Alone {
        Alone(BATCHES.map(|batch| [fixed + each * batch as f64; 2]))
    }

    #[test]
    fn a_batch_pays_when_its_fixed_cost_is_saved() {
        let alone = line(10_000.0, 10.0);
        // 90 ns are saved with each packet: 111.1 packets.
        assert_eq!(alone.measured(0, 100.0), Ok(256.0));
        assert_eq!(alone.predicted(0, 100.0, 10.0), Ok(112.0));
        assert!((alone.each() - 10.0).abs() < 1e-9);
        assert!(alone.measured(1, 10.0).is_err() && alone.predicted(1, 10.0, 10.0).is_err(), "it never pays");
        assert!(alone.measured(1, 12.0).is_err(), "not with as many as were measured");
        assert_eq!(line(1.0, 0.0).measured(0, 100.0), Ok(1.0), "it always pays");
        assert_eq!(line(1.0, 0.0).predicted(0, 100.0, 0.0), Ok(1.0));
    }

    #[test]
    fn one_batch_that_pays_among_others_that_do_not_is_chance() {
        let mut alone = line(10_000.0, 10.0);
        alone.0[1][0] = 0.0;
        assert_eq!(alone.measured(0, 100.0), Ok(256.0));
    }
}

//! What a batch costs the processor on either way, by its size, and which way the next of that size goes.
//!
//! A size is a power of two of octets. The GPU gets those at which it takes a fifth less of the processor's time, and
//! keeps them until it takes more: what lies between changes nothing. One batch in 64 goes the other way, where that is
//! near to paying, so that what has changed since is noticed.

use std::time::Duration;

/// What the GPU has to be below, of the processor's own time, to get a size: a fifth less.
const MARGIN: f64 = 0.8;
/// One batch in so many of its size goes the way that seems dearer.
const TRIAL: u32 = 64;
/// How much of an average the last sample is: an eighth.
const WEIGHT: f64 = 0.125;
/// A cost below this is a clock's that stood still.
const LEAST: f64 = 1e-13;

/// What has been learnt of every size.
#[derive(Debug)]
pub(super) struct Costs {
    sizes: [Size; usize::BITS as usize],
    /// Seconds for an octet that is put into a batch, which nobody measures by the packet.
    submission: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    gpu: Cost,
    processor: Cost,
    is_gpus: bool,
    batches: u32,
}

/// Seconds of the processor for an octet, on an average that forgets; none before the first sample.
#[derive(Clone, Copy, Debug, Default)]
struct Cost(Option<f64>);

impl Costs {
    /// The GPU has nothing yet.
    pub(super) fn new() -> Costs {
        Costs { sizes: [Size::default(); _], submission: 0.0 }
    }

    /// Takes in what a batch of so many octets cost on both ways, and gives the GPU its size and those above it if that
    /// is cheaper. Says whether it is. `submission` is the part of the GPU's way in which packets are put into the
    /// batch.
    pub(super) fn calibrate(
        &mut self,
        octets: usize,
        gpu: Duration,
        submission: Duration,
        processor: Duration,
    ) -> bool {
        let of_octet = |time: Duration| time.as_secs_f64() / octets.max(1) as f64;
        self.submission = of_octet(submission);
        let (at, size) = self.size(octets);
        size.gpu = Cost::default().and(of_octet(gpu));
        size.processor = Cost::default().and(of_octet(processor));
        let wins = size.gpu_is_below(MARGIN);
        if wins {
            self.sizes[at..].iter_mut().for_each(|size| size.is_gpus = true);
        }
        wins
    }

    /// Whether batches of so many octets are the GPU's.
    pub(super) fn is_gpus(&self, octets: usize) -> bool {
        self.sizes[place(octets)].is_gpus
    }

    /// Octets from which on batches are the GPU's, if any are.
    pub(super) fn least(&self) -> Option<usize> {
        self.sizes.iter().position(|size| size.is_gpus).map(|at| 1 << at)
    }

    /// Whether this batch goes to the GPU: as those of its size do, or the other way to try it.
    pub(super) fn choose(&mut self, octets: usize) -> bool {
        let is_next = self.sizes.get(place(octets) + 1).is_some_and(|larger| larger.is_gpus);
        let (_, size) = self.size(octets);
        size.batches = size.batches.wrapping_add(1);
        let may_be_tried = size.is_gpus || size.gpu.0.is_some() || is_next;
        size.is_gpus ^ (may_be_tried && size.batches.is_multiple_of(TRIAL))
    }

    /// Takes in what a batch has cost the processor that went to the GPU, from when it was sent, waiting left out.
    pub(super) fn learn_gpu(&mut self, octets: usize, spent: Duration) {
        let sample = spent.as_secs_f64() / octets.max(1) as f64 + self.submission;
        let (_, size) = self.size(octets);
        size.gpu = size.gpu.and(sample);
        size.decide();
    }

    /// Takes in what the sums of a batch have cost the processor.
    pub(super) fn learn_processor(&mut self, octets: usize, spent: Duration) {
        let (_, size) = self.size(octets);
        size.processor = size.processor.and(spent.as_secs_f64() / octets.max(1) as f64);
        size.decide();
    }

    fn size(&mut self, octets: usize) -> (usize, &mut Size) {
        let at = place(octets);
        (at, &mut self.sizes[at])
    }
}

fn place(octets: usize) -> usize {
    octets.max(1).ilog2() as usize
}

impl Size {
    fn decide(&mut self) {
        if self.gpu.0.is_some() && self.processor.0.is_some() {
            self.is_gpus = self.gpu_is_below(if self.is_gpus { 1.0 } else { MARGIN });
        }
    }

    fn gpu_is_below(&self, share: f64) -> bool {
        self.gpu.0.zip(self.processor.0).is_some_and(|(gpu, processor)| gpu < processor * share)
    }
}

impl Cost {
    /// With one more sample. A sample that is much longer was interrupted, and counts as twice the average at most.
    fn and(self, sample: f64) -> Cost {
        let sample = sample.max(LEAST);
        Cost(Some(self.0.map_or(sample, |known| known + (sample.min(2.0 * known) - known) * WEIGHT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OCTETS: usize = 4096;

    fn micros(number: f64) -> Duration {
        Duration::from_secs_f64(number / 1e6)
    }

    /// The GPU takes 7 µs where the processor takes 10, from these octets on; half of them are the processor's.
    fn calibrated() -> Costs {
        let mut costs = Costs::new();
        assert!(costs.calibrate(OCTETS, micros(7.0), micros(1.0), micros(10.0)));
        assert!(!costs.calibrate(OCTETS / 2, micros(4.5), micros(0.5), micros(5.0)));
        assert_eq!(costs.least(), Some(OCTETS));
        costs
    }

    #[test]
    fn larger_sizes_than_were_measured_are_as_the_largest() {
        let costs = calibrated();
        for (octets, is_gpus) in [(0, false), (1, false), (4095, false), (4096, true), (8191, true), (usize::MAX, true)]
        {
            assert_eq!(costs.is_gpus(octets), is_gpus, "{octets} octets");
        }
    }

    #[test]
    fn what_lies_between_the_margins_changes_nothing() {
        let mut costs = calibrated();
        for (gpu, is_gpus) in [(9.0, true), (11.0, false), (9.0, false), (7.0, true), (9.5, true)] {
            // A microsecond of it is the submission. So many samples that the average is theirs.
            (0..100).for_each(|_| costs.learn_gpu(OCTETS, micros(gpu - 1.0)));
            assert_eq!(costs.is_gpus(OCTETS), is_gpus, "{gpu} µs");
        }
        // The processor has become slower, then faster.
        (0..100).for_each(|_| costs.learn_processor(OCTETS, micros(20.0)));
        assert!(costs.is_gpus(OCTETS));
        (0..100).for_each(|_| costs.learn_processor(OCTETS, micros(9.0)));
        assert!(!costs.is_gpus(OCTETS));
    }

    #[test]
    fn an_interruption_decides_nothing() {
        let mut costs = calibrated();
        costs.learn_gpu(OCTETS, micros(4000.0));
        assert!(costs.is_gpus(OCTETS));
        costs.learn_processor(OCTETS / 2, micros(4000.0));
        assert!(!costs.is_gpus(OCTETS / 2));
    }

    #[test]
    fn a_clock_that_stands_still_is_forgotten() {
        let mut costs = calibrated();
        costs.learn_gpu(2 * OCTETS, micros(5.0));
        costs.learn_processor(2 * OCTETS, Duration::ZERO);
        assert!(!costs.is_gpus(2 * OCTETS));
        (0..1000).for_each(|_| costs.learn_processor(2 * OCTETS, micros(20.0)));
        assert!(costs.is_gpus(2 * OCTETS));
    }

    /// Only next to where the GPU pays, or once did.
    #[test]
    fn one_batch_in_64_is_tried_the_other_way() {
        let mut costs = calibrated();
        let mut others = |octets, usual| (0..640).filter(|_| costs.choose(octets) != usual).count();
        assert_eq!(others(OCTETS, true), 10);
        assert_eq!(others(16 * OCTETS, true), 10);
        assert_eq!(others(OCTETS / 2, false), 10);
        assert_eq!(others(OCTETS / 4, false), 0);
        assert_eq!(others(0, false), 0);
        // Once the GPU has this size too, the next is tried.
        (0..100).for_each(|_| costs.learn_gpu(OCTETS / 2, micros(2.0)));
        assert_eq!(costs.least(), Some(OCTETS / 2));
        assert_eq!((0..640).filter(|_| costs.choose(OCTETS / 4)).count(), 10);
        // What it has lost is tried further on, although the next is lost too.
        for octets in [OCTETS, 2 * OCTETS] {
            costs.learn_processor(octets, micros(10.0));
            (0..100).for_each(|_| costs.learn_gpu(octets, micros(50.0)));
        }
        assert_eq!((0..640).filter(|_| costs.choose(OCTETS)).count(), 10);
    }
}

//! How many pieces are worth copying, by size: measured while packets go.

use std::array;
use std::time::Duration;

/// What can be chosen: so many pieces.
const WAYS: [usize; 6] = [0, 1, 2, 3, 4, usize::MAX];
/// Samples of each way, of which the median counts.
const SAMPLES: usize = 9;
/// Batches from one calibration to the next, of which a calibration takes 1.3 %.
const PERIOD: u32 = 4096;
/// Another way has to be better than the present one by this, in per cent.
const MARGIN: u64 = 2;
/// Classes of sizes: four to a power of two, up to 64 KiB and more.
const CLASSES: usize = 4 * 17;

/// The class of a packet of so many octets.
pub fn class(octets: usize) -> usize {
    let octets = octets.max(4);
    let power = octets.ilog2();
    let quarter = octets >> (power - 2) & 3;
    (4 * power as usize + quarter).min(CLASSES - 1)
}

#[derive(Debug)]
pub struct Choice {
    classes: [Class; CLASSES],
}

/// What is known of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// The way that is gone.
    best: u8,
    /// Which sample of which way is taken next: `number % WAYS.len()` is the way. After the last sample, batches are
    /// counted.
    step: u32,
    /// Nanoseconds for a packet.
    samples: [[u32; SAMPLES]; WAYS.len()],
}

/// Samples of a calibration.
const CALIBRATION: u32 = (SAMPLES * WAYS.len()) as u32;

impl Default for Choice {
    fn default() -> Choice {
        Choice { classes: array::from_fn(|_| Class::default()) }
    }
}

impl Choice {
    /// Whether the next batch of the class is to be timed.
    pub fn tries(&self, class: usize) -> bool {
        self.classes[class].step < CALIBRATION
    }

    /// How many pieces to copy of the next packet.
    pub fn pieces(&self, class: usize) -> usize {
        let class = &self.classes[class];
        // By turns, so that what disturbs the machine disturbs all ways alike.
        WAYS[if class.step < CALIBRATION { class.step as usize % WAYS.len() } else { class.best.into() }]
    }

    /// A batch of so many packets has gone, and took so long if it was timed.
    pub fn note(&mut self, class: usize, packets: u32, took: Option<Duration>) {
        let class = &mut self.classes[class];
        if let (Some(took), true) = (took, class.step < CALIBRATION) {
            let (way, sample) = (class.step as usize % WAYS.len(), class.step as usize / WAYS.len());
            class.samples[way][sample] = (took.as_nanos() / u128::from(packets.max(1))).min(u32::MAX.into()) as u32;
            class.step += 1;
            if class.step == CALIBRATION {
                class.choose();
            }
        } else if class.step >= CALIBRATION {
            class.step += 1;
            if class.step >= PERIOD {
                class.step = 0;
            }
        }
    }
}

impl Class {
    fn choose(&mut self) {
        let medians = self.samples.map(|mut samples| {
            samples.sort_unstable();
            u64::from(samples[SAMPLES / 2])
        });
        let present = medians[usize::from(self.best)];
        // The first of equals, which copies least.
        for (way, median) in medians.iter().enumerate() {
            let best = medians[usize::from(self.best)];
            if *median < best && median * 100 < present * (100 - MARGIN) {
                self.best = way as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends batches whose packets cost so much by each way; how many went by which.
    fn run(choice: &mut Choice, class: usize, batches: usize, costs: [u64; WAYS.len()]) -> [usize; WAYS.len()] {
        let mut counts = [0; WAYS.len()];
        for batch in 0..batches {
            let pieces = choice.pieces(class);
            let way = WAYS.iter().position(|it| *it == pieces).unwrap();
            counts[way] += 1;
            // Now and then something else has the processor.
            let disturbed = if batch % 7 == 0 { 50_000 } else { 0 };
            let took = Duration::from_nanos(32 * costs[way] + disturbed);
            let tries = choice.tries(class);
            choice.note(class, 32, tries.then_some(took));
        }
        counts
    }

    #[test]
    fn the_cheapest_way_is_gone_and_the_others_are_tried_seldom() {
        for best in 0..WAYS.len() {
            let mut choice = Choice::default();
            let costs = array::from_fn(|way| if way == best { 900 } else { 1000 });
            let counts = run(&mut choice, 20, 100_000, costs);
            assert!(counts[best] > 98_000, "{counts:?}");
        }
    }

    #[test]
    fn another_way_is_gone_once_it_is_cheaper() {
        let mut choice = Choice::default();
        run(&mut choice, 20, 10_000, [500, 600, 700, 800, 900, 1000]);
        let counts = run(&mut choice, 20, 100_000, [1000, 900, 800, 700, 600, 500]);
        assert!(counts[5] > 90_000, "{counts:?}");
        // Another size is not decided by that.
        assert!(choice.tries(21));
    }

    #[test]
    fn a_difference_that_says_nothing_changes_nothing() {
        let mut choice = Choice::default();
        let counts = run(&mut choice, 20, 100_000, [1000, 995, 995, 995, 995, 990]);
        assert!(counts[0] > 98_000, "{counts:?}");
    }

    #[test]
    fn classes_follow_sizes() {
        let classes: Vec<usize> = [0, 7, 8, 1024, 1279, 1280, 65_535, 1 << 20].into_iter().map(class).collect();
        assert_eq!(classes, [8, 11, 12, 40, 40, 41, 63, 67]);
    }
}

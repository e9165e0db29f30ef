//! How sure a median is: intervals by the bootstrap (B. Efron, "Bootstrap methods: another look at the jackknife",
//! 1979).
//!
//! Samples are drawn anew from the samples, with repetition, and the median is taken each time. The interval is the
//! middle 95 % of these medians (the percentile method). Of five samples it spans nearly all of them: it is honest, not
//! narrow. The draws come from a fixed seed, so that the same samples always have the same interval.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::statistic::median_in_place;

/// Share of the medians that lie in an interval.
pub const CONFIDENCE: f64 = 0.95;
/// Draws for one interval.
const DRAWS: usize = 2000;
const SEED: u64 = 0x0075_6e64_6572;
/// Of how many numbers of samples the draws are kept, 16 KB each. A crafted record may have ten thousand such numbers.
const MOST_KNOWN: usize = 100;

/// Where a figure lies with a confidence of 95 %, in the figure's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Whether it has this value.
    pub fn contains(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The interval of the median; `None` of fewer than two samples, which say nothing of how far they scatter.
pub fn of_median(samples: &[f64]) -> Option<Interval> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = |[one, other]: &[u32; 2]| (sorted[*one as usize] + sorted[*other as usize]) / 2.0;
    (samples.len() > 1).then(|| middle(ranks(samples.len()).iter().map(median).collect()))?
}

/// Of each draw from so many sorted samples the two whose mean is its median, the draws with the least first. A report
/// has tens of thousands of figures with as many samples each, and all have the same draws.
fn ranks(count: usize) -> Rc<[[u32; 2]]> {
    thread_local! {
        static KNOWN: RefCell<BTreeMap<usize, Rc<[[u32; 2]]>>> = const { RefCell::new(BTreeMap::new()) };
    }
    if let Some(known) = KNOWN.with_borrow(|known| known.get(&count).cloned()) {
        return known;
    }
    let (mut rng, mut drawn) = (Rng::with_seed(SEED), vec![0; count]);
    let mut draw = || {
        drawn.fill_with(|| rng.u32(..count as u32));
        drawn.sort_unstable();
        [drawn[(count - 1) / 2], drawn[count / 2]]
    };
    let mut ranks: Vec<[u32; 2]> = (0..DRAWS).map(|_| draw()).collect();
    ranks.sort_unstable_by_key(|[one, other]| one + other);
    let ranks: Rc<[[u32; 2]]> = ranks.into();
    KNOWN.with_borrow_mut(|known| {
        if known.len() < MOST_KNOWN {
            known.insert(count, ranks.clone());
        }
    });
    ranks
}

/// The intervals of statistics of the same draws, which it makes itself by [`redraw`] or [`redrawn_median`]; `None` if
/// there is no value in some.
pub fn of<const N: usize>(
    rng: &mut Rng,
    mut statistics: impl FnMut(&mut Rng) -> Option<[f64; N]>,
) -> Option<[Interval; N]> {
    let mut drawn: [Vec<f64>; N] = std::array::from_fn(|_| Vec::with_capacity(DRAWS));
    for _ in 0..DRAWS {
        drawn.iter_mut().zip(statistics(rng)?).for_each(|(values, value)| values.push(value));
    }
    let mut intervals = [Interval { low: f64::NAN, high: f64::NAN }; N];
    for (interval, values) in intervals.iter_mut().zip(drawn) {
        *interval = middle(values)?;
    }
    Some(intervals)
}

/// The interval of the median of `over` divided by the median of `under`; `None` if either has fewer than two samples
/// or a median of 0 is divided by.
pub fn of_ratio(over: &[f64], under: &[f64]) -> Option<Interval> {
    (over.len() > 1 && under.len() > 1).then(|| middle(ratios(over, under)))?
}

/// The ratios of medians of draws from both; fewer than asked for where a median is 0.
pub fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    let (mut rng, mut drawn) = (Rng::with_seed(SEED), Vec::new());
    let mut ratio = || {
        let over = redrawn_median(&mut rng, over, &mut drawn)?;
        let under = redrawn_median(&mut rng, under, &mut drawn)?;
        Some(over / under).filter(|ratio| ratio.is_finite())
    };
    (0..DRAWS).filter_map(|_| ratio()).collect()
}

/// As many of the values as there are, each drawn from all.
pub fn redraw<T: Copy>(rng: &mut Rng, values: &[T]) -> impl Iterator<Item = T> {
    (0..values.len()).map(move |_| values[rng.usize(..values.len())])
}

/// The median of as many samples, drawn with repetition.
pub fn redrawn_median(rng: &mut Rng, samples: &[f64], drawn: &mut Vec<f64>) -> Option<f64> {
    drawn.clear();
    drawn.extend(redraw(rng, samples));
    median_in_place(drawn)
}

/// The middle part of these values; `None` of none.
pub fn middle(mut values: Vec<f64>) -> Option<Interval> {
    values.sort_by(f64::total_cmp);
    let rest = (1.0 - CONFIDENCE) / 2.0;
    Some(Interval { low: quantile(&values, rest)?, high: quantile(&values, 1.0 - rest)? })
}

/// The value below which this share of sorted values lies, between two of them on a straight line (R. Hyndman and Y.
/// Fan, "Sample quantiles in statistical packages", 1996, definition 7); `None` of none.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

/// Expected values come from numpy 2.4 and scipy 1.17, with the script in the comment of each.
#[cfg(test)]
mod tests {
    use super::*;

    const TEN: [f64; 10] = [21.523, 23.673, 21.458, 15.477, 24.073, 21.961, 18.04, 22.561, 21.605, 21.303];
    const OTHERS: [f64; 10] = [30.049, 31.648, 27.837, 29.48, 28.554, 31.813, 30.083, 29.1, 27.71, 29.203];

    fn assert_near(value: f64, expected: f64, within: f64) {
        assert!((value - expected).abs() <= within * expected.abs(), "{value} and not {expected}");
    }

    /// `numpy.quantile(TEN, q)`
    #[test]
    fn quantiles_are_those_of_numpy() {
        let mut sorted = TEN;
        sorted.sort_by(f64::total_cmp);
        for (share, expected) in [
            (0.0, 15.477),
            (0.1, 17.7837),
            (0.25, 21.34175),
            (0.5, 21.564),
            (0.9, 23.713),
            (0.975, 23.983),
            (1.0, 24.073),
        ] {
            assert_near(quantile(&sorted, share).unwrap(), expected, 1e-9);
        }
        assert_eq!(quantile(&[], 0.5), None);
        // numpy.quantile([1, 2, 4, 8], [0.025, 0.5, 0.975])
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!([0.025, 0.5, 0.975].map(|share| quantile(&sorted, share).unwrap()), [1.075, 3.0, 7.699999999999999]);
    }

    /// `numpy.std(TEN, ddof=1)` and `numpy.mean(TEN)`
    #[test]
    fn mean_and_deviation_are_those_of_numpy() {
        assert_near(crate::statistic::deviation(&TEN).unwrap(), 2.5792877656007627, 1e-12);
        assert_near(crate::statistic::mean(&TEN).unwrap(), 21.1674, 1e-12);
    }

    /// Of five samples all draws can be listed:
    /// `numpy.quantile(numpy.median(list(itertools.product(five, repeat=5)), axis=1), [0.025, 0.975])`
    #[test]
    fn five_samples_have_the_interval_of_all_draws() {
        let five = [12.1, 11.8, 13.0, 12.4, 19.7];
        assert_eq!(of_median(&five), Some(Interval { low: 11.8, high: 19.7 }));
        assert_eq!(of_median(&five), of_median(&five), "it is the same each time");
        assert_eq!(of_median(&[24.9, 25.3, 24.1, 26.8, 25.0]), Some(Interval { low: 24.1, high: 26.8 }));
    }

    /// `scipy.stats.bootstrap((TEN,), numpy.median, n_resamples=200000, method='percentile')`, and the same of the
    /// ratio of medians. Ours has two thousand draws, and medians of few samples come in steps, hence 2 %.
    #[test]
    fn intervals_are_those_of_scipy() {
        let interval = of_median(&TEN).unwrap();
        assert_near(interval.low, 19.749, 0.02);
        assert_near(interval.high, 22.817, 0.02);
        let interval = of_ratio(&OTHERS, &TEN).unwrap();
        assert_near(interval.low, 1.2811643681775302, 0.02);
        assert_near(interval.high, 1.4802273099319474, 0.02);
        assert!(interval.contains(1.3606705620478576));
    }

    #[test]
    fn the_order_of_samples_does_not_matter() {
        let mut other = TEN;
        for _ in 0..TEN.len() {
            other.rotate_left(1);
            assert_eq!(of_median(&other), of_median(&TEN));
        }
    }

    #[test]
    fn one_sample_says_nothing_of_how_far_they_scatter() {
        assert_eq!((of_median(&[1.0]), of_median(&[])), (None, None));
        assert_eq!((of_ratio(&[1.0], &TEN), of_ratio(&TEN, &[0.0, 0.0])), (None, None));
    }
}

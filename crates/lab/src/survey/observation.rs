//! The observations of Miyagawa et al. on SmartNICs, tested on a survey.
//!
//! Each says which end decides a figure. The figure of each ordered pair is modelled as
//! `ln(figure) = mean + sender + receiver + residual`, where `sender` and `receiver` are there if that end is a
//! SmartNIC, and fitted by least squares. Intervals are by bootstrap: pairs are drawn anew within each combination of
//! kinds, and samples within each pair.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::record::{Effect, Key, Kind, Load, Metric, Observation, ObservationName, SurveyRecord, TwoWay, Verdict};
use crate::bootstrap::{self, Interval, redrawn_median};
use crate::launcher::Side;
use crate::statistic::median;
use crate::unit::digits;

/// Effects of less than a factor of 1.05 count as none.
const NOTHING: f64 = 0.048_790_164_169_432;
/// Seed of the draws.
const SEED: u64 = 0x0b5e;

/// Samples of one pair, from which its figure is made.
#[derive(Clone, Debug, PartialEq)]
struct Pair {
    sender_is_card: bool,
    receiver_is_card: bool,
    /// Samples by size, the least first.
    samples: Vec<Vec<f64>>,
}

/// Tests all of them.
pub fn observe(record: &SurveyRecord) -> Vec<Observation> {
    let throughput = pairs(record, Metric::Throughput);
    let latency = pairs(record, Metric::Latency);
    // The samples of other sizes would be drawn in vain.
    let ends = of_sizes(&throughput, |at, count| at == 0 || at + 1 == count);
    let least_size = of_sizes(&latency, |at, _| at == 0);
    [
        judge(ObservationName::GrowthFollowsSender, &ends, growth),
        judge(ObservationName::MaximumFollowsReceiver, &throughput, maximum),
        judge(ObservationName::LatencyFollowsReceiver, &least_size, least),
    ]
    .into()
}

/// The pairs with the samples of these sizes alone, of so many.
fn of_sizes(pairs: &[Pair], is_one: fn(usize, usize) -> bool) -> Vec<Pair> {
    let pair = |pair: &Pair| {
        let count = pair.samples.len();
        let samples = pair.samples.iter().enumerate().filter(|(at, _)| is_one(*at, count));
        Pair { samples: samples.map(|(_, samples)| samples.clone()).collect(), ..*pair }
    };
    pairs.iter().map(pair).collect()
}

/// The greatest size's throughput over the least's.
fn growth(medians: &[f64]) -> Option<f64> {
    (medians.len() > 1).then(|| Some(medians.last()? / medians.first()?))?
}

fn maximum(medians: &[f64]) -> Option<f64> {
    medians.iter().copied().max_by(f64::total_cmp)
}

/// The figure of the least size.
fn least(medians: &[f64]) -> Option<f64> {
    medians.first().copied()
}

/// The pairs with samples of one flow on an idle kernel path, for all sizes.
fn pairs(record: &SurveyRecord, metric: Metric) -> Vec<Pair> {
    let counts = |key: &Key| {
        key.metric == metric
            && key.sender != key.receiver
            && key.flows == 1
            && key.load == Load::Idle
            && key.path == Side::Kernel
            && key.via.is_none()
    };
    let mut pairs: BTreeMap<(&str, &str), BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
    for series in record.series.iter().filter(|series| counts(&series.key) && !series.samples.is_empty()) {
        let values = series.samples.iter().map(|sample| sample.value).collect();
        pairs.entry((&series.key.sender, &series.key.receiver)).or_default().insert(series.key.size, values);
    }
    let is_card = |name: &str| record.endpoint(name).map(|endpoint| endpoint.kind == Kind::Smartnic);
    // A pair that lacks a size would be compared by another one.
    let all: BTreeSet<u64> = pairs.values().flat_map(BTreeMap::keys).copied().collect();
    let whole = pairs.into_iter().filter(|(_, sizes)| sizes.keys().eq(&all));
    let pair = |((sender, receiver), sizes): ((&str, &str), BTreeMap<u64, Vec<f64>>)| {
        let samples = sizes.into_values().collect();
        Some(Pair { sender_is_card: is_card(sender)?, receiver_is_card: is_card(receiver)?, samples })
    };
    whole.filter_map(pair).collect()
}

/// A fit without its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fit {
    sender: f64,
    receiver: f64,
    residual: f64,
    explained: f64,
}

fn judge(name: ObservationName, pairs: &[Pair], figure: fn(&[f64]) -> Option<f64>) -> Observation {
    let open = |text: &str| Observation { name, verdict: Verdict::Undecided, text: text.to_string(), model: None };
    let Some(fit) = fit(pairs, figure) else {
        return open(
            "the survey does not have hosts and SmartNICs at both ends, with at least four pairs that were measured at \
             the same sizes, and two sizes of throughput",
        );
    };
    let sender_decides = name == ObservationName::GrowthFollowsSender;
    // How much more the named end decides than the other end.
    let more = |fit: &Fit| {
        if sender_decides { fit.sender.abs() - fit.receiver.abs() } else { fit.receiver.abs() - fit.sender.abs() }
    };
    let Some([sender, receiver, Interval { low, high }]) =
        intervals(pairs, figure, |fit| [fit.sender, fit.receiver, more(fit)])
    else {
        return open("the samples are too few for an interval");
    };
    let effect = |value: f64, Interval { low, high }: Interval| Effect { value, low, high };
    let model = TwoWay {
        sender: effect(fit.sender, sender),
        receiver: effect(fit.receiver, receiver),
        residual: fit.residual,
        explained: fit.explained,
        pairs: pairs.len(),
    };
    let named = if sender_decides { model.sender } else { model.receiver };
    let must_rise = name == ObservationName::LatencyFollowsReceiver;
    let none = named.low > -NOTHING && named.high < NOTHING;
    let there = named.low > 0.0 || (named.high < 0.0 && !must_rise);
    let verdict = if there && low > 0.0 {
        Verdict::Confirmed
    } else if none || high < 0.0 || (must_rise && named.high < 0.0) {
        Verdict::NotConfirmed
    } else {
        Verdict::Undecided
    };
    Observation { name, verdict, text: text(name, &model), model: Some(model) }
}

fn text(name: ObservationName, model: &TwoWay) -> String {
    let what = match name {
        ObservationName::GrowthFollowsSender => "throughput at the greatest size over that at the least",
        ObservationName::MaximumFollowsReceiver => "the greatest throughput",
        ObservationName::LatencyFollowsReceiver => "latency",
    };
    let factor = |effect: Effect| {
        let [value, low, high] = [effect.value, effect.low, effect.high].map(|it| digits(it.exp()));
        format!("{value} ({low} to {high})")
    };
    format!(
        "a SmartNIC as the sender changes {what} by a factor of {}, as the receiver by {}; the residual is a factor of \
         {}, and the model explains {} % of the variance of {} pairs",
        factor(model.sender),
        factor(model.receiver),
        digits(model.residual.exp()),
        digits(model.explained * 100.0),
        model.pairs
    )
}

/// The intervals of statistics of fits, all by the same draws.
fn intervals<const N: usize>(
    pairs: &[Pair],
    figure: fn(&[f64]) -> Option<f64>,
    of: impl Fn(&Fit) -> [f64; N],
) -> Option<[Interval; N]> {
    let mut strata: BTreeMap<(bool, bool), Vec<&Pair>> = BTreeMap::new();
    for pair in pairs {
        strata.entry((pair.sender_is_card, pair.receiver_is_card)).or_default().push(pair);
    }
    let (mut rows, mut medians, mut drawn) = (Vec::new(), Vec::new(), Vec::new());
    bootstrap::of(&mut Rng::with_seed(SEED), |rng| {
        rows.clear();
        for stratum in strata.values() {
            for _ in stratum {
                let pair = stratum[rng.usize(..stratum.len())];
                medians.clear();
                for samples in &pair.samples {
                    medians.push(redrawn_median(rng, samples, &mut drawn)?);
                }
                rows.push(row(pair, figure(&medians)?)?);
            }
        }
        fit_to(&rows).map(|fit| of(&fit))
    })
}

/// The figure of a pair as it goes into the fit: whether the sender is a SmartNIC, whether the receiver is, and the
/// logarithm.
fn row(pair: &Pair, figure: f64) -> Option<[f64; 3]> {
    let flag = |flag| f64::from(u8::from(flag));
    let value = figure.ln();
    value.is_finite().then_some([flag(pair.sender_is_card), flag(pair.receiver_is_card), value])
}

fn fit(pairs: &[Pair], figure: fn(&[f64]) -> Option<f64>) -> Option<Fit> {
    let of_pair = |pair: &Pair| {
        let medians: Vec<f64> = pair.samples.iter().map(|samples| median(samples)).collect::<Option<_>>()?;
        row(pair, figure(&medians)?)
    };
    fit_to(&pairs.iter().map(of_pair).collect::<Option<Vec<_>>>()?)
}

/// Least squares with two regressors that are 0 or 1. `None` unless both kinds stand at both ends.
fn fit_to(rows: &[[f64; 3]]) -> Option<Fit> {
    if rows.len() < 4 {
        return None;
    }
    let mean = [0, 1, 2].map(|column| rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64);
    let moment = |a: usize, b: usize| rows.iter().map(|row| (row[a] - mean[a]) * (row[b] - mean[b])).sum::<f64>();
    let (ss, rr, sr, sy, ry, yy) = (moment(0, 0), moment(1, 1), moment(0, 1), moment(0, 2), moment(1, 2), moment(2, 2));
    let determinant = ss * rr - sr * sr;
    if determinant < 1e-9 {
        return None;
    }
    let (sender, receiver) = ((rr * sy - sr * ry) / determinant, (ss * ry - sr * sy) / determinant);
    let left: f64 = rows
        .iter()
        .map(|row| (row[2] - mean[2] - sender * (row[0] - mean[0]) - receiver * (row[1] - mean[1])).powi(2))
        .sum();
    // Three numbers are fitted.
    let freedom = (rows.len() - 3) as f64;
    let explained = if yy > 0.0 { (1.0 - left / yy).clamp(0.0, 1.0) } else { 0.0 };
    Some(Fit { sender, receiver, residual: (left / freedom).sqrt(), explained })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::survey::record::Series;
    use crate::survey::record::tests::example;

    /// All ordered pairs of two hosts and two SmartNICs; `value` of (sender is card, receiver is card, size index),
    /// with noise.
    fn made(noise: f64, value: impl Fn(bool, bool, usize) -> f64) -> Vec<Pair> {
        let mut rng = Rng::with_seed(3);
        let cards = [false, true, false, true];
        let mut pairs = Vec::new();
        for (i, sender_is_card) in cards.into_iter().enumerate() {
            for (j, receiver_is_card) in cards.into_iter().enumerate().filter(|(j, _)| *j != i) {
                let own = 1.0 + noise * (i * 4 + j) as f64 / 16.0;
                let mut sample =
                    |size| value(sender_is_card, receiver_is_card, size) * own * (1.0 + noise * (rng.f64() - 0.5));
                let samples = (0..2).map(|size| (0..5).map(|_| sample(size)).collect()).collect();
                pairs.push(Pair { sender_is_card, receiver_is_card, samples });
            }
        }
        pairs
    }

    fn factor(flag: bool, factor: f64) -> f64 {
        if flag { factor } else { 1.0 }
    }

    #[test]
    fn a_model_without_noise_is_found_exactly() {
        let pairs = made(0.0, |sender, receiver, _| 1e9 * factor(sender, 0.5) * factor(receiver, 0.25));
        let fit = fit(&pairs, maximum).unwrap();
        assert!((fit.sender - 0.5f64.ln()).abs() < 1e-9 && (fit.receiver - 0.25f64.ln()).abs() < 1e-9, "{fit:?}");
        assert!(fit.residual < 1e-9 && fit.explained > 1.0 - 1e-9, "{fit:?}");
    }

    #[test]
    fn the_fit_is_that_of_an_independent_implementation() {
        // numpy.linalg.lstsq of [1, sender, receiver] on the natural logarithms of these values.
        let values = [8.0, 3.0, 5.0, 1.0, 7.0, 2.0];
        let ends = [(false, false), (false, true), (true, false), (true, true), (false, false), (true, true)];
        let pair = |(value, (sender_is_card, receiver_is_card))| Pair {
            sender_is_card,
            receiver_is_card,
            samples: vec![vec![value]],
        };
        let pairs: Vec<Pair> = values.into_iter().zip(ends).map(pair).collect();
        let fit = fit(&pairs, maximum).unwrap();
        let expected = [-0.5776383156608054, -1.088463939426797, 0.3107495318819085, 0.909358567474475];
        for (found, expected) in [fit.sender, fit.receiver, fit.residual, fit.explained].into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{fit:?}");
        }
    }

    /// Values of `numpy` 2.4: `quantile([0.025, 0.975])` of 20,000 fits by `linalg.lstsq`, each of pairs drawn anew
    /// within each combination of kinds, and of samples drawn anew within each size of each pair. Ours are of two
    /// thousand.
    #[test]
    fn the_intervals_are_those_of_an_independent_implementation() {
        let cards = [false, true, false, true];
        let mut pairs = Vec::new();
        for (i, sender_is_card) in cards.into_iter().enumerate() {
            for (j, receiver_is_card) in cards.into_iter().enumerate().filter(|(j, _)| *j != i) {
                let sample = |size: usize, number: usize| {
                    let wave = (1.7 * (i * 4 + j) as f64 + (number + 2 * size) as f64).sin();
                    1e9 * factor(receiver_is_card, 0.4) * factor(sender_is_card, 0.8) * (1.0 + 0.1 * wave)
                };
                let samples = (0..2).map(|size| (0..5).map(|number| sample(size, number)).collect()).collect();
                pairs.push(Pair { sender_is_card, receiver_is_card, samples });
            }
        }
        let model = judge(ObservationName::MaximumFollowsReceiver, &pairs, maximum).model.unwrap();
        let near = |found: f64, expected: f64, within: f64| {
            assert!((found - expected).abs() < within, "{found} and not {expected}: {model:?}");
        };
        near(model.sender.value, -0.20987391, 1e-7);
        near(model.receiver.value, -0.91600341, 1e-7);
        near(model.sender.low, -0.27054844, 0.006);
        near(model.sender.high, -0.16385632, 0.006);
        near(model.receiver.low, -0.96590606, 0.006);
        near(model.receiver.high, -0.85946435, 0.006);
    }

    #[test]
    fn verdicts_follow_the_end_that_decides() {
        use ObservationName::*;
        let verdict = |name, pairs: &[Pair], figure| judge(name, pairs, figure).verdict;
        let by_receiver = made(0.05, |_, receiver, _| 1e9 * factor(receiver, 0.4));
        assert_eq!(verdict(MaximumFollowsReceiver, &by_receiver, maximum), Verdict::Confirmed);
        let by_sender = made(0.05, |sender, _, _| 1e9 * factor(sender, 0.4));
        assert_eq!(verdict(MaximumFollowsReceiver, &by_sender, maximum), Verdict::NotConfirmed);
        let same = made(0.01, |_, _, _| 1e9);
        assert_eq!(verdict(MaximumFollowsReceiver, &same, maximum), Verdict::NotConfirmed);
        let both = made(0.05, |sender, receiver, _| 1e9 * factor(sender, 0.4) * factor(receiver, 0.4));
        assert_eq!(verdict(MaximumFollowsReceiver, &both, maximum), Verdict::Undecided);
        let noisy = made(3.0, |_, receiver, _| 1e9 * factor(receiver, 0.8));
        assert_eq!(verdict(MaximumFollowsReceiver, &noisy, maximum), Verdict::Undecided);
        let growing = made(0.05, |sender, receiver, size| {
            1e8 * factor(receiver, 0.5) * factor(size == 1, 10.0) * factor(size == 1 && sender, 0.5)
        });
        assert_eq!(verdict(GrowthFollowsSender, &growing, growth), Verdict::Confirmed);
        let slower = made(0.05, |_, receiver, _| 1e4 * factor(receiver, 2.0));
        assert_eq!(verdict(LatencyFollowsReceiver, &slower, least), Verdict::Confirmed);
        let faster = made(0.05, |_, receiver, _| 1e4 * factor(receiver, 0.5));
        assert_eq!(
            verdict(LatencyFollowsReceiver, &faster, least),
            Verdict::NotConfirmed,
            "lower is not what was observed"
        );
    }

    /// Two pairs with as many sizes each, and not the same: the greatest size of one is not that of the other.
    #[test]
    fn pairs_are_compared_by_the_same_sizes() {
        let mut record = example();
        let series = record.series[0].clone();
        let with = |sender: &str, receiver: &str, sizes: [u64; 2]| {
            sizes.map(|size| {
                let (sender, receiver) = (sender.to_string(), receiver.to_string());
                Series { key: Key { sender, receiver, size, ..series.key.clone() }, ..series.clone() }
            })
        };
        let measured = |sizes: [u64; 2]| [with("host-a", "nic-a", [64, 4096]), with("nic-a", "host-a", sizes)].concat();
        record.series = measured([64, 4096]);
        assert_eq!(pairs(&record, Metric::Throughput).len(), 2);
        record.series = measured([64, 1024]);
        assert_eq!(pairs(&record, Metric::Throughput), [], "neither has all sizes");
    }

    /// A survey may have tens of thousands of samples, all of which are drawn two thousand times.
    #[test]
    fn all_intervals_are_of_the_same_draws() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        fn counted(medians: &[f64]) -> Option<f64> {
            CALLS.fetch_add(1, Ordering::Relaxed);
            maximum(medians)
        }
        let pairs = made(0.05, |_, receiver, _| 1e9 * factor(receiver, 0.4));
        judge(ObservationName::MaximumFollowsReceiver, &pairs, counted);
        assert_eq!(CALLS.load(Ordering::Relaxed), pairs.len() * (1 + 2000));
        let sizes = |is_one| of_sizes(&pairs, is_one).iter().map(|pair| pair.samples.len()).max();
        assert_eq!((sizes(|at, _| at == 0), sizes(|at, count| at + 1 == count)), (Some(1), Some(1)));
    }

    #[test]
    fn without_both_kinds_nothing_is_claimed() {
        let hosts: Vec<Pair> = made(0.1, |_, _, _| 1.0).into_iter().filter(|it| !it.sender_is_card).collect();
        let observation = judge(ObservationName::MaximumFollowsReceiver, &hosts, maximum);
        assert_eq!((observation.verdict, observation.model), (Verdict::Undecided, None));
        assert_eq!(judge(ObservationName::GrowthFollowsSender, &[], growth).verdict, Verdict::Undecided);
    }

    #[test]
    fn figures_stand_in_the_text() {
        let pairs = made(0.0, |_, receiver, _| 1e9 * factor(receiver, 0.5));
        let text = judge(ObservationName::MaximumFollowsReceiver, &pairs, maximum).text;
        assert!(text.contains("as the receiver by 0.500 (0.500 to 0.500)") && text.contains("12 pairs"), "{text}");
    }
}

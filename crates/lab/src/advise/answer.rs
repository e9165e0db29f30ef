//! Answers: which way is to be taken at which size, what it gains over the default, and how sure that is.

use fastrand::Rng;

use super::question::{Choice, Objective, Question, Stage};
use super::verdict::{TIE, Verdict};
use crate::bootstrap::{self, CONFIDENCE, Interval};
use crate::statistic::{mean, student};

/// Draws of one interval.
const DRAWS: usize = 300;
/// Fewest samples of which anything is sure. All of two samples are on one side of the true median as often as not, all
/// of three in one case of four, and all of five in one of 16; an interval reaches no further than its samples.
pub const FEWEST: usize = 5;
/// Steps between two measured sizes at which the ways are compared.
const STEPS: u32 = 4;
const SEED: u64 = 0x6164_7669_7365;

/// What is to be done, by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Of which work.
    pub stage: Stage,
    /// On what.
    pub route: String,
    /// What is weighed.
    pub objective: Objective,
    /// The way that is taken where nothing is said.
    pub default: String,
    /// The groups of measurements that it rests on, the default's first.
    pub groups: Vec<String>,
    /// Neighbouring sizes with the same choice together, the smallest first.
    pub ranges: Vec<Range>,
}

/// Sizes with the same choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    /// Bytes of the smallest message; `None` where there is no size.
    pub from: Option<u64>,
    /// Of the largest.
    pub to: Option<u64>,
    /// The choice at one size of these, a measured one if there is any.
    pub decided: Decided,
}

/// The choice at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Bytes of a message; 0 where there is no size.
    pub size: u64,
    /// Whether it was measured there; predicted otherwise.
    pub is_measured: bool,
    /// The way to take.
    pub choice: String,
    /// Why.
    pub verdict: Verdict,
    /// All ways but the default, the best first.
    pub ways: Vec<Gain>,
}

/// What one way gains.
#[derive(Clone, Debug, PartialEq)]
pub struct Gain {
    /// The way.
    pub name: String,
    /// How many times less it costs than the default.
    pub times: f64,
    /// Where that lies; `None` if one sample says nothing of it.
    pub interval: Option<Interval>,
    /// Fewest samples of a figure that it rests on.
    pub samples: usize,
    /// What the default costs, and what this way costs, in nanoseconds.
    pub costs: [f64; 2],
}

/// Answers a question as far as it was measured; `None` if no size has all its ways.
pub fn of(question: &Question) -> Option<Answer> {
    let measured = question.sizes();
    let reaches = reaches(question, &measured);
    // Between sizes a way is predicted, whose error is known only if there was one to leave out.
    let is_known = reaches.iter().all(Option::is_some);
    let sizes = if is_known { with_steps(&measured) } else { measured.clone() };
    let decided = sizes.iter().filter_map(|size| decide(question, &reaches, *size));
    let mut ranges: Vec<Range> = Vec::new();
    for decided in decided {
        let size = (decided.size > 0).then_some(decided.size);
        match ranges.last_mut() {
            Some(last) if is_known && is_same(&last.decided, &decided) => {
                last.to = size;
                let is_better_example = decided.is_measured
                    && (!last.decided.is_measured || decided.gain().is_some_and(|it| Some(it) > last.decided.gain()));
                if is_better_example {
                    last.decided = decided;
                }
            }
            _ => ranges.push(Range { from: size, to: size, decided }),
        }
    }
    let default = question.ways.first()?.name.clone();
    let (stage, route, objective) = (question.stage, question.route.clone(), question.objective);
    let mut groups: Vec<String> = Vec::new();
    for way in &question.ways {
        if !groups.contains(&way.group) {
            groups.push(way.group.clone());
        }
    }
    (!ranges.is_empty()).then_some(Answer { stage, route, objective, default, groups, ranges })
}

fn is_same(one: &Decided, other: &Decided) -> bool {
    (&one.choice, one.verdict) == (&other.choice, other.verdict)
}

impl Decided {
    /// The way whose figures explain the choice: the chosen one, or the best of those that were not chosen.
    pub fn example(&self) -> Option<&Gain> {
        self.chosen().or(self.ways.first())
    }

    fn gain(&self) -> Option<f64> {
        self.example().map(|way| way.times)
    }

    /// The chosen way; `None` if it is the default, over which nothing gains.
    pub fn chosen(&self) -> Option<&Gain> {
        self.ways.iter().find(|way| way.name == self.choice)
    }
}

impl Gain {
    /// Whether its samples are enough for an interval to be believed, and the interval is such.
    fn surely(&self, is_such: impl Fn(Interval) -> bool) -> bool {
        self.samples >= FEWEST && self.interval.is_some_and(is_such)
    }
}

/// The choice at one size, with the [`reaches`] of predictions; `None` outside of what was measured.
pub fn decide(question: &Question, reaches: &[Option<f64>], size: u64) -> Option<Decided> {
    let is_measured = question.ways.iter().all(|way| way.curve.at(size).is_some());
    let (default, others) = question.ways.split_first()?;
    let mut ways = Vec::new();
    for (way, reach) in others.iter().zip(reaches) {
        let costs = [default.curve.predict(size)?, way.curve.predict(size)?];
        let interval = drawn(default, way, size).map(|interval| {
            // Where no size can be left out, nobody knows how far a prediction is off.
            let reach = if is_measured { 0.0 } else { reach.unwrap_or(f64::INFINITY) };
            widened(interval, costs[0] / costs[1], reach)
        });
        let samples = default.curve.fewest(size)?.min(way.curve.fewest(size)?);
        ways.push(Gain { name: way.name.clone(), times: costs[0] / costs[1], interval, samples, costs });
    }
    ways.sort_by(|one, other| other.times.total_cmp(&one.times));
    // The best of those that surely gain: another may have gained more, of which its samples are not sure.
    let sure = ways.iter().find(|way| way.times >= TIE && way.surely(|it| it.low > 1.0));
    // Where the samples are not sure, a choice by the median is right more often than the default is, and a wrong
    // choice costs as much either way.
    let likely = ways.iter().find(|way| way.times > 1.0 && way.interval.is_some_and(|it| it.high >= TIE));
    let sure = sure.map(|sure| surpassed(sure, &ways, question, size));
    let verdict = match (sure, likely) {
        (Some(way), _) if way.surely(|it| it.low > 1.0) => Verdict::Better,
        (Some(_), _) => Verdict::LikelyBetter,
        _ if ways.iter().all(|way| way.surely(|it| it.high < TIE)) => Verdict::NoOffload,
        (None, Some(_)) => Verdict::LikelyBetter,
        (None, None) => Verdict::NotDistinguishable,
    };
    let choice = sure.or(likely).map_or(&default.name, |way| &way.name).clone();
    (!ways.is_empty()).then_some(Decided { size, is_measured, choice, verdict, ways })
}

/// The best of the ways that surpass this one, which surely gains itself, surely by their samples and by 5 % or more in
/// the median; this one if there are none. The error of a prediction is left out on purpose: in the checked cases the
/// better median was right, and the verdict says that it is not sure.
fn surpassed<'a>(sure: &'a Gain, ways: &'a [Gain], question: &Question, size: u64) -> &'a Gain {
    let choice = |gain: &Gain| question.ways.iter().find(|it| it.name == gain.name);
    let surpasses = |way: &&Gain| {
        let ratio = choice(sure).zip(choice(way)).and_then(|(sure, way)| drawn(sure, way, size));
        way.samples >= FEWEST && ratio.is_some_and(|it| it.low > 1.0)
    };
    ways.iter().take_while(|way| way.times >= sure.times * TIE).find(surpasses).unwrap_or(sure)
}

/// The interval of the gain by samples drawn anew; `None` if there is but one of something.
fn drawn(default: &Choice, way: &Choice, size: u64) -> Option<Interval> {
    let has_several = |way: &Choice| way.curve.fewest(size).is_some_and(|least| least > 1);
    if !has_several(default) || !has_several(way) {
        return None;
    }
    let mut rng = Rng::with_seed(SEED);
    let draw = |_| Some(default.curve.redraw(size, &mut rng)? / way.curve.redraw(size, &mut rng)?);
    bootstrap::middle((0..DRAWS).filter_map(draw).collect())
}

/// An interval with that of the prediction's error added, which reaches so far. Independent errors add so, in
/// logarithms.
fn widened(interval: Interval, gain: f64, reach: f64) -> Interval {
    let both = |end: f64| (end / gain).ln().hypot(reach);
    Interval { low: gain * (-both(interval.low)).exp(), high: gain * both(interval.high).exp() }
}

/// For each way but the default: how far from its predicted gain, to either side, 95 % of gains are, in logarithms. It
/// comes from the errors where a measured size is left out and predicted from its neighbours. The gaps are twice as
/// wide then as those that are bridged, so it is rather too far. `None` if no size has neighbours on both sides.
pub fn reaches(question: &Question, measured: &[u64]) -> Vec<Option<f64>> {
    let Some((default, others)) = question.ways.split_first() else { return Vec::new() };
    let of_way = |way: &Choice| {
        let inner = measured.get(1..measured.len().saturating_sub(1)).unwrap_or_default();
        let squares: Vec<f64> = inner.iter().filter_map(|size| Some(left_out(default, way, *size)?.powi(2))).collect();
        Some(mean(&squares)?.sqrt() * student(freedom(squares.len()), CONFIDENCE))
    };
    others.iter().map(of_way).collect()
}

/// Degrees of freedom of so many errors. Two neighbours are predicted from each other, so that they say less than two
/// independent errors. This is what F. Satterthwaite's rule (1946) comes to for straight lines between sizes that are
/// two to four times apart, about.
fn freedom(errors: usize) -> f64 {
    (errors + 1) as f64 / 2.0
}

/// The logarithm of the predicted gain over the measured one, at a size that is left out.
pub fn left_out(default: &Choice, way: &Choice, size: u64) -> Option<f64> {
    let gain =
        |default: &super::cost::Curve, way: &super::cost::Curve| Some(default.predict(size)? / way.predict(size)?);
    let predicted = gain(&default.curve.without(size), &way.curve.without(size))?;
    Some((predicted / gain(&default.curve, &way.curve)?).ln())
}

/// The sizes, and some between each two, in equal factors.
fn with_steps(measured: &[u64]) -> Vec<u64> {
    let mut sizes = measured.to_vec();
    for pair in measured.windows(2) {
        let factor = pair[1] as f64 / pair[0] as f64;
        let step = |step: u32| pair[0] as f64 * factor.powf(f64::from(step) / f64::from(STEPS));
        sizes.extend((1..STEPS).map(step).map(|size| size.round() as u64));
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

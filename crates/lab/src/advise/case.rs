//! What a check of advice comes to: cases, each with what was predicted of every way and what was measured.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::verdict::{TIE, Verdict};
use crate::host::Host;
use crate::record::Skipped;
use crate::statistic::{mean, median};
use crate::unit::{digits, size};

/// The version of the format that this software writes and reads.
pub const SCHEMA: u32 = 1;

/// What [`Check::format`] is, so that a reader can tell a check from another record of Underpass.
pub const FORMAT: &str = "underpass-check";

/// A check of advice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// [`FORMAT`].
    pub format: String,
    /// [`SCHEMA`] of the software that wrote it.
    pub schema: u32,
    /// When it began, UTC, as in RFC 3339.
    pub date: String,
    /// Version of Underpass.
    pub version: String,
    /// Revision of the checkout that the executable lies in, if it lies in one.
    pub revision: Option<String>,
    /// Where it was measured.
    pub host: Host,
    /// Samples of each way.
    pub samples: usize,
    /// Whether it was a run with `--quick`, whose figures are not for quoting.
    pub quick: bool,
    /// Whether all was measured, or is named in `skipped`.
    pub complete: bool,
    /// Seed of the order.
    pub seed: u64,
    /// Names of the records that the advice rests on.
    pub records: Vec<String>,
    /// As they were measured.
    pub cases: Cases,
    /// What was not measured, and why.
    pub skipped: Vec<Skipped>,
}

/// Cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cases(pub Vec<Case>);

/// One size of one question, a size that no record has: what was predicted, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Which work.
    pub stage: String,
    /// On what.
    pub route: String,
    /// What is weighed.
    pub objective: String,
    /// Name of the record that the advice rests on.
    pub record: String,
    /// Bytes of a message.
    pub size: u64,
    /// The way that was advised.
    pub choice: String,
    /// Why.
    pub verdict: String,
    /// The default, and all other ways that were measured.
    pub ways: Vec<Outcome>,
}

/// What became of one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The way.
    pub name: String,
    /// How many times less it was to cost than the default.
    pub predicted: f64,
    /// How many times less it cost.
    pub measured: f64,
}

impl Case {
    /// What the best way gains over the default.
    pub fn best(&self) -> Option<&Outcome> {
        self.ways.iter().max_by(|one, other| one.measured.total_cmp(&other.measured))
    }

    /// What the advised way gains over the default.
    pub fn chosen(&self) -> Option<&Outcome> {
        self.ways.iter().find(|way| way.name == self.choice)
    }

    /// The share of the best way's work that the advised way does not do: 0 if it is the best.
    pub fn regret(&self) -> f64 {
        self.best().zip(self.chosen()).map_or(0.0, |(best, chosen)| 1.0 - chosen.measured / best.measured)
    }

    /// Whether the advised way is the best, or within a tie of it.
    pub fn is_right(&self) -> bool {
        self.regret() < 1.0 - 1.0 / TIE
    }

    /// Whether all ways are within a tie of the best, so that no choice is wrong.
    pub fn is_tie(&self) -> bool {
        self.best().is_some_and(|best| self.ways.iter().all(|way| best.measured < way.measured * TIE))
    }

    /// Whether what had been measured was not sure, whatever was advised then.
    pub fn is_unsure(&self) -> bool {
        [Verdict::LikelyBetter, Verdict::NotDistinguishable].iter().any(|it| it.name() == self.verdict)
    }

    /// By how much each predicted gain is off, as a share of 1.
    pub fn errors(&self) -> impl Iterator<Item = f64> + '_ {
        // The default's gain is 1 by definition.
        self.ways.iter().skip(1).map(|way| (way.predicted / way.measured - 1.0).abs())
    }
}

impl Cases {
    /// The error of a predicted gain in the median, as a share of 1.
    pub fn error(&self) -> Option<f64> {
        median(&self.0.iter().flat_map(Case::errors).collect::<Vec<f64>>())
    }

    /// Of the cases that are no tie, the share with a right choice.
    pub fn right(&self) -> Option<f64> {
        self.right_of(|_| true)
    }

    /// Of the cases that are no tie and in which what had been measured was sure, the share with a right choice.
    pub fn right_of_sure(&self) -> Option<f64> {
        self.right_of(|case| !case.is_unsure())
    }

    fn right_of(&self, which: impl Fn(&Case) -> bool) -> Option<f64> {
        let open = self.0.iter().filter(|case| which(case) && !case.is_tie());
        mean(&open.map(|case| f64::from(case.is_right())).collect::<Vec<f64>>())
    }

    /// Mean regret over all cases.
    pub fn regret(&self) -> Option<f64> {
        mean(&self.0.iter().map(Case::regret).collect::<Vec<f64>>())
    }

    /// Cases in which no choice is wrong.
    pub fn ties(&self) -> usize {
        self.0.iter().filter(|case| case.is_tie()).count()
    }

    /// Cases in which what had been measured was not sure.
    pub fn unsure(&self) -> usize {
        self.0.iter().filter(|case| case.is_unsure()).count()
    }

    /// Cases with a wrong choice.
    pub fn wrong(&self) -> impl Iterator<Item = &Case> {
        self.0.iter().filter(|case| !case.is_right())
    }

    /// By stage, in the order in which stages first come.
    pub fn by_stage(&self) -> Vec<(&str, Cases)> {
        // A record may name a stage for each of its cases.
        let (mut stages, mut places) = (Vec::<(&str, Cases)>::new(), BTreeMap::new());
        for case in &self.0 {
            let at = *places.entry(case.stage.as_str()).or_insert(stages.len());
            if at == stages.len() {
                stages.push((&case.stage, Cases::default()));
            }
            stages[at].1.0.push(case.clone());
        }
        stages
    }
}

/// For a person: the whole, each stage, each wrong case, and what was not measured.
impl Display for Check {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.cases)?;
        self.skipped.iter().try_for_each(|Skipped { name, reason }| writeln!(out, "not checked: {name}: {reason}"))
    }
}

/// For a person: the whole, each stage, and each wrong case.
impl Display for Cases {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", summary("all", self))?;
        self.by_stage().iter().try_for_each(|(stage, cases)| writeln!(out, "{}", summary(stage, cases)))?;
        for case in self.wrong() {
            let Some(best) = case.best() else { continue };
            writeln!(
                out,
                "wrong: {}, {}, {}, {}: advised {} ({}), but {} gains {} times ({} predicted); regret {} %",
                case.stage,
                case.route,
                case.objective,
                size(case.size),
                case.choice,
                case.verdict,
                best.name,
                digits(best.measured),
                digits(best.predicted),
                digits(case.regret() * 100.0)
            )?;
        }
        Ok(())
    }
}

fn summary(name: &str, cases: &Cases) -> String {
    let percent = |value: Option<f64>| value.map_or("–".to_string(), |value| format!("{} %", digits(value * 100.0)));
    format!(
        "{name}: {} cases ({} ties, {} not sure): predicted gains off by {} in the median, {} of the choices \
         outside ties right, {} of those that were sure, mean regret {}",
        cases.0.len(),
        cases.ties(),
        cases.unsure(),
        percent(cases.error()),
        percent(cases.right()),
        percent(cases.right_of_sure()),
        percent(cases.regret())
    )
}

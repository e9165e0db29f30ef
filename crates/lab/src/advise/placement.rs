//! How advice is written: as a placement in TOML, whose schema is in `docs/placement.md`, and as text.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter, Write};

use serde::{Deserialize, Serialize};

use super::answer::{Answer, Decided, FEWEST, Gain, Range};
use super::question::Objective;
use super::verdict::Verdict;
use super::{Advice, Sourced};
use crate::unit::{Unit, digits, size};

/// Version of the schema.
pub const VERSION: u32 = 2;

/// A placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// [`VERSION`].
    pub version: u32,
    /// What is to be placed, and where.
    #[serde(default, rename = "place")]
    pub places: Vec<Place>,
    /// What was not measured.
    #[serde(default, rename = "missing")]
    pub missing: Vec<Gap>,
}

/// Where one piece of work is to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Which work.
    pub stage: String,
    /// On what.
    pub route: String,
    /// What is weighed: `throughput`, `latency` or `processor time`.
    pub objective: String,
    /// The way that is taken where nothing is said.
    pub default: String,
    /// The record that it rests on.
    pub record: String,
    /// The host that the record is of.
    pub host: String,
    /// What tells its computer from others like it.
    pub identity: Option<String>,
    /// By the size of messages.
    #[serde(rename = "range")]
    pub ranges: Vec<PlaceRange>,
}

/// Where it is done for messages of some sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceRange {
    /// Bytes of the smallest message; absent where there is no size.
    pub from: Option<u64>,
    /// Of the largest.
    pub to: Option<u64>,
    /// The way to take.
    pub choice: String,
    /// `better`, `no offload`, `likely better` or `not distinguishable`.
    pub verdict: String,
    /// How many times less the choice costs than the default, at `at`.
    pub gain: f64,
    /// Lower end of its 95 % interval.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// Bytes of the message whose figures these are.
    pub at: Option<u64>,
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// Which work cannot be placed.
    pub stage: String,
    /// What is not known.
    pub what: String,
    /// What measures it.
    pub remedy: String,
}

impl Placement {
    /// The placement that advice comes to.
    pub fn of(advice: &Advice) -> Placement {
        let gap = |it: &super::Missing| Gap {
            stage: it.stage.name().to_string(),
            what: it.what.clone(),
            remedy: it.remedy.clone(),
        };
        Placement {
            version: VERSION,
            places: advice.answers.iter().map(place).collect(),
            missing: advice.missing.iter().map(gap).collect(),
        }
    }

    /// As TOML.
    ///
    /// # Errors
    /// Never for a placement that [`Placement::of`] made.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        Ok(format!(
            "# A placement by underpass advise. What its entries mean: docs/placement.md.\n{}",
            toml::to_string(self)?
        ))
    }
}

fn place(Sourced { record, host, identity, answer, .. }: &Sourced) -> Place {
    Place {
        stage: answer.stage.name().to_string(),
        route: answer.route.clone(),
        objective: answer.objective.name().to_string(),
        default: answer.default.clone(),
        record: record.clone(),
        host: host.clone(),
        identity: identity.clone(),
        ranges: answer.ranges.iter().map(place_range).collect(),
    }
}

fn place_range(range: &Range) -> PlaceRange {
    let decided = &range.decided;
    let chosen = decided.chosen();
    let interval = chosen.and_then(|way| way.interval);
    PlaceRange {
        from: range.from,
        to: range.to,
        choice: decided.choice.clone(),
        verdict: decided.verdict.name().to_string(),
        gain: chosen.map_or(1.0, |way| rounded(way.times)),
        low: interval.map(|it| rounded(it.low)),
        high: interval.map(|it| rounded(it.high)),
        at: (decided.size > 0).then_some(decided.size),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

impl Sourced {
    /// The host for a person; with its identity, where it could be another computer like it.
    fn place(&self) -> String {
        let identity = self.identity.as_deref().unwrap_or("of an identity that the record does not tell");
        if self.is_one_of_several { format!("{}; computer {identity}", self.host) } else { self.host.clone() }
    }
}

/// The advice for a person: each choice with the figures that it rests on.
impl Display for Advice {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let records: BTreeSet<(&str, String)> = self.answers.iter().map(|it| (&*it.record, it.place())).collect();
        records.iter().try_for_each(|(record, place)| writeln!(out, "record {record}: {place}"))?;
        let mut stage = None;
        for Sourced { record, answer, .. } in &self.answers {
            if stage != Some(answer.stage) {
                writeln!(out, "\n{}", answer.stage.name().to_uppercase())?;
                stage = Some(answer.stage);
            }
            writeln!(out, "  {} ({}; default: {})", answer.route, answer.objective.name(), answer.default)?;
            answer.ranges.iter().try_for_each(|range| writeln!(out, "    {}", told(answer, range)))?;
            writeln!(out, "      record {record}; rows {}", rows(answer))?;
        }
        if !self.missing.is_empty() {
            writeln!(out, "{}NOT MEASURED", if self.answers.is_empty() { "" } else { "\n" })?;
        }
        for missing in &self.missing {
            writeln!(out, "  {}: {}. To measure it: {}", missing.stage.name(), missing.what, missing.remedy)?;
        }
        let of_records = [
            ("Quick runs, whose figures are not for quoting", &self.quick),
            ("Not complete, as they were ended before all was measured", &self.unfinished),
            (
                "Not used, as a newer record of the same host, a fuller one or one of more samples answers the same",
                &self.passed_over,
            ),
            ("Not used, as there is nothing to choose in them", &self.silent),
        ];
        let mut told = of_records.into_iter().filter(|(_, records)| !records.is_empty());
        told.try_for_each(|(what, records)| writeln!(out, "\n{what}: {}", records.join(", ")))
    }
}

fn told(answer: &Answer, range: &Range) -> String {
    let decided = &range.decided;
    let mut text = match (range.from, range.to) {
        (Some(from), Some(to)) if from == to => format!("{}: ", size(from)),
        (Some(from), Some(to)) => format!("{} to {}: ", size(from), size(to)),
        _ => String::new(),
    };
    // Writing to a string does not fail.
    let _ = match (decided.verdict, decided.example()) {
        (Verdict::Better, Some(chosen)) => {
            write!(text, "{}. {}", decided.choice, gained(answer.objective, decided, chosen))
        }
        (Verdict::NoOffload, Some(best)) => {
            let words = "no offload: no other way gains 5 % or more; the best,";
            write!(text, "{}, {words} {}, {}", decided.choice, best.name, gained(answer.objective, decided, best))
        }
        (Verdict::LikelyBetter, Some(chosen)) => {
            let words = "likely better, but not surely:";
            write!(text, "{}, {words} {}", decided.choice, gained(answer.objective, decided, chosen))
        }
        (Verdict::NotDistinguishable, Some(best)) => {
            let words = "not distinguishable: the best of the others,";
            write!(text, "{}, {words} {}, {}", decided.choice, best.name, gained(answer.objective, decided, best))
        }
        (_, None) => Ok(()),
    };
    text
}

/// `1.42 times the throughput (1.31 to 1.55) at 16 KiB: 3.20 µs instead of 4.54 µs a message`.
fn gained(objective: Objective, decided: &Decided, way: &Gain) -> String {
    let sure = match way.interval.map(|it| [it.low, it.high].map(digits).join(" to ")) {
        None => "one sample, so that nobody knows how sure".to_string(),
        Some(ends) if way.samples < FEWEST => format!("{ends} in {} samples, too few to be sure", way.samples),
        Some(ends) => ends,
    };
    let (times, what) = match objective {
        Objective::Throughput => (way.times, "times the throughput"),
        Objective::Latency => (way.times, "times as fast"),
        Objective::Processor => (way.times, "times the work of the same processor time"),
    };
    let at = match decided.size {
        0 => String::new(),
        bytes if decided.is_measured => format!(" at {}", size(bytes)),
        bytes => format!(" at {} (predicted)", size(bytes)),
    };
    let [default, chosen] = way.costs.map(|cost| Unit::Nanoseconds.show(cost));
    format!("{} {what} ({sure}){at}: {chosen} instead of {default}", digits(times))
}

/// The rows of the record that an answer rests on.
fn rows(answer: &Answer) -> String {
    answer.groups.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

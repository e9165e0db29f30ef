//! A survey of endpoints, as `underpass survey` writes it: what is needed to draw it and to draw advice from it.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{LONGEST_TEXT, Problem};
use crate::host::Host;
use crate::record::Skipped;
use crate::unit::{Better, Unit};

/// What [`Head::format`](super::Head) is in a survey.
pub const FORMAT: &str = "underpass-survey";
/// The version of the format that is read.
const SCHEMA: u32 = 1;
const MOST_ENDPOINTS: usize = 100;
const MOST_SERIES: usize = 200_000;

/// One survey.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Survey {
    /// What the report and the advice call it: the file's name without its ending.
    #[serde(skip)]
    pub name: String,
    schema: u32,
    /// When it began, UTC, as in RFC 3339.
    pub date: String,
    /// Version of Underpass.
    pub version: String,
    /// Revision of the checkout.
    pub revision: Option<String>,
    /// Seed of the order of the samples.
    pub seed: u64,
    /// Whether all that was planned was measured, or is named as skipped.
    pub complete: bool,
    /// What was asked for.
    pub plan: Plan,
    /// Where it was measured.
    pub endpoints: Vec<Endpoint>,
    /// What was measured.
    pub series: Vec<Series>,
    /// What was not, and why.
    pub skipped: Vec<Skipped>,
    /// What the data say of the paper's observations.
    pub observations: Vec<Observation>,
}

/// What a survey was asked for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Plan {
    /// Samples of each series.
    pub samples: usize,
    /// Whether its figures are not for quoting.
    pub quick: bool,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
    /// `host`, `smartnic`, `vm`, `container` or `namespace`.
    pub kind: String,
    /// The computer that it is inside of.
    pub system: String,
    /// How it is emulated, if it is.
    pub emulation: Option<String>,
    /// Whether it only stands for what `kind` says.
    pub emulated: bool,
    /// Its host.
    pub host: Host,
}

/// All samples of one figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Series {
    /// Endpoint that sends, or begins.
    pub sender: String,
    /// Endpoint that receives, or answers.
    pub receiver: String,
    /// Endpoint to which the sender offloads TLS.
    pub via: Option<String>,
    /// Tool at both ends.
    pub tool: String,
    /// `throughput`, `latency` or `tls`.
    pub metric: String,
    /// Bytes of a write, a message or a file.
    pub size: u64,
    /// Connections at a time.
    pub flows: u32,
    /// `idle` or `stream`.
    pub load: String,
    /// `kernel` or `underpass`.
    pub path: String,
    /// Unit of the samples.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// In the order in which they were taken.
    pub samples: Vec<Sample>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Sample {
    /// The figure.
    pub value: f64,
    /// Bytes that the receiver got.
    pub bytes: Option<u64>,
    /// Messages there and back.
    pub exchanges: Option<u64>,
    /// Processor time at the sender, in ns.
    pub sender_time: u64,
    /// Processor time at the receiver, in ns.
    pub receiver_time: u64,
}

/// What the data say of one of the paper's observations.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Observation {
    /// Which.
    pub name: String,
    /// `confirmed`, `not-confirmed` or `undecided`.
    pub verdict: String,
    /// Why, with figures.
    pub text: String,
}

impl Survey {
    /// Parses and checks a survey.
    ///
    /// # Errors
    /// It is damaged, of another version of the format, or has figures that cannot be true.
    pub fn parse(name: String, text: &[u8]) -> Result<Survey, Problem> {
        let survey = Survey { name, ..serde_json::from_slice(text)? };
        if survey.schema != SCHEMA {
            return Err(Problem::Unknown(format!("survey, version {} of the format", survey.schema)));
        }
        survey.check()?;
        Ok(survey)
    }

    fn check(&self) -> Result<(), Problem> {
        if self.endpoints.len() > MOST_ENDPOINTS || self.series.len() > MOST_SERIES {
            let most = format!("has more than {MOST_ENDPOINTS} endpoints or {MOST_SERIES} series");
            return Err(Problem::Excessive(most));
        }
        let mut texts = self.endpoints.iter().flat_map(|it| [&it.name, &it.kind, &it.system]);
        let mut others = self.observations.iter().flat_map(|it| [&it.name, &it.verdict, &it.text]);
        if texts.any(|it| it.len() > LONGEST_TEXT) || others.any(|it| it.len() > LONGEST_TEXT) {
            return Err(Problem::Excessive(format!("has a text of more than {LONGEST_TEXT} bytes")));
        }
        let names: BTreeSet<&str> = self.endpoints.iter().map(|it| it.name.as_str()).collect();
        for series in &self.series {
            let measurement = format!("{} → {}: {}, {}", series.sender, series.receiver, series.metric, series.size);
            let wrong = |what: String| Problem::Impossible { measurement: measurement.clone(), what };
            let ends = [Some(&series.sender), Some(&series.receiver), series.via.as_ref()];
            if let Some(stranger) = ends.into_iter().flatten().find(|name| !names.contains(name.as_str())) {
                return Err(wrong(format!("{stranger:?} is none of its endpoints")));
            }
            let bad = series.samples.iter().find(|it| !(it.value.is_finite() && it.value > 0.0));
            if let Some(sample) = bad {
                return Err(wrong(format!("{} {} is no such figure", sample.value, series.unit.symbol())));
            }
        }
        Ok(())
    }
}

impl Series {
    /// The samples' values.
    pub fn values(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.value).collect()
    }
}

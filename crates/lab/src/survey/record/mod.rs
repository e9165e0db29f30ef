//! The record of a survey: every sample of every ordered pair of endpoints, and what was left out.
//!
//! docs/json.md describes the fields for other programs. [`SCHEMA`] grows when a field changes its meaning. Here are
//! the parts of a record; `file` writes and reads them.

mod endpoint;
mod file;
mod observation;
mod plan;
mod series;
mod word;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::record::{Skipped, Surveyed};

pub use endpoint::{Endpoint, Kind, Tool, ToolVersion};
pub use file::ReadError;
pub(super) use file::Version;
pub use observation::{Effect, Observation, ObservationName, TwoWay, Verdict};
pub use plan::{Latency, Plan, Throughput};
pub use series::{Key, Load, Metric, Percentiles, Sample, Series, Summary};
pub(crate) use word::word;

/// The version of the format that this software writes and reads.
pub const SCHEMA: u32 = 1;

/// What [`Head::format`] is, so that a reader can tell a survey from another record of Underpass.
pub const FORMAT: &str = "underpass-survey";

/// Most samples of one survey: as many as a record can have that is read again
/// ([`MOST_OF_RECORD`](crate::input::MOST_OF_RECORD)).
pub const MOST_SAMPLES: usize = 80_000;

/// Most endpoints of one survey: a report has a table of all pairs for each figure.
pub const MOST_ENDPOINTS: usize = 100;

/// Most cells of all tables that a report has of one survey; see [`cells`].
pub const MOST_CELLS: usize = 100_000;

/// Most sizes of one curve.
pub const MOST_SIZES: usize = 1000;

/// Longest name of an endpoint or its system, in bytes.
pub const LONGEST_NAME: usize = 64;

/// Longest other text of a record, in bytes.
pub const LONGEST_TEXT: usize = 4096;

/// Cells of the tables that a report has of these figures: for each size of each kind one for each pair of a sender and
/// a receiver that occur, and for each sender of a kind one for each of its sizes and receivers. A record of a few MiB
/// could have tables of which all cells but a few are empty.
pub fn cells<'a>(keys: impl Iterator<Item = &'a Key>) -> usize {
    type Both<'a, T> = (BTreeSet<T>, BTreeSet<&'a String>);
    let (mut maps, mut curves) = (BTreeMap::<_, Both<&String>>::new(), BTreeMap::<_, Both<u64>>::new());
    for key in keys.filter(|key| key.via.is_none()) {
        let kind = (key.metric, key.flows, key.load, key.path);
        let (senders, receivers) = maps.entry((kind, key.size)).or_default();
        senders.insert(&key.sender);
        receivers.insert(&key.receiver);
        let (sizes, receivers) = curves.entry((kind, &key.sender)).or_default();
        sizes.insert(key.size);
        receivers.insert(&key.receiver);
    }
    let of_maps = maps.values().map(|(senders, receivers)| senders.len() * receivers.len());
    of_maps.chain(curves.values().map(|(sizes, receivers)| sizes.len() * receivers.len())).sum()
}

/// One survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurveyRecord {
    /// What was surveyed, and how.
    #[serde(flatten)]
    pub head: Head,
    /// Whether all samples of the plan were taken or are named in `skipped`.
    pub complete: bool,
    /// What was measured.
    pub series: Vec<Series>,
    /// What was not measured, and why.
    pub skipped: Vec<Skipped>,
    /// The observations of Miyagawa et al. (BlueField-2), tested on these data.
    pub observations: Vec<Observation>,
}

/// What was surveyed, and how. Samples of two surveys whose heads differ in more than the date are never mixed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// [`SCHEMA`] of the software that wrote it.
    pub schema: u32,
    /// When the survey began, UTC, as in RFC 3339.
    pub date: String,
    /// Version of Underpass, the same at the coordinator and at all endpoints.
    pub version: String,
    /// Revision of the coordinator's checkout, if its executable lies in one.
    pub revision: Option<String>,
    /// Seed of the order of the samples.
    pub seed: u64,
    /// What was asked for.
    pub plan: Plan,
    /// Where it was measured.
    pub endpoints: Vec<Endpoint>,
}

impl Head {
    /// What tells the survey from others.
    pub fn surveyed(&self) -> Surveyed {
        let one = |it: &Endpoint| {
            let identity = it.host.identity.as_ref().map(|identity| format!(", computer {identity}"));
            format!("{} on {}{}", it.name, it.host, identity.unwrap_or_default())
        };
        Surveyed { date: self.date.clone(), endpoints: self.endpoints.iter().map(one).collect() }
    }
}

impl SurveyRecord {
    /// Whether an endpoint of this series is emulated.
    pub fn emulates(&self, key: &Key) -> bool {
        let names = [Some(&key.sender), Some(&key.receiver), key.via.as_ref()];
        let takes_part = |endpoint: &&Endpoint| names.contains(&Some(&endpoint.name));
        self.head.endpoints.iter().filter(takes_part).any(|endpoint| endpoint.emulated)
    }

    /// The endpoint of this name.
    pub fn endpoint(&self, name: &str) -> Option<&Endpoint> {
        self.head.endpoints.iter().find(|endpoint| endpoint.name == name)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::host::Host;
    use crate::launcher::Side;

    fn endpoint(name: &str, kind: Kind, emulated: bool) -> Endpoint {
        Endpoint {
            name: name.to_string(),
            kind,
            system: "a".to_string(),
            emulated,
            emulation: emulated.then(|| "30 % of one processor".to_string()),
            address: "10.9.0.1".to_string(),
            host: Host::describe(),
            tools: vec![ToolVersion { tool: Tool::Iperf3, version: "3.12".to_string() }],
            library: false,
            network: "n".to_string(),
            user: Some(0),
            revision: None,
            clock_offset: -5,
            clock_round_trip: 100,
        }
    }

    /// A survey with one series of throughput and one of latency.
    pub(crate) fn example() -> SurveyRecord {
        let key = |metric, tool, size| Key {
            sender: "host-a".to_string(),
            receiver: "nic-a".to_string(),
            via: None,
            tool,
            metric,
            size,
            flows: 1,
            load: Load::Idle,
            path: Side::Kernel,
        };
        let sample = |value, percentiles| Sample {
            at: "2026-11-27T08:00:00.123Z".to_string(),
            value,
            percentiles,
            seconds: 1.0,
            bytes: Some(value as u64),
            exchanges: None,
            sender_time: 1_000_000,
            receiver_time: 2_000_000,
            via_time: None,
            stream_bytes: None,
        };
        let series = |key: Key, samples| {
            let (unit, better) = (key.metric.unit(), key.metric.better());
            Series { key, unit, better, samples, summary: None }
        };
        let percentiles = Some(Percentiles { p50: 9e3, p99: 2e4, p999: 5e4 });
        let plan = Plan {
            samples: 2,
            seconds: 1,
            brief: false,
            quick: true,
            throughput: vec![Throughput { size: 64, flows: 1 }],
            latency: vec![Latency { size: 64, load: Load::Idle }],
            latency_tool: None,
            tls: Vec::new(),
            underpass: true,
        };
        SurveyRecord {
            head: Head {
                format: FORMAT.to_string(),
                schema: SCHEMA,
                date: "2026-11-27T08:00:00Z".to_string(),
                version: env!("CARGO_PKG_VERSION").to_string(),
                revision: None,
                seed: 7,
                plan,
                endpoints: vec![endpoint("host-a", Kind::Host, false), endpoint("nic-a", Kind::Smartnic, true)],
            },
            complete: true,
            series: vec![
                series(key(Metric::Throughput, Tool::Iperf3, 64), vec![sample(1e9, None), sample(2e9, None)]),
                series(key(Metric::Latency, Tool::Sockperf, 64), vec![sample(1e4, percentiles)]),
            ],
            skipped: Vec::new(),
            observations: Vec::new(),
        }
    }
}

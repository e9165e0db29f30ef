//! What a survey is asked to measure.

use serde::{Deserialize, Serialize};

use super::endpoint::Tool;
use super::series::Load;

/// What a survey measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Samples of each series.
    pub samples: usize,
    /// Seconds that each measurement of throughput or latency runs.
    pub seconds: u32,
    /// Whether throughput is of as many bytes as take about a third of a second on one computer, instead of `seconds`.
    #[serde(default)]
    pub brief: bool,
    /// Whether it was a run with `--quick`, whose figures are not for quoting.
    pub quick: bool,
    /// Throughput: bytes of a write, and numbers of flows with each.
    pub throughput: Vec<Throughput>,
    /// Latency: bytes of a message, and what else runs meanwhile.
    pub latency: Vec<Latency>,
    /// The tool that measures it; if none is named, sockperf or qperf, as more endpoints have it.
    #[serde(default)]
    pub latency_tool: Option<Tool>,
    /// Transfer over TLS: bytes of the file.
    pub tls: Vec<u64>,
    /// Whether pairs between which Underpass has a fast path are measured under it too, and each endpoint with itself.
    pub underpass: bool,
}

/// Throughput that is measured for each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throughput {
    /// Bytes of a write.
    pub size: u64,
    /// TCP connections at a time.
    pub flows: u32,
}

/// Latency that is measured for each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Bytes of a message.
    pub size: u64,
    /// What else runs.
    pub load: Load,
}

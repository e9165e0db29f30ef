//! What was measured: samples, and which figure they are of.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::endpoint::Tool;
use super::word::word;
use crate::launcher::Side;
use crate::unit::{Better, Unit, size};

/// What a series measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Bytes per second that the receiver got.
    Throughput,
    /// Half the time there and back, in ns.
    Latency,
    /// Time from the first byte of a file until the receiver has confirmed all of it over the same TLS connection, in
    /// ns.
    Tls,
}

/// What runs between the same two endpoints while a figure is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Nothing.
    Idle,
    /// A stream of 64 KiB writes by iperf3 in the same direction.
    Stream,
}

/// What tells one series from the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Endpoint that sends; of latency, that which begins.
    pub sender: String,
    /// Endpoint that receives; of latency, that which answers.
    pub receiver: String,
    /// Endpoint to which the sender offloads TLS; `None` if the sender encrypts by itself, and of the other metrics.
    pub via: Option<String>,
    /// Tool at both ends.
    pub tool: Tool,
    /// What is measured.
    pub metric: Metric,
    /// Bytes of a write, a message or the file.
    pub size: u64,
    /// TCP connections at a time.
    pub flows: u32,
    /// What else runs.
    pub load: Load,
    /// Kernel TCP, or the library at both ends.
    pub path: Side,
}

/// All samples of one figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Which figure.
    #[serde(flatten)]
    pub key: Key,
    /// Unit of `value`, `median`, `low` and `high`.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// In the order in which they were taken.
    pub samples: Vec<Sample>,
    /// What they come to; `None` without a sample.
    pub summary: Option<Summary>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was taken, by the coordinator's clock, UTC, RFC 3339 with milliseconds.
    pub at: String,
    /// The figure.
    pub value: f64,
    /// For latency by sockperf: how the single exchanges were distributed, in ns.
    pub percentiles: Option<Percentiles>,
    /// Seconds that it ran.
    pub seconds: f64,
    /// Bytes that the receiver got, of throughput and TLS.
    pub bytes: Option<u64>,
    /// Messages there and back, of latency, where the tool tells.
    pub exchanges: Option<u64>,
    /// Processor time of the measured programs at the sender, in ns.
    pub sender_time: u64,
    /// Processor time at the receiver.
    pub receiver_time: u64,
    /// Processor time at the endpoint to which TLS was offloaded.
    pub via_time: Option<u64>,
    /// Bytes that the stream beside carried, until it was ended; absent in older records.
    #[serde(default)]
    pub stream_bytes: Option<u64>,
}

/// Percentiles of the exchanges within one sample, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of the exchanges took no longer.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    pub p999: f64,
}

/// What the samples of a series come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median of the values.
    pub median: f64,
    /// Lower end of the 95 % bootstrap interval of the median; `None` of one sample, which says nothing of it.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// The median of each percentile of the samples.
    pub percentiles: Option<Percentiles>,
    /// Median processor time at the sender, in ns per byte, of latency per exchange.
    pub sender_cost: Option<f64>,
    /// Median processor time at the receiver.
    pub receiver_cost: Option<f64>,
    /// Median processor time at the endpoint to which TLS was offloaded.
    pub via_cost: Option<f64>,
}

impl Series {
    /// The samples' values.
    pub fn values(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.value).collect()
    }
}

impl Metric {
    /// Unit of its figures.
    pub fn unit(self) -> Unit {
        match self {
            Metric::Throughput => Unit::BytesPerSecond,
            Metric::Latency | Metric::Tls => Unit::Nanoseconds,
        }
    }

    /// Which way is better.
    pub fn better(self) -> Better {
        match self {
            Metric::Throughput => Better::Higher,
            Metric::Latency | Metric::Tls => Better::Lower,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} → {}: {}", self.sender, self.receiver, self.figure())
    }
}

impl Key {
    /// The figure without its size: what figures of several sizes make a curve of.
    pub fn curve(&self) -> String {
        let via = self.via.as_ref().map(|via| format!(", encrypted by {via}")).unwrap_or_default();
        let path = if self.path == Side::Underpass { ", under Underpass" } else { "" };
        format!("{} → {}: {}{via}{path}", self.sender, self.receiver, word(self.metric))
    }

    /// What is measured, without the pair.
    pub fn figure(&self) -> String {
        let mut text = format!("{}, {}", word(self.metric), size(self.size));
        if self.flows != 1 {
            text += &format!(", {} flows", self.flows);
        }
        if self.load == Load::Stream {
            text += ", beside a stream";
        }
        if let Some(via) = &self.via {
            text += &format!(", encrypted by {via}");
        }
        if self.path == Side::Underpass {
            text += ", under Underpass";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn a_key_reads_as_a_sentence() {
        let mut key = example().series[1].key.clone();
        (key.load, key.path, key.flows) = (Load::Stream, Side::Underpass, 4);
        assert_eq!(key.to_string(), "host-a → nic-a: latency, 64 B, 4 flows, beside a stream, under Underpass");
    }
}

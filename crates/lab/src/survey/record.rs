//! The record of a survey: every sample of every ordered pair of endpoints, and what was left out.
//!
//! docs/json.md describes the fields for other programs. [`SCHEMA`] grows when a field changes its meaning.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::launcher::Side;
use crate::record::Skipped;
use crate::unit::{Better, Unit, size};

/// The version of the format that this software writes and reads.
pub const SCHEMA: u32 = 1;

/// What [`SurveyRecord::format`] is, so that a reader can tell a survey from another record of Underpass.
pub const FORMAT: &str = "underpass-survey";

/// One survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurveyRecord {
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
    /// Whether all samples of the plan were taken or are named in `skipped`.
    pub complete: bool,
    /// What was asked for.
    pub plan: Plan,
    /// Where it was measured.
    pub endpoints: Vec<Endpoint>,
    /// What was measured.
    pub series: Vec<Series>,
    /// What was not measured, and why.
    pub skipped: Vec<Skipped>,
    /// The observations of Miyagawa et al. (BlueField-2), tested on these data.
    pub observations: Vec<Observation>,
}

/// What a survey measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Samples of each series.
    pub samples: usize,
    /// Seconds that each measurement of throughput or latency runs.
    pub seconds: u32,
    /// Whether it was a run with `--quick`, whose figures are not for quoting.
    pub quick: bool,
    /// Throughput: bytes of a write, and numbers of flows with each.
    pub throughput: Vec<Throughput>,
    /// Latency: bytes of a message, and what else runs meanwhile.
    pub latency: Vec<Latency>,
    /// Transfer over TLS: bytes of the file.
    pub tls: Vec<u64>,
    /// Whether pairs that both have the library are measured under Underpass too.
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

/// One endpoint, as it described itself when the survey began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name in the file of endpoints.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The computer or other unit that it is inside of; endpoints with the same word belong together.
    pub system: String,
    /// Whether it only stands for what `kind` says.
    pub emulated: bool,
    /// How it is emulated.
    pub emulation: Option<String>,
    /// Address of the measured connections.
    pub address: String,
    /// Processor, kernel and the rest.
    pub host: Host,
    /// Tools with their versions, in the order of their names.
    pub tools: Vec<ToolVersion>,
    /// Whether it has the library of Underpass.
    pub library: bool,
    /// Identity of its network stack: endpoints with the same share a kernel and a network namespace.
    pub network: String,
    /// Revision of its checkout, if its executable lies in one.
    pub revision: Option<String>,
    /// Its clock less the coordinator's, in ns. All figures are differences of one clock, so this bears on none.
    pub clock_offset: i64,
    /// Time to the agent and back, in ns, by which `clock_offset` may be wrong.
    pub clock_round_trip: u64,
}

/// What an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The processor of a computer.
    Host,
    /// The own cores of a SmartNIC.
    Smartnic,
    /// A virtual machine.
    Vm,
    /// A container.
    Container,
    /// A network namespace.
    Namespace,
}

/// A tool that an endpoint has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolVersion {
    /// The tool.
    pub tool: Tool,
    /// Its version: `3.12`.
    pub version: String,
}

/// The tools. No series mixes two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// Throughput.
    Iperf3,
    /// TLS.
    Openssl,
    /// Latency, without percentiles.
    Qperf,
    /// Latency, with percentiles.
    Sockperf,
}

/// What a series measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Bytes per second that the receiver got.
    Throughput,
    /// Half the time there and back, in ns.
    Latency,
    /// Time from the first byte of a file until the receiver has confirmed all of it over the same TLS connection, in ns.
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
    /// Of latency by sockperf: how the single exchanges were distributed, in ns.
    pub percentiles: Option<Percentiles>,
    /// Seconds that it ran.
    pub seconds: f64,
    /// Bytes that the receiver got, of throughput and TLS.
    pub bytes: Option<u64>,
    /// Messages there and back, of latency, where the tool tells.
    pub exchanges: Option<u64>,
    /// Processor time of the measured programs at the sender, in ns.
    pub sender_time: u64,
    /// The same at the receiver.
    pub receiver_time: u64,
    /// The same at the endpoint to which TLS was offloaded.
    pub via_time: Option<u64>,
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
    /// Lower end of the 95 % bootstrap interval of the median.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The median of each percentile of the samples.
    pub percentiles: Option<Percentiles>,
    /// Median processor time at the sender, in ns per byte, of latency per exchange.
    pub sender_cost: Option<f64>,
    /// The same at the receiver.
    pub receiver_cost: Option<f64>,
    /// The same at the endpoint to which TLS was offloaded.
    pub via_cost: Option<f64>,
}

/// A published observation, and what these data say to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Which.
    pub name: ObservationName,
    /// What these data say.
    pub verdict: Verdict,
    /// The reason, with figures, for people.
    pub text: String,
    /// The two-way model: `None` if it could not be fitted.
    pub model: Option<TwoWay>,
}

/// The published observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObservationName {
    /// How throughput grows with size follows the kind of the sender.
    GrowthFollowsSender,
    /// The greatest throughput follows the kind of the receiver.
    MaximumFollowsReceiver,
    /// Latency follows the kind of the receiver.
    LatencyFollowsReceiver,
}

/// What the data say of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The named end decides more than the other, beyond chance.
    Confirmed,
    /// The named end does not.
    NotConfirmed,
    /// The data do not tell.
    Undecided,
}

/// `ln(figure) = mean + sender + receiver + residual`, fitted by least squares over all measured pairs.
///
/// An effect is the natural logarithm of a factor, SmartNIC against host: 0 is no effect, -0.69 is half.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwoWay {
    /// Effect of a SmartNIC as the sender.
    pub sender: Effect,
    /// Effect of a SmartNIC as the receiver.
    pub receiver: Effect,
    /// Standard deviation of what the model leaves, as a natural logarithm.
    pub residual: f64,
    /// Share of the variance that the model explains, 0 to 1.
    pub explained: f64,
    /// Pairs in it.
    pub pairs: usize,
}

/// An effect with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// From all samples.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Why a file is no survey that this software can read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the survey {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// It is something else, or damaged.
    #[error("{} is not a whole survey of Underpass: {error}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Where it stops making sense.
        error: serde_json::Error,
    },
    /// It is of another version of the format.
    #[error("{} has version {found} of the format and this software reads version {SCHEMA}; read it with the version of \
             Underpass that wrote it, or measure again", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// What is read first, to tell the version of the format.
#[derive(Deserialize)]
struct Head {
    format: String,
    schema: u32,
}

impl SurveyRecord {
    /// Writes everything as one JSON object. The file is replaced as a whole.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_json(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = BufWriter::new(tempfile::Builder::new().prefix(".underpass-survey-").tempfile_in(folder)?);
        serde_json::to_writer_pretty(&mut file, self)?;
        writeln!(file)?;
        let file = file.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        file.as_file().set_permissions(readable)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Reads what [`SurveyRecord::write_json`] wrote.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read_json(path: &Path) -> Result<SurveyRecord, ReadError> {
        let text = std::fs::read(path).map_err(|error| ReadError::File { path: path.into(), error })?;
        SurveyRecord::parse(&text, path)
    }

    fn parse(text: &[u8], path: &Path) -> Result<SurveyRecord, ReadError> {
        let content = |error| ReadError::Content { path: path.into(), error };
        let head: Head = serde_json::from_slice(text).map_err(content)?;
        if head.format != FORMAT {
            let error = serde::de::Error::custom(format!("its format is {:?}, not {FORMAT:?}", head.format));
            return Err(content(error));
        }
        if head.schema != SCHEMA {
            return Err(ReadError::Schema { path: path.into(), found: head.schema });
        }
        serde_json::from_slice(text).map_err(content)
    }

    /// Writes one line per sample as CSV (RFC 4180).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_csv(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "# Underpass {} {}", self.version, self.revision.as_deref().unwrap_or("(no revision)"))?;
        writeln!(file, "# {}; seed {}", self.date, self.seed)?;
        writeln!(
            file,
            "sender,receiver,via,emulated,tool,metric,size_bytes,flows,load,path,unit,sample,at,value,p50_ns,p99_ns,p999_ns,\
             seconds,bytes,exchanges,sender_time_ns,receiver_time_ns,via_time_ns"
        )?;
        for series in &self.series {
            for (number, sample) in series.samples.iter().enumerate() {
                writeln!(file, "{}", self.line(series, number + 1, sample))?;
            }
        }
        file.flush()
    }

    fn line(&self, series: &Series, number: usize, sample: &Sample) -> String {
        fn text(value: Option<impl ToString>) -> String {
            value.map(|value| value.to_string()).unwrap_or_default()
        }
        let Key { sender, receiver, via, size, flows, .. } = &series.key;
        let words = [word(series.key.tool), word(series.key.metric)].join(",");
        let state = [word(series.key.load), word(series.key.path)].join(",");
        let percentiles = [|it: Percentiles| it.p50, |it: Percentiles| it.p99, |it: Percentiles| it.p999];
        let percentiles = percentiles.map(|of| text(sample.percentiles.map(of))).join(",");
        let emulated = self.emulates(&series.key);
        let (via, unit) = (via.as_deref().unwrap_or_default(), series.unit.symbol());
        let counts = [text(sample.bytes), text(sample.exchanges)].join(",");
        let times = [sample.sender_time, sample.receiver_time].map(|time| time.to_string()).join(",");
        let via_time = text(sample.via_time);
        format!(
            "{sender},{receiver},{via},{emulated},{words},{size},{flows},{state},{unit},{number},{},{},{percentiles},{},{counts},\
             {times},{via_time}",
            sample.at, sample.value, sample.seconds
        )
    }

    /// Whether an endpoint of this series only stands for what it is said to be.
    pub fn emulates(&self, key: &Key) -> bool {
        let names = [Some(&key.sender), Some(&key.receiver), key.via.as_ref()];
        let takes_part = |endpoint: &&Endpoint| names.contains(&Some(&endpoint.name));
        self.endpoints.iter().filter(takes_part).any(|endpoint| endpoint.emulated)
    }

    /// The endpoint of this name.
    pub fn endpoint(&self, name: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.name == name)
    }
}

/// The word that stands for a case in JSON.
pub(crate) fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| Some(value.as_str()?.to_string())).unwrap_or_default()
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

impl Tool {
    /// All of them.
    pub const ALL: [Tool; 4] = [Tool::Iperf3, Tool::Openssl, Tool::Qperf, Tool::Sockperf];

    /// The program.
    pub fn program(self) -> &'static str {
        match self {
            Tool::Iperf3 => "iperf3",
            Tool::Openssl => "openssl",
            Tool::Qperf => "qperf",
            Tool::Sockperf => "sockperf",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} → {}: {}", self.sender, self.receiver, self.figure())
    }
}

impl Key {
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
pub(crate) mod tests {
    use super::*;

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
        };
        let series = |key: Key, samples| {
            let (unit, better) = (key.metric.unit(), key.metric.better());
            Series { key, unit, better, samples, summary: None }
        };
        let percentiles = Some(Percentiles { p50: 9e3, p99: 2e4, p999: 5e4 });
        SurveyRecord {
            format: FORMAT.to_string(),
            schema: SCHEMA,
            date: "2026-11-27T08:00:00Z".to_string(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            revision: None,
            seed: 7,
            complete: true,
            plan: Plan {
                samples: 2,
                seconds: 1,
                quick: true,
                throughput: vec![Throughput { size: 64, flows: 1 }],
                latency: vec![Latency { size: 64, load: Load::Idle }],
                tls: Vec::new(),
                underpass: true,
            },
            endpoints: vec![endpoint("host-a", Kind::Host, false), endpoint("nic-a", Kind::Smartnic, true)],
            series: vec![
                series(key(Metric::Throughput, Tool::Iperf3, 64), vec![sample(1e9, None), sample(2e9, None)]),
                series(key(Metric::Latency, Tool::Sockperf, 64), vec![sample(1e4, percentiles)]),
            ],
            skipped: Vec::new(),
            observations: Vec::new(),
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("survey.json");
        example().write_json(&path).unwrap();
        assert_eq!(SurveyRecord::read_json(&path).unwrap(), example());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn half_a_record_and_another_version_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("survey.json");
        let whole = serde_json::to_string(&example()).unwrap();
        let message = |text: &str| {
            std::fs::write(&path, text).unwrap();
            SurveyRecord::read_json(&path).unwrap_err().to_string()
        };
        assert!(message(&whole[..whole.len() / 2]).contains("not a whole survey"));
        let older = message(&whole.replacen("\"schema\":1", "\"schema\":0", 1));
        assert!(older.contains("version 0 of the format") && older.contains("measure again"), "{older}");
        assert!(message(&whole.replacen(FORMAT, "other", 1)).contains("its format is \"other\""));
        let liar = whole.replacen("\"value\":1000000000.0", "\"value\":NaN", 1);
        assert_ne!(liar, whole);
        assert!(message(&liar).contains("not a whole survey"), "NaN is no number in JSON");
    }

    #[test]
    fn a_line_for_each_sample_says_what_is_emulated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("survey.csv");
        example().write_csv(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let columns = |line: &str| line.split(',').count();
        assert_eq!(lines.len(), 2 + 1 + 3);
        assert!(lines[3..].iter().all(|line| columns(line) == columns(lines[2]) && line.contains(",true,")), "{text}");
    }

    #[test]
    fn a_key_reads_as_a_sentence() {
        let mut key = example().series[1].key.clone();
        (key.load, key.path, key.flows) = (Load::Stream, Side::Underpass, 4);
        assert_eq!(key.to_string(), "host-a → nic-a: latency, 64 B, 4 flows, beside a stream, under Underpass");
    }
}

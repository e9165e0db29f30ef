//! The record of a run: every sample, on what host, by which version.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::input::{self, MOST_OF_RECORD};
use crate::plan::{Contrast, Medians, Plan};
use crate::replace::replace;
use crate::statistic::median;
use crate::unit::{Better, Unit};

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it began, UTC, as in RFC 3339.
    pub date: String,
    /// Version of Underpass.
    pub version: String,
    /// Revision of the checkout that the executable lies in, if it lies in one.
    pub revision: Option<String>,
    /// Where it ran.
    pub host: Host,
    /// Samples asked for of each side.
    pub samples: usize,
    /// Whether the clocks ran shorter than they should for a figure that is quoted.
    pub quick: bool,
    /// Whether all was measured that was asked for, or is named in `skipped`. A run that was interrupted is not
    /// complete.
    #[serde(default = "yes")]
    pub complete: bool,
    /// Versions of the programs that were measured, in their own words.
    pub programs: Vec<String>,
    /// In the order in which they were taken.
    pub measurements: Vec<Measurement>,
    /// What was not measured, and why.
    pub skipped: Vec<Skipped>,
    /// The survey between whose endpoints a check of advice measured; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survey: Option<Surveyed>,
}

/// What tells a survey from others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Surveyed {
    /// When it began.
    pub date: String,
    /// Its endpoints, each with its computer.
    pub endpoints: Vec<String>,
}

impl fmt::Display for Surveyed {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Surveyed { date, endpoints } = self;
        let first = endpoints.first().map_or("none", |it| it.as_str());
        write!(out, "of {date} between {} endpoints, the first {first}", endpoints.len())
    }
}

/// A record without the entry is from before it was there, when only a run that came to its end left one.
fn yes() -> bool {
    true
}

/// One figure, kernel TCP against Underpass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The suite that it belongs to: `pingpong`, `stream`, `setup`, `apps`, `broker`, `layers` or `driver`.
    pub suite: String,
    /// Which measurements of the suite belong together.
    pub group: String,
    /// What is measured.
    pub name: String,
    /// Bytes of a message or a write, where there is such a size.
    pub size: Option<u64>,
    /// Unit of every figure below.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// Kernel TCP; empty where there is no such side.
    pub kernel: Figure,
    /// Underpass; empty if `invalid`.
    pub underpass: Figure,
    /// What was measured beside, without sockets.
    pub baseline: Option<Baseline>,
    /// How many times better Underpass is (above 1: better), where a factor says something.
    pub ratio: Option<f64>,
    /// Underpass less the kernel, where that says more.
    pub difference: Option<f64>,
    /// What must be reached.
    pub targets: Vec<Verdict>,
    /// Whether all of it was reached; `None` if nothing is promised or nothing can be judged.
    pub met: Option<bool>,
    /// Why there is no figure.
    pub invalid: Option<String>,
    /// What a reader should know beside the figure.
    pub notes: Vec<String>,
}

/// The samples of one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// In the order in which they were taken.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: Option<f64>,
}

/// What the hardware gives without sockets, measured in the same run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// `cache line` or `bare ring`.
    pub name: String,
    /// Its samples.
    pub figure: Figure,
}

/// A target and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The target, e.g. `≥ 25×`.
    pub text: String,
    /// The factor over the kernel that it asks for, if that is what it asks for.
    pub times: Option<f64>,
    /// Whether it was reached; `None` if it could not be judged.
    pub met: Option<bool>,
}

/// Something that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// What.
    pub name: String,
    /// Why, and what would change that.
    pub reason: String,
}

impl From<Vec<f64>> for Figure {
    fn from(samples: Vec<f64>) -> Figure {
        Figure { median: median(&samples), samples }
    }
}

impl Measurement {
    /// What `plan` came to. With `invalid`, the Underpass side counts for nothing.
    pub fn conclude(
        suite: &str,
        plan: &Plan,
        kernel: Vec<f64>,
        underpass: Vec<f64>,
        baseline: Option<(&str, Vec<f64>)>,
        invalid: Option<String>,
    ) -> Measurement {
        let kernel = Figure::from(kernel);
        let underpass = if invalid.is_some() { Figure::default() } else { Figure::from(underpass) };
        let baseline = baseline.map(|(name, samples)| Baseline { name: name.to_string(), figure: samples.into() });
        let medians = underpass.median.map(|underpass| Medians {
            kernel: kernel.median,
            underpass,
            baseline: baseline.as_ref().and_then(|baseline| baseline.figure.median),
        });
        let of = |contrast| medians.filter(|_| plan.contrast == contrast);
        let targets: Vec<Verdict> = plan
            .targets
            .iter()
            .map(|target| Verdict {
                text: target.text(plan.unit, baseline.as_ref().map(|baseline| baseline.name.as_str())),
                times: target.times_better(),
                met: medians.and_then(|medians| target.met(&medians, plan.better)),
            })
            .collect();
        Measurement {
            suite: suite.to_string(),
            group: plan.group.clone(),
            name: plan.name.clone(),
            size: plan.size,
            unit: plan.unit,
            better: plan.better,
            ratio: of(Contrast::Ratio).and_then(|medians| medians.ratio(plan.better)),
            difference: of(Contrast::Difference).and_then(|medians| Some(medians.underpass - medians.kernel?)),
            met: if targets.is_empty() { None } else { all_met(&targets) },
            kernel,
            underpass,
            baseline,
            targets,
            invalid,
            notes: plan.notes.clone(),
        }
    }
}

/// `false` if any target is missed; otherwise `None` if any target is open; otherwise `true`.
fn all_met(targets: &[Verdict]) -> Option<bool> {
    if targets.iter().any(|target| target.met == Some(false)) {
        return Some(false);
    }
    targets.iter().all(|target| target.met == Some(true)).then_some(true)
}

impl Record {
    /// A record with nothing in it yet, dated now, of this host; not complete.
    pub fn begin(samples: usize, quick: bool) -> Record {
        Record {
            date: now(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            revision: crate::host::revision(),
            host: Host::describe(),
            samples,
            quick,
            complete: false,
            programs: Vec::new(),
            measurements: Vec::new(),
            skipped: Vec::new(),
            survey: None,
        }
    }

    /// Adds a measurement. One of the same figure that is there makes way for it, unless only that one is valid.
    pub(crate) fn add(&mut self, new: Measurement) {
        let is_same = |it: &Measurement| {
            (&it.suite, &it.group, &it.name, it.size) == (&new.suite, &new.group, &new.name, new.size)
        };
        let is_better = |it: &Measurement| it.invalid.is_none() && new.invalid.is_some();
        if self.measurements.iter().any(|it| is_same(it) && is_better(it)) {
            return;
        }
        self.measurements.retain(|it| !is_same(it));
        self.measurements.push(new);
    }

    /// Writes everything as one JSON object. The file is replaced as a whole.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let write = |file: &mut dyn Write| -> io::Result<()> {
            serde_json::to_writer_pretty(&mut *file, self)?;
            writeln!(file)
        };
        replace(path, write).with_context(|| format!("cannot write the record {}", path.display()))
    }

    /// Reads what [`Record::write_json`] wrote.
    ///
    /// # Errors
    /// The file cannot be read or is no record.
    pub fn read_json(path: &Path) -> Result<Record> {
        let text = input::read(path, MOST_OF_RECORD);
        let text = text.with_context(|| format!("cannot read the record {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not a record of Underpass", path.display()))
    }

    /// Writes one line per sample as CSV (RFC 4180), after lines with `#` that tell the host.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_csv(&self, path: &Path) -> Result<()> {
        let write = |file: &mut dyn Write| -> io::Result<()> {
            writeln!(file, "# Underpass {} {}", self.version, self.revision.as_deref().unwrap_or("(no revision)"))?;
            writeln!(file, "# {}; {}", self.date, self.host)?;
            writeln!(file, "suite,group,name,size_bytes,unit,better,side,sample,value")?;
            for measurement in &self.measurements {
                for (side, figure) in measurement.sides() {
                    for (sample, value) in figure.samples.iter().enumerate() {
                        let text = [&measurement.suite, &measurement.group, &measurement.name].map(|text| field(text));
                        let size = measurement.size.map(|size| size.to_string()).unwrap_or_default();
                        let (unit, better) = (measurement.unit.symbol(), measurement.better.word());
                        writeln!(
                            file,
                            "{},{size},{unit},{better},{},{},{value}",
                            text.join(","),
                            field(side),
                            sample + 1
                        )?;
                    }
                }
            }
            Ok(())
        };
        replace(path, write).with_context(|| format!("cannot write the record {}", path.display()))
    }
}

impl Measurement {
    /// Every side that was measured, by name.
    pub fn sides(&self) -> impl Iterator<Item = (&str, &Figure)> {
        let baseline = self.baseline.iter().map(|baseline| (baseline.name.as_str(), &baseline.figure));
        [("kernel", &self.kernel), ("underpass", &self.underpass)].into_iter().chain(baseline)
    }
}

impl Better {
    fn word(self) -> &'static str {
        match self {
            Better::Lower => "lower",
            Better::Higher => "higher",
        }
    }
}

fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

/// The time in UTC, as a record's date has it.
pub fn now() -> String {
    rfc3339(SystemTime::now())
}

/// The time in UTC, with milliseconds.
pub(crate) fn now_with_milliseconds() -> String {
    let time = SystemTime::now();
    let milliseconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
    rfc3339(time).replace('Z', &format!(".{milliseconds:03}Z"))
}

fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01. Years are taken to begin in March, so that the leap day is
/// last (H. Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::Target;

    /// A record with one figure of each kind, and a figure that is invalid.
    pub(crate) fn example() -> Record {
        let blocking = |bytes, targets: &[Target]| {
            let mut plan = Plan::duration("blocking", format!("blocking, {}", crate::unit::size(bytes))).of_size(bytes);
            plan.targets = targets.to_vec();
            plan
        };
        let one = blocking(1, &[Target::TimesBetter(25.0), Target::WithinBaseline(2.0)]);
        let big = blocking(4096, &[]);
        let lost = blocking(65536, &[Target::TimesBetter(1.0)]);
        let write = Plan::rate("blocking", "64 B writes, \"pinned\"", Unit::BytesPerSecond).of_size(64);
        let write = write.target(Target::TimesBetter(20.0));
        let redis = Plan::rate("Redis", "Redis GET, 1 client", Unit::PerSecond).target(Target::TimesBetter(8.0));
        let start = Plan::cost("overhead", "start-up", Unit::Nanoseconds).target(Target::KernelPlus(5e6));
        let line = Some(("cache line", vec![300.0, 310.0, 290.0]));
        let conclude = Measurement::conclude;
        let mut record = Record { complete: true, ..Record::begin(3, true) };
        record.measurements = vec![
            conclude("pingpong", &one, vec![60e3, 61e3, 62e3], vec![500.0, 520.0, 510.0], line, None),
            conclude("pingpong", &big, vec![70e3], vec![900.0], None, None),
            conclude("pingpong", &lost, vec![88e3], vec![777.0], None, Some("not fast: peer-silent <3>".to_string())),
            conclude("stream", &write, vec![30e6], vec![270e6], None, None),
            conclude("apps", &redis, vec![14e3], vec![140e3], None, None),
            conclude("setup", &start, vec![900e3], vec![1.4e6], None, None),
        ];
        record.skipped.push(Skipped { name: "nginx".to_string(), reason: "not installed".to_string() });
        record
    }

    #[test]
    fn a_measurement_is_judged_by_its_medians() {
        let record = example();
        let one = &record.measurements[0];
        assert_eq!(one.kernel.median, Some(61e3));
        assert_eq!(one.ratio, Some(61e3 / 510.0));
        assert_eq!(one.met, Some(true));
        assert_eq!(record.measurements[1].met, None, "nothing is promised");
        assert_eq!(record.measurements[3].met, Some(false), "nine times is not twenty");
        let start = &record.measurements[5];
        assert_eq!((start.ratio, start.difference, start.met), (None, Some(0.5e6), Some(true)));
    }

    #[test]
    fn an_invalid_measurement_has_no_figure_and_no_verdict() {
        let lost = &example().measurements[2];
        assert_eq!(lost.underpass, Figure::default());
        assert_eq!((lost.ratio, lost.met), (None, None));
        assert!(lost.invalid.is_some());
    }

    #[test]
    fn a_record_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        let record = example();
        record.write_json(&path).unwrap();
        assert_eq!(Record::read_json(&path).unwrap(), record);
    }

    #[test]
    fn csv_has_one_line_per_sample() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.csv");
        example().write_csv(&path).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines[0], "suite,group,name,size_bytes,unit,better,side,sample,value");
        assert_eq!(lines.len(), 1 + 9 + 2 + 1 + 2 + 2 + 2);
        assert_eq!(lines[1], "pingpong,blocking,\"blocking, 1 B\",1,ns,lower,kernel,1,60000");
        assert!(text.contains("stream,blocking,\"64 B writes, \"\"pinned\"\"\",64,B/s,higher,underpass,1,270000000\n"));
        assert!(!text.contains("777"), "a figure that is not valid is not written");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| rfc3339(UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(at(1_700_000_000), "2023-11-14T22:13:20Z");
    }
}

//! How a survey is written and read.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::word::word;
use super::{FORMAT, Head, Key, Percentiles, SCHEMA, Sample, Series, SurveyRecord};
use crate::input::{self, InputError, MOST_OF_RECORD};
use crate::replace::replace;

impl SurveyRecord {
    /// Writes everything as one JSON object. The file is replaced as a whole.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_json(&self, path: &Path) -> io::Result<()> {
        replace(path, |file| {
            serde_json::to_writer_pretty(&mut *file, self)?;
            writeln!(file)
        })
    }

    /// Reads what [`SurveyRecord::write_json`] wrote.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read_json(path: &Path) -> Result<SurveyRecord, ReadError> {
        let text = input::read(path, MOST_OF_RECORD).map_err(|error| ReadError::File { path: path.into(), error })?;
        SurveyRecord::parse(&text, path)
    }

    fn parse(text: &[u8], path: &Path) -> Result<SurveyRecord, ReadError> {
        let content = |error| ReadError::Content { path: path.into(), error };
        let version: Version = serde_json::from_slice(text).map_err(content)?;
        if version.format != FORMAT {
            let error = serde::de::Error::custom(format!("its format is {:?}, not {FORMAT:?}", version.format));
            return Err(content(error));
        }
        if version.schema != SCHEMA {
            return Err(ReadError::Schema { path: path.into(), found: version.schema });
        }
        serde_json::from_slice(text).map_err(content)
    }

    /// Writes one line per sample as CSV (RFC 4180).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_csv(&self, path: &Path) -> io::Result<()> {
        replace(path, |file| self.write_lines(file))
    }

    fn write_lines(&self, file: &mut dyn Write) -> io::Result<()> {
        let Head { version, revision, date, seed, .. } = &self.head;
        writeln!(file, "# Underpass {version} {}", revision.as_deref().unwrap_or("(no revision)"))?;
        writeln!(file, "# {date}; seed {seed}")?;
        writeln!(
            file,
            "sender,receiver,via,emulated,tool,metric,size_bytes,flows,load,path,unit,sample,at,value,p50_ns,p99_ns,\
             p999_ns,seconds,bytes,exchanges,sender_time_ns,receiver_time_ns,via_time_ns,stream_bytes"
        )?;
        for series in &self.series {
            for (number, sample) in series.samples.iter().enumerate() {
                writeln!(file, "{}", self.line(series, number + 1, sample))?;
            }
        }
        Ok(())
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
        let (via_time, stream) = (text(sample.via_time), text(sample.stream_bytes));
        format!(
            "{sender},{receiver},{via},{emulated},{words},{size},{flows},{state},{unit},{number},{},{},{percentiles},\
             {},{counts},{times},{via_time},{stream}",
            sample.at, sample.value, sample.seconds
        )
    }
}

/// Why a file is no survey that this software can read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the survey {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: InputError,
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
    #[error("{} has version {found} of the format and this software reads version {SCHEMA}; read it with the version \
             of Underpass that wrote it, or measure again", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// What is read first, to tell the version of the format.
#[derive(Deserialize)]
pub(crate) struct Version {
    /// What the file is a record of.
    pub format: String,
    /// The version of the format.
    pub schema: u32,
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::super::{Load, MOST_SAMPLES};
    use super::*;

    /// The longest names, and samples of the most digits.
    #[test]
    fn the_largest_survey_can_be_read_again() {
        const SAMPLES: usize = 5;
        let mut record = example();
        let mut series = record.series[1].clone();
        let key = &mut series.key;
        (key.sender, key.receiver, key.load) = ("n".repeat(64), "n".repeat(64), Load::Stream);
        let value = 1.234_567_890_123_456_7e11;
        let mut sample = series.samples[0].clone();
        (sample.value, sample.seconds) = (value, 1.234_567_890_123_456_7);
        sample.percentiles = Some(Percentiles { p50: value, p99: value, p999: value });
        (sample.exchanges, sample.sender_time, sample.receiver_time) = (Some(10_000_000), 1 << 50, 1 << 50);
        sample.stream_bytes = Some(1 << 40);
        series.samples = vec![sample; SAMPLES];
        series.summarize();
        let size = |record: &SurveyRecord| serde_json::to_string_pretty(record).unwrap().len();
        record.series = vec![series.clone()];
        let one = size(&record);
        record.series.push(series);
        let each = size(&record) - one;
        assert!(((each * MOST_SAMPLES / SAMPLES) as u64) < MOST_OF_RECORD - (1 << 20), "{each} octets each series");
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
    fn the_documented_record_is_one() {
        let text = include_str!("../../../../../docs/json.md");
        let own = text.split("## The record of a survey").nth(1).unwrap();
        let example = own.split("```json").nth(1).unwrap().split("```").next().unwrap();
        let record = SurveyRecord::parse(example.as_bytes(), Path::new("json.md")).unwrap();
        assert_eq!((record.head.endpoints.len(), record.series.len(), record.series[0].samples.len()), (1, 1, 1));
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
}

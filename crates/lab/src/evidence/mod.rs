//! The records that `report` and `advise` are given: read, parsed and checked before anything is computed from them.
//!
//! A record may come from anywhere, so nothing in it is believed: its size is bounded, its figures must be numbers that
//! their unit can have, and each median must be that of its samples.

mod check;
mod run;
mod survey;
mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::advise::case;
use crate::input::{self, InputError, MOST_OF_RECORD};
use crate::record::Record;
use crate::survey::record::{FORMAT, LONGEST_TEXT, MOST_SIZES};
pub use check::Checked;
pub use run::Run;
pub use survey::Survey;

/// Most samples of a figure: ten times those that can be asked for.
const MOST_OF_FIGURE: usize = 10_000;
/// Most samples of all figures together.
const MOST_SAMPLES: usize = 1_000_000;

/// Records, by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Runs of suites.
    pub runs: Vec<Run>,
    /// Surveys.
    pub surveys: Vec<Survey>,
    /// Checks of advice.
    pub checks: Vec<Checked>,
}

/// A record that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct EvidenceError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a record.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read ({0})")]
    Unreadable(InputError),
    /// The file is larger than any record.
    #[error(
        "has more than {} MiB, as no record has that Underpass writes, so it was not read; if it is not another file, \
         but records that were put together, name each by itself",
        MOST_OF_RECORD >> 20
    )]
    TooLarge,
    /// It ends in the middle.
    #[error(
        "ends in the middle ({0}), so none of it is used; was it copied before it was whole? Copy it again, or measure \
         again"
    )]
    Half(serde_json::Error),
    /// It is no JSON, or lacks what a record has.
    #[error(
        "is no record of this version ({0}); records are what `underpass bench --json`, `underpass demo`, `underpass \
         survey` and `underpass advise --check --json` write, and an older version's have to be measured again"
    )]
    Malformed(serde_json::Error),
    /// It says that it is something else.
    #[error("is a record of the kind {0:?}, which is not known here; a newer version of Underpass may know it")]
    Unknown(String),
    /// It is of another version of its format.
    #[error(
        "is a {kind} in version {found} of the format, and this software reads version {known}; read it with the \
             version of Underpass that wrote it, or measure again"
    )]
    Schema {
        /// What it is.
        kind: &'static str,
        /// Its version.
        found: u32,
        /// The version that is read.
        known: u32,
    },
    /// Nobody knows which of two records is the newer one.
    #[error(
        "has the date {0:?}, where one like 2026-11-27T15:08:37Z has to be; the record is damaged or was changed, so \
         none of it is used"
    )]
    Date(String),
    /// A figure cannot be true.
    #[error("{measurement:?}: {what}; the record is damaged or was changed, so none of it is used")]
    Impossible {
        /// The measurement.
        measurement: String,
        /// Why it cannot.
        what: String,
    },
    /// It has more, or longer, entries than any suite writes.
    #[error("{0}")]
    Excessive(String),
    /// The file is there already.
    #[error("is named twice")]
    Twice,
}

impl From<InputError> for Problem {
    fn from(error: InputError) -> Problem {
        if matches!(error, InputError::TooLarge(_)) { Problem::TooLarge } else { Problem::Unreadable(error) }
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Problem {
        // Of an empty file nothing was ever written.
        if error.is_eof() && error.column() > 0 { Problem::Half(error) } else { Problem::Malformed(error) }
    }
}

/// What tells a survey from a run.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
}

/// Another version of a format may have other fields, so the version is looked at before them.
fn check_version(text: &[u8], kind: &'static str, known: u32) -> Result<(), Problem> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let Version { schema: found } = serde_json::from_slice(text)?;
    if found == known { Ok(()) } else { Err(Problem::Schema { kind, found, known }) }
}

/// Dates are compared as texts, for which they have to be of one form: RFC 3339, UTC, whole seconds.
fn check_date(date: &str) -> Result<(), Problem> {
    const FORM: &str = "0000-00-00T00:00:00Z";
    let fits = |(form, is): (u8, u8)| if form == b'0' { is.is_ascii_digit() } else { form == is };
    let is_one = date.len() == FORM.len() && FORM.bytes().zip(date.bytes()).all(fits);
    if is_one { Ok(()) } else { Err(Problem::Date(date.chars().take(40).collect())) }
}

/// A text that is longer than those of any suite.
fn check_texts<'a>(mut all: impl Iterator<Item = &'a String>) -> Result<(), Problem> {
    let Some(text) = all.find(|text| text.len() > LONGEST_TEXT) else { return Ok(()) };
    let start: String = text.chars().take(40).collect();
    Err(Problem::Excessive(format!("has a text of more than {LONGEST_TEXT} bytes, beginning {start:?}")))
}

/// Counts what has to be computed with. An interval draws two thousand times from all samples of its figure, and the
/// error of a curve's predictions takes the square of its sizes: without a limit, a file of a few MiB would take hours.
struct Amounts<C> {
    samples: usize,
    sizes: BTreeMap<C, usize>,
}

impl<C: Ord> Amounts<C> {
    fn new() -> Amounts<C> {
        Amounts { samples: 0, sizes: BTreeMap::new() }
    }

    /// A figure of this curve, with so many samples.
    fn add(&mut self, curve: C, samples: usize) -> Result<(), Problem> {
        let excessive = |most: usize, what: &str| Err(Problem::Excessive(format!("has more than {most} {what}")));
        self.samples += samples;
        let sizes = self.sizes.entry(curve).or_default();
        *sizes += 1;
        match () {
            () if samples > MOST_OF_FIGURE => excessive(MOST_OF_FIGURE, "samples of one figure"),
            () if self.samples > MOST_SAMPLES => excessive(MOST_SAMPLES, "samples"),
            () if *sizes > MOST_SIZES => excessive(MOST_SIZES, "sizes of one curve"),
            () => Ok(()),
        }
    }
}

impl Evidence {
    /// Reads these records.
    ///
    /// # Errors
    /// One of the files cannot be read, is no record, or has figures that cannot be true.
    pub fn read(files: &[PathBuf]) -> Result<Evidence, EvidenceError> {
        let (mut all, mut seen) = (Evidence::default(), BTreeSet::new());
        for file in files {
            all.add(file, &mut seen).map_err(|problem| EvidenceError { file: file.clone(), problem })?;
        }
        Ok(all)
    }

    /// A record that is at hand.
    ///
    /// # Errors
    /// It has figures that cannot be true.
    pub fn of(name: String, record: Record) -> Result<Evidence, Problem> {
        Ok(Evidence { runs: vec![Run::new(name, record)?], ..Evidence::default() })
    }

    /// Names of all records.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let surveys = self.surveys.iter().map(|it| &it.name);
        self.runs.iter().map(|run| &run.name).chain(surveys).chain(self.checks.iter().map(|it| &it.name))
    }

    /// The file's name without its ending; all of its path, where there is a record of that name already.
    fn name_of(&self, file: &Path) -> Result<String, Problem> {
        let names = [file.file_stem().unwrap_or_default(), file.as_os_str()];
        let mut names = names.into_iter().map(|name| name.to_string_lossy().into_owned());
        names.find(|name| !self.names().any(|it| it == name)).ok_or(Problem::Twice)
    }

    /// Adds what a file has; `seen` are device and number of the files that there were.
    fn add(&mut self, file: &Path, seen: &mut BTreeSet<(u64, u64)>) -> Result<(), Problem> {
        let open = input::open(file)?;
        let meta = open.metadata().map_err(InputError::from)?;
        if !seen.insert((meta.dev(), meta.ino())) {
            return Err(Problem::Twice);
        }
        let text = input::read_from(&open, MOST_OF_RECORD)?;
        let name = self.name_of(file)?;
        let head: Head = serde_json::from_slice(&text)?;
        match head.format.as_deref() {
            Some(FORMAT) => self.surveys.push(Survey::parse(name, &text)?),
            Some(case::FORMAT) => self.checks.push(Checked::parse(name, &text)?),
            Some(other) => return Err(Problem::Unknown(other.chars().take(40).collect())),
            None => self.runs.push(Run::new(name, serde_json::from_slice(&text)?)?),
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;

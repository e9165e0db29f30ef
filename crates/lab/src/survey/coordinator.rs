//! The coordinator: takes one sample after the other, keeps each, and leaves a record.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::endpoints::Place;
use super::journal::{Entry, Journal, JournalError};
use super::observation::observe;
use super::order::{Figures, figures, round};
use super::progress::Progress;
use super::record::{
    FORMAT, Head, Key, MOST_CELLS, MOST_SAMPLES, Plan, ReadError, SCHEMA, Series, SurveyRecord, cells,
};
use super::remote::{AgentError, Remote};
use super::roster::{MeetError, Roster, Taken};
use crate::host::revision;
use crate::interrupt;
use crate::record::{Skipped, now};

/// A survey to be made.
pub struct Survey<'a> {
    /// The endpoints.
    pub places: &'a [Place],
    /// What is measured.
    pub plan: &'a Plan,
    /// What is known before not to be measured, and why.
    pub missing: &'a [Skipped],
    /// Seed of the order; of a survey that goes on, that with which it began.
    pub seed: Option<u64>,
    /// Where the record is to be.
    pub json: &'a Path,
    /// Whether progress is shown.
    pub progress: bool,
    /// Connects to the agent of an endpoint, by its place in `places`.
    pub connect: &'a dyn Fn(usize) -> Result<Remote, AgentError>,
    /// Is told the seed and how many samples are still to be taken, before the first is.
    pub begun: &'a dyn Fn(u64, usize, usize),
}

/// What came of a survey.
#[derive(Debug)]
pub struct Outcome {
    /// The record, as it was written.
    pub record: SurveyRecord,
    /// Endpoints that were lost, with the reason.
    pub lost: Vec<(String, String)>,
    /// Whether the user ended it.
    pub interrupted: bool,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// The file has a record.
    #[error("{} has a whole survey already; name another file with --json", .0.display())]
    Complete(PathBuf),
    /// The record is to be something that keeps nothing.
    #[error("{} is not a file; a survey keeps its record there and its journal beside it: name a file with \
             --json", .0.display())]
    NotAFile(PathBuf),
    /// The file has a part of a survey, whose journal is not there.
    #[error(
        "{} is a survey that was not finished, and its journal {} is not there, or has no \
             beginning; without it the survey cannot go on: put it back, or name another file with --json",
        path.display(), journal.display()
    )]
    NoJournal {
        /// The record.
        path: PathBuf,
        /// Where its journal was.
        journal: PathBuf,
    },
    /// The file has something else.
    #[error(transparent)]
    NotASurvey(#[from] ReadError),
    /// Not all endpoints are there, or one runs another version.
    #[error(transparent)]
    Meet(#[from] MeetError),
    /// An agent that was lost is there again, and is not what it was.
    #[error(
        "an agent that was lost is there again, but {0}; figures of both must not be mixed: restore it as it was, \
             and the same command goes on with the samples in the journal, or name another file with --json"
    )]
    Changed(String),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What nobody could read is not measured.
    #[error(
        "{0} samples are asked for, and at most {MOST_SAMPLES} fit into one record; name fewer endpoints, or fewer \
         samples, sizes or flows under [plan], and survey the rest by itself"
    )]
    TooMuch(usize),
    /// The report on it would be nearly empty, and too large.
    #[error(
        "the report on this survey would have {0} cells, and at most {MOST_CELLS} are read; most endpoints have no \
         figures with each other: name fewer endpoints, or fewer sizes or flows under [plan]"
    )]
    TooSparse(usize),
    /// There is nothing to measure.
    #[error("nothing can be measured:\n{}", reasons(.0))]
    Nothing(Vec<Skipped>),
    /// The record cannot be written.
    #[error(
        "cannot write {}: {error}; all samples are in {}, and the same command goes on with them",
        path.display(),
        journal.display()
    )]
    Write {
        /// The record.
        path: PathBuf,
        /// The journal.
        journal: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// Ctrl-C cannot be watched for, or has ended it.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

fn reasons(skipped: &[Skipped]) -> String {
    skipped.iter().map(|it| format!("  {}: {}", it.name, it.reason)).collect::<Vec<_>>().join("\n")
}

/// Where the journal of a record is.
pub fn journal_of(json: &Path) -> PathBuf {
    let mut name = json.as_os_str().to_os_string();
    name.push(".journal");
    name.into()
}

/// Makes a survey, or goes on with a survey that was interrupted.
///
/// # Errors
/// Nothing was measured, or what was cannot be kept.
pub fn run(survey: &Survey) -> Result<Outcome, SurveyError> {
    interrupt::watch().context("cannot watch for Ctrl-C")?;
    let path = journal_of(survey.json);
    if survey.json.exists() {
        if !survey.json.is_file() {
            return Err(SurveyError::NotAFile(survey.json.into()));
        }
        if SurveyRecord::read_json(survey.json)?.complete {
            return Err(SurveyError::Complete(survey.json.into()));
        }
        // What it has would be lost with the next record.
        if !path.exists() {
            return Err(SurveyError::NoJournal { path: survey.json.into(), journal: path });
        }
    }
    let mut journal = Journal::open(&path)?;
    // An empty one, or one that was cut in its first line, is as good as none.
    if survey.json.exists() && journal.head().is_none() {
        return Err(SurveyError::NoJournal { path: survey.json.into(), journal: path });
    }
    let (mut roster, facts) = match Roster::meet(survey.places, survey.plan, Box::new(survey.connect)) {
        Ok(met) => met,
        Err(error) => {
            journal.remove_if_new()?;
            return Err(error.into());
        }
    };
    let seed = journal.head().map(|head| head.seed);
    let seed = survey.seed.or(seed).unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let mut figures = figures(survey.plan, roster.endpoints(), &facts);
    figures.skipped.extend_from_slice(survey.missing);
    if figures.keys.is_empty() {
        journal.remove_if_new()?;
        return Err(SurveyError::Nothing(figures.skipped));
    }
    let asked = figures.keys.len() * survey.plan.samples;
    let too_large = match cells(figures.keys.iter()) {
        _ if asked > MOST_SAMPLES => Some(SurveyError::TooMuch(asked)),
        cells if cells > MOST_CELLS => Some(SurveyError::TooSparse(cells)),
        _ => None,
    };
    if let Some(error) = too_large {
        journal.remove_if_new()?;
        return Err(error);
    }
    let head = Head {
        format: FORMAT.to_string(),
        schema: SCHEMA,
        date: now(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        revision: revision(),
        seed,
        plan: survey.plan.clone(),
        endpoints: roster.endpoints().to_vec(),
    };
    let head = journal.begin(head)?;
    roster.began_with(&head.endpoints);
    let mut run = Run { survey, journal, head, figures, roster, given_up: BTreeMap::new() };
    let interrupted = run.take_samples()?;
    run.conclude(interrupted)
}

/// A survey that is being made.
struct Run<'a> {
    survey: &'a Survey<'a>,
    journal: Journal,
    head: Head,
    figures: Figures,
    roster: Roster<'a>,
    /// Figures that failed too often, with the reason.
    given_up: BTreeMap<Key, String>,
}

impl Run<'_> {
    /// Takes all samples that the journal does not have; whether the user ended it.
    fn take_samples(&mut self) -> Result<bool, SurveyError> {
        let mut taken: BTreeMap<Key, usize> = BTreeMap::new();
        for entry in self.journal.entries() {
            *taken.entry(entry.key.clone()).or_default() += 1;
        }
        let samples = self.head.plan.samples;
        let have: usize =
            self.figures.keys.iter().map(|key| taken.get(key).map_or(0, |taken| *taken.min(&samples))).sum();
        let all = self.figures.keys.len() * samples;
        (self.survey.begun)(self.head.seed, have, all);
        let mut progress = Progress::new(self.survey.progress, have, all);
        for number in 0..samples {
            for index in round(&self.figures.keys, self.head.seed, number) {
                let key = self.figures.keys[index].clone();
                if taken.get(&key).is_some_and(|taken| *taken > number) {
                    continue;
                }
                if self.roster.loss(&key).is_some() || self.given_up.contains_key(&key) {
                    progress.pass();
                    continue;
                }
                progress.begin(&key);
                match self.roster.take(&key).map_err(SurveyError::Changed)? {
                    Taken::Sample(sample) => {
                        self.journal.keep(Entry { key: key.clone(), sample })?;
                        *taken.entry(key).or_default() += 1;
                    }
                    Taken::Failed(reason) => drop(self.given_up.insert(key, reason)),
                    Taken::Lost => {}
                    Taken::Interrupted => return Ok(true),
                }
                progress.end();
            }
        }
        Ok(false)
    }

    /// Writes the record. The journal goes when it is complete.
    fn conclude(self, interrupted: bool) -> Result<Outcome, SurveyError> {
        let mut series: Vec<Series> = Vec::new();
        for key in &self.figures.keys {
            let samples = self.journal.entries().iter().filter(|entry| entry.key == *key);
            let mut one = Series::of(key.clone());
            samples.take(self.head.plan.samples).for_each(|entry| one.samples.push(entry.sample.clone()));
            one.summarize();
            if !one.samples.is_empty() {
                series.push(one);
            }
        }
        let mut skipped = self.figures.skipped;
        skipped.extend(
            self.given_up.iter().map(|(key, reason)| Skipped { name: key.to_string(), reason: reason.clone() }),
        );
        let lost = self.roster.lost();
        let complete = !interrupted && lost.is_empty();
        let mut record = SurveyRecord { head: self.head, complete, series, skipped, observations: Vec::new() };
        record.observations = observe(&record);
        let path = self.survey.json.to_path_buf();
        let journal = journal_of(&path);
        record.write_json(&path).map_err(|error| SurveyError::Write { path, journal, error })?;
        if complete {
            self.journal.remove()?;
        }
        Ok(Outcome { record, lost, interrupted })
    }
}

//! The coordinator: takes one sample after the other, keeps each, and leaves a record.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;

use super::endpoints::Place;
use super::journal::{Entry, Journal, JournalError, differing};
use super::message::Facts;
use super::observation::observe;
use super::order::{Figures, figures, round};
use super::progress::Progress;
use super::record::{
    Endpoint, FORMAT, Head, Key, MOST_CELLS, MOST_SAMPLES, Plan, ReadError, SCHEMA, Series, SurveyRecord, cells,
};
use super::remote::{AgentError, Remote};
use super::sample::{Agents, Trouble};
use crate::host::revision;
use crate::interrupt;
use crate::record::{Skipped, now};

/// How long an agent may take to describe itself: it asks each tool for its version.
const DESCRIBE: Duration = Duration::from_secs(90);
/// How often a sample is tried.
const TRIES: u32 = 3;
/// How often a lost agent is looked for, and how long apart.
const SEARCHES: u32 = 5;
const APART: Duration = Duration::from_secs(1);

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
    pub connect: Connect<'a>,
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
    /// Not all endpoints are there.
    #[error("not all endpoints can be reached; nothing was measured:\n{}", list(.0))]
    Unreachable(Vec<(String, AgentError)>),
    /// An agent is of another version.
    #[error(
        "{endpoint} runs Underpass {theirs}, and this is {ours}; figures of different versions must not be mixed: \
             install the same at all endpoints"
    )]
    Version {
        /// The endpoint.
        endpoint: String,
        /// Its version.
        theirs: String,
        /// This one's.
        ours: String,
    },
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

fn list(unreachable: &[(String, AgentError)]) -> String {
    unreachable.iter().map(|(name, error)| format!("  {name}: {error}")).collect::<Vec<_>>().join("\n")
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
    let (remotes, endpoints, facts) = match meet(survey.places, survey.connect) {
        Ok(met) => met,
        Err(error) => {
            journal.remove_if_new()?;
            return Err(error);
        }
    };
    let seed = journal.head().map(|head| head.seed);
    let seed = survey.seed.or(seed).unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let mut figures = figures(survey.plan, &endpoints, &facts);
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
        endpoints: endpoints.clone(),
    };
    let head = journal.begin(head)?;
    let agents = Agents { remotes, seconds: survey.plan.seconds, brief: survey.plan.brief };
    let (lost, given_up) = (BTreeMap::new(), BTreeMap::new());
    let mut run = Run { survey, journal, head, met: endpoints, figures, agents, lost, given_up };
    let interrupted = run.take_samples()?;
    run.conclude(interrupted)
}

/// All agents, what is recorded of their endpoints, and what they say of themselves.
type Met = (Vec<Option<Remote>>, Vec<Endpoint>, Vec<Facts>);

/// What connects to the agent of an endpoint, by its number.
type Connect<'a> = &'a dyn Fn(usize) -> Result<Remote, AgentError>;

/// Connects to all agents and asks for their descriptions.
///
/// # Errors
/// Not all can be reached, or one runs another version.
pub(super) fn meet(places: &[Place], connect: Connect) -> Result<Met, SurveyError> {
    let mut unreachable = Vec::new();
    let (mut remotes, mut endpoints, mut facts) = (Vec::new(), Vec::new(), Vec::new());
    for (index, place) in places.iter().enumerate() {
        match described(place, || connect(index)) {
            Ok((remote, endpoint, of)) => {
                check_version(place, &of)?;
                remotes.push(Some(remote));
                endpoints.push(endpoint);
                facts.push(of);
            }
            Err(AgentError::Interrupted(interrupted)) => return Err(SurveyError::Failed(interrupted.into())),
            Err(error) => unreachable.push((place.name.clone(), error)),
        }
    }
    if unreachable.is_empty() { Ok((remotes, endpoints, facts)) } else { Err(SurveyError::Unreachable(unreachable)) }
}

fn described(
    place: &Place,
    connect: impl FnOnce() -> Result<Remote, AgentError>,
) -> Result<(Remote, Endpoint, Facts), AgentError> {
    let mut remote = connect()?;
    let facts = remote.describe(DESCRIBE)?;
    // The second answer comes at once, so that it tells the time better.
    let (clock_offset, clock_round_trip) = remote.clock()?;
    let endpoint = Endpoint {
        name: place.name.clone(),
        kind: place.kind,
        system: place.system.clone(),
        emulated: place.emulation.is_some(),
        emulation: place.emulation.clone(),
        address: place.address.to_string(),
        host: facts.host.clone(),
        tools: facts.tools.clone(),
        library: facts.library,
        network: facts.network.clone(),
        user: Some(facts.user),
        revision: facts.revision.clone(),
        clock_offset,
        clock_round_trip,
    };
    Ok((remote, endpoint, facts))
}

fn check_version(place: &Place, facts: &Facts) -> Result<(), SurveyError> {
    let name = |version: &str, revision: Option<&str>| match revision {
        Some(revision) => format!("{version} ({revision})"),
        None => version.to_string(),
    };
    let (version, own) = (env!("CARGO_PKG_VERSION"), revision());
    // An installed agent lies in no checkout, and has no revision to compare.
    let other = matches!((&own, &facts.revision), (Some(own), Some(theirs)) if own != theirs);
    if facts.version == version && !other {
        return Ok(());
    }
    let theirs = name(&facts.version, facts.revision.as_deref());
    Err(SurveyError::Version { endpoint: place.name.clone(), theirs, ours: name(version, own.as_deref()) })
}

/// A survey that is being made.
struct Run<'a> {
    survey: &'a Survey<'a>,
    journal: Journal,
    head: Head,
    /// The endpoints as they described themselves last. Of a survey that goes on, `head` has them as it was begun.
    met: Vec<Endpoint>,
    figures: Figures,
    agents: Agents,
    /// Endpoints that are no longer there, with the reason.
    lost: BTreeMap<usize, String>,
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
                if self.is_lost(&key) || self.given_up.contains_key(&key) {
                    progress.pass();
                    continue;
                }
                progress.begin(&key);
                match self.take(&key)? {
                    Taken::Sample => *taken.entry(key).or_default() += 1,
                    Taken::Nothing => {}
                    Taken::Interrupted => return Ok(true),
                }
                progress.end();
            }
        }
        Ok(false)
    }

    fn is_lost(&self, key: &Key) -> bool {
        let lost = |name: &String| self.index(name).is_some_and(|index| self.lost.contains_key(&index));
        [Some(&key.sender), Some(&key.receiver), key.via.as_ref()].into_iter().flatten().any(lost)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.survey.places.iter().position(|place| place.name == name)
    }

    /// One sample, tried a few times.
    fn take(&mut self, key: &Key) -> Result<Taken, SurveyError> {
        for attempt in 1..=TRIES {
            if interrupt::check().is_err() {
                return Ok(Taken::Interrupted);
            }
            match self.agents.sample(key, self.survey.places) {
                Ok(sample) => {
                    let entry = Entry { key: key.clone(), sample };
                    self.journal.keep(entry)?;
                    return Ok(Taken::Sample);
                }
                Err(Trouble::Interrupted) => return Ok(Taken::Interrupted),
                Err(Trouble::Lost(index, error)) => {
                    if !self.find_again(index, &error)? {
                        return Ok(if interrupt::check().is_err() { Taken::Interrupted } else { Taken::Nothing });
                    }
                    // The agent is there again, but measuring this figure may be what makes it end.
                    if attempt == TRIES {
                        let name = &self.survey.places[index].name;
                        self.given_up.insert(key.clone(), format!("{name} was lost ({TRIES} times): {error}"));
                    }
                }
                Err(Trouble::Failed(reason)) if attempt == TRIES => {
                    self.given_up.insert(key.clone(), format!("{reason} ({TRIES} times)"));
                }
                Err(Trouble::Failed(_)) => {}
            }
        }
        Ok(Taken::Nothing)
    }

    /// Connects to a lost agent anew; whether it is there again.
    fn find_again(&mut self, index: usize, error: &AgentError) -> Result<bool, SurveyError> {
        self.agents.remotes[index] = None;
        for search in 0..SEARCHES {
            if interrupt::check().is_err() {
                return Ok(false);
            }
            match described(&self.survey.places[index], || (self.survey.connect)(index)) {
                Ok((remote, endpoint, facts)) => {
                    check_version(&self.survey.places[index], &facts)?;
                    self.met[index] = endpoint;
                    if let Some(what) = differing(&self.head.endpoints, &self.met) {
                        return Err(SurveyError::Changed(what));
                    }
                    self.agents.remotes[index] = Some(remote);
                    return Ok(true);
                }
                Err(AgentError::Interrupted(_)) => return Ok(false),
                Err(_) if search + 1 < SEARCHES => thread::sleep(APART),
                Err(_) => {}
            }
        }
        self.lost.insert(index, error.to_string());
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
        let complete = !interrupted && self.lost.is_empty();
        let mut record = SurveyRecord { head: self.head, complete, series, skipped, observations: Vec::new() };
        record.observations = observe(&record);
        let path = self.survey.json.to_path_buf();
        let journal = journal_of(&path);
        record.write_json(&path).map_err(|error| SurveyError::Write { path, journal, error })?;
        if complete {
            self.journal.remove()?;
        }
        let name = |index: usize| self.survey.places[index].name.clone();
        let lost = self.lost.into_iter().map(|(index, reason)| (name(index), reason)).collect();
        Ok(Outcome { record, lost, interrupted })
    }
}

/// What came of a sample.
enum Taken {
    Sample,
    Nothing,
    Interrupted,
}

impl Remote {
    /// The agent's clock less this host's, in ns, and the round-trip time.
    fn clock(&mut self) -> Result<(i64, u64), AgentError> {
        let here = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let (before, begun) = (here(), Instant::now());
        let there = self.time(Duration::from_secs(20))?;
        let round_trip = begun.elapsed().as_nanos() as u64;
        Ok((there.saturating_sub(before).saturating_sub((round_trip / 2) as i64), round_trip))
    }
}

//! `underpass survey`: measures every ordered pair of endpoints.

use std::env;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use underpass_lab::advise::answer::FEWEST;
use underpass_lab::record::Skipped;
use underpass_lab::survey::coordinator::{Outcome, Survey, SurveyError, journal_of, run};
use underpass_lab::survey::endpoints::{Endpoints, EndpointsError, Place, Reach};
use underpass_lab::survey::journal::JournalError;
use underpass_lab::survey::local::{self, Local, LocalError, Wanted};
use underpass_lab::survey::record::{ObservationName, Plan, Series, SurveyRecord, Verdict};
use underpass_lab::survey::remote::{AgentError, Remote};
use underpass_lab::survey::token::{Token, TokenError};
use underpass_lab::unit::Unit;

use crate::bench::outputs;
use crate::cli::SurveyArguments;
use crate::failure::Failure;
use crate::output::{plural, print, printable, printable_lines, table, written};
use crate::{say, sys};

/// A survey that did not come to its end.
#[derive(Debug, thiserror::Error)]
#[error("{why}; {taken} samples are kept in {journal}, and the same command takes the rest")]
struct Unfinished {
    why: String,
    taken: usize,
    journal: String,
}

/// Measures, prints what came of it, and leaves a record.
pub fn survey(arguments: &SurveyArguments) -> Result<(), Failure> {
    let journal = journal_of(&arguments.json);
    let read: Vec<&PathBuf> = arguments.endpoints.iter().chain([&journal]).collect();
    outputs([&arguments.json].into_iter().chain(&arguments.csv), &read)?;
    // An agent that is gone is an error of its channel, and not the end of the coordinator.
    sys::ignore_broken_pipes();
    if arguments.quick {
        say(format_args!("quick: the figures show that all works and are not for quoting"));
    }
    let outcome = match &arguments.endpoints {
        Some(file) => between(&Endpoints::read(file)?, arguments),
        None => on_this_computer(arguments),
    }?;
    conclude(arguments, &outcome)
}

/// A survey of the endpoints that a file names.
fn between(endpoints: &Endpoints, arguments: &SurveyArguments) -> Result<Outcome, Failure> {
    let token = token(endpoints)?;
    let places = &endpoints.endpoints;
    Ok(measure(arguments, places, &endpoints.plan, &[], &|index| reach(&places[index], &token))?)
}

/// The token of its agents, if any is reached at an address.
pub fn token(endpoints: &Endpoints) -> Result<Token, TokenError> {
    Ok(endpoints.token.as_deref().map(Token::read).transpose()?.unwrap_or_else(Token::none))
}

/// Connects to an agent, or starts it.
pub fn reach(place: &Place, token: &Token) -> Result<Remote, AgentError> {
    match &place.agent {
        Reach::Address(at) => Remote::connect(*at, token),
        Reach::Command(words) => Remote::start(Command::new(&words[0]).args(&words[1..])),
    }
}

/// A survey of network namespaces that are made for it.
fn on_this_computer(arguments: &SurveyArguments) -> Result<Outcome, Failure> {
    let (local, own) = (Local::new(arguments.arm.as_deref())?, own()?);
    let SurveyArguments { quick, percentiles, ref arm, .. } = *arguments;
    let plan = local::plan(Wanted { quick, percentiles, has_arm: arm.is_some() });
    let connect = |index| local.connect(index, agent(&own, &local, index));
    Ok(measure(arguments, local.places(), &plan, local.missing(), &connect)?)
}

/// This command's own file.
pub fn own() -> anyhow::Result<PathBuf> {
    env::current_exe().context("cannot tell where the command is; mount /proc")
}

/// An agent of this command's own version, for an endpoint that was made here.
pub fn agent(own: &Path, local: &Local, index: usize) -> Command {
    let mut command = Command::new(own);
    command.args(["agent", "--stdio"]);
    if let Some(folder) = local.arm(index) {
        command.arg("--arm").arg(folder);
    }
    command
}

fn measure(
    arguments: &SurveyArguments,
    places: &[Place],
    plan: &Plan,
    missing: &[Skipped],
    connect: &dyn Fn(usize) -> Result<Remote, AgentError>,
) -> Result<Outcome, SurveyError> {
    let begun = |seed, have, all| {
        let before = if have > 0 { format!(", of which {have} are there already") } else { String::new() };
        say(format_args!("seed {seed}: {}{before}", plural(all as u64, "sample", "samples")));
    };
    let progress = stderr().is_terminal();
    let (seed, json, begun) = (arguments.seed, &arguments.json, &begun);
    run(&Survey { places, plan, missing, seed, json, progress, connect, begun })
}

/// Prints what was measured and what was not.
fn conclude(arguments: &SurveyArguments, outcome: &Outcome) -> Result<(), Failure> {
    let record = &outcome.record;
    if let Some(csv) = &arguments.csv {
        record.write_csv(csv).with_context(|| format!("cannot write {}", csv.display()))?;
    }
    let files = written([Some(&arguments.json), arguments.csv.as_ref()].into_iter().flatten());
    print(printable_lines(&text(record)) + &files)?;
    if record.complete {
        return Ok(());
    }
    let lost = outcome.lost.iter().map(|(name, reason)| format!("{name} was lost ({reason})"));
    let interrupted = outcome.interrupted.then(|| "interrupted".to_string());
    let why = interrupted.into_iter().chain(lost).collect::<Vec<_>>().join(", ");
    let taken = record.series.iter().map(|series| series.samples.len()).sum();
    let journal = journal_of(&arguments.json).display().to_string();
    Err(Unfinished { why, taken, journal }.into())
}

/// A table of all series, and what the observations come to.
fn text(record: &SurveyRecord) -> String {
    let mut rows = vec![["sender", "receiver", "", "median", "95 % interval"].map(str::to_string).to_vec()];
    rows.extend(record.series.iter().filter_map(row));
    let percentiles = |it: &Series| it.summary.and_then(|summary| summary.percentiles).is_some();
    if record.series.iter().any(percentiles) {
        rows[0].extend(["p50", "p99", "p99.9"].map(str::to_string));
    }
    let mut text = table(&rows, &[3, 5, 6, 7]);
    if record.head.endpoints.iter().any(|endpoint| endpoint.emulated) {
        text.push_str("\nEmulated, so that the figures say nothing of real endpoints of their kind:\n");
        for endpoint in &record.head.endpoints {
            let how = endpoint.emulation.as_deref().unwrap_or("not emulated");
            text.push_str(&format!("  {}: {how}\n", endpoint.name));
        }
    }
    text.push_str("\nPublished observations on SmartNICs:\n");
    for observation in &record.observations {
        let name = match observation.name {
            ObservationName::GrowthFollowsSender => "growth over size follows the sender",
            ObservationName::MaximumFollowsReceiver => "the maximum follows the receiver",
            ObservationName::LatencyFollowsReceiver => "latency follows the receiver",
        };
        let verdict = match observation.verdict {
            Verdict::Confirmed => "confirmed",
            Verdict::NotConfirmed => "not confirmed",
            Verdict::Undecided => "undecided",
        };
        text.push_str(&format!("  {name}: {verdict}; {}\n", observation.text));
    }
    if !record.skipped.is_empty() {
        text.push_str("\nNot measured:\n");
        record
            .skipped
            .iter()
            // What an agent says stays on its line.
            .for_each(|it| text.push_str(&format!("  {}: {}\n", printable(&it.name), printable(&it.reason))));
    }
    text.push('\n');
    text
}

fn row(series: &Series) -> Option<Vec<String>> {
    let summary = series.summary?;
    let key = &series.key;
    let interval = summary.low.zip(summary.high).map(|(low, high)| [low, high].map(|end| series.unit.show(end)));
    let interval = interval.map(|ends| match series.samples.len() {
        few if few < FEWEST => format!("{} in {few} samples, too few to be sure", ends.join(" to ")),
        _ => ends.join(" to "),
    });
    let interval = interval.unwrap_or_default();
    let mut row =
        vec![key.sender.clone(), key.receiver.clone(), key.figure(), series.unit.show(summary.median), interval];
    let percentiles = summary.percentiles.iter().flat_map(|it| [it.p50, it.p99, it.p999]);
    row.extend(percentiles.map(|ns| Unit::Nanoseconds.show(ns)));
    Some(row)
}

impl From<SurveyError> for Failure {
    fn from(error: SurveyError) -> Failure {
        match error {
            SurveyError::Complete(_)
            | SurveyError::NotAFile(_)
            | SurveyError::NoJournal { .. }
            | SurveyError::NotASurvey(_)
            | SurveyError::TooMuch(_)
            | SurveyError::TooSparse(_)
            | SurveyError::Journal(JournalError::Other { .. } | JournalError::Damaged { .. }) => {
                Failure::WrongUse(error.into())
            }
            SurveyError::Meet(_)
            | SurveyError::Changed(_)
            | SurveyError::Journal(JournalError::File { .. } | JournalError::Taken(_))
            | SurveyError::Nothing(_)
            | SurveyError::Write { .. } => Failure::Failed(error.into()),
            SurveyError::Failed(error) => Failure::Failed(error),
        }
    }
}

impl From<EndpointsError> for Failure {
    fn from(error: EndpointsError) -> Failure {
        Failure::WrongUse(error.into())
    }
}

impl From<LocalError> for Failure {
    fn from(error: LocalError) -> Failure {
        Failure::Failed(error.into())
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Failure {
        Failure::WrongUse(error.into())
    }
}

impl From<Unfinished> for Failure {
    fn from(error: Unfinished) -> Failure {
        Failure::Failed(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underpass_lab::survey::record::{Metric, Percentiles};

    /// The interval of three samples has the median in three cases of four.
    #[test]
    fn an_interval_of_few_samples_is_said_to_be_one() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/survey-2026-11-27.json");
        let mut record = SurveyRecord::read_json(&file).unwrap();
        assert!(!text(&record).contains("too few"), "each has five");
        record.series[0].samples.truncate(3);
        record.series[0].summarize();
        let text = text(&record);
        let few: Vec<&str> = text.lines().filter(|it| it.ends_with(" in 3 samples, too few to be sure")).collect();
        assert!(few.len() == 1 && few[0].contains(" to "), "{text}");
    }

    /// Where the tool tells how single exchanges were distributed, that is shown, and where it does not there is no
    /// empty column.
    #[test]
    fn percentiles_are_shown_where_there_are_any() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/survey-2026-11-27.json");
        let mut record = SurveyRecord::read_json(&file).unwrap();
        assert!(!text(&record).contains("p99"), "it is by qperf");
        let latency = record.series.iter_mut().find(|it| it.key.metric == Metric::Latency).unwrap();
        let of = |p50| Some(Percentiles { p50, p99: 2.5e4, p999: 1.25e6 });
        latency.samples.iter_mut().enumerate().for_each(|(number, it)| it.percentiles = of(9e3 + number as f64 * 1e3));
        latency.summarize();
        let (sender, receiver) = (latency.key.sender.clone(), latency.key.receiver.clone());
        let text = text(&record);
        assert!(text.lines().next().unwrap().ends_with("p50      p99    p99.9"), "{text}");
        let row = text.lines().find(|it| it.ends_with("11.0 µs  25.0 µs  1.25 ms")).expect("the median of each");
        assert!(row.starts_with(&sender) && row.contains(&receiver) && row.contains("latency"), "{row}");
    }
}

//! Third-party test suites, on kernel TCP and under Underpass, compared test by test.
//!
//! Each file of `suites/` is one suite: where it comes from, how it is built and run, and how its verdicts are read. A
//! suite consists of parts, each of which runs by itself: once on the kernel, and once on each [`launch::Path`]. What
//! differs is run again on all of them, so that what the kernel itself says now this way and now that is not taken for
//! a difference.

mod compare;
mod launch;
mod place;
mod suites;
mod verdict;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use comfy_table::Table;
use compare::Comparison;
use indicatif::{ProgressBar, ProgressStyle};
use launch::{Fast, Launch, PATHS, Path};
use place::Place;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use suites::{SUITES, Suite};
use verdict::Verdicts;

/// What differs is run so many times more.
const AGAIN: usize = 2;

#[derive(Parser)]
#[command(
    about = "Run third-party test suites on kernel TCP and under Underpass, and compare them test by test",
    after_help = "Exit codes: 0 all is the same, 1 something differs or was left out, 2 wrong use.\n\n\
                  Example: gauntlet --brief redis libuv"
)]
struct Options {
    /// Suites to run; all without any
    suites: Vec<String>,
    /// Only parts with this text in their name
    #[arg(long)]
    part: Option<String>,
    /// Only the parts that continuous integration runs
    #[arg(long)]
    brief: bool,
    /// Say which suites and parts there are
    #[arg(long)]
    list: bool,
    /// Exit with 0 even where something was left out: by the number alone nobody would see that little was compared
    #[arg(long)]
    allow_skipped: bool,
    /// Write what was found to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What became of one suite.
struct Outcome {
    suite: &'static dyn Suite,
    /// What was not run, and why.
    skipped: Vec<String>,
    comparison: Comparison,
    /// By path.
    fast: Vec<Fast>,
    seconds: f64,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if options.list {
        for suite in SUITES {
            println!("{:12} {}", suite.name(), suite.about());
            println!("{:12} {}", "", parts(*suite, &options).join(" "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = options.suites.iter().find(|name| SUITES.iter().all(|suite| suite.name() != *name)) {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name()).collect();
        let message = format!("there is no suite {unknown}; there are {}", names.join(", "));
        Options::command().error(ErrorKind::InvalidValue, message).exit();
    }
    let launch = Launch::new()?;
    let mut outcomes = Vec::new();
    for &suite in SUITES {
        if options.suites.is_empty() || options.suites.iter().any(|name| name == suite.name()) {
            outcomes.push(run(suite, &launch, &options)?);
        }
    }
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&outcomes.iter().map(Outcome::json).collect::<Vec<_>>())?;
        std::fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))?;
    }
    Ok(if report(&outcomes, options.allow_skipped) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parts(suite: &dyn Suite, options: &Options) -> Vec<&'static str> {
    let parts = if options.brief { suite.brief() } else { suite.parts() };
    parts.iter().copied().filter(|part| options.part.as_ref().is_none_or(|text| part.contains(text.as_str()))).collect()
}

fn run(suite: &'static dyn Suite, launch: &Launch, options: &Options) -> Result<Outcome> {
    let begin = Instant::now();
    let mut outcome = Outcome {
        suite,
        skipped: Vec::new(),
        comparison: Comparison::default(),
        fast: vec![Fast::default(); PATHS.len()],
        seconds: 0.0,
    };
    let parts = parts(suite, options);
    if parts.is_empty() {
        outcome.skipped.push("none of its parts is chosen".into());
        return Ok(outcome);
    }
    let place = Place::of(suite.name())?;
    let bar = bar((parts.len() * PATHS.len()) as u64)?;
    bar.set_message(format!("{}: fetching and building", suite.name()));
    if let Err(error) = suite.prepare(&place, &parts) {
        bar.finish_and_clear();
        outcome.skipped.push(format!("{error:#}"));
        return Ok(outcome);
    }
    for part in parts {
        one(suite, &place, launch, part, &bar, &mut outcome)?;
    }
    bar.finish_and_clear();
    outcome.seconds = begin.elapsed().as_secs_f64();
    Ok(outcome)
}

/// Runs one part on every path, and again where it differs.
fn one(
    suite: &dyn Suite,
    place: &Place,
    launch: &Launch,
    part: &'static str,
    bar: &ProgressBar,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut told: Vec<Vec<Verdicts>> = vec![Vec::new(); PATHS.len()];
    let mut once = |path: usize, told: &mut Vec<Vec<Verdicts>>| -> Result<()> {
        let Path { name, .. } = PATHS[path];
        bar.set_message(format!("{} {part}, {name}", suite.name()));
        let run = launch.on(&PATHS[path], place, part);
        told[path].push(suite.run(place, part, &run).with_context(|| format!("{} {part} on {name}", suite.name()))?);
        outcome.fast[path] += run.fast();
        Ok(())
    };
    for path in 0..PATHS.len() {
        once(path, &mut told)?;
        bar.inc(1);
    }
    for _ in 0..AGAIN {
        if compare::differences(part, &told).is_empty() {
            break;
        }
        for path in 0..PATHS.len() {
            once(path, &mut told)?;
        }
    }
    for difference in compare::differences(part, &told) {
        bar.suspend(|| println!("{} {part}: {difference}", suite.name()));
    }
    // Its own end alone is no test: it was not there, or could not start.
    if told.iter().flatten().all(|verdicts| verdicts.names().count() <= 1) {
        let log = launch.on(&PATHS[0], place, part).log;
        outcome.skipped.push(format!("{part} tells of no test; what it said is in {}", log.display()));
    }
    outcome.comparison.add(part, &told);
    Ok(())
}

fn bar(steps: u64) -> Result<ProgressBar> {
    let bar = ProgressBar::new(steps);
    bar.set_style(ProgressStyle::with_template("{bar:30} {elapsed}  {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(500));
    Ok(bar)
}

/// Prints the table; false if anything differs, was left out, or nothing was compared.
fn report(outcomes: &[Outcome], allow_skipped: bool) -> bool {
    let mut table = Table::new();
    let mut head = vec!["suite".to_owned(), "tests".into(), "same".into(), "different".into(), "unsteady".into()];
    head.extend(PATHS.iter().skip(1).map(|path| format!("fast, {}", path.name)));
    head.push("minutes".into());
    table.load_style(comfy_table::presets::NOTHING).set_header(head);
    for outcome in outcomes {
        let Comparison { tests, different, unsteady, .. } = &outcome.comparison;
        let mut row = vec![outcome.suite.name().to_owned()];
        if *tests == 0 {
            row.push("left out".into());
        } else {
            let same = tests - different.len() - unsteady;
            row.extend([*tests, same, different.len(), *unsteady].map(|count| count.to_string()));
            row.extend(outcome.fast.iter().skip(1).map(Fast::share));
            row.push(format!("{:.1}", outcome.seconds / 60.0));
        }
        table.add_row(row);
    }
    println!("{table}");
    println!("unsteady: on kernel TCP too a test says now this and now that.");
    println!("fast: share of the ends that were fast at some time, of those that carried something.");
    for outcome in outcomes {
        for reason in &outcome.skipped {
            println!("{}: left out: {reason}", outcome.suite.name());
        }
    }
    let left_out = outcomes.iter().any(|outcome| !outcome.skipped.is_empty());
    if left_out && !allow_skipped {
        println!("Something was left out, so this does not count as passed (--allow-skipped: it does).");
    }
    let compared: usize = outcomes.iter().map(|outcome| outcome.comparison.tests).sum();
    compared > 0
        && (!left_out || allow_skipped)
        && outcomes.iter().all(|outcome| outcome.comparison.different.is_empty())
}

impl Outcome {
    fn json(&self) -> serde_json::Value {
        let fast = PATHS.iter().zip(&self.fast).skip(1);
        serde_json::json!({
            "suite": self.suite.name(),
            "skipped": self.skipped,
            "tests": self.comparison.tests,
            "unsteady": self.comparison.unsteady,
            "different": self.comparison.different,
            "fast": fast.map(|(path, fast)| (path.name, fast.json())).collect::<std::collections::BTreeMap<_, _>>(),
            "seconds": self.seconds,
        })
    }
}

//! The run of a suite.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::bench::{Experiment, Lab, Options, skipped};
use crate::interrupt::{self, Interrupted};
use crate::plan::Plan;
use crate::record::{Measurement, Record, Skipped};
use crate::suite::Suite;
use crate::terminal::Terminal;

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// [`Options::only`] names no figure.
    #[error(transparent)]
    NoSuchFigure(#[from] NoSuchFigure),
    /// There is no library, no C compiler, or no GPU though one was asked for; or the record cannot be written.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// No figure of the suite has the text of [`Options::only`] in its name.
#[derive(Debug)]
pub struct NoSuchFigure {
    /// The text.
    pub only: String,
    /// The figures that there are.
    pub names: Vec<String>,
    /// What cannot be measured here, whose figures are not among these.
    pub skipped: Vec<Skipped>,
}

impl std::error::Error for NoSuchFigure {}

impl std::fmt::Display for NoSuchFigure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "--only {:?}: no figure of this suite has that in its name; there are\n  {}",
            self.only,
            self.names.join("\n  ")
        )?;
        self.skipped.iter().try_for_each(|Skipped { name, reason }| write!(f, "\n  {name}: not measured, {reason}"))
    }
}

/// Runs every experiment of a suite. What fails on the way is in the record as invalid, with the reason. A run that
/// SIGINT or SIGTERM ends has a record of what was measured until then, which is not [complete](Record::complete).
///
/// # Errors
/// See [`RunError`].
pub fn run(suite: Suite, options: &Options) -> Result<Record, RunError> {
    interrupt::watch().context("cannot watch for Ctrl-C")?;
    let lab = Lab::new(options)?;
    let mut record = Record::begin(options.samples, options.quick);
    let (mut chosen, skipped) = suite.experiments(&lab);
    record.programs = chosen.versions;
    record.skipped = skipped;
    let wanted = |plan: &Plan| options.only.as_ref().is_none_or(|text| has(&plan.name, text));
    let names = |plans: Vec<Plan>| plans.into_iter().map(|plan| plan.name);
    let all: Vec<String> = chosen.experiments.iter().flat_map(|(_, experiment)| names(experiment.plans())).collect();
    chosen.experiments.retain(|(_, experiment)| experiment.plans().iter().any(wanted));
    if let Some(text) = &options.only {
        let (skipped, others) = record.skipped.into_iter().partition(|skipped| has(&skipped.name, text));
        record.skipped = skipped;
        if chosen.experiments.is_empty() && record.skipped.is_empty() {
            return Err(NoSuchFigure { only: text.clone(), names: all, skipped: others }.into());
        }
    }
    let wanted = |it: &Measurement| options.only.as_ref().is_none_or(|text| has(&it.name, text));
    measure(&lab, chosen.experiments, &wanted, None, options, &mut record)?;
    Ok(record)
}

/// Takes the measurements of these experiments that are `wanted`, and keeps the record after each experiment. What the
/// record has of an experiment stays until it is measured anew. None is begun after the time `until`, nor once the user
/// has asked for the end: the record is not complete then, and says what it lacks.
///
/// # Errors
/// There is no C compiler, or the record cannot be written.
pub(crate) fn measure(
    lab: &Lab,
    experiments: Vec<(&'static str, Box<dyn Experiment>)>,
    wanted: &dyn Fn(&Measurement) -> bool,
    until: Option<Instant>,
    options: &Options,
    record: &mut Record,
) -> Result<()> {
    let all = experiments.len();
    let mut terminal = Terminal::new(options.table, options.progress, all * options.samples);
    record.complete = false;
    let mut end = None;
    for (number, (suite, mut experiment)) in experiments.into_iter().enumerate() {
        terminal.suite(suite);
        let measured = if until.is_some_and(|until| Instant::now() >= until) {
            Err("the time that was given was over")
        } else {
            match lab.measure(suite, experiment.as_mut(), &mut terminal) {
                Err(error) if error.is::<Interrupted>() => Err("the run was interrupted"),
                other => Ok(other?),
            }
        };
        match measured {
            Ok(measurements) => {
                for measurement in measurements.into_iter().filter(wanted) {
                    terminal.measured(&measurement);
                    record.add(measurement);
                }
                keep(record, options)?;
            }
            Err(why) => {
                let first = experiment.plans().into_iter().next().map(|plan| plan.name).unwrap_or_default();
                end = Some(skipped(&format!("{first}, and what follows: {} of {all} experiments", all - number), why));
                break;
            }
        }
    }
    record.complete = end.is_none();
    record.skipped.extend(end);
    terminal.end(&record.skipped);
    // What a file has is worth more than a record of nothing.
    if record.complete || !record.measurements.is_empty() { keep(record, options) } else { Ok(()) }
}

fn keep(record: &Record, options: &Options) -> Result<()> {
    options.keep.as_deref().map_or(Ok(()), |path| record.write_json(path))
}

fn has(name: &str, text: &str) -> bool {
    name.to_lowercase().contains(&text.to_lowercase())
}

//! The run of a suite.

use anyhow::Context;

use crate::bench::{Lab, Options};
use crate::interrupt;
use crate::plan::Plan;
use crate::record::{Record, Skipped};
use crate::suite::Suite;
use crate::terminal::Terminal;

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// [`Options::only`] names no figure.
    #[error(transparent)]
    NoSuchFigure(#[from] NoSuchFigure),
    /// There is no library, no C compiler, or no GPU though one was asked for; or the user interrupted.
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

/// Runs every experiment of a suite. What fails on the way is in the record as invalid, with the reason.
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

    let mut terminal = Terminal::new(options.table, options.progress, chosen.experiments.len() * options.samples);
    for (suite, experiment) in &mut chosen.experiments {
        terminal.suite(suite);
        for measurement in lab.measure(suite, experiment.as_mut(), &mut terminal)? {
            if options.only.as_ref().is_none_or(|text| has(&measurement.name, text)) {
                terminal.measured(&measurement);
                record.measurements.push(measurement);
            }
        }
    }
    terminal.end(&record.skipped);
    Ok(record)
}

fn has(name: &str, text: &str) -> bool {
    name.to_lowercase().contains(&text.to_lowercase())
}

//! What an experiment is, and how its samples are taken: the kernel and Underpass in turn.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};

use crate::interrupt::{self, Interrupted};
use crate::launcher::{Launcher, Reading, Session, Side};
use crate::plan::Plan;
use crate::process::{Finished, Running, finish};
use crate::processors::{Pair, confine};
use crate::programs::{CompileError, Program, Programs};
use crate::record::{Measurement, Skipped};
use crate::terminal::Terminal;
use underpass_checksum::gpu::Gpu;

/// How to run a suite.
#[derive(Clone, Debug)]
pub struct Options {
    /// The library under which the Underpass side runs.
    pub library: PathBuf,
    /// Environment variables that the Underpass side gets, e.g. `UNDERPASS_SPIN_US`.
    pub settings: Vec<(OsString, OsString)>,
    /// Samples of each side; a figure that is quoted takes at least 5.
    pub samples: usize,
    /// Shorter clocks and fewer sizes: to see whether all works, not to quote.
    pub quick: bool,
    /// Whether what a GPU can do is measured too.
    pub gpu: bool,
    /// Only experiments with this text in the name of one of their figures, in any case.
    pub only: Option<String>,
    /// Print each figure to stdout as it comes.
    pub table: bool,
    /// Show on stderr what is being measured; for terminals.
    pub progress: bool,
    /// Where the record is written, as it is after each experiment.
    pub keep: Option<PathBuf>,
}

impl Options {
    /// Five full samples of everything, silently.
    pub fn new(library: impl Into<PathBuf>) -> Options {
        let library = library.into();
        let (settings, samples, only, keep) = (Vec::new(), 5, None, None);
        Options { library, settings, samples, quick: false, gpu: false, only, table: false, progress: false, keep }
    }
}

/// Something that can be measured on either side, one sample at a time.
pub trait Experiment {
    /// The figures that every sample yields, in their order.
    fn plans(&self) -> Vec<Plan>;

    /// The sides of which samples are taken. What has nothing to do with sockets has no kernel side.
    fn sides(&self) -> &'static [Side] {
        &Side::BOTH
    }

    /// Whatever must be there before the first sample.
    ///
    /// # Errors
    /// It cannot be had; no sample is taken then.
    fn prepare(&mut self, _lab: &Lab) -> Result<()> {
        Ok(())
    }

    /// One sample: as many readings as there are plans.
    ///
    /// # Errors
    /// The sample failed as a whole; the measurement counts for nothing then.
    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>>;

    /// What the first figure is also judged by, if anything, measured once now.
    ///
    /// # Errors
    /// It could not be measured.
    fn baseline(&mut self, _lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        Ok(None)
    }
}

/// What experiments share.
#[derive(Debug)]
pub struct Lab {
    /// Starts programs.
    pub launcher: Launcher,
    /// The two processors for what is pinned; `None` if there is but one.
    pub processors: Option<Pair>,
    /// Whether to be quick.
    pub quick: bool,
    /// The GPU, if that is measured too.
    pub gpu: Option<Rc<Gpu>>,
    samples: usize,
    programs: Programs,
}

impl Lab {
    /// A place to measure in.
    ///
    /// # Errors
    /// There is no library, no temporary folder, or no GPU though one is to be measured.
    pub fn new(options: &Options) -> Result<Lab> {
        let gpu = if options.gpu { Some(Gpu::open().context("--gpu")?) } else { None };
        Ok(Lab {
            gpu,
            launcher: Launcher::new(&options.library, &options.settings)?,
            processors: Pair::pick(),
            quick: options.quick,
            samples: options.samples.max(1),
            programs: Programs::new()?,
        })
    }

    /// Seconds for which the clock of one short sample runs.
    pub fn clock(&self) -> f64 {
        if self.quick { 0.15 } else { 0.4 }
    }

    /// `full`, or a tenth of it for a quick run: repetitions where they are counted rather than timed.
    pub fn count(&self, full: u64) -> u64 {
        if self.quick { full / 10 } else { full }
    }

    /// A helper program of this session's side.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub fn command(&self, session: &Session, program: Program) -> Result<Command> {
        Ok(session.command(self.programs.path(program)?))
    }

    /// The executable of a helper program.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub fn path(&self, program: Program) -> Result<PathBuf> {
        Ok(self.programs.path(program)?)
    }

    /// A helper program by itself, as baselines are.
    ///
    /// # Errors
    /// It cannot be compiled or fails.
    pub fn alone(&self, program: Program, arguments: &[String]) -> Result<Finished> {
        finish(Command::new(self.programs.path(program)?).args(arguments), LIMIT)
    }

    /// A server and a client of one helper program, pinned to the processors of `pair` if there is one, both to their
    /// end: what the client printed.
    ///
    /// # Errors
    /// Either of them cannot be started, fails, finds a wrong byte, or hangs.
    pub fn converse(
        &self,
        session: &Session,
        program: Program,
        arguments: &[String],
        pair: Option<Pair>,
    ) -> Result<Finished> {
        self.converse_both(session, program, arguments, pair).map(|(_, client)| client)
    }

    /// A server and a client of one helper program, as in [`Lab::converse`]: how both ended.
    ///
    /// # Errors
    /// As for [`Lab::converse`].
    pub fn converse_both(
        &self,
        session: &Session,
        program: Program,
        arguments: &[String],
        pair: Option<Pair>,
    ) -> Result<(Finished, Finished)> {
        let [mut server, mut client] = [self.command(session, program)?, self.command(session, program)?];
        // The server is pinned from outside, as by taskset: a program that pins itself has loaded its libraries before.
        let pinned = pair.map(|pair| confine(&[pair.first])).transpose()?;
        let (mut server, port) = Running::announced(server.args(arguments))?;
        drop(pinned);
        let pinned = pair.map(|pair| confine(&[pair.second])).transpose()?;
        let client = Running::start(client.args(arguments).args(["--port", &port.to_string()]));
        drop(pinned);
        let client = client.and_then(|client| client.finish(LIMIT));
        // Where both fail, what the server found is often why the client failed.
        let client = client.map_err(|error| match server.complaint() {
            Some(complaint) if !error.is::<Interrupted>() => anyhow!("{error:#}; its server: {complaint:#}"),
            _ => error,
        })?;
        Ok((server.finish(LIMIT)?, client))
    }

    pub(crate) fn measure(
        &self,
        suite: &str,
        experiment: &mut dyn Experiment,
        terminal: &mut Terminal,
    ) -> Result<Vec<Measurement>> {
        let mut sheets: Vec<Sheet> = experiment.plans().into_iter().map(Sheet::new).collect();
        if let Err(error) = experiment.prepare(self) {
            fail(&mut sheets, "could not be prepared", error)?;
        }
        for sample in 0..self.samples {
            if sheets.iter().all(|sheet| sheet.invalid.is_some()) {
                terminal.skip(self.samples - sample);
                break;
            }
            for &side in experiment.sides() {
                interrupt::check()?;
                terminal.step(&sheets[0].plan.name, side, sample + 1, self.samples);
                let readings = self.launcher.session(side).and_then(|session| experiment.sample(self, &session));
                match readings {
                    Ok(readings) => {
                        sheets.iter_mut().zip(readings).for_each(|(sheet, reading)| sheet.note(side, reading))
                    }
                    Err(error) => fail(&mut sheets, side.doing(), error)?,
                }
            }
            match experiment.baseline(self) {
                Ok(Some(value)) => sheets[0].baseline.push(value),
                Ok(None) => {}
                Err(error) => fail(&mut sheets[..1], "baseline", error)?,
            }
            terminal.advance();
        }
        Ok(sheets.into_iter().map(|sheet| sheet.conclude(suite)).collect())
    }
}

/// How long a helper program may take; far more than any does.
pub const LIMIT: Duration = Duration::from_secs(60);

impl Side {
    fn doing(self) -> &'static str {
        match self {
            Side::Kernel => "on kernel TCP",
            Side::Underpass => "under Underpass",
        }
    }
}

/// A missing compiler or an interruption ends the run; any other failure concerns these figures alone.
fn fail(sheets: &mut [Sheet], when: &str, error: Error) -> Result<()> {
    // Ctrl-C ends the programs that are measured too, which is no failure of theirs.
    interrupt::check()?;
    if error.is::<CompileError>() || error.is::<Interrupted>() {
        return Err(error);
    }
    for sheet in sheets {
        sheet.invalid.get_or_insert_with(|| format!("{when}: {error:#}"));
    }
    Ok(())
}

/// The samples of one plan while they come in.
struct Sheet {
    plan: Plan,
    kernel: Vec<f64>,
    underpass: Vec<f64>,
    baseline: Vec<(&'static str, f64)>,
    invalid: Option<String>,
}

impl Sheet {
    fn new(plan: Plan) -> Sheet {
        Sheet { plan, kernel: Vec::new(), underpass: Vec::new(), baseline: Vec::new(), invalid: None }
    }

    fn note(&mut self, side: Side, reading: Reading) {
        // JSON has no such number, so that the record could not be read.
        let finite = |value: f64| if value.is_finite() { Ok(value) } else { Err(format!("a sample of {value}")) };
        match (side, reading.and_then(finite)) {
            (Side::Kernel, Ok(value)) => self.kernel.push(value),
            (Side::Underpass, Ok(value)) => self.underpass.push(value),
            (_, Err(reason)) => drop(self.invalid.get_or_insert(reason)),
        }
    }

    fn conclude(self, suite: &str) -> Measurement {
        let baseline = self.baseline.first().map(|(name, _)| *name);
        let baseline = baseline.map(|name| (name, self.baseline.iter().map(|(_, value)| *value).collect()));
        Measurement::conclude(suite, &self.plan, self.kernel, self.underpass, baseline, self.invalid)
    }
}

/// The experiments of a suite, with the versions of the programs they run.
#[derive(Default)]
pub struct Chosen {
    /// Each with the name of its suite.
    pub experiments: Vec<(&'static str, Box<dyn Experiment>)>,
    /// Versions, in the programs' own words.
    pub versions: Vec<String>,
}

impl Chosen {
    /// Adds one.
    pub fn add(&mut self, suite: &'static str, experiment: impl Experiment + 'static) {
        self.experiments.push((suite, Box::new(experiment)));
    }
}

/// Something that will not be measured, and why.
pub fn skipped(name: &str, reason: impl Into<String>) -> Skipped {
    Skipped { name: name.to_string(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Unit;

    #[test]
    fn a_sample_that_is_no_number_leaves_no_figure() {
        for sample in [f64::INFINITY, f64::NAN] {
            let mut sheet = Sheet::new(Plan::rate("group", "name", Unit::PerSecond));
            sheet.note(Side::Underpass, Ok(1.0));
            sheet.note(Side::Underpass, Ok(sample));
            let measurement = sheet.conclude("suite");
            assert_eq!(measurement.invalid, Some(format!("a sample of {sample}")));
            assert!(measurement.underpass.samples.is_empty());
        }
    }
}

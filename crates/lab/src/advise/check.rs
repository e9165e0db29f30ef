//! Advice put to the test: all ways that can run here are measured at sizes that the records do not have, and what was predicted
//! is set against what is.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use anyhow::{Context, Result};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::answer::{self, Decided, TIE, Verdict};
use super::question::{self, Objective, Question, Stage};
use crate::bench::{Chosen, Experiment, Lab, Options};
use crate::evidence::{Evidence, Run};
use crate::host::Host;
use crate::interrupt;
use crate::record::{Measurement, Record, Skipped};
use crate::statistic::{mean, median};
use crate::suite::{checksum, driver, layers};
use crate::terminal::Terminal;
use crate::unit::{digits, size};

/// One size of one question: what was said, and what is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Which work.
    pub stage: String,
    /// On what.
    pub route: String,
    /// What is weighed.
    pub objective: String,
    /// Bytes of a message.
    pub size: u64,
    /// The way that was advised.
    pub choice: String,
    /// Why.
    pub verdict: String,
    /// The default, and all other ways that were measured.
    pub ways: Vec<Outcome>,
}

/// What became of one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The way.
    pub name: String,
    /// How many times less it was to cost than the default.
    pub predicted: f64,
    /// How many times less it cost.
    pub measured: f64,
}

/// All cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// As they were measured.
    pub cases: Vec<Case>,
}

impl Case {
    /// What the best way gains over the default.
    fn best(&self) -> Option<&Outcome> {
        self.ways.iter().max_by(|one, other| one.measured.total_cmp(&other.measured))
    }

    /// The share of the best way's work that the advised way does not do: 0 if it is the best.
    pub fn regret(&self) -> f64 {
        let chosen = self.ways.iter().find(|way| way.name == self.choice);
        self.best().zip(chosen).map_or(0.0, |(best, chosen)| 1.0 - chosen.measured / best.measured)
    }

    /// Whether the advised way is the best, or within a tie of it.
    pub fn is_right(&self) -> bool {
        self.regret() < 1.0 - 1.0 / TIE
    }

    /// Whether all ways are within a tie of the best, so that no choice is wrong.
    pub fn is_tie(&self) -> bool {
        self.best().is_some_and(|best| self.ways.iter().all(|way| best.measured < way.measured * TIE))
    }

    /// By how much each predicted gain is off, as a share of 1.
    fn errors(&self) -> impl Iterator<Item = f64> + '_ {
        // The default's gain is 1 by definition.
        self.ways.iter().skip(1).map(|way| (way.predicted / way.measured - 1.0).abs())
    }
}

impl Check {
    /// The error of a predicted gain in the median, as a share of 1.
    pub fn error(&self) -> Option<f64> {
        median(&self.cases.iter().flat_map(Case::errors).collect::<Vec<f64>>())
    }

    /// Of the cases that are no tie, the share with a right choice.
    pub fn right(&self) -> Option<f64> {
        let open: Vec<f64> = self.cases.iter().filter(|it| !it.is_tie()).map(|it| f64::from(it.is_right())).collect();
        mean(&open)
    }

    /// Mean regret over all cases.
    pub fn regret(&self) -> Option<f64> {
        mean(&self.cases.iter().map(Case::regret).collect::<Vec<f64>>())
    }

    fn of_stage(&self, stage: Stage) -> Check {
        let cases = self.cases.iter().filter(|it| it.stage == stage.name()).cloned();
        Check { cases: cases.collect() }
    }
}

/// A check, and the record of what was measured for it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The cases.
    pub check: Check,
    /// What was measured.
    pub record: Record,
}

/// Measures what the records' questions can be asked about here, in an order that comes from the seed, and compares.
///
/// # Errors
/// There is no library, no C compiler, or the user interrupts.
pub fn run(evidence: &Evidence, options: &Options, seed: u64) -> Result<Checked> {
    interrupt::watch().context("cannot watch for Ctrl-C")?;
    let lab = Lab::new(options)?;
    let here = Host::describe();
    let is_here =
        |run: &&Run| run.record.host.processor == here.processor && run.record.host.processors == here.processors;
    let asked: Vec<Question> = evidence.runs.iter().filter(is_here).flat_map(super::questions).collect();
    let asked: Vec<Question> = asked.into_iter().filter(can_be_measured).collect();
    let mut record = Record::begin(options.samples, options.quick);
    let (chosen, skipped) = experiments(&asked, &lab, seed);
    record.skipped = skipped;
    let mut terminal = Terminal::new(options.table, options.progress, chosen.experiments.len() * options.samples);
    for (suite, mut experiment) in chosen.experiments {
        for measurement in lab.measure(suite, experiment.as_mut(), &mut terminal)? {
            terminal.measured(&measurement);
            record.measurements.push(measurement);
        }
    }
    terminal.end(&record.skipped);
    let valid: Vec<&Measurement> = record.measurements.iter().filter(|it| it.invalid.is_none()).collect();
    let check = compare(&asked, &question::of(&valid));
    Ok(Checked { check, record })
}

/// Experiments that measure, in turn, all ways of these questions at sizes between theirs, in a random order.
pub fn experiments(questions: &[Question], lab: &Lab, seed: u64) -> (Chosen, Vec<Skipped>) {
    let (mut chosen, mut missing) = (Chosen::default(), Vec::new());
    let between = |stage: Stage| {
        let of_stage = questions.iter().filter(|it| it.stage == stage);
        let mut sizes: Vec<u64> = of_stage.flat_map(|it| held_out(&it.sizes())).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    layers::add_comparisons(&mut chosen, &between(Stage::Layers));
    let (completion, copies) = (between(Stage::Completion), between(Stage::Copies));
    if !completion.is_empty() || !copies.is_empty() {
        driver::add_comparisons(&mut chosen, &mut missing, &completion, &copies);
    }
    let (instructions, received) = (between(Stage::Instructions), between(Stage::Checksum));
    checksum::add_comparisons(lab, &mut chosen, &mut missing, &instructions, &received);
    // Suites compare all that they can; what nothing was predicted of is left out.
    let groups: BTreeSet<&str> = questions.iter().flat_map(|it| &it.ways).map(|way| way.group.as_str()).collect();
    let is_asked = |it: &dyn Experiment| it.plans().iter().any(|plan| groups.contains(plan.group.as_str()));
    chosen.experiments.retain(|(_, it)| is_asked(it.as_ref()));
    Rng::with_seed(seed).shuffle(&mut chosen.experiments);
    (chosen, missing)
}

/// A size between each two neighbours, the same factor from both, in multiples of 8.
fn held_out(sizes: &[u64]) -> Vec<u64> {
    let middle = |pair: &[u64]| (((pair[0] as f64 * pair[1] as f64).sqrt() / 8.0).round() * 8.0) as u64;
    let between = sizes.windows(2).map(|pair| (middle(pair), pair[0], pair[1]));
    between.filter(|(size, low, high)| (low + 1..*high).contains(size)).map(|(size, ..)| size).collect()
}

/// Sets what `asked` predicts against what `measured` says, at sizes that `asked` does not have.
pub fn compare(asked: &[Question], measured: &[Question]) -> Check {
    let key = |it: &Question| (it.stage, it.route.clone(), it.objective);
    let mut cases = Vec::new();
    for question in asked {
        let Some(found) = measured.iter().find(|it| key(it) == key(question)) else { continue };
        let errors = answer::errors(question, &question.sizes());
        for size in found.sizes().into_iter().filter(|size| !question.sizes().contains(size)) {
            let decided = answer::decide(question, &errors, size);
            cases.extend(decided.and_then(|decided| case(question, found, &decided)));
        }
    }
    Check { cases }
}

fn case(question: &Question, found: &Question, decided: &Decided) -> Option<Case> {
    let cost = |name: &str| {
        let way = found.ways.iter().find(|way| way.name == name)?;
        way.curve.predict(decided.size)
    };
    let default = &question.ways.first()?.name;
    let base = cost(default)?;
    let others = decided.ways.iter().filter_map(|way| {
        Some(Outcome { name: way.name.clone(), predicted: way.times, measured: base / cost(&way.name)? })
    });
    let first = Outcome { name: default.clone(), predicted: 1.0, measured: 1.0 };
    let ways: Vec<Outcome> = std::iter::once(first).chain(others).collect();
    // A way that cannot run here cannot be judged here.
    let is_there = ways.len() > 1 && ways.iter().any(|way| way.name == decided.choice);
    is_there.then(|| Case {
        stage: question.stage.name().to_string(),
        route: question.route.clone(),
        objective: question.objective.name().to_string(),
        size: decided.size,
        choice: decided.choice.clone(),
        verdict: decided.verdict.name().to_string(),
        ways,
    })
}

/// For a person: the whole, each stage, and each wrong case.
impl Display for Check {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", summary("all", self))?;
        for stage in Stage::ALL {
            let of_stage = self.of_stage(stage);
            if !of_stage.cases.is_empty() {
                writeln!(out, "{}", summary(stage.name(), &of_stage))?;
            }
        }
        for case in self.cases.iter().filter(|it| !it.is_right()) {
            let Some(best) = case.best() else { continue };
            writeln!(
                out,
                "wrong: {}, {}, {}: advised {} ({}), but {} gains {} times ({} predicted); regret {} %",
                case.stage,
                case.route,
                size(case.size),
                case.choice,
                case.verdict,
                best.name,
                digits(best.measured),
                digits(best.predicted),
                digits(case.regret() * 100.0)
            )?;
        }
        Ok(())
    }
}

fn summary(name: &str, check: &Check) -> String {
    let percent = |value: Option<f64>| value.map_or("–".to_string(), |value| format!("{} %", digits(value * 100.0)));
    let ties = check.cases.iter().filter(|case| case.is_tie()).count();
    let unsure = check.cases.iter().filter(|case| case.verdict == Verdict::NotDistinguishable.name()).count();
    format!(
        "{name}: {} cases ({ties} ties, {unsure} not distinguishable): predicted gains off by {} in the median, {} of the choices \
         outside ties right, mean regret {}",
        check.cases.len(),
        percent(check.error()),
        percent(check.right()),
        percent(check.regret())
    )
}

/// Whether a question's ways are measured by [`experiments`].
pub fn can_be_measured(question: &Question) -> bool {
    let is_kind = matches!(question.stage, Stage::Layers | Stage::Completion | Stage::Copies | Stage::Instructions);
    is_kind || (question.stage == Stage::Checksum && question.objective == Objective::Throughput)
}

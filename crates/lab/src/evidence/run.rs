//! A run of a suite, as `bench` and `demo` write it.

use std::collections::BTreeSet;

use super::{Amounts, Problem, check_date, check_texts, unit};
use crate::plan::Medians;
use crate::record::{Figure, Measurement, Record};
use crate::statistic::median;
use crate::survey::record::word;
use crate::unit::{Better, Unit, is_possible, told};

const MOST_MEASUREMENTS: usize = 100_000;

/// One run of a suite, and the file that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What the report and the advice call it: a name that no other has, as a rule its file's without the ending.
    pub name: String,
    /// What it measured.
    pub record: Record,
}

impl Run {
    /// A record that is at hand.
    ///
    /// # Errors
    /// It has figures that cannot be true.
    pub fn new(name: String, record: Record) -> Result<Run, Problem> {
        check(&record)?;
        Ok(Run { name, record })
    }
}

fn check(record: &Record) -> Result<(), Problem> {
    if record.measurements.len() > MOST_MEASUREMENTS {
        return Err(Problem::Excessive(format!("has more than {MOST_MEASUREMENTS} measurements")));
    }
    check_date(&record.date)?;
    let of_record = [&record.date, &record.version].into_iter().chain(&record.revision).chain(record.host.texts());
    let of_skipped = record.skipped.iter().flat_map(|it| [&it.name, &it.reason]);
    let of_measurements = record.measurements.iter().flat_map(texts);
    let of_survey = record.survey.iter().flat_map(|it| [&it.date].into_iter().chain(&it.endpoints));
    check_texts(of_record.chain(&record.programs).chain(of_survey).chain(of_skipped).chain(of_measurements))?;
    let (mut amounts, mut names) = (Amounts::new(), BTreeSet::new());
    for it in &record.measurements {
        let wrong = |what: String| Problem::Impossible { measurement: it.name.clone(), what };
        if !names.insert((&it.suite, &it.group, &it.name, it.size)) {
            return Err(wrong("it is there twice".to_string()));
        }
        its_own_unit(it).map_err(wrong)?;
        for (side, figure) in it.sides() {
            plausible(it.unit, is_difference(it), figure).map_err(|what| wrong(format!("{side}: {what}")))?;
            amounts.add((&it.suite, &it.group, side, it.size.is_none().then_some(&it.name)), figure.samples.len())?;
        }
        contrasts(it).map_err(wrong)?;
    }
    Ok(())
}

/// A figure in another unit would be taken for another quantity.
fn its_own_unit(it: &Measurement) -> Result<(), String> {
    let told = |(unit, better): (Unit, Better)| format!("in {}, where {} is better", unit.symbol(), word(better));
    let is = (it.unit, it.better);
    match unit::of(&it.suite, &it.group, &it.name) {
        Some(own) if own != is => Err(format!("it is {}, and what is so called is {}", told(is), told(own))),
        _ => Ok(()),
    }
}

/// Whether the recorded figures of both sides together are what their medians come to.
fn contrasts(it: &Measurement) -> Result<(), String> {
    let is_near = |told: f64, is: f64| (told - is).abs() <= is.abs() * 1e-9;
    let medians = it.underpass.median.map(|underpass| Medians { kernel: it.kernel.median, underpass, baseline: None });
    let ratio = medians.and_then(|medians| medians.ratio(it.better));
    let difference = medians.and_then(|medians| Some(medians.underpass - medians.kernel?));
    for (what, told, is) in [("ratio", it.ratio, ratio), ("difference", it.difference, difference)] {
        if let Some(told) = told
            && is.is_none_or(|is| !is_near(told, is))
        {
            let [told, is] = [Some(told), is].map(or_none);
            return Err(format!("its {what} is said to be {told}, and that of its medians is {is}"));
        }
    }
    Ok(())
}

fn texts(measurement: &Measurement) -> impl Iterator<Item = &String> {
    let own = [&measurement.suite, &measurement.group, &measurement.name];
    let targets = measurement.targets.iter().map(|it| &it.text);
    let baseline = measurement.baseline.iter().map(|it| &it.name);
    own.into_iter().chain(targets).chain(baseline).chain(&measurement.invalid).chain(&measurement.notes)
}

/// Whether a figure is the difference of two readings, which may be below 0 where it is small: a part of a packet's
/// processor time, the growth of memory, the use of a processor.
fn is_difference(measurement: &Measurement) -> bool {
    let is_part = measurement.suite == "checksum" && measurement.group.contains(": ");
    is_part || matches!(measurement.unit, Unit::Bytes | Unit::Percent)
}

fn plausible(unit: Unit, is_difference: bool, figure: &Figure) -> Result<(), String> {
    let is_one = |sample: f64| sample == 0.0 || (is_possible(sample.abs()) && (sample > 0.0 || is_difference));
    if let Some(sample) = figure.samples.iter().find(|it| !is_one(**it)) {
        return Err(format!("{} {} is no {}", told(*sample), unit.symbol(), unit.quantity()));
    }
    match (figure.median, median(&figure.samples)) {
        (None, None) => Ok(()),
        (Some(told), Some(is)) if (told - is).abs() <= is.abs() * 1e-9 => Ok(()),
        (told, is) => {
            let [told, is] = [told, is].map(or_none);
            Err(format!("its median is said to be {told}, and that of its samples is {is}"))
        }
    }
}

/// A figure that a record may lack.
pub(super) fn or_none(figure: Option<f64>) -> String {
    figure.map_or_else(|| "none".to_string(), told)
}

impl Unit {
    fn quantity(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "duration",
            Unit::BytesPerSecond | Unit::PerSecond => "rate",
            Unit::Percent => "share",
            Unit::Bytes => "amount of memory",
            Unit::Count => "number",
        }
    }
}

//! A run of a suite, as `bench` and `demo` write it.

use super::{LONGEST_TEXT, Problem};
use crate::record::{Figure, Measurement, Record};
use crate::statistic::median;
use crate::unit::Unit;

const MOST_MEASUREMENTS: usize = 100_000;
const MOST_SAMPLES: usize = 100_000;

/// One run of a suite, and the file that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What the report and the advice call it: the file's name without its ending.
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
    let of_record = [&record.date, &record.version].into_iter().chain(&record.revision).chain(record.host.texts());
    let of_skipped = record.skipped.iter().flat_map(|it| [&it.name, &it.reason]);
    let of_measurements = record.measurements.iter().flat_map(texts);
    let mut all = of_record.chain(&record.programs).chain(of_skipped).chain(of_measurements);
    if let Some(text) = all.find(|text| text.len() > LONGEST_TEXT) {
        let start: String = text.chars().take(40).collect();
        return Err(Problem::Excessive(format!("has a text of more than {LONGEST_TEXT} bytes, beginning {start:?}")));
    }
    record.measurements.iter().try_for_each(|measurement| {
        measurement.sides().try_for_each(|(side, figure)| {
            let wrong = plausible(measurement.unit, is_difference(measurement), figure).err();
            wrong.map_or(Ok(()), |what| {
                Err(Problem::Impossible { measurement: measurement.name.clone(), what: format!("{side}: {what}") })
            })
        })
    })
}

fn texts(measurement: &Measurement) -> impl Iterator<Item = &String> {
    let own = [&measurement.suite, &measurement.group, &measurement.name];
    let targets = measurement.targets.iter().map(|it| &it.text);
    let baseline = measurement.baseline.iter().map(|it| &it.name);
    own.into_iter().chain(targets).chain(baseline).chain(&measurement.invalid).chain(&measurement.notes)
}

/// Whether a figure is the difference of two readings, which may be below 0 where it is small: a part of a packet's processor
/// time, the growth of memory, the use of a processor.
fn is_difference(measurement: &Measurement) -> bool {
    let is_part = measurement.suite == "checksum" && measurement.group.contains(": ");
    is_part || matches!(measurement.unit, Unit::Bytes | Unit::Percent)
}

fn plausible(unit: Unit, is_difference: bool, figure: &Figure) -> Result<(), String> {
    if figure.samples.len() > MOST_SAMPLES {
        return Err(format!("more than {MOST_SAMPLES} samples"));
    }
    if let Some(sample) = figure.samples.iter().find(|it| !it.is_finite() || (**it < 0.0 && !is_difference)) {
        return Err(format!("{sample} {} is no {}", unit.symbol(), unit.quantity()));
    }
    match (figure.median, median(&figure.samples)) {
        (None, None) => Ok(()),
        (Some(told), Some(is)) if (told - is).abs() <= is.abs() * 1e-9 => Ok(()),
        (told, is) => Err(format!("its median is said to be {told:?}, and that of its samples is {is:?}")),
    }
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

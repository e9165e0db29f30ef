//! What a run shows while it goes: a table that grows on stdout, and on a terminal what is being measured.

use std::io::{Write, stdout};
use std::time::Duration;

use comfy_table::{CellAlignment, ColumnConstraint, Table, Width, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::launcher::Side;
use crate::record::{Measurement, Record, Skipped};
use crate::unit::digits;

/// Title and characters of each column.
const COLUMNS: [(&str, u16); 6] =
    [("", 40), ("kernel TCP", 12), ("Underpass", 12), ("ratio", 12), ("target", 36), ("met", 5)];

/// Shows one run.
#[derive(Debug)]
pub struct Terminal {
    bar: ProgressBar,
    table: Option<Table>,
    printed: usize,
    suite: String,
}

impl Terminal {
    /// Shows `table` and `progress` over so many samples, as asked.
    pub fn new(table: bool, progress: bool, samples: usize) -> Terminal {
        let target = if progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(samples as u64), target);
        let style = ProgressStyle::with_template("{elapsed_precise} {bar:24} {percent:>3} %  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if progress {
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Terminal { bar, table: table.then(empty_table), printed: 0, suite: String::new() }
    }

    /// The figures that follow belong to this suite.
    pub fn suite(&mut self, suite: &str) {
        if self.suite != suite {
            self.suite = suite.to_string();
            let suite = self.suite.clone();
            self.row([suite.as_str(), "", "", "", "", ""].map(str::to_string));
        }
    }

    /// This is being measured.
    pub fn step(&self, name: &str, side: Side, sample: usize, of: usize) {
        let side = match side {
            Side::Kernel => "kernel TCP",
            Side::Underpass => "Underpass",
        };
        self.bar.set_message(format!("{name}: {side}, sample {sample} of {of}"));
    }

    /// Counts one sample of all sides as done.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Counts so many samples as left out.
    pub fn skip(&self, samples: usize) {
        self.bar.inc(samples as u64);
    }

    /// This is the result.
    pub fn measured(&mut self, measurement: &Measurement) {
        self.row(cells(measurement));
        if let Some(reason) = &measurement.invalid {
            self.line(&format!("      not valid: {reason}"));
        }
    }

    /// All is done but these.
    pub fn end(&mut self, skipped: &[Skipped]) {
        self.bar.finish_and_clear();
        for Skipped { name, reason } in skipped {
            self.line(&format!("  {name}: not measured, {reason}"));
        }
    }

    fn row(&mut self, cells: [String; 6]) {
        let Some(table) = &mut self.table else { return };
        table.add_row(cells);
        let lines: Vec<String> = table.lines().skip(self.printed).collect();
        self.printed += lines.len();
        lines.iter().for_each(|line| self.line(line.trim_end()));
    }

    fn line(&self, text: &str) {
        if self.table.is_some() {
            // A reader that has gone away is no reason to stop measuring: the record is still to come.
            self.bar.suspend(|| drop(writeln!(stdout(), "{text}")));
        }
    }
}

/// The whole table of a record.
pub fn table(record: &Record) -> String {
    let mut table = empty_table();
    let mut suite = "";
    for measurement in &record.measurements {
        if suite != measurement.suite {
            suite = &measurement.suite;
            table.add_row([suite, "", "", "", "", ""]);
        }
        table.add_row(cells(measurement));
    }
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

fn empty_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(COLUMNS.map(|(title, _)| title));
    for (column, (_, width)) in table.column_iter_mut().zip(COLUMNS) {
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
        column.set_cell_alignment(CellAlignment::Right);
    }
    for left in [0, 4] {
        if let Some(column) = table.column_mut(left) {
            column.set_cell_alignment(CellAlignment::Left);
        }
    }
    table
}

fn cells(measurement: &Measurement) -> [String; 6] {
    let show = |value: Option<f64>| value.map(|value| measurement.unit.show(value)).unwrap_or_default();
    let met = match measurement.met {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    };
    [
        format!("  {}", measurement.name),
        show(measurement.kernel.median),
        show(measurement.underpass.median),
        contrast(measurement),
        targets(measurement),
        met.to_string(),
    ]
}

/// `95.6×`, or `+412 µs` where a factor says nothing.
pub fn contrast(measurement: &Measurement) -> String {
    match (measurement.ratio, measurement.difference) {
        (Some(ratio), _) => format!("{}×", digits(ratio)),
        (None, Some(more)) => format!("{}{}", if more < 0.0 { "" } else { "+" }, measurement.unit.show(more)),
        (None, None) => String::new(),
    }
}

/// All targets of a measurement, and what its baseline came to.
pub fn targets(measurement: &Measurement) -> String {
    let mut texts: Vec<String> = measurement.targets.iter().map(|target| target.text.clone()).collect();
    if let Some(baseline) = &measurement.baseline
        && let Some(median) = baseline.figure.median
    {
        let value = measurement.unit.show(median);
        match texts.iter_mut().find(|text| text.ends_with(&baseline.name)) {
            Some(text) => *text += &format!(" ({value})"),
            None => texts.push(format!("{} {value}", baseline.name)),
        }
    }
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::example;
    use crate::unit::Unit;

    #[test]
    fn the_table_shows_what_was_measured_and_nothing_else() {
        let text = table(&example());
        assert!(text.contains("blocking, 1 B") && text.contains("61.0 µs") && text.contains("510 ns"), "{text}");
        assert!(text.contains("120×") && text.contains("≥ 25×, ≤ 2× cache line"), "{text}");
        assert!(text.contains("+500 µs"), "{text}");
        assert!(!text.contains("777"), "{text}");
        let mut record = example();
        let start = record.measurements.iter_mut().find(|it| it.difference.is_some()).unwrap();
        (start.unit, start.difference) = (Unit::Bytes, Some(19.9 * 1024.0));
        assert!(table(&record).contains("+19.9 KiB"), "a value and its unit are one");
    }
}

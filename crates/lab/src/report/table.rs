//! Tables of the page. Each number is there twice: as a reader wants it, and in full for the file that the page makes
//! of a table (CSV).

use super::chart::{Axis, Chart, Role, Series};
use crate::bootstrap::{self, Interval};
use crate::record::Figure;
use crate::unit::Unit;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Heads of the columns, the one of the names first.
    pub heads: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is of.
    pub name: String,
    /// What a reader should know beside it.
    pub notes: Vec<String>,
    /// One cell for each head but the first.
    pub cells: Vec<Cell>,
}

/// A field.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// For a reader.
    pub text: String,
    /// The number in full, in the unit that the record has.
    pub value: Option<f64>,
    /// That unit, if it has one.
    pub unit: &'static str,
    /// Where the value lies, in the same unit.
    pub interval: Option<Interval>,
    /// Smaller, beneath.
    pub small: String,
    /// `met`, `missed`, `published`, `text` or nothing.
    pub class: &'static str,
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), class: "text", ..Cell::default() }
    }

    /// A number that was computed from figures.
    pub fn number(text: impl Into<String>, value: f64) -> Cell {
        Cell { text: text.into(), value: Some(value), ..Cell::default() }
    }

    /// A value in a unit.
    pub fn of(unit: Unit, value: f64) -> Cell {
        Cell { unit: unit.symbol(), ..Cell::number(unit.show(value), value) }
    }

    /// What a paper printed.
    pub fn published(text: impl Into<String>, value: f64) -> Cell {
        Cell { class: "published", ..Cell::number(text, value) }
    }

    /// A measured figure with its interval.
    pub fn figure(unit: Unit, figure: &Figure) -> Cell {
        let Some(median) = figure.median else { return Cell::default() };
        let interval = bootstrap::of_median(&figure.samples);
        let small = interval.map(|interval| between(unit, interval)).unwrap_or_default();
        Cell { small, interval, ..Cell::of(unit, median) }
    }
}

/// `510 – 560 ns`, each with its own unit where they differ.
pub fn between(unit: Unit, interval: Interval) -> String {
    let [low, high] = [interval.low, interval.high].map(|end| unit.show(end));
    match (low.rsplit_once(' '), high.rsplit_once(' ')) {
        (Some((number, of_low)), Some((_, of_high))) if of_low == of_high => format!("{number} – {high}"),
        _ => format!("{low} – {high}"),
    }
}

impl Table {
    /// What a chart of curves shows: a row for each place on the right-hand axis, a column for each curve.
    pub fn of_lines(caption: &str, chart: &Chart, unit: Unit) -> Table {
        let Chart::Lines { x, series, .. } = chart else { return Table::default() };
        let series: Vec<&Series> = series.iter().filter(|it| it.role != Role::Target).collect();
        let mut places: Vec<f64> = series.iter().flat_map(|it| &it.points).map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let heads = std::iter::once(x.title.clone()).chain(series.iter().map(|it| it.name.clone())).collect();
        let row = |place: f64| Row {
            name: name_of(x, place),
            notes: Vec::new(),
            cells: series.iter().map(|it| cell_at(it, place, unit)).collect(),
        };
        Table { caption: caption.to_string(), heads, rows: places.into_iter().map(row).collect() }
    }
}

fn name_of(axis: &Axis, place: f64) -> String {
    let known = axis.ticks.iter().find(|(value, _)| *value == place);
    known.map_or_else(|| place.to_string(), |(_, words)| words.clone())
}

fn cell_at(series: &Series, place: f64, unit: Unit) -> Cell {
    let Some(point) = series.points.iter().find(|point| point.x == place) else { return Cell::default() };
    let interval = point.low.zip(point.high).map(|(low, high)| Interval { low, high });
    let small = interval.map(|interval| between(unit, interval)).unwrap_or_default();
    let class = if series.role == Role::Published { "published" } else { "" };
    Cell { small, class, interval, ..Cell::of(unit, point.y) }
}

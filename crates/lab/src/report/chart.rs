//! Charts as data. The page's script (`page.js`) hands them to the charting library, and knows nothing of what is
//! drawn.

use serde::Serialize;

use crate::advise::answer::FEWEST;
use crate::bootstrap;
use crate::record::Figure;
use crate::unit::{Unit, size};

/// A chart.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Chart {
    /// Curves over a quantity.
    Lines {
        /// What lies to the right.
        x: Axis,
        /// What lies upwards.
        y: Axis,
        /// The curves.
        series: Vec<Series>,
    },
    /// A row for each name, and a point on it for each series.
    Dots {
        /// What lies to the right.
        x: Axis,
        /// Names of the rows, from above.
        rows: Vec<String>,
        /// For each row a point: `x` of a series is the value, its `y` the number of the row.
        series: Vec<Series>,
        /// Where even is, if there is such a value.
        even: Option<f64>,
    },
    /// A row for each name, and a bar on it whose parts are the series.
    Stack {
        /// What lies to the right.
        x: Axis,
        /// Names of the rows, from above.
        rows: Vec<String>,
        /// As of [`Chart::Dots`].
        series: Vec<Series>,
    },
    /// A colour for each pair.
    Heat {
        /// What the columns are.
        x_title: String,
        /// What the rows are.
        y_title: String,
        /// Names of the columns.
        columns: Vec<String>,
        /// Names of the rows, from above.
        rows: Vec<String>,
        /// A row of values for each row; `None` where nothing was measured.
        values: Vec<Vec<Option<f64>>>,
        /// What is written in each field.
        texts: Vec<Vec<String>>,
        /// What is shown of each field to a reader that points at it.
        hovers: Vec<Vec<String>>,
    },
}

/// An axis.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    /// What it counts.
    pub title: String,
    /// Whether equal factors take equal room.
    pub log: bool,
    /// The unit that follows the numbers at the axis, behind a prefix for thousands, e.g. `s`.
    pub suffix: &'static str,
    /// What values are multiplied by to be in that unit.
    pub scale: f64,
    /// Values with the words for them, where numbers are not what a reader wants.
    pub ticks: Vec<(f64, String)>,
}

/// A curve, or the points of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// How it is drawn.
    pub role: Role,
    /// Which colour it has, from 0.
    pub colour: usize,
    /// The points.
    pub points: Vec<Point>,
}

/// What a series is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// What this report is about.
    #[default]
    Measured,
    /// Kernel TCP.
    Kernel,
    /// What the hardware gives, or what something is set against.
    Baseline,
    /// What a paper printed.
    Published,
    /// What must be reached.
    Target,
}

/// A point, with its interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// Lower end of the interval of the measured value.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// What is shown to a reader that points at it.
    pub text: String,
}

impl Axis {
    /// For figures of a unit.
    pub fn of(unit: Unit, title: impl Into<String>) -> Axis {
        let (suffix, scale) = match unit {
            Unit::Nanoseconds => ("s", 1e-9),
            Unit::BytesPerSecond => ("B/s", 1.0),
            Unit::PerSecond => ("/s", 1.0),
            Unit::Percent => (" %", 1.0),
            Unit::Bytes => ("B", 1.0),
            Unit::Count => ("", 1.0),
        };
        Axis { title: title.into(), log: true, suffix, scale, ticks: Vec::new() }
    }

    /// For sizes in bytes, which are named as they are elsewhere.
    pub fn of_sizes(title: impl Into<String>, sizes: impl IntoIterator<Item = u64>) -> Axis {
        let mut sizes: Vec<u64> = sizes.into_iter().collect();
        sizes.sort_unstable();
        sizes.dedup();
        let ticks = sizes.into_iter().map(|bytes| (bytes as f64, size(bytes))).collect();
        Axis { title: title.into(), log: true, suffix: "", scale: 1.0, ticks }
    }

    /// This axis with equal differences taking equal room.
    pub fn linear(mut self) -> Axis {
        self.log = false;
        self
    }
}

impl Series {
    /// A series without a point.
    pub fn new(name: impl Into<String>, role: Role, colour: usize) -> Series {
        Series { name: name.into(), role, colour, points: Vec::new() }
    }
}

impl Point {
    /// A measured figure over `x`; `None` if there is no figure, or a figure that has no place on a logarithmic axis.
    pub fn over(x: f64, unit: Unit, figure: &Figure) -> Option<Point> {
        let median = figure.median.filter(|median| *median > 0.0)?;
        let interval = bootstrap::of_median(&figure.samples);
        let (low, high) = (interval.map(|it| it.low), interval.map(|it| it.high));
        Some(Point { x, y: median, low, high, text: describe(unit, figure) })
    }

    /// A value that a paper printed.
    pub fn published(x: f64, y: f64, text: String) -> Point {
        Point { x, y, low: None, high: None, text }
    }
}

/// A figure with its interval, for a reader.
pub fn describe(unit: Unit, figure: &Figure) -> String {
    let Some(median) = figure.median else { return String::new() };
    let count = figure.samples.len();
    match bootstrap::of_median(&figure.samples) {
        Some(interval) => {
            let [median, low, high] = [median, interval.low, interval.high].map(|it| unit.show(it));
            // Of fewer samples all are too often on one side of the true median.
            let share = if count < FEWEST { "too few for 95 %" } else { "95 %" };
            format!("{median} ({share}: {low} – {high}; {count} samples)")
        }
        None => format!("{} (one sample)", unit.show(median)),
    }
}

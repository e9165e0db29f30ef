//! Charts of curves over size, from the measurements of a suite.

use super::chart::{Axis, Chart, Point, Role, Series};
use super::page::Figure;
use super::table::Table;
use crate::record::{self, Measurement};
use crate::unit::Unit;

/// Points of a series: what is measured, at the sizes that there are.
pub fn series(
    name: impl Into<String>,
    role: Role,
    colour: usize,
    unit: Unit,
    points: impl IntoIterator<Item = (u64, record::Figure)>,
) -> Series {
    let mut series = Series::new(name, role, colour);
    let point = |(bytes, figure): (u64, record::Figure)| Point::over(bytes as f64, unit, &figure);
    series.points = points.into_iter().filter_map(point).collect();
    series.points.sort_by(|one, other| one.x.total_cmp(&other.x));
    series
}

/// What a group's measurements say, by size.
pub fn of_group<'a>(
    measurements: &'a [&'a Measurement],
    group: &'a str,
    figure: impl Fn(&'a Measurement) -> Option<&'a record::Figure> + 'a,
) -> impl Iterator<Item = (u64, record::Figure)> + 'a {
    let those = measurements.iter().filter(move |it| it.group == group);
    those.filter_map(move |it| Some((it.size?, figure(it)?.clone())))
}

/// What a paper printed.
pub fn published(name: &str, colour: usize, unit: Unit, values: &[(u64, f64)]) -> Series {
    let mut series = Series::new(format!("{name} (paper)"), Role::Published, colour);
    let point = |(bytes, value): &(u64, f64)| {
        Point::published(*bytes as f64, *value, format!("about {}, as the paper has it", unit.show(*value)))
    };
    series.points = values.iter().map(point).collect();
    series
}

/// A chart of these curves; `None` if what was measured has fewer than two sizes, which are no curve.
pub fn figure(caption: impl Into<String>, x: &str, y: &str, unit: Unit, series: Vec<Series>) -> Option<Figure> {
    let series: Vec<Series> = series.into_iter().filter(|it| !it.points.is_empty()).collect();
    let places = |of: fn(Role) -> bool| {
        let those = series.iter().filter(move |it| of(it.role));
        those.flat_map(|it| &it.points).map(|point| point.x as u64)
    };
    let mut measured: Vec<u64> = places(|role| role != Role::Published).collect();
    measured.sort_unstable();
    measured.dedup();
    if measured.len() < 2 {
        return None;
    }
    let caption = caption.into();
    let axis = Axis::of_sizes(x, places(|_| true));
    let chart = Chart::Lines { x: axis, y: Axis::of(unit, y), series };
    let table = Table::of_lines(&caption, &chart, unit);
    Some(Figure { caption, chart, table })
}

//! A figure over size, both axes logarithmic: kernel TCP, Underpass and the baseline as lines, or any other set of lines.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use super::Text;
use super::svg::{Scale, ticks};
use crate::record::{Figure, Measurement};
use crate::statistic::range;
use crate::unit::{Unit, size};

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 120.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = HEIGHT - 48.0;
/// Least distance of two names.
const NAME_HEIGHT: f64 = 16.0;
/// Least distance of two sizes.
const SIZE_WIDTH: f64 = 48.0;

/// One line of the plot.
pub struct Line<'a> {
    /// What is written at its end.
    pub name: &'a str,
    /// Its class in the style sheet.
    pub class: &'static str,
    /// Sizes in order, and what was measured there.
    pub points: Vec<(f64, &'a Figure)>,
}

/// Draws measurements that differ in size; nothing if there are fewer than two sizes.
pub fn figure(out: &mut String, measurements: &[&Measurement], caption: &str, axis: &str) -> fmt::Result {
    let mut measurements: Vec<&Measurement> = measurements.iter().copied().filter(|m| m.size.is_some()).collect();
    measurements.sort_by_key(|measurement| measurement.size);
    let Some(first) = measurements.first() else { return Ok(()) };
    curves(out, &lines_of(&measurements), first.unit, caption, axis)
}

/// Draws these lines; nothing if they have fewer than two sizes.
pub fn curves(out: &mut String, lines: &[Line], unit: Unit, caption: &str, axis: &str) -> fmt::Result {
    let sizes: BTreeSet<u64> = lines.iter().flat_map(|line| &line.points).map(|(size, _)| *size as u64).collect();
    let (Some(low), Some(high), 2..) = (sizes.first(), sizes.last(), sizes.len()) else { return Ok(()) };
    let values = lines.iter().flat_map(|line| &line.points).flat_map(|(_, figure)| &figure.samples).copied();
    let Some((least, greatest)) = range(&values.collect::<Vec<_>>()) else { return Ok(()) };
    let (bottom, top) = (least / 1.3, greatest * 1.3);
    let x = Scale::new((*low as f64, *high as f64), (LEFT + 16.0, RIGHT - 16.0));
    let y = Scale::new((bottom, top), (BOTTOM, TOP));

    writeln!(out, "<figure>\n<figcaption>{}</figcaption>", Text(caption))?;
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", Text(caption))?;
    grid(out, y, unit, (bottom, top))?;
    for size_here in apart(&sizes, x) {
        let (at, label) = (x.at(size_here as f64), size(size_here));
        writeln!(out, "<text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{label}</text>", BOTTOM + 18.0)?;
    }
    let middle = (LEFT + RIGHT) / 2.0;
    writeln!(out, "<text class=\"middle\" x=\"{middle:.1}\" y=\"{:.1}\">{axis}</text>", HEIGHT - 8.0)?;
    for line in lines {
        draw(out, line, unit, x, y)?;
    }
    names(out, lines, x, y)?;
    writeln!(out, "</svg>\n</figure>")
}

/// Those of the sizes whose names do not meet, the last among them.
fn apart(sizes: &BTreeSet<u64>, x: Scale) -> Vec<u64> {
    let (mut free, mut apart) = (f64::MAX, Vec::new());
    for size in sizes.iter().rev() {
        let at = x.at(*size as f64);
        if at <= free {
            apart.push(*size);
            free = at - SIZE_WIDTH;
        }
    }
    apart
}

fn lines_of<'a>(measurements: &[&'a Measurement]) -> Vec<Line<'a>> {
    let points = |figure: &dyn Fn(&'a Measurement) -> Option<&'a Figure>| -> Vec<(f64, &'a Figure)> {
        measurements
            .iter()
            .filter_map(|m| Some((m.size? as f64, figure(m).filter(|figure| figure.median.is_some())?)))
            .collect()
    };
    let mut lines = vec![
        Line { name: "kernel TCP", class: "kernel", points: points(&|m| Some(&m.kernel)) },
        Line { name: "Underpass", class: "underpass", points: points(&|m| Some(&m.underpass)) },
    ];
    // One line has one meaning: the baseline that most sizes have.
    let names = measurements.iter().filter_map(|m| Some(m.baseline.as_ref()?.name.as_str()));
    let share = |name: &str| names.clone().filter(|it| *it == name).count();
    if let Some(name) = names.clone().max_by_key(|name| share(name)) {
        let points = points(&|m| m.baseline.as_ref().filter(|it| it.name == name).map(|baseline| &baseline.figure));
        lines.push(Line { name, class: "baseline", points });
    }
    lines
}

fn grid(out: &mut String, y: Scale, unit: Unit, (bottom, top): (f64, f64)) -> fmt::Result {
    // Few decades leave room for the steps between.
    let digits: &[f64] = if top / bottom > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    for tick in ticks(bottom, top, digits) {
        let at = y.at(tick);
        writeln!(out, "<path class=\"grid\" d=\"M{LEFT:.1} {at:.1}H{RIGHT:.1}\"/>")?;
        let label = unit.round(tick);
        writeln!(out, "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>", LEFT - 8.0, at + 4.0)?;
    }
    writeln!(out, "<path class=\"axis\" d=\"M{LEFT:.1} {BOTTOM:.1}H{RIGHT:.1}\"/>")
}

fn draw(out: &mut String, line: &Line, unit: Unit, x: Scale, y: Scale) -> fmt::Result {
    let class = line.class;
    let place = |(size, figure): &(f64, &Figure)| Some((x.at(*size), y.at(figure.median?)));
    let path: Vec<String> = line.points.iter().filter_map(place).map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    writeln!(out, "<path class=\"line {class}\" d=\"M{}\"/>", path.join("L"))?;
    for point in &line.points {
        let (Some((at_x, at_y)), Some((least, greatest))) = (place(point), range(&point.1.samples)) else { continue };
        let (from, to) = (y.at(least), y.at(greatest));
        writeln!(out, "<path class=\"whisker {class}\" d=\"M{at_x:.1} {from:.1}V{to:.1}\"/>")?;
        let (name, size, value) = (Text(line.name), size(point.0 as u64), point.1.median.map(|value| unit.show(value)));
        write!(out, "<circle class=\"{class}\" cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"3.5\">")?;
        writeln!(out, "<title>{name}, {size}: {}</title></circle>", value.unwrap_or_default())?;
    }
    Ok(())
}

/// Each line's name beside its last point.
fn names(out: &mut String, lines: &[Line], x: Scale, y: Scale) -> fmt::Result {
    let end = |line: &Line| line.points.last().and_then(|(size, figure)| Some((x.at(*size), y.at(figure.median?))));
    let mut ends: Vec<_> = lines.iter().filter_map(|line| Some((end(line)?, line))).collect();
    ends.sort_by(|((_, a), _), ((_, b), _)| a.total_cmp(b));
    let mut heights: Vec<f64> = ends.iter().map(|((_, y), _)| *y).collect();
    spread(&mut heights);
    for (((at_x, _), line), at_y) in ends.into_iter().zip(heights) {
        let (class, name) = (line.class, Text(line.name));
        writeln!(out, "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>", at_x + 10.0, at_y + 4.0)?;
    }
    Ok(())
}

/// Pushes each name down that would meet the one above, then all up that would meet the axis.
fn spread(heights: &mut [f64]) {
    let mut free = f64::MIN;
    for height in heights.iter_mut() {
        *height = height.max(free);
        free = *height + NAME_HEIGHT;
    }
    let mut limit = BOTTOM - NAME_HEIGHT / 2.0;
    for height in heights.iter_mut().rev() {
        *height = height.min(limit);
        limit = *height - NAME_HEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_do_not_meet() {
        let (low, high) = (512.0, 9480.0);
        let x = Scale::new((low, high), (LEFT + 16.0, RIGHT - 16.0));
        assert_eq!(apart(&BTreeSet::from([512, 1024, 4096, 9000, 9480]), x), [9480, 4096, 1024, 512]);
    }

    #[test]
    fn names_meet_neither_each_other_nor_the_axis() {
        let mut heights = [20.0, 25.0, 100.0, 350.0, 350.0, 351.0];
        spread(&mut heights);
        assert!(heights.windows(2).all(|it| it[1] - it[0] >= NAME_HEIGHT), "{heights:?}");
        assert!(heights[..3] == [20.0, 36.0, 100.0] && heights[5] < BOTTOM, "{heights:?}");
    }
}

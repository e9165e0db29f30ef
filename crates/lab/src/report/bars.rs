//! Ratios as bars from 1×, the kernel: to the right is better, to the left worse. The scale is logarithmic, so that twice as
//! good and half as good are equally far from even.

use std::fmt::{self, Write};

use super::Text;
use super::svg::{Scale, ticks};
use crate::record::Measurement;
use crate::unit::digits;

const WIDTH: f64 = 880.0;
const LEFT: f64 = 310.0;
const RIGHT: f64 = WIDTH - 60.0;
const TOP: f64 = 8.0;
const ROW: f64 = 30.0;
const BAR: f64 = 16.0;

/// Draws the ratio of each measurement that has one, with its target; `suffix`, which all names have, is left out.
pub fn figure(out: &mut String, measurements: &[&Measurement], suffix: &str, caption: &str) -> fmt::Result {
    let rows: Vec<(&Measurement, f64)> = measurements.iter().filter_map(|m| Some((*m, m.ratio?))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let values = || rows.iter().flat_map(|(measurement, ratio)| [Some(*ratio), target(measurement)]).flatten();
    let (low, high) = (values().fold(0.8, f64::min) / 1.1, values().fold(2.0, f64::max) * 1.1);
    let x = Scale::new((low, high), (LEFT, RIGHT));
    let bottom = TOP + ROW * rows.len() as f64;

    let caption = Text(caption);
    writeln!(out, "<figure>\n<figcaption>{caption} (logarithmic; an upright stroke marks the target)</figcaption>")?;
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {:.1}\" role=\"img\" aria-label=\"{caption}\">", bottom + 24.0)?;
    for tick in ticks(low, high, &[1.0, 2.0, 5.0]) {
        let (at, class) = (x.at(tick), if tick == 1.0 { "axis" } else { "grid" });
        writeln!(out, "<path class=\"{class}\" d=\"M{at:.1} {TOP:.1}V{bottom:.1}\"/>")?;
        writeln!(out, "<text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{tick}×</text>", bottom + 16.0)?;
    }
    for (row, (measurement, ratio)) in rows.iter().enumerate() {
        let name = measurement.name.strip_suffix(suffix).unwrap_or(&measurement.name);
        bar(out, name, target(measurement), *ratio, x, TOP + ROW * (row as f64 + 0.5))?;
    }
    writeln!(out, "</svg>\n</figure>")
}

fn bar(out: &mut String, name: &str, target: Option<f64>, ratio: f64, x: Scale, middle: f64) -> fmt::Result {
    let (even, end) = (x.at(1.0), x.at(ratio));
    let (from, width) = (even.min(end), (end - even).abs().max(1.0));
    let class = if ratio < 1.0 { "bar worse" } else { "bar" };
    let (name, text) = (Text(name), middle + 4.0);
    writeln!(out, "<text class=\"name end\" x=\"{:.1}\" y=\"{text:.1}\">{name}</text>", LEFT - 12.0)?;
    write!(
        out,
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{BAR}\"",
        middle - BAR / 2.0
    )?;
    writeln!(out, " rx=\"2\"><title>{name}: {}×</title></rect>", digits(ratio))?;
    let mut label = end.max(even);
    if let Some(times) = target {
        let at = x.at(times);
        writeln!(out, "<path class=\"target\" d=\"M{at:.1} {:.1}V{:.1}\"/>", middle - ROW * 0.4, middle + ROW * 0.4)?;
        // The stroke must not run through the number beside the bar.
        if (label - 2.0..label + 44.0).contains(&at) {
            label = at;
        }
    }
    writeln!(out, "<text class=\"name\" x=\"{:.1}\" y=\"{text:.1}\">{}×</text>", label + 7.0, digits(ratio))
}

fn target(measurement: &Measurement) -> Option<f64> {
    measurement.targets.iter().find_map(|target| target.times)
}

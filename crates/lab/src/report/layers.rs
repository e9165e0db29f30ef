//! The protocol engine's layers, as in figures 2 and 3 of Sato, Kato and Suzuki: throughput over the size of user data.

use std::fmt;

use super::lines::{Line, curves};
use crate::record::{Figure, Measurement};
use crate::suite::layers::{HIGHEST, LINK_ALONE, Scheduler, Work, curve};

const AXIS: &str = "user data of one message";
/// Classes of the style sheet for lines that have no meaning elsewhere.
const CLASSES: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

/// Draws both figures for each scheduler, as far as they were measured.
pub fn figures(out: &mut String, measurements: &[&Measurement]) -> fmt::Result {
    for scheduler in Scheduler::ALL {
        let layers: Vec<_> =
            (1..=HIGHEST).map(|layers| (named(layers), curve(layers, Work::None, scheduler))).collect();
        let caption = format!(
            "Throughput at the receiver's uppermost layer without a copy, {scheduler}, for one to three layers on each other (both axes \
             logarithmic)"
        );
        figure(out, measurements, &layers, &caption)?;
        let work: Vec<_> = Work::ALL.map(|work| (work.to_string(), curve(HIGHEST, work, scheduler))).into();
        let caption = format!("The same for three layers by the work that each does with user data, {scheduler}");
        figure(out, measurements, &work, &caption)?;
    }
    Ok(())
}

fn named(layers: u32) -> String {
    crate::unit::counted(layers, "layer")
}

fn figure<'a>(
    out: &mut String,
    measurements: &[&'a Measurement],
    named: &[(String, String)],
    caption: &str,
) -> fmt::Result {
    let mut lines = Vec::new();
    for ((name, group), class) in named.iter().zip(CLASSES) {
        let points = points(measurements, group, |it| Some(&it.underpass));
        lines.push(Line { name, class, points });
    }
    // One of these curves was measured beside it.
    let link = |group: &String| {
        let baseline = |it: &'a Measurement| Some(&it.baseline.as_ref().filter(|it| it.name == LINK_ALONE)?.figure);
        points(measurements, group, baseline)
    };
    let link = named.iter().map(|(_, group)| link(group)).find(|it| !it.is_empty()).unwrap_or_default();
    lines.push(Line { name: LINK_ALONE, class: "baseline", points: link });
    lines.retain(|line| !line.points.is_empty());
    let Some(first) = measurements.iter().find(|it| it.size.is_some()) else { return Ok(()) };
    curves(out, &lines, first.unit, caption, AXIS)
}

fn points<'a>(
    measurements: &[&'a Measurement],
    group: &str,
    figure: impl Fn(&'a Measurement) -> Option<&'a Figure>,
) -> Vec<(f64, &'a Figure)> {
    let of_group = measurements.iter().filter(|it| it.group == group);
    let mut points: Vec<_> = of_group.filter_map(|it| Some((it.size? as f64, figure(it)?))).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

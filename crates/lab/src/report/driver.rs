//! Link drivers, as in figures 1, 7, 8 and 9 of "Adaptive device driver for over-Gbps links": messages a second and throughput over
//! the size of a message, by driver, by algorithm of completion, and by how much is copied of a packet in pieces.

use std::fmt;

use super::lines::{Line, curves};
use crate::record::{Figure, Measurement};
use crate::suite::driver::curve;
use crate::unit::Unit;

const AXIS: &str = "user data of one message";
/// Classes of the style sheet for lines that have no meaning elsewhere.
const CLASSES: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

/// A line of a plot: its name, the group of its measurements, and which of their figures.
type Curve<'a> = (&'a str, &'a str, fn(&Measurement) -> &Figure);

/// Draws each figure as far as it was measured.
pub fn figures(out: &mut String, measurements: &[&Measurement]) -> fmt::Result {
    let [kernel, underpass]: [fn(&Measurement) -> &Figure; 2] = [|it| &it.kernel, |it| &it.underpass];
    let drivers: [Curve; 4] = [
        ("AF_XDP", curve::CALL, underpass),
        ("UDP, a call each", curve::CALL, kernel),
        ("UDP, sendmmsg", curve::SENDMMSG, kernel),
        ("UDP, GSO", curve::GSO, kernel),
    ];
    let arrive = "Messages that arrive over a veth pair, sent as fast as they go";
    both(out, measurements, &drivers, arrive)?;
    let costs: [Curve; 4] = [
        ("AF_XDP, sender", curve::SENDER, underpass),
        ("AF_XDP, receiver", curve::RECEIVER, underpass),
        ("UDP, sender", curve::SENDER, kernel),
        ("UDP, receiver", curve::RECEIVER, kernel),
    ];
    figure(out, measurements, &costs, None, "Processor time of a message, UDP with a call for each")?;

    let [adaptive, event_driven, lazy] = curve::COMPLETION;
    let algorithms = [adaptive, event_driven, lazy, curve::PACKET].map(|group| -> Curve { (group, group, underpass) });
    let sends = "Messages that the sender's processor sends in a second of its own";
    both(out, measurements, &algorithms, &format!("{sends}, by algorithm of completion"))?;
    let [adaptive, none, _, two, _, _, all, dummies] = curve::COPIES;
    let copies = [adaptive, none, two, all, dummies].map(|group| -> Curve { (group, group, underpass) });
    both(out, measurements, &copies, &format!("{sends}, by how much is copied of a message in pieces"))
}

/// Messages a second, and octets a second.
fn both(out: &mut String, measurements: &[&Measurement], named: &[Curve], caption: &str) -> fmt::Result {
    figure(out, measurements, named, None, caption)?;
    figure(out, measurements, named, Some(Unit::BytesPerSecond), &format!("The same in octets of user data: {caption}"))
}

fn figure(
    out: &mut String,
    measurements: &[&Measurement],
    named: &[Curve],
    throughput: Option<Unit>,
    caption: &str,
) -> fmt::Result {
    let Some(first) = measurements.iter().find(|it| named.iter().any(|(_, group, _)| it.group == *group)) else {
        return Ok(());
    };
    let points: Vec<_> = named.iter().map(|curve| points(measurements, curve, throughput.is_some())).collect();
    let mut lines = Vec::new();
    for (((name, ..), class), points) in named.iter().zip(CLASSES).zip(&points) {
        lines.push(Line { name, class, points: points.iter().map(|(size, figure)| (*size, figure)).collect() });
    }
    lines.retain(|line| !line.points.is_empty());
    let unit = throughput.unwrap_or(first.unit);
    curves(out, &lines, unit, &format!("{caption} (both axes logarithmic)"), AXIS)
}

/// What was measured, by size; as throughput if that is asked for.
fn points(measurements: &[&Measurement], curve: &Curve, throughput: bool) -> Vec<(f64, Figure)> {
    let (_, group, figure) = curve;
    let point = |it: &&Measurement| {
        let (size, figure) = (it.size? as f64, figure(it));
        let scale = if throughput { size } else { 1.0 };
        figure.median?;
        Some((size, figure.samples.iter().map(|sample| sample * scale).collect::<Vec<f64>>().into()))
    };
    let mut points: Vec<(f64, Figure)> =
        measurements.iter().filter(|it| it.group == *group).filter_map(point).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

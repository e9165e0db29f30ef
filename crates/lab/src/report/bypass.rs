//! System A: round trips, streams and applications on kernel TCP and past it.

use super::chart::{Axis, Chart, Point, Role, Series};
use super::curves::{figure, of_group, published, series};
use super::page::{Figure, Section};
use super::published::{ROUND_TRIPS, RoundTrip};
use super::suite_table;
use super::table::{Cell, Row, Table};
use crate::bootstrap;
use crate::record::Measurement;
use crate::suite::apps::load;
use crate::unit::{Unit, digits, size};

/// Adds what a run has of this system.
pub fn add(section: &mut Section, valid: &[&Measurement]) {
    let of = |suite: &str| valid.iter().copied().filter(|it| it.suite == suite).collect::<Vec<_>>();
    let (round_trips, streams, applications) = (of("pingpong"), of("stream"), of("apps"));
    section.figures([round_trip(&round_trips)]);
    section.table(beside_the_paper(&round_trips));
    section.folded(suite_table("Round trips", &round_trips));
    section.figures([stream(&streams)]);
    section.folded(suite_table("Streams", &streams));
    section.figures(ratios(&applications));
    section.folded(suite_table("Applications", &applications));
}

fn round_trip(measurements: &[&Measurement]) -> Option<Figure> {
    let unit = Unit::Nanoseconds;
    let paper = |name, colour, value: fn(&RoundTrip) -> f64| {
        let values: Vec<(u64, f64)> = ROUND_TRIPS.iter().map(|it| (it.size, value(it))).collect();
        published(name, colour, unit, &values)
    };
    let mut all = both_sides(measurements, "blocking", unit);
    all.push(paper("bypass, Myrinet", 0, |it| it.bypass));
    all.push(paper("TCP/IP, Myrinet", 1, |it| it.kernel));
    all.push(paper("TCP/IP, 100Base-TX", 4, |it| it.ethernet));
    let caption = "Median round trip of one message: blocking calls, both ends pinned to different processors. The \
                   paper's figure 5 is between two hosts of 2002; the ratios compare, the times do not";
    figure(caption, "message size", "round trip", unit, all)
}

fn stream(measurements: &[&Measurement]) -> Option<Figure> {
    let caption = "Throughput in one direction, both ends pinned to different processors";
    let all = both_sides(measurements, "stream", Unit::BytesPerSecond);
    figure(caption, "size of each write", "throughput", Unit::BytesPerSecond, all)
}

/// Underpass, kernel TCP and each baseline.
fn both_sides(measurements: &[&Measurement], group: &str, unit: Unit) -> Vec<Series> {
    let mut all = vec![
        series("Underpass", Role::Measured, 0, unit, of_group(measurements, group, |it| Some(&it.underpass))),
        series("kernel TCP", Role::Kernel, 1, unit, of_group(measurements, group, |it| Some(&it.kernel))),
    ];
    let mut baselines: Vec<&str> = Vec::new();
    for baseline in measurements.iter().filter(|it| it.group == group).filter_map(|it| it.baseline.as_ref()) {
        if !baselines.contains(&baseline.name.as_str()) {
            baselines.push(&baseline.name);
        }
    }
    for (number, name) in baselines.into_iter().enumerate() {
        let of_name = |it: &Measurement| it.baseline.as_ref().is_some_and(|it| it.name == name);
        let those = measurements.iter().filter(|it| it.group == group && of_name(it));
        let points = those.filter_map(|it| Some((it.size?, it.baseline.as_ref()?.figure.clone())));
        all.push(series(name, Role::Baseline, 2 + number, unit, points));
    }
    all
}

/// The paper's two sizes beside the same sizes here.
fn beside_the_paper(measurements: &[&Measurement]) -> Table {
    let unit = Unit::Nanoseconds;
    let rows = ROUND_TRIPS.iter().filter_map(|paper| {
        let here = measurements.iter().find(|it| it.group == "blocking" && it.size == Some(paper.size))?;
        let (ratio, then) = (here.ratio?, paper.kernel / paper.bypass);
        let interval = bootstrap::of_ratio(&here.kernel.samples, &here.underpass.samples);
        let small = interval.map(|it| format!("{} – {}×", digits(it.low), digits(it.high))).unwrap_or_default();
        let cells = vec![
            Cell { class: "published", ..Cell::of(unit, paper.kernel) },
            Cell { class: "published", ..Cell::of(unit, paper.bypass) },
            Cell::published(format!("{then:.2}×"), then),
            Cell::figure(unit, &here.kernel),
            Cell::figure(unit, &here.underpass),
            Cell { small, interval, ..Cell::number(format!("{}×", digits(ratio)), ratio) },
        ];
        Some(Row { name: size(paper.size), notes: Vec::new(), cells })
    });
    Table {
        caption: "A round trip: the paper's, and the same here".to_string(),
        heads: ["message", "paper: TCP/IP", "paper: bypass", "paper: ratio", "kernel TCP", "Underpass", "ratio"]
            .map(str::to_string)
            .into(),
        rows: rows.collect(),
    }
}

/// Rates, then what their requests cost, then their slowest: the rows of each have the names of the rates.
fn ratios(measurements: &[&Measurement]) -> Vec<Option<Figure>> {
    let suffixes = [load::PROCESSOR_TIME, load::P99];
    let is_rate = |it: &&Measurement| !suffixes.iter().any(|suffix| it.name.ends_with(suffix));
    let rates: Vec<&Measurement> = measurements.iter().copied().filter(is_rate).collect();
    let of = |suffix: &str| measurements.iter().copied().filter(|it| it.name.ends_with(suffix)).collect::<Vec<_>>();
    vec![
        dots(&rates, "", "Throughput under Underpass, as a multiple of kernel TCP's"),
        dots(
            &of(suffixes[0]),
            suffixes[0],
            "Processor time of each request on kernel TCP, as a multiple of Underpass's",
        ),
        dots(
            &of(suffixes[1]),
            suffixes[1],
            "99th percentile of a request's duration on kernel TCP, as a multiple of Underpass's",
        ),
    ]
}

/// The ratio of each measurement that has one, with its target; `suffix`, which all names have, is left out.
fn dots(measurements: &[&Measurement], suffix: &str, caption: &str) -> Option<Figure> {
    let those: Vec<(&Measurement, f64)> = measurements.iter().filter_map(|it| Some((*it, it.ratio?))).collect();
    let (mut here, mut target) = (Series::new("Underpass", Role::Measured, 0), Series::new("target", Role::Target, 1));
    let (mut rows, mut table) = (Vec::new(), Vec::new());
    for (row, (measurement, ratio)) in those.iter().enumerate() {
        let name = measurement.name.strip_suffix(suffix).unwrap_or(&measurement.name).to_string();
        let (kernel, underpass) = (&measurement.kernel, &measurement.underpass);
        let [over, under] = match measurement.better {
            crate::unit::Better::Lower => [kernel, underpass],
            crate::unit::Better::Higher => [underpass, kernel],
        };
        let interval = bootstrap::of_ratio(&over.samples, &under.samples);
        let [of_kernel, of_underpass] = [kernel, underpass]
            .map(|figure| figure.median.map(|median| measurement.unit.show(median)).unwrap_or_default());
        let text = format!("{}×: {of_underpass} instead of {of_kernel}", digits(*ratio));
        let (low, high) = (interval.map(|it| it.low), interval.map(|it| it.high));
        here.points.push(Point { x: *ratio, y: row as f64, low, high, text });
        let times = measurement.targets.iter().find_map(|it| Some((it.times?, &it.text)));
        if let Some((times, words)) = times {
            let text = format!("target: {words}");
            target.points.push(Point { x: times, y: row as f64, low: None, high: None, text });
        }
        let small = interval.map(|it| format!("{} – {}×", digits(it.low), digits(it.high))).unwrap_or_default();
        let cells = vec![
            Cell::figure(measurement.unit, kernel),
            Cell::figure(measurement.unit, underpass),
            Cell { small, interval, ..Cell::number(format!("{}×", digits(*ratio)), *ratio) },
        ];
        table.push(Row { name: name.clone(), notes: Vec::new(), cells });
        rows.push(name);
    }
    if rows.is_empty() {
        return None;
    }
    let series = [here, target].into_iter().filter(|it| !it.points.is_empty()).collect();
    let mut x = Axis::of(Unit::Count, "times as good as kernel TCP");
    x.suffix = "×";
    let heads = ["", "kernel TCP", "Underpass", "ratio"].map(str::to_string).into();
    let table = Table { caption: caption.to_string(), heads, rows: table };
    Some(Figure { caption: caption.to_string(), chart: Chart::Dots { x, rows, series, even: Some(1.0) }, table })
}

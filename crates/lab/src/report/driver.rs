//! System C: messages a second and throughput over the size of a message, by driver, by algorithm of completion, and by
//! how much is copied of a packet in pieces, as in the paper's figures 1, 7, 8 and 9.

use super::chart::{Axis, Chart, Point, Role, Series};
use super::curves::{figure, of_group, series};
use super::page::{Figure, Section};
use super::published::{BOUNCE_4K, DUMMY_64K, SWITCHING, SWITCHING_LINUX};
use super::suite_table;
use super::table::{Cell, Row, Table};
use crate::bootstrap::{self, Interval};
use crate::record::{self, Measurement};
use crate::suite::driver::curve;
use crate::unit::{Unit, digits, size};

const AXIS: &str = "user data of one message";

/// A curve: its name, the group of its measurements, its role, and which of their figures.
type Curve<'a> = (&'a str, &'a str, Role, fn(&Measurement) -> Option<&record::Figure>);

/// Adds what a run has of this system.
pub fn add(section: &mut Section, valid: &[&Measurement]) {
    let those: Vec<&Measurement> = valid.iter().copied().filter(|it| it.suite == "driver").collect();
    let [kernel, underpass]: [fn(&Measurement) -> Option<&record::Figure>; 2] =
        [|it| Some(&it.kernel), |it| Some(&it.underpass)];
    let (measured, other) = (Role::Measured, Role::Kernel);
    let drivers: [Curve; 4] = [
        ("AF_XDP", curve::CALL, measured, underpass),
        ("UDP, a call each", curve::CALL, other, kernel),
        ("UDP, sendmmsg", curve::SENDMMSG, other, kernel),
        ("UDP, GSO", curve::GSO, other, kernel),
    ];
    both(section, &those, &drivers, "Messages that arrive over a veth pair, sent as fast as they go");
    let costs: [Curve; 4] = [
        ("AF_XDP, sender", curve::SENDER, measured, underpass),
        ("AF_XDP, receiver", curve::RECEIVER, measured, underpass),
        ("UDP, sender", curve::SENDER, other, kernel),
        ("UDP, receiver", curve::RECEIVER, other, kernel),
    ];
    let caption = "Processor time of a message, UDP with a call for each";
    section.figures([drawn(&those, &costs, Unit::Nanoseconds, "processor time of a message", caption)]);
    let [adaptive, event_driven, lazy] = curve::COMPLETION;
    let algorithms =
        [adaptive, event_driven, lazy, curve::PACKET].map(|group| -> Curve { (group, group, measured, underpass) });
    let sends = "Messages that the sender's processor sends in a second of its own";
    both(section, &those, &algorithms, &format!("{sends}, by algorithm of completion (the paper's figure 7)"));
    let [adaptive, none, _, two, _, _, all, dummies] = curve::COPIES;
    let copies = [adaptive, none, two, all, dummies].map(|group| -> Curve { (group, group, measured, underpass) });
    both(section, &those, &copies, &format!("{sends}, by how much is copied of a message in pieces (figure 8)"));
    section.figures([changes(&those)]);
    section.table(beside_the_paper(&those));
    section.folded(suite_table("Link drivers", &those));
}

/// Messages a second, and octets a second.
fn both(section: &mut Section, measurements: &[&Measurement], named: &[Curve], caption: &str) {
    let rate = drawn(measurements, named, Unit::PerSecond, "messages a second", caption);
    let octets = format!("The same in octets of user data: {caption}");
    section.figures([rate, drawn(measurements, named, Unit::BytesPerSecond, "throughput", &octets)]);
}

fn drawn(measurements: &[&Measurement], named: &[Curve], unit: Unit, y: &str, caption: &str) -> Option<Figure> {
    let all = named.iter().enumerate().map(|(number, (name, group, role, figure))| {
        let points = of_group(measurements, group, figure).map(|(bytes, figure)| {
            let scale = if unit == Unit::BytesPerSecond { bytes as f64 } else { 1.0 };
            let samples: Vec<f64> = figure.samples.iter().map(|sample| sample * scale).collect();
            (bytes, samples.into())
        });
        series(*name, *role, number, unit, points.collect::<Vec<_>>())
    });
    figure(caption, AXIS, y, unit, all.collect())
}

/// The paper's figure 9: what copying changes, in per cent of the throughput without a copy.
fn changes(measurements: &[&Measurement]) -> Option<Figure> {
    let [adaptive, none, ways @ .., all, dummies] = curve::COPIES;
    let names = [adaptive].into_iter().chain(ways).chain([all, dummies]);
    let mut curves: Vec<Series> = Vec::new();
    for (number, group) in names.enumerate() {
        let mut curve = Series::new(group, Role::Measured, number);
        for over in measurements.iter().filter(|it| it.group == group) {
            let under = measurements.iter().find(|it| it.group == none && it.size == over.size);
            if let Some(change) = under.and_then(|under| change(&over.underpass, &under.underpass))
                && let Some(bytes) = over.size
            {
                let ends = change.interval.map(|it| format!(" ({:+.1} to {:+.1})", it.low, it.high));
                let text = format!("{:+.1} %{}", change.value, ends.unwrap_or(" (one sample)".to_string()));
                let (low, high) = (change.interval.map(|it| it.low), change.interval.map(|it| it.high));
                curve.points.push(Point { x: bytes as f64, y: change.value, low, high, text });
            }
        }
        curve.points.sort_by(|one, other| one.x.total_cmp(&other.x));
        curves.push(curve);
    }
    if curves.iter().all(|it| it.points.is_empty()) {
        return None;
    }
    let mut paper = Series::new("bounce buffer, at best (paper)", Role::Published, 0);
    let printed = |bytes: u64, share: f64, what: &str| {
        Point::published(bytes as f64, share * 100.0, format!("{:+.0} %, {what}, as the paper has it", share * 100.0))
    };
    paper.points.push(printed(4 << 10, BOUNCE_4K, "3 or 4 clusters copied"));
    let mut dummy = Series::new("dummy packet (paper)", Role::Published, 6);
    dummy.points.push(printed(60 << 10, DUMMY_64K, "at 64 KB"));
    curves.extend([paper, dummy]);
    let caption = "Throughput by how much is copied of a message in pieces, against no copy (the paper's figure 9); a \
                   dummy in one piece shows what the pieces cost";
    let drawn = figure(caption, AXIS, "change", Unit::Percent, curves)?;
    let Chart::Lines { x, y, series } = drawn.chart else { return None };
    let y = Axis { title: "change of throughput".to_string(), ..y.linear() };
    Some(Figure { chart: Chart::Lines { x, y, series }, ..drawn })
}

/// How much more one figure is than another, in per cent.
struct Change {
    /// By the medians.
    value: f64,
    /// Where that lies; `None` of one sample.
    interval: Option<Interval>,
}

fn change(over: &record::Figure, under: &record::Figure) -> Option<Change> {
    let ratio = over.median? / under.median.filter(|it| *it > 0.0)?;
    let more = |ratio: f64| (ratio - 1.0) * 100.0;
    let interval = bootstrap::of_ratio(&over.samples, &under.samples);
    let interval = interval.map(|it| Interval { low: more(it.low), high: more(it.high) });
    Some(Change { value: more(ratio), interval })
}

fn beside_the_paper(measurements: &[&Measurement]) -> Table {
    let [adaptive, event_driven, _] = curve::COMPLETION;
    let [as_it_pays, none, .., all, dummies] = curve::COPIES;
    let short = "adaptive against event-driven";
    let cases = [
        (
            format!("{short}, {}", size(64)),
            adaptive,
            event_driven,
            64,
            Some(SWITCHING),
            "short packets, FreeBSD, at best",
        ),
        (
            format!("{short}, {}", size(32)),
            adaptive,
            event_driven,
            32,
            Some(SWITCHING_LINUX),
            "short packets, Linux, at best",
        ),
        (
            "copies as it pays against none, 4 KiB".into(),
            as_it_pays,
            none,
            4 << 10,
            Some(BOUNCE_4K),
            "3 or 4 clusters, 4 KB",
        ),
        ("copies as it pays against none, 60 KiB".into(), as_it_pays, none, 60 << 10, None, "little or less, 64 KB"),
        ("copies all against none, 60 KiB".into(), all, none, 60 << 10, None, "less, 64 KB"),
        ("one piece (dummies) against pieces, 60 KiB".into(), dummies, none, 60 << 10, Some(DUMMY_64K), "64 KB"),
    ];
    let find = |group: &str, bytes| {
        measurements.iter().find(|it| it.group == group && it.size == Some(bytes)).map(|it| &it.underpass)
    };
    let rows = cases.into_iter().filter_map(|(name, over, under, bytes, paper, note)| {
        let Change { value, interval } = change(find(over, bytes)?, find(under, bytes)?)?;
        let paper = match paper {
            Some(share) => Cell { small: note.into(), ..Cell::published(format!("{:+.0} %", share * 100.0), share) },
            None => Cell { class: "published", ..Cell::text(note) },
        };
        let small = interval.map(|it| format!("{} to {} %", digits(it.low), digits(it.high))).unwrap_or_default();
        // As the value, a share.
        let interval = interval.map(|it| Interval { low: it.low / 100.0, high: it.high / 100.0 });
        let here = Cell { small, interval, ..Cell::number(format!("{value:+.1} %"), value / 100.0) };
        Some(Row { name, notes: Vec::new(), cells: vec![paper, here] })
    });
    let heads = ["more messages a second", "paper", "here"].map(str::to_string).into();
    let caption = "What the adaptive driver's algorithms gain: the paper's, and the same here".to_string();
    Table { caption, heads, rows: rows.collect() }
}

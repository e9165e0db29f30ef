//! System B: throughput over the size of user data, by layers and by the work in each, as in the paper's figures 2 and
//! 3.

use super::chart::{Role, Series};
use super::curves::{figure, of_group, published, series};
use super::page::{Figure, Section};
use super::published::{CHECKSUM, MEMCPY, NO_COPY, OCTET_COPY};
use super::suite_table;
use super::table::{Cell, Row, Table};
use crate::bootstrap;
use crate::record::Measurement;
use crate::suite::layers::{HIGHEST, LINK_ALONE, Scheduler, Work, curve};
use crate::unit::{Unit, counted, digits, size};

const UNIT: Unit = Unit::BytesPerSecond;
const AXIS: &str = "user data of one message";

/// Adds what a run has of this system.
pub fn add(section: &mut Section, valid: &[&Measurement]) {
    let those: Vec<&Measurement> = valid.iter().copied().filter(|it| it.suite == "layers").collect();
    for scheduler in Scheduler::ALL {
        section.figures([by_layers(&those, scheduler), by_work(&those, scheduler)]);
    }
    section.table(beside_the_paper(&those));
    section.folded(suite_table("Layers of transport", &those));
}

/// The paper's figure 2.
fn by_layers(measurements: &[&Measurement], scheduler: Scheduler) -> Option<Figure> {
    let mut all: Vec<Series> = (1..=HIGHEST)
        .map(|layers| {
            let group = curve(layers, Work::None, scheduler);
            let points: Vec<_> = of_group(measurements, &group, |it| Some(&it.underpass)).collect();
            series(counted(layers, "layer"), Role::Measured, layers as usize - 1, UNIT, points)
        })
        .collect();
    all.push(link_alone(measurements));
    if all[..HIGHEST as usize].iter().all(|it| it.points.is_empty()) {
        return None;
    }
    all.push(published("1, 2, 3 layers, HIPPI alone", 4, UNIT, &NO_COPY));
    let caption =
        format!("Throughput at the receiver's uppermost layer without a copy, {scheduler}, by number of layers");
    figure(caption, AXIS, "throughput", UNIT, all)
}

/// The paper's figure 3.
fn by_work(measurements: &[&Measurement], scheduler: Scheduler) -> Option<Figure> {
    let of_work = |(number, work): (usize, &Work)| {
        let group = curve(HIGHEST, *work, scheduler);
        let points: Vec<_> = of_group(measurements, &group, |it| Some(&it.underpass)).collect();
        series(work.to_string(), Role::Measured, number, UNIT, points)
    };
    let mut all: Vec<Series> = Work::ALL.iter().enumerate().map(of_work).collect();
    if all.iter().all(|it| it.points.is_empty()) {
        return None;
    }
    all.push(link_alone(measurements));
    all.push(published("memcpy", 1, UNIT, &MEMCPY));
    all.push(published("octet copy", 2, UNIT, &OCTET_COPY));
    all.push(published("checksum", 3, UNIT, &CHECKSUM));
    let caption = format!("The same for {HIGHEST} layers, {scheduler}, by the work that each does with user data");
    figure(caption, AXIS, "throughput", UNIT, all)
}

/// The link alone was measured beside one layer in line.
fn link_alone(measurements: &[&Measurement]) -> Series {
    let group = curve(1, Work::None, Scheduler::InLine);
    let link = |it: &'_ Measurement| it.baseline.as_ref().is_some_and(|it| it.name == LINK_ALONE);
    let those: Vec<&Measurement> = measurements.iter().copied().filter(|it| link(it)).collect();
    let points: Vec<_> = of_group(&those, &group, |it| it.baseline.as_ref().map(|it| &it.figure)).collect();
    series(LINK_ALONE, Role::Baseline, 5, UNIT, points)
}

/// What the paper concludes: how much of what one layer carries is left with three, and with work in each layer.
fn beside_the_paper(measurements: &[&Measurement]) -> Table {
    let find = |layers, work, scheduler, bytes| {
        let group = curve(layers, work, scheduler);
        let found = measurements.iter().find(move |it| it.group == group && it.size == Some(bytes));
        found.map(|it| &it.underpass).filter(|it| it.median.is_some())
    };
    let (large, none) = (1 << 20, Work::None);
    let cases = [
        ("3 layers against 1, 64 KiB", (HIGHEST, none, 64 << 10), (1, none, 64 << 10), 1.0),
        ("3 layers against 1, 1 MiB", (HIGHEST, none, large), (1, none, large), 1.0),
        ("memcpy against no copy, 1 MiB", (HIGHEST, Work::Memcpy, large), (HIGHEST, none, large), 150.0 / 310.0),
        ("octet copy against no copy, 1 MiB", (HIGHEST, Work::Octets, large), (HIGHEST, none, large), 25.0 / 310.0),
        ("checksum against no copy, 1 MiB", (HIGHEST, Work::Scalar, large), (HIGHEST, none, large), 15.0 / 310.0),
    ];
    let share = |value: f64| Cell::number(format!("{} %", digits(value * 100.0)), value);
    let rows = cases.into_iter().filter_map(|(name, over, under, paper)| {
        let cells: Vec<Cell> = Scheduler::ALL
            .map(|scheduler| {
                let over = find(over.0, over.1, scheduler, over.2);
                let Some((over, under)) = over.zip(find(under.0, under.1, scheduler, under.2)) else {
                    return Cell::default();
                };
                let Some((top, bottom)) = over.median.zip(under.median) else { return Cell::default() };
                let interval = bootstrap::of_ratio(&over.samples, &under.samples);
                let ends = interval.map(|it| [it.low, it.high].map(|end| digits(end * 100.0)));
                let small = ends.map(|[low, high]| format!("{low} – {high} %")).unwrap_or_default();
                Cell { small, interval, ..share(top / bottom) }
            })
            .into();
        let any = cells.iter().any(|it| it.value.is_some());
        let paper = Cell { class: "published", ..share(paper) };
        any.then(|| Row { name: name.to_string(), notes: Vec::new(), cells: [vec![paper], cells].concat() })
    });
    let heads = ["throughput that is left", "paper", "in line", "thread per layer"].map(str::to_string);
    let caption = format!("What more layers, and work in each, leave of the throughput ({} and more)", size(64 << 10));
    Table { caption, heads: heads.into(), rows: rows.collect() }
}

//! System D: throughput over the size of packets, the receiver's idle share, and where its time goes, as in the paper's
//! figure 5 and tables 4 and 5; each table with the mean and the standard deviation, as there.

use super::chart::{Axis, Chart, Point, Role, Series};
use super::curves::{figure, of_group, series};
use super::page::{Block, Figure, Section};
use super::published::{GPU_OVER_CPU, RECEIVER_SIZES, RECEIVERS, Receiver};
use super::suite_table;
use super::table::{Cell, Row, Table};
use crate::bootstrap::{self, Interval};
use crate::record::Measurement;
use crate::statistic::{deviation, mean};
use crate::suite::checksum::table::{self, Contestant, Socket, Stage, Task, Way};
use crate::unit::{Unit, digits, size};
use underpass_checksum::Variant;

const AXIS: &str = "octets of a packet that are summed";
const RATE: Unit = Unit::BytesPerSecond;

/// Adds what a run has of this system.
pub fn add(section: &mut Section, valid: &[&Measurement]) {
    let those: Vec<&Measurement> = valid.iter().copied().filter(|it| it.suite == "checksum").collect();
    for socket in Socket::ALL {
        let caption = format!(
            "Throughput of a receiver over {} that sums every packet, by how it does (the paper's figure 5)",
            socket.name()
        );
        section.figures([curves(&those, ways(|way| table::throughput(socket, way)), caption)]);
    }
    section.table(beside_the_paper(&those));
    section.table(idle(&those));
    for (socket, beside) in Socket::ALL.into_iter().flat_map(|socket| [(socket, false), (socket, true)]) {
        section.figures([breakdown(&those, socket, beside)]);
    }
    if !those.is_empty() {
        section.blocks.push(Block::Table(published_breakdown()));
    }
    let caption = "Octets out of no cache that are summed in a second, in batches of 1,024".to_string();
    section.figures([curves(&those, ways(table::cold), caption)]);
    let heats = [(true, "in the first levels of the cache"), (false, "in no cache")];
    for (task, (is_hot, where_from)) in Task::ALL.into_iter().flat_map(|task| heats.map(|heat| (task, heat))) {
        // The reference would leave the others no room.
        let of_task = Contestant::of(task).into_iter().filter(|it| *it != Contestant::Variant(Variant::Reference));
        let named = of_task.map(|it| (it.name(), table::kernel(task, it, is_hot))).collect();
        section.figures([curves(&those, named, format!("Octets a second, {where_from}: {}", task.title()))]);
    }
    section.folded(suite_table("Checksums", &those));
}

/// The ways' names, and the groups of their measurements.
fn ways(group: impl Fn(Way) -> String) -> Vec<(String, String)> {
    Way::ALL.map(|way| (way.name().to_string(), group(way))).into()
}

fn curves(measurements: &[&Measurement], named: Vec<(String, String)>, caption: String) -> Option<Figure> {
    let all = named.iter().enumerate().map(|(number, (name, group))| {
        let points: Vec<_> = of_group(measurements, group, |it| Some(&it.underpass)).collect();
        series(name, Role::Measured, number, RATE, points)
    });
    figure(caption, AXIS, "throughput", RATE, all.collect())
}

/// Sizes of a group that were measured, in order.
fn sizes(measurements: &[&Measurement], group: &str) -> Vec<u64> {
    let mut sizes: Vec<u64> = measurements.iter().filter(|it| it.group == group).filter_map(|it| it.size).collect();
    sizes.sort_unstable();
    sizes
}

fn samples<'a>(measurements: &[&'a Measurement], group: &str, size: u64) -> Option<&'a [f64]> {
    let found = measurements.iter().find(|it| it.group == group && it.size == Some(size));
    found.map(|it| &it.underpass.samples[..]).filter(|samples| !samples.is_empty())
}

/// How much more the GPU carries than the processor at best, and at which size and batch.
fn beside_the_paper(measurements: &[&Measurement]) -> Table {
    let rows = Socket::ALL.into_iter().flat_map(|socket| [Way::Scalar, Way::Simd].map(|against| (socket, against)));
    let rows = rows.filter_map(|(socket, against)| {
        let cells = Way::GPU.map(|way| {
            let over = table::throughput(socket, way);
            let best = sizes(measurements, &over).into_iter().filter_map(|octets| {
                let under = samples(measurements, &table::throughput(socket, against), octets)?;
                let over = samples(measurements, &over, octets)?;
                let interval = bootstrap::of_ratio(over, under)?;
                let ratio = crate::statistic::median(over)? / crate::statistic::median(under)?;
                Some((ratio - 1.0, interval, octets))
            });
            let best = best.max_by(|one, other| one.0.total_cmp(&other.0));
            best.map_or_else(Cell::default, |(gain, interval, octets)| {
                let interval = Interval { low: interval.low - 1.0, high: interval.high - 1.0 };
                let [low, high] = [interval.low, interval.high].map(|gain| gain * 100.0);
                let small = format!("{low:+.1} to {high:+.1} %, {}", size(octets));
                Cell { small, interval: Some(interval), ..Cell::number(format!("{:+.1} %", gain * 100.0), gain) }
            })
        });
        cells.iter().any(|it| it.value.is_some()).then(|| {
            let paper = match against {
                Way::Scalar => Cell::published(format!("{:+.0} %", GPU_OVER_CPU * 100.0), GPU_OVER_CPU),
                _ => Cell::default(),
            };
            let name = format!("{}, against {}", socket.name(), against.name());
            Row { name, notes: Vec::new(), cells: [vec![paper], cells.to_vec()].concat() }
        })
    });
    let heads = ["more throughput, at best", "paper: GPU", Way::GPU[0].name(), Way::GPU[1].name()].map(str::to_string);
    let caption = "What a GPU gains over the processor in throughput: the paper's, and the same here".to_string();
    Table { caption, heads: heads.into(), rows: rows.collect() }
}

/// The idle share of the receiver's processor: a row for each socket and size, a column for each way, the paper's
/// first.
fn idle(measurements: &[&Measurement]) -> Table {
    let is_measured =
        |way: &Way| Socket::ALL.iter().any(|socket| !sizes(measurements, &table::idle(*socket, *way)).is_empty());
    let ways: Vec<Way> = Way::ALL.into_iter().filter(is_measured).collect();
    let mut rows = Vec::new();
    for socket in Socket::ALL {
        for octets in sizes(measurements, &table::idle(socket, Way::Skip)) {
            let mut cells = published_idle(octets);
            cells.extend(ways.iter().map(|way| {
                let samples = samples(measurements, &table::idle(socket, *way), octets);
                samples.map_or_else(Cell::default, |samples| mean_of(samples, Unit::Percent))
            }));
            rows.push(Row { name: format!("{}, {}", socket.name(), size(octets)), notes: Vec::new(), cells });
        }
    }
    let heads = ["", "paper: CPU", "paper: GPU"].into_iter().chain(ways.iter().map(|way| way.name()));
    Table {
        caption: "Idle share of the receiver's processor (the paper's table 4, as fast as it went; here at 70 % of \
                  what the scalar way carries): mean and standard deviation"
            .to_string(),
        heads: heads.map(str::to_string).collect(),
        rows,
    }
}

fn published_idle(octets: u64) -> Vec<Cell> {
    let at = RECEIVER_SIZES.iter().position(|it| *it == octets);
    let those = RECEIVERS.iter().filter_map(|it: &Receiver| Some((it.idle?, it.way)));
    let cell = |idle: [f64; 2]| at.map(|at| Cell { class: "published", ..Cell::of(Unit::Percent, idle[at]) });
    those.map(|(idle, _)| cell(idle).unwrap_or_default()).collect()
}

fn mean_of(samples: &[f64], unit: Unit) -> Cell {
    let Some((mean, deviation)) = mean(samples).zip(deviation(samples)) else { return Cell::default() };
    Cell { small: format!("± {}", unit.show(deviation)), ..Cell::of(unit, mean) }
}

/// What the time of a packet is spent on: a bar for each size and way, a part for each stage.
fn breakdown(measurements: &[&Measurement], socket: Socket, beside: bool) -> Option<Figure> {
    let group = |way: Way, stage: Stage| table::stage(socket, way, stage, beside);
    let is_measured = |way: &Way| !sizes(measurements, &group(*way, Stage::Rest)).is_empty();
    let all = Stage::of(if Way::GPU.iter().any(is_measured) { Way::GpuStaged } else { Way::Skip });
    let mut parts: Vec<Series> = all
        .iter()
        .enumerate()
        .map(|(number, stage)| Series::new(words(*stage, socket), Role::Measured, number))
        .collect();
    let (mut rows, mut table_rows) = (Vec::new(), Vec::new());
    for octets in sizes(measurements, &group(Way::Skip, Stage::Rest)) {
        for way in Way::ALL {
            let of = |stage: &Stage| samples(measurements, &group(way, *stage), octets);
            let sum: f64 = all.iter().filter_map(|stage| mean(of(stage)?)).sum();
            if sum <= 0.0 {
                continue;
            }
            let name = format!("{}, {}", size(octets), way.name());
            let mut cells = Vec::new();
            for (stage, part) in all.iter().zip(&mut parts) {
                let Some(samples) = of(stage) else {
                    cells.push(Cell::default());
                    continue;
                };
                let mean = mean(samples).unwrap_or_default();
                let (share, cell) = (digits(mean * 100.0 / sum), mean_of(samples, Unit::Nanoseconds));
                let text = format!("{share} %: {} {}, {}", cell.text, cell.small, stage.name(socket, way));
                part.points.push(Point { x: mean, y: rows.len() as f64, low: None, high: None, text });
                let small = format!("{} {}", cell.text, cell.small);
                cells.push(Cell { text: format!("{share} %"), small, ..cell });
            }
            cells.push(Cell::number(Unit::Nanoseconds.show(sum), sum));
            table_rows.push(Row { name: name.clone(), notes: Vec::new(), cells });
            rows.push(name);
        }
    }
    if rows.is_empty() {
        return None;
    }
    let load = if beside { ", while something else computes there" } else { "" };
    let staged = if all.contains(&Stage::Gpu) {
        ". With gpu-staged, the checksum is the copy into the batch, with gpu-umem the descriptors"
    } else {
        ""
    };
    let caption = format!(
        "Where the receiver's processor time for a packet goes over {}{load} (the paper's table 5){staged}",
        socket.name()
    );
    let heads = [String::new()].into_iter().chain(parts.iter().map(|it| it.name.clone())).chain(["all".to_string()]);
    let table = Table { caption: caption.clone(), heads: heads.collect(), rows: table_rows };
    let x = Axis::of(Unit::Nanoseconds, "processor time of a packet").linear();
    Some(Figure { caption, chart: Chart::Stack { x, rows, series: parts }, table })
}

fn words(stage: Stage, socket: Socket) -> String {
    match stage {
        Stage::Receive => stage.name(socket, Way::Skip),
        Stage::Sum => stage.name(socket, Way::Scalar),
        Stage::Gpu | Stage::Rest => stage.name(socket, Way::GpuUmem),
    }
    .to_string()
}

fn published_breakdown() -> Table {
    let shares = |it: &Receiver| {
        (0..RECEIVER_SIZES.len()).flat_map(|at| [it.checksum[at], it.copies[at], it.gpu[at]]).collect::<Vec<_>>()
    };
    let rows = RECEIVERS.iter().map(|it| Row {
        name: it.way.to_string(),
        notes: Vec::new(),
        cells: shares(it)
            .into_iter()
            .map(|share| Cell { class: "published", ..Cell::of(Unit::Percent, share) })
            .collect(),
    });
    let heads = RECEIVER_SIZES
        .iter()
        .flat_map(|octets| ["checksum", "copies", "CUDA"].map(|stage| format!("{stage}, {}", size(*octets))));
    Table {
        caption: "The paper's table 5, of the receiver's processor time".to_string(),
        heads: [String::new()].into_iter().chain(heads).collect(),
        rows: rows.collect(),
    }
}

//! Checksums, as in figure 5 and tables 4 and 5 of "Offloading TCP/IP checksum to a GPU": throughput over the size of packets, the
//! receiver's idle share, and where its time goes; each table with the mean and the standard deviation, as there.

use std::fmt::{self, Write};

use super::Text;
use super::lines::{Line, curves};
use crate::record::{Figure, Measurement};
use crate::statistic::{deviation, mean};
use crate::suite::checksum::table::{self, Contestant, Socket, Stage, Task, Way};
use crate::unit::{Unit, digits, size};
use underpass_checksum::Variant;

const AXIS: &str = "octets of a packet that are summed";
/// Classes of the style sheet for lines that have no meaning elsewhere.
const CLASSES: [&str; 6] = ["second", "third", "fourth", "fifth", "kernel", "baseline"];
/// That of what is picked where nothing is said.
const PICKED: &str = "underpass";

/// Draws each figure and each table as far as it was measured.
pub fn figures(out: &mut String, measurements: &[&Measurement]) -> fmt::Result {
    let heats = [(true, "in the first levels of the cache"), (false, "in no cache")];
    for (task, (is_hot, where_from)) in Task::ALL.into_iter().flat_map(|task| heats.map(|heat| (task, heat))) {
        // The reference would leave the others no room.
        let of_task = Contestant::of(task).into_iter().filter(|it| *it != Contestant::Variant(Variant::Reference));
        let named = of_task.map(|it| (it.name(), table::kernel(task, it, is_hot)));
        let caption = format!("Octets a second, {where_from}: {} (both axes logarithmic)", task.title());
        figure(out, measurements, named.collect(), &caption)?;
    }
    for socket in Socket::ALL {
        let name = socket.name();
        let caption = format!(
            "Throughput of a receiver over {name} that sums every packet, by how it does (both axes logarithmic)"
        );
        figure(out, measurements, ways(|way| table::throughput(socket, way)), &caption)?;
    }
    idle(out, measurements)?;
    for (socket, beside) in Socket::ALL.into_iter().flat_map(|socket| [(socket, false), (socket, true)]) {
        stages(out, measurements, socket, beside)?;
    }
    let caption = "Octets out of no cache that are summed in a second, in batches of 1,024 (both axes logarithmic)";
    figure(out, measurements, ways(table::cold), caption)
}

/// The ways' names, and the groups of their measurements.
fn ways(group: impl Fn(Way) -> String) -> Vec<(String, String)> {
    Way::ALL.map(|way| (way.name().to_string(), group(way))).into()
}

fn figure(out: &mut String, measurements: &[&Measurement], named: Vec<(String, String)>, caption: &str) -> fmt::Result {
    let points = |group: &str| -> Vec<(f64, &Figure)> {
        let of_group = measurements.iter().filter(|it| it.group == group && it.underpass.median.is_some());
        of_group.filter_map(|it| Some((it.size? as f64, &it.underpass))).collect()
    };
    let mut classes = CLASSES.into_iter();
    let lines = named.iter().filter_map(|(name, group)| {
        let class = if *name == Contestant::Picked.name() { PICKED } else { classes.next()? };
        Some(Line { name, class, points: points(group) })
    });
    let mut lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
    lines.iter_mut().for_each(|line| line.points.sort_by(|one, other| one.0.total_cmp(&other.0)));
    curves(out, &lines, Unit::BytesPerSecond, caption, AXIS)
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

/// The idle share of the receiver's processor: a row for each socket and size, a column for each way.
fn idle(out: &mut String, measurements: &[&Measurement]) -> fmt::Result {
    let group = |socket: Socket, way: Way| table::idle(socket, way);
    let ways = Way::ALL
        .into_iter()
        .filter(|way| Socket::ALL.iter().any(|socket| !sizes(measurements, &group(*socket, *way)).is_empty()));
    let ways: Vec<Way> = ways.collect();
    let rows = Socket::ALL.into_iter().flat_map(|socket| {
        let of_skip = sizes(measurements, &group(socket, Way::Skip));
        of_skip.into_iter().map(move |size| (socket, size))
    });
    let rows = rows.map(|(socket, octets)| {
        let cells = ways.iter().map(|way| {
            let samples = samples(measurements, &group(socket, *way), octets);
            samples.map_or(String::new(), |samples| mean_of(samples, |it| Unit::Percent.show(it)))
        });
        (format!("{}, {}", socket.name(), size(octets)), cells.collect())
    });
    let heads: Vec<&str> = ways.iter().map(|way| way.name()).collect();
    let caption =
        "Idle share of the receiver's processor at 70 % of what the scalar way carries: mean and standard deviation";
    write_table(out, caption, &heads, rows.collect())
}

/// What each stage takes: a row for each way, a column for each stage.
fn stages(out: &mut String, measurements: &[&Measurement], socket: Socket, beside: bool) -> fmt::Result {
    let group = |way: Way, stage: Stage| table::stage(socket, way, stage, beside);
    let is_measured = |way: &Way| !sizes(measurements, &group(*way, Stage::Rest)).is_empty();
    let with_gpu = Way::GPU.iter().any(is_measured);
    let all = Stage::of(if with_gpu { Way::GpuStaged } else { Way::Skip });
    let mut rows = Vec::new();
    for octets in sizes(measurements, &group(Way::Skip, Stage::Rest)) {
        for way in Way::ALL {
            let of = |stage: &Stage| samples(measurements, &group(way, *stage), octets);
            let sum: f64 = all.iter().filter_map(|stage| mean(of(stage)?)).sum();
            if sum <= 0.0 {
                continue;
            }
            let mut cells: Vec<String> = all
                .iter()
                .map(|stage| {
                    let Some((samples, part)) = of(stage).and_then(|it| Some((it, mean(it)?))) else {
                        return String::new();
                    };
                    let share = digits(part * 100.0 / sum);
                    format!("{share} %<small>{}</small>", mean_of(samples, |it| Unit::Nanoseconds.show(it)))
                })
                .collect();
            cells.push(Unit::Nanoseconds.show(sum));
            rows.push((format!("{}, {}", size(octets), way.name()), cells));
        }
    }
    let load = if beside { ", while something else computes there" } else { "" };
    let caption = format!(
        "Where the receiver's processor time for a packet goes over {}{load}: share, mean and standard deviation{}",
        socket.name(),
        if with_gpu {
            ". With gpu-staged, the checksum is the copy into the batch, with gpu-umem the descriptors"
        } else {
            ""
        }
    );
    let receive = if socket == Socket::Packet { "receive, kernel's copy" } else { "receive" };
    let heads: &[&str] =
        if with_gpu { &["checksum", "GPU calls", "rest", "all"] } else { &["checksum", "rest", "all"] };
    write_table(out, &caption, &[&[receive], heads].concat(), rows)
}

fn mean_of(samples: &[f64], show: impl Fn(f64) -> String) -> String {
    let Some((mean, deviation)) = mean(samples).zip(deviation(samples)) else { return String::new() };
    format!("{} ± {}", show(mean), show(deviation))
}

fn write_table(out: &mut String, caption: &str, heads: &[&str], rows: Vec<(String, Vec<String>)>) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "<div class=\"scroll\">\n<table>\n<caption>{}</caption>\n<thead><tr><th></th>", Text(caption))?;
    heads.iter().try_for_each(|head| writeln!(out, "<th>{}</th>", Text(head)))?;
    writeln!(out, "</tr></thead>\n<tbody>")?;
    for (name, cells) in rows {
        write!(out, "<tr><th scope=\"row\">{}</th>", Text(&name))?;
        cells.iter().try_for_each(|cell| write!(out, "<td>{cell}</td>"))?;
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>")
}

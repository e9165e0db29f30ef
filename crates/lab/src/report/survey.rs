//! System E: every ordered pair of endpoints, as heat maps for each metric and size and as curves over size, as in the
//! paper's figures 3 to 6, and a file over TLS with and without offloading, as in its figure 1.

use std::collections::{BTreeMap, BTreeSet};

use super::chart::{Axis, Chart, Point, Role, Series as Points, describe};
use super::curves::{figure, series};
use super::page::{Figure, Section};
use super::table::{Cell, Row, Table};
use crate::bootstrap;
use crate::evidence::Survey;
use crate::record;
use crate::survey::observation::observe;
use crate::survey::record::{Endpoint, Key, Metric, Observation, Percentiles, Sample, Series, SurveyRecord, word};
use crate::survey::summary::{costs, percentiles};
use crate::unit::{Unit, counted, digits, size};

/// What distinguishes charts from each other: metric, connections, load, path.
type Kind = (String, u32, String, String);

/// An endpoint's place in the survey, by which tables are sorted.
type Place = usize;

/// The series of a kind and size, by sender and receiver.
type Pairs<'a> = BTreeMap<(Place, Place), &'a Series>;

/// The series of a kind and sender, by receiver.
type Receivers<'a> = BTreeMap<Place, Vec<&'a Series>>;

/// All series of a kind: by size, and by sender.
type OfKind<'a> = (BTreeMap<u64, Pairs<'a>>, BTreeMap<Place, Receivers<'a>>);

/// Adds what a survey has.
pub fn add(section: &mut Section, survey: &Survey) {
    let survey = &survey.record;
    section.table(endpoints(survey));
    section.table(observations(survey));
    let places = survey.head.endpoints.iter().enumerate();
    let places: BTreeMap<&str, Place> = places.map(|(place, it)| (it.name.as_str(), place)).collect();
    let mut kinds: BTreeMap<Kind, OfKind> = BTreeMap::new();
    for series in survey.series.iter().filter(|it| it.key.via.is_none()) {
        let ends = [&series.key.sender, &series.key.receiver].map(|name| places.get(name.as_str()).copied());
        let [Some(sender), Some(receiver)] = ends else { continue };
        let (sizes, senders) = kinds.entry(kind(series)).or_default();
        sizes.entry(series.key.size).or_default().insert((sender, receiver), series);
        senders.entry(sender).or_default().entry(receiver).or_default().push(series);
    }
    for (kind, (sizes, senders)) in &kinds {
        for shown in Shown::ALL {
            section.figures(sizes.iter().map(|(size, pairs)| heat(survey, pairs, (kind, shown), *size)));
            section.figures(senders.iter().map(|(sender, to)| curves(survey, to, (kind, shown), *sender)));
        }
    }
    section.figures([offloads(survey)]);
    section.folded(all(survey));
}

/// What a chart shows of series.
#[derive(Clone, Copy)]
enum Shown {
    /// The figure itself.
    Figure,
    /// What it cost the sender.
    SenderTime,
    /// What it cost the receiver.
    ReceiverTime,
    /// What half of its exchanges did not exceed, and 99 of 100, and 999 of 1,000.
    P50,
    P99,
    P999,
}

impl Shown {
    const ALL: [Shown; 6] =
        [Shown::Figure, Shown::P50, Shown::P99, Shown::P999, Shown::SenderTime, Shown::ReceiverTime];

    /// `None` where the tool does not tell over what its processor time is spread, or how exchanges were distributed.
    fn of(self, series: &Series) -> Option<record::Figure> {
        let costs = |time: fn(&Sample) -> Option<u64>| costs(series.key.metric, &series.samples, time);
        let percentile = |which: fn(Percentiles) -> f64| -> Option<Vec<f64>> {
            series.samples.iter().map(|sample| sample.percentiles.map(which)).collect()
        };
        let values = match self {
            Shown::Figure => Some(series.values()),
            Shown::P50 => percentile(|it| it.p50),
            Shown::P99 => percentile(|it| it.p99),
            Shown::P999 => percentile(|it| it.p999),
            Shown::SenderTime => costs(|it| Some(it.sender_time)),
            Shown::ReceiverTime => costs(|it| Some(it.receiver_time)),
        };
        values.map(record::Figure::from)
    }

    fn unit(self, series: &Series) -> Unit {
        if matches!(self, Shown::Figure) { series.unit } else { Unit::Nanoseconds }
    }

    /// `processor time of the sender for each byte: throughput, kernel TCP`; `p99 of latency, kernel TCP`.
    fn words(self, kind: &Kind) -> String {
        let end = match self {
            Shown::Figure => return words(kind),
            Shown::P50 => return format!("p50 of {}", words(kind)),
            Shown::P99 => return format!("p99 of {}", words(kind)),
            Shown::P999 => return format!("p99.9 of {}", words(kind)),
            Shown::SenderTime => "sender",
            Shown::ReceiverTime => "receiver",
        };
        let piece = if kind.0 == "latency" { "exchange" } else { "byte" };
        format!("processor time of the {end} for each {piece}: {}", words(kind))
    }

    /// What stands at an axis.
    fn title(self, kind: &Kind) -> &str {
        if matches!(self, Shown::SenderTime | Shown::ReceiverTime) { "processor time" } else { &kind.0 }
    }
}

fn kind(series: &Series) -> Kind {
    let key = &series.key;
    (word(key.metric), key.flows, word(key.load), word(key.path))
}

/// A kind in words: `throughput of 4 connections, Underpass`.
fn words((metric, flows, load, path): &Kind) -> String {
    let flows = if *flows > 1 { format!(" of {}", counted(*flows, "connection")) } else { String::new() };
    let load = if load == "stream" { ", beside a stream" } else { "" };
    let path = if path == "underpass" { "Underpass" } else { "kernel TCP" };
    let metric = if metric == "tls" { "transfer of a file over TLS" } else { metric };
    format!("{metric}{flows}{load}, {path}")
}

fn named(survey: &SurveyRecord, name: &str) -> String {
    survey.endpoint(name).map_or_else(|| name.to_string(), Endpoint::label)
}

fn heat(survey: &SurveyRecord, pairs: &Pairs, (kind, shown): (&Kind, Shown), bytes: u64) -> Option<Figure> {
    // An endpoint without a figure has no row, and no column.
    let [senders, receivers]: [BTreeSet<Place>; 2] =
        [pairs.keys().map(|it| it.0).collect(), pairs.keys().map(|it| it.1).collect()];
    let figure = |sender: Place, receiver: Place| pairs.get(&(sender, receiver)).and_then(|it| shown.of(it));
    let row = |sender: &Place| receivers.iter().map(|receiver| figure(*sender, *receiver)).collect();
    let figures: Vec<Vec<Option<record::Figure>>> = senders.iter().map(row).collect();
    if figures.iter().flatten().flatten().count() < 2 {
        return None;
    }
    let unit = shown.unit(pairs.values().next()?);
    let label = |place: &Place| survey.head.endpoints[*place].label();
    let [rows, columns]: [Vec<String>; 2] =
        [senders.iter().map(label).collect(), receivers.iter().map(label).collect()];
    let grid = |of: &dyn Fn(&str, &str, Option<&record::Figure>) -> String| -> Vec<Vec<String>> {
        let row = |(sender, row): (&String, &Vec<Option<record::Figure>>)| {
            columns.iter().zip(row).map(|(receiver, figure)| of(sender, receiver, figure.as_ref())).collect()
        };
        rows.iter().zip(&figures).map(row).collect()
    };
    let texts = grid(&|_, _, it| it.and_then(|it| it.median).map(|it| unit.show(it)).unwrap_or_default());
    let hovers = grid(&|sender, receiver, it| {
        let told = it.map_or_else(|| "not measured".to_string(), |it| describe(unit, it));
        format!("{sender} to {receiver}: {told}")
    });
    let values = figures.iter().map(|row| row.iter().map(|it| it.as_ref()?.median).collect()).collect();
    let cell = |it: &Option<record::Figure>| it.as_ref().map_or_else(Cell::default, |it| Cell::figure(unit, it));
    let of_table = rows.iter().zip(&figures).map(|(label, row)| Row {
        name: label.clone(),
        notes: Vec::new(),
        cells: row.iter().map(cell).collect(),
    });
    let caption = format!("{}, {}: sender by row, receiver by column", capital(&shown.words(kind)), size(bytes));
    let heads = std::iter::once("sender \\ receiver".to_string()).chain(columns.iter().cloned()).collect();
    let table = Table { caption: caption.clone(), heads, rows: of_table.collect() };
    let (x_title, y_title) = ("receiver".to_string(), "sender".to_string());
    let chart = Chart::Heat { x_title, y_title, columns, rows, values, texts, hovers };
    Some(Figure { caption, chart, table })
}

/// One sender's curves over size, one for each receiver.
fn curves(survey: &SurveyRecord, to: &Receivers, (kind, shown): (&Kind, Shown), sender: Place) -> Option<Figure> {
    let unit = shown.unit(to.values().flatten().next()?);
    let label = |place: Place| survey.head.endpoints[place].label();
    let lines = to.iter().map(|(receiver, those)| {
        let points = those.iter().filter_map(|it| Some((it.key.size, shown.of(it)?)));
        series(format!("to {}", label(*receiver)), Role::Measured, *receiver, unit, points)
    });
    let caption = format!("{} over size, from {}", capital(&shown.words(kind)), label(sender));
    figure(caption, "size of a message", shown.title(kind), unit, lines.collect())
}

/// The paper's figure 1: a file over TLS, encrypted by the sender and by an endpoint to which it offloads that.
fn offloads(survey: &SurveyRecord) -> Option<Figure> {
    let unit = Unit::Nanoseconds;
    let transfers = || survey.series.iter().filter(|it| it.key.metric == Metric::Tls);
    let own: BTreeMap<&Key, &Series> = transfers().map(|it| (&it.key, it)).collect();
    let own = |key: &Key| own.get(&Key { via: None, ..key.clone() }).copied();
    let offloaded = transfers().filter(|it| it.key.via.is_some());
    let (mut by_sender, mut by_other) =
        (Points::new("encrypted by the sender", Role::Kernel, 1), Points::new("offloaded", Role::Measured, 0));
    let (mut rows, mut table) = (Vec::new(), Vec::new());
    for (other, sender) in offloaded.filter_map(|it| Some((it, own(&it.key)?))) {
        let key = &other.key;
        let via = named(survey, key.via.as_deref().unwrap_or_default());
        let ends = [&key.sender, &key.receiver].map(|name| named(survey, name));
        let name = format!("{} → {}, {}, offloaded to {via}", ends[0], ends[1], size(key.size));
        let figures: [record::Figure; 2] = [sender, other].map(|it| it.values().into());
        for (points, figure) in [&mut by_sender, &mut by_other].into_iter().zip(&figures) {
            let Some(Point { y, low, high, text, .. }) = Point::over(0.0, unit, figure) else { continue };
            points.points.push(Point { x: y, y: rows.len() as f64, low, high, text });
        }
        let ratio = figures[1].median.zip(figures[0].median).map(|(over, under)| over / under);
        let interval = bootstrap::of_ratio(&figures[1].samples, &figures[0].samples);
        let small = interval.map(|it| format!("{} – {}×", digits(it.low), digits(it.high))).unwrap_or_default();
        let ratio = ratio.map_or_else(Cell::default, |it| Cell {
            small,
            interval,
            ..Cell::number(format!("{}×", digits(it)), it)
        });
        let cells = figures.iter().map(|it| Cell::figure(unit, it)).chain([ratio]).collect();
        table.push(Row { name: name.clone(), notes: Vec::new(), cells });
        rows.push(name);
    }
    if rows.is_empty() {
        return None;
    }
    let caption =
        "A file over TLS, encrypted by the sender and by a SmartNIC beside it (the paper's figure 1)".to_string();
    let heads = ["", "by the sender", "offloaded", "offloaded, as a multiple"].map(str::to_string).into();
    let table = Table { caption: caption.clone(), heads, rows: table };
    let chart =
        Chart::Dots { x: Axis::of(unit, "time of the transfer"), rows, series: vec![by_sender, by_other], even: None };
    Some(Figure { caption, chart, table })
}

fn endpoints(survey: &SurveyRecord) -> Table {
    let row = |it: &Endpoint| {
        let emulated = if it.emulated { it.emulation.as_deref().unwrap_or("emulated") } else { "no" };
        let cells = [&word(it.kind), &it.system, emulated, &it.host.to_string()].map(Cell::text).to_vec();
        Row { name: it.name.clone(), notes: Vec::new(), cells }
    };
    Table {
        caption: "Endpoints".to_string(),
        heads: ["", "kind", "system", "emulated", "host"].map(str::to_string).into(),
        rows: survey.head.endpoints.iter().map(row).collect(),
    }
}

/// What the samples say: what the record says of them may have been changed.
fn observations(survey: &SurveyRecord) -> Table {
    let row = |it: &Observation| Row {
        name: capital(&word(it.name).replace('-', " ")),
        notes: Vec::new(),
        cells: vec![Cell::text(word(it.verdict).replace('-', " ")), Cell::text(it.text.clone())],
    };
    Table {
        caption: "The paper's observations, tested on these data".to_string(),
        heads: ["observation", "these data", "why"].map(str::to_string).into(),
        rows: observe(survey).iter().map(row).collect(),
    }
}

/// Every figure, with its distribution, and the processor time that it took at each end.
fn all(survey: &SurveyRecord) -> Table {
    let distributions: Vec<_> = survey.series.iter().map(|it| percentiles(&it.samples)).collect();
    let has_distributions = distributions.iter().any(Option::is_some);
    let row = |(it, distribution): (&Series, &Option<Percentiles>)| {
        let key = &it.key;
        let via = key.via.as_ref().map(|via| format!(", TLS by {}", named(survey, via))).unwrap_or_default();
        let cost = |time: fn(&Sample) -> Option<u64>| {
            let costs = costs(key.metric, &it.samples, time);
            costs.map_or_else(Cell::default, |costs| Cell::figure(Unit::Nanoseconds, &costs.into()))
        };
        let name = format!(
            "{} → {}: {}, {}{via}, {}",
            named(survey, &key.sender),
            named(survey, &key.receiver),
            words(&kind(it)),
            size(key.size),
            word(key.tool)
        );
        let mut cells = vec![Cell::figure(it.unit, &it.values().into())];
        if has_distributions {
            let shares = distribution.map(|it| [it.p50, it.p99, it.p999].map(Some)).unwrap_or_default();
            let cell = |ns: f64| Cell::of(Unit::Nanoseconds, ns);
            cells.extend(shares.map(|share| share.map_or_else(Cell::default, cell)));
        }
        cells.extend([cost(|it| Some(it.sender_time)), cost(|it| Some(it.receiver_time)), cost(|it| it.via_time)]);
        Row { name, notes: Vec::new(), cells }
    };
    let distribution: &[&str] = if has_distributions { &["p50", "p99", "p99.9"] } else { &[] };
    let times = ["sender", "receiver", "who encrypts for it"].map(|end| format!("processor time, {end}"));
    let heads = ["", "figure"].iter().chain(distribution).map(|head| head.to_string()).chain(times);
    Table {
        caption: "All figures; processor time for each byte, and of latency for each exchange".to_string(),
        heads: heads.collect(),
        rows: survey.series.iter().zip(&distributions).map(row).collect(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

//! System E: every ordered pair of endpoints, as heat maps for each metric and size and as curves over size, as in the paper's
//! figures 3 to 6.

use std::collections::BTreeSet;

use super::chart::{Chart, Role, describe};
use super::curves::{figure, series};
use super::page::{Figure, Section};
use super::table::{Cell, Row, Table};
use crate::evidence::Survey;
use crate::record;
use crate::statistic::median;
use crate::survey::record::{Endpoint, Observation, Sample, Series, SurveyRecord, word};
use crate::unit::{Unit, counted, size};

/// What distinguishes charts from each other: metric, connections, load, path.
type Kind = (String, u32, String, String);

/// Adds what a survey has.
pub fn add(section: &mut Section, survey: &Survey) {
    let survey = &survey.record;
    section.table(endpoints(survey));
    section.table(observations(survey));
    let kinds: BTreeSet<Kind> = survey.series.iter().filter(|it| it.key.via.is_none()).map(kind).collect();
    for kind in &kinds {
        let those: Vec<&Series> =
            survey.series.iter().filter(|it| it.key.via.is_none() && self::kind(it) == *kind).collect();
        let sizes: BTreeSet<u64> = those.iter().map(|it| it.key.size).collect();
        section.figures(sizes.iter().map(|size| heat(survey, &those, kind, *size)));
        section.figures(survey.head.endpoints.iter().map(|sender| curves(survey, &those, kind, &sender.name)));
    }
    section.folded(all(survey));
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
    let is_emulated = survey.endpoint(name).is_some_and(|it| it.emulated);
    format!("{name}{}", if is_emulated { " (emulated)" } else { "" })
}

fn heat(survey: &SurveyRecord, those: &[&Series], kind: &Kind, bytes: u64) -> Option<Figure> {
    let names: Vec<&str> = survey.head.endpoints.iter().map(|it| it.name.as_str()).collect();
    let find = |sender: &str, receiver: &str| {
        those.iter().find(|it| it.key.size == bytes && it.key.sender == sender && it.key.receiver == receiver)
    };
    let unit = those.first()?.unit;
    let show = |series: Option<&&Series>, of: &dyn Fn(&record::Figure) -> String| {
        series.map(|it| of(&it.values().into())).unwrap_or_default()
    };
    let grid = |of: &dyn Fn(&record::Figure) -> String| -> Vec<Vec<String>> {
        names.iter().map(|sender| names.iter().map(|it| show(find(sender, it), of)).collect()).collect()
    };
    let value = |sender: &&str, receiver: &&str| median(&find(sender, receiver)?.values());
    let values: Vec<Vec<Option<f64>>> =
        names.iter().map(|sender| names.iter().map(|receiver| value(sender, receiver)).collect()).collect();
    if values.iter().flatten().flatten().count() < 2 {
        return None;
    }
    let texts = grid(&|figure| figure.median.map(|it| unit.show(it)).unwrap_or_default());
    let mut hovers = grid(&|figure| describe(unit, figure));
    for (sender, row) in names.iter().zip(&mut hovers) {
        for (receiver, hover) in names.iter().zip(row) {
            let told = if hover.is_empty() { "not measured" } else { hover.as_str() };
            *hover = format!("{sender} to {receiver}: {told}");
        }
    }
    let caption = format!("{}, {}: sender by row, receiver by column", capital(&words(kind)), size(bytes));
    let labels: Vec<String> = names.iter().map(|name| named(survey, name)).collect();
    let rows = names.iter().zip(&labels).map(|(sender, label)| Row {
        name: label.clone(),
        notes: Vec::new(),
        cells: names
            .iter()
            .map(|receiver| {
                find(sender, receiver).map_or_else(Cell::default, |it| Cell::figure(unit, &it.values().into()))
            })
            .collect(),
    });
    let heads = std::iter::once("sender \\ receiver".to_string()).chain(labels.iter().cloned()).collect();
    let table = Table { caption: caption.clone(), heads, rows: rows.collect() };
    let chart = Chart::Heat {
        x_title: "receiver".to_string(),
        y_title: "sender".to_string(),
        columns: labels.clone(),
        rows: labels,
        values,
        texts,
        hovers,
    };
    Some(Figure { caption, chart, table })
}

/// One sender's curves over size, one for each receiver.
fn curves(survey: &SurveyRecord, those: &[&Series], kind: &Kind, sender: &str) -> Option<Figure> {
    let unit = those.first()?.unit;
    let lines = survey.head.endpoints.iter().enumerate().map(|(number, receiver)| {
        let points = those.iter().filter(|it| it.key.sender == sender && it.key.receiver == receiver.name);
        let points = points.map(|it| (it.key.size, it.values().into()));
        series(format!("to {}", named(survey, &receiver.name)), Role::Measured, number, unit, points)
    });
    let caption = format!("{} over size, from {}", capital(&words(kind)), named(survey, sender));
    figure(caption, "size of a message", &kind.0, unit, lines.collect())
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

fn observations(survey: &SurveyRecord) -> Table {
    let row = |it: &Observation| Row {
        name: capital(&word(it.name).replace('-', " ")),
        notes: Vec::new(),
        cells: vec![Cell::text(word(it.verdict).replace('-', " ")), Cell::text(it.text.clone())],
    };
    Table {
        caption: "The paper's observations, tested on these data".to_string(),
        heads: ["observation", "these data", "why"].map(str::to_string).into(),
        rows: survey.observations.iter().map(row).collect(),
    }
}

/// Every figure, with the processor time that it took at both ends.
fn all(survey: &SurveyRecord) -> Table {
    let row = |it: &Series| {
        let key = &it.key;
        let via = key.via.as_ref().map(|via| format!(", TLS by {via}")).unwrap_or_default();
        let cost = |time: fn(&Sample) -> u64| {
            let each = |sample: &Sample| Some(time(sample) as f64 / sample.pieces(key.metric)?);
            let costs: Option<Vec<f64>> = it.samples.iter().map(each).collect();
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
        let cells =
            vec![Cell::figure(it.unit, &it.values().into()), cost(|it| it.sender_time), cost(|it| it.receiver_time)];
        Row { name, notes: Vec::new(), cells }
    };
    Table {
        caption: "All figures; processor time for each byte, and of latency for each exchange".to_string(),
        heads: ["", "figure", "processor time, sender", "processor time, receiver"].map(str::to_string).into(),
        rows: survey.series.iter().map(row).collect(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

//! Records as one HTML page: what each paper measured, with the user's figures beside the paper's. One file that
//! fetches nothing.
//!
//! A figure that was not measured is not shown: a chart, a table or a row is there only if a record holds its samples.
//! Figures of different records are never drawn as one.

mod bypass;
mod chart;
mod check;
mod checksum;
mod curves;
mod driver;
mod layers;
mod page;
mod published;
mod survey;
mod table;

use std::path::Path;

use anyhow::{Context, Result};
use askama::Template;

use crate::bootstrap;
use crate::evidence::{Checked, Evidence, Run, Survey};
use crate::record::{Measurement, Record, Verdict};
use crate::replace::replace;
use crate::terminal::{contrast, targets};
use crate::unit::{Better, digits};
use page::{About, Gap, Kind, Page, Section, Tile};
use table::{Cell, Row, Table};

/// Writes the page.
///
/// # Errors
/// The file cannot be written.
pub fn write_html(evidence: &Evidence, path: &Path) -> Result<()> {
    let page = html(evidence)?;
    replace(path, |to| to.write_all(page.as_bytes()))
        .with_context(|| format!("cannot write the report {}", path.display()))
}

/// The page.
///
/// # Errors
/// The template could not be filled in, which has no cause outside of this program.
pub fn html(evidence: &Evidence) -> Result<String> {
    let Evidence { runs, surveys, checks } = evidence;
    let page = Page {
        title: "Underpass: measurements".to_string(),
        runs: runs
            .iter()
            .map(about)
            .chain(surveys.iter().map(about_survey))
            .chain(checks.iter().map(about_check))
            .collect(),
        tiles: runs.iter().flat_map(|run| tiles(&run.record)).collect(),
        sections: sections(evidence),
        gaps: runs
            .iter()
            .flat_map(gaps)
            .chain(surveys.iter().flat_map(survey_gaps))
            .chain(checks.iter().flat_map(check_gaps))
            .collect(),
    };
    page.render().context("cannot write the report")
}

/// What a system's part adds of the valid measurements of a run.
type Add = fn(&mut Section, &[&Measurement]);

fn sections(evidence: &Evidence) -> Vec<Section> {
    let parts: [(Section, Add); 5] = [
        (Section::new("bypass", "Past the protocol stack", Some(published::BYPASS)), bypass::add),
        (Section::new("layers", "Layers in parallel", Some(published::LAYERS)), layers::add),
        (Section::new("driver", "Adaptive driver", Some(published::DRIVER)), driver::add),
        (Section::new("checksum", "Checksums on a GPU", Some(published::CHECKSUM_GPU)), checksum::add),
        (Section::new("costs", "What must not get worse", None), costs),
    ];
    let mut filled: Vec<Section> = parts
        .into_iter()
        .map(|(mut section, add)| {
            for run in &evidence.runs {
                section.run(&run.name, |section| add(section, &valid(&run.record)));
            }
            section
        })
        .collect();
    let mut pairs = Section::new("survey", "Endpoints", Some(published::SURVEY));
    for survey in &evidence.surveys {
        pairs.run(&survey.name, |section| survey::add(section, survey));
    }
    let mut advice = Section::new("check", "Advice put to the test", None);
    for Checked { name, check } in &evidence.checks {
        advice.run(name, |section| check::add(section, check));
    }
    let costs = filled.len() - 1;
    filled.splice(costs..costs, [pairs, advice]);
    filled.retain(|section| !section.blocks.is_empty());
    filled
}

fn costs(section: &mut Section, valid: &[&Measurement]) {
    let those: Vec<&Measurement> = valid.iter().copied().filter(|it| it.suite == "setup").collect();
    section.table(suite_table("Connecting, waking, idle connections, start-up", &those));
    let those: Vec<&Measurement> = valid.iter().copied().filter(|it| it.suite == "broker").collect();
    section.table(suite_table("Between users, through underpassd", &those));
}

fn valid(record: &Record) -> Vec<&Measurement> {
    record.measurements.iter().filter(|it| it.invalid.is_none() && it.underpass.median.is_some()).collect()
}

/// The first ratio of each group that promises to be better than kernel TCP: what a reader looks for first.
fn tiles(record: &Record) -> Vec<Tile> {
    let (mut groups, mut tiles) = (Vec::<(&str, &str)>::new(), Vec::new());
    for measurement in valid(record) {
        let group = (measurement.suite.as_str(), measurement.group.as_str());
        let promises = |verdict: &Verdict| verdict.times.is_none_or(|times| times > 1.0);
        let [kernel, underpass] = [&measurement.kernel, &measurement.underpass].map(|figure| figure.median);
        if let (Some(ratio), Some(kernel), Some(underpass)) = (measurement.ratio, kernel, underpass)
            && measurement.suite != "setup"
            && measurement.targets.iter().any(promises)
            && !groups.contains(&group)
        {
            groups.push(group);
            let [kernel, underpass] = [kernel, underpass].map(|figure| measurement.unit.show(figure));
            tiles.push(Tile {
                ratio: format!("{}×", digits(ratio)),
                name: format!("{}{}", suite_word(&measurement.suite), measurement.name),
                figures: format!("{underpass} instead of {kernel}"),
            });
        }
    }
    tiles
}

/// What is missing, and why.
fn gaps(Run { name, record }: &Run) -> Vec<Gap> {
    let invalid = record.measurements.iter().filter_map(|it| {
        let name = format!("{}{}", suite_word(&it.suite), it.name);
        Some(Gap { name, what: "no valid figure", reason: it.invalid.clone()? })
    });
    let skipped = record.skipped.iter().cloned();
    let skipped = skipped.map(|it| Gap { name: it.name, what: "not measured", reason: it.reason });
    let end = (!record.complete).then(|| Gap {
        name: name.clone(),
        what: "not complete",
        reason: "the run was ended before its end; figures that it had taken are shown".to_string(),
    });
    invalid.chain(skipped).chain(end).collect()
}

fn survey_gaps(survey: &Survey) -> Vec<Gap> {
    let gap =
        |name: &str, reason: &str| Gap { name: name.to_string(), what: "not measured", reason: reason.to_string() };
    let mut gaps: Vec<Gap> = survey.record.skipped.iter().map(|it| gap(&it.name, &it.reason)).collect();
    if !survey.record.complete {
        gaps.push(gap(&survey.name, "the survey has not come to its end; start it again and it goes on"));
    }
    gaps
}

fn check_gaps(Checked { name, check }: &Checked) -> Vec<Gap> {
    let skipped = check.skipped.iter().cloned();
    let skipped = skipped.map(|it| Gap { name: it.name, what: "not checked", reason: it.reason });
    let end = (!check.complete).then(|| Gap {
        name: name.clone(),
        what: "not complete",
        reason: "the check was ended before its end; the same command goes on with it".to_string(),
    });
    skipped.chain(end).collect()
}

fn about_check(Checked { name, check }: &Checked) -> About {
    let facts = vec![
        ("Underpass", [&check.version, check.revision.as_deref().unwrap_or_default()].join(" ")),
        ("Host", check.host.to_string()),
        ("Seed of the order", check.seed.to_string()),
        ("Samples of each way", check.samples.to_string()),
        ("Advice from", check.records.join(", ")),
    ];
    let (name, date, host) = (name.clone(), check.date.clone(), check.host.to_string());
    About { kind: Kind::Check, name, date, host, quick: check.quick, facts }
}

fn about_survey(survey: &Survey) -> About {
    let facts = vec![
        (
            "Underpass",
            [&survey.record.head.version, survey.record.head.revision.as_deref().unwrap_or_default()].join(" "),
        ),
        ("Seed of the order", survey.record.head.seed.to_string()),
        ("Samples of each figure", survey.record.head.plan.samples.to_string()),
    ];
    let host = format!("{} endpoints", survey.record.head.endpoints.len());
    About {
        kind: Kind::Survey,
        name: survey.name.clone(),
        date: survey.record.head.date.clone(),
        host,
        quick: survey.record.head.plan.quick,
        facts,
    }
}

fn about(run: &Run) -> About {
    let Record { date, version, revision, host, samples, quick, programs, .. } = &run.record;
    let mut facts = vec![
        ("Underpass", [version, revision.as_deref().unwrap_or_default()].join(" ")),
        ("Host", host.to_string()),
        ("Kernel", host.kernel.clone()),
        ("Samples of each side", samples.to_string()),
    ];
    facts.extend(host.load.map(|load| ("Load before the run", digits(load))));
    facts.extend(programs.iter().map(|program| ("Program", program.clone())));
    let (name, date, host) = (run.name.clone(), date.clone(), host.to_string());
    About { kind: Kind::Run, name, date, host, quick: *quick, facts }
}

/// All measurements of a suite with what is promised of them.
fn suite_table(caption: &str, measurements: &[&Measurement]) -> Table {
    let row = |it: &&Measurement| {
        let verdict = match it.met {
            Some(true) => Cell { class: "met", ..Cell::text("✓ met") },
            Some(false) => Cell { class: "missed", ..Cell::text("✗ missed") },
            None => Cell::default(),
        };
        let contrast = match (it.ratio, it.difference) {
            (Some(ratio), _) => {
                let [over, under] = match it.better {
                    Better::Lower => [&it.kernel, &it.underpass],
                    Better::Higher => [&it.underpass, &it.kernel],
                };
                let interval = bootstrap::of_ratio(&over.samples, &under.samples);
                let small = interval.map(|it| format!("{} – {}×", digits(it.low), digits(it.high))).unwrap_or_default();
                Cell { small, interval, ..Cell::number(contrast(it), ratio) }
            }
            (None, Some(difference)) => Cell { unit: it.unit.symbol(), ..Cell::number(contrast(it), difference) },
            (None, None) => Cell::default(),
        };
        let cells = vec![
            Cell::figure(it.unit, &it.kernel),
            Cell::figure(it.unit, &it.underpass),
            contrast,
            Cell::text(targets(it)),
            verdict,
        ];
        Row { name: it.name.clone(), notes: it.notes.clone(), cells }
    };
    let is_difference = |it: &&Measurement| it.ratio.is_none() && it.difference.is_some();
    let head = match measurements.iter().filter(|it| is_difference(it)).count() {
        0 => "ratio",
        all if all == measurements.len() => "difference",
        _ => "ratio, or difference",
    };
    Table {
        caption: format!("{caption}: all figures"),
        heads: ["", "kernel TCP", "Underpass", head, "target", "verdict"].map(str::to_string).into(),
        rows: measurements.iter().map(row).collect(),
    }
}

/// What a name needs before it, away from its own table.
fn suite_word(suite: &str) -> &'static str {
    match suite {
        "pingpong" => "round trip, ",
        "stream" => "stream, ",
        _ => "",
    }
}

#[cfg(test)]
mod tests;

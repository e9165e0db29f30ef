//! A survey of endpoints, as `underpass survey` writes it, checked.

use std::collections::{BTreeMap, BTreeSet};

use super::run::or_none;
use super::{Amounts, Problem, check_date, check_texts, check_version};
use crate::statistic::median;
use crate::survey::record::{
    Head, Key, LONGEST_NAME, MOST_CELLS, MOST_ENDPOINTS, MOST_SAMPLES, SCHEMA, Series, SurveyRecord, cells, word,
};
use crate::unit::{is_possible, told};

/// Most processor time of one sample, in ns: a thousand processors for a day.
const MOST_TIME: u64 = 86_400 * 1_000 * 1_000_000_000;

/// One survey, and the file that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// What the report and the advice call it: a name that no other has, as a rule its file's without the ending.
    pub name: String,
    /// What it measured.
    pub record: SurveyRecord,
}

impl Survey {
    /// Parses and checks a survey.
    ///
    /// # Errors
    /// It is damaged, of another version of the format, or has figures that cannot be true.
    pub fn parse(name: String, text: &[u8]) -> Result<Survey, Problem> {
        check_version(text, "survey", SCHEMA)?;
        let record: SurveyRecord = serde_json::from_slice(text)?;
        check(&record)?;
        Ok(Survey { name, record })
    }
}

fn check(record: &SurveyRecord) -> Result<(), Problem> {
    if record.head.endpoints.len() > MOST_ENDPOINTS || record.series.len() > MOST_SAMPLES {
        let most = format!("has more than {MOST_ENDPOINTS} endpoints or {MOST_SAMPLES} series");
        return Err(Problem::Excessive(most));
    }
    let Head { date, version, revision, endpoints, .. } = &record.head;
    check_date(date)?;
    let of_head = [date, version].into_iter().chain(revision);
    let of_endpoints = endpoints.iter().flat_map(|it| {
        let own = [&it.name, &it.system, &it.address, &it.network].into_iter().chain(&it.emulation).chain(&it.revision);
        own.chain(it.host.texts()).chain(it.tools.iter().map(|it| &it.version))
    });
    let of_skipped = record.skipped.iter().flat_map(|it| [&it.name, &it.reason]);
    let of_samples = record.series.iter().flat_map(|it| it.samples.iter().map(|it| &it.at));
    let of_observations = record.observations.iter().map(|it| &it.text);
    check_texts(of_head.chain(of_endpoints).chain(of_skipped).chain(of_samples).chain(of_observations))?;
    // Each cell of a table of pairs has both names.
    if let Some(long) = endpoints.iter().find(|it| it.name.len() > LONGEST_NAME) {
        let start: String = long.name.chars().take(40).collect();
        let what = format!("has an endpoint whose name has more than {LONGEST_NAME} bytes, beginning {start:?}");
        return Err(Problem::Excessive(what));
    }
    let names: BTreeSet<&String> = endpoints.iter().map(|it| &it.name).collect();
    if names.len() < endpoints.len() {
        return Err(Problem::Excessive("has two endpoints of one name".to_string()));
    }
    let (mut amounts, mut keys, mut tools) = (Amounts::new(), BTreeSet::new(), BTreeMap::new());
    for series in &record.series {
        let key = &series.key;
        let wrong = |what: String| Problem::Impossible { measurement: key.to_string(), what };
        let ends = [Some(&key.sender), Some(&key.receiver), key.via.as_ref()];
        if let Some(stranger) = ends.into_iter().flatten().find(|name| !names.contains(name)) {
            return Err(wrong(format!("{stranger:?} is none of its endpoints")));
        }
        if !keys.insert(key) {
            return Err(wrong("it is there twice".to_string()));
        }
        let tool = *tools.entry(key.metric).or_insert(key.tool);
        if tool != key.tool {
            return Err(wrong(format!("it is by {} and others by {}", key.tool.program(), tool.program())));
        }
        amounts.add(Key { size: 0, ..key.clone() }, series.samples.len())?;
        check_figures(series).map_err(wrong)?;
    }
    if amounts.samples > MOST_SAMPLES {
        return Err(Problem::Excessive(format!("has more than {MOST_SAMPLES} samples, as no survey has")));
    }
    if cells(record.series.iter().map(|it| &it.key)) > MOST_CELLS {
        let what = format!("has so few pairs of each figure that its tables would have more than {MOST_CELLS} cells");
        return Err(Problem::Excessive(what));
    }
    Ok(())
}

fn check_figures(series: &Series) -> Result<(), String> {
    let Series { key, unit, better, samples, summary } = series;
    if (*unit, *better) != (key.metric.unit(), key.metric.better()) {
        return Err(format!("it is in {}, where {} is better", unit.symbol(), word(*better)));
    }
    if key.size == 0 || key.flows == 0 {
        return Err(format!("it is of messages of {} B over {} connections", key.size, key.flows));
    }
    for sample in samples {
        if let Some(it) = sample.percentiles.filter(|it| it.p50 > it.p99 || it.p99 > it.p999) {
            let [p50, p99, p999] = [it.p50, it.p99, it.p999].map(told);
            return Err(format!("percentiles of {p50}, {p99} and {p999} ns are not in order"));
        }
        let times = [Some(sample.sender_time), Some(sample.receiver_time), sample.via_time];
        if let Some(time) = times.into_iter().flatten().find(|time| *time > MOST_TIME) {
            return Err(format!("{time} ns are no processor time of one sample"));
        }
        let percentiles = sample.percentiles.map(|it| [it.p50, it.p99, it.p999]).into_iter().flatten();
        if !is_possible(sample.value) {
            return Err(format!("{} {} is no such figure", told(sample.value), unit.symbol()));
        }
        if let Some(time) = percentiles.chain([sample.seconds]).find(|it| !is_possible(*it)) {
            return Err(format!("{} is no time", told(time)));
        }
    }
    let is = median(&series.values());
    match summary {
        Some(summary) if is.is_none_or(|is| (summary.median - is).abs() > is * 1e-9) => {
            let [told, is] = [Some(summary.median), is].map(or_none);
            Err(format!("its median is said to be {told}, and that of its samples is {is}"))
        }
        _ => Ok(()),
    }
}

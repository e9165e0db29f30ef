//! A survey of endpoints, as `underpass survey` writes it, checked.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{LONGEST_TEXT, Problem};
use crate::survey::record::{SCHEMA, SurveyRecord, word};

const MOST_ENDPOINTS: usize = 100;
const MOST_SERIES: usize = 200_000;

/// One survey, and the file that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// What the report and the advice call it: the file's name without its ending.
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
        // Another version may have other fields, so it is looked at first.
        let Version { schema } = serde_json::from_slice(text)?;
        if schema != SCHEMA {
            return Err(Problem::Schema { kind: "survey", found: schema, known: SCHEMA });
        }
        let record: SurveyRecord = serde_json::from_slice(text)?;
        check(&record)?;
        Ok(Survey { name, record })
    }
}

#[derive(Deserialize)]
struct Version {
    schema: u32,
}

fn check(record: &SurveyRecord) -> Result<(), Problem> {
    if record.head.endpoints.len() > MOST_ENDPOINTS || record.series.len() > MOST_SERIES {
        let most = format!("has more than {MOST_ENDPOINTS} endpoints or {MOST_SERIES} series");
        return Err(Problem::Excessive(most));
    }
    let of_endpoints = record.head.endpoints.iter().flat_map(|it| [&it.name, &it.system]);
    let mut texts = of_endpoints.chain(record.observations.iter().map(|it| &it.text));
    if texts.any(|it| it.len() > LONGEST_TEXT) {
        return Err(Problem::Excessive(format!("has a text of more than {LONGEST_TEXT} bytes")));
    }
    let names: BTreeSet<&str> = record.head.endpoints.iter().map(|it| it.name.as_str()).collect();
    for series in &record.series {
        let key = &series.key;
        let measurement = format!("{} → {}: {}, {}", key.sender, key.receiver, word(key.metric), key.size);
        let wrong = |what: String| Problem::Impossible { measurement: measurement.clone(), what };
        let ends = [Some(&key.sender), Some(&key.receiver), key.via.as_ref()];
        if let Some(stranger) = ends.into_iter().flatten().find(|name| !names.contains(name.as_str())) {
            return Err(wrong(format!("{stranger:?} is none of its endpoints")));
        }
        let bad = series.samples.iter().find(|it| !(it.value.is_finite() && it.value > 0.0));
        if let Some(sample) = bad {
            return Err(wrong(format!("{} {} is no such figure", sample.value, series.unit.symbol())));
        }
    }
    Ok(())
}

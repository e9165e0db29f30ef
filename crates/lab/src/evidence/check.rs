//! A check of advice, as `underpass advise --check` writes it, checked itself.

use serde::Deserialize;

use super::{LONGEST_TEXT, Problem};
use crate::advise::case::{Case, Check, SCHEMA};

const MOST_CASES: usize = 100_000;
const MOST_WAYS: usize = 100;

/// One check of advice, and the file that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// What the report calls it: the file's name without its ending.
    pub name: String,
    /// Its cases.
    pub check: Check,
}

impl Checked {
    /// Parses and checks a check.
    ///
    /// # Errors
    /// It is damaged, of another version of the format, or has figures that cannot be true.
    pub fn parse(name: String, text: &[u8]) -> Result<Checked, Problem> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } = serde_json::from_slice(text)?;
        if schema != SCHEMA {
            return Err(Problem::Schema { kind: "check of advice", found: schema, known: SCHEMA });
        }
        let check: Check = serde_json::from_slice(text)?;
        if check.cases.0.len() > MOST_CASES {
            return Err(Problem::Excessive(format!("has more than {MOST_CASES} cases")));
        }
        check.cases.0.iter().try_for_each(possible)?;
        Ok(Checked { name, check })
    }
}

fn possible(case: &Case) -> Result<(), Problem> {
    let of_case = [&case.stage, &case.route, &case.objective, &case.record, &case.choice, &case.verdict];
    let mut texts = of_case.into_iter().chain(case.ways.iter().map(|way| &way.name));
    if case.ways.len() > MOST_WAYS || texts.any(|it| it.len() > LONGEST_TEXT) {
        let most = format!("has a case of more than {MOST_WAYS} ways, or a text of more than {LONGEST_TEXT} bytes");
        return Err(Problem::Excessive(most));
    }
    let is_gain = |gain: f64| gain.is_finite() && gain > 0.0;
    let bad = case.ways.iter().find(|way| !is_gain(way.predicted) || !is_gain(way.measured));
    let measurement = || format!("{}, {}, {}", case.stage, case.route, case.size);
    match bad {
        Some(way) => {
            let what = format!("{}: {} and {} are no gains", way.name, way.predicted, way.measured);
            Err(Problem::Impossible { measurement: measurement(), what })
        }
        None if case.chosen().is_none() => {
            let what = format!("the advised way {:?} is none of its ways", case.choice);
            Err(Problem::Impossible { measurement: measurement(), what })
        }
        None => Ok(()),
    }
}

//! A check of advice, as `underpass advise --check` writes it, checked itself.

use super::{Problem, check_date, check_texts, check_version};
use crate::advise::case::{Case, Check, SCHEMA};
use crate::unit::{is_possible, told};

const MOST_CASES: usize = 100_000;
const MOST_WAYS: usize = 100;

/// One check of advice, and the file that it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// What the report calls it: a name that no other has, as a rule its file's without the ending.
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
        check_version(text, "check of advice", SCHEMA)?;
        let check: Check = serde_json::from_slice(text)?;
        if check.cases.0.len() > MOST_CASES {
            return Err(Problem::Excessive(format!("has more than {MOST_CASES} cases")));
        }
        check_date(&check.date)?;
        let own = [&check.date, &check.version].into_iter().chain(&check.revision).chain(check.host.texts());
        let skipped = check.skipped.iter().flat_map(|it| [&it.name, &it.reason]);
        check_texts(own.chain(&check.records).chain(skipped))?;
        check.cases.0.iter().try_for_each(possible)?;
        Ok(Checked { name, check })
    }
}

fn possible(case: &Case) -> Result<(), Problem> {
    let of_case = [&case.stage, &case.route, &case.objective, &case.record, &case.choice, &case.verdict];
    check_texts(of_case.into_iter().chain(case.ways.iter().map(|way| &way.name)))?;
    if case.ways.len() > MOST_WAYS {
        return Err(Problem::Excessive(format!("has a case of more than {MOST_WAYS} ways")));
    }
    let bad = case.ways.iter().find(|way| !is_possible(way.predicted) || !is_possible(way.measured));
    let measurement = || format!("{}, {}, {}", case.stage, case.route, case.size);
    match bad {
        Some(way) => {
            let what = format!("{}: {} and {} are no gains", way.name, told(way.predicted), told(way.measured));
            Err(Problem::Impossible { measurement: measurement(), what })
        }
        None if case.chosen().is_none() => {
            let what = format!("the advised way {:?} is none of its ways", case.choice);
            Err(Problem::Impossible { measurement: measurement(), what })
        }
        None => Ok(()),
    }
}

//! Which tests say something else under Underpass than on the kernel.

use crate::launch::PATHS;
use crate::verdict::{Verdict, Verdicts};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// What was compared, of all parts of a suite.
#[derive(Default)]
pub struct Comparison {
    /// Tests.
    pub tests: usize,
    /// Those that say something under Underpass which the kernel never said.
    pub different: Vec<Difference>,
    /// Those of which the kernel itself says now this and now that.
    pub unsteady: usize,
}

/// One test that differs.
#[derive(Serialize)]
pub struct Difference {
    /// The part in which it is.
    pub part: &'static str,
    /// Its name.
    pub test: String,
    /// What it said, path by path and run by run.
    pub said: Vec<(&'static str, Vec<String>)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.test)?;
        for (path, runs) in &self.said {
            write!(f, " {path} {};", runs.join(", "))?;
        }
        Ok(())
    }
}

/// What one test said on one path, each time it ran; `None`: nothing.
fn said<'a>(runs: &'a [Verdicts], test: &'a str) -> impl Iterator<Item = Option<Verdict>> + 'a {
    runs.iter().map(move |verdicts| verdicts.of(test))
}

/// The tests of `part` that differ; `told` holds the verdicts of every run by path, the kernel's first.
pub fn differences(part: &'static str, told: &[Vec<Verdicts>]) -> Vec<Difference> {
    let word = |verdict: Option<Verdict>| verdict.map_or("nothing".into(), |it| format!("{it:?}").to_lowercase());
    let differs = |test: &&str| {
        let kernel: BTreeSet<_> = said(&told[0], test).collect();
        told[1..].iter().any(|runs| said(runs, test).any(|verdict| !kernel.contains(&verdict)))
    };
    let difference = |test: &str| Difference {
        part,
        test: test.to_owned(),
        said: PATHS.iter().zip(told).map(|(path, runs)| (path.name, said(runs, test).map(word).collect())).collect(),
    };
    names(told).into_iter().filter(differs).map(difference).collect()
}

fn names(told: &[Vec<Verdicts>]) -> BTreeSet<&str> {
    told.iter().flatten().flat_map(Verdicts::names).collect()
}

impl Comparison {
    /// Adds what the runs of a part told.
    pub fn add(&mut self, part: &'static str, told: &[Vec<Verdicts>]) {
        let different = differences(part, told);
        let steady = |test: &str| said(&told[0], test).collect::<BTreeSet<_>>().len() == 1;
        let names = names(told);
        self.tests += names.len();
        let counted: BTreeSet<&str> = different.iter().map(|difference| difference.test.as_str()).collect();
        self.unsteady += names.iter().filter(|test| !steady(test) && !counted.contains(*test)).count();
        self.different.extend(different);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(texts: &[&str]) -> Vec<Verdicts> {
        texts.iter().map(|text| Verdicts::of_lines(text, Verdicts::tap)).collect()
    }

    #[test]
    fn a_test_that_fails_under_underpass_alone_differs() {
        let told = [runs(&["ok 1 - a\nok 2 - b"]), runs(&["ok 1 - a\nnot ok 2 - b"])];
        let found = differences("part", &told);
        assert_eq!(found.iter().map(|it| it.test.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_test_that_is_not_told_of_differs() {
        let told = [runs(&["ok 1 - a\nok 2 - b"]), runs(&["ok 1 - a"])];
        assert_eq!(differences("part", &told).len(), 1);
    }

    #[test]
    fn what_the_kernel_says_now_and_then_is_unsteady() {
        let told = [runs(&["ok 1 - a", "not ok 1 - a"]), runs(&["not ok 1 - a", "ok 1 - a"])];
        let mut comparison = Comparison::default();
        comparison.add("part", &told);
        assert_eq!((comparison.tests, comparison.different.len(), comparison.unsteady), (1, 0, 1));
    }
}

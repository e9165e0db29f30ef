//! What a suite says of its tests.

use std::collections::BTreeMap;

/// Of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It was left out by the suite itself.
    Skipped,
    /// It did not end in time.
    Hung,
}

/// By the test's name.
#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    told: BTreeMap<String, Verdict>,
    /// How often each name has come.
    came: BTreeMap<String, u32>,
}

impl Verdicts {
    /// Adds one. A name that comes again is another test of that name.
    pub fn add(&mut self, name: &str, verdict: Verdict) {
        let number = self.came.entry(name.to_owned()).and_modify(|number| *number += 1).or_insert(1);
        let unique = if *number == 1 { name.to_owned() } else { format!("{name} ({number})") };
        self.told.insert(unique, verdict);
    }

    /// That of one test.
    pub fn of(&self, name: &str) -> Option<Verdict> {
        self.told.get(name).copied()
    }

    /// The tests.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.told.keys().map(String::as_str)
    }

    /// Each line of `text` that `read` takes for a verdict.
    pub fn of_lines(text: &str, read: impl Fn(&str) -> Option<(&str, Verdict)>) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (name, verdict) in text.lines().filter_map(read) {
            verdicts.add(name, verdict);
        }
        verdicts
    }

    /// A line of the Test Anything Protocol: "ok 3 - name", "not ok 4 - name # SKIP why".
    pub fn tap(line: &str) -> Option<(&str, Verdict)> {
        let (passed, rest) = match line.strip_prefix("not ok ") {
            Some(rest) => (false, rest),
            None => (true, line.strip_prefix("ok ")?),
        };
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let rest = rest.strip_prefix("- ").unwrap_or(rest);
        let (name, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
        let verdict = match (passed, directive) {
            (_, why) if why.to_ascii_uppercase().starts_with("SKIP") => Verdict::Skipped,
            (true, _) => Verdict::Passed,
            (false, _) => Verdict::Failed,
        };
        Some((name.trim(), verdict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tap_lines_are_read() {
        assert_eq!(Verdicts::tap("ok 12 - tcp_close"), Some(("tcp_close", Verdict::Passed)));
        assert_eq!(Verdicts::tap("not ok 3 - a name"), Some(("a name", Verdict::Failed)));
        assert_eq!(Verdicts::tap("ok 4 - x # SKIP no IPv6"), Some(("x", Verdict::Skipped)));
        assert_eq!(Verdicts::tap("# ok"), None);
    }

    #[test]
    fn a_name_may_come_twice() {
        let verdicts = Verdicts::of_lines("ok 1 - a\nnot ok 2 - a\nnoise\n", Verdicts::tap);
        assert_eq!(verdicts.of("a"), Some(Verdict::Passed));
        assert_eq!(verdicts.of("a (2)"), Some(Verdict::Failed));
        assert_eq!(verdicts.names().count(), 2);
    }
}

//! Ruby's own tests of sockets, HTTP, TLS, remote objects and its scheduler of fibers.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
use anyhow::Result;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// See above.
pub struct Ruby;

impl Suite for Ruby {
    fn name(&self) -> &'static str {
        "ruby"
    }

    fn about(&self) -> &'static str {
        "calls that do not block, select, half closes, streams with buffers of their own, HTTP, TLS, fibers"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["socket", "net", "drb", "openssl", "open-uri", "fiber", "ruby/test_io.rb"]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["socket", "open-uri"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        place.need(&[("ruby3.1", "ruby3.1")])?;
        place.debian_source_as_installed("ruby3.1").map(drop)
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let source = place.debian_source_as_installed("ruby3.1")?;
        let tests = format!("test/{part}");
        let arguments = ["-Itool/lib", "test/runner.rb", "--verbose", "--show-skip", "--test-order=alpha", &tests];
        let said = run.run("ruby3.1", arguments, &source, &[], LIMIT)?;
        let mut verdicts = read(&said.text);
        verdicts.add(part, said.verdict());
        Ok(verdicts)
    }
}

/// `[ 3/58] TestFiber#test_x = 0.00 s`, and at the end `  1) Failure:`, in the next line `TestFiber#test_x
/// [FILE:LINE]:`.
fn read(text: &str) -> Verdicts {
    let (mut verdicts, mut fate) = (Verdicts::default(), None);
    let ends = |rest: &str| match rest {
        "Failure:" | "Error:" => Some(Verdict::Failed),
        "Skipped:" => Some(Verdict::Skipped),
        _ => None,
    };
    let mut told = Vec::new();
    for line in text.lines() {
        if let Some(verdict) = fate.take() {
            told.extend(name(line).map(|test| (test, verdict)));
        } else if let Some((_, test)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            told.extend(name(test).map(|test| (test, Verdict::Passed)));
        } else if let Some((number, rest)) = line.trim_start().split_once(") ") {
            fate = number.parse::<u32>().ok().and_then(|_| ends(rest));
        }
    }
    // What failed comes twice, and the second word is the right one.
    for (number, (test, verdict)) in told.iter().enumerate() {
        if !told[number + 1..].iter().any(|(later, _)| later == test) {
            verdicts.add(test, *verdict);
        }
    }
    verdicts
}

/// `TestFiber#test_x`; what the test itself says may follow at once.
fn name(line: &str) -> Option<&str> {
    let (class, rest) = line.split_once('#')?;
    let method = rest.find(|c: char| !(c.is_alphanumeric() || "_?!=".contains(c))).unwrap_or(rest.len());
    (!class.contains(' ') && method > 0).then(|| &line[..class.len() + 1 + method])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_told_at_the_end() {
        let verdicts = read(
            "[ 1/3] TestA#test_b = 0.01 s\n[ 2/3] Of::A#test_c#<Thread:0x1> ended\n[ 3/3] TestA#test_d = 0.00 s\n\n  \
             1) Error:\nOf::A#test_c:\nwhy\n  2) Skipped:\nTestA#test_d [a.rb:3]:\n",
        );
        assert_eq!(verdicts.of("TestA#test_b"), Some(Verdict::Passed));
        assert_eq!(verdicts.of("Of::A#test_c"), Some(Verdict::Failed));
        assert_eq!(verdicts.of("TestA#test_d"), Some(Verdict::Skipped));
        assert_eq!(verdicts.names().count(), 3);
    }
}

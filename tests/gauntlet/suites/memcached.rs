//! memcached's own tests in Perl: threads on libevent, big values, idle timeouts, its proxy.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::Verdicts;
use anyhow::{Context, Result};
use std::fs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

/// Files in which the number of tests is a matter of time: how many connections were refused, how often they looked
/// whether all was on disk. What such a file says several times counts once.
const TIMED: &[&str] = &["maxconns", "binary-extstore"];

/// In bytes.
const LONGEST_NAME: usize = 1000;

/// See above.
pub struct Memcached;

impl Suite for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn about(&self) -> &'static str {
        "threads on libevent, big values, idle timeouts, a proxy; parts by the first letters of the tests' names"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["0-9", "a-b", "c-d", "e-h", "i", "l", "m", "n-r", "s", "t-z"]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["m"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        place.need(&[("make", "make"), ("prove", "perl"), ("/usr/include/event.h", "libevent-dev")])?;
        let source = place.debian_source("memcached")?;
        place.once("built", || {
            // With Unix sockets at hand its tests would go over those.
            place.step(&source, "./configure", ["--quiet", "--disable-unix-socket"])?;
            place.step(&source, "make", ["-j2", "memcached", "memcached-debug", "testapp", "sizes", "timedrun"])
        })
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let source = place.debian_source("memcached")?;
        let mut files = tests(&source, part)?;
        files.sort();
        // One at a time: some of them look for a port that nobody has yet.
        let arguments = ["--verbose".to_owned(), "--jobs=1".into()].into_iter().chain(files);
        let said = run.run("prove", arguments, &source, &[], LIMIT)?;
        let mut verdicts = read(&said.text);
        verdicts.add(part, said.came_to_its_end());
        Ok(verdicts)
    }
}

/// The tests whose names begin with one of the letters "FIRST-LAST".
fn tests(source: &std::path::Path, part: &str) -> Result<Vec<String>> {
    let letters = part.as_bytes();
    let letters = letters[0]..=letters[letters.len() - 1];
    let names = fs::read_dir(source.join("t")).context("read the folder of memcached's tests")?.flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names
        .filter(|name| name.ends_with(".t") && letters.contains(&name.as_bytes()[0]))
        .map(|name| format!("t/{name}"))
        .collect())
}

/// `t/stats.t .. `, and its tests one by one.
fn read(text: &str) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let mut file = "";
    for line in text.lines() {
        if let Some((name, _)) = line.strip_prefix("t/").and_then(|rest| rest.split_once(".t .")) {
            file = name;
        } else if let Some((test, verdict)) = Verdicts::tap(line) {
            // A test named by the random bytes, or the random port, that it has compared is the same test the next
            // time.
            let test = test.split_once(" (got ").map_or(test, |it| it.0);
            let name = format!("{file}: {}", if test.len() > LONGEST_NAME { "long value" } else { test });
            if !TIMED.contains(&file) || verdicts.of(&name) != Some(verdict) {
                verdicts.add(&name, verdict);
            }
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    #[test]
    fn what_is_random_or_a_matter_of_time_counts_once() {
        let value = |byte: &str| byte.repeat(2000);
        let text =
            format!("t/binary-extstore.t .. \nok 1 - {}\nok 2 - {}\nok 3 - a\nok 4 - a\n", value("x"), value("y"));
        let verdicts = read(&text);
        assert_eq!(verdicts.of("binary-extstore: long value"), Some(Verdict::Passed));
        assert_eq!(verdicts.names().count(), 2);
        let verdicts = read("t/issue_50.t .. \nok 1 - expected random port (got 38763)\n");
        assert_eq!(verdicts.of("issue_50: expected random port"), Some(Verdict::Passed));
    }

    #[test]
    fn tests_are_told_by_their_file() {
        let verdicts = read("t/cas.t ........... \n1..2\nok 1 - stored\nok\nt/lru.t .. \nnot ok 1 - stored\n");
        assert_eq!(verdicts.of("cas: stored"), Some(Verdict::Passed));
        assert_eq!(verdicts.of("lru: stored"), Some(Verdict::Failed));
        assert_eq!(verdicts.names().count(), 2);
    }
}

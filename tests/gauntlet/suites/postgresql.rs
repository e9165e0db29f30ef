//! PostgreSQL's own tests over TCP, of the packaged server: a process per connection that sleeps on a latch and epoll,
//! signals between them, and in the isolation tests one client that waits for another.

use super::Suite;
use crate::launch::{self, Run};
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
use anyhow::{Context, Result};
use std::time::Duration;

const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const TESTERS: &str = "/usr/lib/postgresql/15/lib/pgxs/src/test";
/// As root its server refuses to run.
const USER: &str = "postgres";
const LIMIT: Duration = Duration::from_secs(900);

/// See above.
pub struct PostgreSql;

impl Suite for PostgreSql {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    fn about(&self) -> &'static str {
        "a process per connection, latches on epoll, signals, COPY, clients that wait for each other"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["isolation", "regress"]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["async-notify"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        let (server, tester) = (format!("{PROGRAMS}/postgres"), format!("{TESTERS}/regress/pg_regress"));
        place.need(&[(&server, "postgresql-15"), (&tester, "postgresql-15"), ("setpriv", "util-linux")])?;
        launch::may_run(USER, place)?;
        let source = place.debian_source_as_installed("postgresql-15")?;
        place.once("built", || {
            // Functions in C that some of the tests call; the headers for them are made by configuring.
            place.step(&source, "./configure", ["--quiet", "--without-readline", "--without-zlib"])?;
            place.step(&source, "make", ["-s", "-C", "src/backend", "generated-headers"])?;
            place.step(&source, "make", ["-s", "-C", "src/test/regress", "regress.so"])
        })
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let source = place.debian_source_as_installed("postgresql-15")?;
        let work = place.fresh("work")?;
        let text = |path: std::path::PathBuf| path.into_os_string().into_string().ok().context("a path that is text");
        let kind = if part == "regress" { "regress" } else { "isolation" };
        let tests = source.join("src/test").join(kind);
        let mut arguments = vec![
            format!("--inputdir={}", text(tests.clone())?),
            format!("--outputdir={}", text(work.clone())?),
            format!("--temp-instance={}", text(work.join("instance"))?),
            format!("--bindir={PROGRAMS}"),
            format!("--dlpath={}", text(source.join("src/test/regress"))?),
            "--host=127.0.0.1".into(),
            "--max-concurrent-tests=20".into(),
        ];
        let tester = if kind == "regress" { "pg_regress" } else { "pg_isolation_regress" };
        arguments.push(match part {
            "regress" => format!("--schedule={}", text(tests.join("parallel_schedule"))?),
            "isolation" => format!("--schedule={}", text(tests.join("isolation_schedule"))?),
            test => test.to_owned(),
        });
        let program = format!("{TESTERS}/{kind}/{tester}");
        let said = run.run_as(Some(USER), program, arguments, &work, &[], LIMIT)?;
        let mut verdicts = Verdicts::of_lines(&said.text, read);
        verdicts.add(part, said.came_to_its_end());
        Ok(verdicts)
    }
}

/// `test boolean   ... ok   57 ms`, or in a group `     boolean   ... FAILED   57 ms`.
fn read(line: &str) -> Option<(&str, Verdict)> {
    let (name, said) = line.split_once(" ... ")?;
    let verdict = match said.trim_start() {
        it if it.starts_with("ok") => Verdict::Passed,
        it if it.to_ascii_lowercase().starts_with("failed") => Verdict::Failed,
        _ => return None,
    };
    let name = name.trim();
    Some((name.strip_prefix("test ").unwrap_or(name).trim(), verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tester_are_read() {
        assert_eq!(
            read("test deadlock-hard               ... ok          812 ms"),
            Some(("deadlock-hard", Verdict::Passed))
        );
        assert_eq!(read("     xml                          ... FAILED       42 ms"), Some(("xml", Verdict::Failed)));
        assert_eq!(read("parallel group (2 tests):  xml json"), None);
    }
}

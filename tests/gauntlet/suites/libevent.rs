//! libevent's regression tests, with each of its back-ends.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
use anyhow::Result;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// See above.
pub struct Libevent;

impl Suite for Libevent {
    fn name(&self) -> &'static str {
        "libevent"
    }

    fn about(&self) -> &'static str {
        "buffered events, HTTP, signals, fork; over epoll, poll and select"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["epoll", "poll", "select"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        place.need(&[("cmake", "cmake"), ("make", "make")])?;
        let source = place.debian_source("libevent")?;
        place.once("built", || {
            let build = place.fresh("build")?;
            // The tests call functions that the packaged shared library does not export.
            let options = [
                "-DEVENT__LIBRARY_TYPE=STATIC",
                "-DEVENT__DISABLE_OPENSSL=ON",
                "-DEVENT__DISABLE_BENCHMARK=ON",
                "-DEVENT__DISABLE_SAMPLES=ON",
            ];
            let source = source.to_string_lossy();
            place.step(&build, "cmake", ["-DCMAKE_BUILD_TYPE=Release"].into_iter().chain(options).chain([&*source]))?;
            place.step(&build, "make", ["-j2", "regress"])
        })
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let off = |name: &'static str, back_end: &str| (part != back_end).then_some((name, "1"));
        let environment: Vec<(&str, &str)> =
            [off("EVENT_NOEPOLL", "epoll"), off("EVENT_NOPOLL", "poll"), off("EVENT_NOSELECT", "select")]
                .into_iter()
                .flatten()
                .collect();
        // What asks name servers is no business of ours, nor is what judges the machine's speed.
        let arguments = [":util/getaddrinfo_live", ":dns/..", ":util/monotonic_prc_fallback", ":util/monotonic_prc"];
        let program = place.path("build/bin/regress");
        let said = run.run(program, arguments, &place.fresh("work")?, &environment, LIMIT)?;
        let mut verdicts = read(&said.text);
        verdicts.add(part, said.came_to_its_end());
        Ok(verdicts)
    }
}

/// `http/basic: [forking] OK`; what a test says by itself may come between.
fn read(text: &str) -> Verdicts {
    Verdicts::of_lines(text, |line| {
        let (name, rest) = line.split_once(": ")?;
        let verdict = match rest.trim_start_matches("[forking] ").trim_end() {
            "OK" => Verdict::Passed,
            "SKIPPED" | "DISABLED" => Verdict::Skipped,
            it if it.ends_with("FAILED]") || it.ends_with("FAILED") => Verdict::Failed,
            _ => return None,
        };
        (name.contains('/') && !name.contains(' ')).then_some((name, verdict))
    })
}

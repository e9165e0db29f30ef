//! libuv's own tests: level-triggered epoll, poll handles, urgent data, closes in callbacks, descriptors passed by IPC.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::Verdicts;
use anyhow::Result;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

/// See above.
pub struct Libuv;

impl Suite for Libuv {
    fn name(&self) -> &'static str {
        "libuv"
    }

    fn about(&self) -> &'static str {
        "level-triggered epoll, poll handles, urgent data, closes in callbacks, fork, descriptors passed by IPC"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["all"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        place.need(&[("cmake", "cmake"), ("make", "make")])?;
        let source = place.debian_source("libuv1")?;
        place.once("built", || {
            let build = place.fresh("build")?;
            place.step(&build, "cmake", ["-DCMAKE_BUILD_TYPE=Release", source.to_string_lossy().as_ref()])?;
            place.step(&build, "make", ["-j2", "uv_run_tests"])
        })
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let program = place.path("build/uv_run_tests");
        let source = place.debian_source("libuv1")?;
        let said = run.run(program, [""; 0], &source, &[("UV_RUN_AS_ROOT", "1")], LIMIT)?;
        let mut verdicts = Verdicts::of_lines(&said.text, Verdicts::tap);
        verdicts.add(part, said.came_to_its_end());
        Ok(verdicts)
    }
}

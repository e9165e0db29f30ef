//! Redis's own tests in Tcl, of the packaged server.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;
use underpass_tests::stage::find;

const LIMIT: Duration = Duration::from_secs(900);

/// See above.
pub struct Redis;

impl Suite for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn about(&self) -> &'static str {
        "an event loop on epoll, the fork of BGSAVE, replication streams"
    }

    fn parts(&self) -> &'static [&'static str] {
        &[
            "unit/protocol",
            "unit/networking",
            "unit/querybuf",
            "unit/obuf-limits",
            "unit/client-eviction",
            "unit/limits",
            "unit/pubsub",
            "unit/multi",
            "unit/info",
            "unit/introspection",
            "unit/tracking",
            "unit/pause",
            "unit/wait",
            "unit/shutdown",
            "unit/type/string",
            "unit/type/list",
            "unit/type/hash",
            "unit/type/set",
            "unit/type/zset",
            "unit/type/stream",
            "integration/replication",
            "integration/replication-2",
            "integration/replication-3",
            "integration/replication-4",
            "integration/replication-psync",
            "integration/block-repl",
            "integration/redis-cli",
            "integration/redis-benchmark",
            "integration/failover",
        ]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["unit/protocol", "unit/networking", "unit/pubsub", "unit/wait"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        place.need(&[("redis-server", "redis-server"), ("redis-cli", "redis-tools"), ("tclsh", "tcl")])?;
        let source = place.debian_source("redis")?;
        // The tests look for the programs in src/.
        for program in ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"] {
            let link = source.join("src").join(program);
            let _ = fs::remove_file(&link);
            let file = find(program).with_context(|| format!("{program} is not installed"))?;
            symlink(file, &link).with_context(|| format!("make {}", link.display()))?;
        }
        Ok(())
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let source = place.debian_source("redis")?;
        // Named as the tests name their files.
        let arguments = ["tests/test_helper.tcl", "--single", part, "--clients", "1", "--timeout", "300"];
        let said = run.run("tclsh", arguments, &source, &[], LIMIT)?;
        let mut verdicts = Verdicts::of_lines(&said.text, read);
        verdicts.add(part, said.came_to_its_end());
        Ok(verdicts)
    }
}

/// `[ok]: name (12 ms)`, `[err]: name in tests/unit/x.tcl`.
fn read(line: &str) -> Option<(&str, Verdict)> {
    let line = line.trim();
    let (verdict, rest) = [
        ("[ok]: ", Verdict::Passed),
        ("[err]: ", Verdict::Failed),
        ("[exception]: ", Verdict::Failed),
        ("[skip]: ", Verdict::Skipped),
        ("[ignore]: ", Verdict::Skipped),
    ]
    .into_iter()
    .find_map(|(mark, verdict)| Some((verdict, line.strip_prefix(mark)?)))?;
    let name = rest.rsplit_once(" in tests/").map_or(rest, |(name, _)| name);
    let timed = name.rsplit_once(" (").filter(|(_, time)| time.ends_with(" ms)"));
    Some((timed.map_or(name, |(name, _)| name), verdict))
}

//! stress-ng's stressors of sockets and descriptors, which check what they send: abuse of calls, races on close.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::Verdicts;
use anyhow::Result;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// See above.
pub struct StressNg;

impl Suite for StressNg {
    fn name(&self) -> &'static str {
        "stress-ng"
    }

    fn about(&self) -> &'static str {
        "abuse of socket calls, many connections, races on close"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["sock", "sockmany", "epoll", "sockabuse", "sockfd", "sendfile", "splice", "poll", "close", "fd-race"]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["sock", "sockmany", "sockabuse", "sockfd"]
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        place.need(&[("stress-ng", "stress-ng")])
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let stressor = format!("--{part}");
        let arguments = [stressor.as_str(), "2", "--verify", "--timeout", "6", "--temp-path", "."];
        let said = run.run("stress-ng", arguments, &place.fresh("work")?, &[], LIMIT)?;
        let mut verdicts = Verdicts::default();
        verdicts.add(part, said.verdict());
        Ok(verdicts)
    }
}

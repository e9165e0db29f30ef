//! stress-ng's stressors of sockets and descriptors, which check what they send: abuse of calls, races on close.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
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
        &["sock", "sockmany", "epoll", "sockabuse", "sockfd", "sendfile", "splice", "poll", "close", "dup"]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["sock", "close"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        place.need(&[("stress-ng", "stress-ng")])
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let stressor = format!("--{part}");
        let mut arguments = vec![stressor.as_str(), "2", "--verify", "--timeout", "6", "--temp-path", "."];
        if part == "epoll" {
            // Its own choice is Unix's sockets.
            arguments.extend(["--epoll-domain", "ipv4"]);
        }
        let said = run.run("stress-ng", arguments, &place.fresh("work")?, &[], LIMIT)?;
        let mut verdicts = Verdicts::default();
        for verdict in said.text.lines().filter_map(read) {
            verdicts.add(part, verdict);
        }
        verdicts.add("its end", said.verdict());
        Ok(verdicts)
    }
}

/// `stress-ng: info:  [4711] successful run completed in 6.02s`.
fn read(line: &str) -> Option<Verdict> {
    let (_, said) = line.split_once("] ")?;
    match said {
        it if it.starts_with("successful run completed") => Some(Verdict::Passed),
        it if it.starts_with("unsuccessful run completed") => Some(Verdict::Failed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_last_word_is_read() {
        let read = |said| read(&format!("stress-ng: info:  [4711] {said}"));
        assert_eq!(read("successful run completed in 6.02s"), Some(Verdict::Passed));
        assert_eq!(read("unsuccessful run completed in 6.02s"), Some(Verdict::Failed));
        assert_eq!(read("dispatching hogs: 2 sockfd"), None);
    }
}

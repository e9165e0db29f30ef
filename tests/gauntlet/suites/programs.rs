//! Programs that come without tests one can run, doing what they are for; those that `tests/programs` has are left out.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::Verdicts;
use anyhow::Result;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// What all scripts begin with.
const PRELUDE: &str = include_str!("../programs/prelude.sh");

/// A program, its script, and what that needs.
type Program = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const PROGRAMS: &[Program] = &[
    ("rsync", include_str!("../programs/rsync.sh"), &[("rsync", "rsync")]),
    (
        "sshd",
        include_str!("../programs/sshd.sh"),
        &[("/usr/sbin/sshd", "openssh-server"), ("ssh", "openssh-client"), ("curl", "curl")],
    ),
    ("qperf", include_str!("../programs/qperf.sh"), &[("qperf", "qperf")]),
    ("nuttcp", include_str!("../programs/nuttcp.sh"), &[("nuttcp", "nuttcp")]),
    (
        "php-fpm",
        include_str!("../programs/php-fpm.sh"),
        &[("/usr/sbin/php-fpm8.2", "php8.2-fpm"), ("nginx", "nginx-light"), ("curl", "curl")],
    ),
];

/// See above.
pub struct Programs;

impl Suite for Programs {
    fn name(&self) -> &'static str {
        "programs"
    }

    fn about(&self) -> &'static str {
        "programs without tests of their own, doing what they are for"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["rsync", "sshd", "qperf", "nuttcp", "php-fpm"]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["rsync", "php-fpm"]
    }

    fn prepare(&self, place: &Place, parts: &[&str]) -> Result<()> {
        PROGRAMS.iter().filter(|(name, ..)| parts.contains(name)).try_for_each(|(_, _, needs)| place.need(needs))
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let mut verdicts = Verdicts::default();
        for (_, script, _) in PROGRAMS.iter().filter(|(name, ..)| *name == part) {
            let said = run.run("bash", ["-c", &format!("{PRELUDE}{script}")], &place.fresh("work")?, &[], LIMIT)?;
            verdicts = Verdicts::of_lines(&said.text, Verdicts::tap);
            verdicts.add(part, said.verdict());
        }
        Ok(verdicts)
    }
}

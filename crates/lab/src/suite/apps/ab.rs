//! ab, the load generator of the Apache server: requests over connections that are kept, or each over one of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load::{self, NOT_SLOWER, Told};
use super::{field, seconds};
use crate::bench::Lab;
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::Finished;
use crate::suite::arguments;
use crate::unit::{Unit, counted};
use crate::witness::Rule;

/// More requests than are ever made: without a number ab ends after 50,000.
const MOST: u32 = 2_000_000;
/// The clients of the heaviest load.
pub const MOST_CLIENTS: u32 = 200;
/// The file for its percentiles, which it prints in whole milliseconds and writes with three more digits.
const PERCENTILES: &str = "ab.csv";

/// One way of loading an HTTP server.
#[derive(Clone, Debug)]
pub struct Ab {
    /// ab itself.
    pub program: PathBuf,
    /// Requests at a time.
    pub clients: u32,
    /// Whether connections are kept.
    pub keep_alive: bool,
    /// Bytes of each answer, without its header.
    pub length: usize,
}

impl Ab {
    /// Every way of loading a server whose answers have `length` bytes: a connection for each request and kept
    /// connections, by one client, a few and many.
    pub fn every_way(program: &Path, length: usize) -> Vec<Ab> {
        let with = |keep_alive| move |clients| Ab { program: program.into(), clients, keep_alive, length };
        [false, true].into_iter().flat_map(|keep_alive| [1, 8, MOST_CLIENTS].map(with(keep_alive))).collect()
    }

    /// What loading `server` yields.
    pub fn plans(&self, group: &str, server: &str) -> Vec<Plan> {
        let keep_alive = if self.keep_alive { " keep-alive" } else { "" };
        let name = format!("{server} ab{keep_alive}, {}", counted(self.clients, "client"));
        let rate = Plan::rate(group, name, Unit::PerSecond).target(NOT_SLOWER);
        let rate = match self.keep_alive {
            true => rate,
            false => rate.note("a connection for each request; such connections stay on the kernel path, by design"),
        };
        load::plans(rate, "request", true)
    }

    /// The command for one sample, whose files lie in `folder`.
    pub fn command(&self, lab: &Lab, session: &Session, folder: &Path, url: &str) -> Command {
        let mut command = session.command(&self.program);
        command.args(arguments!["-q", "-t", self.seconds(lab), "-n", MOST, "-c", self.clients, "-e"]);
        command.arg(folder.join(PERCENTILES)).args(self.keep_alive.then_some("-k")).arg(url);
        command
    }

    /// Many kept connections take a good part of a second until all are fast. In the usual time that would be more of
    /// their bytes than [`Rule::Bytes`] allows.
    fn seconds(&self, lab: &Lab) -> u32 {
        if self.keep_alive && self.clients == MOST_CLIENTS { 3 * seconds(lab) } else { seconds(lab) }
    }

    /// What a sample yielded.
    ///
    /// # Errors
    /// A request failed, or ab printed something else than it should.
    pub fn readings(&self, session: &Session, folder: &Path, ab: &Finished, time: Duration) -> Result<Vec<Reading>> {
        let percentiles = fs::read_to_string(folder.join(PERCENTILES)).context("reading ab's percentiles")?;
        let told = told(&ab.stdout, &percentiles, self.length)?;
        let rule = if self.keep_alive { Rule::Bytes } else { Rule::Loaded };
        Ok(told.readings(session, ab.pid, rule, time))
    }
}

/// What ab printed and wrote, if every request was answered with `length` bytes.
fn told(output: &str, percentiles: &str, length: usize) -> Result<Told> {
    if let Some(others) = field(output, "Non-2xx responses:") {
        anyhow::bail!("ab met {others} responses that were not 2xx");
    }
    let number = |name: &str| -> Result<f64> {
        let value = field(output, name).and_then(|value| value.split_whitespace().next()?.parse().ok());
        value.with_context(|| format!("no {name} in what ab printed: {output:?}"))
    };
    let (failed, found) = (number("Failed requests:")?, number("Document Length:")?);
    ensure!(failed == 0.0, "{failed} of ab's requests failed");
    ensure!(found == length as f64, "the server answered with {found} bytes instead of {length}");
    let p99 = field(percentiles, "99,").and_then(|value| value.parse::<f64>().ok());
    let p99 = p99.with_context(|| format!("no 99th percentile in what ab wrote: {percentiles:?}"))?;
    let (count, per_second) = (number("Complete requests:")?, number("Requests per second:")?);
    Ok(Told { count, per_second, p99_ns: Some(p99 * 1e6) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Server Software:        nginx/1.22.1\nServer Hostname:        127.0.0.1\nServer \
        Port:            8181\n\nDocument Path:          /file\nDocument Length:        1024 bytes\n\nConcurrency \
        Level:      8\n\
        Time taken for tests:   2.000 seconds\nComplete requests:      25480\nFailed requests:        0\n\
        Total transferred:      32105\nRequests per second:    12739.87 [#/sec] (mean)\n\
        Time per request:       0.628 [ms] (mean)\n  99%      1\n";
    const PERCENTILES: &str = "Percentage served,Time in ms\n0,0.114\n98,1.083\n99,1.254\n";

    #[test]
    fn ab_is_understood() {
        let expected = Told { count: 25480.0, per_second: 12739.87, p99_ns: Some(1.254e6) };
        assert_eq!(told(OUTPUT, PERCENTILES, 1024).unwrap(), expected);
        assert!(told("apr_socket_recv: Connection refused (111)\n", PERCENTILES, 1024).is_err());
        assert!(told(OUTPUT, "Percentage served,Time in ms\n", 1024).is_err());
    }

    #[test]
    fn failed_requests_are_no_figure() {
        for (from, to, complaint) in [
            ("Failed requests:        0", "Failed requests:        7", "7 of ab's requests failed"),
            ("Document Length:        1024", "Document Length:        150", "150 bytes instead of 1024"),
            ("Total transferred:", "Non-2xx responses:      25480\nTotal transferred:", "25480 responses"),
        ] {
            let error = told(&OUTPUT.replace(from, to), PERCENTILES, 1024).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}

//! Redis with redis-benchmark: GET and SET.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::computing::Computing;
use super::load;
use super::{all_installed, folder, version};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Running, free_port};
use crate::record::Skipped;
use crate::unit::{Unit, counted};
use crate::witness::Rule;

const GROUP: &str = "Redis";
const TESTS: [&str; 2] = ["GET", "SET"];

/// Names the experiment.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match all_installed("Redis", ["redis-server", "redis-benchmark"], "redis-server redis-tools") {
        Ok([server, benchmark]) => {
            chosen.versions.extend(version(&server, "--version"));
            for load in LOADS {
                chosen.add("apps", Redis { server: server.clone(), benchmark: benchmark.clone(), load });
            }
        }
        Err(skipped) => missing.push(skipped),
    }
}

/// One way of loading the server.
#[derive(Clone, Copy, Debug)]
struct Load {
    clients: u32,
    pipeline: u32,
    /// Beside programs that compute without end, one for each processor.
    beside_others: bool,
    /// Requests of each kind per sample: about a second or two on kernel TCP.
    requests: u64,
    target: Option<f64>,
}

const LOADS: [Load; 4] = [
    Load { clients: 1, pipeline: 1, beside_others: false, requests: 30_000, target: Some(8.0) },
    Load { clients: 50, pipeline: 1, beside_others: false, requests: 150_000, target: Some(3.0) },
    Load { clients: 50, pipeline: 32, beside_others: false, requests: 2_000_000, target: Some(1.3) },
    Load { clients: 1, pipeline: 1, beside_others: true, requests: 20_000, target: None },
];

#[derive(Debug)]
struct Redis {
    server: PathBuf,
    benchmark: PathBuf,
    load: Load,
}

impl Experiment for Redis {
    fn plans(&self) -> Vec<Plan> {
        let target = self.load.target;
        let rates = TESTS.map(|test| {
            let plan = Plan::rate(GROUP, self.name(test), Unit::PerSecond);
            match target {
                Some(times) => plan.target(Target::TimesBetter(times)),
                None => plan,
            }
        });
        let processor = load::processor_time(GROUP, &self.name("GET and SET"), "request");
        let p99 = TESTS.map(|test| load::p99(GROUP, &self.name(test)));
        rates.into_iter().chain([processor]).chain(p99).collect()
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (folder, port) = (folder()?, free_port()?);
        let port_text = port.to_string();
        let mut command = session.command(&self.server);
        command.args(["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no", "--dir"]);
        let server = Running::serving(command.arg(folder.path()), port, Signal::TERM)?;

        let _others = self.load.beside_others.then(Computing::begin).transpose()?;
        let requests = lab.count(self.load.requests);
        let mut command = session.command(&self.benchmark);
        command.args(["-h", "127.0.0.1", "-p", &port_text, "-t", "set,get", "--csv", "-n"]).arg(requests.to_string());
        command.args(["-c", &self.load.clients.to_string(), "-P", &self.load.pipeline.to_string()]);
        let (benchmark, time) = load::drive(&mut command, &[&server])?;
        let done = commands_processed(port).context("asking Redis what it did")?;
        ensure!(done >= 2 * requests, "Redis processed {done} commands where {} were sent", 2 * requests);

        let [get, set] = TESTS.map(|test| result(&benchmark.stdout, test));
        let ([get, get_p99], [set, set_p99]) = (get?, set?);
        let each = time.as_nanos() as f64 / (2 * requests) as f64;
        let figures = [get, set, each, get_p99 * 1e6, set_p99 * 1e6];
        Ok(figures.map(|figure| session.proven(benchmark.pid, Rule::Bytes, figure)).to_vec())
    }
}

impl Redis {
    fn name(&self, test: &str) -> String {
        let Load { clients, pipeline, beside_others, .. } = self.load;
        let clients = counted(clients, "client");
        let pipeline = if pipeline == 1 { String::new() } else { format!(", pipeline {pipeline}") };
        let beside = if beside_others { ", processors busy" } else { "" };
        format!("Redis {test}, {clients}{pipeline}{beside}")
    }
}

/// `rps` and `p99_latency_ms` of one test in what redis-benchmark prints as CSV.
pub fn result(csv: &str, test: &str) -> Result<[f64; 2]> {
    let fields = |line: &str| line.split(',').map(|field| field.trim_matches('"').to_string()).collect::<Vec<_>>();
    let titles = csv.lines().next().map(fields).unwrap_or_default();
    let line = csv.lines().map(fields).find(|line| line.first().is_some_and(|first| first == test));
    let value = |title: &str| {
        let column = titles.iter().position(|other| other == title)?;
        line.as_ref()?.get(column)?.parse().ok()
    };
    let both = value("rps").zip(value("p99_latency_ms")).map(|(rps, p99)| [rps, p99]);
    both.with_context(|| format!("no {test} in what redis-benchmark printed: {csv:?}"))
}

/// Asks the server itself, on a connection of our own.
fn commands_processed(port: u16) -> Result<u64> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    connection.write_all(b"INFO stats\r\nQUIT\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let field = answer.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    field.and_then(|value| value.trim().parse().ok()).context("INFO lacks total_commands_processed")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                       \"p99_latency_ms\",\"max_latency_ms\"\n\
                       \"SET\",\"15503.88\",\"0.061\",\"0.008\",\"0.063\",\"0.103\",\"0.143\",\"1.455\"\n\
                       \"GET\",\"13717.42\",\"0.070\",\"0.024\",\"0.071\",\"0.095\",\"0.127\",\"2.727\"\n";

    #[test]
    fn redis_benchmark_is_understood() {
        assert_eq!(result(CSV, "GET").unwrap(), [13717.42, 0.127]);
        assert_eq!(result(CSV, "SET").unwrap(), [15503.88, 0.143]);
        assert!(result(CSV, "LPUSH").is_err());
        assert!(result("ERR max number of clients reached", "GET").is_err());
    }
}

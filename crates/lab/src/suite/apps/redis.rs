//! Redis with redis-benchmark: GET and SET.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{all_installed, folder, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Running, finish, free_port};
use crate::record::Skipped;
use crate::unit::{Unit, counted};
use crate::witness::Rule;

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
    /// Beside threads that compute without end, one for each processor.
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
        let Load { clients, pipeline, beside_others, target, .. } = self.load;
        let clients = counted(clients, "client");
        let pipeline = if pipeline == 1 { String::new() } else { format!(", pipeline {pipeline}") };
        let beside = if beside_others { ", processors busy" } else { "" };
        ["GET", "SET"]
            .map(|test| {
                let plan = Plan::rate("Redis", format!("Redis {test}, {clients}{pipeline}{beside}"), Unit::PerSecond);
                match target {
                    Some(times) => plan.target(Target::TimesBetter(times)),
                    None => plan,
                }
            })
            .to_vec()
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (folder, port) = (folder()?, free_port()?);
        let port_text = port.to_string();
        let mut command = session.command(&self.server);
        command.args(["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no", "--dir"]);
        let _server = Running::serving(command.arg(folder.path()), port, Signal::TERM)?;

        let _others = self.load.beside_others.then(Computing::begin);
        let requests = lab.count(self.load.requests);
        let mut command = session.command(&self.benchmark);
        command.args(["-h", "127.0.0.1", "-p", &port_text, "-t", "set,get", "--csv", "-n"]).arg(requests.to_string());
        command.args(["-c", &self.load.clients.to_string(), "-P", &self.load.pipeline.to_string()]);
        let benchmark = finish(&mut command, LIMIT)?;
        let done = commands_processed(port).context("asking Redis what it did")?;
        ensure!(done >= 2 * requests, "Redis processed {done} commands where {} were sent", 2 * requests);
        ["GET", "SET"]
            .map(|test| Ok(session.proven(benchmark.pid, Rule::Bytes, requests_per_second(&benchmark.stdout, test)?)))
            .into_iter()
            .collect()
    }
}

/// Threads that compute, one for each processor, until this is dropped.
#[derive(Debug)]
struct Computing {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Computing {
    fn begin() -> Computing {
        let over = Arc::new(AtomicBool::new(false));
        let compute = || {
            let over = Arc::clone(&over);
            thread::spawn(move || while !over.load(Relaxed) {})
        };
        let threads = (0..thread::available_parallelism().map_or(1, NonZero::get)).map(|_| compute()).collect();
        Computing { over, threads }
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The `rps` of one test in what redis-benchmark prints as CSV.
fn requests_per_second(csv: &str, test: &str) -> Result<f64> {
    let wanted = format!("\"{test}\"");
    let line = csv.lines().find(|line| line.split(',').next() == Some(&wanted));
    let value = line.and_then(|line| line.split(',').nth(1)).and_then(|value| value.trim_matches('"').parse().ok());
    value.with_context(|| format!("no {test} in what redis-benchmark printed: {csv:?}"))
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
        assert_eq!(requests_per_second(CSV, "GET").unwrap(), 13717.42);
        assert_eq!(requests_per_second(CSV, "SET").unwrap(), 15503.88);
        assert!(requests_per_second(CSV, "LPUSH").is_err());
        assert!(requests_per_second("ERR max number of clients reached", "GET").is_err());
    }
}

//! iperf3 with its writes and reads of one size: a stream in one direction, of which each end waits by select.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde::Deserialize;

use super::load::{self, NOT_SLOWER, Told};
use super::{all_installed, seconds, version};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::{Running, free_port};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::{self, Unit};
use crate::witness::Rule;

const NAME: &str = "iperf3";
/// Bytes of a write; the last is what iperf3 takes by itself.
const SIZES: [u64; 4] = [64, 1024, 8192, 131_072];

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match all_installed(NAME, ["iperf3"], "iperf3") {
        Ok([program]) => {
            chosen.versions.extend(version(&program, "--version"));
            SIZES.into_iter().for_each(|size| chosen.add("apps", Iperf3 { program: program.clone(), size }));
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Iperf3 {
    program: PathBuf,
    size: u64,
}

/// What is read of a client's JSON.
#[derive(Deserialize)]
struct Report {
    end: End,
}

#[derive(Deserialize)]
struct End {
    sum_received: Sum,
}

#[derive(Deserialize)]
struct Sum {
    bytes: u64,
    bits_per_second: f64,
}

impl Experiment for Iperf3 {
    fn plans(&self) -> Vec<Plan> {
        let rate = Plan::rate(NAME, format!("iperf3, {} writes", unit::size(self.size)), Unit::BytesPerSecond);
        let rate = rate.of_size(self.size).target(NOT_SLOWER);
        load::plans(rate, "write", false).into_iter().map(|plan| plan.of_size(self.size)).collect()
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let port = free_port()?;
        let mut command = session.command(&self.program);
        // It serves clients one after another, and takes no harm from a client that comes and goes to see that it
        // listens.
        command.args(arguments!["--server", "--bind", "127.0.0.1", "--port", port]);
        let server = Running::serving(&mut command, port, Signal::TERM)?;
        let mut command = session.command(&self.program);
        command.args(arguments!["--client", "127.0.0.1", "--port", port, "--json", "--length", self.size]);
        command.args(arguments!["--time", seconds(lab)]);
        let (client, time) = load::drive(&mut command, &[&server])?;
        let report: Report =
            serde_json::from_str(&client.stdout).context("iperf3 printed something else than its JSON")?;
        let Sum { bytes, bits_per_second } = report.end.sum_received;
        let told = Told { count: bytes as f64 / self.size as f64, per_second: bits_per_second / 8.0, p99_ns: None };
        Ok(told.readings(session, client.pid, Rule::Bytes, time))
    }
}

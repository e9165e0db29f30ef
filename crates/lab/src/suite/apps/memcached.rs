//! memcached with a client of our own in plain C, since none is commonly installed: nine gets to one set.

use std::path::PathBuf;

use anyhow::Result;
use rustix::process::{Signal, geteuid};
use serde::Deserialize;

use super::{all_installed, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Running, finish, free_port};
use crate::programs::Program;
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::{Unit, counted};
use crate::witness::Rule;

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match all_installed("memcached", ["memcached"], "memcached") {
        Ok([server]) => {
            chosen.versions.extend(version(&server, "--version"));
            for clients in [1, 50] {
                chosen.add("apps", Memcached { server: server.clone(), clients });
            }
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Memcached {
    server: PathBuf,
    clients: u32,
}

#[derive(Debug, Deserialize)]
struct Rate {
    per_second: f64,
}

impl Experiment for Memcached {
    fn plans(&self) -> Vec<Plan> {
        let plan = Plan::rate(
            "memcached",
            format!("memcached get and set, {}", counted(self.clients, "client")),
            Unit::PerSecond,
        );
        vec![plan.target(Target::TimesBetter(2.5))]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let port = free_port()?;
        let mut command = session.command(&self.server);
        command.args(arguments!["-l", "127.0.0.1", "-p", port, "-U", 0]);
        if geteuid().is_root() {
            command.args(["-u", "root"]); // else it drops to another user, and users do not share memory
        }
        let _server = Running::serving(&mut command, port, Signal::TERM)?;
        let mut command = lab.command(session, Program::MEMLOAD)?;
        command.args(arguments!["--port", port, "--count", self.clients, "--seconds", lab.clock() * 2.0]);
        let client = finish(&mut command, LIMIT)?;
        let rate: Rate = client.json()?;
        Ok(vec![session.proven(client.pid, Rule::Bytes, rate.per_second)])
    }
}

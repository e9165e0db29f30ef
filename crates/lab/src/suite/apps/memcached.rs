//! memcached with a client of our own in plain C, since none is commonly installed: nine gets to one set.

use std::path::PathBuf;

use anyhow::Result;
use rustix::process::{Signal, geteuid};

use super::load::{self, Told};
use super::{all_installed, version};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Running, free_port};
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

impl Experiment for Memcached {
    fn plans(&self) -> Vec<Plan> {
        let plan = Plan::rate(
            "memcached",
            format!("memcached get and set, {}", counted(self.clients, "client")),
            Unit::PerSecond,
        );
        load::plans(plan.target(Target::TimesBetter(2.5)), "request", false)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let port = free_port()?;
        let mut command = session.command(&self.server);
        command.args(arguments!["-l", "127.0.0.1", "-p", port, "-U", 0]);
        if geteuid().is_root() {
            command.args(["-u", "root"]); // else it drops to another user, and users do not share memory
        }
        let server = Running::serving(&mut command, port, Signal::TERM)?;
        let mut command = lab.command(session, Program::MEMLOAD)?;
        command.args(arguments!["--port", port, "--count", self.clients, "--seconds", lab.clock() * 2.0]);
        let (client, time) = load::drive(&mut command, &[&server])?;
        let told: Told = client.json()?;
        Ok(told.readings(session, client.pid, Rule::Bytes, time))
    }
}

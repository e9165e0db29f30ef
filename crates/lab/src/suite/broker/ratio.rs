//! The speed of connections between two users against the speed of connections of one user, measured by turns.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use rustix::process::Signal;
use serde::Deserialize;

use super::household::{Ends, Household};
use super::{BETWEEN_USERS, Comparisons, House};
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::process::{Running, finish, free_port};
use crate::programs::Program;
use crate::record::Skipped;
use crate::suite::apps::{all_installed, nginx, redis, seconds};
use crate::suite::arguments;
use crate::unit::{self, Unit};
use crate::witness::{Rule, User};

/// Name of the baseline.
const ONE_USER: &str = "one user";
/// Between two users not below this share.
const SHARE: f64 = 0.95;

/// Names the experiments.
pub fn add(lab: &Lab, house: &House, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    add_comparisons(lab, house, chosen, &Comparisons { round_trips: vec![1, 1024], streams: vec![4096, 65536] });
    let mut add = |load| chosen.add("broker", Ratio { load, house: house.clone() });
    match all_installed("Redis between users", ["redis-server", "redis-benchmark"], "redis-server redis-tools") {
        Ok([server, benchmark]) => add(Load::Redis { server, benchmark }),
        Err(skipped) => missing.push(skipped),
    }
    match all_installed("nginx between users", ["nginx", "wrk"], "nginx-light wrk") {
        Ok([server, wrk]) => add(Load::Nginx { server, wrk }),
        Err(skipped) => missing.push(skipped),
    }
}

/// Names those of messages of these sizes.
pub fn add_comparisons(lab: &Lab, house: &House, chosen: &mut Chosen, sizes: &Comparisons) {
    if lab.processors.is_some() {
        let round_trips = sizes.round_trips.iter().map(|size| Load::PingPong { size: *size });
        let streams = sizes.streams.iter().map(|size| Load::Stream { size: *size });
        round_trips.chain(streams).for_each(|load| chosen.add("broker", Ratio { load, house: house.clone() }));
    }
}

#[derive(Clone, Debug)]
enum Load {
    PingPong { size: u64 },
    Stream { size: u64 },
    Redis { server: PathBuf, benchmark: PathBuf },
    Nginx { server: PathBuf, wrk: PathBuf },
}

#[derive(Debug)]
struct Ratio {
    load: Load,
    house: House,
}

#[derive(Debug, Deserialize)]
struct Durations {
    p50_ns: f64,
}

#[derive(Debug, Deserialize)]
struct Throughput {
    bytes_per_second: f64,
}

impl Experiment for Ratio {
    fn plans(&self) -> Vec<Plan> {
        let rate = |name: String, unit| Plan::rate(BETWEEN_USERS, name, unit).target(Target::ShareOfBaseline(SHARE));
        vec![match &self.load {
            Load::PingPong { size } => {
                let name = format!("two users: blocking, {}", unit::size(*size));
                Plan::duration(BETWEEN_USERS, name).of_size(*size).target(Target::WithinBaseline(1.05))
            }
            Load::Stream { size } => {
                rate(format!("two users: {} writes", unit::size(*size)), Unit::BytesPerSecond).of_size(*size)
            }
            Load::Redis { .. } => rate("two users: Redis GET, 50 clients".into(), Unit::PerSecond),
            Load::Nginx { .. } => rate("two users: nginx 1 KiB keep-alive".into(), Unit::PerSecond)
                .note("nginx started by root, with a worker of another user than wrk's"),
        }]
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        self.house.get(lab).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        Ok(vec![self.run(lab, session.side(), Ends::TwoUsers)?])
    }

    fn baseline(&mut self, lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        let reading = self.run(lab, Side::Underpass, Ends::OneUser)?;
        Ok(Some((ONE_USER, reading.map_err(|why| anyhow!(why))?)))
    }
}

impl Ratio {
    fn run(&self, lab: &Lab, side: Side, ends: Ends) -> Result<Reading> {
        let house = self.house.get(lab)?;
        let session = house.session(side)?;
        let helper = |program, arguments: &[String]| {
            house.converse(house.helpers(lab, &session, program, ends)?.each_mut(), arguments, lab.processors)
        };
        match &self.load {
            Load::PingPong { size } => {
                let arguments = arguments!["--size", size, "--warm-up", 1000, "--seconds", lab.clock()];
                let client = helper(Program::PINGPONG, &arguments)?;
                let durations: Durations = client.json()?;
                Ok(session.proven(client.pid, Rule::Bytes, durations.p50_ns))
            }
            Load::Stream { size } => {
                let arguments = arguments!["--size", size, "--seconds", lab.clock()];
                let client = helper(Program::STREAM, &arguments)?;
                let throughput: Throughput = client.json()?;
                Ok(session.proven(client.pid, Rule::Bytes, throughput.bytes_per_second))
            }
            Load::Redis { server, benchmark } => {
                let (port, [of_server, of_client]) = (free_port()?.to_string(), house.users(ends));
                let mut command = house.command(&session, server, of_server);
                command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"]);
                let _server = Running::serving(&mut command, port.parse()?, Signal::TERM)?;
                let mut command = house.command(&session, benchmark, of_client);
                command.args(["-h", "127.0.0.1", "-p", &port, "-t", "get", "--csv", "-c", "50", "-n"]);
                let client = finish(command.arg(lab.count(300_000).to_string()), LIMIT)?;
                let [rate, _] = redis::result(&client.stdout, "GET")?;
                Ok(session.proven(client.pid, Rule::Bytes, rate))
            }
            Load::Nginx { server, wrk } => nginx_with_wrk(lab, house, &session, [server, wrk], ends),
        }
    }
}

fn nginx_with_wrk(
    lab: &Lab,
    house: &Household,
    session: &Session,
    [server, wrk]: [&PathBuf; 2],
    ends: Ends,
) -> Result<Reading> {
    let folder = tempfile::Builder::new().prefix("nginx-").tempdir_in(house.path())?;
    let [of_server, of_client] = house.users(ends);
    fs::create_dir(folder.path().join("html"))?;
    fs::write(folder.path().join("html/file"), [b'u'; 1024])?;
    std::os::unix::fs::chown(folder.path(), Some(of_server.id), Some(of_server.group))?;
    // Where both ends are of one user, nginx is this user's from the start. Otherwise it is root's and becomes another
    // one's.
    let root = User { id: 0, group: 0 };
    let starts = if ends == Ends::TwoUsers { root } else { of_server };
    let directive =
        if ends == Ends::TwoUsers { format!("user {} {};", nginx::ACCOUNT, house.group()) } else { String::new() };
    let what = format!("root {}/html;", folder.path().display());
    let command = house.command(session, server, starts);
    let (_server, port) = nginx::serve_by(command, folder.path(), 1, &directive, &what)?;
    let mut command = house.command(session, wrk, of_client);
    command.args(["-t1", "-c16", "--latency"]).arg(format!("-d{}s", seconds(lab)));
    let client = finish(command.arg(format!("http://127.0.0.1:{port}/file")), LIMIT)?;
    let told = nginx::told(&client.stdout)?;
    Ok(session.proven(client.pid, Rule::Bytes, told.per_second))
}

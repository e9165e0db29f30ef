//! PostgreSQL with pgbench: its select-only transactions, one process per connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::home::{Home, other_than_root};
use super::load::{self, NOT_SLOWER, Told};
use super::{Shared, field, installed, seconds, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab, skipped};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Running, finish, free_port};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::{Unit, counted};
use crate::witness::{Rule, User};

const NAME: &str = "PostgreSQL";
/// Where Debian keeps each version's programs.
const VERSIONS: &str = "/usr/lib/postgresql";
const ACCOUNT: &str = "postgres";

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let Some(programs) = programs() else {
        return missing.push(skipped(NAME, "initdb is not installed (Debian: apt-get install postgresql)"));
    };
    let user = match other_than_root(ACCOUNT) {
        Ok(user) => user,
        Err(error) => return missing.push(skipped(NAME, format!("{error:#}"))),
    };
    chosen.versions.extend(version(&programs.join("postgres"), "--version"));
    let cluster = Shared::default();
    for clients in [1, 8, 48, 200] {
        chosen.add("apps", PostgreSql { programs: programs.clone(), user, clients, cluster: cluster.clone() });
    }
}

/// The folder of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let newest = numbered.max().map(|(_, path)| path.join("bin")).filter(|bin| bin.join("initdb").is_file());
    newest.or_else(|| installed("initdb")?.parent().map(Path::to_path_buf))
}

#[derive(Debug)]
struct PostgreSql {
    programs: PathBuf,
    user: Option<User>,
    clients: u32,
    /// The cluster's folder, filled once.
    cluster: Shared<Home>,
}

impl Experiment for PostgreSql {
    fn plans(&self) -> Vec<Plan> {
        let name = format!("PostgreSQL pgbench -S, {}", counted(self.clients, "client"));
        let target = if self.clients == 1 { Target::TimesBetter(1.5) } else { NOT_SLOWER };
        load::plans(Plan::rate(NAME, name, Unit::PerSecond).target(target), "transaction", false)
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        self.cluster.get_or_make(|| self.fill(lab)).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let home = self.cluster.get_or_make(|| self.fill(lab))?;
        let session = home.session(session.side())?;
        let (server, port) = self.serve(session.command(self.programs.join("postgres")), home)?;
        let mut command = session.command(self.programs.join("pgbench"));
        command.args(arguments!["-S", "-n", "-c", self.clients, "-j", self.clients.min(2), "-T", seconds(lab)]);
        command.args(arguments!["-h", "127.0.0.1", "-p", port, "-U", ACCOUNT, "postgres"]);
        let (pgbench, time) = load::drive(home.owned(&mut command), &[&server])?;
        Ok(told(&pgbench.stdout)?.readings(&session, pgbench.pid, Rule::Bytes, time))
    }
}

impl PostgreSql {
    fn fill(&self, lab: &Lab) -> Result<Home> {
        let home = Home::of(self.user, lab)?;
        let mut initdb = Command::new(self.programs.join("initdb"));
        initdb.arg("-D").arg(home.path().join("data")).args(["-U", ACCOUNT, "-A", "trust", "--no-sync"]);
        finish(home.owned(&mut initdb), LIMIT)?;
        let (_server, port) = self.serve(Command::new(self.programs.join("postgres")), &home)?;
        let mut fill = Command::new(self.programs.join("pgbench"));
        fill.args(arguments!["-i", "-q", "-s", 1, "-h", "127.0.0.1", "-p", port, "-U", ACCOUNT, "postgres"]);
        finish(home.owned(&mut fill), LIMIT).context("filling the tables")?;
        Ok(home)
    }

    fn serve(&self, mut postgres: Command, home: &Home) -> Result<(Running, u16)> {
        let port = free_port()?;
        postgres.arg("-D").arg(home.path().join("data")).args(arguments!["-p", port]);
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=250"] {
            postgres.args(["-c", setting]);
        }
        // SIGINT is its fast shutdown: it ends the sessions and then itself.
        let mut server = Running::serving(home.owned(&mut postgres), port, Signal::INT)?;
        // It listens before it answers.
        server.wait_until(|| {
            let mut ready = Command::new(self.programs.join("pg_isready"));
            ready.args(arguments!["-q", "-h", "127.0.0.1", "-p", port]);
            finish(home.owned(&mut ready), Duration::from_secs(5)).is_ok()
        })?;
        Ok((server, port))
    }
}

/// What pgbench prints, if no transaction failed.
fn told(output: &str) -> Result<Told> {
    if let Some(failed) = field(output, "number of failed transactions:")
        && !failed.starts_with("0 ")
    {
        bail!("transactions failed: {failed}");
    }
    let number = |name: &str| -> Result<f64> {
        let value = field(output, name).and_then(|value| value.split_whitespace().next()?.parse().ok());
        value.with_context(|| format!("no {name} in what pgbench printed: {output:?}"))
    };
    let (count, per_second) = (number("number of transactions actually processed:")?, number("tps =")?);
    Ok(Told { count, per_second, p99_ns: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "pgbench (15.20 (Debian 15.20-0+deb12u1))\ntransaction type: <builtin: select only>\n\
        scaling factor: 1\nquery mode: simple\nnumber of clients: 1\nnumber of threads: 1\nmaximum number of tries: 1\n\
        duration: 1 s\nnumber of transactions actually processed: 9714\nnumber of failed transactions: 0 (0.000%)\n\
        latency average = 0.103 ms\ninitial connection time = 2.711 ms\ntps = 9739.115243 (without initial connection \
        time)\n";

    #[test]
    fn pgbench_is_understood() {
        let expected = Told { count: 9714.0, per_second: 9739.115243, p99_ns: None };
        assert_eq!(told(OUTPUT).unwrap(), expected);
        assert!(told("pgbench: error: connection refused\n").is_err());
    }

    #[test]
    fn failed_transactions_are_no_figure() {
        let output = OUTPUT.replace("failed transactions: 0 (0.000%)", "failed transactions: 3 (0.031%)");
        assert!(told(&output).unwrap_err().to_string().contains("3 (0.031%)"));
    }
}

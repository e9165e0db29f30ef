//! PostgreSQL with pgbench: its select-only transactions, one process per connection.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use super::{field, folder, installed, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab, skipped};
use crate::launcher::{Launcher, Reading, Session};
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
    let user = match account() {
        Ok(user) => user,
        Err(error) => return missing.push(skipped(NAME, format!("{error:#}"))),
    };
    chosen.versions.extend(version(&programs.join("postgres"), "--version"));
    for clients in [1, 8] {
        chosen.add("apps", PostgreSql { programs: programs.clone(), user, clients, cluster: None });
    }
}

/// The folder of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let newest = numbered.max().map(|(_, path)| path.join("bin")).filter(|bin| bin.join("initdb").is_file());
    newest.or_else(|| installed("initdb")?.parent().map(Path::to_path_buf))
}

/// PostgreSQL refuses to run as root, so root runs it as the account that its package made.
fn account() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let number = |option: &str| -> Result<u32> {
        let id = finish(Command::new("id").args([option, ACCOUNT]), LIMIT);
        let id = id.with_context(|| format!("PostgreSQL refuses to run as root, and there is no user {ACCOUNT}"))?;
        Ok(id.stdout.trim().parse()?)
    };
    Ok(Some(User { id: number("-u")?, group: number("-g")? }))
}

#[derive(Debug)]
struct PostgreSql {
    programs: PathBuf,
    user: Option<User>,
    clients: u32,
    cluster: Option<Cluster>,
}

/// A data folder, filled once, and a launcher whose library its user can read.
#[derive(Debug)]
struct Cluster {
    folder: TempDir,
    launcher: Launcher,
}

impl Experiment for PostgreSql {
    fn plans(&self) -> Vec<Plan> {
        let plan =
            Plan::rate(NAME, format!("PostgreSQL pgbench -S, {}", counted(self.clients, "client")), Unit::PerSecond);
        vec![if self.clients == 1 { plan.target(Target::TimesBetter(1.5)) } else { plan }]
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        let folder = folder()?;
        let library = folder.path().join("libunderpass.so");
        fs::copy(lab.launcher.library(), &library).context("copying the library for PostgreSQL's user")?;
        if let Some(User { id, group }) = self.user {
            chown(folder.path(), Some(id), Some(group))?;
        }
        let mut initdb = Command::new(self.programs.join("initdb"));
        initdb.arg("-D").arg(folder.path().join("data")).args(["-U", ACCOUNT, "-A", "trust", "--no-sync"]);
        finish(self.owned(&mut initdb, folder.path()), LIMIT)?;

        let (mut server, port) = self.serve(Command::new(self.programs.join("postgres")), folder.path())?;
        self.await_ready(&mut server, folder.path(), port)?;
        let mut fill = Command::new(self.programs.join("pgbench"));
        fill.args(arguments!["-i", "-q", "-s", 1, "-h", "127.0.0.1", "-p", port, "-U", ACCOUNT, "postgres"]);
        finish(self.owned(&mut fill, folder.path()), LIMIT).context("filling the tables")?;
        self.cluster = Some(Cluster { launcher: lab.launcher.with_library(library), folder });
        Ok(())
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let cluster = self.cluster.as_ref().context("the cluster was not prepared")?;
        let folder = cluster.folder.path();
        let session = cluster.launcher.session_of(session.side(), self.user)?;
        let (mut server, port) = self.serve(session.command(self.programs.join("postgres")), folder)?;
        self.await_ready(&mut server, folder, port)?;

        let mut pgbench = session.command(self.programs.join("pgbench"));
        let seconds = if lab.quick { 1 } else { 2 };
        pgbench.args(arguments!["-S", "-n", "-c", self.clients, "-j", self.clients.min(2), "-T", seconds]);
        pgbench.args(arguments!["-h", "127.0.0.1", "-p", port, "-U", ACCOUNT, "postgres"]);
        let pgbench = finish(self.owned(&mut pgbench, folder), LIMIT)?;
        Ok(vec![session.proven(pgbench.pid, Rule::Bytes, transactions_per_second(&pgbench.stdout)?)])
    }
}

impl PostgreSql {
    /// `command` as the cluster's user, in the cluster's folder.
    fn owned<'a>(&self, command: &'a mut Command, folder: &Path) -> &'a mut Command {
        if let Some(User { id, group }) = self.user {
            command.uid(id).gid(group);
        }
        command.current_dir(folder)
    }

    fn serve(&self, mut postgres: Command, folder: &Path) -> Result<(Running, u16)> {
        let port = free_port()?;
        postgres.arg("-D").arg(folder.join("data")).args(arguments!["-p", port, "-c", "listen_addresses=127.0.0.1"]);
        postgres.args(["-c", "unix_socket_directories=", "-c", "fsync=off"]);
        // SIGINT is its fast shutdown: it ends the sessions and then itself.
        let server = Running::serving(self.owned(&mut postgres, folder), port, Signal::INT)?;
        Ok((server, port))
    }

    /// It listens before it answers.
    fn await_ready(&self, server: &mut Running, folder: &Path, port: u16) -> Result<()> {
        server.wait_until(|| {
            let mut ready = Command::new(self.programs.join("pg_isready"));
            ready.args(arguments!["-q", "-h", "127.0.0.1", "-p", port]);
            finish(self.owned(&mut ready, folder), Duration::from_secs(5)).is_ok()
        })
    }
}

/// `tps` of what pgbench prints, if no transaction failed.
fn transactions_per_second(output: &str) -> Result<f64> {
    if let Some(failed) = field(output, "number of failed transactions:")
        && !failed.starts_with("0 ")
    {
        bail!("transactions failed: {failed}");
    }
    let value = field(output, "tps =").and_then(|value| value.split_whitespace().next()?.parse().ok());
    value.with_context(|| format!("no tps in what pgbench printed: {output:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "pgbench (15.20 (Debian 15.20-0+deb12u1))\ntransaction type: <builtin: select only>\n\
        scaling factor: 1\nquery mode: simple\nnumber of clients: 1\nnumber of threads: 1\nmaximum number of tries: 1\n\
        duration: 1 s\nnumber of transactions actually processed: 9714\nnumber of failed transactions: 0 (0.000%)\n\
        latency average = 0.103 ms\ninitial connection time = 2.711 ms\ntps = 9739.115243 (without initial connection time)\n";

    #[test]
    fn pgbench_is_understood() {
        assert_eq!(transactions_per_second(OUTPUT).unwrap(), 9739.115243);
        assert!(transactions_per_second("pgbench: error: connection refused\n").is_err());
    }

    #[test]
    fn failed_transactions_are_no_figure() {
        let output = OUTPUT.replace("failed transactions: 0 (0.000%)", "failed transactions: 3 (0.031%)");
        assert!(transactions_per_second(&output).unwrap_err().to_string().contains("3 (0.031%)"));
    }
}

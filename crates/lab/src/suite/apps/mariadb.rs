//! MariaDB with sysbench: single rows by their key, and transactions that read and write. Both ends have a thread for
//! each connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use super::computing::Computing;
use super::load::{self, NOT_SLOWER, Told};
use super::{Shared, all_installed, field, folder, seconds, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::{Running, finish, free_port};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::{Unit, counted};
use crate::witness::Rule;

const NAME: &str = "MariaDB";
/// A database and a user, both of this name.
const BENCH: &str = "bench";
/// The data of a table is in the cache of the server.
const TABLES: [&str; 2] = ["--tables=4", "--table-size=20000"];
/// What may start with an empty server.
const PATIENCE: Duration = Duration::from_secs(120);

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let programs = ["mariadbd", "mariadb-install-db", "sysbench"];
    let [server, install, sysbench] = match all_installed(NAME, programs, "mariadb-server sysbench") {
        Ok(programs) => programs,
        Err(skipped) => return missing.push(skipped),
    };
    chosen.versions.extend(version(&server, "--version"));
    chosen.versions.extend(version(&sysbench, "--version"));
    let programs = Programs { server, install, sysbench };
    let data = Shared::default();
    for test in [POINT_SELECT, READ_WRITE] {
        for (threads, beside_others) in [(1, false), (8, false), (32, false), (200, false), (8, true)] {
            let load = Load { test, threads, beside_others };
            chosen.add("apps", MariaDb { programs: programs.clone(), load, data: data.clone() });
        }
    }
}

#[derive(Clone, Debug)]
struct Programs {
    server: PathBuf,
    install: PathBuf,
    sysbench: PathBuf,
}

/// One of sysbench's tests.
#[derive(Clone, Copy, Debug)]
struct Test {
    script: &'static str,
    words: &'static str,
}

const POINT_SELECT: Test = Test { script: "oltp_point_select", words: "point select" };
const READ_WRITE: Test = Test { script: "oltp_read_write", words: "read and write" };

#[derive(Clone, Copy, Debug)]
struct Load {
    test: Test,
    threads: u32,
    /// Beside programs that compute without end, one for each processor.
    beside_others: bool,
}

#[derive(Debug)]
struct MariaDb {
    programs: Programs,
    load: Load,
    /// The folder with the data, filled once.
    data: Shared<TempDir>,
}

impl Experiment for MariaDb {
    fn plans(&self) -> Vec<Plan> {
        let beside = if self.load.beside_others { ", processors busy" } else { "" };
        let name = format!("MariaDB {}, {}{beside}", self.load.test.words, counted(self.load.threads, "thread"));
        let rate = Plan::rate(NAME, name, Unit::PerSecond).target(NOT_SLOWER);
        load::plans(rate.note(format!("sysbench {}, transactions", self.load.test.script)), "transaction", true)
    }

    fn prepare(&mut self, _lab: &Lab) -> Result<()> {
        self.data.get_or_make(|| self.fill()).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let folder = self.data.get_or_make(|| self.fill())?;
        let (server, port) = self.serve(session.command(&self.programs.server), folder.path())?;
        let _others = self.load.beside_others.then(Computing::begin).transpose()?;
        let mut command = session.command(&self.programs.sysbench);
        self.arguments(&mut command, self.load.test, port);
        command.args([format!("--time={}", seconds(lab)), format!("--threads={}", self.load.threads)]);
        let (sysbench, time) = load::drive(command.args(["--percentile=99", "run"]), &[&server])?;
        Ok(told(&sysbench.stdout)?.readings(session, sysbench.pid, Rule::Bytes, time))
    }
}

impl MariaDb {
    fn fill(&self) -> Result<TempDir> {
        let folder = folder()?;
        let mut install = Command::new(&self.programs.install);
        install.args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
        install.arg(format!("--datadir={}/data", folder.path().display())).args(user());
        finish(&mut install, PATIENCE)?;
        let statements = format!(
            "CREATE DATABASE IF NOT EXISTS {BENCH};\nCREATE USER IF NOT EXISTS '{BENCH}'@'127.0.0.1';\n\
             GRANT ALL ON {BENCH}.* TO '{BENCH}'@'127.0.0.1';\n"
        );
        fs::write(folder.path().join("init.sql"), statements)?;
        let (_server, port) = self.serve(Command::new(&self.programs.server), folder.path())?;
        let mut fill = Command::new(&self.programs.sysbench);
        self.arguments(&mut fill, READ_WRITE, port);
        finish(fill.arg("prepare"), LIMIT).context("filling the tables")?;
        Ok(folder)
    }

    fn serve(&self, mut server: Command, folder: &Path) -> Result<(Running, u16)> {
        let (here, port) = (folder.display(), free_port()?);
        server
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=250"])
            .args(user());
        server.arg(format!("--datadir={here}/data")).arg(format!("--init-file={here}/init.sql"));
        server.arg(format!("--socket={here}/socket")).arg(format!("--pid-file={here}/pid"));
        // What is measured is the conversation, not the disk.
        server.args(["--innodb-flush-log-at-trx-commit=0", &format!("--port={port}")]);
        Ok((Running::serving(&mut server, port, Signal::TERM)?, port))
    }

    fn arguments(&self, sysbench: &mut Command, test: Test, port: u16) {
        sysbench.args(["--db-driver=mysql", "--mysql-host=127.0.0.1", "--db-ps-mode=disable"]).args(TABLES);
        sysbench.args(arguments![format!("--mysql-port={port}"), format!("--mysql-user={BENCH}")]);
        sysbench.args(arguments![format!("--mysql-db={BENCH}"), test.script]);
    }
}

/// Root must say that it wants to run the server itself.
fn user() -> Option<&'static str> {
    geteuid().is_root().then_some("--user=root")
}

/// What sysbench prints.
fn told(output: &str) -> Result<Told> {
    let (count, per_second) = field(output, "transactions:").and_then(counts).unzip();
    let p99 = field(output, "99th percentile:").and_then(|value| value.parse::<f64>().ok());
    let told = count.zip(per_second).zip(p99);
    let told = told.map(|((count, per_second), p99)| Told { count, per_second, p99_ns: Some(p99 * 1e6) });
    told.with_context(|| format!("no transactions or 99th percentile in what sysbench printed: {output:?}"))
}

/// `617    (205.33 per sec.)`.
fn counts(text: &str) -> Option<(f64, f64)> {
    let (count, rate) = text.split_once('(')?;
    Some((count.trim().parse().ok()?, rate.split_whitespace().next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "SQL statistics:\n    queries performed:\n        read:                            \
        8638\n        total:                           12340\n    transactions:                        617    (205.33 \
        per sec.)\n    queries:                             12340  (4106.59 per sec.)\n    ignored \
        errors:                      0      (0.00 per sec.)\n\nGeneral statistics:\n    total \
        time:                          3.0040s\n\nLatency (ms):\n         min:                                    \
        3.01\n         99th percentile:                       10.27\n";

    #[test]
    fn sysbench_is_understood() {
        let expected = Told { count: 617.0, per_second: 205.33, p99_ns: Some(10.27e6) };
        assert_eq!(told(OUTPUT).unwrap(), expected);
        assert!(told("FATAL: unable to connect to MySQL server\n").is_err());
    }
}

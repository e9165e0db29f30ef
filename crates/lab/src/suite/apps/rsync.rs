//! rsync from its daemon: one large file, as a whole, from folder to folder.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use super::load::{self, NOT_SLOWER, Told};
use super::{all_installed, folder, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::{Running, finish, free_port};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::Unit;
use crate::usage::Meter;
use crate::witness::Rule;

const NAME: &str = "rsync";
/// The file consists of so many pieces,
const PIECES: u64 = 300;
/// of so many bytes each.
const PIECE: usize = 1_000_000;

/// Names the experiment.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match all_installed(NAME, ["rsync"], "rsync") {
        Ok([program]) => {
            chosen.versions.extend(version(&program, "--version"));
            chosen.add("apps", Rsync { program, folder: None });
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Rsync {
    program: PathBuf,
    folder: Option<TempDir>,
}

impl Experiment for Rsync {
    fn plans(&self) -> Vec<Plan> {
        let rate = Plan::rate(NAME, "rsync daemon, 300 MB", Unit::BytesPerSecond).target(NOT_SLOWER);
        let rate = rate.note("rsync --whole-file, from its start to its end").note(load::IN_PART);
        load::plans(rate, "file", false)
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        let folder = folder()?;
        let mut file = File::create(folder.path().join("file"))?;
        let piece: Vec<u8> = (0..PIECE as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect();
        for _ in 0..lab.count(PIECES) {
            file.write_all(&piece)?;
        }
        self.folder = Some(folder);
        Ok(())
    }

    fn sample(&mut self, _lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let source = self.folder.as_ref().context("the file was not made")?.path();
        let (folder, port) = (folder()?, free_port()?);
        let configuration = folder.path().join("rsyncd.conf");
        // Otherwise it drops to another user, and users do not share memory.
        let user = if geteuid().is_root() { "uid = root\ngid = root\n" } else { "" };
        fs::write(&configuration, format!("use chroot = no\n{user}[files]\npath = {}\n", source.display()))?;
        let mut command = session.command(&self.program);
        command.args(arguments!["--daemon", "--no-detach", "--address=127.0.0.1", format!("--port={port}")]);
        let server = Running::serving(command.arg("--config").arg(&configuration), port, Signal::TERM)?;

        let copy = folder.path().join("copy");
        let mut command = session.command(&self.program);
        command.args(["--whole-file", &format!("rsync://127.0.0.1:{port}/files/file")]).arg(&copy);
        let servers = [&server];
        let (meter, begin) = (Meter::begin(&servers), Instant::now());
        let client = finish(&mut command, LIMIT)?;
        let seconds = begin.elapsed().as_secs_f64();
        let time = meter.end() + client.processor_time;
        let (size, copied) = (fs::metadata(source.join("file"))?.len(), fs::metadata(&copy)?.len());
        ensure!(size == copied, "{copied} bytes of {size} were copied");
        let told = Told { count: 1.0, per_second: size as f64 / seconds, p99_ns: None };
        Ok(told.readings(session, client.pid, Rule::Connections, time))
    }
}

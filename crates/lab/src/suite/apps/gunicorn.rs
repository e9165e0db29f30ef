//! gunicorn, a server for Python, and ab: one worker that takes one connection after the other or, where connections
//! are kept, has a thread for each of its clients.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use rustix::process::Signal;

use super::ab::{Ab, MOST_CLIENTS};
use super::{all_installed, folder, load, version};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::{Running, free_port};
use crate::record::Skipped;
use crate::suite::arguments;

const NAME: &str = "gunicorn";
const APPLICATION: &str = "\
def application(environment, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '5')])
    return [b'hello']
";
const LENGTH: usize = 5;

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match all_installed(NAME, ["gunicorn", "ab"], "gunicorn apache2-utils") {
        Ok([server, ab]) => {
            chosen.versions.extend(version(&server, "--version"));
            for ab in Ab::every_way(&ab, LENGTH) {
                chosen.add("apps", Gunicorn { server: server.clone(), ab });
            }
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Gunicorn {
    server: PathBuf,
    ab: Ab,
}

impl Experiment for Gunicorn {
    fn plans(&self) -> Vec<Plan> {
        self.ab.plans(NAME, NAME)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (folder, port) = (folder()?, free_port()?);
        fs::write(folder.path().join("lab.py"), APPLICATION)?;
        let mut command = session.command(&self.server);
        command.args(["--workers", "1", "--bind", &format!("127.0.0.1:{port}"), "--worker-class"]);
        if self.ab.keep_alive {
            // It ends a kept connection at the first request that no thread is free for.
            command.args(arguments!["gthread", "--keep-alive", 5, "--threads", MOST_CLIENTS]);
        } else {
            command.arg("sync");
        }
        command.args(["lab:application", "--chdir"]).arg(folder.path());
        let server = Running::serving(&mut command, port, Signal::TERM)?;

        let url = format!("http://127.0.0.1:{port}/");
        let (ab, time) = load::drive(&mut self.ab.command(lab, session, folder.path(), &url), &[&server])?;
        self.ab.readings(session, folder.path(), &ab, time)
    }
}

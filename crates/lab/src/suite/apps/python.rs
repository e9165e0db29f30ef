//! Servers and clients that are scripts for Python, each with one library that speaks TCP.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::installed;
use super::load::Told;
use crate::bench::{LIMIT, Lab, skipped};
use crate::launcher::{Reading, Session};
use crate::process::{Running, finish};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::usage::Meter;
use crate::witness::Rule;

/// A Python that has a library, and the version of that.
#[derive(Debug)]
pub struct Python {
    program: PathBuf,
    /// Name and version of the library.
    pub version: String,
}

/// What a client's script prints.
#[derive(Debug, Deserialize)]
struct Printed {
    /// The processor time that the client's requests took, without the start of Python.
    client_ns: u64,
    #[serde(flatten)]
    told: Told,
}

impl Python {
    /// A Python that has `library`, a name of the Python Package Index, which Debian's `package` brings.
    ///
    /// # Errors
    /// There is none.
    pub fn with(name: &str, library: &str, package: &str) -> Result<Python, Skipped> {
        let ask = format!("import importlib.metadata as m, sys; print(sys.executable, m.version('{library}'))");
        // The system's own has what packages bring, whatever comes first on the user's PATH.
        for program in installed("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]) {
            if let Ok(said) = finish(Command::new(&program).args(["-c", &ask]), LIMIT)
                && let Some((program, version)) = said.stdout.trim().rsplit_once(' ')
            {
                return Ok(Python { program: program.into(), version: format!("{library} {version}") });
            }
        }
        Err(skipped(name, format!("Python's {library} is not installed (Debian: apt-get install {package})")))
    }

    /// Takes one sample of a script. With `serve` the script is the server, with `load PORT SECONDS` the client, which
    /// must keep the rule.
    ///
    /// # Errors
    /// Either end fails or hangs.
    pub fn sample(&self, script: &str, rule: Rule, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (server, port) = Running::announced(session.command(&self.program).args(["-c", script, "serve"]))?;
        let mut command = session.command(&self.program);
        command.args(arguments!["-c", script, "load", port, lab.clock() * 5.0]);
        let servers = [&server];
        let meter = Meter::begin(&servers);
        let client = finish(&mut command, LIMIT)?;
        let Printed { client_ns, told } = client.json()?;
        let time = meter.end() + Duration::from_nanos(client_ns);
        Ok(told.readings(session, client.pid, rule, time))
    }
}

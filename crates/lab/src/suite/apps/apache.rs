//! Apache, with threads (mpm_event), and ab: one file of 1 KiB.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use rustix::process::Signal;

use super::ab::Ab;
use super::home::{Home, other_than_root};
use super::{all_installed, load, version};
use crate::bench::{Chosen, Experiment, Lab, skipped};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::{Running, free_port};
use crate::record::Skipped;
use crate::witness::User;

const NAME: &str = "Apache";
/// Its workers refuse to run as root.
const ACCOUNT: &str = "nobody";
/// Where Debian keeps its modules.
const MODULES: &str = "/usr/lib/apache2/modules";
const FILE: [u8; 1024] = [b'u'; 1024];

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let [server, ab] = match all_installed(NAME, ["apache2", "ab"], "apache2 apache2-utils") {
        Ok(programs) => programs,
        Err(skipped) => return missing.push(skipped),
    };
    let user = match other_than_root(ACCOUNT) {
        Ok(user) => user,
        Err(error) => return missing.push(skipped(NAME, format!("{error:#}"))),
    };
    chosen.versions.extend(version(&server, "-v"));
    for ab in Ab::every_way(&ab, FILE.len()) {
        chosen.add("apps", Apache { server: server.clone(), user, ab });
    }
}

#[derive(Debug)]
struct Apache {
    server: PathBuf,
    user: Option<User>,
    ab: Ab,
}

impl Experiment for Apache {
    fn plans(&self) -> Vec<Plan> {
        self.ab.plans(NAME, NAME)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (home, port) = (Home::of(self.user, lab)?, free_port()?);
        let session = home.session(session.side())?;
        fs::create_dir(home.path().join("html"))?;
        fs::write(home.path().join("html/file"), FILE)?;
        let configuration = home.path().join("apache.conf");
        // All its threads from the beginning, and in each process more than ab has connections: a process that has no
        // idle thread ends its kept connections.
        let here = home.path().display();
        let text = format!(
            "ServerRoot {here}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {here}/apache.pid\n\
             LoadModule mpm_event_module {MODULES}/mod_mpm_event.so\n\
             LoadModule authz_core_module {MODULES}/mod_authz_core.so\n\
             DocumentRoot {here}/html\nErrorLog {here}/apache.log\nMaxKeepAliveRequests 0\n\
             StartServers 2\nServerLimit 2\nThreadLimit 256\nThreadsPerChild 256\nMaxRequestWorkers 512\n\
             MinSpareThreads 512\nMaxSpareThreads 512\n"
        );
        fs::write(&configuration, text)?;
        let mut command = session.command(&self.server);
        command.arg("-f").arg(&configuration).arg("-DFOREGROUND");
        let server = Running::serving(home.owned(&mut command), port, Signal::TERM)?;

        let url = format!("http://127.0.0.1:{port}/file");
        let mut command = self.ab.command(lab, &session, home.path(), &url);
        let (ab, time) = load::drive(home.owned(&mut command), &[&server])?;
        self.ab.readings(&session, home.path(), &ab, time)
    }
}

//! PHP behind nginx, and ab: FastCGI over TCP to PHP-FPM, where nginx opens a connection for each request.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use rustix::process::{Signal, geteuid};

use super::ab::Ab;
use super::{all_installed, folder, installed_with_version, load, nginx, version};
use crate::bench::{Chosen, Experiment, Lab, skipped};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::{Running, free_port};
use crate::record::Skipped;

const NAME: &str = "PHP-FPM";
/// Processes of PHP-FPM.
const WORKERS: u32 = 4;
const LENGTH: usize = 1024;

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let Some(fpm) = installed_with_version("php-fpm") else {
        return missing.push(skipped(NAME, "php-fpm is not installed (Debian: apt-get install php-fpm)"));
    };
    match all_installed(NAME, ["nginx", "ab"], "nginx-light apache2-utils") {
        Ok([nginx, ab]) => {
            chosen.versions.extend(version(&fpm, "-v"));
            for ab in Ab::every_way(&ab, LENGTH) {
                chosen.add("apps", Php { fpm: fpm.clone(), nginx: nginx.clone(), ab });
            }
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Php {
    fpm: PathBuf,
    nginx: PathBuf,
    ab: Ab,
}

impl Experiment for Php {
    fn plans(&self) -> Vec<Plan> {
        self.ab.plans(NAME, "nginx php-fpm")
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (folder, port) = (folder()?, free_port()?);
        let page = folder.path().join("page.php");
        fs::write(&page, format!("<?php header('Content-Length: {LENGTH}'); echo str_repeat('u', {LENGTH});"))?;
        let configuration = folder.path().join("fpm.conf");
        // Its workers must belong to the same user as nginx's.
        let user = if geteuid().is_root() { "user = root\ngroup = root\n" } else { "" };
        let text = format!(
            "[global]\nerror_log = {}/fpm.log\ndaemonize = no\n[www]\n{user}listen = 127.0.0.1:{port}\npm = static\n\
             pm.max_children = {WORKERS}\n",
            folder.path().display()
        );
        fs::write(&configuration, text)?;
        let mut command = session.command(&self.fpm);
        command.args(["--allow-to-run-as-root", "--no-php-ini", "--fpm-config"]).arg(&configuration);
        let fpm = Running::serving(&mut command, port, Signal::TERM)?;

        let what = format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_param SCRIPT_FILENAME {}; \
             fastcgi_param REQUEST_METHOD $request_method; fastcgi_param SERVER_PROTOCOL $server_protocol; }}",
            page.display()
        );
        let (nginx, port) = nginx::serve(&self.nginx, session, folder.path(), 1, &what)?;
        let url = format!("http://127.0.0.1:{port}/page.php");
        let mut command = self.ab.command(lab, session, folder.path(), &url);
        let (ab, time) = load::drive(&mut command, &[&nginx, &fpm])?;
        self.ab.readings(session, folder.path(), &ab, time)
    }
}

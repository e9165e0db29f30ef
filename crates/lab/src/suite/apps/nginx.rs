//! nginx with wrk: one file of 1 KiB over connections that are kept.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, geteuid};

use super::{all_installed, field, folder, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Running, finish, free_port};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::{Unit, counted};
use crate::witness::Rule;

const FILE: [u8; 1024] = [b'u'; 1024];
const CONNECTIONS: u32 = 16;

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match all_installed("nginx", ["nginx", "wrk"], "nginx-light wrk") {
        Ok([server, wrk]) => {
            chosen.versions.extend(version(&server, "-v"));
            chosen.versions.extend(version(&wrk, "--version").map(|text| text.replace(" Copyright", "; Copyright")));
            for workers in [1, 2] {
                chosen.add("apps", Nginx { server: server.clone(), wrk: wrk.clone(), workers });
            }
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Nginx {
    server: PathBuf,
    wrk: PathBuf,
    /// Worker processes of nginx, and threads of wrk.
    workers: u32,
}

impl Experiment for Nginx {
    fn plans(&self) -> Vec<Plan> {
        let name = format!("nginx 1 KiB keep-alive, {}", counted(self.workers, "worker"));
        vec![
            Plan::rate("nginx", name, Unit::PerSecond)
                .target(Target::TimesBetter(2.0))
                .note(format!("wrk, {CONNECTIONS} connections")),
        ]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (folder, port) = (folder()?, free_port()?);
        fs::create_dir(folder.path().join("html"))?;
        fs::write(folder.path().join("html/file"), FILE)?;
        let configuration = folder.path().join("nginx.conf");
        fs::write(&configuration, self.configuration(folder.path(), port))?;
        let mut command = session.command(&self.server);
        command.arg("-p").arg(folder.path()).args(["-e", "stderr", "-c"]).arg(&configuration);
        let _server = Running::serving(&mut command, port, Signal::TERM)?;
        check_file(port).context("fetching the file from nginx")?;

        let mut command = session.command(&self.wrk);
        let seconds = if lab.quick { 1 } else { 2 };
        command.args(arguments![format!("-t{}", self.workers), format!("-c{CONNECTIONS}"), format!("-d{seconds}s")]);
        let wrk = finish(command.arg(format!("http://127.0.0.1:{port}/file")), LIMIT)?;
        Ok(vec![session.proven(wrk.pid, Rule::Bytes, requests_per_second(&wrk.stdout)?)])
    }
}

impl Nginx {
    fn configuration(&self, folder: &Path, port: u16) -> String {
        // Its workers must belong to the same user as wrk.
        let user = if geteuid().is_root() { "user root;" } else { "" };
        let (folder, workers) = (folder.display(), self.workers);
        format!(
            "daemon off; {user} worker_processes {workers}; pid {folder}/nginx.pid;
             events {{ worker_connections 1024; }}
             http {{
                 access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
                 client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
                 fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
                 server {{ listen 127.0.0.1:{port}; root {folder}/html; }}
             }}"
        )
    }
}

/// Fetches the file once and compares it, on a connection of our own.
fn check_file(port: u16) -> Result<()> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    connection.write_all(b"GET /file HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(&FILE), "nginx does not serve the file");
    Ok(())
}

/// `Requests/sec` of what wrk prints, if every request succeeded.
fn requests_per_second(output: &str) -> Result<f64> {
    for trouble in ["Socket errors:", "Non-2xx or 3xx responses:"] {
        if let Some(what) = field(output, trouble) {
            anyhow::bail!("wrk met {trouble} {what}");
        }
    }
    let value = field(output, "Requests/sec:").and_then(|value| value.parse().ok());
    value.with_context(|| format!("no Requests/sec in what wrk printed: {output:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 1s test @ http://127.0.0.1:8080/file\n  2 threads and 16 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   254.03us  163.56us   4.65ms   93.65%\n    \
        Req/Sec    32.17k     1.37k   34.65k    77.27%\n  70410 requests in 1.10s, 84.61MB read\n\
        Requests/sec:  64011.55\nTransfer/sec:     76.92MB\n";

    #[test]
    fn wrk_is_understood() {
        assert_eq!(requests_per_second(OUTPUT).unwrap(), 64011.55);
        assert!(requests_per_second("unable to connect to 127.0.0.1:8080 Connection refused\n").is_err());
    }

    #[test]
    fn failed_requests_are_no_figure() {
        for line in ["  Socket errors: connect 0, read 3, write 0, timeout 0\n", "  Non-2xx or 3xx responses: 12\n"] {
            let error = requests_per_second(&(line.to_string() + OUTPUT)).unwrap_err().to_string();
            assert!(error.contains(line.trim().split(':').next().unwrap()), "{error}");
        }
    }
}

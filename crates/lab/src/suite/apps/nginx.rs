//! nginx: one file of 1 KiB, with wrk over kept connections, and with ab over kept connections and over one for each
//! request. Clients of wrk ask as fast as they are answered, or at most once in a millisecond each.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, geteuid};

use super::ab::Ab;
use super::load::{self, Told};
use super::{all_installed, field, folder, seconds, version};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::process::{Running, free_port};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::{Unit, counted};
use crate::witness::Rule;

const GROUP: &str = "nginx";
/// The user that its workers are where root has started it.
pub const ACCOUNT: &str = "www-data";
const FILE: [u8; 1024] = [b'u'; 1024];
const CONNECTIONS: u32 = 16;
/// The number of connections if clients wait before they ask again.
const WAITING_CONNECTIONS: u32 = 40;
/// For wrk: milliseconds before each request of a connection.
const WAIT: &str = "function delay() return 1 end\n";

/// Names the experiments.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    match all_installed(GROUP, ["nginx", "wrk"], "nginx-light wrk") {
        Ok([server, wrk]) => {
            chosen.versions.extend(version(&server, "-v"));
            chosen.versions.extend(version(&wrk, "--version").map(|text| text.replace(" Copyright", "; Copyright")));
            for workers in [1, 2] {
                for waits in [false, true] {
                    chosen.add("apps", Wrk { server: server.clone(), wrk: wrk.clone(), workers, waits });
                }
            }
        }
        Err(skipped) => missing.push(skipped),
    }
    match all_installed("nginx with ab", ["nginx", "ab"], "nginx-light apache2-utils") {
        Ok([server, ab]) => {
            chosen.versions.extend(version(&ab, "-V"));
            for ab in Ab::every_way(&ab, FILE.len()) {
                chosen.add("apps", WithAb { server: server.clone(), ab });
            }
        }
        Err(skipped) => missing.push(skipped),
    }
}

#[derive(Debug)]
struct Wrk {
    server: PathBuf,
    wrk: PathBuf,
    /// Worker processes of nginx, and threads of wrk.
    workers: u32,
    /// Whether each connection waits for [`WAIT`]. Then both sides bear the same load, so that their percentiles can be
    /// compared.
    waits: bool,
}

impl Experiment for Wrk {
    fn plans(&self) -> Vec<Plan> {
        let name = format!("nginx 1 KiB keep-alive, {}", counted(self.workers, "worker"));
        if !self.waits {
            let rate = Plan::rate(GROUP, name, Unit::PerSecond).target(Target::TimesBetter(2.0));
            return load::plans(rate.note(format!("wrk, {CONNECTIONS} connections")), "request", true);
        }
        let rate = Plan::rate(GROUP, name + ", same load", Unit::PerSecond).target(load::NOT_SLOWER);
        let note = format!("wrk, {WAITING_CONNECTIONS} connections, each 1 ms after its answer");
        let [rate, processor, p99] = load::plans(rate.note(note), "request", true).try_into().expect("three figures");
        vec![rate, processor, p99.target(load::NOT_LATER)]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let folder = folder()?;
        let (server, port) = serve_file(&self.server, session, folder.path(), self.workers)?;
        let mut command = session.command(&self.wrk);
        let connections = if self.waits { WAITING_CONNECTIONS } else { CONNECTIONS };
        command.args(arguments![format!("-t{}", self.workers), format!("-c{connections}"), "--latency"]);
        if self.waits {
            let script = folder.path().join("wait.lua");
            fs::write(&script, WAIT)?;
            command.arg("-s").arg(script);
        }
        command.arg(format!("-d{}s", seconds(lab))).arg(format!("http://127.0.0.1:{port}/file"));
        let (wrk, time) = load::drive(&mut command, &[&server])?;
        Ok(told(&wrk.stdout)?.readings(session, wrk.pid, Rule::Bytes, time))
    }
}

#[derive(Debug)]
struct WithAb {
    server: PathBuf,
    ab: Ab,
}

impl Experiment for WithAb {
    fn plans(&self) -> Vec<Plan> {
        self.ab.plans(GROUP, "nginx")
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let folder = folder()?;
        let (server, port) = serve_file(&self.server, session, folder.path(), 1)?;
        let url = format!("http://127.0.0.1:{port}/file");
        let (ab, time) = load::drive(&mut self.ab.command(lab, session, folder.path(), &url), &[&server])?;
        self.ab.readings(session, folder.path(), &ab, time)
    }
}

/// An nginx that serves [`FILE`] as `/file`, checked once.
fn serve_file(nginx: &Path, session: &Session, folder: &Path, workers: u32) -> Result<(Running, u16)> {
    fs::create_dir(folder.join("html"))?;
    fs::write(folder.join("html/file"), FILE)?;
    let root = format!("root {}/html;", folder.display());
    let (server, port) = serve(nginx, session, folder, workers, &root)?;
    check_file(port).context("fetching the file from nginx")?;
    Ok((server, port))
}

/// An nginx that serves `what`, directives of a server block, on a free port; its files lie in `folder`.
///
/// # Errors
/// It cannot be started, or does not listen in time.
pub fn serve(nginx: &Path, session: &Session, folder: &Path, workers: u32, what: &str) -> Result<(Running, u16)> {
    // Its workers must belong to the same user as the load generator.
    let user = if geteuid().is_root() { "user root;" } else { "" };
    serve_by(session.command(nginx), folder, workers, user, what)
}

/// An nginx that serves `what` as in [`serve`], by a command of nginx that has no arguments yet, with a directive that
/// names the workers' user.
///
/// # Errors
/// As for [`serve`].
pub fn serve_by(mut command: Command, folder: &Path, workers: u32, user: &str, what: &str) -> Result<(Running, u16)> {
    let port = free_port()?;
    let here = folder.display();
    let text = format!(
        "daemon off; {user} worker_processes {workers}; pid {here}/nginx.pid;
         events {{ worker_connections 1024; }}
         http {{
             access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
             client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
             fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
             server {{ listen 127.0.0.1:{port}; {what} }}
         }}"
    );
    let configuration = folder.join("nginx.conf");
    fs::write(&configuration, text)?;
    command.arg("-p").arg(folder).args(["-e", "stderr", "-c"]).arg(&configuration);
    Ok((Running::serving(&mut command, port, Signal::TERM)?, port))
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

/// What wrk prints, if every request succeeded.
pub fn told(output: &str) -> Result<Told> {
    for trouble in ["Socket errors:", "Non-2xx or 3xx responses:"] {
        if let Some(what) = field(output, trouble) {
            anyhow::bail!("wrk met {trouble} {what}");
        }
    }
    let rate = field(output, "Requests/sec:").and_then(|value| value.parse().ok());
    let count = output.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
    let p99 = field(output, "99%").and_then(nanoseconds);
    let told = rate.zip(count).zip(p99).map(|((per_second, count), p99)| Told { count, per_second, p99_ns: Some(p99) });
    told.with_context(|| format!("no requests, Requests/sec or 99% in what wrk printed: {output:?}"))
}

/// A duration as wrk writes it: `254.03us`, `1.02ms`, `3.10s`.
fn nanoseconds(text: &str) -> Option<f64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let scale = match unit {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 1s test @ http://127.0.0.1:8080/file\n  2 threads and 16 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   254.03us  163.56us   4.65ms   93.65%\n    \
        Req/Sec    32.17k     1.37k   34.65k    77.27%\n  Latency Distribution\n     50%  229.00us\n     \
        75%  289.00us\n     90%  421.00us\n     99%    1.02ms\n  70410 requests in 1.10s, 84.61MB read\n\
        Requests/sec:  64011.55\nTransfer/sec:     76.92MB\n";

    #[test]
    fn wrk_is_understood() {
        let expected = Told { count: 70410.0, per_second: 64011.55, p99_ns: Some(1.02e6) };
        assert_eq!(told(OUTPUT).unwrap(), expected);
        assert!(told("unable to connect to 127.0.0.1:8080 Connection refused\n").is_err());
    }

    #[test]
    fn failed_requests_are_no_figure() {
        for line in ["  Socket errors: connect 0, read 3, write 0, timeout 0\n", "  Non-2xx or 3xx responses: 12\n"] {
            let error = told(&(line.to_string() + OUTPUT)).unwrap_err().to_string();
            assert!(error.contains(line.trim().split(':').next().unwrap()), "{error}");
        }
    }
}

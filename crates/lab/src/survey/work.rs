//! What an agent can do: start the servers and clients of its list, one measurement at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use tempfile::TempDir;

use super::child::{Child, Ended};
use super::message::{Amount, Client, Facts, Reading, Reply, Request, Server, Stopped};
use super::record::Tool;
use super::tool::openssl::{self, Certificate};
use super::tool::{self, iperf3, qperf, sockperf};
use super::toolbox::Toolbox;
use super::transfer;
use crate::host::{Host, revision};
use crate::launcher::{Launcher, Session, Side};
use crate::witness::Rule;

/// How much longer than asked for a tool may take, on a slow processor that starts it.
const SLACK: Duration = Duration::from_secs(40);
/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(20);
/// How long the receiver of a stream may take to say what it got, after the sender was killed.
const REPORT: Duration = Duration::from_secs(10);
/// How long the children of a server may take to end, after its client has.
const SETTLE: Duration = Duration::from_secs(5);
/// Octets that a stream beside a measurement writes at a time.
const WRITE: u64 = 64 << 10;
/// How often the system is asked for a port that has a free neighbour.
const TRIES: u32 = 64;
/// Most jobs at a time: a server, a stream and its server, a relay.
const JOBS: usize = 8;
/// Most bytes of a file.
const LARGEST: u64 = 16 << 30;

/// What an agent has, and the jobs of its coordinator.
pub struct Work<'a> {
    launcher: Option<&'a Launcher>,
    tools: &'a Toolbox,
    ports: RangeInclusive<u16>,
    gone: &'a AtomicBool,
    folder: Option<(TempDir, Certificate)>,
    jobs: BTreeMap<u32, Job<'a>>,
    last: u32,
}

/// Something that runs until it is stopped.
enum Job<'a> {
    /// A server of a tool, or a stream.
    Program { child: Child, session: Option<Session<'a>>, does: Does },
    /// A relay, whose program a thread starts when its connection comes.
    Relay { stop: Arc<AtomicBool>, thread: JoinHandle<Result<Option<Ended>>> },
}

/// What a program does for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// It serves.
    Serve,
    /// It sends a stream. If it ends before the stop, the measurement does not count.
    Send,
    /// It receives a stream, and says how much when the stream has ended.
    Receive,
}

impl<'a> Work<'a> {
    /// An agent's work for one coordinator, until `gone` is true.
    pub fn new(
        launcher: Option<&'a Launcher>,
        tools: &'a Toolbox,
        ports: RangeInclusive<u16>,
        gone: &'a AtomicBool,
    ) -> Work<'a> {
        // A library of this processor cannot be loaded into programs of another.
        let launcher = launcher.filter(|_| !tools.is_emulated());
        Work { launcher, tools, ports, gone, folder: None, jobs: BTreeMap::new(), last: 0 }
    }

    /// Does what is asked.
    pub fn answer(&mut self, request: Request) -> Reply {
        let done = match request {
            Request::Describe => Ok(Reply::Facts(Box::new(self.facts()))),
            Request::Time => {
                Ok(Reply::Time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)))
            }
            Request::Serve { server, at, path } => self.serve(server, at, path),
            Request::Stream { to, path, seconds } => self.stream(to, path, seconds),
            Request::Measure { client, to, path } => self.measure(client, to, path).map(Reply::Measured),
            Request::Stop { job } => self.stop(job).map(Reply::Stopped),
        };
        done.unwrap_or_else(|error| Reply::Failed { reason: format!("{error:#}") })
    }

    fn facts(&self) -> Facts {
        let mut tools = Vec::new();
        let mut unusable = Vec::new();
        for it in Tool::ALL {
            match tool::version(it, self.tools.command(it)) {
                Ok(version) => tools.push(version),
                Err(error) => unusable.push((it, error.to_string())),
            }
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
        Facts {
            version: env!("CARGO_PKG_VERSION").to_string(),
            revision: revision(),
            host: Host::describe(),
            tools,
            unusable,
            library: self.launcher.is_some(),
            network: format!("{} {}", boot.trim(), namespace.display()),
            user: rustix::process::geteuid().as_raw(),
        }
    }

    /// A program on one side, its arguments still to come.
    fn command(&self, tool: Tool, path: Side) -> Result<(Command, Option<Session<'a>>)> {
        match (self.launcher, path) {
            (Some(launcher), _) => {
                let session = launcher.session(path)?;
                Ok((session.command(tool.program()), Some(session)))
            }
            (None, Side::Kernel) => Ok((self.tools.command(tool), None)),
            (None, Side::Underpass) => bail!("there is no library of Underpass at this endpoint"),
        }
    }

    fn serve(&mut self, server: Server, at: IpAddr, path: Side) -> Result<Reply> {
        if let Server::Relay { to } = server {
            return self.relay(at, to);
        }
        let more = if server == Server::Qperf { qperf::MORE_PORTS } else { 0 };
        let port = self.free_port(at, more)?;
        let tool = match server {
            Server::Iperf3 | Server::Sink => Tool::Iperf3,
            Server::Sockperf { .. } => Tool::Sockperf,
            Server::Qperf => Tool::Qperf,
            Server::Tls { .. } | Server::Relay { .. } => Tool::Openssl,
        };
        let (mut command, session) = self.command(tool, path)?;
        match server {
            Server::Iperf3 => iperf3::serve(&mut command, at, port),
            Server::Sink => iperf3::sink(&mut command, at, port),
            Server::Sockperf { size } => sockperf::serve(&mut command, at, port, size),
            Server::Qperf => qperf::serve(&mut command, port),
            Server::Tls { size } if size > LARGEST => bail!("a file of {size} bytes is too large"),
            Server::Tls { .. } | Server::Relay { .. } => {
                openssl::serve(&mut command, at, port, &self.certificate()?);
            }
        }
        let mut child = if let Server::Tls { size } = server {
            let mut child = Child::piped(&mut command)?;
            transfer::confirm(&mut child, size)?;
            child
        } else {
            Child::start(&mut command)?
        };
        self.until_it_listens(&mut child, port)?;
        let does = if server == Server::Sink { Does::Receive } else { Does::Serve };
        let job = self.keep(Job::Program { child, session, does })?;
        Ok(Reply::Started { job, port })
    }

    fn stream(&mut self, to: SocketAddr, path: Side, seconds: u32) -> Result<Reply> {
        let (mut command, session) = self.command(Tool::Iperf3, path)?;
        iperf3::measure(&mut command, to, WRITE, 1, Amount::Seconds(seconds));
        let child = Child::start(&mut command)?;
        let job = self.keep(Job::Program { child, session, does: Does::Send })?;
        Ok(Reply::Started { job, port: 0 })
    }

    fn relay(&mut self, at: IpAddr, to: SocketAddr) -> Result<Reply> {
        let port = self.free_port(at, 0)?;
        let listener = TcpListener::bind((at, port)).with_context(|| format!("cannot listen at {at}:{port}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, command) = (stop.clone(), self.tools.command(Tool::Openssl));
        // The program ends with the thread that starts it, so the thread waits for it.
        let thread = thread::spawn(move || transfer::relay(command, &listener, to, &ended));
        let job = self.keep(Job::Relay { stop, thread })?;
        Ok(Reply::Started { job, port })
    }

    fn keep(&mut self, job: Job<'a>) -> Result<u32> {
        if self.jobs.len() >= JOBS {
            bail!("{JOBS} jobs run already");
        }
        self.last = self.last.checked_add(1).context("no numbers are left for jobs")?;
        self.jobs.insert(self.last, job);
        Ok(self.last)
    }

    fn measure(&self, client: Client, to: SocketAddr, path: Side) -> Result<Reading> {
        match client {
            Client::Throughput { size, flows, amount } => {
                let (mut command, session) = self.command(Tool::Iperf3, path)?;
                iperf3::measure(&mut command, to, size, flows, amount);
                let seconds = if let Amount::Seconds(seconds) = amount { seconds } else { 0 };
                let output = self.finish(&mut command, seconds)?;
                let figures = iperf3::read(&output.stdout, size, flows)?;
                let value = proven(session.as_ref(), output.pid, Rule::Connections, figures.rate)?;
                let (bytes, seconds, processor_time) =
                    (Some(figures.bytes), figures.seconds, nanoseconds(output.processor_time));
                Ok(Reading { value, percentiles: None, seconds, bytes, exchanges: None, processor_time })
            }
            Client::Latency { tool: Tool::Sockperf, size, seconds } => {
                let (mut command, session) = self.command(Tool::Sockperf, path)?;
                sockperf::measure(&mut command, to, size, seconds);
                let output = self.finish(&mut command, seconds)?;
                let figures = sockperf::read(&output.stdout)?;
                let value = proven(session.as_ref(), output.pid, Rule::Bytes, figures.latency)?;
                let (percentiles, exchanges) = (Some(figures.percentiles), Some(figures.exchanges));
                let processor_time = nanoseconds(output.processor_time);
                Ok(Reading { value, percentiles, seconds: figures.seconds, bytes: None, exchanges, processor_time })
            }
            Client::Latency { tool: Tool::Qperf, size, seconds } => {
                let (mut command, session) = self.command(Tool::Qperf, path)?;
                qperf::measure(&mut command, to, size, seconds);
                let output = self.finish(&mut command, seconds)?;
                let figures = qperf::read(&output.stdout)?;
                let value = proven(session.as_ref(), output.pid, Rule::Bytes, figures.latency)?;
                let processor_time = nanoseconds(output.processor_time);
                let (seconds, exchanges) = (f64::from(seconds), Some(figures.exchanges));
                Ok(Reading { value, percentiles: None, seconds, bytes: None, exchanges, processor_time })
            }
            Client::Latency { tool, .. } => bail!("{} measures no latency", tool.program()),
            Client::Tls { size, .. } if size == 0 || size > LARGEST => bail!("a file of {size} bytes cannot be sent"),
            Client::Tls { size, offloaded: false } => {
                let (mut command, _) = self.command(Tool::Openssl, Side::Kernel)?;
                transfer::encrypted(&mut command, to, size, self.gone)
            }
            Client::Tls { size, offloaded: true } => transfer::plain(to, size, self.gone),
        }
    }

    fn finish(&self, command: &mut Command, seconds: u32) -> Result<super::child::Output> {
        let jobs = || {
            self.jobs.values().try_for_each(|job| match job {
                Job::Program { child, .. } => child.check(self.gone),
                Job::Relay { .. } => Ok(()),
            })
        };
        Ok(Child::start(command)?.finish_beside(&jobs, Duration::from_secs(seconds.into()) + SLACK, self.gone)?)
    }

    fn stop(&mut self, job: u32) -> Result<Stopped> {
        let job = self.jobs.remove(&job).with_context(|| format!("there is no job {job}"))?;
        match job {
            Job::Program { mut child, session, does } => {
                let patience = if does == Does::Receive { REPORT } else { Duration::ZERO };
                let before = child.ended_within(patience)?;
                // qperf serves each client by a child of its server, whose time counts once the server has waited for
                // it.
                let is_whole = before.is_some() || does == Does::Send || child.outlives_its_own(SETTLE)?;
                let ended = match before {
                    Some(ended) => ended,
                    None => child.kill()?,
                };
                let complaint = match before {
                    _ if !is_whole => {
                        let limit = SETTLE.as_secs();
                        Some(format!("a server's child did not end within {limit} s, so its time is not known"))
                    }
                    Some(ended) if does == Does::Send || !ended.status.success() => {
                        Some(child.failure(ended.status).to_string())
                    }
                    _ => {
                        // What a server's bytes did, its client proves; it may have forked for that. A stream was
                        // killed, and the library counts at the end of a connection.
                        proven(session.as_ref(), child.pid(), Rule::Loaded, 0.0).err().map(|error| error.to_string())
                    }
                };
                let received = if does == Does::Receive { iperf3::received(&child.printed()) } else { None };
                Ok(Stopped { processor_time: nanoseconds(ended.processor_time), complaint, received })
            }
            Job::Relay { stop, thread } => {
                stop.store(true, Ordering::Relaxed);
                let ended = thread.join().map_err(|_| anyhow!("the relay failed"))??;
                let processor_time = ended.map_or(0, |ended| nanoseconds(ended.processor_time));
                let complaint = ended.is_none().then(|| "nothing came to the relay".to_string());
                Ok(Stopped { processor_time, complaint, received: None })
            }
        }
    }

    fn certificate(&mut self) -> Result<Certificate> {
        if let Some((_, certificate)) = &self.folder {
            return Ok(certificate.clone());
        }
        let folder = tempfile::Builder::new().prefix("underpass-agent-").tempdir()?;
        let (mut command, _) = self.command(Tool::Openssl, Side::Kernel)?;
        let certificate = openssl::certificate(&mut command, folder.path());
        self.finish(&mut command, 0)?;
        self.folder = Some((folder, certificate.clone()));
        Ok(certificate)
    }

    /// A port without a listener, behind which so many `more` have none.
    fn free_port(&self, at: IpAddr, more: u16) -> Result<u16> {
        let bind = |port: u16| TcpListener::bind((at, port));
        let free = |port: u16| -> io::Result<u16> {
            let first = bind(port)?;
            let port = first.local_addr()?.port();
            let next = |step| port.checked_add(step).ok_or_else(|| io::Error::other("there is no port behind 65535"));
            (1..=more).try_for_each(|step| next(step).and_then(bind).map(drop))?;
            Ok(port)
        };
        if *self.ports.end() == 0 {
            let tries = if more == 0 { 1 } else { TRIES };
            let found = (1..tries).find_map(|_| free(0).ok()).map_or_else(|| free(0), Ok);
            return found.with_context(|| format!("cannot listen at {at}; is it an address of this endpoint?"));
        }
        let mut error = None;
        // The search does not always begin at the first port: connections that have just ended keep a port for a while.
        let (first, count) = (*self.ports.start(), (self.ports.len() as u32).saturating_sub(more.into()));
        let offset = fastrand::u32(..count.max(1));
        for step in 0..count {
            match free(first + ((offset + step) % count) as u16) {
                Ok(port) => return Ok(port),
                Err(it) => error = Some(it),
            }
        }
        let error = error.unwrap_or_else(|| io::Error::other("there is none"));
        let what = if more == 0 { "port".to_string() } else { format!("{} neighbouring ports", more + 1) };
        Err(error).with_context(|| format!("no {what} of {}-{} can be had at {at}", first, self.ports.end()))
    }

    fn until_it_listens(&self, child: &mut Child, port: u16) -> Result<()> {
        let last = Instant::now() + START;
        while !listening()?.contains(&port) {
            if let Some(ended) = child.ended()? {
                return Err(child.failure(ended.status).into());
            }
            child.check(self.gone)?;
            if Instant::now() > last {
                bail!("a server did not listen at port {port} within {} s", START.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        for job in self.jobs.values() {
            if let Job::Relay { stop, .. } = job {
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// The figure, if the programs kept the rule where there is one. A stream goes over the kernel in part where its reader
/// is the slower one, so that its connections have to be fast and not all of its bytes.
fn proven(session: Option<&Session>, pid: u32, rule: Rule, value: f64) -> Result<f64> {
    session.map_or(Ok(value), |session| session.proven(pid, rule, value)).map_err(|reason| anyhow!(reason))
}

/// Ports with a listener in this network namespace (proc_pid_net(5), `tcp`).
fn listening() -> io::Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for file in ["tcp", "tcp6"] {
        match fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
            Ok(text) => ports.extend(text.lines().filter_map(listener)),
            Err(error) if file == "tcp6" && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ports)
}

/// `   0: 0100007F:1538 00000000:0000 0A …`: 0A is the state LISTEN.
fn listener(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace().skip(1);
    let port = words.next()?.rsplit_once(':')?.1;
    (words.nth(1)? == "0A").then(|| u16::from_str_radix(port, 16).ok())?
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::shell;

    static TOOLS: Toolbox = Toolbox::system();

    #[test]
    fn listeners_are_found() {
        assert_eq!(listener("   0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:0"), Some(0x1538));
        assert_eq!(listener("   0: 0100007F:1538 0100007F:0001 01 00000000:00000000 00:0"), None);
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue"), None);
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listening().unwrap().contains(&socket.local_addr().unwrap().port()));
    }

    #[test]
    fn ports_are_of_the_range() {
        let gone = AtomicBool::new(false);
        // An address of its own and ports that no system gives out: what other tests open takes none of them. The port
        // is not closed before the end, since a child that another test starts holds it until that child executes.
        let at = IpAddr::from([127, 0, 41, 1]);
        let taken = (20_000..30_000).find_map(|port| TcpListener::bind((at, port)).ok()).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = Work::new(None, &TOOLS, port..=port, &gone).free_port(at, 0).unwrap_err();
        assert!(error.to_string().contains(&format!("no port of {port}-{port}")), "{error}");
        let found = Work::new(None, &TOOLS, port..=port + 50, &gone).free_port(at, 0).unwrap();
        assert!(port < found && found <= port + 50, "{found} is not of {port}-{}", port + 50);
        // Two neighbours: the port before the taken one has none.
        for _ in 0..20 {
            let found = Work::new(None, &TOOLS, port - 1..=port + 2, &gone).free_port(at, 1).unwrap();
            assert_eq!(found, port + 1);
        }
        let error = Work::new(None, &TOOLS, port - 1..=port, &gone).free_port(at, 1).unwrap_err().to_string();
        assert!(error.contains(&format!("no 2 neighbouring ports of {}-{port}", port - 1)), "{error}");
        for more in [0, 1] {
            assert_ne!(Work::new(None, &TOOLS, 0..=0, &gone).free_port(at, more).unwrap(), 0);
        }
    }

    /// A firewall lets nothing else through.
    #[test]
    fn all_connections_of_qperf_are_to_ports_of_the_range() {
        if tool::version(Tool::Qperf, Command::new("qperf")).is_err() {
            return eprintln!("skipped: qperf is needed");
        }
        // An address of its own, also beside another run of this test.
        let [.., high, low] = std::process::id().to_be_bytes();
        let octets = [127, 41, high, low];
        let at = IpAddr::from(octets);
        let (gone, first) = (AtomicBool::new(false), 30_000 - fastrand::u16(..1000) * 4);
        let mut work = Work::new(None, &TOOLS, first..=first + 3, &gone);
        let Reply::Started { port, .. } = work.answer(Request::Serve { server: Server::Qperf, at, path: Side::Kernel })
        else {
            panic!("no server")
        };
        let client = Client::Latency { tool: Tool::Qperf, size: 64, seconds: 1 };
        let measured = AtomicBool::new(false);
        let own = format!("{:08X}", u32::from_ne_bytes(octets));
        let remote = |line: &str| {
            let mut words = line.split_whitespace().skip(2);
            let (address, port) = words.next()?.split_once(':')?;
            // 01 is the state ESTABLISHED: those that have ended stay for a while.
            (address == own && words.next()? == "01").then(|| u16::from_str_radix(port, 16).ok())?
        };
        let used = thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut used = BTreeSet::new();
                while !measured.load(Ordering::Relaxed) {
                    used.extend(fs::read_to_string("/proc/self/net/tcp").unwrap().lines().filter_map(remote));
                    thread::sleep(Duration::from_millis(10));
                }
                used
            });
            let reply = work.answer(Request::Measure { client, to: SocketAddr::new(at, port), path: Side::Kernel });
            measured.store(true, Ordering::Relaxed);
            assert!(matches!(reply, Reply::Measured(_)), "{reply:?}");
            watcher.join().unwrap()
        });
        assert_eq!(Vec::from_iter(used), [port, port + 1], "where they agree, and where the data goes");
    }

    /// The server's output is in a file, which would grow as long as a measurement lasts.
    #[test]
    fn a_server_that_prints_without_end_ends_the_measurement() {
        let gone = AtomicBool::new(false);
        let mut work = Work::new(None, &TOOLS, 0..=0, &gone);
        let child = Child::start(&mut shell("exec yes")).unwrap();
        work.keep(Job::Program { child, session: None, does: Does::Serve }).unwrap();
        let error = work.finish(&mut shell("exec sleep 60"), 60).unwrap_err().to_string();
        assert!(error.contains("printed more than"), "{error}");
    }

    #[test]
    fn a_job_that_is_not_there_and_a_side_that_is_not_there_are_named() {
        let gone = AtomicBool::new(false);
        let mut work = Work::new(None, &TOOLS, 0..=0, &gone);
        let Reply::Failed { reason } = work.answer(Request::Stop { job: 7 }) else { panic!("there is no job") };
        assert_eq!(reason, "there is no job 7");
        let at = IpAddr::from([127, 0, 0, 1]);
        let request = Request::Serve { server: Server::Iperf3, at, path: Side::Underpass };
        let Reply::Failed { reason } = work.answer(request) else { panic!("there is no library") };
        assert!(reason.contains("no library"), "{reason}");
    }
}

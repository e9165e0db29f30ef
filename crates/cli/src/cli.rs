//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Move the TCP traffic of unmodified programs into shared memory, past the kernel's TCP stack.
///
/// A connection whose other end is on this host, in a program that runs under Underpass too, carries its bytes through
/// shared memory. Every other connection stays what it is, on kernel TCP. Programs are not changed and cannot tell the
/// difference.
#[derive(Debug, Parser)]
#[command(name = "underpass", version, styles = STYLES, max_term_width = 100, after_help = FIRST_STEPS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  underpass run --stats -- redis-server --port 7000
  underpass run -- redis-benchmark -p 7000 -t get";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArguments),
    Doctor(DoctorArguments),
    Diff(DiffArguments),
    Policy(PolicyArguments),
    Ss(SsArguments),
    Top(TopArguments),
    Metrics(MetricsArguments),
    Pin(PinArguments),
    Unpin(UnpinArguments),
    Capture(CaptureArguments),
    Bench(BenchArguments),
    Demo(DemoArguments),
    Report(ReportArguments),
    Advise(AdviseArguments),
    Survey(SurveyArguments),
    Agent(AgentArguments),
    Config(ConfigArguments),
    Completions(CompletionsArguments),
    Man(ManArguments),
}

/// Run a program, its TCP connections on the fast path where possible
///
/// The program is started as if it had been run directly: its exit code, its signals and the terminal are its own. Programs
/// that it starts are run under Underpass too. Both ends of a connection have to be, or it stays on kernel TCP.
///
/// A program that cannot be accelerated (statically linked, written in Go, setuid, 32-bit, of another C library) is run
/// all the same, after one line on standard error that says why; its connections are ordinary ones.
///
/// io_uring bypasses the library, so setting one up fails with ENOSYS ("not implemented") and programs fall back to
/// epoll, unless io_uring=allow is set. The library does that where the program uses liburing or libc. Where the
/// program, or a library that it is linked with, makes the system call itself, `underpass run` installs a seccomp
/// filter instead, and for a user without CAP_SYS_ADMIN it sets the no_new_privs bit (prctl(2)): sudo and other setuid
/// programs started from within then do not get their privileges. io_uring=deny installs that filter for every program.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    override_usage = "underpass run [OPTIONS] [--] PROGRAM [ARGUMENT]...",
    after_help = "Examples:
  underpass run -- redis-server --port 7000
  underpass run --stats -- curl -O http://localhost/file
  underpass run --set go_up_messages=0 --set spin_us=0 -- ./server",
    after_long_help = "Examples:
  underpass run -- redis-server --port 7000
  underpass run --stats -- curl -O http://localhost/file
  underpass run --set go_up_messages=0 --set spin_us=0 -- ./server

Exit code: that of the program (or its signal); 127 if there is no such program or interpreter, 126 if it \
cannot be executed, 125 if Underpass itself fails, 2 for a mistake in options or settings."
)]
pub struct RunArguments {
    /// At the end, say for each process how its connections fared and why some stayed on kernel TCP
    ///
    /// Written to standard error, or to FILE, when the program itself ends: a daemon that it leaves behind is not waited for.
    ///
    /// The program gets a parent process that waits for it, passes signals on, and takes it along when it is killed itself
    /// (PR_SET_PDEATHSIG); a process group of its own where the command leads one; and the variable `UNDERPASS_STATS` in its
    /// environment.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, value_hint = ValueHint::FilePath)]
    pub stats: Option<Option<PathBuf>>,

    /// Write these statistics as JSON (implies --stats)
    #[arg(long)]
    pub json: bool,

    /// Do not say when a program cannot be accelerated
    #[arg(long, short)]
    pub quiet: bool,

    /// Let connections go fast from their first byte, short ones too (go_up_messages=0, go_up_bytes=0)
    #[arg(long)]
    pub at_once: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,

    /// The program, looked up in PATH, and what it is given
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_names = ["PROGRAM", "ARGUMENT"],
        num_args = 1..,
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

impl RunArguments {
    /// Whether statistics are asked for.
    pub fn wants_stats(&self) -> bool {
        self.json || self.stats.is_some()
    }
}

/// Where settings come from besides the environment.
#[derive(Debug, Default, Args)]
pub struct SettingsArguments {
    /// Read this configuration file instead of the usual one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Set one value, before environment and file; `underpass config` lists them
    #[arg(long, value_name = "KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,
}

/// Say whether a program can go fast here, and what to do where it cannot
///
/// Looks at the program's file, or at a process that runs already, and at what Underpass needs of this system. Changes nothing.
/// Some things show only when a program runs: `underpass run --stats` says of each connection why it was not fast.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass doctor redis-server
  underpass doctor $(pgrep -n redis-server)
  underpass doctor --json ./server

Exit code: 0 if it can go fast, 1 if something keeps it on kernel TCP, 2 if there is no such program or process, 125 if \
Underpass itself fails."
)]
pub struct DoctorArguments {
    /// A program, looked up in PATH, or the number of a process
    #[arg(value_name = "PROGRAM|PID", value_hint = ValueHint::CommandName)]
    pub subject: OsString,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

/// Run a program on kernel TCP and under Underpass, and compare what it does
///
/// The program is run several times, by turns. Compared are what it writes to standard output and standard error, how
/// it ends, and how long it takes. A round under Underpass must do what one on kernel TCP did. The number of
/// connections that went fast is shown too: if none did, the comparison proves nothing. Both ends of a connection have
/// to be started by the program, or run under Underpass already.
///
/// Standard input is read to its end once and given to each run; a terminal is not read. What the program leaves running in its
/// process group is ended after each run. Ctrl-C ends the program and the comparison.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    override_usage = "underpass diff [OPTIONS] [--] PROGRAM [ARGUMENT]...",
    after_help = "Examples:
  underpass diff -- ./run-my-tests.sh
  underpass diff --at-once --rounds 5 --ignore 'took [0-9.]+ s' -- make check
  underpass diff --json -- sh -c './server & ./client'

Exit code: 0 if all is the same, 1 if something differs, 2 for a mistake in options or settings or a program that \
cannot be run, 125 if Underpass itself fails."
)]
pub struct DiffArguments {
    /// Runs on each side
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole::<u32, 100>, allow_negative_numbers = true)]
    pub rounds: u32,

    /// Leave out lines that match, because they differ from run to run (times, process numbers); may be repeated
    #[arg(long, value_name = "REGEX", action = ArgAction::Append)]
    pub ignore: Vec<String>,

    /// Let every connection go up to shared memory at once, so that short ones do too
    #[arg(long)]
    pub at_once: bool,

    /// End a run that takes longer
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u32, { u32::MAX as u64 }>, allow_negative_numbers = true)]
    pub timeout: Option<u32>,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,

    /// The program, looked up in PATH, and what it is given
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_names = ["PROGRAM", "ARGUMENT"],
        num_args = 1..,
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// Say what the administrator's policy lets programs do
///
/// Two ends of one user find each other by themselves. Others ask underpassd, which goes by a policy:
/// /etc/underpass/policy.toml, or the default, if there is no such file. `underpassd --check` says whether it is in order.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub struct PolicyArguments {
    /// What to say
    #[command(subcommand)]
    pub command: PolicyCommand,
}

/// What the policy can be asked.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    Explain(ExplainArguments),
}

/// Say whether connections between two processes may be fast, and what decides that
///
/// Looks at the users, groups, control groups and namespaces of both processes, asks underpassd for its state, and goes
/// through the policy as underpassd does. A rule may depend on ports: name the port of an end behind its process. A
/// user sees little of other users' processes, so root gets a fuller answer.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass policy explain 4711 4712
  underpass policy explain $(pgrep -n redis-cli) $(pgrep -n redis-server):6379
  underpass policy explain --json 4711 4712

Exit code: 0 if they may be fast, or that depends on a port; 1 if not; 2 for a mistake in options or the policy, or if there is no \
such process."
)]
pub struct ExplainArguments {
    /// Number of a process, and the port of its end
    #[arg(value_name = "PID[:PORT]", value_parser = end)]
    pub one: (u32, Option<u16>),

    /// The other process
    #[arg(value_name = "PID[:PORT]", value_parser = end)]
    pub other: (u32, Option<u16>),

    /// The policy, in place of /etc/underpass/policy.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

fn end(text: &str) -> Result<(u32, Option<u16>), String> {
    let (pid, port) = text.split_once(':').map_or((text, None), |(pid, port)| (pid, Some(port)));
    let port =
        port.map(|port| port.parse().ok().filter(|port| *port > 0).ok_or("the port is a number from 1 to 65535"));
    Ok((process(pid)?, port.transpose()?))
}

/// List the connections of programs that run under Underpass, and the path of each
///
/// Lists every TCP connection of this user's programs under Underpass, in this network and IPC namespace, as `ss -t`
/// does, with the path of each direction. Root sees the connections of all users in all namespaces. The programs are
/// not disturbed: their tables are read, for a moment and without a lock.
///
/// "ring" is shared memory, "kernel" is kernel TCP. "Out" is the direction from this process, "in" is the direction to
/// it. "Unread" is what was sent and not yet received, in the ring. Bytes count from the beginning of the connection;
/// where `run --stats` follows a process, that process subtracts what it has already reported. "Waits" are receives
/// that found nothing. A wait polls before it sleeps, unless the mean of the last waits is above spin_us. The reason
/// says why a connection is on kernel TCP: see docs/reasons.md. "-" means that a connection has carried too little to
/// have counters.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underpass ss
  underpass ss --stats
  underpass ss --json | jq '.connections[] | select(.out.path == \"kernel\") | .reason'")]
pub struct SsArguments {
    /// Show what `run --stats` has counted so far, by process, instead of the connections
    ///
    /// There is a table for each `underpass run --stats`, `diff` and `bench` of this user that runs now. It has the connections
    /// that have ended and those that are still open. The reasons are told when a connection ends.
    #[arg(long)]
    pub stats: bool,

    /// As JSON, with the sizes in bytes
    #[arg(long)]
    pub json: bool,
}

/// Watch the connections of programs that run under Underpass
///
/// What `underpass ss` lists, live and busiest first: bytes by path, doorbells and sleeps, all as rates per second.
/// Each connection is listed by its ends, so one between two programs under Underpass has two lines. The first lines
/// are the sums of what is shown and the share that went fast; below the list are the details of the chosen line.
///
/// The programs are not disturbed: their tables are read at each look, for a moment and without a lock.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:
  underpass top
  underpass top --interval 5
  underpass top --json | jq '.connections[0].rates'",
    after_long_help = "Keys:
  q, Ctrl-C    end
  s            sort by the next: traffic, bytes sent, bytes received, bytes by kernel TCP, unread,
               doorbells, sleeps, process
  r            reverse the order
  p            pause, or go on
  /            show only lines with this text: process, addresses or reason; Esc clears it
  arrows, PgUp, PgDn, Home, End
               choose a line

Examples:
  underpass top
  underpass top --interval 5
  underpass top --json | jq '.connections[0].rates'"
)]
pub struct TopArguments {
    /// Time from one look to the next, from 0.1 to 3600
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval, allow_negative_numbers = true)]
    pub interval: Duration,

    /// Print the rates of one interval as a table, and end; needs no terminal
    #[arg(long)]
    pub once: bool,

    /// As JSON (implies --once)
    #[arg(long)]
    pub json: bool,
}

/// Move a live connection to kernel TCP, and keep it there
///
/// Both directions go down at the next byte that is sent in each, whichever end sends it, and stay down until
/// `underpass unpin` or the end of the connection. A connection that is not fast yet is kept from going up. No byte is
/// lost, and neither program notices. `underpass ss` lists processes and descriptors, and shows the reason `asked` for
/// a pinned connection.
///
/// It is the connection that is pinned, in all processes that have it, and by either of its ends.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass pin 4711 8
  underpass pin --all $(pgrep -n redis-server)

Exit code: 0 if it is pinned, also where it goes down only with the next byte; 1 if it cannot be; 2 for a mistake in \
options, or if there is no such process or connection."
)]
pub struct PinArguments {
    #[command(flatten)]
    pub which: Which,

    /// Wait so long at most until both directions have gone down
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, allow_negative_numbers = true)]
    pub wait: f64,
}

/// Let a connection go up again that `underpass pin` has moved to kernel TCP
///
/// Each direction may go up with the next byte that is sent in it. A connection that Underpass itself keeps on kernel
/// TCP for good stays there; the reason is shown.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass unpin 4711 8
  underpass unpin --all $(pgrep -n redis-server)

Exit code: 0 if it may go up; 2 for a mistake in options, if there is no such process or connection, or if it stays on \
kernel TCP for another reason."
)]
pub struct UnpinArguments {
    #[command(flatten)]
    pub which: Which,

    /// Wait so long at most until both directions have gone up
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, allow_negative_numbers = true)]
    pub wait: f64,
}

/// Which connections are meant.
#[derive(Debug, Args)]
pub struct Which {
    /// Number of a process that has it
    #[arg(value_name = "PID", value_parser = process, allow_negative_numbers = true)]
    pub pid: u32,

    /// Its descriptor there
    #[arg(
        value_name = "FD",
        required_unless_present = "all",
        conflicts_with = "all",
        value_parser = descriptor,
        allow_negative_numbers = true
    )]
    pub fd: Option<u32>,

    /// All connections of the process
    #[arg(long)]
    pub all: bool,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}

fn process(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the number of a process is needed; `underpass ss` lists them".into())
}

fn descriptor(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the number of a descriptor is needed; `underpass ss` lists them, as in \"fd 8\"".into())
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.1 to 3600 is needed".into())
}

/// Tell Prometheus how the connections of programs under Underpass fare
///
/// Prints sums by process in the text format of Prometheus: connections by path and by reason, bytes by path and direction,
/// doorbells, sleeps, and what is unread. With --file or --listen it goes on until it is ended.
///
/// The programs are not disturbed: their tables are read at each look, for a moment and without a lock. What a connection
/// carried after the last look before its end is not counted.
///
/// The output also says whether underpassd answers. Only root, and the user that underpassd runs as, are told how much
/// it does (meetings, refusals by reason, clients, pools and their bytes).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underpass metrics
  sudo underpass metrics                  (with the figures of underpassd)
  underpass metrics --file /var/lib/node_exporter/underpass.prom --interval 15
  underpass metrics --listen 127.0.0.1:9464")]
pub struct MetricsArguments {
    /// Write them to this file again and again, for the textfile collector of node_exporter, which wants .prom at the end
    ///
    /// The file is replaced as a whole each time, and removed at the end.
    #[arg(long, value_name = "PATH", group = "goes_on", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// Answer HTTP at this loopback address and port, under /metrics
    #[arg(long, value_name = "ADDRESS:PORT", group = "goes_on", value_parser = loopback)]
    pub listen: Option<SocketAddr>,

    /// Time from one look to the next, from 0.1 to 3600 (default: 5)
    #[arg(
        long,
        short,
        value_name = "SECONDS",
        requires = "goes_on",
        value_parser = interval,
        allow_negative_numbers = true
    )]
    pub interval: Option<Duration>,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "an address and a port are needed, such as 127.0.0.1:9464 or [::1]:9464")?;
    if !address.ip().is_loopback() {
        return Err(
            "only loopback addresses, such as 127.0.0.1 and [::1]: which programs you run is not for the network, and \
                    nobody is asked for a password"
                .into(),
        );
    }
    Ok(address)
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n| (0.0..=3600.0).contains(n));
    number.ok_or_else(|| "a number of seconds from 0 to 3600 is needed".into())
}

/// Write what fast connections carry to a file for Wireshark, as tcpdump does for kernel TCP
///
/// The bytes of a connection that goes through shared memory are on no network interface, so tcpdump does not see them.
/// While this command runs, your programs under Underpass (for root, the programs of all users in all namespaces) copy
/// what they send through shared memory to a buffer of this command, which writes it as TCP packets with real addresses
/// and ports, the position in the stream as sequence number, and the time of sending. The handshake is made up when a
/// connection is first seen; its comment names the processes. What goes by kernel TCP, as the beginning of each
/// connection does, is left to tcpdump; where it lies between captured bytes, Wireshark says that they were not
/// captured.
///
/// The programs may have been started before this command, or may start later. Until the capture ends, each of their
/// sends takes one or two microseconds longer, and some 15 after a sleep. If they send more than can be written, they
/// do not wait: the rest is dropped, and the command says so. If this command is killed, its buffer goes with it, and
/// the programs go on as before.
///
/// Filter: conditions joined by "and": port NUMBER, host ADDRESS, pid NUMBER. A condition selects both directions of a
/// connection if either end matches.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass capture -w redis.pcapng port 7000
  underpass capture -w - --duration 10 | tshark -r - -z follow,tcp,ascii,0

Exit code: 0; 1 if another capture is under way, there is no shared memory, or the disk is full; 2 for a mistake in options or \
the filter, or a file that this user cannot write to."
)]
pub struct CaptureArguments {
    /// The file to write (pcapng); "-" for standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub write: PathBuf,

    /// End after so many packets
    #[arg(long, short, value_name = "N", value_parser = whole::<u64, { u64::MAX }>, allow_negative_numbers = true)]
    pub count: Option<u64>,

    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u32, { u32::MAX as u64 }>, allow_negative_numbers = true)]
    pub duration: Option<u32>,

    /// Size of the buffer, in MiB, rounded up to a power of two
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = whole::<u32, 1024>, allow_negative_numbers = true)]
    pub buffer: u32,

    /// Print the totals as JSON at the end, on standard error
    #[arg(long)]
    pub json: bool,

    /// Which connections, as in: port 7000 and host 127.0.0.1
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    pub filter: Vec<String>,
}

fn whole<N: TryFrom<u64>, const MOST: u64>(text: &str) -> Result<N, String> {
    let number = text.parse().ok().filter(|n| (1..=MOST).contains(n)).and_then(|n| n.try_into().ok());
    number.ok_or_else(|| format!("a whole number from 1 to {MOST} is needed"))
}

/// Measure kernel TCP against Underpass with unmodified programs
///
/// Prints a table with ratios as it goes. Each figure is the median of several samples, taken in turn on kernel TCP and under
/// Underpass in this one run. A figure whose connections did not go fast is marked as invalid, not shown.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct BenchArguments {
    /// What to measure
    #[arg(value_enum)]
    pub suite: SuiteName,

    /// Only figures with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,

    /// With checksum or all: measure a GPU by NVIDIA too, after comparing what it computes with the processor
    #[arg(long)]
    pub gpu: bool,

    /// Write the record, with every sample and the host, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub json: Option<PathBuf>,

    /// Write every sample as a line of CSV
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub csv: Option<PathBuf>,

    /// Write a report with plots as one HTML file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,

    #[command(flatten)]
    pub measure: MeasureArguments,
}

/// The suites of the lab.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SuiteName {
    /// Round trips, over message size and ways to wait
    Pingpong,
    /// Throughput, over write size
    Stream,
    /// Real servers with their load generators, from Redis to MariaDB, as far as they are installed
    Apps,
    /// Connecting, many pairs at once, idle connections, waking, start-up
    Setup,
    /// What goes through underpassd: programs of two users against one user's, meetings, the daemon at rest; needs root
    Broker,
    /// The protocol engine: 0 to 3 layers of transport over a looped-back link, in line and by a thread for each
    Layers,
    /// Link drivers over a veth pair between two network namespaces: AF_XDP and its algorithms, packet sockets, kernel UDP;
    /// needs root
    Driver,
    /// Checksums, and a receive path that skips them, computes them, or gives them to a GPU, over a veth pair; the path needs root
    Checksum,
    /// All of these
    All,
}

/// Show within three minutes what to expect, and leave a record and a report
///
/// Measures echoes, streams, and Redis, memcached, nginx and PostgreSQL as far as they are installed, on kernel TCP and
/// under Underpass in turn. The record (JSON) and the report (HTML) are written to a directory, named by date and host.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = "records", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,

    /// Measure everything, as `underpass bench all` does: half an hour
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub measure: MeasureArguments,
}

/// Draw records as one HTML page, with the figures of the papers beside them
///
/// The records are those that `underpass bench --json`, `underpass demo`, `underpass survey` and `underpass advise --check --json`
/// write. Each record is drawn by itself: figures of different hosts or versions never share a chart. The page is one file that any
/// browser opens without a network.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass report records/2026-11-23.json
  underpass report --output all.html records/*-2026-11-23.json

Exit code: 0; 1 if a record cannot be read, is damaged or of another version, or the page cannot be written; 2 for a mistake in \
options."
)]
pub struct ReportArguments {
    /// The page to write
    #[arg(long, short, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,

    /// Records
    #[arg(required = true, value_name = "RECORD", value_hint = ValueHint::FilePath)]
    pub records: Vec<PathBuf>,
}

/// Say from records where protocol work should run, what that gains, and how sure that is
///
/// The advice covers each piece of work that was measured in more than one way (transport, layers, link, driver's
/// algorithms, checksum, encryption, endpoint), for each range of message sizes. It says which way to take, the gain over the default with
/// its 95 % interval, and the rows of the record that it is based on. A way is advised if it is surely better, by 5 %
/// or more. If nothing is sure, a way that is probably better is advised, and the advice says so. The answers "no
/// offload" and "not distinguishable" mean the default. What was not measured is listed with the command that measures
/// it.
///
/// The placement is written as TOML too, for programs.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass advise records/layers-2026-11-23.json records/driver-2026-11-23.json
  underpass advise --output placement.toml records/*-2026-11-23.json
  underpass advise --check --json check.json --record checked.json --minutes 20 records/*.json

Exit code: 0; 1 if a record cannot be read, is damaged or of another version, the placement cannot be written, or a check was ended \
before its end; 2 for a mistake in options."
)]
pub struct AdviseArguments {
    /// Write the placement to this file
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// Measure the advised way against every other that can run here, at sizes between those of the records, and say how far off
    /// the predictions were; only for records of a host with the same processors
    #[arg(long)]
    pub check: bool,

    /// With --check: write the cases, with each predicted and measured gain, as JSON
    #[arg(long, value_name = "FILE", requires = "check", value_hint = ValueHint::FilePath)]
    pub json: Option<PathBuf>,

    /// With --check: write what was measured as a record, after each experiment; what the record has from an earlier
    /// run of the same check is not measured again
    #[arg(long, value_name = "FILE", requires = "check", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,

    /// With --check: begin no experiment when so many minutes are over; the same command with the same --record goes on
    #[arg(long, value_name = "N", requires = "check", value_parser = whole::<u32, 10_000>, allow_negative_numbers = true)]
    pub minutes: Option<u32>,

    /// With --check: the endpoints of a survey, as for underpass survey; the endpoints of survey --local are made again
    /// without this, as root
    #[arg(long, value_name = "ENDPOINTS", requires = "check", value_hint = ValueHint::FilePath)]
    pub endpoints: Option<PathBuf>,

    /// With --check: measure a GPU by NVIDIA too
    #[arg(long, requires = "check")]
    pub gpu: bool,

    /// With --check: the seed of the order of measurements
    #[arg(long, default_value_t = 1, requires = "check")]
    pub seed: u64,

    #[command(flatten)]
    pub measure: MeasureArguments,

    /// Records
    #[arg(required = true, value_name = "RECORD", value_hint = ValueHint::FilePath)]
    pub records: Vec<PathBuf>,
}

/// How to measure.
#[derive(Debug, Args)]
pub struct MeasureArguments {
    /// Samples of each side (default: 5, of checksum 10, of demo 3, with --quick 1)
    #[arg(long, value_name = "N", value_parser = whole::<usize, 1000>, allow_negative_numbers = true)]
    pub samples: Option<usize>,

    /// Shorter and fewer, to see that all works; not for quoting
    #[arg(long)]
    pub quick: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

/// Measure throughput and latency between every ordered pair of endpoints
///
/// Endpoints are hosts, a SmartNIC's own cores, virtual machines, containers and network namespaces, each with
/// `underpass agent`. Throughput is measured by iperf3, latency by sockperf or qperf, idle and beside a stream, and a
/// file is sent over TLS by OpenSSL, encrypted by the sender or by the SmartNIC beside it. Processor time is taken at
/// both ends. Pairs between which Underpass has a fast path (one host, network namespace and user, and the library at
/// both) are measured under Underpass too, and so is each endpoint with itself. The order of all samples is mixed by a
/// seed, which is printed.
///
/// The record (JSON) has every sample. Until it is written, each sample is kept in a journal beside it; the same command goes on
/// where an interrupted one has ended, and measures nothing twice.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass survey --local --quick
  underpass survey endpoints.toml --json survey.json",
    after_long_help = "Examples:
  underpass survey --local --quick
  underpass survey endpoints.toml --json survey.json

ENDPOINTS is a file like this; docs/guide.md describes all of it:
  token = \"underpass.token\"

  [[endpoint]]
  name = \"host-a\"
  kind = \"host\"
  address = \"10.0.0.1\"
  agent = \"10.0.0.1:7471\"

  [[endpoint]]
  name = \"nic-a\"
  kind = \"smartnic\"
  system = \"host-a\"
  address = \"10.0.0.2\"
  start = [\"ssh\", \"nic-a\", \"underpass\", \"agent\", \"--stdio\"]

Exit code: 0 if all was measured, or is named as left out; 1 if an endpoint cannot be reached, was lost, or Ctrl-C ended it; 2 \
for a mistake in options or files."
)]
pub struct SurveyArguments {
    /// The file that names the endpoints (TOML)
    #[arg(value_name = "ENDPOINTS", required_unless_present = "local", conflicts_with = "local", value_hint = ValueHint::FilePath)]
    pub endpoints: Option<PathBuf>,

    /// Make two hosts and two slower SmartNICs of network namespaces, and measure those for ten minutes; needs root
    #[arg(long)]
    pub local: bool,

    /// With --local: two minutes, to see that all works; not for quoting
    #[arg(long, requires = "local", conflicts_with = "endpoints")]
    pub quick: bool,

    /// With --local: the SmartNICs' tools are the Arm builds in this directory, under qemu-user; packaging/arm-tools makes it
    #[arg(long, requires = "local", conflicts_with = "endpoints", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub arm: Option<PathBuf>,

    /// Seed of the order (default: a random one, or that with which an interrupted survey began)
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Where the record is written
    #[arg(long, value_name = "FILE", default_value = "survey.json", value_hint = ValueHint::FilePath)]
    pub json: PathBuf,

    /// Write every sample as a line of CSV too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub csv: Option<PathBuf>,
}

/// Take part in a survey: measure what `underpass survey` asks for
///
/// An agent knows a list of measurements and nothing else: no request names a program or a file. It serves one
/// coordinator at a time, and ends what it has started when the coordinator is gone.
///
/// A coordinator proves that it knows the token: the content of a file that only its owner can read, the same at both.
/// The token is never sent. The messages between the two are not secret, but cannot be changed on the way. Measurements
/// themselves are not protected: their servers listen at the endpoint's address while they run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underpass agent
  underpass agent --listen 10.0.0.1:7471 --token underpass.token --ports 20000-20015
  ssh nic-a underpass agent --stdio        (by underpass survey)")]
pub struct AgentArguments {
    /// Where to listen; from other computers it can be reached only at an address of theirs
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7471")]
    pub listen: SocketAddr,

    /// The file with the token, mode 0600; it is made with a new token if it is not there
    #[arg(long, value_name = "FILE", default_value = "underpass.token", value_hint = ValueHint::FilePath)]
    pub token: PathBuf,

    /// Serve the program that started this one, by standard input and output; no token is needed
    #[arg(long, conflicts_with_all = ["listen", "token"])]
    pub stdio: bool,

    /// Take the tools' Arm builds in this directory and run them under qemu-user, as an emulated endpoint does
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub arm: Option<PathBuf>,

    /// Ports for the servers of measurements, as a firewall lets them through (default: any)
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports)]
    pub ports: Option<(u16, u16)>,
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let parts = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    // A figure takes three at a time: a server, that of a stream beside it, and a relay.
    let range = parts.filter(|(first, last): &(u16, u16)| *first > 0 && *last >= first.saturating_add(3));
    range.ok_or_else(|| "two ports at least 3 apart are needed, such as 20000-20015".into())
}

/// Show the effective configuration and where each value came from
///
/// A value is taken from --set, else from the variable of its name, else from the configuration file, else it is the default.
/// The file is that of --config, else that of $UNDERPASS_CONFIG, else $XDG_CONFIG_HOME/underpass/underpass.toml
/// (~/.config/underpass/underpass.toml), else /etc/underpass.toml; the last two may be missing.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// As JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

/// Print the completions for a shell
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct CompletionsArguments {
    /// The shell
    pub shell: Shell,
}

/// Print the manual page, or write all pages to a directory
#[derive(Debug, Args)]
pub struct ManArguments {
    /// The page of this subcommand
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    pub page: Option<String>,

    /// Write all pages to this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
}

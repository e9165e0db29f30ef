//! Arguments of `underpass survey` and `underpass agent`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Measure throughput and latency between every ordered pair of endpoints
///
/// Endpoints are hosts, a SmartNIC's own cores, virtual machines, containers and network namespaces, each with
/// `underpass agent`. Throughput is measured by iperf3, latency by sockperf or qperf, idle and beside a stream, and a
/// file is sent over TLS by OpenSSL, encrypted by the sender or by the SmartNIC beside it. Processor time is taken at
/// both ends. Pairs between which Underpass has a fast path (one host, network namespace and user, and the library at
/// both) are measured under Underpass too, and so is each endpoint with itself. The order of all samples is mixed by a
/// seed, which is printed.
///
/// The record (JSON) has every sample. Until it is written, each sample is kept in a journal beside it; the same
/// command goes on where an interrupted one has ended, and measures nothing twice.
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

Exit code: 0 if all was measured, or is named as left out; 1 if an endpoint cannot be reached, was lost, or Ctrl-C \
ended it; 2 for a mistake in options or files."
)]
pub struct SurveyArguments {
    /// The file that names the endpoints (TOML)
    #[arg(
        value_name = "ENDPOINTS",
        required_unless_present = "local",
        conflicts_with = "local",
        value_hint = ValueHint::FilePath
    )]
    pub endpoints: Option<PathBuf>,

    /// Make two hosts and two slower SmartNICs of network namespaces, and measure those for ten minutes; needs root
    #[arg(long)]
    pub local: bool,

    /// With --local: two minutes, to see that all works; not for quoting
    #[arg(long, requires = "local", conflicts_with = "endpoints")]
    pub quick: bool,

    /// With --local: latency by sockperf, which tells p50, p99 and p99.9 of the single exchanges; takes a quarter of an
    /// hour, with --quick two and a half minutes
    #[arg(long, requires = "local", conflicts_with = "endpoints")]
    pub percentiles: bool,

    /// With --local: the SmartNICs' tools are the Arm builds in this directory, under qemu-user; packaging/arm-tools
    /// makes it
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
    // A figure takes three at a time, of which qperf's two are neighbours, and the third that of a stream beside it:
    // of four ports two neighbours are always left.
    let range = parts.filter(|(first, last): &(u16, u16)| *first > 0 && *last >= first.saturating_add(3));
    range.ok_or_else(|| "two ports at least 3 apart are needed, such as 20000-20015".into())
}

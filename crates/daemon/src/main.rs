//! `underpassd`: tells the ends of TCP connections on one host who is at the other end, and which memory they may share, where
//! they cannot tell themselves: because they are of different users, or in different namespaces. It carries no bytes.
//!
//! [`server`] is the loop. A client's packet is taken by [`lanes`] ([`packet`], [`facts`]), whatever it is, and its connection
//! is let go of by the [`undertaker`]. [`exchange`]
//! decides who meets whom, by what the kernel attests ([`evidence`], [`process`]) and what the administrator allows
//! ([`policy`], [`limits`]), and gives out [`memory`]. The wire is the crate `underpass-broker`.

mod evidence;
mod exchange;
mod facts;
mod lanes;
mod limits;
mod listener;
mod memory;
mod packet;
mod policy;
mod process;
mod server;
mod sys;
mod undertaker;

use clap::Parser;
use evidence::Kernel;
use evidence::addresses::Addresses;
use evidence::numbers::{self, Numbers};
use limits::Limits;
use listener::Listener;
use policy::Policy;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::Server;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing::{error, info, warn};
use undertaker::Undertaker;

#[derive(Debug, Parser)]
#[command(
    name = "underpassd",
    version,
    about = "Lets connections between users and containers of this host share memory",
    after_help = "Two ends share memory if both are of one user, or if both users are members of the group.\n\
                  Root, or CAP_BPF and CAP_NET_ADMIN, is needed to prove connections between network namespaces."
)]
struct Options {
    /// Stay in the foreground and log to standard error; a service manager puts it in the background
    #[arg(long, required = true)]
    foreground: bool,
    /// The Unix socket that programs ask at
    #[arg(long, value_name = "PATH", default_value = underpass_broker::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The group whose members may share memory with one another
    #[arg(long, value_name = "NAME", default_value = "underpass")]
    group: String,
    /// The cgroup (of cgroup2) whose connections are proven by sequence numbers; without it, all
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Load no BPF program: only connections within one network namespace are proven
    #[arg(long, conflicts_with = "cgroup")]
    no_bpf: bool,
    /// What is logged
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug"])]
    log: String,
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{0}")]
    Listen(#[from] listener::ListenError),
    #[error(
        "nothing can be proven here: neither does a BPF program load, nor does the kernel answer questions about sockets"
    )]
    NoEvidence,
    #[error("{0}")]
    System(#[from] io::Error),
}

fn main() -> ExitCode {
    let options = Options::parse();
    let level = options.log.parse().unwrap_or(tracing::Level::INFO);
    tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(false).init();
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<(), StartError> {
    let undertaker = start_undertaker()?;
    let (signals, sender) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    let group = sys::group_named(&options.group)?;
    if group.is_none() {
        warn!(
            group = options.group,
            "there is no such group: only processes of one user share memory; groupadd makes it"
        );
    }
    let limits = Limits::within(raise_descriptors());
    let evidence = Kernel { numbers: sequence_numbers(options), addresses: addresses() };
    if evidence.numbers.is_none() && evidence.addresses.is_none() {
        return Err(StartError::NoEvidence);
    }
    let listener = Listener::at(&options.socket)?;
    let server = Server::new(listener, signals, undertaker, evidence, Policy { group }, limits)?;
    info!(socket = %options.socket.display(), "underpassd listens");
    server.run()?;
    info!("underpassd ends; connections that have met go on");
    Ok(())
}

#[allow(unsafe_code, reason = "forks")]
fn start_undertaker() -> io::Result<Undertaker> {
    // SAFETY: no thread has been started yet.
    unsafe { Undertaker::start() }
}

/// As many descriptors as the hard limit allows; how many.
fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let highest = Rlimit { current: limit.maximum, ..limit };
    let limit = if setrlimit(Resource::Nofile, highest).is_ok() { highest } else { limit };
    limit.current.unwrap_or(u64::MAX)
}

fn sequence_numbers(options: &Options) -> Option<Numbers> {
    const REMEDY: &str = "only connections within one network namespace are proven";
    if options.no_bpf {
        return None;
    }
    let cgroup = match &options.cgroup {
        Some(path) => path.clone(),
        None => match numbers::cgroup2() {
            Ok(Some(path)) => path,
            Ok(None) => {
                warn!("no cgroup2 file system is mounted (mount -t cgroup2 none FOLDER): {REMEDY}");
                return None;
            }
            Err(error) => {
                warn!(%error, "/proc/self/mounts cannot be read: {REMEDY}");
                return None;
            }
        },
    };
    match Numbers::attach(&cgroup) {
        Ok(numbers) => {
            info!(cgroup = %cgroup.display(), "connections that begin from now on are proven by their sequence numbers");
            Some(numbers)
        }
        Err(error) => {
            warn!(%error, cgroup = %cgroup.display(), "no BPF program (CAP_BPF and CAP_NET_ADMIN are needed): {REMEDY}");
            None
        }
    }
}

fn addresses() -> Option<Addresses> {
    let addresses = Addresses::open();
    if let Err(error) = &addresses {
        warn!(%error, "the kernel does not answer questions about sockets (sock_diag, SO_NETNS_COOKIE of Linux 5.14)");
    }
    addresses.ok()
}

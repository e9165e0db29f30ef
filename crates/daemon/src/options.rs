//! The command line of the daemon.

use clap::Parser;
use std::path::PathBuf;

/// Let connections between users and containers of this host share memory
///
/// Programs under Underpass ask underpassd about connections whose other end they cannot see: an end of another user,
/// in another namespace, or of a server that has changed its user. The daemon has the kernel prove which process is at
/// the other end, and gives both ends memory if the policy allows that. It carries no bytes: without it, such
/// connections are on kernel TCP.
///
/// The policy is read at the start and at SIGHUP. A wrong policy at the start ends the daemon. A wrong policy at SIGHUP
/// is logged, and the old one stays in force. Connections that are fast already stay as they are.
#[derive(Debug, Parser)]
#[command(
    name = "underpassd",
    version,
    max_term_width = 100,
    after_help = "Examples:
  underpassd --check
  underpassd --foreground --socket /run/underpass/broker.sock
  systemctl enable --now underpassd.service
  systemctl reload underpassd

Exit code: 0 when a signal ended it, or the policy is in order; 1 if it cannot start or go on at present, or --check \
finds the policy wrong; 2 for a mistake in options; 3 if it cannot start until somebody changes something: a wrong \
policy, a system on which it could prove nothing, or the wrong kind of socket."
)]
pub struct Options {
    /// Stay in the foreground and log to standard error; a service manager puts it in the background
    #[arg(long, required_unless_present = "check", conflicts_with = "check")]
    pub foreground: bool,

    /// Check the policy, say what it allows, and end
    #[arg(long)]
    pub check: bool,

    /// The policy, in place of /etc/underpass/policy.toml, which may be missing: the same user, and members of the
    /// group underpass
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// No file: the same user, and members of this group
    #[arg(long, value_name = "NAME", conflicts_with = "policy")]
    pub group: Option<String>,

    /// The Unix socket that programs ask at, unless a service manager hands one over
    #[arg(long, value_name = "PATH", default_value = underpass_broker::DEFAULT_SOCKET)]
    pub socket: PathBuf,

    /// The cgroup (of cgroup2) whose connections are proven by sequence numbers; without it, all
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Load no BPF program: only connections within the daemon's network namespace are proven
    #[arg(long, conflicts_with = "cgroup")]
    pub no_bpf: bool,

    /// Routes to other hosts, whose daemons carry streams together with this one
    #[arg(long, value_name = "FILE", hide = true)]
    pub routes: Option<PathBuf>,

    /// What is logged
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug"])]
    pub log: String,
}

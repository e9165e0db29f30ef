//! Arguments of `underpass policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::settings::SettingsArguments;
use super::values::process;

/// Say what the administrator's policy lets programs do
///
/// Two ends of one user find each other by themselves. Others ask underpassd, which goes by a policy:
/// /etc/underpass/policy.toml, or the default, if there is no such file. `underpassd --check` says whether it is in
/// order.
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

Exit code: 0 if they may be fast, or that depends on a port; 1 if not; 2 for a mistake in options or the policy, or if \
there is no such process."
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

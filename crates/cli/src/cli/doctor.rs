//! Arguments of `underpass doctor`.

use std::ffi::OsString;

use clap::{Args, ValueHint};

use super::settings::SettingsArguments;

/// Say whether a program can go fast here, and what to do where it cannot
///
/// Looks at the program's file, or at a process that runs already, and at what Underpass needs of this system. Changes
/// nothing. Some things show only when a program runs: `underpass run --stats` says of each connection why it was not
/// fast.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass doctor redis-server
  underpass doctor $(pgrep -n redis-server)
  underpass doctor --json ./server

Exit code: 0 if it can go fast, 1 if something keeps it on kernel TCP, 2 if there is no such program or process, 125 \
if Underpass itself fails."
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

//! Arguments of `underpass completions` and `underpass man`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::Shell;

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

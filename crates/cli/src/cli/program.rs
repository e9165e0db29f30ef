//! The arguments that name a program to be run, and say how its connections go.

use std::ffi::OsString;

use clap::{Args, ValueHint};

use super::settings::SettingsArguments;

/// A program to be run under Underpass.
#[derive(Debug, Args)]
pub struct ProgramArguments {
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

impl ProgramArguments {
    /// What `--at-once` and then `--set`, which is stronger, say.
    pub fn set(&self) -> Vec<String> {
        let at_once = ["go_up_messages=0", "go_up_bytes=0"].map(String::from).into_iter().filter(|_| self.at_once);
        at_once.chain(self.settings.set.iter().cloned()).collect()
    }

    /// The program and what it is given, as people read it.
    pub fn words(&self) -> Vec<String> {
        self.command.iter().map(|it| it.to_string_lossy().into_owned()).collect()
    }
}

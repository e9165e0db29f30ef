//! Where a command's settings come from, and the arguments of `underpass config`.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueHint};

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

/// Show the effective configuration and where each value came from
///
/// A value is taken from --set, else from the variable of its name, else from the configuration file, else it is the
/// default. The file is that of --config, else that of $UNDERPASS_CONFIG, else
/// $XDG_CONFIG_HOME/underpass/underpass.toml (~/.config/underpass/underpass.toml), else /etc/underpass.toml; the last
/// two may be missing.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// As JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

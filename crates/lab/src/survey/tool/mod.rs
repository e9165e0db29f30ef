//! The existing tools: how each is called, and what it must print for its figure to count.
//!
//! Each parser takes nothing but what the tool prints when all went well; anything else is an error that says what was
//! missing.

pub mod iperf3;
pub mod openssl;
pub mod qperf;
pub mod sockperf;

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::child::Child;
use super::record::{Tool, ToolVersion};

/// How long a tool may take to say its version, also on a slow processor.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a tool printed is not what it prints when all went well.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{tool} {what}")]
pub struct NotRead {
    tool: &'static str,
    what: String,
}

impl NotRead {
    fn new(tool: Tool, what: impl Into<String>) -> NotRead {
        NotRead { tool: tool.program(), what: what.into() }
    }
}

/// Why a tool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// There is none.
    #[error("{0} is not installed (Debian: apt-get install {0})")]
    Missing(&'static str),
    /// It says nothing that could be its version.
    #[error("{0} does not say its version: {1}")]
    NoVersion(&'static str, String),
    /// It lacks what is needed.
    #[error("{tool} {found} is too old; {least} or later is needed")]
    TooOld {
        /// The tool.
        tool: &'static str,
        /// Its version.
        found: String,
        /// The oldest that can be used.
        least: &'static str,
    },
}

/// The version of a tool that can be used; `command` starts it.
///
/// # Errors
/// [`Unusable`].
pub fn version(tool: Tool, mut command: Command) -> Result<ToolVersion, Unusable> {
    let program = tool.program();
    let argument = if tool == Tool::Openssl { "version" } else { "--version" };
    let child = Child::start(command.arg(argument)).map_err(|_| Unusable::Missing(program))?;
    let output = child
        .finish(PATIENCE, &AtomicBool::new(false))
        .map_err(|error| Unusable::NoVersion(program, error.to_string()))?;
    judge(tool, &output.stdout)
}

fn judge(tool: Tool, text: &str) -> Result<ToolVersion, Unusable> {
    // `iperf 3.12 (cJSON 1.7.15)`, `sockperf, version 3.7-no.git`, `qperf 0.4.11`, `OpenSSL 3.0.19 27 Jan 2026 (…)`.
    let (before, least) = match tool {
        Tool::Iperf3 => ("iperf ", "3.7"),
        Tool::Openssl => ("OpenSSL ", "1.1.1"),
        Tool::Qperf => ("qperf ", "0.4.10"),
        Tool::Sockperf => ("sockperf, version ", "3.6"),
    };
    let program = tool.program();
    let none = || Unusable::NoVersion(program, format!("{:?}", text.chars().take(80).collect::<String>()));
    let found = text.lines().next().and_then(|line| line.strip_prefix(before)).ok_or_else(none)?;
    let found = found.split([' ', '-', '+']).next().unwrap_or_default();
    let parts = numbers(found).ok_or_else(none)?;
    if parts < numbers(least).unwrap_or_default() {
        return Err(Unusable::TooOld { tool: program, found: found.to_string(), least });
    }
    Ok(ToolVersion { tool, version: found.to_string() })
}

/// `3.12` as numbers; OpenSSL's letter behind the last does not count.
fn numbers(version: &str) -> Option<Vec<u32>> {
    version.split('.').map(|part| part.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_old_ones_refused() {
        let version = |tool, text: &str| judge(tool, text).map(|it| it.version).map_err(|error| error.to_string());
        assert_eq!(version(Tool::Iperf3, "iperf 3.12 (cJSON 1.7.15)\nLinux"), Ok("3.12".to_string()));
        assert_eq!(version(Tool::Iperf3, "iperf 3.17.1+ (cJSON 1.7.15)"), Ok("3.17.1".to_string()));
        assert_eq!(version(Tool::Sockperf, "sockperf, version 3.7-no.git\n"), Ok("3.7".to_string()));
        assert_eq!(version(Tool::Qperf, "qperf 0.4.11\n"), Ok("0.4.11".to_string()));
        assert_eq!(version(Tool::Openssl, "OpenSSL 3.0.19 27 Jan 2026"), Ok("3.0.19".to_string()));
        assert_eq!(version(Tool::Openssl, "OpenSSL 1.1.1w  11 Sep 2023"), Ok("1.1.1w".to_string()));
        let old = version(Tool::Iperf3, "iperf 3.1.3").unwrap_err();
        assert_eq!(old, "iperf3 3.1.3 is too old; 3.7 or later is needed");
        assert!(version(Tool::Openssl, "LibreSSL 3.9").unwrap_err().contains("does not say its version"));
        assert!(version(Tool::Qperf, "").is_err());
    }

    #[test]
    fn what_is_installed_here_can_be_used() {
        for tool in Tool::ALL {
            match version(tool, Command::new(tool.program())) {
                Ok(found) => assert!(!found.version.is_empty()),
                Err(error) => eprintln!("skipped: {error}"),
            }
        }
    }
}

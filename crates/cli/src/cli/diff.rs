//! Arguments of `underpass diff`.

use clap::{ArgAction, Args};

use super::program::ProgramArguments;
use super::values::whole;

/// Run a program on kernel TCP and under Underpass, and compare what it does
///
/// The program is run several times, by turns. Compared are what it writes to standard output and standard error, how
/// it ends, and how long it takes. A round under Underpass must do what one on kernel TCP did. The number of
/// connections that went fast is shown too: if none did, the comparison proves nothing. Both ends of a connection have
/// to be started by the program, or run under Underpass already.
///
/// Standard input is read to its end once and given to each run; a terminal is not read. What the program leaves
/// running in its process group is ended after each run. Ctrl-C ends the program and the comparison.
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

    /// End a run that takes longer
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = whole::<u32, { u32::MAX as u64 }>,
        allow_negative_numbers = true
    )]
    pub timeout: Option<u32>,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub program: ProgramArguments,
}

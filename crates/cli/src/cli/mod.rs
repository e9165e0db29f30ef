//! The command line, a file for each command or group of commands. Its description is also the source of manual pages
//! and completions.

mod advise;
mod bench;
mod capture;
mod diff;
mod doctor;
mod generate;
mod policy;
mod program;
mod run;
mod settings;
mod survey;
mod values;
mod watch;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Parser, Subcommand};

pub use advise::AdviseArguments;
pub use bench::{BenchArguments, DemoArguments, MeasureArguments, ReportArguments, SuiteName};
pub use capture::CaptureArguments;
pub use diff::DiffArguments;
pub use doctor::DoctorArguments;
pub use generate::{CompletionsArguments, ManArguments};
pub use policy::{ExplainArguments, PolicyArguments, PolicyCommand};
pub use program::ProgramArguments;
pub use run::RunArguments;
pub use settings::ConfigArguments;
pub use survey::{AgentArguments, SurveyArguments};
pub use watch::{MetricsArguments, PinArguments, SsArguments, TopArguments, UnpinArguments, Which};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Move the TCP traffic of unmodified programs into shared memory, past the kernel's TCP stack.
///
/// A connection whose other end is on this host, in a program that runs under Underpass too, carries its bytes through
/// shared memory. Every other connection stays what it is, on kernel TCP. Programs are not changed and cannot tell the
/// difference.
#[derive(Debug, Parser)]
#[command(name = "underpass", version, styles = STYLES, max_term_width = 100, after_help = FIRST_STEPS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  underpass run --stats -- redis-server --port 7000
  underpass run -- redis-benchmark -p 7000 -t get";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArguments),
    Doctor(DoctorArguments),
    Diff(DiffArguments),
    Policy(PolicyArguments),
    Ss(SsArguments),
    Top(TopArguments),
    Metrics(MetricsArguments),
    Pin(PinArguments),
    Unpin(UnpinArguments),
    Capture(CaptureArguments),
    Bench(BenchArguments),
    Demo(DemoArguments),
    Report(ReportArguments),
    Advise(AdviseArguments),
    Survey(SurveyArguments),
    Agent(AgentArguments),
    Config(ConfigArguments),
    Completions(CompletionsArguments),
    Man(ManArguments),
}

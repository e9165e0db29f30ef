//! Arguments of the commands that measure and report: `underpass bench`, `demo` and `report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::settings::SettingsArguments;
use super::values::whole;

/// Measure kernel TCP against Underpass with unmodified programs
///
/// Prints a table with ratios as it goes. Each figure is the median of several samples, taken in turn on kernel TCP and
/// under Underpass in this one run. A figure whose connections did not go fast is marked as invalid, not shown.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct BenchArguments {
    /// What to measure
    #[arg(value_enum)]
    pub suite: SuiteName,

    /// Only figures with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,

    /// With checksum or all: measure a GPU by NVIDIA too, after comparing what it computes with the processor
    #[arg(long)]
    pub gpu: bool,

    /// Write the record, with every sample and the host, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub json: Option<PathBuf>,

    /// Write every sample as a line of CSV
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub csv: Option<PathBuf>,

    /// Write a report with plots as one HTML file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,

    #[command(flatten)]
    pub measure: MeasureArguments,
}

/// The suites of the lab.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SuiteName {
    /// Round trips, over message size and ways to wait
    Pingpong,
    /// Throughput, over write size
    Stream,
    /// Real servers with their load generators, from Redis to MariaDB, as far as they are installed
    Apps,
    /// Connecting, many pairs at once, idle connections, waking, start-up
    Setup,
    /// What goes through underpassd: programs of two users against one user's, meetings, the daemon at rest; needs root
    Broker,
    /// The protocol engine: 0 to 3 layers of transport over a looped-back link, in line and by a thread for each
    Layers,
    /// Link drivers over a veth pair between two network namespaces: AF_XDP and its algorithms, packet sockets, kernel
    /// UDP; needs root
    Driver,
    /// Checksums, and a receive path that skips them, computes them, or gives them to a GPU, over a veth pair; the path
    /// needs root
    Checksum,
    /// All of these
    All,
}

/// Show within three minutes what to expect, and leave a record and a report
///
/// Measures echoes, streams, and Redis, memcached, nginx and PostgreSQL as far as they are installed, on kernel TCP and
/// under Underpass in turn. The record (JSON) and the report (HTML) are written to a directory, named by date and host.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = "records", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,

    /// Measure everything, as `underpass bench all` does: half an hour
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub measure: MeasureArguments,
}

/// How to measure.
#[derive(Debug, Args)]
pub struct MeasureArguments {
    /// Samples of each side (default: 5, of checksum 10, of demo 3, with --quick 1)
    #[arg(long, value_name = "N", value_parser = whole::<usize, 1000>, allow_negative_numbers = true)]
    pub samples: Option<usize>,

    /// Shorter and fewer, to see that all works; not for quoting
    #[arg(long)]
    pub quick: bool,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

/// Draw records as one HTML page, with the figures of the papers beside them
///
/// The records are those that `underpass bench --json`, `underpass demo`, `underpass survey` and `underpass advise
/// --check --json` write. Each record is drawn by itself: figures of different hosts or versions never share a chart.
/// The page is one file that any browser opens without a network.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass report records/2026-11-23.json
  underpass report --output all.html records/*-2026-11-23.json

Exit code: 0; 1 if a record cannot be read, is damaged or of another version, or the page cannot be written; 2 for a \
mistake in options."
)]
pub struct ReportArguments {
    /// The page to write
    #[arg(long, short, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,

    /// Records
    #[arg(required = true, value_name = "RECORD", value_hint = ValueHint::FilePath)]
    pub records: Vec<PathBuf>,
}

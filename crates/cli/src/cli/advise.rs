//! Arguments of `underpass advise`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::bench::MeasureArguments;
use super::values::whole;

/// Say from records where protocol work should run, what that gains, and how sure that is
///
/// The advice covers each piece of work that was measured in more than one way (transport, broker, layers, link,
/// driver's algorithms, checksum, encryption, endpoint), for each range of message sizes. It says which way to take,
/// the gain over the default with its 95 % interval, and the rows of the record that it is based on. A way is advised
/// if it is surely better, by 5 % or more. If nothing is sure, a way that is probably better is advised, and the advice
/// says so. The answers "no offload" and "not distinguishable" mean the default. What was not measured is listed with
/// the command that measures it.
///
/// The placement is written as TOML too, for programs.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass advise records/layers-2026-11-23.json records/driver-2026-11-23.json
  underpass advise --output placement.toml records/*-2026-11-23.json
  underpass advise --check --json check.json --record checked.json --minutes 20 records/*.json

Exit code: 0; 1 if a record cannot be read, is damaged or of another version, the placement cannot be written, or a \
check was ended before its end; 2 for a mistake in options."
)]
pub struct AdviseArguments {
    /// Write the placement to this file
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// Measure the advised way against every other that can run here, at sizes between those of the records, and say
    /// how far off the predictions were; only for records of a host with the same processors
    #[arg(long)]
    pub check: bool,

    /// With --check: write the cases, with each predicted and measured gain, as JSON
    #[arg(long, value_name = "FILE", requires = "check", value_hint = ValueHint::FilePath)]
    pub json: Option<PathBuf>,

    /// With --check: write what was measured as a record, after each experiment; what the record has from an earlier
    /// run of the same check is not measured again
    #[arg(long, value_name = "FILE", requires = "check", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,

    /// With --check: begin no experiment when so many minutes are over; the same command with the same --record goes on
    #[arg(
        long,
        value_name = "N",
        requires = "check",
        value_parser = whole::<u32, 10_000>,
        allow_negative_numbers = true
    )]
    pub minutes: Option<u32>,

    /// With --check: the endpoints of a survey, as for underpass survey; the endpoints of survey --local are made again
    /// without this, as root
    #[arg(long, value_name = "ENDPOINTS", requires = "check", value_hint = ValueHint::FilePath)]
    pub endpoints: Option<PathBuf>,

    /// With --check: measure a GPU by NVIDIA too
    #[arg(long, requires = "check")]
    pub gpu: bool,

    /// With --check: the seed of the order of measurements
    #[arg(long, default_value_t = 1, requires = "check")]
    pub seed: u64,

    #[command(flatten)]
    pub measure: MeasureArguments,

    /// Records
    #[arg(required = true, value_name = "RECORD", value_hint = ValueHint::FilePath)]
    pub records: Vec<PathBuf>,
}

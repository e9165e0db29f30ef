//! `underpass report`: records as one page.

use underpass_lab::evidence::{Evidence, EvidenceError};
use underpass_lab::report;

use crate::bench::outputs;
use crate::cli::ReportArguments;
use crate::failure::Failure;
use crate::output::{print, written};

/// Reads the records and writes the page.
pub fn report(arguments: &ReportArguments) -> Result<(), Failure> {
    let evidence = Evidence::read(&arguments.records)?;
    outputs([&arguments.output], &arguments.records.iter().collect::<Vec<_>>())?;
    report::write_html(&evidence, &arguments.output)?;
    Ok(print(written([&arguments.output]))?)
}

impl From<EvidenceError> for Failure {
    fn from(error: EvidenceError) -> Failure {
        Failure::Failed(error.into())
    }
}

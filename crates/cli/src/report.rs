//! `underpass report`: records as one page.

use anyhow::Result;
use underpass_lab::evidence::Evidence;
use underpass_lab::report;

use crate::bench::writable;
use crate::cli::ReportArguments;

/// Reads the records and writes the page.
pub fn report(arguments: &ReportArguments) -> Result<()> {
    let evidence = Evidence::read(&arguments.records)?;
    writable(&arguments.output)?;
    report::write_html(&evidence, &arguments.output)?;
    println!("Written: {}", arguments.output.display());
    Ok(())
}

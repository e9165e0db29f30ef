//! `underpass advise`: where protocol work should run, from records.

use std::fs;

use anyhow::Context;
use underpass_lab::Suite;
use underpass_lab::advise::{self, check, placement::Placement};
use underpass_lab::evidence::Evidence;

use crate::bench::{options, writable};
use crate::cli::AdviseArguments;
use crate::failure::Failure;

/// Prints the advice and writes the placement.
pub fn advise(arguments: &AdviseArguments) -> Result<(), Failure> {
    let evidence = Evidence::read(&arguments.records)?;
    if let Some(file) = &arguments.output {
        writable(file)?;
    }
    let advice = advise::of(&evidence);
    print!("{advice}");
    if let Some(file) = &arguments.output {
        let text = Placement::of(&advice).to_toml().context("cannot write the placement as TOML")?;
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("\nWritten: {}", file.display());
    }
    if arguments.check { check(&evidence, arguments) } else { Ok(()) }
}

fn check(evidence: &Evidence, arguments: &AdviseArguments) -> Result<(), Failure> {
    [&arguments.json, &arguments.record].into_iter().flatten().try_for_each(|file| writable(file))?;
    println!("\nCHECK, seed {}", arguments.seed);
    let checked = check::run(evidence, &options(Suite::All, None, false, &arguments.measure)?, arguments.seed)?;
    print!("\n{}", checked.check);
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&checked.check).context("cannot write the check as JSON")?;
        fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(arguments.record.as_deref().map_or(Ok(()), |file| checked.record.write_json(file))?)
}

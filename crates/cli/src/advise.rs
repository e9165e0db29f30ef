//! `underpass advise`: where protocol work should run, from records.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use underpass_lab::advise::check::{self, OtherCheck};
use underpass_lab::advise::{self, placement::Placement};
use underpass_lab::evidence::Evidence;
use underpass_lab::replace::replace;
use underpass_lab::{Options, Suite};

use crate::bench::{end, options, writable};
use crate::cli::AdviseArguments;
use crate::failure::Failure;
use crate::{site, survey};

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
        write(file, &text)?;
        println!("\nWritten: {}", file.display());
    }
    if arguments.check { check(&evidence, arguments) } else { Ok(()) }
}

fn check(evidence: &Evidence, arguments: &AdviseArguments) -> Result<(), Failure> {
    let files = [&arguments.json, &arguments.record];
    files.into_iter().flatten().try_for_each(|file| writable(file))?;
    println!("\nCHECK, seed {}", arguments.seed);
    let options = options(Suite::All, None, arguments.gpu, &arguments.measure)?;
    let options = Options { keep: arguments.record.clone(), ..options };
    let (site, skipped) = site::again(evidence, arguments.endpoints.as_deref()).map_err(survey::failure)?;
    // What holds the endpoints outlives what is measured between them.
    let (again, _held) = site.map_or((None, None), |it| (Some((it.survey, it.again)), it.local));
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(60 * u64::from(minutes)));
    let checked = check::run(evidence, &options, check::Request { seed: arguments.seed, limit, again, skipped })
        .map_err(|error| if error.is::<OtherCheck>() { Failure::WrongUse(error) } else { Failure::Failed(error) })?;
    print!("\n{}", checked.check);
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&checked.check).context("cannot write the check as JSON")?;
        write(file, &(text + "\n"))?;
    }
    files.into_iter().flatten().for_each(|file| println!("Written: {}", file.display()));
    end(&checked.record)
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    replace(file, |to| to.write_all(text.as_bytes())).with_context(|| format!("cannot write {}", file.display()))
}

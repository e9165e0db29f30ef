//! `underpass advise`: where protocol work should run, from records.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use underpass_lab::advise::check::{self, CheckError};
use underpass_lab::advise::{self, placement::Placement};
use underpass_lab::evidence::Evidence;
use underpass_lab::replace::replace;
use underpass_lab::{Options, Suite};

use crate::bench::{end, options, outputs};
use crate::cli::AdviseArguments;
use crate::failure::Failure;
use crate::output::{print, printable_lines, written};
use crate::site;

/// Prints the advice and writes the placement.
pub fn advise(arguments: &AdviseArguments) -> Result<(), Failure> {
    let evidence = Evidence::read(&arguments.records)?;
    let files = [&arguments.output, &arguments.json, &arguments.record];
    let read: Vec<&PathBuf> = arguments.records.iter().chain(&arguments.endpoints).collect();
    outputs(files.into_iter().flatten(), &read)?;
    let advice = advise::of(&evidence);
    if let Some(file) = &arguments.output {
        write(file, &Placement::of(&advice).to_toml().context("cannot write the placement as TOML")?)?;
    }
    print(printable_lines(&advice.to_string()) + &apart(&[&arguments.output]))?;
    if arguments.check { check(&evidence, arguments) } else { Ok(()) }
}

fn check(evidence: &Evidence, arguments: &AdviseArguments) -> Result<(), Failure> {
    print(format!("\nCHECK, seed {}\n", arguments.seed))?;
    let options = options(Suite::All, None, arguments.gpu, &arguments.measure)?;
    let options = Options { keep: arguments.record.clone(), ..options };
    let (site, skipped) = site::again(evidence, arguments.endpoints.as_deref())?;
    let again = site.map(|it| (it.survey, it.again));
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(60 * u64::from(minutes)));
    let checked = check::run(evidence, &options, check::Request { seed: arguments.seed, limit, again, skipped })?;
    // Before it is printed, because the reader of standard output may be gone.
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&checked.check).context("cannot write the check as JSON")?;
        write(file, &(text + "\n"))?;
    }
    let files = apart(&[&arguments.json, &arguments.record]);
    print(format!("\n{}{files}", printable_lines(&checked.check.to_string())))?;
    end(&checked.record)
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Failure {
        match error {
            CheckError::OtherCheck { .. } => Failure::WrongUse(error.into()),
            CheckError::Failed(error) => Failure::Failed(error),
        }
    }
}

/// Says which files there are now, behind an empty line.
fn apart(files: &[&Option<PathBuf>]) -> String {
    let told = written(files.iter().copied().flatten());
    if told.is_empty() { told } else { format!("\n{told}") }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    replace(file, |to| to.write_all(text.as_bytes())).with_context(|| format!("cannot write {}", file.display()))
}

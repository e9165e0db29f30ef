//! `underpass bench` and `underpass demo`: the measurements of the lab.

use std::ffi::OsString;
use std::fs;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use underpass_lab::evidence::Evidence;
use underpass_lab::{Options, Record, RunError, Suite, replace, report};

use crate::cli::{BenchArguments, DemoArguments, MeasureArguments, SuiteName};
use crate::failure::Failure;
use crate::output::{plural, print, printable, written};
use crate::settings::Settings;
use crate::{library, say, sys};

/// Measures one suite, printing the table, and writes the files that were asked for.
pub fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    let suite = match arguments.suite {
        SuiteName::Pingpong => Suite::Pingpong,
        SuiteName::Stream => Suite::Stream,
        SuiteName::Apps => Suite::Apps,
        SuiteName::Setup => Suite::Setup,
        SuiteName::Broker => Suite::Broker,
        SuiteName::Layers => Suite::Layers,
        SuiteName::Driver => Suite::Driver,
        SuiteName::Checksum => Suite::Checksum,
        SuiteName::All => Suite::All,
    };
    if arguments.gpu && !suite.can_use_gpu() {
        let what = "--gpu: this suite has nothing for a GPU; the suites that have are checksum and all";
        return Err(anyhow!(what).into());
    }
    let files = [&arguments.json, &arguments.csv, &arguments.html];
    outputs(files.into_iter().flatten(), &[])?;
    let options = options(suite, arguments.only.clone(), arguments.gpu, &arguments.measure)?;
    let record = underpass_lab::run(suite, &Options { keep: arguments.json.clone(), ..options })?;
    let end = end(&record);
    if end.is_err() && record.measurements.is_empty() {
        return end;
    }
    arguments.csv.as_deref().map_or(Ok(()), |path| record.write_csv(path))?;
    arguments.html.as_deref().map_or(Ok(()), |path| write_html(path, record))?;
    print(written(files.into_iter().flatten()))?;
    end
}

/// An error if the run was ended before its end.
pub fn end(record: &Record) -> Result<(), Failure> {
    if record.complete {
        return Ok(());
    }
    let taken = plural(record.measurements.len() as u64, "figure was", "figures were");
    Err(anyhow!("ended before all was measured: {taken} taken, and the record is marked as not complete").into())
}

/// Measures a few figures, or everything, and leaves a record and a report.
pub fn demo(arguments: &DemoArguments) -> Result<(), Failure> {
    let suite = if arguments.all { Suite::All } else { Suite::Demo };
    let folder = &arguments.output;
    fs::create_dir_all(folder).with_context(|| format!("cannot make the directory {}", folder.display()))?;
    let stem = folder.join(stem(&underpass_lab::record::now(), &host_name()));
    let named = |extension: &str| PathBuf::from(format!("{}.{extension}", stem.display()));
    let (json, html) = (named("json"), named("html"));
    [&json, &html].into_iter().try_for_each(|file| writable(file))?;
    let options = options(suite, None, false, &arguments.measure)?;
    let record = underpass_lab::run(suite, &Options { keep: Some(json.clone()), ..options })?;
    let end = end(&record);
    if end.is_err() && record.measurements.is_empty() {
        return end;
    }
    write_html(&html, record)?;
    let shown = |path: &Path| printable(&path.canonicalize().unwrap_or(path.into()).to_string_lossy());
    let told = format!("\nThe record: {}\nThe report: {} (one file, for any browser)\n", shown(&json), shown(&html));
    print(told)?;
    end
}

/// The report of one run, under the name of its own file.
fn write_html(path: &Path, record: Record) -> anyhow::Result<()> {
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    report::write_html(&Evidence::of(name, record)?, path)
}

/// How to measure, as the arguments say; says so on standard error if the figures are not for quoting.
pub fn options(
    suite: Suite,
    only: Option<String>,
    gpu: bool,
    arguments: &MeasureArguments,
) -> Result<Options, Failure> {
    let settings = Settings::gather(arguments.settings.config.as_deref(), &arguments.settings.set)?;
    // The programs that are measured get SIGPIPE back as it should be; this one must survive their end.
    sys::ignore_broken_pipes();
    if arguments.quick {
        say(format_args!("quick: the figures show that all works and are not for quoting"));
    }
    let variables = settings.variables().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Ok(Options {
        settings: variables.collect(),
        samples: arguments.samples.unwrap_or(if arguments.quick { 1 } else { suite.samples() }),
        quick: arguments.quick,
        gpu,
        only,
        table: true,
        progress: stderr().is_terminal(),
        ..Options::new(library::find()?)
    })
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::NoSuchFigure(error) => Failure::WrongUse(error.into()),
            RunError::Failed(error) => Failure::Failed(error),
        }
    }
}

/// Checks where results are to be written, which is better known before a measurement than after: that each file can be
/// written, and takes the place neither of another nor of a file that is read.
pub fn outputs<'a>(files: impl IntoIterator<Item = &'a PathBuf>, read: &[&PathBuf]) -> Result<(), Failure> {
    let mut taken: Vec<PathBuf> = read.iter().map(|file| place(file)).collect();
    for file in files {
        writable(file)?;
        let at = place(file);
        if taken.contains(&at) {
            let what = "it is named for something else too, and would be written over; name another file";
            return Err(Failure::WrongUse(anyhow!("cannot write {}: {what}", file.display())));
        }
        // A device or a pipe can take several.
        if !at.exists() || at.is_file() {
            taken.push(at);
        }
    }
    Ok(())
}

/// Where a file is, or would be.
fn place(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let in_folder = || Some(folder.canonicalize().ok()?.join(file.file_name()?));
    file.canonicalize().ok().or_else(in_folder).unwrap_or(file.into())
}

fn writable(file: &Path) -> anyhow::Result<()> {
    replace::check(file).with_context(|| format!("cannot write {}", file.display()))
}

/// `2026-11-20-1504-host` of a date as in RFC 3339, so that names sort by time.
fn stem(date: &str, host: &str) -> String {
    let time: String = date.get(11..16).unwrap_or_default().replace(':', "");
    let host: String = host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{}-{time}-{host}", date.get(..10).unwrap_or(date))
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_named_by_time_and_host() {
        assert_eq!(stem("2026-11-20T15:04:05Z", "web.example"), "2026-11-20-1504-web-example");
    }
}

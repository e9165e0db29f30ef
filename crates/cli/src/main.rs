//! The `underpass` command: runs programs with the library, shows the configuration, measures.
#![cfg_attr(not(test), no_main)]

mod agent;
mod bench;
mod capture;
mod cli;
mod config;
mod diff;
mod doctor;
mod generate;
mod library;
mod output;
mod run;
mod settings;
mod survey;
mod sys;
mod watch;

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::{Write, stderr};

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use capture::{FileError, FilterError};
use cli::{Cli, Command};
use output::NotPrinted;
use settings::SettingsError;
use underpass_lab::NoSuchFigure;
use watch::{MetricsError, NoTerminal, WrongSubject};

/// Exit code for a mistake in options or settings.
const WRONG_USE: i32 = 2;
/// Exit code for everything else that failed.
const FAILED: i32 = 1;
/// The same where that code says something of a program.
const BROKEN: i32 = 125;

/// Called by the entry point in [`sys`]; the value is the exit code.
#[cfg_attr(test, allow(dead_code))]
fn main() -> i32 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(error),
    };
    // What `run` runs may have them closed; whatever else is opened must not be taken for one of them and written to.
    if !matches!(cli.command, Command::Run(_))
        && let Err(error) = sys::open_closed_standard_streams()
    {
        return complain(&format_args!("cannot open /dev/null in the place of a closed descriptor ({error})"), FAILED);
    }
    let outcome = match &cli.command {
        Command::Run(arguments) => match run::run(arguments) {
            Ok(never) => match never {},
            Err(error) => return complain(&error, error.exit_code()),
        },
        Command::Doctor(arguments) => match doctor::doctor(arguments) {
            Ok(code) => return code,
            Err(error) => {
                let code = if error.is::<NotPrinted>() { BROKEN } else { WRONG_USE };
                return complain(&format_args!("{error:#}"), code);
            }
        },
        Command::Diff(arguments) => match diff::diff(arguments) {
            Ok(code) => return code,
            Err(error) => return complain(&error, error.exit_code()),
        },
        Command::Ss(arguments) => watch::ss(arguments),
        Command::Top(arguments) => watch::top(arguments),
        Command::Metrics(arguments) => watch::metrics(arguments),
        Command::Pin(arguments) => watch::pin(arguments),
        Command::Unpin(arguments) => watch::unpin(arguments),
        Command::Capture(arguments) => capture::capture(arguments),
        Command::Bench(arguments) => bench::bench(arguments),
        Command::Demo(arguments) => bench::demo(arguments),
        Command::Survey(arguments) => survey::survey(arguments),
        Command::Agent(arguments) => agent::agent(arguments),
        Command::Config(arguments) => config::show(arguments),
        Command::Completions(arguments) => generate::completions(arguments),
        Command::Man(arguments) => generate::man(arguments),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            let wrong_use = error.is::<SettingsError>()
                || error.is::<FilterError>()
                || error.is::<FileError>()
                || error.is::<NoSuchFigure>()
                || error.is::<NoTerminal>()
                || error.is::<MetricsError>()
                || error.is::<WrongSubject>()
                || survey::is_wrong_use(&error);
            complain(&format_args!("{error:#}"), if wrong_use { WRONG_USE } else { FAILED })
        }
    }
}

/// Says something to the user, on standard error; nothing is done about it if that is closed.
fn say(text: Arguments<'_>) {
    let _ = writeln!(stderr(), "underpass: {}", output::without_codes(&text.to_string()));
}

fn complain(error: &dyn std::fmt::Display, code: i32) -> i32 {
    say(format_args!("{error}"));
    code
}

/// Prints clap's message; for `underpass PROGRAM` also what was probably meant.
fn usage(error: clap::Error) -> i32 {
    let _ = error.print();
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && run::is_program(OsStr::new(word))
    {
        let _ = writeln!(stderr(), "\nTo run the program {word}: underpass run -- {word}");
    }
    error.exit_code()
}

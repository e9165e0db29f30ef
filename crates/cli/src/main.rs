//! The `underpass` command: runs programs with the library, shows the configuration, measures.
#![cfg_attr(not(test), no_main)]

mod advise;
mod agent;
mod bench;
mod broker;
mod capture;
mod cli;
mod config;
mod diff;
mod doctor;
mod failure;
mod generate;
mod library;
mod output;
mod policy;
mod report;
mod run;
mod settings;
mod site;
mod survey;
mod sys;
mod watch;

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::{Write, stderr};

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use cli::{Cli, Command};
use failure::Failure;

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
        say(format_args!("cannot open /dev/null in the place of a closed descriptor ({error})"));
        return Failure::from(error).exit_code();
    }
    carry_out(&cli.command).unwrap_or_else(|failure| {
        say(format_args!("{failure}"));
        failure.exit_code()
    })
}

/// The value is the exit code.
fn carry_out(command: &Command) -> Result<i32, Failure> {
    match command {
        Command::Run(arguments) => match run::run(arguments)? {},
        Command::Doctor(arguments) => return doctor::doctor(arguments),
        Command::Diff(arguments) => return Ok(diff::diff(arguments)?),
        Command::Policy(arguments) => return policy::policy(arguments),
        Command::Ss(arguments) => watch::ss(arguments)?,
        Command::Top(arguments) => watch::top(arguments)?,
        Command::Metrics(arguments) => watch::metrics(arguments)?,
        Command::Pin(arguments) => watch::pin(arguments)?,
        Command::Unpin(arguments) => watch::unpin(arguments)?,
        Command::Capture(arguments) => capture::capture(arguments)?,
        Command::Bench(arguments) => bench::bench(arguments)?,
        Command::Demo(arguments) => bench::demo(arguments)?,
        Command::Report(arguments) => report::report(arguments)?,
        Command::Advise(arguments) => advise::advise(arguments)?,
        Command::Survey(arguments) => survey::survey(arguments)?,
        Command::Agent(arguments) => agent::agent(arguments)?,
        Command::Config(arguments) => config::show(arguments)?,
        Command::Completions(arguments) => generate::completions(arguments)?,
        Command::Man(arguments) => generate::man(arguments)?,
    }
    Ok(0)
}

/// Says something to the user, on standard error; nothing is done about it if that is closed.
fn say(text: Arguments<'_>) {
    // What others say is quoted: a record, an agent, the name of a file.
    let text = output::printable_lines(&output::without_codes(&text.to_string()));
    let _ = writeln!(stderr(), "underpass: {text}");
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

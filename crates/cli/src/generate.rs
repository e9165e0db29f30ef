//! Manual pages and completions, made from the command line's own description.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, anyhow};
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, italic, roman};
use underpass_manual::{list, part};
use underpass_segment::config::{KEYS, Key};

use crate::cli::{Cli, CompletionsArguments, ManArguments};
use crate::failure::Failure;
use crate::output::print;
use crate::settings::variable;

/// Prints a shell's completions.
pub fn completions(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut to_complete(), "underpass", &mut script);
    let mut script = String::from_utf8(script).map_err(io::Error::other)?;
    if arguments.shell == Shell::Bash {
        script = with_programs(&script);
    }
    Ok(print(script)?)
}

/// The command line with values to offer where others are taken too, or refused with better words.
fn to_complete() -> Command {
    let choices = |key: &Key| -> Vec<String> {
        let values = if key.shape.contains(" | ") { key.shape.split(" | ").collect() } else { vec![key.default] };
        values.into_iter().map(|value| format!("{}={value}", key.name)).collect()
    };
    let pages = Cli::command().get_subcommands().map(|it| it.get_name().to_string()).collect();
    let offers: [(&str, Vec<String>); 2] = [("set", KEYS.iter().flat_map(choices).collect()), ("page", pages)];
    Cli::command().mut_subcommands(|command| {
        offers.iter().fold(command, |command, (argument, values)| {
            if command.get_arguments().all(|it| it.get_id() != argument) {
                return command;
            }
            // clap wants words that stay; this is done once.
            let values = values.iter().map(|it| -> &'static str { it.clone().leak() });
            command.mut_arg(argument, |it| it.value_parser(PossibleValuesParser::new(values)))
        })
    })
}

/// The script for bash, which offers files alone where other shells offer programs.
fn with_programs(script: &str) -> String {
    const PROGRAMS: &str = r#"
            if [[ ${cur} != -* && ${prev} =~ ^(run|doctor|diff|--|-q|--quiet|--json|--stats|--at-once)$ ]] ; then
                COMPREPLY=( $(compgen -c -- "${cur}") )
                return 0
            fi"#;
    ["run", "doctor", "diff"].iter().fold(script.to_string(), |script, command| {
        let label = format!("underpass__subcmd__{command})\n");
        let Some((before, after)) = script.split_once(&label) else { return script };
        let (options, after) = after.split_once('\n').unwrap_or((after, ""));
        format!("{before}{label}{options}{PROGRAMS}\n{after}")
    })
}

/// Prints one manual page or writes all of them.
pub fn man(arguments: &ManArguments) -> Result<(), Failure> {
    let pages = pages();
    if let Some(directory) = &arguments.output {
        return Ok(write_all(directory, &pages)?);
    }
    let name = arguments.page.as_ref().map_or("underpass".into(), |page| format!("underpass-{page}"));
    let Some(page) = pages.iter().find(|p| full_name(p) == name) else {
        let names: Vec<&str> = pages.iter().filter_map(|p| full_name(p).strip_prefix("underpass-")).collect();
        return Err(anyhow!("there is no page {name}; there are those of {}", names.join(", ")).into());
    };
    Ok(print(render(page)?)?)
}

fn write_all(directory: &Path, pages: &[Command]) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make the directory {}", directory.display()))?;
    for page in pages {
        let path = directory.join(format!("{}.1", full_name(page)));
        fs::write(&path, render(page)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The command itself, then its subcommands and theirs.
fn pages() -> Vec<Command> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let with_theirs =
        |it: &Command| -> Vec<Command> { [it].into_iter().chain(it.get_subcommands()).cloned().collect() };
    let subcommands: Vec<Command> = command.get_subcommands().flat_map(with_theirs).collect();
    [command].into_iter().chain(subcommands.into_iter().map(|s| s.version(env!("CARGO_PKG_VERSION")))).collect()
}

/// `underpass`, `underpass-run` and so on.
fn full_name(page: &Command) -> &str {
    page.get_display_name().unwrap_or(page.get_name())
}

fn render(page: &Command) -> io::Result<Vec<u8>> {
    let mut text = underpass_manual::render(page, "1").into_bytes();
    if matches!(full_name(page), "underpass" | "underpass-config") {
        settings().to_writer(&mut text)?;
    }
    Ok(text)
}

/// The part of the pages that is not in the command line: every key of the configuration.
fn settings() -> Roff {
    let mut roff = Roff::new();
    let setting = |key: &Key| {
        let name = vec![bold(key.name), roman(", "), bold(variable(key))];
        let help = vec![roman(key.help), roman(" "), italic(key.shape), roman(format!("; default {}.", key.default))];
        (name, help)
    };
    part(&mut roff, "SETTINGS", &KEYS.iter().map(setting).collect::<Vec<_>>());
    let variables = [
        ("UNDERPASS_LIBRARY", "The library, if it is not beside the command or in ../lib/underpass or ../lib."),
        ("UNDERPASS_CONFIG", "The configuration file."),
    ];
    list(&mut roff, "ENVIRONMENT", |name| bold(name), &variables);
    let files = [
        ("~/.config/underpass/underpass.toml", "The user's configuration: lines of KEY = VALUE in TOML."),
        ("/etc/underpass.toml", "The system's, read if the user has none."),
    ];
    list(&mut roff, "FILES", |name| italic(name), &files);
    roff
}

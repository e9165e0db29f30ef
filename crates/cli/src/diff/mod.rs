//! `underpass diff`: the user's own program on kernel TCP and under Underpass, compared.

mod compare;
mod report;
mod round;

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write, stderr, stdin};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::cli::DiffArguments;
use crate::failure::Failure;
use crate::run::{Launch, RunError};
use crate::sys::{self, HeldSignals};
use compare::Side;
use round::{Ending, Path};

/// Most that the program is given as its standard input, in bytes; it is kept in the folder for temporary files.
const MOST_INPUT: u64 = 1 << 30;
/// Exit code when something differs.
const DIFFERENT: i32 = 1;

/// Why nothing was compared. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// Settings, program or library.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A pattern is none.
    #[error(
        "--ignore: {0}\nIt takes a regular expression; a character that means something there is itself behind a \
         backslash: \\("
    )]
    Pattern(#[from] regex::Error),
    /// What the program is to be given may have no end.
    #[error(
        "standard input {0}, and each run of the program is given all of it; let the program read a file by its name, \
         or nothing: </dev/null"
    )]
    Input(String),
    /// The program was found, and the system would not run it.
    #[error("{0}")]
    NotStarted(String),
    /// The system refused something.
    #[error("cannot {what}: {error}; {remedy}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's words.
        error: io::Error,
        /// What to do.
        remedy: &'static str,
    },
}

impl From<DiffError> for Failure {
    fn from(error: DiffError) -> Failure {
        match error {
            DiffError::Run(RunError::Settings(_) | RunError::Program(_))
            | DiffError::Pattern(_)
            | DiffError::Input(_)
            | DiffError::NotStarted(_) => Failure::WrongUse(error.into()),
            DiffError::Run(_) | DiffError::System { .. } => Failure::Broken(error.into()),
        }
    }
}

impl DiffError {
    fn files(error: io::Error) -> DiffError {
        let remedy = "make room in the folder for temporary files, or name another by TMPDIR";
        DiffError::System { what: "keep what the program reads and writes", error, remedy }
    }
}

/// Runs, compares and says what differs. The value is the exit code.
///
/// # Errors
/// See [`DiffError`].
pub fn diff(arguments: &DiffArguments) -> Result<i32, DiffError> {
    let ignore = RegexSetBuilder::new(&arguments.ignore).build()?;
    let launch = Launch::prepare(&arguments.program, false)?.quiet();
    let input = input()?;
    // What the program leaves running and does not wait for comes to this process, which ends it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let signals = HeldSignals::hold();
    let progress = progress(arguments.rounds);
    let (mut kernel, mut underpass) = (Side::default(), Side::default());
    for number in 0..arguments.rounds {
        let mut turns = [(Path::Kernel, &mut kernel), (Path::Underpass, &mut underpass)];
        // The first run of a round finds caches cold, so both sides take turns in being first.
        if number % 2 == 1 {
            turns.reverse();
        }
        for (path, side) in turns {
            progress.set_message(format!("round {} of {}: {path}", number + 1, arguments.rounds));
            let round = round::run(&launch, path, input.as_ref(), arguments.timeout, &signals)?;
            progress.inc(1);
            if let Ending::Interrupted(signal) = round.ending {
                progress.finish_and_clear();
                let words = sys::signal_words(signal);
                crate::say(format_args!(
                    "{words}: the program was ended in round {} of {}, {path}; nothing is compared (--timeout SECONDS \
                     ends a run by itself)",
                    number + 1,
                    arguments.rounds
                ));
                sys::die_of(signal);
            }
            side.add(round, &ignore).map_err(DiffError::files)?;
        }
    }
    progress.finish_and_clear();
    let outcome = compare::outcome(&kernel, &underpass, &ignore).map_err(DiffError::files)?;
    let words = arguments.program.words();
    let shown = if arguments.json {
        report::json(&words, arguments, &kernel, &underpass, &outcome)
    } else {
        report::text(&words[0], arguments, &kernel, &underpass, &outcome)
    };
    io::stdout().write_all(shown.as_bytes()).map_err(|error| DiffError::System {
        what: "write what was found",
        error,
        remedy: "let standard output be read or written to the end",
    })?;
    Ok(if outcome.is_same() { 0 } else { DIFFERENT })
}

/// Standard input up to its end; none where it is a terminal, or closed.
fn input() -> Result<Option<File>, DiffError> {
    if stdin().is_terminal() {
        return Ok(None);
    }
    let Ok(given) = stdin().as_fd().try_clone_to_owned().map(File::from) else { return Ok(None) };
    let meta = given.metadata().map_err(DiffError::files)?;
    let null = rustix::fs::makedev(1, 3);
    if (meta.file_type().is_char_device() && meta.rdev() != null) || meta.file_type().is_block_device() {
        return Err(DiffError::Input("is a device, which need not end".to_string()));
    }
    let excessive = || DiffError::Input(format!("has more than {} GiB", MOST_INPUT >> 30));
    if meta.is_file() && meta.len() > MOST_INPUT {
        return Err(excessive());
    }
    let mut file = round::file().map_err(DiffError::files)?;
    match io::copy(&mut (&given).take(MOST_INPUT + 1), &mut file) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EISDIR)) => return Ok(None),
        Ok(bytes) if bytes > MOST_INPUT => return Err(excessive()),
        other => other.map_err(DiffError::files)?,
    };
    file.rewind().map_err(DiffError::files)?;
    Ok(Some(file))
}

fn progress(rounds: u32) -> ProgressBar {
    // Without a thread that draws: this process forks.
    let target = if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(u64::from(rounds) * 2), target);
    let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {wide_msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Whether any pattern is found in the line.
fn ignored(ignore: &RegexSet, line: &[u8]) -> bool {
    ignore.is_match(line.strip_suffix(b"\n").unwrap_or(line))
}

//! `underpass run`: a program with the library loaded.

pub mod inspect;
pub mod program;
pub mod stats;
pub mod supervise;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use underpass_segment::config::IoUring;
use underpass_segment::stats::Region;

use crate::cli::{ProgramArguments, RunArguments};
use crate::failure::Failure;
use crate::library::{self, LibraryError};
use crate::settings::{STATS_VARIABLE, Settings, SettingsError};
use crate::sys;
use inspect::Obstacle;
use program::{Image, ProgramError};
use stats::{Counted, Sink};

/// The variable by which a process knows whether its filter is Underpass's.
const IO_URING_VARIABLE: &str = "UNDERPASS_IO_URING";

/// Why the program was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// There is no library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// There is no program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The statistics have no place to go.
    #[error(
        "cannot write them to {}: {error}; --stats=FILE needs a file that this user may write to, in a \
         folder that is there and has room",
        .path.display()
    )]
    StatsFile {
        /// The file that was named.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// There is no memory for the counters.
    #[error(
        "no System V shared memory for them (kernel.shmall, shmmax, shmmni, a limit of the address space, or a \
         sandbox): {0}"
    )]
    NoCounters(io::Error),
    /// The program could not reach the counters.
    #[error("no other process can attach the shared memory for them by its number ({0}): a sandbox forbids it")]
    Unreachable(io::Error),
    /// The program gets no process beside this one.
    #[error(
        "no process beside the program's, which waits for its end ({0}): a limit of processes (RLIMIT_NPROC, or \
         pids.max of the control group)"
    )]
    NoProcess(io::Error),
    /// The system refused something.
    #[error("cannot {what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's words.
        error: io::Error,
    },
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Settings(_) => Failure::WrongUse(error.into()),
            RunError::Program(error) => error.into(),
            RunError::Library(_)
            | RunError::StatsFile { .. }
            | RunError::NoCounters(_)
            | RunError::Unreachable(_)
            | RunError::NoProcess(_)
            | RunError::System { .. } => Failure::Broken(error.into()),
        }
    }
}

/// A program, and all that it takes to run it under Underpass.
pub struct Launch<'a> {
    command: &'a [OsString],
    settings: Settings,
    path: PathBuf,
    image: Image,
    library: PathBuf,
    obstacle: Option<Obstacle>,
    denies_io_uring: bool,
    quiet: bool,
}

impl<'a> Launch<'a> {
    /// Finds what is needed, and says unless `quiet` if the program cannot be helped.
    ///
    /// # Errors
    /// Wrong settings, no program or no library.
    pub fn prepare(arguments: &'a ProgramArguments, quiet: bool) -> Result<Launch<'a>, RunError> {
        let settings = Settings::gather(arguments.settings.config.as_deref(), &arguments.set())?;
        let command = &arguments.command;
        let path = program::find(&command[0])?;
        let image = program::image(&command[0], &path)?;
        let library = library::find()?;
        let obstacle = inspect::obstacle(&image.path);
        if let Some(obstacle) = obstacle.as_ref().filter(|_| settings.typed.enabled && !quiet) {
            crate::say(format_args!("{} runs on kernel TCP because {obstacle}", subject(&command[0], &path, &image)));
        }
        let denies_io_uring = match settings.typed.io_uring {
            IoUring::Allow => false,
            IoUring::Deny => !io_uring_is_off(),
            // What does not load the library carries no bytes past it.
            IoUring::Auto => obstacle.is_none() && !io_uring_is_off() && inspect::sets_up_io_uring(&image.path),
        };
        Ok(Launch { command, settings, path, image, library, obstacle, denies_io_uring, quiet })
    }

    /// Puts the library and its settings into this process's environment, which [`Launch::exec`] passes on.
    ///
    /// # Errors
    /// None that a user can cause: no memory for it.
    pub fn set_environment(&self) -> Result<(), RunError> {
        for (name, value) in self.settings.variables() {
            set(&name, value.as_ref())?;
        }
        if self.denies_io_uring {
            // Later reports about the process, and the programs it runs, go by the filter.
            set(IO_URING_VARIABLE, "deny".as_ref())?;
        }
        if !self.obstacle.as_ref().is_some_and(Obstacle::forbids_preload) {
            set(library::PRELOAD, &library::preload(&self.library))?;
        }
        Ok(())
    }

    /// Replaces this process by the program, io_uring denied if it is to be; returns only on failure.
    pub fn exec(&self) -> ProgramError {
        let may_restrict = self.obstacle != Some(Obstacle::Privileged);
        if self.denies_io_uring
            && let Err(error) = sys::deny_io_uring(may_restrict)
            && may_restrict
            && !self.quiet
        {
            crate::say(format_args!(
                "io_uring cannot be denied here ({error}); what a program does through it stays on kernel TCP"
            ));
        }
        self.exec_plainly()
    }

    /// Replaces this process by the program and does nothing else; returns only on failure.
    pub fn exec_plainly(&self) -> ProgramError {
        program::exec(&self.path, &self.image, self.command)
    }

    /// This launch, without further messages about the program.
    pub fn quiet(self) -> Launch<'a> {
        Launch { quiet: true, ..self }
    }
}

/// Runs the program; returns only if that was not possible.
pub fn run(arguments: &RunArguments) -> Result<std::convert::Infallible, RunError> {
    let launch = Launch::prepare(&arguments.program, arguments.quiet)?;
    launch.set_environment()?;
    if !arguments.wants_stats() {
        return Err(launch.exec().into());
    }
    match supervise(arguments, &launch) {
        // What keeps the statistics away keeps no program from running.
        Err(
            error @ (RunError::StatsFile { .. }
            | RunError::NoCounters(_)
            | RunError::Unreachable(_)
            | RunError::NoProcess(_)),
        ) => {
            say_no_statistics(&error);
            sys::unset_variable(c"UNDERPASS_STATS");
            Err(launch.exec().into())
        }
        ended => ended,
    }
}

fn say_no_statistics(error: &RunError) {
    crate::say(format_args!("there will be no statistics: {error}"));
}

/// Whether there is a program of this name.
pub fn is_program(name: &OsStr) -> bool {
    program::find(name).is_ok()
}

/// Counters that the processes of a run can reach.
///
/// # Errors
/// No shared memory can be had, or not by its number.
pub fn counters() -> Result<Region, RunError> {
    let region = Region::create().map_err(RunError::NoCounters)?;
    region.try_out().map_err(RunError::Unreachable)?;
    Ok(region)
}

fn supervise(arguments: &RunArguments, launch: &Launch<'_>) -> Result<std::convert::Infallible, RunError> {
    let file = arguments.stats.as_ref().and_then(Option::as_deref);
    let mut sink = Sink::open(file)
        .map_err(|error| RunError::StatsFile { path: file.map(Into::into).unwrap_or_default(), error })?;
    let region = counters()?;
    set(STATS_VARIABLE, region.id().to_string().as_ref())?;
    let end = supervise::run(|| {
        let failure = Failure::from(launch.exec());
        crate::say(format_args!("{failure}"));
        failure.exit_code()
    })
    .map_err(RunError::NoProcess)?;
    let counted = Counted::read(&region);
    let words = arguments.program.words();
    let written = sink.write(&if arguments.json {
        stats::json(&words, end, &counted)
    } else {
        stats::text(&words[0], end, &counted, launch.obstacle.as_ref())
    });
    if let Err(error) = written {
        say_no_statistics(&error);
    }
    drop(region);
    end.follow()
}

fn set(name: &str, value: &OsStr) -> Result<(), RunError> {
    sys::set_variable(name, value).map_err(|error| RunError::System { what: "set a variable", error })
}

/// The program as a message names it, with its interpreter if that is another file.
fn subject(name: &OsStr, path: &Path, image: &Image) -> String {
    let name = name.to_string_lossy();
    if image.path == path { name.into_owned() } else { format!("{name} (run by {})", image.path.display()) }
}

/// Whether this system has io_uring switched off for everybody (Documentation/admin-guide/sysctl/kernel.rst).
fn io_uring_is_off() -> bool {
    fs::read("/proc/sys/kernel/io_uring_disabled").is_ok_and(|text| text.starts_with(b"2"))
}

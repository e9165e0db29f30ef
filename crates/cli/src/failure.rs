//! Why a command did not do what it was asked for. The kind decides the exit code.
//!
//! Beside each error type that a command can end with stands a `From` that says of which kind it is.

use std::fmt;
use std::io;

use anyhow::Error;

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub enum Failure {
    /// A mistake in options or settings, or they name what is not there or not fit. The exit code is 2.
    WrongUse(Error),
    /// Everything else. The exit code is 1.
    Failed(Error),
    /// Underpass itself failed, in a command whose exit code 1 says something of a program. The exit code is 125, as
    /// that of env(1), nice(1) and timeout(1).
    Broken(Error),
    /// The program that is to be run cannot be executed. The exit code is 126, as that of a shell.
    NotExecutable(Error),
    /// There is no program to run. The exit code is 127, as that of a shell.
    NoProgram(Error),
}

impl Failure {
    /// The exit code of [`Failure::Broken`], for processes that report their failure in another way too.
    pub const BROKEN: i32 = 125;

    /// The code to exit with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Failure::WrongUse(_) => 2,
            Failure::Failed(_) => 1,
            Failure::Broken(_) => Failure::BROKEN,
            Failure::NotExecutable(_) => 126,
            Failure::NoProgram(_) => 127,
        }
    }
}

/// In one line, with the causes.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::WrongUse(error)
        | Failure::Failed(error)
        | Failure::Broken(error)
        | Failure::NotExecutable(error)
        | Failure::NoProgram(error)) = self;
        write!(f, "{error:#}")
    }
}

/// An error of any other type is a plain failure.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Failed(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Failed(error.into())
    }
}

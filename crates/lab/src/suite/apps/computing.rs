//! Programs that compute without end, beside which an application is measured.

use std::num::NonZero;
use std::process::Command;
use std::thread;

use anyhow::Result;

use crate::process::Running;

/// The program looks now and then whether the lab still runs, so that it does not outlive a lab that is killed.
const COMPUTE: &str = "while kill -0 $PPID 2>/dev/null; do n=0; while [ $n -lt 500000 ]; do n=$((n + 1)); done; done";

/// Programs that compute, one for each processor, until this is dropped.
#[derive(Debug)]
pub struct Computing {
    _programs: Vec<Running>,
}

impl Computing {
    /// Starts them.
    ///
    /// # Errors
    /// There is no shell.
    pub fn begin() -> Result<Computing> {
        let compute = || Running::start(Command::new("sh").args(["-c", COMPUTE]));
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Computing { _programs: (0..processors).map(|_| compute()).collect::<Result<_>>()? })
    }
}

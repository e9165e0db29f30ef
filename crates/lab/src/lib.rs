//! Measurements, records and the report.
//!
//! From the outside in:
//!
//! - [`run()`] takes a [`Suite`] and [`Options`] and gives back a [`record::Record`], which writes itself as JSON and
//!   CSV; [`report`] draws one or several as one HTML page, from what [`evidence`] has read and checked.
//! - [`suite`] holds the experiments. Each tells its [`plan::Plan`]s (what it will yield, what is promised) and takes
//!   one sample at a time.
//! - [`bench`](mod@bench) asks for those samples: kernel, Underpass, baseline, and again, so that whatever disturbs the
//!   host disturbs all of them alike.
//! - [`launcher`] starts programs one way or the other, [`process`] waits for them and clears them away, [`programs`]
//!   compiles the plain C clients and servers, [`witness`] asks the library whether the bytes really went fast,
//!   [`usage`] asks the kernel how much processor time they took.
//!
//! Two rules hold everywhere. What is measured is an unmodified program over its sockets. And a figure whose Underpass
//! side did not go fast is no figure: it is reported as invalid, with the reason.
//!
//! Not here: starting a user's program (`underpass run` is the command line's) and anything that decides.
#![deny(unsafe_code)]

pub mod advise;
pub mod bench;
pub mod bootstrap;
pub mod evidence;
pub mod host;
pub mod input;
mod interrupt;
pub mod launcher;
pub mod plan;
mod proc_stat;
pub mod process;
pub mod processors;
pub mod programs;
pub mod record;
pub mod replace;
pub mod report;
pub mod run;
pub mod statistic;
pub mod suite;
pub mod survey;
pub mod terminal;
pub mod unit;
pub mod usage;
pub mod witness;

pub use bench::Options;
pub use launcher::{Launcher, Side};
pub use record::Record;
pub use run::{NoSuchFigure, RunError, run};
pub use suite::Suite;

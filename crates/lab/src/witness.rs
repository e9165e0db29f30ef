//! Whether the bytes of a sample really went fast: the library counts for each process, and says why not.

use std::fmt::Write as _;
use std::io;
use std::thread;

use rustix::thread::{Uid, set_thread_res_uid};
use underpass_segment::stats::{ProcessStats, Region};

/// The variable by which processes find where to count.
pub const VARIABLE: &str = "UNDERPASS_STATS";

/// A user that programs are run as, other than this process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User number.
    pub id: u32,
    /// Number of the user's group.
    pub group: u32,
}

/// Counters for the processes of one sample.
#[derive(Debug)]
pub struct Witness {
    region: Region,
}

/// What a process must have done for its figure to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// At least nine tenths of its bytes went fast.
    Bytes,
    /// At least 99 of 100 of its connections went fast.
    Connections,
    /// A program ran with the library; what its connections did does not matter.
    Loaded,
}

/// Why a figure does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFast {
    /// No counters of this process.
    #[error("the library was not at work: no program loaded it and reached the counters")]
    NotLoaded,
    /// The library saw no connection in this process, or was not at work there.
    #[error("process {0}: the library saw no TCP connection")]
    NoConnection(u32),
    /// Too little went fast.
    #[error("{command}: {fast} of {connections} connections and {share} % of the bytes went fast{reasons}")]
    TooLittle {
        /// Name of the program.
        command: String,
        /// Connections that went fast at some time.
        fast: u64,
        /// Connections in all.
        connections: u64,
        /// Share of bytes, in per cent, as tenths.
        share: Tenths,
        /// The reasons of the others, each with its count; or of the bytes.
        reasons: String,
    },
}

/// A number with one decimal that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenths(u64);

impl std::fmt::Display for Tenths {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(out, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

impl Witness {
    /// Fresh counters.
    ///
    /// # Errors
    /// No shared memory can be had.
    pub fn new() -> io::Result<Witness> {
        Region::create().map(|region| Witness { region })
    }

    /// Fresh counters for the processes of another user, who could not open ours. Only root can make them.
    ///
    /// # Errors
    /// No shared memory can be had, or this process may not act as that user.
    pub fn of(user: User) -> io::Result<Witness> {
        // Credentials belong to a thread; this one takes the user's, makes the counters and ends.
        let make = move || {
            let user = Uid::from_raw(user.id);
            set_thread_res_uid(user, user, user)?;
            Witness::new()
        };
        thread::spawn(make).join().unwrap_or_else(|_| Err(io::Error::other("the thread for the counters failed")))
    }

    /// The value of [`VARIABLE`] for processes that shall count here.
    pub fn id(&self) -> String {
        self.region.id().to_string()
    }

    /// Whether process `pid` kept the rule.
    ///
    /// # Errors
    /// It did not; with what was seen instead.
    pub fn ask(&self, pid: u32, rule: Rule) -> Result<(), NotFast> {
        if self.region.programs() == 0 {
            return Err(NotFast::NotLoaded);
        }
        if rule == Rule::Loaded {
            return Ok(());
        }
        let processes = self.region.processes();
        let process = processes.iter().find(|process| process.pid == pid).ok_or(NotFast::NoConnection(pid))?;
        judge(process, rule)
    }
}

fn judge(process: &ProcessStats, rule: Rule) -> Result<(), NotFast> {
    if process.connections == 0 {
        return Err(NotFast::NoConnection(process.pid));
    }
    let fast_bytes = process.fast_sent + process.fast_received;
    let bytes = fast_bytes + process.kernel_sent + process.kernel_received;
    let kept = match rule {
        Rule::Loaded => true,
        Rule::Connections => process.fast * 100 >= process.connections * 99,
        Rule::Bytes => fast_bytes > 0 && fast_bytes.saturating_mul(10) >= bytes.saturating_mul(9),
    };
    if kept {
        return Ok(());
    }
    let mut reasons = String::new();
    for (reason, count) in process.reasons.iter().filter(|(_, count)| *count > 0) {
        let _ = write!(reasons, "{}{} {count}", if reasons.is_empty() { "; why not: " } else { ", " }, reason.key());
    }
    if process.fast == process.connections {
        reasons.push_str(
            "; the rest went before they were fast, or while a reader was slower than the ring is large: is the \
             machine busy?",
        );
    }
    Err(NotFast::TooLittle {
        command: process.command.clone(),
        fast: process.fast,
        connections: process.connections,
        share: Tenths(fast_bytes.saturating_mul(1000).checked_div(bytes).unwrap_or(0)),
        reasons,
    })
}

#[cfg(test)]
mod tests {
    use underpass_segment::reason::Reason;
    use underpass_segment::stats::{Counters, Process};

    use super::*;

    fn process(connections: u64, fast: u64, fast_bytes: u64, kernel_bytes: u64) -> ProcessStats {
        ProcessStats {
            pid: 1,
            began: 0,
            command: "redis-server".to_string(),
            connections,
            fast,
            fast_sent: fast_bytes,
            fast_received: 0,
            kernel_sent: 0,
            kernel_received: kernel_bytes,
            bells: 0,
            sleeps: 0,
            poll_sleeps: 0,
            unfollowed: 0,
            reasons: vec![(Reason::PeerSilent, connections - fast), (Reason::Young, 0)],
        }
    }

    #[test]
    fn most_bytes_must_have_gone_fast() {
        assert_eq!(judge(&process(1, 1, 900, 100), Rule::Bytes), Ok(()));
        assert!(judge(&process(1, 1, 899, 101), Rule::Bytes).is_err());
        assert!(judge(&process(1, 1, 0, 0), Rule::Bytes).is_err(), "nothing at all is not fast");
    }

    #[test]
    fn or_most_connections_where_the_bytes_are_few() {
        assert_eq!(judge(&process(100, 99, 1, 1000), Rule::Connections), Ok(()));
        assert!(judge(&process(100, 98, 1000, 0), Rule::Connections).is_err());
        assert!(judge(&process(0, 0, 0, 0), Rule::Connections).is_err());
    }

    #[test]
    fn counters_can_be_made_for_another_user() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can act as another user");
        }
        let (user, own) = (User { id: 65534, group: 65534 }, 0);
        let witness = Witness::of(user).unwrap();
        let id = witness.id().parse().unwrap();
        assert!(Counters::open(id, own).is_none(), "they are not ours");
        assert_eq!(witness.ask(77, Rule::Loaded), Err(NotFast::NotLoaded));
        let counters = Counters::open(id, user.id).unwrap();
        assert_eq!(witness.ask(77, Rule::Loaded), Ok(()));
        counters.row(Process::new(77, 5, *b"sixteen bytes..."));
        assert_eq!(witness.ask(77, Rule::Bytes), Err(NotFast::NoConnection(77)));
        assert_eq!(witness.ask(78, Rule::Bytes), Err(NotFast::NoConnection(78)));
    }

    #[test]
    fn a_connection_that_went_fast_and_back_is_not_left_unexplained() {
        let message = judge(&process(1, 1, 10, 90), Rule::Bytes).unwrap_err().to_string();
        assert!(
            message.ends_with(
                "bytes went fast; the rest went before they were fast, or while a reader was slower than the ring is \
                 large: is the machine busy?"
            ),
            "{message}"
        );
    }

    #[test]
    fn the_reason_is_told() {
        let message = judge(&process(3, 1, 10, 90), Rule::Bytes).unwrap_err().to_string();
        assert_eq!(
            message,
            "redis-server: 1 of 3 connections and 10.0 % of the bytes went fast; why not: peer-silent 2"
        );
    }
}

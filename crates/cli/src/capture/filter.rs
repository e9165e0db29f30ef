//! Which connections are captured: `port N`, `host ADDRESS` and `pid N`, joined by `and`.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::os::unix::fs::MetadataExt;

use crate::failure::Failure;

/// A condition on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Port(u16),
    Host(IpAddr),
    Pid(u32),
}

/// All of these must hold; none: every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(Vec<Condition>);

/// What is wrong with a filter.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FilterError {
    /// No word that a condition begins with.
    #[error("filter: \"{0}\" is not known; known are: port NUMBER, host ADDRESS, pid NUMBER, joined by \"and\"")]
    Unknown(String),
    /// The word that a condition begins with is the last.
    #[error("filter: \"{0}\" needs {1} behind it")]
    Nothing(&'static str, &'static str),
    /// What follows it is not what it needs.
    #[error("filter: \"{0} {2}\": {1} is needed")]
    Wrong(&'static str, &'static str, String),
    /// Two conditions without a word between them, or that word at the end.
    #[error("filter: \"and\" stands between two conditions, as in: port 7000 and host ::1")]
    And,
    /// `pid` names a process that does not exist.
    #[error(
        "filter: there is no process {0}; `underpass ss` lists the processes under Underpass and their connections"
    )]
    NoProcess(u32),
    /// `pid` names another user's process.
    #[error("filter: process {0} belongs to user {1}, and one captures one's own: say it as that user")]
    Foreign(u32, u32),
}

impl From<FilterError> for Failure {
    fn from(error: FilterError) -> Failure {
        Failure::WrongUse(error.into())
    }
}

impl Filter {
    /// Parses the words of the command line; one word may hold several terms.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(words: &[String]) -> Result<Filter, FilterError> {
        let mut words = words.iter().flat_map(|word| word.split_whitespace());
        let mut conditions = Vec::new();
        while let Some(word) = words.next() {
            conditions.push(match word {
                "port" => {
                    Condition::Port(value("port", "a number from 1 to 65535", words.next()).map(NonZeroU16::get)?)
                }
                "host" => {
                    Condition::Host(value("host", "an IP address", words.next()).map(|it: IpAddr| it.to_canonical())?)
                }
                "pid" => Condition::Pid(value("pid", "the number of a process", words.next()).map(NonZeroU32::get)?),
                "and" => return Err(FilterError::And),
                other => return Err(FilterError::Unknown(other.into())),
            });
            match words.next() {
                None => return Ok(Filter(conditions)),
                Some("and") => {}
                Some("port" | "host" | "pid") => return Err(FilterError::And),
                Some(other) => return Err(FilterError::Unknown(other.into())),
            }
        }
        if conditions.is_empty() { Ok(Filter::default()) } else { Err(FilterError::And) }
    }

    /// Refuses what will never hold.
    ///
    /// # Errors
    /// A process is not there, or not this `user`'s, who is not root.
    pub fn check(&self, user: u32) -> Result<(), FilterError> {
        for condition in &self.0 {
            let &Condition::Pid(pid) = condition else { continue };
            match std::fs::metadata(format!("/proc/{pid}")) {
                Err(_) => return Err(FilterError::NoProcess(pid)),
                Ok(it) if it.uid() != user && user != 0 => return Err(FilterError::Foreign(pid, it.uid())),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Whether the connection between these addresses is wanted, which `has_pid` says a process has.
    pub fn wants(&self, ends: [SocketAddr; 2], mut has_pid: impl FnMut(u32) -> bool) -> bool {
        self.0.iter().all(|condition| match *condition {
            Condition::Port(port) => ends.iter().any(|it| it.port() == port),
            Condition::Host(host) => ends.iter().any(|it| it.ip() == host),
            Condition::Pid(pid) => has_pid(pid),
        })
    }
}

fn value<T: std::str::FromStr>(name: &'static str, needs: &'static str, word: Option<&str>) -> Result<T, FilterError> {
    let word = word.ok_or(FilterError::Nothing(name, needs))?;
    word.parse().map_err(|_| FilterError::Wrong(name, needs, word.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Filter, FilterError> {
        Filter::parse(&[text.into()])
    }

    #[test]
    fn all_conditions_must_hold() {
        let ends = ["127.0.0.1:7000", "127.0.0.1:40000"].map(|it| it.parse().unwrap());
        let wants = |text: &str| parse(text).unwrap().wants(ends, |pid| pid == 42);
        assert!(["", "port 7000", "port 40000", "host 127.0.0.1", "host ::ffff:127.0.0.1"].map(wants) == [true; 5]);
        assert!(wants("port 7000 and host 127.0.0.1 and pid 42"));
        assert!(["port 1", "host ::1", "pid 1", "port 7000 and pid 1"].map(wants) == [false; 4]);
        assert_eq!(Filter::parse(&["port".into(), "80".into()]), parse("port 80"));
    }

    #[test]
    fn processes_are_there_and_ones_own() {
        let (me, user) = (std::process::id(), std::fs::metadata("/proc/self").unwrap().uid());
        let filter = parse(&format!("port 80 and pid {me}")).unwrap();
        assert_eq!((filter.check(user), filter.check(user + 1)), (Ok(()), Err(FilterError::Foreign(me, user))));
        assert_eq!(filter.check(0), Ok(()), "root captures everybody's");
        assert_eq!(parse("pid 4294967295").unwrap().check(user), Err(FilterError::NoProcess(u32::MAX)));
    }

    #[test]
    fn what_is_unknown_is_said() {
        for (text, said) in [
            ("tcp port 80", "\"tcp\" is not known; known are: port NUMBER"),
            ("port 80 or port 81", "\"or\" is not known"),
            ("port", "\"port\" needs a number from 1 to 65535 behind it"),
            ("port 70000", "\"port 70000\": a number"),
            ("port 0", "\"port 0\": a number from 1"),
            ("pid 0", "\"pid 0\": the number of a process"),
            ("pid -1", "\"pid -1\": the number of a process"),
            ("host localhost", "\"host localhost\": an IP address is needed"),
            ("pid x", "\"pid x\": the number of a process is needed"),
            ("port 80 port 81", "\"and\" stands between"),
            ("port 80 and", "\"and\" stands between"),
            ("and", "\"and\" stands between"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

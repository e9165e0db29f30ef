//! Processor time of a process, user and system together, as `/proc/PID/stat` tells it (proc(5)).
//!
//! The kernel rounds it down to clock ticks, commonly of 10 ms, so it serves for loads of a second and more.

use std::fs;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

/// The processor time of process `pid`, and of its children that it has waited for. `None` if there is no such process;
/// the time of a process that has ended can be read until its parent has waited for it.
pub fn of_process(pid: u32) -> Option<Duration> {
    Stat::of(pid).map(|stat| stat.time)
}

/// What is of interest in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub struct Stat {
    /// The process that waits for it.
    pub parent: u32,
    /// Processor time, with that of the children for which it has waited.
    pub time: Duration,
}

impl Stat {
    /// Of process `pid`; `None` if there is none.
    pub fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, clock_ticks_per_second())
    }

    /// Fields 4 (ppid) and 14 to 17 (utime, stime, cutime, cstime). Field 2, the name, may hold blanks and parentheses.
    fn parse(text: &str, ticks_per_second: u64) -> Option<Stat> {
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
        let time = Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64);
        Some(Stat { parent: fields.get(1)?.parse().ok()?, time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let line = "4242 (a) b (c) S 17 4242 4242 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7";
        assert_eq!(Stat::parse(line, 100), Some(Stat { parent: 17, time: Duration::from_millis(1240) }));
        assert_eq!(Stat::parse("4242 (short) S 17", 100), None);
    }
}

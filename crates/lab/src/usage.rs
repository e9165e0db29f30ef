//! Processor time of programs, user and system together, as `/proc/PID/stat` tells it (proc(5)).
//!
//! The kernel rounds it down to clock ticks, commonly of 10 ms, so it serves for loads of a second and more.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

use crate::process::Running;

/// How long the processes of a server may take to end after their last client.
const SETTLING: Duration = Duration::from_secs(1);
/// The time between two looks at them.
const PAUSE: Duration = Duration::from_millis(30);

/// The time that process `pid` has taken, with that of its children that it has waited for. `None` if there is no such
/// process; one that has ended can be asked until its parent has waited for it.
pub fn of_process(pid: u32) -> Option<Duration> {
    Stat::of(pid).map(|stat| stat.time)
}

/// Measures the processor time that servers and all their descendants take while a load runs.
#[derive(Debug)]
pub struct Meter<'a> {
    servers: &'a [&'a Running],
    before: Duration,
}

impl<'a> Meter<'a> {
    /// From now on.
    pub fn begin(servers: &'a [&'a Running]) -> Meter<'a> {
        Meter { servers, before: family(servers).values().sum() }
    }

    /// Until now, or until the processes that served the load's connections have ended: the time of a process that is
    /// ending passes on to its parent, and must be counted once.
    pub fn end(self) -> Duration {
        let last = Instant::now() + SETTLING;
        let mut members = family(self.servers);
        loop {
            thread::sleep(PAUSE);
            let now = family(self.servers);
            if now.keys().eq(members.keys()) || Instant::now() > last {
                return now.values().sum::<Duration>().saturating_sub(self.before);
            }
            members = now;
        }
    }
}

/// These programs and all that descend from them, each process with its time.
fn family(programs: &[&Running]) -> BTreeMap<u32, Duration> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let everything: BTreeMap<u32, Stat> = pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
    let descends = |mut pid: u32| {
        // A parent that ended between the two looks has been replaced by another, so the way up need not end.
        for _ in 0..everything.len() {
            if programs.iter().any(|program| program.pid() == pid) {
                return true;
            }
            match everything.get(&pid) {
                Some(stat) => pid = stat.parent,
                None => return false,
            }
        }
        false
    };
    everything.iter().filter(|(pid, _)| descends(**pid)).map(|(pid, stat)| (*pid, stat.time)).collect()
}

/// What is of interest in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    time: Duration,
}

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
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
    use crate::process::finish;
    use crate::process::tests::shell;

    const LIMIT: Duration = Duration::from_secs(60);
    /// Computes for some tenths of a second.
    const COMPUTE: &str = "n=0; while [ $n -lt 400000 ]; do n=$((n + 1)); done";
    const TICK: Duration = Duration::from_millis(10);

    #[test]
    fn times_are_found_behind_any_name() {
        let line = "4242 (a) b (c) S 17 4242 4242 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7";
        assert_eq!(Stat::parse(line, 100), Some(Stat { parent: 17, time: Duration::from_millis(1240) }));
        assert_eq!(Stat::parse("4242 (short) S 17", 100), None);
    }

    #[test]
    fn a_program_that_ended_has_its_time_and_that_of_its_children() {
        assert!(finish(&mut shell("exit 0"), LIMIT).unwrap().processor_time < 5 * TICK);
        assert!(finish(&mut shell(COMPUTE), LIMIT).unwrap().processor_time >= 2 * TICK);
        let parent = finish(&mut shell(&format!("sh -c '{COMPUTE}'; exit 0")), LIMIT).unwrap();
        assert!(parent.processor_time >= 2 * TICK);
    }

    #[test]
    fn a_meter_counts_what_servers_take_between_two_moments_alone() {
        let rests = format!("sh -c '{COMPUTE}'; echo listening 1; exec sleep 60");
        let (rests, _) = Running::announced(&mut shell(&rests)).unwrap();
        assert!(of_process(rests.pid()).unwrap() >= 5 * TICK);
        let servers = [&rests];
        assert!(Meter::begin(&servers).end() < 3 * TICK, "what was before does not count");

        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        let works = format!("until [ -e {} ]; do sleep 0.01; done; sh -c '{COMPUTE}'; exec sleep 60", go.display());
        let works = Running::start(&mut shell(&works)).unwrap();
        let servers = [&works];
        let meter = Meter::begin(&servers);
        fs::write(go, "").unwrap();
        let last = Instant::now() + LIMIT;
        // Its own time grows by that of its child once it has waited for the child.
        while of_process(works.pid()).unwrap() < 2 * TICK && Instant::now() < last {
            thread::sleep(TICK);
        }
        assert!(meter.end() >= 2 * TICK);
    }
}

//! Processor time of programs while a load runs, user and system together.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::proc_stat::Stat;
use crate::process::Running;

/// How long the processes of a server may take to end after their last client.
const SETTLING: Duration = Duration::from_secs(1);
/// The time between two looks at them.
const PAUSE: Duration = Duration::from_millis(30);

/// Measures the processor time that servers and all their descendants take while a load runs.
#[derive(Debug)]
pub struct Meter<'a> {
    servers: &'a [&'a Running],
    before: Duration,
}

impl<'a> Meter<'a> {
    /// Measures from now on.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc_stat::of_process;
    use crate::process::finish;
    use crate::process::tests::shell;

    const LIMIT: Duration = Duration::from_secs(60);
    /// Computes for some tenths of a second.
    const COMPUTE: &str = "n=0; while [ $n -lt 400000 ]; do n=$((n + 1)); done";
    const TICK: Duration = Duration::from_millis(10);

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
        // The process's time grows by its child's once it has waited for the child.
        while of_process(works.pid()).unwrap() < 2 * TICK && Instant::now() < last {
            thread::sleep(TICK);
        }
        assert!(meter.end() >= 2 * TICK);
    }
}

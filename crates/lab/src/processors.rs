//! Which processors a measurement runs on.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Two processors between which latency is measured: of different cores, where the host has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Number of the one, for servers.
    pub first: usize,
    /// Number of the other, for clients.
    pub second: usize,
}

impl Pair {
    /// Picks two of the processors that this thread may use; `None` if there is but one.
    pub fn pick() -> Option<Pair> {
        let allowed = allowed().ok()?;
        let first = *allowed.first()?;
        let of_another_core = |processor: &&usize| !siblings(first).contains(processor);
        let second = allowed.iter().skip(1).find(of_another_core).or(allowed.get(1))?;
        Some(Pair { first, second: *second })
    }

    /// Until the guard goes, what this thread starts runs on these two processors alone.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn confine(self) -> io::Result<Confined> {
        confine(&[self.first, self.second])
    }

    /// A pair in which both ends have the same processor.
    pub fn one(self) -> Pair {
        Pair { second: self.first, ..self }
    }
}

/// Until the guard goes, what this thread starts runs on `processors` alone.
///
/// # Errors
/// The kernel refuses.
pub fn confine(processors: &[usize]) -> io::Result<Confined> {
    let before = sched_getaffinity(None)?;
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    sched_setaffinity(None, &set)?;
    Ok(Confined { before })
}

/// A thread that is confined to some processors; freed on drop.
#[must_use]
pub struct Confined {
    before: CpuSet,
}

impl Drop for Confined {
    fn drop(&mut self) {
        // It was allowed before; if it no longer is, the confinement stays, which harms nothing but speed.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Processor time of this thread, in ns.
pub fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// What a processor has spent, in ticks, as the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    idle: u64,
    all: u64,
}

impl Times {
    /// Since the start of the system; `None` if the kernel does not say.
    pub fn of(processor: usize) -> Option<Times> {
        Times::parse(&fs::read_to_string("/proc/stat").ok()?, processor)
    }

    /// proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two.
    fn parse(stat: &str, processor: usize) -> Option<Times> {
        let name = format!("cpu{processor} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        Some(Times { idle: ticks.get(3)? + ticks.get(4)?, all: ticks.get(..8)?.iter().sum() })
    }

    /// The share of the time since then in which it had nothing to do, in per cent.
    pub fn idle_since(&self, before: &Times) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.idle.saturating_sub(before.idle) as f64 * 100.0 / all as f64
    }
}

/// The processors that this thread may use.
///
/// # Errors
/// The kernel does not say.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

fn siblings(processor: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    list(&fs::read_to_string(path).unwrap_or_default())
}

/// The kernel's lists of processors: `0-1,4`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_lists_are_read() {
        assert_eq!(list("0\n"), [0]);
        assert_eq!(list("0-2,7"), [0, 1, 2, 7]);
        assert!(list("").is_empty());
    }

    #[test]
    fn idle_time_is_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 0 0 0 1 0 0 0 0 0 0\ncpu11 10 1 9 70 5 2 3 0 8 0\nintr 1\n";
        let times = Times::parse(stat, 11).unwrap();
        assert_eq!(times, Times { idle: 75, all: 100 });
        assert_eq!(Times { idle: 100, all: 200 }.idle_since(&times), 25.0);
        assert_eq!(times.idle_since(&times), 0.0);
        assert_eq!(Times::parse(stat, 2), None);
        assert_eq!(Times::parse("cpu2 1 2 3", 2), None);
    }

    #[test]
    fn confinement_ends_with_its_guard() {
        let before = allowed().unwrap();
        if let Some(pair) = Pair::pick() {
            let confined = pair.confine().unwrap();
            assert_eq!(allowed().unwrap().len(), 2);
            drop(confined);
        }
        assert_eq!(allowed().unwrap(), before);
    }
}

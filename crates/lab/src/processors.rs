//! Which processors a measurement runs on.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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

    /// One processor for both.
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

fn allowed() -> io::Result<Vec<usize>> {
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

//! The descriptors of a set: one, and more where the program has duplicated it.

use underpass_segment::sync::{AcqRel, Acquire, AtomicBool, AtomicI32, AtomicU32, Relaxed, Release};

/// How many descriptors are kept.
const MOST: usize = 6;

/// Zeroed memory has none.
pub struct Names {
    count: AtomicU32,
    /// Each plus 1; 0: a free place.
    kept: [AtomicI32; MOST],
    /// There were more than are kept.
    lost: AtomicBool,
}

impl Names {
    /// From now on `fd` is the only descriptor.
    pub(super) fn begin(&self, fd: i32) {
        self.kept.iter().for_each(|place| place.store(0, Relaxed));
        self.lost.store(false, Relaxed);
        self.keep(fd);
        self.count.store(1, Release);
    }

    /// Adds a descriptor; false if none is left, because another thread has closed the last one.
    pub fn add(&self, fd: i32) -> bool {
        let is_alive = self.count.fetch_update(AcqRel, Relaxed, |count| (count > 0).then_some(count + 1)).is_ok();
        if is_alive {
            self.keep(fd);
        }
        is_alive
    }

    fn keep(&self, fd: i32) {
        let found = self.kept.iter().any(|place| place.compare_exchange(0, fd + 1, AcqRel, Relaxed).is_ok());
        if !found {
            self.lost.store(true, Release);
        }
    }

    /// Removes `fd`. True if it was the last one; that is returned once only.
    pub fn remove(&self, fd: i32) -> bool {
        for place in &self.kept {
            let _ = place.compare_exchange(fd + 1, 0, AcqRel, Relaxed);
        }
        self.count.fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1)) == Ok(1)
    }

    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.count.load(Acquire) > 1
    }

    /// The numbers that may be descriptors of the set, if all numbers are below `highest`.
    pub fn possible(&self, highest: i32) -> impl Iterator<Item = i32> {
        let all = if self.lost.load(Acquire) { highest } else { 0 };
        self.kept.iter().map(|place| place.load(Acquire) - 1).filter(|&fd| fd >= 0).chain(0..all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_beyond_what_is_kept_are_found_among_all_numbers() {
        // SAFETY: zeroed memory has none.
        let names: Names = unsafe { core::mem::zeroed() };
        names.begin(5);
        assert!(!names.are_several());
        for fd in 10..10 + MOST as i32 - 1 {
            names.add(fd);
        }
        assert_eq!(names.possible(100).collect::<Vec<_>>(), [5, 10, 11, 12, 13, 14]);
        names.add(90);
        assert!(names.possible(100).any(|fd| fd == 90));
        assert!(!names.remove(5));
        names.begin(7);
        assert_eq!(names.possible(100).collect::<Vec<_>>(), [7]);
        assert!(names.remove(7));
        assert_eq!(names.possible(100).next(), None);
    }

    /// Threads that duplicate and close one another's descriptors: only the thread that closes the last one ends the
    /// set.
    #[test]
    fn the_last_goes_once_and_none_comes_behind_it() {
        // SAFETY: zeroed memory has none.
        let names: Names = unsafe { core::mem::zeroed() };
        names.begin(5);
        assert!(names.add(6));
        assert!(!names.remove(5) && names.remove(6));
        assert!(!names.add(7));
        assert!(!names.remove(7));
    }
}

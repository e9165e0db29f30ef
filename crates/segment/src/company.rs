//! Which other threads want this processor, learnt from how long it was away whenever this process gave way.
//!
//! A poll that gives way among threads with brief business is the cheapest wait there is: it takes time from no other
//! thread, and no thread has to be woken. Beside a program that computes it is the most expensive one: that program
//! keeps the processor until its slice is over (milliseconds), where a woken sleeper would get the processor at once.

use crate::clock::{self, ticks, ticks_per_microsecond};
use crate::sync::{AtomicU32, AtomicU64, Relaxed};

/// Giving way takes less than this when no other thread wants the processor.
const NOBODY_US: u64 = 1;
/// What giving way costs when another thread wants the processor: the processor changes hands twice, and its caches
/// have the other thread's data.
const CHANGE_US: u64 = 4;
/// A thread that keeps the processor longer than this computes. Several servers of one client take turns of about 100
/// µs; the threads of a busy server together take several such turns.
const BRIEF_US: u64 = 1000;
/// After having met a thread that computes, this process does not give way for so long at first.
const SHUN_US: u32 = 500;
/// The longest of these times.
const LONGEST_SHUN_US: u32 = 320_000;
/// A slice that is lost to a thread that computes costs what about so many waits save by giving way rather than
/// sleeping.
const FORGIVEN_BY: u32 = 128;

/// What kind of thread was met on this processor last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Company {
    /// None: giving way is of no use, and costs a system call.
    Nobody,
    /// Threads with brief business.
    Brief,
    /// A thread that computes: giving way does not pay, a sleep does.
    Greedy,
}

static LAST: AtomicU32 = AtomicU32::new(Company::Nobody as u32);
/// When a thread that computes was met last, in ticks.
static MET: AtomicU64 = AtomicU64::new(0);
/// For how many microseconds such a thread is expected from then on.
static SHUN: AtomicU32 = AtomicU32::new(SHUN_US);

/// The kind of thread that is to be expected on this processor.
#[inline]
pub fn expected() -> Company {
    match LAST.load(Relaxed) {
        n if n == Company::Nobody as u32 => Company::Nobody,
        n if n == Company::Brief as u32 => Company::Brief,
        _ => still_greedy(),
    }
}

#[cold]
fn still_greedy() -> Company {
    let since = ticks().wrapping_sub(MET.load(Relaxed));
    let shunned = since < u64::from(SHUN.load(Relaxed)) * ticks_per_microsecond();
    if shunned { Company::Greedy } else { Company::Nobody }
}

/// Gives the processor to another thread that wants it; returns for how many ticks threads with brief business had it.
pub fn give_way() -> u64 {
    let began = ticks();
    clock::give_way();
    let now = ticks();
    let away = now.wrapping_sub(began);
    let met = judge(away / ticks_per_microsecond());
    let shun = SHUN.load(Relaxed);
    if met == Company::Greedy {
        MET.store(now, Relaxed);
    }
    // Every wait of every thread reads these, so they are written only when they change.
    if shun != next_shun(shun, met) {
        SHUN.store(next_shun(shun, met), Relaxed);
    }
    if LAST.load(Relaxed) != met as u32 {
        LAST.store(met as u32, Relaxed);
    }
    if met == Company::Brief { away.saturating_sub(CHANGE_US * ticks_per_microsecond()) } else { 0 }
}

/// The kind of thread that had the processor for `away_us` microseconds.
fn judge(away_us: u64) -> Company {
    match away_us {
        0..NOBODY_US => Company::Nobody,
        NOBODY_US..BRIEF_US => Company::Brief,
        _ => Company::Greedy,
    }
}

/// For how long this process does not give way after having met `met`: longer and longer where giving way does not pay
/// on the whole.
fn next_shun(shun: u32, met: Company) -> u32 {
    let next = if met == Company::Greedy { shun.saturating_mul(2) } else { shun - shun / FORGIVEN_BY };
    next.clamp(SHUN_US, LONGEST_SHUN_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_computes_is_told_from_who_does_not() {
        assert_eq!(judge(0), Company::Nobody);
        assert_eq!(judge(100), Company::Brief);
        assert_eq!(judge(3000), Company::Greedy);
    }

    #[test]
    fn the_greedy_are_shunned_longer_each_time_and_forgiven_by_and_by() {
        let mut shun = SHUN_US;
        for _ in 0..20 {
            shun = next_shun(shun, Company::Greedy);
        }
        assert_eq!(shun, LONGEST_SHUN_US);
        for _ in 0..10 {
            shun = next_shun(shun, Company::Brief);
        }
        assert!(shun > LONGEST_SHUN_US / 2, "{shun}");
        for _ in 0..1000 {
            shun = next_shun(shun, Company::Nobody);
        }
        assert_eq!(shun, SHUN_US);
    }
}

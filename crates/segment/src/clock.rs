//! Time and place for waiting: the processor's time stamp counter and the number of the processor.
#![allow(unsafe_code, reason = "reads the time stamp counter")]

use crate::raw::{is_quiet, syscall};
use crate::sync::{AtomicU64, Relaxed, pause};

/// Ticks of the time stamp counter, and the processor they were read on.
#[derive(Clone, Copy, Debug)]
pub struct Here {
    /// Counter value.
    pub ticks: u64,
    /// Processor number.
    pub cpu: u32,
}

/// Now, and where. About 10 ns.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn here() -> Here {
    if cfg!(loom) {
        return Here { ticks: 0, cpu: 0 };
    }
    let mut aux = 0u32;
    // SAFETY: RDTSCP is present on every x86-64 processor that runs a kernel with the invariant counter; it only reads.
    let ticks = unsafe { core::arch::x86_64::__rdtscp(&mut aux) };
    // Linux keeps the processor number in the low 12 bits of TSC_AUX.
    Here { ticks, cpu: aux & 0xfff }
}

/// Ticks only. About 7 ns.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn ticks() -> u64 {
    if cfg!(loom) {
        // In a model no time passes, and no patience ends.
        return 0;
    }
    // SAFETY: RDTSC only reads.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Now, and where.
#[cfg(target_arch = "aarch64")]
#[inline]
pub fn here() -> Here {
    let mut cpu = 0u32;
    // SAFETY: getcpu writes one u32.
    let _ = unsafe { syscall(libc::SYS_getcpu, [&raw mut cpu as usize, 0, 0, 0, 0, 0]) };
    Here { ticks: ticks(), cpu }
}

/// Ticks only.
#[cfg(target_arch = "aarch64")]
#[inline]
pub fn ticks() -> u64 {
    let value: u64;
    // SAFETY: reads the virtual counter.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
    value
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn nanoseconds() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime (the vDSO's) writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

static FIRST_TICKS: AtomicU64 = AtomicU64::new(0);
static FIRST_NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static TICKS_PER_MICROSECOND: AtomicU64 = AtomicU64::new(0);

/// Takes the first of the two readings that give the counter's frequency. Called once, early.
pub fn begin() {
    FIRST_NANOSECONDS.store(nanoseconds(), Relaxed);
    FIRST_TICKS.store(ticks(), Relaxed);
}

/// The counter's frequency; a guess of 2 GHz until a millisecond has passed since [`begin`].
#[inline]
pub fn ticks_per_microsecond() -> u64 {
    match TICKS_PER_MICROSECOND.load(Relaxed) {
        0 => measure(),
        known => known,
    }
}

/// The counter's frequency, measured: the first call takes a millisecond. For callers that do not [`begin`] early.
pub fn measured_ticks_per_microsecond() -> u64 {
    if FIRST_TICKS.load(Relaxed) == 0 {
        begin();
    }
    while TICKS_PER_MICROSECOND.load(Relaxed) == 0 {
        nap(100);
        ticks_per_microsecond();
    }
    ticks_per_microsecond()
}

#[cold]
fn measure() -> u64 {
    const GUESS: u64 = 2000;
    let elapsed = nanoseconds().saturating_sub(FIRST_NANOSECONDS.load(Relaxed));
    if FIRST_TICKS.load(Relaxed) == 0 || elapsed < 1_000_000 {
        return GUESS;
    }
    let rate = (ticks().wrapping_sub(FIRST_TICKS.load(Relaxed)) as u128 * 1000 / elapsed as u128) as u64;
    let rate = if (10..100_000).contains(&rate) { rate } else { GUESS };
    TICKS_PER_MICROSECOND.store(rate, Relaxed);
    rate
}

/// Gives the processor to another thread that wants it.
pub fn give_way() {
    if is_quiet() {
        return pause();
    }
    // SAFETY: no arguments.
    let _ = unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// Sleeps for about `microseconds` (0 to 999,999) with the signals of `mask` held back and all others let in; false
/// when one of those was handled.
pub fn nap_unless_signalled(microseconds: u32, mask: u64) -> bool {
    let ts = libc::timespec { tv_sec: 0, tv_nsec: microseconds as libc::c_long * 1000 };
    let mask = &raw const mask;
    // SAFETY: ppoll of no descriptors reads one timespec and a mask of eight bytes.
    unsafe { syscall(libc::SYS_ppoll, [0, 0, &raw const ts as usize, mask as usize, size_of::<u64>(), 0]) }.is_ok()
}

/// Sleeps for about `microseconds` (1 to 999,999).
pub fn nap(microseconds: u32) {
    if is_quiet() {
        return (0..u64::from(microseconds) * 16).for_each(|_| pause());
    }
    let ts = libc::timespec { tv_sec: 0, tv_nsec: microseconds as libc::c_long * 1000 };
    // SAFETY: nanosleep reads one timespec and writes no remainder.
    let _ = unsafe { syscall(libc::SYS_nanosleep, [&raw const ts as usize, 0, 0, 0, 0, 0]) };
}

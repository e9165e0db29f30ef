//! Doorbells at the reader, which takes them out of the kernel's queue, counts them and throws them away.
//!
//! The reader keeps the bytes that it took last until it is sure that they were doorbells: behind a mark of going down
//! they are data.
#![allow(unsafe_code, reason = "takes doorbells from the kernel into buffers of its own")]

use super::entering::Beside;
use super::take::Taken;
use super::{AGAIN, Port, ReaderState, micros};
use crate::clock::{nanoseconds, nap, ticks};
use crate::kernel;
use crate::raw::Answer;
use crate::sync::{AcqRel, Acquire, Relaxed, SeqCst, compiler_fence, own};
use crate::vector::Cursor;
use crate::words::{ALONE, NO_MORE_BELLS};

/// An announced doorbell comes within this time, if its sender is neither stopped nor killed: the sender has one system
/// call to make.
pub(super) const BELL_WITHIN_US: u64 = 5_000_000;

impl Port<'_> {
    /// Doorbells taken since the beginning.
    pub(super) fn bells(&self) -> u64 {
        let reading = &self.end.reading;
        reading.all_bells.load(Relaxed).wrapping_sub(reading.mistaken.load(Relaxed))
    }

    /// Doorbells taken since the direction last went up.
    pub(super) fn bells_taken(&self) -> u64 {
        let reading = &self.end.reading;
        reading.all_bells.load(Relaxed).wrapping_sub(reading.bells_before_up.load(Relaxed))
    }

    /// Doorbells that the sender has announced since the beginning.
    pub(super) fn announced(&self) -> u64 {
        self.channel.incoming().sender.announced.load(Acquire) & !NO_MORE_BELLS
    }

    /// Doorbells that were announced and not taken.
    pub(super) fn owed(&self) -> usize {
        self.announced().saturating_sub(self.bells()).min(16) as usize
    }

    /// Throws away the doorbells that lie before the data in the kernel. `Some` if they are not all there yet.
    pub(super) fn discard_bells(&self) -> Option<Taken> {
        if self.end.reading.to_discard() == 0 {
            return None;
        }
        // A handler must not take what this thread has counted.
        kernel::undisturbed(|| self.discard_counted_bells())
    }

    /// Throws away doorbells beside the program's receives: a failure that the kernel tells, which it tells once, is
    /// kept for the program.
    pub(super) fn discard_bells_aside(&self) {
        if let Some(taken) = self.discard_bells() {
            self.keep_for_program(taken);
        }
    }

    fn keep_for_program(&self, taken: Taken) {
        if let Taken::Failed(error) = taken {
            self.end.keep_error(error);
        }
    }

    fn discard_counted_bells(&self) -> Option<Taken> {
        let reading = &self.end.reading;
        while let left @ 1.. = reading.to_discard() {
            // SAFETY: MSG_TRUNC with a null buffer writes nothing.
            let got = unsafe {
                kernel::recv(self.fd, core::ptr::null_mut(), left as usize, libc::MSG_DONTWAIT | libc::MSG_TRUNC)
            };
            match got {
                Ok(0) => return Some(Taken::EndOfStream),
                Ok(n) => self.count_bells(n as u64),
                Err(AGAIN) => return Some(Taken::Nothing),
                Err(e) => return Some(self.verdict(e)),
            }
        }
        None
    }

    /// Takes doorbells without waiting, and none if there is something in the ring. Two takes in a row must not take
    /// data for doorbells, because only the last bytes are kept.
    pub(super) fn take_bells_of_idle(&self, most: usize) -> Answer {
        self.in_kernel(|| if self.has_something() { Ok(0) } else { self.take_waiting_bells(most) })
    }

    /// Takes doorbells without waiting, whatever is in the ring. A failure that the kernel tells, which it tells once,
    /// is kept for the program.
    pub(super) fn take_waiting_bells(&self, most: usize) -> Answer {
        // SAFETY: the buffer is `take_bells`'.
        let taken = self.take_bells(most, |fd, to, len| unsafe { kernel::recv(fd, to, len, libc::MSG_DONTWAIT) });
        if let Err(error) = taken
            && error != AGAIN
        {
            self.keep_for_program(self.verdict(error));
        }
        taken
    }

    /// Takes doorbells out of the kernel's queue by `recv`, and keeps them until it is sure that they were no data sent
    /// after going down. The ring must be empty.
    pub(super) fn take_bells(&self, most: usize, recv: impl Fn(i32, *mut u8, usize) -> Answer) -> Answer {
        if self.end.is_remote() {
            return Err(AGAIN);
        }
        let reading = &self.end.reading;
        let most = most.min(reading.fresh.len());
        let below = reading.taking.load(Relaxed);
        reading.taking.store(self.me, Relaxed);
        let got = recv(self.fd, reading.fresh.as_ptr().cast_mut().cast(), most);
        if let Ok(got @ 1..) = got {
            self.count_taken(got.min(most));
        }
        reading.taking.store(below, Relaxed);
        Ok(got?.min(most))
    }

    /// Counts bytes that were taken for doorbells, unless a signal handler of this thread has done so.
    pub(super) fn count_taken(&self, got: usize) {
        let reading = &self.end.reading;
        let bytes = reading.fresh.each_ref().map(|byte| byte.load(Relaxed));
        if self.reader_state() == ReaderState::Kernel {
            // A handler passed the mark of going down before the bytes were taken. Behind the doorbells comes data.
            return kernel::undisturbed(|| {
                let bells = reading.to_discard().min(got as u64);
                if reading.taking.load(Relaxed) == self.me && self.keep(&bytes[..got]) {
                    self.stash_last(got as u64 - bells);
                }
            });
        }
        while reading.taking.load(Relaxed) == self.me && !self.keep(&bytes[..got]) {}
    }

    /// Keeps and counts these bytes as the last that were taken for doorbells. False if a handler has kept others
    /// meanwhile.
    fn keep(&self, bytes: &[u8]) -> bool {
        let reading = &self.end.reading;
        let before = reading.all_bells.load(Relaxed);
        compiler_fence(SeqCst);
        // A handler that counts these very bytes writes the same to the same places.
        if reading.taking.load(Relaxed) != self.me {
            return false;
        }
        for (number, &byte) in bytes.iter().enumerate() {
            let at = before.wrapping_add(number as u64) % reading.kept.len() as u64;
            reading.kept[at as usize].store(byte, Relaxed);
        }
        let kept = own::replace(&reading.all_bells, before, before.wrapping_add(bytes.len() as u64));
        self.publish_bells();
        kept
    }

    pub(super) fn count_bells(&self, taken: u64) {
        own::add(&self.end.reading.all_bells, taken);
        self.publish_bells();
    }

    /// Publishes how many doorbells were taken, and the position that follows from that.
    fn publish_bells(&self) {
        loop {
            let bells = self.bells();
            self.channel.incoming().head.bells_taken.store(bells, Relaxed);
            self.publish_position();
            compiler_fence(SeqCst);
            // A handler may have counted more and published that before.
            if self.bells() == bells {
                return;
            }
        }
    }

    /// Takes doorbells of an empty ring out of the kernel's queue, where they hide what comes behind them. Another
    /// sleeper that they were for is woken by the next doorbell.
    pub(super) fn pass_bells(&self) {
        let number = self.resting();
        if number != 0 {
            self.arm(number);
        } else {
            let _ = self.take_bells_of_idle(16);
        }
    }

    /// As [`Port::pass_bells`] for a receive that is about to sleep: the doorbells would wake it at once. It takes them
    /// in any case, and notes that the sleepers that they may have been for have to look themselves.
    pub(super) fn take_over_bells(&self) {
        let resting = &self.end.reading.resting;
        let number = resting.number();
        if number == 0 || self.arm(number) {
            let taken = self.take_bells_of_idle(16);
            resting.set_stray(number != 0 && matches!(taken, Ok(1..)));
        }
    }

    /// Takes doorbells that have done their work out of the kernel's queue, once the ring is empty. Then the kernel's
    /// own polls find no doorbell, and the kernel does not answer the end of this process with a reset.
    pub(super) fn clear_bells(&self) {
        while self.receives_fast() && !self.has_something() {
            let owed = self.owed();
            if owed == 0 {
                return;
            }
            if !matches!(self.take_bells_of_idle(owed), Ok(1..)) {
                return;
            }
        }
    }

    /// Clears doorbells while other threads may sleep here: the flag is raised for them again. A group takes its own
    /// doorbells.
    pub(super) fn clear_bells_beside(&self) {
        match self.resting() {
            0 => self.clear_bells(),
            ALONE => {
                self.arm(ALONE);
            }
            _ => {}
        }
    }

    /// Takes doorbells that were still on their way when the ring was emptied out of the kernel's queue.
    pub fn take_late_bells(&self) {
        if self.owed() > 0 {
            self.readable();
        }
    }

    /// Refuses doorbells from now on. Returns how many were announced before.
    pub(super) fn refuse_bells(&self) -> u64 {
        self.channel.incoming().sender.announced.fetch_or(NO_MORE_BELLS, AcqRel) & !NO_MORE_BELLS
    }

    /// Waits until this thread or the sleeper has taken the doorbells up to number `last`, or until `until`
    /// (CLOCK_MONOTONIC, ns). Returns how many are missing.
    pub(super) fn await_bells(&self, beside: Beside, last: u64, until: u64) -> u64 {
        let reading = &self.end.reading;
        let missing = || match self.receives_fast() {
            // A sender that finds the flag taken takes its announced doorbell back.
            true => last.min(self.announced()).saturating_sub(self.bells()),
            false => reading.to_discard(),
        };
        if missing() == 0 {
            return 0;
        }
        let began = ticks();
        loop {
            // This comes before the last look: what came before the end of the stream is there by then. A sleeper is
            // about to take it.
            let over = self.has_ended() && self.may_take(beside)
                || ticks().wrapping_sub(began) > micros(BELL_WITHIN_US)
                || nanoseconds() > until;
            if !self.may_take(beside) {
                // The sleeper takes the next doorbell.
            } else if self.receives_fast() {
                while missing() > 0 {
                    // How many of the bytes that lie there already are doorbells shows only in how many are still
                    // announced afterwards: a sender takes a doorbell back before it sends data in its place. If that
                    // data was taken here, a sleeper would not learn of it.
                    let there = kernel::inq(self.fd).map_or(0, u64::from);
                    if !matches!(self.take_waiting_bells(missing().min(there) as usize), Ok(1..)) {
                        break;
                    }
                }
            } else {
                self.discard_bells_aside();
            }
            let missing = missing();
            if missing == 0 || over {
                return missing;
            }
            nap(20);
        }
    }

    /// How many of the bytes that were taken for doorbells are kept.
    pub(super) fn kept(&self) -> usize {
        let reading = &self.end.reading;
        let kept = reading.all_bells.load(Relaxed).wrapping_sub(reading.kept_from.load(Relaxed));
        kept.min(reading.kept.len() as u64) as usize
    }

    /// The last `data` bytes that were taken and counted as doorbells are data.
    pub(super) fn stash_last(&self, data: u64) {
        let reading = &self.end.reading;
        reading.stash.fetch_add(data as u32, Relaxed);
        reading.mistaken.fetch_add(data, Relaxed);
        self.publish_bells();
    }

    /// This end is absent. A byte that it took for a doorbell that the sender has taken back is data: the sender takes
    /// the doorbell back before it sends the data.
    pub(super) fn keep_early_data(&self) {
        let early = self.bells().saturating_sub(self.announced());
        self.stash_last(early.min(self.kept() as u64));
    }

    /// Takes data that was taken from the kernel for doorbells.
    pub(super) fn take_stash(&self, into: &mut Cursor, peek: bool) -> Option<usize> {
        let reading = &self.end.reading;
        let stash = reading.stash.load(Relaxed) as usize;
        let n = stash.min(into.left());
        if n == 0 || stash > self.kept() {
            return None;
        }
        self.copy_held(into, stash, n);
        if !peek {
            reading.stash.store((stash - n) as u32, Relaxed);
            reading.kernel_bytes.fetch_add(n as u64, Relaxed);
        }
        Some(n)
    }

    /// Copies `n` of the last `most` bytes that were taken for doorbells.
    pub(super) fn copy_held(&self, into: &mut Cursor, most: usize, n: usize) {
        let reading = &self.end.reading;
        let first = reading.all_bells.load(Relaxed).wrapping_sub(most as u64);
        for number in 0..n as u64 {
            let byte = reading.kept[(first.wrapping_add(number) % reading.kept.len() as u64) as usize].load(Relaxed);
            // SAFETY: one byte from this stack frame; the callers see that there is room for `n`.
            unsafe { into.copy_from(&byte, 1) };
        }
    }
}

//! An end in a process that may soon be killed for any system call which the program does not make itself (seccomp(2)).
//!
//! Its direction out goes down for good. Its reader leaves the ring if everything was read, or if the reader can put
//! the rest on the kernel path itself. Otherwise the reader reads the ring to its end, which costs no system call, and
//! leaves it then. Meanwhile the program's own call takes what has to be taken from the kernel, and no more than lies
//! before the ring.
#![allow(unsafe_code, reason = "an empty message header")]

use super::entering::Beside;
use super::leaving::Leave;
use super::{BROKEN, LeftRing, Port, ReaderState};
use crate::clock::{nanoseconds, nap};
use crate::end::Stage;
use crate::kernel;
use crate::lock::Entered;
use crate::raw::{Answer, Errno};
use crate::reason::Reason;
use crate::ring::{Fault, Record};
use crate::sync::{AcqRel, Acquire, Relaxed, SeqCst, fence, pause};
use crate::vector::Cursor;
use crate::words::{ALONE, Flag, LEFT, NO_MORE_BELLS};

/// The program's own call for receiving, with other buffers and flags.
pub type Receive<'a> = &'a dyn Fn(&mut libc::msghdr, i32) -> Answer;

/// An honest sender lets a reader leave within so many rounds, even if it publishes something now and then.
const ROUNDS: u32 = 10_000;

/// What is left for a confined end to read.
enum Rest {
    /// Everything was read: it is plain TCP.
    Plain,
    /// There is something to be read before.
    Something,
    Failed(Errno),
}

impl Port<'_> {
    /// Takes both directions to the kernel path for good, and waits for the other end until `until` (CLOCK_MONOTONIC,
    /// ns) at most. True if plain sends and [`Port::receive_by`] suffice from now on. What is unread may stay in the
    /// ring if the program's waits look there (`is_seen`).
    pub fn confine(&self, until: u64, is_seen: bool) -> bool {
        if self.is_given_first() {
            // That would take system calls.
            self.break_off();
        }
        self.leave_if_read(until);
        let mut left = if self.is_absent() { LeftRing::Empty } else { self.leave_and_give(until) };
        if left == LeftRing::No && is_seen {
            // What is sent from now on comes by the kernel, behind what is unread.
            self.ask_for_down();
        } else if left == LeftRing::No {
            left = self.leave(Leave::IfGivenBack, until);
        }
        self.go_down_for_good(Reason::Seccomp, left == LeftRing::Unread, until);
        !self.sends_fast() && (self.is_absent() || is_seen && self.send_no_more_bells(until))
    }

    /// Leaves the ring and puts on the kernel path itself what is unread there, if the kernel has room for that. The
    /// sender has to put there what comes meanwhile.
    fn leave_and_give(&self, until: u64) -> LeftRing {
        let Some(socket) = self.copy_of_peer() else { return LeftRing::No };
        let has_room = kernel::has_room_for(socket, self.left_behind());
        let mut left = if has_room { self.leave(Leave::IfGivenBack, until) } else { LeftRing::No };
        if left != LeftRing::No {
            left = LeftRing::with(self.has_left_unread() && !self.give_itself_by(socket));
        }
        kernel::close(socket);
        left
    }

    /// Refuses doorbells from now on, and takes those that were sent, unless they lie behind unread data. False if
    /// another thread sleeps in a receive.
    fn send_no_more_bells(&self, until: u64) -> bool {
        let reading = &self.end.reading;
        self.with_reading(|beside| {
            if beside == Beside::Sleeper {
                return false;
            }
            self.pass_marks();
            let bells = &self.channel.incoming().sender.announced;
            let announced = bells.fetch_or(NO_MORE_BELLS, AcqRel) & !NO_MORE_BELLS;
            // A sender may take an announced doorbell back.
            let last = || announced.min(bells.load(Acquire) & !NO_MORE_BELLS);
            let missing = || last().saturating_sub(self.bells());
            while missing() > 0 {
                let there = if self.receives_fast() {
                    self.take_waiting_bells(missing().min(16) as usize).is_ok_and(|n| n > 0)
                } else {
                    let before = self.kernel_limit().ok().flatten().unwrap_or(0) as u64;
                    if kernel::inq(self.fd).is_ok_and(|queued| u64::from(queued) >= before.saturating_add(missing())) {
                        break;
                    }
                    false
                };
                if !there {
                    if self.has_ended() || nanoseconds() > until {
                        break;
                    }
                    nap(20);
                }
            }
            reading.last_bell.store(last(), Relaxed);
            true
        })
    }

    /// Whether all that is left comes by the program's own calls.
    pub fn is_plain(&self) -> bool {
        let reading = &self.end.reading;
        self.reader_state() == ReaderState::Absent
            && reading.stash.load(Relaxed) == 0
            && reading.to_discard() == 0
            && reading.error.load(Relaxed) == 0
            && self.end.stage() == Stage::Joined
    }

    /// Receives what is left for a confined end, without any system call but `call`. `None` if nothing is left: the
    /// program's own call receives then.
    pub fn receive_by(&self, into: &mut Cursor, flags: i32, call: Receive<'_>) -> Option<Answer> {
        let lock = &self.end.reading.lock;
        let entered = self.enter_reading();
        if entered == Entered::Asleep {
            // The sleeper has found the ring empty.
            return None;
        }
        let mut total = 0;
        let answer = match self.receive_rest(into, flags, call, &mut total) {
            Ok(()) if total == 0 => None,
            Err(Errno(e)) if total > 0 => {
                if e != libc::EAGAIN && e != libc::EINTR {
                    self.end.reading.error.store(e, Relaxed);
                }
                Some(Ok(total))
            }
            Ok(()) => Some(Ok(total)),
            Err(e) => Some(Err(e)),
        };
        lock.exit(entered);
        answer
    }

    fn receive_rest(&self, into: &mut Cursor, flags: i32, call: Receive<'_>, total: &mut usize) -> Result<(), Errno> {
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        if into.left() == 0 {
            return Ok(());
        }
        loop {
            // This comes after the last byte, too: the next poll relies on the kernel.
            match self.move_on(call)? {
                Rest::Plain if *total == 0 => return Ok(()),
                Rest::Failed(e) => return Err(e),
                Rest::Plain | Rest::Something => {}
            }
            if *total > 0 && (!all || into.left() == 0) {
                return Ok(());
            }
            let got = self.take_by(into, flags, call)?;
            if got == 0 {
                return Ok(());
            }
            *total += got;
        }
    }

    /// Makes one receive of what comes next, from the stash, the ring or the kernel.
    fn take_by(&self, into: &mut Cursor, flags: i32, call: Receive<'_>) -> Answer {
        let reading = &self.end.reading;
        let peek = flags & libc::MSG_PEEK != 0;
        if let Some(n) = self.take_stash(into, peek) {
            return Ok(n);
        }
        if self.receives_fast() {
            return self.take_from_ring(into, peek);
        }
        let limit = self.kernel_limit().map_err(|Fault| self.broken())?.unwrap_or(usize::MAX);
        let (to, len) = into.chunk(limit);
        let mut one = libc::iovec { iov_base: to.cast(), iov_len: len };
        let n = self.by_one(&mut one, flags, call)?.min(len);
        into.skip(n);
        if !peek {
            reading.kernel.fetch_add(n as u64, Relaxed);
            reading.kernel_bytes.fetch_add(n as u64, Relaxed);
        }
        Ok(n)
    }

    fn by_one(&self, one: &mut libc::iovec, flags: i32, call: Receive<'_>) -> Answer {
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (one, 1);
        call(&mut message, flags)
    }

    /// Passes every mark that is due, throws away the doorbells behind it, and leaves the ring when everything was
    /// read.
    fn move_on(&self, call: Receive<'_>) -> Result<Rest, Errno> {
        let reading = &self.end.reading;
        for _ in 0..ROUNDS {
            if self.end.stage() == Stage::Broken {
                return Err(BROKEN);
            }
            if reading.stash.load(Relaxed) > 0 {
                return Ok(Rest::Something);
            }
            self.drop_bells(call)?;
            let (head, record) = self.front().map_err(|Fault| self.broken())?;
            match (record, self.receives_fast()) {
                (Record::Data(_), true) => return Ok(Rest::Something),
                (Record::Down(bells), true) => self.enter_kernel(head, bells),
                (Record::Up(_), false) => match self.kernel_limit() {
                    Ok(Some(0)) => self.enter_fast(0),
                    Ok(_) => return Ok(Rest::Something),
                    Err(Fault) => return Err(self.broken()),
                },
                (Record::Empty, _) => {
                    if let e @ 1.. = reading.error.swap(0, Relaxed) {
                        return Ok(Rest::Failed(Errno(e)));
                    }
                    if self.is_absent() || self.leave_in_silence() {
                        return Ok(Rest::Plain);
                    }
                    pause();
                }
                _ => return Err(self.broken()),
            }
        }
        Err(self.broken())
    }

    /// Leaves the ring if everything was read. The sender sends no doorbell any more, so only this reader looks at the
    /// flag.
    fn leave_in_silence(&self) -> bool {
        let reading = &self.end.reading;
        let waiting = &self.channel.incoming().flags.waiting;
        let _ = waiting.fetch_update(SeqCst, Relaxed, |now| (!Flag(now).is_absent()).then_some(ALONE));
        // The flag is up before this end looks at the ring. The sender publishes before it looks at the flag.
        fence(SeqCst);
        let left = !self.has_something() && waiting.compare_exchange(ALONE, LEFT, SeqCst, Relaxed).is_ok();
        if left {
            reading.armed.store(0, Relaxed);
            reading.fast.store(0, Relaxed);
        }
        left
    }

    /// Throws away the doorbells that come next in the kernel.
    fn drop_bells(&self, call: Receive<'_>) -> Result<(), Errno> {
        let reading = &self.end.reading;
        loop {
            let fast = self.receives_fast();
            let count =
                if fast { reading.last_bell.load(Relaxed).saturating_sub(self.bells()) } else { reading.to_discard() };
            let mut bytes = [0u8; 16];
            let len = (count as usize).min(bytes.len());
            if len == 0 {
                return Ok(());
            }
            let mut one = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
            let n = self.by_one(&mut one, 0, call)?.min(len) as u64;
            if n == 0 {
                // The stream has ended, and no doorbell comes any more.
                reading.last_bell.store(0, Relaxed);
                reading.discard(0);
                return Ok(());
            }
            self.count_bells(n);
            reading.kept_from.store(reading.all_bells.load(Relaxed), Relaxed);
        }
    }

    fn broken(&self) -> Errno {
        self.break_off();
        BROKEN
    }
}

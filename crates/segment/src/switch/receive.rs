//! Receiving: from the kernel path up to the mark of going up, then from the ring up to the mark of going down.
#![allow(unsafe_code, reason = "receives from the kernel into the program's buffers")]

use super::doze::LOOKS_WHILE_AWAY;
use super::take::Taken;
use super::{AGAIN, ANEW, BROKEN, Patience, Port, ReaderState, micros};
use crate::clock::{nanoseconds, ticks};
use crate::end::Stage;
use crate::kernel;
use crate::lock::Entered;
use crate::raw::{Answer, Errno, is_quiet};
use crate::ring::Record;
use crate::sync::{Relaxed, own, pause};
use crate::vector::Cursor;
use crate::wait::{Memory, Wait};
use crate::words::Presence;

/// A reader of an empty ring that has no other sign of it asks the kernel for the end of the stream at most this often.
const ASK_EVERY_US: u64 = 1000;

/// A thread that sleeps in a receive, and is about to be woken, wakes within this time if it is not stopped.
const WAKES_WITHIN_US: u64 = 100_000;

/// A receive that does not wait looks so often for what is left in the ring while this end is away: a poll may have
/// reported it before, and the sender gives it back, or the end comes back to it. All receives together wait for that
/// [`LOOKS_WHILE_AWAY`] times.
const AWAY_ROUNDS: u32 = 20;

impl Port<'_> {
    /// Receives into `into` as recv(2) does with `flags`.
    ///
    /// # Errors
    /// As recv(2).
    #[inline]
    pub fn receive(&mut self, mut into: Cursor, flags: i32) -> Answer {
        let reading = &self.end.reading;
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || self.end.nonblocking.load(Relaxed) != 0;
        let (mut since, mut deadline) = (None, None);
        loop {
            let entered = self.end.reading.lock.enter(self.me);
            if self.keeps_socket {
                (self.waiting.keep_socket)(self);
            }
            self.repair_after(entered);
            match entered {
                Entered::Alone | Entered::AfterDeath => {
                    let answer = self.receive_inside(&mut into, flags, nonblocking);
                    if reading.resting.any() {
                        self.rest_again();
                    }
                    reading.lock.exit(entered);
                    return answer;
                }
                Entered::Nested | Entered::AboveSleep => {
                    own::add(&reading.nested, 1);
                    let answer = self.receive_inside(&mut into, flags, nonblocking);
                    if reading.lock.is_asleep() {
                        self.rest_again();
                    }
                    reading.lock.exit(entered);
                    return answer;
                }
                Entered::Asleep if !nonblocking => {
                    let deadline = *deadline.get_or_insert_with(|| self.receive_deadline(None));
                    if let Err(e) = self.wait_behind_sleeper(deadline) {
                        // A receive of nothing waits once, whatever ends that.
                        return if into.left() == 0 { Ok(0) } else { Err(e) };
                    }
                }
                Entered::Asleep => {
                    // What arrives wakes the sleeper. Until then there is nothing.
                    let began = *since.get_or_insert_with(ticks);
                    if !self.has_something() || ticks().wrapping_sub(began) > micros(WAKES_WITHIN_US) {
                        return Err(AGAIN);
                    }
                    if let Some(answer) = kernel::undisturbed(|| self.receive_beside(&mut into, flags)) {
                        return answer;
                    }
                    pause();
                }
            }
        }
    }

    /// A receive that does not wait, while another thread sleeps in one: takes what the ring has before the next mark
    /// of the path. `None`: the sleeper is about to wake.
    #[cold]
    fn receive_beside(&self, into: &mut Cursor, flags: i32) -> Option<Answer> {
        let lock = &self.end.reading.lock;
        if !lock.visit(self.me) {
            return None;
        }
        if let Ok((_, Record::Up(up))) = self.front()
            && self.has_reached(up)
        {
            self.enter_fast(0);
        }
        let answer = if self.end.stage() == Stage::Broken {
            Some(Err(BROKEN))
        } else if self.reader_state() == ReaderState::Ring {
            match self.take_from_ring(into, flags & libc::MSG_PEEK != 0) {
                Ok(0) if into.left() > 0 || !matches!(self.ahead(), Ok(Record::Data(_))) => None,
                taken => Some(taken),
            }
        } else {
            None
        };
        // What lies behind a mark in the kernel wakes the sleeper, and so does a doorbell.
        let nothing = answer.is_none() && !lock.is_awaited() && kernel::inq(self.fd) == Ok(0);
        lock.end_visit();
        if nothing { Some(Err(AGAIN)) } else { answer }
    }

    fn receive_inside(&mut self, into: &mut Cursor, flags: i32, nonblocking: bool) -> Answer {
        let peek = flags & libc::MSG_PEEK != 0;
        let wanted = if flags & libc::MSG_WAITALL != 0 { into.left() } else { 1 };
        if let Some(answer) = self.answer_before(into, flags, nonblocking) {
            return answer;
        }
        let beginning = *into;
        let (mut total, mut seen) = (0, 0);
        let mut waiting: Option<Wait> = None;
        let (mut slept, mut first_slept, mut away_rounds) = (false, None, 0);
        let memory = self.memory();
        let nested = self.end.reading.nested.load(Relaxed);
        loop {
            if total > 0 && self.end.reading.nested.load(Relaxed) != nested {
                // A signal handler may have received what follows.
                return Ok(total);
            }
            match self.take(into, peek, nested) {
                Taken::Bytes(n) => {
                    total += n;
                    if let Some(wait) = waiting.take() {
                        wait.end(memory, slept);
                    }
                    let ahead = if into.left() > 0 { self.ahead() } else { Ok(Record::Empty) };
                    if matches!(ahead, Ok(Record::Data(_))) && self.receives_fast() && !peek {
                        // Published meanwhile.
                        continue;
                    }
                    if into.left() > 0 && (peek || !matches!(ahead, Ok(Record::Empty))) {
                        total += self.take_across_undisturbed(into, peek.then_some(&beginning), nested);
                    }
                    if total >= wanted || into.left() == 0 {
                        return Ok(total);
                    }
                    if peek {
                        if nonblocking || seen > 0 {
                            return Ok(total);
                        }
                        // This is a look at more than there is. It begins once more when all has come that will.
                        self.await_whole(wanted, first_slept);
                        seen = total;
                        (*into, total) = (beginning, 0);
                    }
                    continue;
                }
                Taken::EndOfStream if self.comes_back_at_end() => {}
                Taken::EndOfStream => return self.end_of_stream(total),
                Taken::Failed(e) if total == 0 => return Err(e),
                Taken::Failed(Errno(e)) => {
                    self.end.reading.error.store(e, Relaxed);
                    return Ok(total);
                }
                Taken::Nothing if nonblocking && total > 0 => return Ok(total),
                Taken::Nothing if nonblocking => {
                    if let Some(answer) = self.find_nothing(&mut away_rounds) {
                        return answer;
                    }
                }
                // A signal handler has read what was looked at.
                Taken::Nothing if seen > 0 => return Ok(seen),
                Taken::Nothing if total > 0 && self.end.reading.nested.load(Relaxed) != nested => return Ok(total),
                Taken::Nothing => {
                    let wait = waiting.get_or_insert_with(|| self.begin_wait(memory));
                    let (ring, head) = (self.incoming(), self.place().head);
                    if self.receives_fast() && wait.poll(|| ring.published(head)) {
                        continue;
                    }
                    slept = true;
                    if let Some(answer) = self.sleep_for_more(total, &mut first_slept) {
                        return answer;
                    }
                }
            }
        }
    }

    /// The answer of a receive that takes nothing.
    #[inline]
    fn answer_before(&mut self, into: &mut Cursor, flags: i32, nonblocking: bool) -> Option<Answer> {
        if self.end.stage() == Stage::Broken {
            return Some(Err(BROKEN));
        }
        if into.faults() && self.unread() > into.left() as u64 && into.left() > 0 {
            return Some(Err(Errno(libc::EFAULT)));
        }
        (into.left() == 0).then(|| self.receive_nothing(into.faults(), flags, nonblocking))
    }

    /// As [`Port::take_across`], unless a signal handler of this thread has received since there were `nested`
    /// receives: what follows that is not behind what this receive has.
    #[cold]
    fn take_across_undisturbed(&self, into: &mut Cursor, peek_from: Option<&Cursor>, nested: u64) -> usize {
        kernel::undisturbed(|| {
            let is_next = self.end.reading.nested.load(Relaxed) == nested;
            if is_next { self.take_across(into, peek_from) } else { 0 }
        })
    }

    /// A receive of no bytes, which still waits for something. `faults`: its buffers cannot be written.
    #[cold]
    fn receive_nothing(&mut self, faults: bool, flags: i32, nonblocking: bool) -> Answer {
        let mut byte = 0u8;
        let one = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: one writable byte in this frame.
        let mut scratch = unsafe { Cursor::new(&one, 1) };
        match self.receive_inside(&mut scratch, flags | libc::MSG_PEEK, nonblocking) {
            // It waits once, whatever ends that.
            Err(Errno(libc::EAGAIN | libc::EINTR)) if !nonblocking && !faults => Ok(0),
            Ok(1..) if faults => Err(Errno(libc::EFAULT)),
            answer => answer.map(|_| 0),
        }
    }

    /// A receive that does not wait has found nothing. Whether it looks again, after `rounds` such looks, because this
    /// end is or was away: what a poll has reported before may be on its way, or have come just now.
    fn looks_again_while_away(&mut self, rounds: &mut u32) -> bool {
        let has_been_away = self.end.is_away() || self.end.reading.away_at.load(Relaxed) != 0;
        if !has_been_away || *rounds >= AWAY_ROUNDS {
            return false;
        }
        *rounds += 1;
        if self.awaits_left() {
            self.wait_while_away(Patience::Until(None), 0);
            return true;
        }
        self.was_given_meanwhile()
    }

    /// Whether this end is away, and its sender has still to give back something.
    #[cold]
    pub(super) fn awaits_left(&self) -> bool {
        self.end.is_away()
            && !is_quiet()
            && self.end.reading.vain_looks.load(Relaxed) < LOOKS_WHILE_AWAY
            && !matches!(self.presence(), Presence::Given | Presence::Left)
            && self.left_behind() > 0
            && kernel::inq(self.fd) == Ok(0)
            && !self.has_been_given_all()
    }

    /// Whether something has come by the kernel, where this end reads.
    #[cold]
    fn was_given_meanwhile(&self) -> bool {
        !self.receives_fast() && !is_quiet() && matches!(kernel::inq(self.fd), Ok(1..))
    }

    /// What a receive says that does not wait and has found nothing. `None`: it looks again, because something has come
    /// meanwhile, or may come at once, after `rounds` such looks.
    fn find_nothing(&mut self, rounds: &mut u32) -> Option<Answer> {
        if self.looks_again_while_away(rounds) {
            return None;
        }
        let nothing = match self.ask_kernel() {
            Taken::Nothing => true,
            Taken::EndOfStream if !self.has_something() => return Some(self.end_of_stream(0)),
            Taken::Failed(e) if !self.has_something() => return Some(Err(e)),
            Taken::Failed(Errno(e)) => {
                self.end.reading.error.store(e, Relaxed);
                false
            }
            // The direction has gone down.
            Taken::Bytes(_) => return None,
            Taken::EndOfStream => !self.has_something(),
        };
        (nothing && self.has_what_was_left() && self.is_still_nothing()).then_some(Err(AGAIN))
    }

    #[inline]
    fn begin_wait(&self, memory: Memory<'_>) -> Wait {
        self.end.unwatch_unseen();
        let wait = Wait::begin(memory, self.channel.incoming().sender.cpu.load(Relaxed), self.spin_us);
        self.exchange_cpu(wait.cpu());
        if self.is_trickled_to() {
            wait.gather();
        }
        wait
    }

    /// Sleeps in a receive that has `total` bytes so far, and first slept at `first_slept`. Returns what the receive
    /// says; `None`: it looks for more.
    fn sleep_for_more(&mut self, total: usize, first_slept: &mut Option<u64>) -> Option<Answer> {
        let patience =
            if total > 0 || first_slept.is_some() { self.patience(total > 0, *first_slept) } else { Patience::Socket };
        let since = *first_slept.get_or_insert_with(nanoseconds);
        match self.sleep(patience, since) {
            Taken::Nothing | Taken::Bytes(_) if is_quiet() => {
                return Some(if total > 0 { Ok(total) } else { Err(ANEW) });
            }
            Taken::Nothing | Taken::Bytes(_) => {}
            Taken::EndOfStream if self.has_something() || self.comes_back_at_end() => {}
            Taken::EndOfStream => return Some(self.end_of_stream(total)),
            Taken::Failed(Errno(e)) if self.has_something() && e != libc::EINTR && e != libc::EAGAIN => {
                self.end.reading.error.store(e, Relaxed);
            }
            Taken::Failed(e) if total == 0 => return Some(Err(e)),
            Taken::Failed(e) => {
                self.end.keep_error(e);
                return Some(Ok(total));
            }
        }
        None
    }

    /// When the socket's timeout is over for a receive that began to wait at `since`; `None`: never.
    pub(super) fn receive_deadline(&self, since: Option<u64>) -> Option<u64> {
        kernel::timeout(self.fd, libc::SO_RCVTIMEO)
            .map(|timeout| since.unwrap_or_else(nanoseconds).saturating_add(timeout))
    }

    /// How long a receive may sleep that has a part of what it wants, or has slept before. The time of all its sleeps
    /// counts, and a signal ends a receive that has a part.
    #[cold]
    fn patience(&self, has_part: bool, since: Option<u64>) -> Patience {
        let deadline = self.receive_deadline(since);
        // A poll would wait for more than one byte.
        let lowest = kernel::int_option(self.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
        let polls = (has_part || deadline.is_some()) && lowest <= 1;
        if polls { Patience::Until(deadline) } else { Patience::Socket }
    }

    /// Whether the other end streams in small pieces: this end has sent nothing since its last wait, so nobody awaits
    /// an answer, and it has just received little.
    #[inline]
    fn is_trickled_to(&self) -> bool {
        const LITTLE: u32 = 1024;
        let reading = &self.end.reading;
        let tail = self.end.sending.tail.load(Relaxed);
        let same = reading.sent_before.load(Relaxed) == tail;
        reading.sent_before.store(tail, Relaxed);
        same && self.receives_fast() && reading.last.load(Relaxed) <= LITTLE
    }

    /// With an empty ring, asks the kernel whether the stream has ended or the connection has failed.
    #[inline(never)]
    fn ask_kernel(&self) -> Taken {
        let reading = &self.end.reading;
        if !self.receives_fast() {
            return Taken::Nothing;
        }
        let now = ticks();
        if !self.may_have_ended() && now.wrapping_sub(reading.asked.load(Relaxed)) < micros(ASK_EVERY_US) {
            return Taken::Nothing;
        }
        reading.asked.store(now, Relaxed);
        if self.end.is_remote() {
            return self.look_for_fall().unwrap_or(Taken::Bytes(0));
        }
        let mut byte = 0u8;
        for round in 0.. {
            // If a mark has just appeared, the byte behind it is no doorbell.
            if self.has_something() {
                break;
            }
            // SAFETY: one writable byte; only looked at.
            match unsafe { kernel::recv(self.fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
                Ok(0) => {
                    // The next receive finds it as well.
                    self.ask_kernel_next();
                    return Taken::EndOfStream;
                }
                // A doorbell hides the end of the stream behind it. No sleeper needs it any more.
                Ok(_) if self.has_ended() => {
                    if !matches!(self.take_bells_of_idle(16), Ok(1..)) {
                        break;
                    }
                }
                Ok(_) if round < 2 => self.pass_bells(),
                Ok(_) => break,
                Err(AGAIN) => return Taken::Nothing,
                Err(e) => {
                    // Behind the error comes the end.
                    self.ask_kernel_next();
                    return self.verdict(e);
                }
            }
        }
        self.ask_kernel_next();
        Taken::Nothing
    }
}

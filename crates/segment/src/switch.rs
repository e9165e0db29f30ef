//! A direction of a connection is, at any byte, on the kernel path or on the fast path. This module sends and receives
//! on whichever it is, and switches.
//!
//! Only the sender of a direction switches it, by a mark in the ring. *Up*: the mark names the kernel position up to
//! which the reader has to read the kernel first. *Down*: the mark names the number of doorbells that lie in the kernel
//! stream before the data goes on there. The reader has one place to look: the record under its head.
//!
//! A reader that believes itself on the kernel path says so before it looks at the ring and receives from the kernel;
//! while it does, the sender may go up but not down again. So when such a reader has taken too much from the kernel,
//! what it took too much can only be doorbells, at the very end.
#![allow(unsafe_code, reason = "receives from the kernel into the program's buffers")]

use crate::clock::{give_way, nap, ticks, ticks_per_microsecond};
use crate::end::{End, STRAY, Stage};
use crate::kernel;
use crate::link::{ALONE, Link};
use crate::lock::Entered;
use crate::raw::{Answer, Errno};
use crate::reason::Reason;
use crate::ring::{self, Fault, Place, Push, Record, Ring, Sender};
use crate::sync::{AcqRel, Acquire, AtomicU64, Relaxed, Release, SeqCst, fence, pause};
use crate::vector::Cursor;
use crate::wait::{self, Memory, Wait};

/// Receives from the kernel, sleeping if the socket blocks: libc's recv, so that it is a cancellation point.
pub type SleepingRecv = unsafe fn(port: &Port<'_>, to: *mut u8, len: usize, flags: i32) -> Answer;

/// A joined end in the hands of one thread.
#[derive(Clone, Copy)]
pub struct Port<'a> {
    /// The end.
    pub end: &'a End,
    /// Its segment.
    pub link: Link,
    /// A descriptor of the socket.
    pub fd: i32,
    /// Number of this thread.
    pub me: u32,
    /// Whatever tells `Port::sleep` which connection it is.
    pub token: u32,
    /// Longest poll before sleeping, in microseconds.
    pub spin_us: u32,
    /// How to sleep.
    pub sleep: SleepingRecv,
}

/// What a look at the incoming direction says, without touching the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// There is data, or an error to report.
    Yes,
    /// The direction is fast and the ring is empty; the kernel knows only of its end.
    No,
    /// The stream goes on in the kernel.
    AskKernel,
}

/// Whether a poll of the kernel's may sleep on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Whatever arrives wakes it.
    Yes,
    /// There is something already.
    No,
    /// Another thread sleeps in a receive on the same socket and may take the doorbell: look again soon.
    Briefly,
}

enum Taken {
    Bytes(usize),
    Nothing,
    EndOfStream,
    Failed(Errno),
}

const BROKEN: Errno = Errno(libc::ECONNRESET);
const AGAIN: Errno = Errno(libc::EAGAIN);
/// A reader of an empty ring asks the kernel for the end of the stream at most this often.
const ASK_EVERY_US: u64 = 20;
/// A sender checks this often that an unmoving reader still lives.
const CHECK_EVERY_US: u64 = 50;
/// A blocking sender that finds the ring full goes down when the reader has not moved for so long.
const PATIENCE_US: u64 = 1000;
/// The same for a non-blocking sender.
const SHORT_PATIENCE_US: u64 = 20;

fn micros(n: u64) -> u64 {
    n * ticks_per_microsecond()
}

// ---------------------------------------------------------------------------------------------------- receiving

impl Port<'_> {
    fn incoming(&self) -> Ring {
        self.link.incoming_ring()
    }

    fn place(&self) -> Place {
        Place::unpack(self.end.reading.place.load(Relaxed))
    }

    /// Receives into `into` as recv(2) does with `flags`.
    ///
    /// # Errors
    /// As recv(2).
    #[inline]
    pub fn receive(&self, mut into: Cursor, flags: i32) -> Answer {
        let reading = &self.end.reading;
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || self.end.nonblocking.load(Relaxed) != 0;
        loop {
            match reading.lock.enter(self.me, nonblocking) {
                Entered::Alone | Entered::AfterDeath => {
                    let answer = self.receive_inside(&mut into, flags, nonblocking);
                    if reading.resting.load(Relaxed) != 0 {
                        self.rest_again();
                    }
                    reading.lock.leave();
                    return answer;
                }
                Entered::Nested => return self.receive_inside(&mut into, flags, nonblocking),
                Entered::Asleep => {
                    // Whoever sleeps inside is woken by whatever arrives; until then there is nothing.
                    if !self.incoming().published(self.place().head) {
                        return Err(AGAIN);
                    }
                    pause();
                }
            }
        }
    }

    /// An epoll set relies on the waiting flag, which this receive may have used up.
    #[cold]
    fn rest_again(&self) {
        let reading = &self.end.reading;
        self.note_flag();
        let number = reading.resting.load(Relaxed);
        if reading.armed.load(Relaxed) == 0 && number != STRAY && !self.arm(number) {
            reading.resting.store(STRAY, Relaxed);
        }
    }

    fn receive_inside(&self, into: &mut Cursor, flags: i32, nonblocking: bool) -> Answer {
        let peek = flags & libc::MSG_PEEK != 0;
        let wanted = match self.end.low_water.load(Relaxed) as usize {
            _ if flags & libc::MSG_WAITALL != 0 => into.left(),
            low => low.min(into.left()).max(1),
        };
        if self.end.stage() == Stage::Broken {
            return Err(BROKEN);
        }
        if into.left() == 0 {
            // A receive of nothing still waits for something.
            let mut byte = 0u8;
            let one = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            // SAFETY: one writable byte in this frame.
            let mut scratch = unsafe { Cursor::new(&one, 1) };
            return self.receive_inside(&mut scratch, flags | libc::MSG_PEEK, nonblocking).map(|_| 0);
        }
        let beginning = *into;
        let mut total = 0;
        let mut waiting: Option<Wait> = None;
        let mut slept = false;
        let memory = self.memory();
        loop {
            let was_fast = self.is_fast();
            match self.take(into, peek) {
                Taken::Bytes(n) => {
                    total += n;
                    if !was_fast && into.left() > 0 {
                        total += self.take_across(into, peek);
                    }
                    if let Some(wait) = waiting.take() {
                        wait.end(memory, slept);
                    }
                    if total >= wanted || into.left() == 0 {
                        return Ok(total);
                    }
                    if peek {
                        // A peek for more than there is: looks again when more has come, from the beginning.
                        if nonblocking || self.has_ended() {
                            return Ok(total);
                        }
                        (*into, total) = (beginning, 0);
                        nap(20);
                    }
                    continue;
                }
                Taken::EndOfStream => return self.end_of_stream(total),
                Taken::Failed(e) if total == 0 => return Err(e),
                Taken::Failed(Errno(e)) => {
                    self.end.reading.error.store(e, Relaxed);
                    return Ok(total);
                }
                Taken::Nothing if nonblocking => {
                    if total > 0 {
                        return Ok(total);
                    }
                    match self.ask_kernel() {
                        Taken::Nothing => return Err(AGAIN),
                        Taken::EndOfStream if !self.something() => return self.end_of_stream(0),
                        Taken::Failed(e) if !self.something() => return Err(e),
                        Taken::Failed(Errno(e)) => self.end.reading.error.store(e, Relaxed),
                        _ => {}
                    }
                    if !self.something() {
                        return Err(AGAIN);
                    }
                }
                Taken::Nothing => {
                    let wait = *waiting.get_or_insert_with(|| {
                        let wait = Wait::begin(memory, self.link.incoming().sender.cpu.load(Relaxed), self.spin_us);
                        self.exchange_cpu(wait.cpu());
                        wait
                    });
                    let (ring, head) = (self.incoming(), self.place().head);
                    if self.is_fast() && wait.poll(|| ring.published(head)) {
                        continue;
                    }
                    slept = true;
                    match self.sleep() {
                        Taken::Nothing | Taken::Bytes(_) => {}
                        Taken::EndOfStream if self.something() => {}
                        Taken::EndOfStream => return self.end_of_stream(total),
                        Taken::Failed(Errno(e)) if self.something() && e != libc::EINTR && e != libc::EAGAIN => {
                            self.end.reading.error.store(e, Relaxed);
                        }
                        Taken::Failed(e) => return if total > 0 { Ok(total) } else { Err(e) },
                    }
                }
            }
        }
    }

    /// Whether the other end has sent its FIN, or worse.
    fn has_ended(&self) -> bool {
        kernel::poll_now(self.fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }

    /// The kernel says that the stream has ended. Kernel TCP resets a connection whose reader goes away with data
    /// unread; what the other end has left unread in the ring its kernel does not know of. A byte tells whether the
    /// other end has gone, or has only shut down its half.
    fn end_of_stream(&self, total: usize) -> Answer {
        if total > 0 || self.unsent() == 0 || kernel::poll_now(self.fd, 0) & libc::POLLHUP != 0 {
            return Ok(total);
        }
        self.send_bell();
        if kernel::poll_now(self.fd, 0) & libc::POLLERR == 0 {
            return Ok(0);
        }
        self.end.sending.fast.store(0, Relaxed);
        self.end.send_pinned.store(1, Relaxed);
        let _ = kernel::int_option(self.fd, libc::SOL_SOCKET, libc::SO_ERROR);
        Err(BROKEN)
    }

    fn is_fast(&self) -> bool {
        self.end.reading.fast.load(Relaxed) != 0
    }

    fn something(&self) -> bool {
        self.incoming().published(self.place().head) || self.end.reading.stash.load(Relaxed) > 0
    }

    /// Takes what is there, without waiting.
    #[inline]
    fn take(&self, into: &mut Cursor, peek: bool) -> Taken {
        let reading = &self.end.reading;
        let ring = self.incoming();
        loop {
            if !self.is_fast() {
                match self.take_from_kernel(into, peek) {
                    Some(taken) => return taken,
                    None => continue,
                }
            }
            let word = reading.place.load(Relaxed);
            let before = *into;
            let (place, n) = match ring::copy_out(&ring, Place::unpack(word), into) {
                Ok(it) => it,
                Err(Fault) => return self.fault(),
            };
            if n > 0 && !peek {
                // A signal handler of this thread may have read the same bytes meanwhile: then read again.
                if reading.place.compare_exchange(word, place.pack(), Relaxed, Relaxed).is_err() {
                    *into = before;
                    continue;
                }
                self.link.incoming().head.head.store(place.head, Release);
                reading.fast_bytes.fetch_add(n as u64, Relaxed);
                if reading.armed.load(Relaxed) != 0 {
                    self.note_flag();
                    if reading.armed.load(Relaxed) == 0 {
                        self.clear_bells();
                    }
                }
            }
            if n > 0 {
                return Taken::Bytes(n);
            }
            match ring.record(place.head) {
                Ok(Record::Empty) => {
                    if let e @ 1.. = reading.error.swap(0, Relaxed) {
                        return Taken::Failed(Errno(e));
                    }
                    return Taken::Nothing;
                }
                Ok(Record::Down(bells)) => {
                    if self.enter_kernel(place.head, bells).is_err() {
                        return self.fault();
                    }
                }
                // Published since the copying ended.
                Ok(Record::Data(_) | Record::Skip | Record::Pad(_)) => continue,
                Ok(Record::Up(_)) | Err(Fault) => return self.fault(),
            }
        }
    }

    /// Having read the kernel path up to the mark of going up: what lies behind it in the ring belongs to the same
    /// receive.
    #[cold]
    fn take_across(&self, into: &mut Cursor, peek: bool) -> usize {
        let ring = self.incoming();
        let head = self.place().head;
        if self.is_fast() && peek {
            // The ring has been looked at.
            return 0;
        }
        if !self.is_fast() {
            let Ok(Record::Up(up)) = ring.record(head) else { return 0 };
            if peek {
                let seen = into.taken() as u64;
                if self.end.reading.kernel.load(Relaxed) + seen != up {
                    return 0;
                }
                let place = Place { head: ring.behind(head, Record::Up(up)), consumed: 0 };
                return ring::copy_out(&ring, place, into).map_or(0, |(_, n)| n);
            }
            if self.kernel_limit() != Ok(Some(0)) {
                return 0;
            }
        }
        match self.take(into, peek) {
            Taken::Bytes(n) => n,
            Taken::Failed(Errno(e)) => {
                self.end.reading.error.store(e, Relaxed);
                0
            }
            Taken::Nothing | Taken::EndOfStream => 0,
        }
    }

    /// Takes from the kernel path; `None` when the direction has gone up meanwhile.
    fn take_from_kernel(&self, into: &mut Cursor, peek: bool) -> Option<Taken> {
        let reading = &self.end.reading;
        if let Some(n) = self.take_stash(into, peek) {
            return Some(Taken::Bytes(n));
        }
        if let Some(taken) = self.discard_bells() {
            return Some(taken);
        }
        if let e @ 1.. = reading.error.load(Relaxed)
            && !self.something()
        {
            reading.error.store(0, Relaxed);
            return Some(Taken::Failed(Errno(e)));
        }
        let in_kernel = &self.link.incoming().flags.in_kernel;
        in_kernel.swap(1, SeqCst);
        let taken = self.take_below_limit(into, peek);
        in_kernel.store(0, Release);
        taken
    }

    fn take_below_limit(&self, into: &mut Cursor, peek: bool) -> Option<Taken> {
        let limit = match self.kernel_limit() {
            Ok(Some(0)) => {
                self.enter_fast(0);
                return None;
            }
            Ok(limit) => limit.unwrap_or(usize::MAX),
            Err(Fault) => return Some(self.fault()),
        };
        let offered = into.message().len();
        match self.receive_from_kernel(into, limit, peek) {
            // Every buffer that was offered is full: there may be more for those that were not.
            Taken::Bytes(n) if n == offered && !peek && into.left() > 0 && limit == usize::MAX => {
                match self.take_below_limit(into, peek) {
                    Some(Taken::Bytes(more)) => Some(Taken::Bytes(n + more)),
                    _ => Some(Taken::Bytes(n)),
                }
            }
            // The sender may have gone up, filled the ring and closed since the ring was looked at.
            Taken::EndOfStream if limit == usize::MAX && self.something() => None,
            Taken::Failed(Errno(e)) if limit == usize::MAX && self.something() => {
                self.end.reading.error.store(e, Relaxed);
                None
            }
            taken => Some(taken),
        }
    }

    /// One receive from the kernel path, and the sorting out of doorbells that came with it.
    fn receive_from_kernel(&self, into: &mut Cursor, limit: usize, peek: bool) -> Taken {
        let reading = &self.end.reading;
        let mut message = into.message();
        let flags = libc::MSG_DONTWAIT
            | if peek { libc::MSG_PEEK } else { 0 }
            | if into.discards() { libc::MSG_TRUNC } else { 0 };
        let got = if limit == usize::MAX && !into.discards() {
            // SAFETY: the kernel writes into what is left of the program's buffers.
            unsafe { kernel::recv_message(self.fd, &mut message.header(), flags) }
        } else {
            let (to, len) = into.chunk(limit);
            // SAFETY: the kernel writes at most the chunk that the cursor names.
            unsafe { kernel::recv(self.fd, to, len, flags) }
        };
        let got = match got {
            Ok(0) => return Taken::EndOfStream,
            Ok(n) => n as u64,
            Err(AGAIN) => return Taken::Nothing,
            Err(e) => return Taken::Failed(e),
        };
        let position = reading.kernel.load(Relaxed) + got;
        let excess = match self.incoming().record(self.place().head) {
            Ok(Record::Up(up)) => position.saturating_sub(up),
            _ => 0,
        };
        if excess > got {
            return self.fault();
        }
        if !peek {
            reading.kernel.store(position, Relaxed);
            reading.kernel_bytes.fetch_add(got - excess, Relaxed);
            if excess > 0 {
                self.enter_fast(excess);
            }
        }
        match (got - excess) as usize {
            0 => Taken::Nothing,
            n => {
                into.skip(n);
                Taken::Bytes(n)
            }
        }
    }

    /// Bytes of the kernel stream that come before the ring; `None`: no end of them is known.
    fn kernel_limit(&self) -> Result<Option<usize>, Fault> {
        match self.incoming().record(self.place().head)? {
            Record::Empty => Ok(None),
            Record::Up(up) => {
                let position = self.end.reading.kernel.load(Relaxed);
                up.checked_sub(position).map(|n| Some(n as usize)).ok_or(Fault)
            }
            _ => Err(Fault),
        }
    }

    /// Passes the mark of going up, having read the kernel up to it and `bells` doorbells beyond.
    fn enter_fast(&self, bells: u64) {
        let reading = &self.end.reading;
        let ring = self.incoming();
        let head = ring.behind(self.place().head, Record::Up(0));
        reading.bells.store(bells, Relaxed);
        reading.held_len.store(0, Relaxed);
        reading.all_bells.fetch_add(bells, Relaxed);
        reading.fast.store(1, Relaxed);
        reading.place.store(Place { head, consumed: 0 }.pack(), Relaxed);
        self.link.incoming().head.head.store(head, Release);
        self.end.was_fast.fetch_or(2, Relaxed);
    }

    /// Passes the mark of going down at `head`: `bells` doorbells come before the data in the kernel.
    fn enter_kernel(&self, head: u64, bells: u64) -> Result<(), Fault> {
        let reading = &self.end.reading;
        let taken = reading.bells.load(Relaxed);
        let ring = self.incoming();
        if let Some(data) = taken.checked_sub(bells).filter(|&n| n > 0) {
            if data > u64::from(reading.held_len.load(Relaxed)) {
                return Err(Fault);
            }
            reading.stash.store(data as u32, Relaxed);
        } else {
            reading.discard.store(bells - taken, Relaxed);
        }
        reading.fast.store(0, Relaxed);
        let head = ring.behind(head, Record::Down(0));
        reading.place.store(Place { head, consumed: 0 }.pack(), Relaxed);
        self.link.incoming().head.head.store(head, Release);
        Ok(())
    }

    /// Data that was taken from the kernel in the belief that it was a doorbell.
    fn take_stash(&self, into: &mut Cursor, peek: bool) -> Option<usize> {
        let reading = &self.end.reading;
        let stash = reading.stash.load(Relaxed) as usize;
        let held = reading.held_len.load(Relaxed) as usize;
        let n = stash.min(into.left());
        if n == 0 || stash > held || held > reading.held.len() {
            return None;
        }
        for byte in &reading.held[held - stash..held - stash + n] {
            let byte = byte.load(Relaxed);
            // SAFETY: one byte from this stack frame; left() >= n.
            unsafe { into.copy_from(&byte, 1) };
        }
        if !peek {
            reading.stash.store((stash - n) as u32, Relaxed);
            reading.kernel_bytes.fetch_add(n as u64, Relaxed);
        }
        Some(n)
    }

    /// Throws away the doorbells that lie before the data in the kernel; `Some` when the kernel has not all of them yet.
    fn discard_bells(&self) -> Option<Taken> {
        let reading = &self.end.reading;
        while let left @ 1.. = reading.discard.load(Relaxed) {
            // SAFETY: MSG_TRUNC with a null buffer writes nothing.
            let got = unsafe {
                kernel::recv(self.fd, core::ptr::null_mut(), left as usize, libc::MSG_DONTWAIT | libc::MSG_TRUNC)
            };
            match got {
                Ok(0) => return Some(Taken::EndOfStream),
                Ok(n) => {
                    reading.discard.store(left.saturating_sub(n as u64), Relaxed);
                    reading.kernel.fetch_add(n as u64, Relaxed);
                    reading.all_bells.fetch_add(n as u64, Relaxed);
                }
                Err(AGAIN) => return Some(Taken::Nothing),
                Err(e) => return Some(Taken::Failed(e)),
            }
        }
        None
    }

    /// Takes doorbells out of the kernel's queue. Only with an empty ring: what is taken then is kept until it is sure
    /// that it was no data sent after going down.
    fn take_bells(&self, most: usize, recv: impl Fn(i32, *mut u8, usize) -> Answer) -> Answer {
        let reading = &self.end.reading;
        let mut bytes = [0u8; 16];
        let got = recv(self.fd, bytes.as_mut_ptr(), most.min(bytes.len()))?.min(bytes.len());
        if got > 0 {
            for (slot, byte) in reading.held.iter().zip(bytes) {
                slot.store(byte, Relaxed);
            }
            reading.held_len.store(got as u32, Relaxed);
            reading.bells.fetch_add(got as u64, Relaxed);
            reading.kernel.fetch_add(got as u64, Relaxed);
            reading.all_bells.fetch_add(got as u64, Relaxed);
        }
        Ok(got)
    }

    /// Takes note if the sender has taken the waiting flag.
    fn note_flag(&self) {
        let reading = &self.end.reading;
        if reading.armed.load(Relaxed) != 0 && self.link.incoming().flags.waiting.load(Acquire) == 0 {
            reading.armed.store(0, Relaxed);
        }
    }

    /// Doorbells that were sent and have not been taken.
    fn owed(&self) -> usize {
        let sent = self.link.incoming().sender.bells.load(Acquire);
        sent.saturating_sub(self.end.reading.all_bells.load(Relaxed)).min(16) as usize
    }

    /// Takes doorbells that have done their work out of the kernel's queue, once the ring is empty: the kernel then says
    /// the truth to its own polls, and does not answer the end of this process with a reset.
    fn clear_bells(&self) {
        while self.is_fast() && !self.something() {
            let owed = self.owed();
            if owed == 0 {
                return;
            }
            // SAFETY: the buffer is `take_bells`' own.
            let got = self.take_bells(owed, |fd, to, len| unsafe { kernel::recv(fd, to, len, libc::MSG_DONTWAIT) });
            if !matches!(got, Ok(1..)) {
                return;
            }
        }
    }

    /// Raises the waiting flag to `number`, so that whatever is published next rings; true when the ring is still empty
    /// then.
    fn arm(&self, number: u32) -> bool {
        let reading = &self.end.reading;
        let waiting = &self.link.incoming().flags.waiting;
        self.note_flag();
        let armed = reading.armed.load(Relaxed);
        if armed == 0 {
            self.clear_bells();
        }
        // A doorbell of its own wakes a group as well, not the other way round.
        if armed != number && armed != ALONE {
            reading.armed.store(number, Relaxed);
            waiting.swap(number, SeqCst);
        }
        // The flag is up before the ring is looked at; the sender publishes before it looks at the flag.
        fence(SeqCst);
        !self.something()
    }

    /// Sleeps in the kernel until something arrives.
    fn sleep(&self) -> Taken {
        let reading = &self.end.reading;
        if !self.arm(ALONE) {
            return Taken::Nothing;
        }
        self.end.sleeps.fetch_add(1, Relaxed);
        reading.lock.set_asleep(true);
        let taken = if !self.is_fast() || self.end.watched.load(Relaxed) != 0 {
            // What comes may be data, or a doorbell that a poll of the kernel's waits for too: look at it, leave it there.
            let mut byte = 0u8;
            // SAFETY: one writable byte.
            match unsafe { (self.sleep)(self, &mut byte, 1, libc::MSG_PEEK) } {
                Ok(0) => Taken::EndOfStream,
                Ok(_) => {
                    if self.is_fast() && !self.something() {
                        // A doorbell for what has been read already.
                        // SAFETY: the buffer is `take_bells`' own.
                        let _ =
                            self.take_bells(16, |fd, to, len| unsafe { kernel::recv(fd, to, len, libc::MSG_DONTWAIT) });
                    }
                    Taken::Nothing
                }
                Err(e) => Taken::Failed(e),
            }
        } else {
            // SAFETY: the buffer is `take_bells`' own.
            let got = self.take_bells(1, |_, to, len| unsafe { (self.sleep)(self, to, len, 0) });
            self.note_flag();
            match got {
                Ok(0) => Taken::EndOfStream,
                Ok(_) => Taken::Nothing,
                Err(e) => Taken::Failed(e),
            }
        };
        reading.lock.set_asleep(false);
        taken
    }

    /// With an empty ring: has the stream ended, has the connection failed?
    fn ask_kernel(&self) -> Taken {
        let reading = &self.end.reading;
        if !self.is_fast() {
            return Taken::Nothing;
        }
        let now = ticks();
        if now.wrapping_sub(reading.asked.load(Relaxed)) < micros(ASK_EVERY_US) {
            return Taken::Nothing;
        }
        reading.asked.store(now, Relaxed);
        let mut byte = 0u8;
        // SAFETY: one writable byte; only looked at.
        match unsafe { kernel::recv(self.fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
            Ok(0) => Taken::EndOfStream,
            Ok(_) => {
                // A doorbell hides the end of the stream behind it.
                // SAFETY: the buffer is `take_bells`' own.
                let _ = self.take_bells(16, |fd, to, len| unsafe { kernel::recv(fd, to, len, libc::MSG_DONTWAIT) });
                reading.asked.store(0, Relaxed);
                Taken::Nothing
            }
            Err(AGAIN) => Taken::Nothing,
            Err(e) => Taken::Failed(e),
        }
    }

    /// Makes all reads go through the library from now on, if no plain read is in progress; true when they do.
    pub fn become_ready(&self) -> bool {
        if self.end.read_gate.is_shut() {
            return true;
        }
        let reading = &self.end.reading;
        let entered = reading.lock.enter(self.me, true);
        if entered == Entered::Asleep {
            return self.end.read_gate.is_shut();
        }
        let ready = self.end.read_gate.is_shut() || (self.end.read_gate.shut() && self.declare_ready());
        if entered != Entered::Nested {
            reading.lock.leave();
        }
        ready
    }

    fn declare_ready(&self) -> bool {
        let flags = &self.link.incoming().flags;
        self.end.reading.armed.store(ALONE, Relaxed);
        if self.end.watched.load(Relaxed) != 0 {
            // An epoll set that knew the socket before relies on the flag from the beginning.
            self.end.reading.resting.store(ALONE, Relaxed);
        }
        if let Some(position) = self.read_position() {
            self.end.reading.kernel.store(position, Relaxed);
            flags.position.store(position, Relaxed);
            flags.ready.store(1, Release);
        } else {
            self.end.set_reason(Reason::Counters);
        }
        true
    }

    /// Bytes that have been read from the kernel since the connection began; `None` when that cannot be told.
    fn read_position(&self) -> Option<u64> {
        for _ in 0..16 {
            let before = kernel::counters(self.fd).ok()?;
            let queued = kernel::inq(self.fd).ok()?;
            let after = kernel::counters(self.fd).ok()?;
            if before.received == after.received {
                let whole = after.state == kernel::ESTABLISHED && !after.fast_open;
                return after.received.checked_sub(queued.into()).filter(|_| whole);
            }
        }
        None
    }

    /// Looks at the incoming direction without taking anything and without the kernel.
    #[inline]
    pub fn ready(&self) -> Ready {
        let reading = &self.end.reading;
        let ring = self.incoming();
        let mut position = self.place().head;
        if reading.error.load(Relaxed) != 0 || reading.stash.load(Relaxed) != 0 || self.end.stage() == Stage::Broken {
            return Ready::Yes;
        }
        let mut fast = self.is_fast();
        for _ in 0..8 {
            let Ok(record) = ring.record(position) else { return Ready::Yes };
            match record {
                Record::Data(_) => {
                    let low = self.end.low_water.load(Relaxed);
                    let enough = low <= 1 || ring::unread(&ring, self.place()).is_ok_and(|n| n >= low.into());
                    return if !fast {
                        Ready::AskKernel
                    } else if enough {
                        Ready::Yes
                    } else {
                        Ready::No
                    };
                }
                Record::Up(up) if !fast && up == reading.kernel.load(Relaxed) && reading.discard.load(Relaxed) == 0 => {
                    fast = true;
                }
                Record::Empty if fast => return Ready::No,
                Record::Skip | Record::Pad(_) => {}
                Record::Empty | Record::Up(_) | Record::Down(_) => return Ready::AskKernel,
            }
            position = ring.behind(position, record);
        }
        Ready::Yes
    }

    /// Whether a receive would return at once, the kernel asked: for a poll of the kernel's that says so, which may
    /// have seen a doorbell only.
    pub fn readable(&self) -> bool {
        if self.ready() == Ready::Yes {
            return true;
        }
        let reading = &self.end.reading;
        let entered = reading.lock.enter(self.me, true);
        if entered == Entered::Asleep {
            return self.ready() == Ready::Yes;
        }
        self.pass_marks();
        let readable = self.ready() == Ready::Yes || self.kernel_has_news();
        if entered != Entered::Nested {
            reading.lock.leave();
        }
        readable
    }

    fn kernel_has_news(&self) -> bool {
        loop {
            let got = if self.is_fast() {
                // SAFETY: the buffer is `take_bells`' own.
                self.take_bells(16, |fd, to, len| unsafe { kernel::recv(fd, to, len, libc::MSG_DONTWAIT) })
            } else {
                let mut byte = 0u8;
                // SAFETY: one writable byte; only looked at.
                unsafe { kernel::recv(self.fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) }
            };
            match got {
                Ok(1..) if self.is_fast() && self.ready() != Ready::Yes => {}
                Ok(_) => return true,
                Err(AGAIN) => return self.ready() == Ready::Yes,
                Err(Errno(e)) => {
                    self.end.reading.error.store(e, Relaxed);
                    return true;
                }
            }
        }
    }

    /// Whether something was published at or behind position `seen` of the incoming ring; then where it ends, as far as
    /// a short walk tells. For edge-triggered events.
    pub fn newer(&self, seen: u64) -> Option<u64> {
        let ring = self.incoming();
        let head = self.place().head;
        let mut position = if ring::distance(head, seen) > ring.capacity() { head } else { seen };
        if !ring.published(position) {
            return None;
        }
        for _ in 0..1024 {
            match ring.record(position) {
                Ok(Record::Empty) | Err(Fault) => break,
                Ok(record) => position = ring.behind(position, record),
            }
        }
        Some(position)
    }

    /// The socket is about to be closed here: if everything was read, no doorbell may lie unread in the kernel, which
    /// would answer the close with a reset.
    pub fn hush(&self) {
        let reading = &self.end.reading;
        let entered = reading.lock.enter(self.me, true);
        if entered == Entered::Asleep {
            return;
        }
        if self.is_fast() && !self.something() {
            // No doorbell will be sent any more but one that is on its way.
            self.link.incoming().flags.waiting.swap(0, AcqRel);
            reading.armed.store(0, Relaxed);
            let began = ticks();
            loop {
                self.clear_bells();
                if self.owed() == 0 || self.something() || ticks().wrapping_sub(began) > micros(100) {
                    break;
                }
            }
        }
        if entered != Entered::Nested {
            reading.lock.leave();
        }
    }

    /// Before the caller sleeps in a poll of the kernel's: makes sure that whatever arrives wakes it, by a doorbell
    /// ([`ALONE`]) or by ringing the group of that number.
    pub fn prepare_to_sleep(&self, number: u32) -> Sleep {
        self.end.watched.store(1, Relaxed);
        let entered = self.end.reading.lock.enter(self.me, true);
        if entered == Entered::Asleep {
            return if self.ready() == Ready::Yes { Sleep::No } else { Sleep::Briefly };
        }
        self.pass_marks();
        let quiet = self.arm(number) || (!self.is_fast() && self.ready() == Ready::AskKernel);
        if entered != Entered::Nested {
            self.end.reading.lock.leave();
        }
        if quiet { Sleep::Yes } else { Sleep::No }
    }

    /// Passes a mark that lies under the head and throws away the doorbells before kernel data, so that the kernel's
    /// own readiness is the truth.
    fn pass_marks(&self) {
        let ring = self.incoming();
        for _ in 0..4 {
            let head = self.place().head;
            match ring.record(head) {
                Ok(Record::Down(bells)) if self.is_fast() => {
                    if self.enter_kernel(head, bells).is_err() {
                        self.fault();
                    }
                }
                Ok(Record::Up(_)) if !self.is_fast() => match self.kernel_limit() {
                    Ok(Some(0)) => self.enter_fast(0),
                    _ => break,
                },
                _ => break,
            }
        }
        if !self.is_fast() && self.end.reading.stash.load(Relaxed) == 0 {
            let _ = self.discard_bells();
        }
    }

    /// The same, from outside; before the kernel is asked for readiness.
    pub fn settle(&self) {
        let entered = self.end.reading.lock.enter(self.me, true);
        if entered == Entered::Asleep {
            return;
        }
        self.pass_marks();
        if entered != Entered::Nested {
            self.end.reading.lock.leave();
        }
    }

    /// Bytes that a receive would find now (FIONREAD).
    pub fn unread(&self) -> u64 {
        self.settle();
        let reading = &self.end.reading;
        let stash = u64::from(reading.stash.load(Relaxed));
        let in_kernel = if self.is_fast() {
            0
        } else {
            let queued = u64::from(kernel::inq(self.fd).unwrap_or(0));
            let limit = self.kernel_limit().ok().flatten().map_or(u64::MAX, |n| n as u64);
            queued.saturating_sub(reading.discard.load(Relaxed)).min(limit)
        };
        let ring = self.incoming();
        let mut place = self.place();
        if !self.is_fast() {
            match ring.record(place.head) {
                Ok(up @ Record::Up(_)) => place = Place { head: ring.behind(place.head, up), consumed: 0 },
                _ => return stash + in_kernel,
            }
        }
        stash + in_kernel + ring::unread(&ring, place).unwrap_or(0)
    }

    fn fault(&self) -> Taken {
        self.break_off();
        Taken::Failed(BROKEN)
    }

    /// The other end broke the rules: ends the connection.
    fn break_off(&self) {
        if self.end.advance(Stage::Broken) {
            self.end.set_reason(Reason::PeerFault);
            kernel::shut_down(self.fd);
        }
    }
}

// ------------------------------------------------------------------------------------------------------ sending

impl Port<'_> {
    fn sender(&self) -> Sender<'_> {
        let sending = &self.end.sending;
        Sender {
            ring: self.link.outgoing_ring(),
            tail: &sending.tail,
            seen_head: &sending.seen_head,
            hole: &sending.hole,
            head: head_of(&self.link),
        }
    }

    /// Sends what is under `from` as send(2) does with `flags`. `plain` sends on the kernel path what is left after so
    /// many bytes.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    pub fn send(&self, mut from: Cursor, flags: i32, plain: impl Fn(usize) -> Answer) -> Answer {
        let sending = &self.end.sending;
        if from.left() == 0 {
            return plain(0);
        }
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || self.end.nonblocking.load(Relaxed) != 0;
        let entered = sending.lock.enter(self.me, false);
        if entered == Entered::AfterDeath {
            self.sender().close_hole();
        }
        let mut sent = 0;
        let outcome = self.send_inside(&mut from, &mut sent, nonblocking);
        let go_plain = matches!(outcome, Outcome::Plain);
        if go_plain {
            sending.in_kernel.fetch_add(1, AcqRel);
        }
        if entered != Entered::Nested {
            sending.lock.leave();
        }
        match outcome {
            Outcome::Done => Ok(sent),
            Outcome::Failed(e) if sent == 0 => Err(e),
            Outcome::Failed(_) => Ok(sent),
            Outcome::Plain => {
                let answer = plain(sent);
                sending.in_kernel.fetch_sub(1, AcqRel);
                match answer {
                    Ok(n) => {
                        sending.kernel_bytes.fetch_add(n as u64, Relaxed);
                    }
                    Err(_) => self.end.refused.store(1, Relaxed),
                }
                match answer {
                    Ok(n) => Ok(sent + n),
                    Err(_) if sent > 0 => Ok(sent),
                    Err(e) => Err(e),
                }
            }
        }
    }

    #[inline]
    fn send_inside(&self, from: &mut Cursor, sent: &mut usize, nonblocking: bool) -> Outcome {
        let sending = &self.end.sending;
        loop {
            if sending.fast.load(Relaxed) == 0 && !self.try_up() {
                return Outcome::Plain;
            }
            if self.end.stage() == Stage::Broken {
                return Outcome::Failed(BROKEN);
            }
            let flags = &self.link.outgoing().flags;
            if flags.closed.load(Relaxed) != 0 || !self.reader_lives() {
                // Nobody will read the ring any more: the kernel has the right answer for the program.
                sending.fast.store(0, Relaxed);
                self.end.send_pinned.store(1, Relaxed);
                return Outcome::Plain;
            }
            let down = flags.want_down.load(Relaxed) != 0 || self.end.send_pinned.load(Relaxed) != 0;
            if down && self.go_down(Reason::Unsupported) {
                return Outcome::Plain;
            }
            match self.push_all(from, sent) {
                Err(Fault) => {
                    self.break_off();
                    return Outcome::Failed(BROKEN);
                }
                Ok(true) => return Outcome::Done,
                Ok(false) => {}
            }
            match self.wait_for_room(from.left(), nonblocking) {
                Room::Some => {}
                Room::None if nonblocking && *sent > 0 => return Outcome::Done,
                Room::None => {
                    if self.go_down(Reason::RingFull) {
                        return Outcome::Plain;
                    }
                    // The reader is inside a receive that does not wait: it will soon be out.
                    if kernel::poll_now(self.fd, 0) & (libc::POLLERR | libc::POLLHUP) != 0 {
                        sending.fast.store(0, Relaxed);
                        return Outcome::Plain;
                    }
                    nap(50);
                }
                Room::Fault => {
                    self.break_off();
                    return Outcome::Failed(BROKEN);
                }
            }
        }
    }

    /// Publishes as much as fits; true when that was all.
    #[inline]
    fn push_all(&self, from: &mut Cursor, sent: &mut usize) -> Result<bool, Fault> {
        let sender = self.sender();
        while from.left() > 0 {
            match sender.push(from)? {
                Push::Took(n) => {
                    *sent += n;
                    self.end.sending.fast_bytes.fetch_add(n as u64, Relaxed);
                    self.ring_bell();
                }
                Push::Full => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Wakes the reader if it sleeps.
    #[inline]
    fn ring_bell(&self) {
        // SeqCst: after the record was published, see `Sender::put`.
        if self.link.outgoing().flags.waiting.load(SeqCst) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let number = self.link.outgoing().flags.waiting.swap(0, AcqRel);
        match self.link.their_group(number) {
            Some(group) => {
                group.rung.fetch_or(1 << (self.link.slot() & 63), SeqCst);
                if group.asleep.load(SeqCst) != 0 && group.asleep.swap(0, AcqRel) != 0 {
                    self.send_bell();
                }
            }
            None if number != 0 => self.send_bell(),
            None => {}
        }
    }

    #[cold]
    fn send_bell(&self) {
        let announced = &self.link.outgoing().sender.bells;
        self.end.sending.bells.fetch_add(1, Relaxed);
        announced.fetch_add(1, Release);
        match kernel::send_bell(self.fd) {
            Ok(1) => {
                self.end.bells.fetch_add(1, Relaxed);
                wait::rang();
            }
            // Nothing was sent: either the reader has plenty to wake up for, or it is gone.
            _ => {
                self.end.sending.bells.fetch_sub(1, Relaxed);
                announced.fetch_sub(1, Release);
            }
        }
    }

    /// Whether the reader of an unmoving ring is still there; the kernel is asked rarely.
    #[inline]
    fn reader_lives(&self) -> bool {
        let [head, when] = &self.end.sending.progress;
        let now = ticks();
        if now.wrapping_sub(when.load(Relaxed)) < micros(CHECK_EVERY_US) {
            return true;
        }
        when.store(now, Relaxed);
        let sender = self.sender();
        let Ok(used) = sender.used(true) else { return true };
        let seen = sender.seen_head.load(Relaxed);
        let moved = head.swap(seen, Relaxed) != seen;
        used == 0 || moved || self.kernel_says_alive()
    }

    #[cold]
    fn kernel_says_alive(&self) -> bool {
        const GONE: i16 = libc::POLLERR | libc::POLLHUP;
        let events = kernel::poll_now(self.fd, libc::POLLRDHUP);
        if events & GONE == 0 && events & libc::POLLRDHUP != 0 {
            // The other end has sent its FIN: it has shut down its half, or it is gone. A byte tells.
            self.send_bell();
            return kernel::poll_now(self.fd, 0) & GONE == 0;
        }
        events & GONE == 0
    }

    fn wait_for_room(&self, wanted: usize, nonblocking: bool) -> Room {
        let sender = self.sender();
        let capacity = sender.ring.capacity();
        let enough = capacity - (wanted as u64 + 128).min(capacity / 4);
        let patience = micros(if nonblocking { SHORT_PATIENCE_US } else { PATIENCE_US });
        let mut since = ticks();
        let mut last = sender.seen_head.load(Relaxed);
        let mut alone = since;
        loop {
            for _ in 0..16 {
                pause();
            }
            match sender.used(true) {
                Err(Fault) => return Room::Fault,
                Ok(used) if used <= enough => return Room::Some,
                Ok(_) => {}
            }
            let now = ticks();
            let head = sender.seen_head.load(Relaxed);
            if head != last {
                (last, since) = (head, now);
            } else if now.wrapping_sub(since) > patience {
                return Room::None;
            }
            if now.wrapping_sub(alone) > micros(10) {
                give_way();
                alone = ticks();
            }
        }
    }

    /// Goes up if everything is in place: the reader is ready and has passed the last mark, no plain write is in
    /// progress, and the kernel has delivered all that was sent.
    #[cold]
    fn try_up(&self) -> bool {
        let end = self.end;
        let sending = &end.sending;
        let flags = &self.link.outgoing().flags;
        let tries = sending.tries.fetch_add(1, Relaxed);
        if tries > 16 && !tries.is_multiple_of(8) {
            return false;
        }
        if flags.ready.load(Acquire) == 0
            || flags.closed.load(Relaxed) | flags.want_down.load(Relaxed) != 0
            || end.send_pinned.load(Relaxed) != 0
            || sending.in_kernel.load(Acquire) != 0
            || end.stage() != Stage::Joined
            || !end.write_gate.shut()
        {
            return false;
        }
        let sender = self.sender();
        match sender.used(true) {
            Ok(0) => {}
            Ok(_) => return false,
            Err(Fault) => {
                self.break_off();
                return false;
            }
        }
        let Some(position) = self.send_position() else { return false };
        if position < flags.position.load(Relaxed) {
            end.set_reason(Reason::Counters);
            return false;
        }
        if end.was_fast.load(Relaxed) & 1 == 0 {
            self.let_bells_pass();
        }
        sending.bells.store(0, Relaxed);
        sending.fast.store(1, Relaxed);
        sender.mark(Record::Up(position));
        sending.mark.store(sending.tail.load(Relaxed), Relaxed);
        end.was_fast.fetch_or(1, Relaxed);
        true
    }

    /// Nagle's algorithm and TCP_CORK would hold doorbells back; the program is still told what it has set.
    fn let_bells_pass(&self) {
        for (name, kept, value) in [(libc::TCP_NODELAY, &self.end.no_delay, 1), (libc::TCP_CORK, &self.end.cork, 0)] {
            let before = kernel::int_option(self.fd, libc::IPPROTO_TCP, name).unwrap_or(0);
            kept.store((before != 0).into(), Relaxed);
            let _ = kernel::set_int_option(self.fd, libc::IPPROTO_TCP, name, value);
        }
    }

    /// Bytes that this end has put into the kernel stream, all of them delivered; `None` when they are not, or when the
    /// kernel's two counts of them disagree.
    fn send_position(&self) -> Option<u64> {
        if kernel::outq(self.fd).ok()? != 0 {
            return None;
        }
        let counters = kernel::counters(self.fd).ok()?;
        let established = matches!(counters.state, kernel::ESTABLISHED | kernel::CLOSE_WAIT);
        // An active opener's SYN counts as one acknowledged byte.
        let agree = counters.acked.wrapping_sub(counters.sent_once) <= 1;
        (established && agree && !counters.fast_open).then_some(counters.sent_once)
    }

    /// Goes down; false when the reader has not passed the mark of going up and is receiving from the kernel just now.
    fn go_down(&self, reason: Reason) -> bool {
        let sending = &self.end.sending;
        let sender = self.sender();
        let Ok(used) = sender.used(true) else {
            self.break_off();
            return true;
        };
        let passed = used <= ring::distance(sending.mark.load(Relaxed), sending.tail.load(Relaxed));
        // SeqCst: the mark was published before; a reader that says so later has seen it.
        if !passed && self.link.outgoing().flags.in_kernel.load(SeqCst) != 0 {
            return false;
        }
        sender.mark(Record::Down(sending.bells.load(Relaxed)));
        sending.fast.store(0, Relaxed);
        sending.tries.store(0, Relaxed);
        self.end.set_reason(reason);
        // The bell for this mark, if one is due, is not among the announced ones: the data that follows wakes as well.
        true
    }

    /// Goes down for good, as far as this end can decide, and asks the other end to do so.
    pub fn pin(&self, reason: Reason) {
        self.link.incoming().flags.want_down.store(1, Release);
        self.hush();
        self.end.send_pinned.store(1, Release);
        let entered = self.end.sending.lock.enter(self.me, false);
        if self.end.sending.fast.load(Relaxed) != 0 {
            self.go_down(reason);
        }
        self.end.set_reason(reason);
        if entered != Entered::Nested {
            self.end.sending.lock.leave();
        }
    }

    /// Publishes the processor that this end waits on; returns the one that the other end last waited on, plus 1.
    #[inline]
    pub fn exchange_cpu(&self, mine: u32) -> u32 {
        let cpu = &self.link.outgoing().sender.cpu;
        if cpu.load(Relaxed) != mine {
            cpu.store(mine, Relaxed);
        }
        self.link.incoming().sender.cpu.load(Relaxed)
    }

    /// What the incoming direction remembers of its waits.
    pub fn memory(&self) -> Memory<'_> {
        let reading = &self.end.reading;
        Memory { mean: &reading.mean_wait, waits: &reading.waits, bells: &reading.bells_before }
    }

    /// Whether the outgoing direction is fast.
    pub fn sends_fast(&self) -> bool {
        self.end.sending.fast.load(Relaxed) != 0
    }

    /// Whether the incoming direction is fast.
    pub fn receives_fast(&self) -> bool {
        self.is_fast()
    }

    /// Bytes that the other end has not read from the ring (for SIOCOUTQ).
    pub fn unsent(&self) -> u64 {
        if self.sends_fast() { self.sender().used(true).unwrap_or(0) } else { 0 }
    }
}

enum Outcome {
    Done,
    Plain,
    Failed(Errno),
}

enum Room {
    Some,
    None,
    Fault,
}

fn head_of(link: &Link) -> &AtomicU64 {
    &link.outgoing().head.head
}

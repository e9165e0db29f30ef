//! A receive takes what is there without waiting: from the ring, or from the kernel path up to the mark of going up.
#![allow(unsafe_code, reason = "receives from the kernel into the program's buffers")]

use super::{AGAIN, BROKEN, Port};
use crate::kernel;
use crate::raw::{Answer, Errno};
use crate::ring::{self, Fault, Place, Record};
use crate::sync::{Relaxed, Release, SeqCst, compiler_fence, own};
use crate::vector::Cursor;

pub(super) enum Taken {
    Bytes(usize),
    Nothing,
    EndOfStream,
    Failed(Errno),
}

impl Port<'_> {
    /// Takes what is there without waiting. It takes nothing if more than `nested` receives have run on top of others:
    /// then the next bytes may not follow what this receive has.
    #[inline]
    pub(super) fn take(&self, into: &mut Cursor, peek: bool, nested: u64) -> Taken {
        let reading = &self.end.reading;
        let ring = self.incoming();
        loop {
            if !self.receives_fast() {
                match self.take_from_kernel(into, peek) {
                    Some(taken) => return taken,
                    None => continue,
                }
            }
            let word = reading.place.load(Relaxed);
            let before = *into;
            if before.taken() > 0 {
                compiler_fence(SeqCst);
                if reading.nested.load(Relaxed) != nested {
                    return Taken::Nothing;
                }
            }
            let copied = ring::copy_out(&ring, Place::unpack(word), into);
            let (place, n) = match copied {
                Ok(it) if !peek || self.is_at(word) => it,
                Err(Fault) if self.is_at(word) => return self.fault(),
                // A signal handler of this thread has read the same bytes, and the sender may have written over them.
                _ => {
                    *into = before;
                    continue;
                }
            };
            // A look passes fillers, too: a thread that waits for something at the head would find them there.
            if (!peek || n == 0) && place.pack() != word {
                // A signal handler of this thread may have read the same bytes meanwhile: then read again.
                if !own::replace(&reading.place, word, place.pack()) {
                    *into = before;
                    if before.taken() > 0 {
                        // What comes now does not follow what was received before.
                        return Taken::Nothing;
                    }
                    continue;
                }
                self.publish_head(place.head);
            }
            if n > 0 && !peek {
                self.count_received(n, into.left() == 0);
            }
            if n > 0 {
                return Taken::Bytes(n);
            }
            match ring.record(place.head) {
                // A signal handler of this thread has passed the mark.
                Ok(Record::Empty | Record::Up(_)) if !self.receives_fast() => continue,
                Ok(Record::Empty) => {
                    if reading.error.load(Relaxed) != 0
                        && let e @ 1.. = reading.error.swap(0, Relaxed)
                    {
                        return Taken::Failed(Errno(e));
                    }
                    return Taken::Nothing;
                }
                Ok(Record::Down(_)) => {
                    if self.pass_down().is_err() {
                        return self.fault();
                    }
                }
                // The sender has gone down by the kernel, and up again.
                Ok(Record::Up(_)) if self.end.is_remote() => {
                    if let Some(taken) = self.look_for_fall() {
                        return taken;
                    }
                }
                // Published since the copying ended.
                Ok(Record::Data(_) | Record::Skip | Record::Pad(_)) => continue,
                Ok(Record::Up(_)) | Err(Fault) if self.is_at(place.pack()) => return self.fault(),
                Ok(Record::Up(_)) | Err(Fault) => continue,
            }
        }
    }

    /// Counts `n` bytes that a receive has taken from the ring. With `is_full` it needs no more. Doorbells are taken
    /// once all is read that they may have been for.
    #[inline]
    fn count_received(&self, n: usize, is_full: bool) {
        let reading = &self.end.reading;
        own::add(&reading.fast_bytes, n as u64);
        own::add(&reading.got, n as u64);
        reading.last.store(n as u32, Relaxed);
        if reading.armed.load(Relaxed) == 0 {
            return;
        }
        if !self.has_something() {
            self.note_flag();
            if reading.armed.load(Relaxed) == 0 || self.owed() > 0 {
                self.clear_bells_beside();
            }
        } else if is_full && matches!(self.ahead(), Ok(Record::Down(_))) {
            // The next receive may never be, and a doorbell behind the mark would make a reset of that.
            self.pass_marks();
        }
    }

    /// Whether no signal handler has read on from where packed place `word` is.
    #[inline]
    pub(super) fn is_at(&self, word: u64) -> bool {
        compiler_fence(SeqCst);
        self.end.reading.place.load(Relaxed) == word
    }

    /// Publishes the head. If a signal handler of this thread has moved it on meanwhile, and published its own head
    /// before, this publishes that head once more.
    #[inline]
    fn publish_head(&self, mut head: u64) {
        loop {
            self.channel.incoming().head.head.store(head, Release);
            compiler_fence(SeqCst);
            let now = self.place().head;
            if now == head {
                return;
            }
            head = now;
        }
    }

    /// Takes what the ring has before the next mark of the path. No other thread and no signal handler reads meanwhile.
    pub(super) fn take_from_ring(&self, into: &mut Cursor, peek: bool) -> Answer {
        let reading = &self.end.reading;
        let Ok((place, n)) = ring::copy_out(&self.incoming(), self.place(), into) else {
            self.break_off();
            return Err(BROKEN);
        };
        if !peek {
            reading.place.store(place.pack(), Relaxed);
            reading.fast_bytes.fetch_add(n as u64, Relaxed);
            own::add(&reading.got, n as u64);
            self.channel.incoming().head.head.store(place.head, Release);
        }
        Ok(n)
    }

    /// Goes on behind every mark, because a receive of less than was asked for says that there is no more (epoll(7)).
    #[cold]
    #[inline(never)]
    pub(super) fn take_across(&self, into: &mut Cursor, peek_from: Option<&Cursor>) -> usize {
        if let Some(beginning) = peek_from {
            return self.peek_across(into, beginning);
        }
        let mut total = 0;
        while into.left() > 0 && !matches!(self.ahead(), Ok(Record::Empty)) {
            self.pass_marks();
            let bells_to_come = self.end.reading.to_discard() > 0;
            // An error of the kernel's is for the next call.
            let stop = || bells_to_come || kernel::is_at_mark(self.fd) || kernel::inq(self.fd) == Ok(0);
            if !self.receives_fast() && self.end.reading.stash.load(Relaxed) == 0 && stop() {
                break;
            }
            match self.take(into, false, self.end.reading.nested.load(Relaxed)) {
                Taken::Bytes(n) => total += n,
                Taken::Failed(Errno(e)) => {
                    self.end.reading.error.store(e, Relaxed);
                    break;
                }
                Taken::Nothing | Taken::EndOfStream => break,
            }
        }
        total
    }

    /// Takes from the kernel path. `None`: the direction has gone up meanwhile.
    fn take_from_kernel(&self, into: &mut Cursor, peek: bool) -> Option<Taken> {
        // A handler must not pass the mark, nor take what was counted, between a look and what follows from it. To hold
        // signals back costs two system calls. Without a mark they are not needed: none comes while `in_kernel` is up.
        self.in_kernel(|| {
            if self.is_at_switch() || self.end.is_remote() {
                kernel::undisturbed(|| self.take_plain(into, peek))
            } else {
                self.take_plain(into, peek)
            }
        })
    }

    fn take_plain(&self, into: &mut Cursor, peek: bool) -> Option<Taken> {
        let reading = &self.end.reading;
        if self.receives_fast() {
            return None;
        }
        if let Some(n) = self.take_stash(into, peek) {
            return Some(Taken::Bytes(if peek { n } else { n + self.take_behind_stash(into) }));
        }
        if let Some(taken) = self.discard_bells() {
            return Some(taken);
        }
        if reading.error.load(Relaxed) != 0
            && !self.has_something()
            && kernel::inq(self.fd).is_ok_and(|queued| queued == 0)
            && let Some(error) = self.end.take_kept_error()
        {
            return Some(Taken::Failed(error));
        }
        if self.end.is_remote() { self.take_of_remote(into, peek) } else { self.take_below_limit(into, peek) }
    }

    /// What lies in the kernel behind the data that was taken for doorbells belongs to the same receive.
    fn take_behind_stash(&self, into: &mut Cursor) -> usize {
        // Urgent data ends a receive.
        if into.left() == 0 || kernel::is_at_mark(self.fd) {
            return 0;
        }
        let more = self.take_plain(into, false);
        self.more(more)
    }

    /// The bytes of a second look of a receive. What else the look says is for the next receive.
    fn more(&self, taken: Option<Taken>) -> usize {
        match taken {
            Some(Taken::Bytes(n)) => n,
            Some(Taken::Failed(Errno(e))) => {
                self.end.reading.error.store(e, Relaxed);
                0
            }
            _ => 0,
        }
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
        let offered = into.message(limit).len();
        match self.receive_from_kernel(into, limit, peek) {
            // Every buffer that was offered is full. There may be more for the others.
            Taken::Bytes(n) if n == offered && !peek && into.left() > 0 && limit == usize::MAX => {
                let more = self.take_below_limit(into, peek);
                Some(Taken::Bytes(n + self.more(more)))
            }
            // The sender may have gone up, filled the ring and closed since the ring was looked at.
            Taken::EndOfStream if limit == usize::MAX && self.has_something() => None,
            Taken::Failed(Errno(e)) if limit == usize::MAX && self.has_something() => {
                self.end.reading.error.store(e, Relaxed);
                None
            }
            taken => Some(taken),
        }
    }

    /// Has the kernel put up to `limit` bytes that it has into the buffers, from where the cursor is.
    pub(super) fn receive_at_once(&self, into: &mut Cursor, limit: usize, peek: bool) -> Answer {
        let flags = libc::MSG_DONTWAIT
            | if peek { libc::MSG_PEEK } else { 0 }
            | if into.discards() { libc::MSG_TRUNC } else { 0 };
        if into.discards() {
            let (to, len) = into.chunk(limit);
            // SAFETY: with MSG_TRUNC nothing is written to a null pointer.
            unsafe { kernel::recv(self.fd, to, len, flags) }
        } else {
            // SAFETY: the kernel writes into what is left of the program's buffers.
            unsafe { kernel::recv_message(self.fd, &mut into.message(limit).header(), flags) }
        }
    }

    /// Makes one receive from the kernel path, and sorts out the doorbells that came with it.
    fn receive_from_kernel(&self, into: &mut Cursor, limit: usize, peek: bool) -> Taken {
        let reading = &self.end.reading;
        let got = match self.receive_at_once(into, limit, peek) {
            Ok(0) => return Taken::EndOfStream,
            Ok(n) => n as u64,
            Err(AGAIN) => return Taken::Nothing,
            Err(e) => return self.verdict(e),
        };
        let position = self.kernel_position() + got;
        let excess = match self.ahead() {
            Ok(Record::Up(up)) => position.saturating_sub(up),
            _ => 0,
        };
        if excess > got {
            return self.fault();
        }
        if !peek {
            // A handler may have received what follows, and counted it before.
            own::add(&reading.kernel, got - excess);
            reading.kernel_bytes.fetch_add(got - excess, Relaxed);
            self.publish_position();
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
}

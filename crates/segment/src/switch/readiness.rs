//! What polls and epoll sets are told of the incoming direction: whether something can be read, how much, and what is
//! new.
#![allow(unsafe_code, reason = "looks at a byte in the kernel")]

use super::entering::Beside;
use super::take::Taken;
use super::{AGAIN, Port, ReaderState};
use crate::clock::ticks;
use crate::end::{SHUT_IN, Stage, Whereabouts};
use crate::kernel;
use crate::raw::Errno;
use crate::ring::{self, Place, Record};
use crate::sync::Relaxed;
use crate::words::Presence;

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

/// What an edge-triggered watcher of a connection has been told of. At first that is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Everything in the ring up to this position.
    upto: u64,
    /// 1 + the position of the first mark that had not been passed then; 0: there was none.
    mark: u64,
    /// `End::shutdowns` then.
    shutdowns: u8,
}

impl Port<'_> {
    /// Looks at the incoming direction, without taking anything and without the kernel.
    #[inline]
    pub fn ready(&self) -> Ready {
        let reading = &self.end.reading;
        let ring = self.incoming();
        let mut position = self.place().head;
        if reading.error.load(Relaxed) != 0 || reading.stash.load(Relaxed) != 0 || self.end.stage() == Stage::Broken {
            return Ready::Yes;
        }
        let mut fast = self.receives_fast();
        if !fast && self.is_absent() {
            // A receive waits for what is to come back.
            return if self.has_left_for_now() { Ready::Yes } else { Ready::AskKernel };
        }
        for _ in 0..8 {
            let Ok(record) = ring.record(position) else { return Ready::Yes };
            match record {
                Record::Data(_) => return if fast { Ready::Yes } else { Ready::AskKernel },
                Record::Up(up) if !fast && self.has_reached(up) => fast = true,
                Record::Empty if fast => return Ready::No,
                Record::Skip | Record::Pad(_) => {}
                Record::Empty | Record::Up(_) | Record::Down(_) => return Ready::AskKernel,
            }
            position = ring.behind(position, record);
        }
        Ready::Yes
    }

    /// Whether a receive would return at once. This asks the kernel, for a poll of the kernel's that has reported the
    /// socket and may have seen a doorbell only.
    pub fn readable(&self) -> bool {
        self.return_to_ring();
        if self.ready() == Ready::Yes {
            return true;
        }
        self.with_reading(|beside| {
            if beside == Beside::Nobody {
                self.pass_marks();
            }
            self.ready() == Ready::Yes || beside == Beside::Nobody && self.kernel_has_news()
        })
    }

    /// Whether a receive would return at once, for a socket that a poll of the kernel's has just reported to be
    /// readable, when this end had taken `bells`. On the kernel path, where no doorbell is left to be thrown away, that
    /// is true as it stands, unless the kernel meant a doorbell that has been thrown away since.
    pub fn is_readable_as_told(&self, bells: u64) -> bool {
        self.is_all_in_kernel() && self.bells_of_all_times() == bells || self.readable()
    }

    /// The doorbells that this end has ever taken from the kernel.
    pub fn bells_of_all_times(&self) -> u64 {
        self.end.reading.all_bells.load(Relaxed)
    }

    /// Whether all that a receive finds is in the kernel, and nothing else is there.
    fn is_all_in_kernel(&self) -> bool {
        // Most are not: they pay for one look.
        !self.receives_fast()
            && !self.end.is_remote()
            && self.with_reading(|beside| {
                let reading = &self.end.reading;
                beside == Beside::Nobody
                    && self.reader_state() == ReaderState::Kernel
                    && reading.stash.load(Relaxed) == 0
                    && reading.to_discard() == 0
                    && matches!(self.ahead(), Ok(Record::Empty))
            })
    }

    fn kernel_has_news(&self) -> bool {
        if self.end.is_remote() {
            return self.has_remote_news();
        }
        if self.reads_plainly() {
            // A poll, because a look would count for SO_PEEK_OFF.
            return kernel::poll_now(self.fd, libc::POLLIN) != 0;
        }
        let mut passed = false;
        loop {
            let mut byte = 0u8;
            // SAFETY: one writable byte; only looked at.
            match unsafe { kernel::recv(self.fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
                Ok(1..) if self.receives_fast() && self.ready() != Ready::Yes => {
                    if core::mem::replace(&mut passed, true) {
                        // The doorbells are for other sleepers, but the end of the stream may lie behind them.
                        return self.has_ended();
                    }
                    self.pass_bells();
                    // If a mark has just appeared, what was taken may be data. The next take must not follow before
                    // that is found out.
                    self.pass_marks();
                }
                // A doorbell that the mark has counted, and that came only now.
                Ok(1..) if !self.receives_fast() && self.end.reading.to_discard() > 0 => self.discard_bells_aside(),
                Ok(_) => return true,
                Err(AGAIN) => return self.ready() == Ready::Yes,
                Err(e) => {
                    if let Taken::Failed(Errno(e)) = self.verdict(e) {
                        self.end.reading.error.store(e, Relaxed);
                    }
                    return true;
                }
            }
        }
    }

    /// For edge-triggered events: if there is anything in the ring of which a watcher has not been told, returns what
    /// it has been told of from now on, as far as a short walk tells.
    ///
    /// The watcher is told twice of what lies behind a mark of the path: when it is published, and when the mark was
    /// passed. A reader may stop where FIONREAD said, and wait for an edge for the rest; and FIONREAD does not count
    /// bytes behind a mark as long as bytes before it are on their way in the kernel. Once the end is deaf, the watcher
    /// is also told of what has come since and was read. After a shutdown, it is told of all once more.
    pub fn newer(&self, told: Told) -> Option<Told> {
        if self.reader_state() == ReaderState::Absent {
            // What lies in the ring has gone the kernel path.
            return None;
        }
        let shutdowns = self.end.shutdowns.load(Relaxed);
        let told = if told.shutdowns == shutdowns { told } else { Told::default() };
        let ring = self.incoming();
        let head = self.place().head;
        let is_behind = |position| ring::distance(head, position) > ring.capacity();
        let reached = match self.front() {
            Ok((at, Record::Up(up))) if self.has_reached(up) => Some(at),
            _ => None,
        };
        let mark_passed = told.mark.checked_sub(1).is_some_and(|mark| is_behind(mark) || reached == Some(mark));
        let from = if mark_passed || is_behind(told.upto) { head } else { told.upto };
        let mut now = Told { upto: from, mark: 0, shutdowns };
        let mut data = self.is_deaf() && is_behind(told.upto);
        for _ in 0..1024 {
            let Ok(record) = ring.record(now.upto) else { break };
            match record {
                Record::Empty => break,
                Record::Data(_) => data = true,
                Record::Up(_) | Record::Down(_) if now.mark == 0 && reached != Some(now.upto) => {
                    now.mark = now.upto + 1;
                }
                _ => {}
            }
            now.upto = ring.behind(now.upto, record);
        }
        if now.mark == 0 && !mark_passed {
            now.mark = told.mark;
        }
        data.then_some(now)
    }

    /// Whether nothing of the stream can be in the kernel. What has come there is a doorbell then, and no news.
    pub fn is_all_in_ring(&self) -> bool {
        self.receives_fast() && self.down_behind(self.place().head).is_none()
    }

    /// Bytes that receives would find now (FIONREAD).
    pub fn unread(&self) -> u64 {
        self.return_to_ring();
        self.pass_due_marks();
        let reading = &self.end.reading;
        let ring = self.incoming();
        let mut place = self.place();
        let mut total = u64::from(reading.stash.load(Relaxed));
        let (mut before, mut taken) = (0, self.bells_taken());
        if !self.receives_fast() {
            let discard = reading.to_discard() + self.end.remote.repeated.load(Relaxed);
            let queued = u64::from(kernel::inq(self.fd).unwrap_or(0));
            let limit = self.kernel_limit().ok().flatten().map_or(u64::MAX, |n| n as u64);
            let in_kernel = queued.saturating_sub(discard).min(limit);
            total += in_kernel;
            if self.is_away_with_all() {
                return total + self.left_behind();
            }
            if total == 0 && self.awaits_left() {
                // A poll may have told of it before the sender began to give it back.
                return 1;
            }
            let Ok((head, up @ Record::Up(_))) = self.front() else { return total };
            if in_kernel < limit || self.is_given_first() {
                // The bytes before the ring are still on their way in the kernel, or such as are in the ring too lie
                // behind them.
                return total;
            }
            place = Place { head: ring.behind(head, up), consumed: 0 };
            (before, taken) = (discard.saturating_add(in_kernel), 0);
        }
        total += ring::unread(&ring, place).unwrap_or(0);
        let Some((down, bells)) = self.down_behind(place.head) else { return total };
        let queued = u64::from(kernel::inq(self.fd).unwrap_or(0));
        if !matches!(ring.record(down), Ok(Record::Down(_))) {
            // The sender has taken the mark back: what lies in the kernel is doorbells.
            return total;
        }
        total + queued.saturating_sub(before).saturating_sub(bells.saturating_sub(taken))
    }

    /// Whether something is unread that the kernel has not, nor gets from the sender.
    pub fn has_unread_past_kernel(&self) -> bool {
        let reading = &self.end.reading;
        let is_left = reading.whereabouts() == Whereabouts::Left && reading.is_where_kernel_is();
        !is_left && self.unread() > 0
    }

    /// Whether this end is away from its ring, and nothing that it has left there has come by the kernel yet.
    fn is_away_with_all(&self) -> bool {
        self.presence() == Presence::Away && self.end.reading.whereabouts() == Whereabouts::AwayFromRing
    }

    #[cold]
    fn has_left_for_now(&self) -> bool {
        self.is_away_with_all() && self.left_behind() > 0
    }

    /// Whether the kernel may know of something to be read that the ring does not show.
    pub fn needs_kernel(&self) -> bool {
        !self.receives_fast() || self.may_have_ended()
    }

    /// Whether the kernel may know of the end of the stream by now: the other end has said that it ends its direction,
    /// or this end that it receives no more. An end that was killed says nothing.
    #[inline]
    pub fn may_have_ended(&self) -> bool {
        self.channel.incoming().sender.ended.load(Relaxed) != 0 || self.is_deaf()
    }

    /// Whether the program has said that it receives no more. Then the socket can always be read, and all that comes is
    /// an edge.
    #[inline]
    pub fn is_deaf(&self) -> bool {
        self.end.shut.load(Relaxed) & SHUT_IN != 0
    }

    /// The kernel has reported this socket, perhaps for the end of the stream, and may not do so again. The next
    /// receive that finds the ring empty asks the kernel.
    pub fn ask_kernel_next(&self) {
        self.end.reading.asked.store(0, Relaxed);
    }

    /// The kernel has reported this socket, and will do so again if the stream has ended: a receive that finds the ring
    /// empty soon need not ask the kernel.
    pub fn kernel_was_asked(&self) {
        self.end.reading.asked.store(ticks(), Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::reason::Reason;
    use crate::switch::lies::Ends;
    use crate::words::ALONE;

    /// The other end wakes this one to tell it that it goes down. Between the kernel's report and the look, this end
    /// throws the doorbell away, for example because it gives back.
    #[test]
    fn a_doorbell_that_was_thrown_away_is_nothing_to_read() {
        let it = Ends::joined(true);
        let (sender, reader) = (it.port(0), it.port(1));
        reader.prepare_to_sleep(ALONE);
        let bells = reader.bells_of_all_times();
        sender.go_down_for_now(Reason::Met, true);
        while kernel::poll_now(reader.fd, libc::POLLIN) == 0 {
            std::thread::yield_now();
        }
        reader.pass_due_marks();
        assert_eq!((reader.bells_of_all_times(), reader.is_all_in_kernel()), (bells + 1, true));
        assert!(!reader.is_readable_as_told(bells) && reader.is_readable_as_told(bells + 1));
    }
}

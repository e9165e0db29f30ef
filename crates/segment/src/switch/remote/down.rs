//! Going down: the sender says where the stream goes on in the kernel, and the reader follows.

use super::Next;
use super::statement::{LEN, Statement};
use crate::kernel;
use crate::reason::Reason;
use crate::ring::{self, Place, Record};
use crate::switch::path::Descent;
use crate::switch::take::Taken;
use crate::switch::{BROKEN, Port};
use crate::sync::{Acquire, Relaxed, Release};
use crate::vector::Cursor;

/// Octets that are sent again at a time.
const PIECE: usize = 4096;

impl Port<'_> {
    /// Goes down, and sends again what the reader is not known to have read.
    #[cold]
    pub(in crate::switch) fn fall(&self, reason: Reason) -> Descent {
        kernel::undisturbed(|| {
            let (sending, remote, sender) = (&self.end.sending, &self.end.remote, self.sender());
            if sender.used(true).is_err() {
                self.break_off();
                return Descent::Down;
            }
            // The daemon may not have taken the mark of going up.
            let [head, mark, tail] = [&sending.seen_head, &sending.mark, &sending.tail].map(|it| it.load(Acquire));
            let is_marked = ring::distance(head, tail) <= ring::distance(mark, tail);
            let place = Place { head: if is_marked { head } else { mark }, consumed: 0 };
            let sent = sending.put.load(Relaxed);
            let unread = ring::unread(&sender.ring, place).ok().filter(|unread| *unread <= sent);
            let Some(unread) = unread else {
                self.break_off();
                return Descent::Down;
            };
            if !self.has_room_to_fall(unread) {
                return Descent::NoRoom;
            }
            let statement = Statement::Plain { number: remote.went_up.load(Relaxed), from: sent - unread, sent };
            self.send_surely(&statement.emit(remote.key()));
            self.send_again(place);
            sender.mark(Record::Down(0));
            sending.fast.store(0, Relaxed);
            sending.tries.store(0, Relaxed);
            self.end.set_reason(reason);
            self.rouse_daemon();
            Descent::Down
        })
    }

    /// Whether the kernel takes so many octets and the statement at once: the program may make no further call for
    /// long.
    fn has_room_to_fall(&self, unread: u64) -> bool {
        let has_room = || kernel::has_room_for(self.fd, unread + LEN as u64);
        has_room() || {
            self.make_kernel_room();
            has_room()
        }
    }

    fn send_again(&self, mut place: Place) {
        let mut piece = [0u8; PIECE];
        loop {
            let vector = libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: PIECE };
            // SAFETY: one buffer of this frame.
            let mut into = unsafe { Cursor::new(&vector, 1) };
            match ring::copy_out(&self.channel.outgoing_ring(), place, &mut into) {
                Ok((_, 0)) => return,
                Ok((next, n)) => {
                    self.send_surely(&piece[..n]);
                    place = next;
                }
                Err(ring::Fault) => return self.break_off(),
            }
        }
    }

    /// The reader is in the ring and has found it empty, or waits for it: looks whether the sender has gone down or
    /// ended. `None`: the reader is on the kernel path.
    pub(in crate::switch) fn look_for_fall(&self) -> Option<Taken> {
        let remote = &self.end.remote;
        let awaited = remote.awaited.load(Relaxed);
        let (of, read) = if awaited > 0 { (awaited, 0) } else { (remote.entered.load(Relaxed), self.octets_read()) };
        match self.look_for_statement() {
            Next::Statement(Statement::Plain { number, from, sent }) if number == of => {
                let (Some(repeated), true) = (read.checked_sub(from), self.take_statement()) else {
                    return Some(self.fault());
                };
                remote.repeated.store(repeated, Relaxed);
                remote.owed.store(sent - from, Relaxed);
                remote.awaited.store(0, Relaxed);
                remote.entered.store(number, Relaxed);
                self.end.reading.fast.store(0, Relaxed);
                None
            }
            Next::Statement(_) | Next::Other => Some(self.fault()),
            Next::Nothing => Some(Taken::Nothing),
            Next::End => Some(self.end_of_ring(read)),
            Next::Failed(error) => Some(self.verdict(error)),
        }
    }

    /// Octets that the reader has had from the ring since it entered it.
    pub(super) fn octets_read(&self) -> u64 {
        self.end.reading.got.load(Relaxed)
    }

    /// The kernel stream has ended while the reader is in the ring: the sender was killed. Its daemon says where the
    /// stream ends.
    pub(super) fn end_of_ring(&self, read: u64) -> Taken {
        let (words, awaited) = (&self.channel.incoming().sender, self.end.remote.awaited.load(Relaxed));
        match words.ended_at.load(Acquire).checked_sub(1) {
            // The sender was killed before it put anything into the ring.
            Some(_) if awaited > words.ended_in.load(Relaxed) => Taken::EndOfStream,
            Some(end) if end == read => Taken::EndOfStream,
            Some(end) if end > read => Taken::Nothing,
            Some(_) => self.fault(),
            None if self.asks_for_down() => Taken::Failed(BROKEN),
            None => {
                self.ask_for_end();
                Taken::Nothing
            }
        }
    }

    /// Asks the sender's daemon where the stream ends.
    fn ask_for_end(&self) {
        let word = &self.channel.incoming().flags.asks_end;
        if word.load(Relaxed) == 0 {
            word.store(1, Release);
            self.rouse_daemon();
        }
    }

    /// On the kernel path: drops what the reader has had from the ring. `Some`: not all of it has come yet.
    pub(in crate::switch) fn drop_repeated(&self) -> Option<Taken> {
        let remote = &self.end.remote;
        while let repeated @ 1.. = remote.repeated.load(Relaxed) {
            match self.drop_from_kernel(repeated) {
                Ok(0) => return Some(Taken::Failed(BROKEN)),
                Ok(n) => {
                    remote.repeated.store(repeated - (n as u64).min(repeated), Relaxed);
                    self.count_owed(n as u64);
                }
                Err(crate::switch::AGAIN) => return Some(Taken::Nothing),
                Err(error) => return Some(self.verdict(error)),
            }
        }
        None
    }

    /// So many octets have come by the kernel path.
    pub(in crate::switch) fn count_owed(&self, octets: u64) {
        let owed = &self.end.remote.owed;
        if owed.load(Relaxed) != 0 {
            owed.store(owed.load(Relaxed).saturating_sub(octets), Relaxed);
        }
    }

    /// The kernel stream has ended. Whether octets are missing that were put into the ring: the sender was killed while
    /// it sent them again.
    pub(in crate::switch) fn is_owed(&self) -> bool {
        self.end.remote.owed.load(Relaxed) != 0
    }
}

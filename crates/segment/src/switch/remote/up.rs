//! Going up: the sender says so in the kernel stream, and the reader that comes there goes on in its ring.
#![allow(unsafe_code, reason = "receives from the kernel into the program's buffers")]

use super::Next;
use super::statement::{KEY, LEN, Statement};
use crate::kernel;
use crate::ring::{Fault, Record};
use crate::switch::take::Taken;
use crate::switch::{AGAIN, BROKEN, Port};
use crate::sync::{Acquire, Relaxed, Release, own};
use crate::vector::Cursor;

/// After so many tries the sender tries only with every [`EVERY`]th send.
const TRIES: u32 = 16;
const EVERY: u32 = 8;
/// Records that are passed at a time.
const MOST_PASSED: usize = 4096;
/// Octets of the kernel stream that are looked through at a time.
const LOOK: usize = 8192;
/// As many of them are surely before a statement if no key is among them.
const LOOKED_THROUGH: usize = LOOK - (KEY - 1);

impl Port<'_> {
    /// Before a send on the kernel path: goes up, if the reader looks for statements and all that was sent before has
    /// left this host.
    #[cold]
    pub(in crate::switch) fn try_up_by_statement(&self) -> bool {
        let (end, sending) = (self.end, &self.end.sending);
        let tries = sending.tries.fetch_add(1, Relaxed);
        if tries > TRIES && !tries.is_multiple_of(EVERY) || end.sends_by_kernel() || !self.can_go_up() {
            return false;
        }
        if sending.kernel_sends.load(Acquire) != 0 || !end.shut_gate(&end.write_gate) {
            return false;
        }
        // What a signal handler sent in between would be neither before nor behind the statement.
        kernel::undisturbed(|| {
            let can = self.sender().used(true) == Ok(0) && self.leaves_whole();
            can && self.go_up_by_statement()
        })
    }

    /// Whether a statement leaves this host at once, as a segment of its own. TCP might cut it in two behind octets
    /// that wait to be sent, or at the end of the other end's window, and a reader would take its beginning for data.
    fn leaves_whole(&self) -> bool {
        let is_taken = |it: kernel::Counters| {
            let unacknowledged = kernel::outq(self.fd).map_or(u64::MAX, u64::from);
            it.unsent == 0 && kernel::carries(it.state) && unacknowledged + LEN as u64 <= u64::from(it.window)
        };
        kernel::counters(self.fd).is_ok_and(is_taken) && kernel::has_room_for(self.fd, LEN as u64)
    }

    fn go_up_by_statement(&self) -> bool {
        let remote = &self.end.remote;
        let number = remote.went_up.load(Relaxed) + 1;
        let statement = Statement::Fast { number }.emit(remote.key());
        match kernel::send(self.fd, &statement) {
            Ok(n) => self.send_surely(&statement[n.min(statement.len())..]),
            Err(_) => return false,
        }
        remote.went_up.store(number, Relaxed);
        self.end.sending.put.store(0, Relaxed);
        self.sender().mark(Record::Up(number));
        self.has_gone_up();
        true
    }

    /// On the kernel path: takes what is there, up to the next statement. `None`: the reader has come to the ring.
    pub(in crate::switch) fn take_of_remote(&self, into: &mut Cursor, peek: bool) -> Option<Taken> {
        let before = into.taken();
        loop {
            let taken = self.take_up_to_statement(into, peek);
            let n = into.taken() - before;
            match taken {
                // A receive of less than was asked for says that there is no more.
                Some(Taken::Bytes(LOOKED_THROUGH)) if into.left() > 0 && !peek => {}
                Some(Taken::Failed(error)) if n > 0 => {
                    self.end.reading.error.store(error.0, Relaxed);
                    return Some(Taken::Bytes(n));
                }
                _ if n > 0 => return Some(Taken::Bytes(n)),
                taken => return taken,
            }
        }
    }

    /// As [`Port::take_of_remote`], from the octets that are looked through at a time.
    fn take_up_to_statement(&self, into: &mut Cursor, peek: bool) -> Option<Taken> {
        if let Some(taken) = self.come_to_ring() {
            return taken;
        }
        let mut octets = [0u8; LOOK];
        let most = into.left().saturating_add(LEN).min(LOOK);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: a buffer of this frame.
        let got = match unsafe { kernel::recv(self.fd, octets.as_mut_ptr(), most, flags) } {
            Ok(0) if self.is_owed() => return Some(Taken::Failed(BROKEN)),
            Ok(0) => return Some(Taken::EndOfStream),
            Ok(n) => n.min(most),
            Err(AGAIN) => return Some(Taken::Nothing),
            Err(error) => return Some(self.verdict(error)),
        };
        match Statement::find(self.end.remote.key(), &octets[..got]) {
            0 => self.hear_fast(self.next_in(&octets[..got.min(LEN)])),
            // What lies behind may begin with the rest of a key.
            n if n == LOOK => Some(self.take_octets(into, LOOKED_THROUGH.min(into.left()), peek)),
            n => Some(self.take_octets(into, n.min(into.left()), peek)),
        }
    }

    /// What lies `next` is a statement, or its beginning.
    fn hear_fast(&self, next: Next) -> Option<Taken> {
        let remote = &self.end.remote;
        match next {
            Next::Statement(Statement::Fast { number }) if number == remote.entered.load(Relaxed) + 1 => {
                if !self.take_statement() {
                    return Some(self.fault());
                }
                remote.awaited.store(number, Relaxed);
                self.come_to_ring().unwrap_or(Some(Taken::Nothing))
            }
            Next::Statement(_) | Next::Other => Some(self.fault()),
            Next::Nothing => Some(Taken::Nothing),
            Next::End => Some(Taken::EndOfStream),
            Next::Failed(error) => Some(self.verdict(error)),
        }
    }

    /// If a statement lies next in the kernel stream, follows it.
    pub(super) fn hear_statement(&self) -> Option<Taken> {
        match self.look_for_statement() {
            next @ Next::Statement(_) => self.hear_fast(next),
            _ => None,
        }
    }

    /// Receives so many octets, which are there.
    fn take_octets(&self, into: &mut Cursor, n: usize, peek: bool) -> Taken {
        let reading = &self.end.reading;
        match self.receive_at_once(into, n, peek) {
            Ok(0) => Taken::EndOfStream,
            Ok(n) => {
                if !peek {
                    own::add(&reading.kernel, n as u64);
                    reading.kernel_bytes.fetch_add(n as u64, Relaxed);
                    self.publish_position();
                    self.count_owed(n as u64);
                }
                into.skip(n);
                Taken::Bytes(n)
            }
            Err(AGAIN) => Taken::Nothing,
            Err(error) => self.verdict(error),
        }
    }

    /// What comes before octets of the kernel stream: those that the reader has had from the ring are dropped, and
    /// behind the statement *fast* the ring comes. `None`: octets of the kernel stream come. `Some(None)`: the reader
    /// has come to the ring.
    #[allow(clippy::option_option, reason = "the inner one is what a take returns")]
    pub(super) fn come_to_ring(&self) -> Option<Option<Taken>> {
        if let Some(taken) = self.drop_repeated() {
            return Some(Some(taken));
        }
        let awaited = self.end.remote.awaited.load(Relaxed);
        if awaited == 0 {
            return None;
        }
        match self.pass_stale() {
            Ok(Some(number)) if number == awaited => {
                self.enter_fast(0);
                Some(None)
            }
            Ok(Some(_)) | Err(Fault) => Some(Some(self.fault())),
            // The mark is on its way, or the sender has gone down, and the daemons are lost.
            Ok(None) => Some(self.look_for_fall().or(Some(Taken::Nothing))),
        }
    }

    /// Passes what the sender had put into the ring before it went down, which the reader has by the kernel. Returns
    /// the number in the mark of going up that lies next.
    fn pass_stale(&self) -> Result<Option<u64>, Fault> {
        // A daemon that goes on putting something there would keep this thread here.
        for _ in 0..MOST_PASSED {
            match self.front()? {
                (_, Record::Empty) => break,
                (_, Record::Up(number)) if number >= self.end.remote.awaited.load(Relaxed) => return Ok(Some(number)),
                (at, record) => {
                    self.put_behind(at, record);
                    self.channel.incoming().head.head.store(self.place().head, Release);
                }
            }
        }
        Ok(None)
    }

    /// The reader enters the ring.
    pub(in crate::switch) fn note_entrance(&self) {
        let remote = &self.end.remote;
        remote.entered.store(remote.awaited.swap(0, Relaxed), Relaxed);
        self.end.reading.got.store(0, Relaxed);
    }
}

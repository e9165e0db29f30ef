//! A stream to another host. The daemons of the two hosts carry what goes by the ring, each from or to the channel that
//! it shares with its program ([`crate::far`]). This is what is different for the programs' ends.
//!
//! On one host both ends see one ring, and a mark in it switches the path. Here each end has a ring of its own, and
//! what lies between them may be lost: a daemon may die. So the programs agree in the kernel stream, which is never
//! lost, by statements of 40 octets that begin with a random key, which only the two libraries and their daemons
//! know:
//!
//! 1. A reader that reads by its library alone looks for statements in the kernel stream from then on, and says so over
//!    the daemons (`ready`).
//! 2. To go up, the sender puts a statement *fast* into the kernel stream, and goes on in its ring. It puts nothing
//!    else into the kernel stream until it goes down.
//! 3. The reader that comes to the statement goes on in its own ring, behind the mark of going up with the same number.
//! 4. To go down, the sender puts a statement *plain* into the kernel stream: it goes on from octet `from` of what it
//!    has put into the ring, the first one that the reader is not known to have read. The sender still has it and all
//!    that follow, because its ring keeps what the reader has not read. The reader drops what it has read already, and
//!    what is left in its ring.
//!
//! So a sender goes down by itself, whatever has become of the daemons, and nobody waits for a program to make a call.
//! Where a process is killed that has sent by the ring, its daemon still has the ring, and says at which octet the
//! stream ends. Only if that daemon is lost as well, the reader finds the end of the kernel stream without a statement,
//! and reports a reset.
//!
//! No doorbell goes through the kernel stream. A daemon wakes its program, and a program its daemon.
#![allow(unsafe_code, reason = "looks at octets in the kernel")]

mod down;
mod statement;
#[cfg(all(test, not(loom)))]
mod tests;
mod up;

use super::path::Descent;
use super::take::Taken;
use super::{Port, Ready};
use crate::clock::nap;
use crate::kernel;
use crate::lock::Entered;
use crate::raw::Errno;
use crate::reason::Reason;
use crate::sync::{Relaxed, Release, SeqCst, fence, own};
use crate::words::{CLOSED, Raised, WANTS_DOWN};
use statement::{Heard, LEN, Statement};

/// A sender that waits for room in the kernel looks again after this time.
const ROOM_WITHIN_US: u32 = 100;

/// What lies next in the kernel stream, where a statement may be.
enum Next {
    Statement(Statement),
    /// Other octets.
    Other,
    /// Nothing, or not all of a statement.
    Nothing,
    End,
    Failed(Errno),
}

impl Port<'_> {
    /// Looks at what lies next in the kernel stream.
    fn look_for_statement(&self) -> Next {
        let mut octets = [0u8; LEN];
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: a buffer of this frame.
        match unsafe { kernel::recv(self.fd, octets.as_mut_ptr(), LEN, flags) } {
            Ok(0) => Next::End,
            Ok(n) => self.next_in(&octets[..n.min(LEN)]),
            Err(super::AGAIN) => Next::Nothing,
            Err(error) => Next::Failed(error),
        }
    }

    /// What lies next, if the kernel stream goes on with these octets: those of a statement, as far as they have come.
    fn next_in(&self, octets: &[u8]) -> Next {
        match Statement::parse(self.end.remote.key(), octets) {
            Heard::Statement(statement) => Next::Statement(statement),
            Heard::Beginning => Next::Nothing,
            Heard::Other => Next::Other,
        }
    }

    /// Takes the statement that lies next out of the kernel stream. False if that fails, which only another reader of
    /// the socket could cause.
    fn take_statement(&self) -> bool {
        self.drop_from_kernel(LEN as u64) == Ok(LEN)
    }

    /// Drops up to `octets` octets of the kernel stream that are there. Returns how many.
    fn drop_from_kernel(&self, octets: u64) -> Result<usize, Errno> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: with MSG_TRUNC nothing is written to a null pointer.
        let n = unsafe { kernel::recv(self.fd, core::ptr::null_mut(), octets as usize, flags) }?;
        own::add(&self.end.reading.kernel, n as u64);
        self.publish_position();
        Ok(n)
    }

    /// Wakes the daemon, if it sleeps, because this end has published something.
    pub(super) fn rouse_daemon(&self) {
        let waiting = &self.channel.outgoing().flags.waiting;
        // The daemon raises the flag before it looks at the channel. This end publishes before it looks at the flag.
        fence(SeqCst);
        if waiting.load(SeqCst) != 0 && waiting.swap(0, SeqCst) != 0 {
            (self.waiting.ring)(self);
        }
    }

    /// Passes statements and marks that lie next, beside the program's receives. An error, which the kernel tells once,
    /// is kept for the program.
    pub(super) fn pass_remote_marks(&self) {
        let taken = match self.receives_fast() {
            true if self.has_something() => None,
            true => self.look_for_fall(),
            false => self.come_to_ring().unwrap_or_else(|| self.hear_statement()),
        };
        if let Some(Taken::Failed(error)) = taken {
            self.end.keep_error(error);
        }
    }

    /// Whether a receive would return at once. The caller has [passed](Port::pass_remote_marks) what lies next.
    pub(super) fn has_remote_news(&self) -> bool {
        self.pass_remote_marks();
        if self.end.keeps_error() {
            return true;
        }
        match self.ready() {
            Ready::Yes => true,
            Ready::No => {
                self.has_ended()
                    && matches!(self.end_of_ring(self.octets_read()), Taken::EndOfStream | Taken::Failed(_))
            }
            Ready::AskKernel if self.end.remote.awaited.load(Relaxed) != 0 => false,
            Ready::AskKernel => kernel::poll_now(self.fd, libc::POLLIN) != 0,
        }
    }

    /// A sleep in the ring has ended because the kernel has something: `n` octets, or the end of its stream.
    pub(super) fn wake_in_remote(&self, n: usize) -> Taken {
        /// The daemon says soon where the stream ends, or is gone.
        const SOON_US: u32 = 500;
        match self.look_for_fall() {
            Some(Taken::Nothing) if n == 0 => {
                nap(SOON_US);
                Taken::Nothing
            }
            taken => taken.unwrap_or(Taken::Nothing),
        }
    }

    /// From now on the daemon rings by the line of this number, which this `daemon` has (0: not known yet). Returns
    /// whether it still has to ring: a thread whose flag it has taken before may not sleep, because the ring went by
    /// another line. Nor may a thread whose stream another daemon carried, which is gone.
    pub fn be_rung_by(&self, line: u64, daemon: u64) -> bool {
        if self.is_lost_with(daemon) {
            return false;
        }
        let word = &self.channel.incoming().flags.line;
        if word.load(Relaxed) != line {
            word.store(line, SeqCst);
            // The daemon takes the flag before it looks at the number.
            fence(SeqCst);
        }
        self.asks_for_ring()
    }

    /// The daemon of this number is at work (0: not known). Whether another one carried the stream: both directions go
    /// down then, and this end may not sleep before.
    pub fn is_lost_with(&self, daemon: u64) -> bool {
        let is_lost = daemon != 0 && daemon != self.end.remote.daemon();
        if is_lost && !(self.asks_for_down() && self.reader_wants_down()) {
            self.forsake();
            return true;
        }
        false
    }

    /// Whether the sender of this end has to go down, because the way by the daemons is lost.
    pub fn is_to_fall(&self) -> bool {
        self.sends_fast() && self.reader_wants_down()
    }

    /// Whether the daemon rings when something comes.
    pub fn asks_for_ring(&self) -> bool {
        self.flag().raised() != Raised::Down
    }

    /// Whether no statement comes by the kernel stream, for a process without the library that gets the socket. The
    /// reader has never said that it looks for them, and does not say so any more.
    pub(super) fn hears_no_statements(&self) -> bool {
        self.channel.incoming().flags.ready.load(SeqCst) == 0
    }

    /// The daemon is gone: both directions go down.
    pub fn forsake(&self) {
        self.channel.outgoing().flags.want_down.store(WANTS_DOWN, Release);
        self.ask_for_down();
    }

    /// An image finds the daemon gone, and this new channel in place of the one that it shared with the daemon. Both
    /// directions go on by the kernel. False if what this end has sent is lost with that channel.
    pub fn go_on_without_daemon(&self) -> bool {
        let (sending, reading) = (&self.end.sending, &self.end.reading);
        if self.sends_fast() {
            return false;
        }
        let [of_sender, of_reader] = [[&sending.tail, &sending.seen_head, &sending.mark], [&reading.place; 3]];
        [of_sender, of_reader].as_flattened().iter().for_each(|word| word.store(0, Relaxed));
        [&sending.hole[0], &sending.hole[1], &sending.behind].iter().for_each(|word| word.store(0, Relaxed));
        self.forsake();
        // Statements may still come.
        self.channel.incoming().flags.ready.store(1, SeqCst);
        // The slot is free once this end is closed.
        self.channel.outgoing().flags.closed.store(CLOSED, Release);
        true
    }

    /// Before a thread sleeps on the connection: goes down if the way by the daemons is lost, because the other program
    /// may wait for what is in the ring. False if the kernel has no room for that yet, or another thread sends.
    pub(super) fn fall_before_sleep(&self) -> bool {
        if !self.is_to_fall() {
            return true;
        }
        self.try_enter_sending().is_some_and(|entered| {
            let is_down = entered == Entered::Nested || !self.sends_fast() || self.fall(Reason::Met) == Descent::Down;
            self.end.sending.lock.exit(entered);
            is_down
        })
    }

    /// The program ends this direction. What is in the ring goes by the kernel, so that the FIN comes behind it.
    pub(super) fn fall_before_end(&self) {
        let entered = self.enter_sending();
        while entered != Entered::Nested
            && self.sends_fast()
            && self.fall(Reason::Met) == Descent::NoRoom
            && self.connected()
        {
            nap(ROOM_WITHIN_US);
        }
        self.end.sending.lock.exit(entered);
    }
}

//! A receive with MSG_PEEK looks at what lies behind marks, too.
#![allow(unsafe_code, reason = "receives from the kernel into the program's buffers")]

use super::Port;
use super::take::Taken;
use crate::clock::{nanoseconds, nap_unless_signalled};
use crate::kernel;
use crate::ring::{self, Place, Record};
use crate::sync::Relaxed;
use crate::vector::Cursor;

impl Port<'_> {
    /// The look has seen all that there was on its path. What lies behind the next mark belongs to the same receive.
    /// `beginning` is where the look began.
    pub(super) fn peek_across(&self, into: &mut Cursor, beginning: &Cursor) -> usize {
        let reading = &self.end.reading;
        let (ring, place) = (self.incoming(), self.place());
        let before = into.taken();
        if !self.receives_fast() {
            if reading.stash.load(Relaxed) > 0 {
                self.peek_kernel(into, (beginning, 0), place.head, 0);
            } else if let Ok((head, mark @ Record::Up(up))) = self.front()
                && !self.is_given_first()
                && self.kernel_position() + before as u64 == up
            {
                let place = Place { head: ring.behind(head, mark), consumed: 0 };
                let _ = ring::copy_out(&ring, place, into);
                if let Some((down, bells)) = self.down_behind(place.head)
                    && ring::unread(&ring, place) == Ok((into.taken() - before) as u64)
                {
                    let seen = *into;
                    let head = ring.behind(down, Record::Down(bells));
                    self.peek_kernel(into, (beginning, before), head, bells);
                    self.unless_taken_back(down, into, seen);
                }
            }
            return into.taken() - before;
        }
        let Some((down, bells)) = self.down_behind(place.head) else { return 0 };
        // More may have been published since, in front of the mark.
        if ring::unread(&ring, place) != Ok(before as u64) {
            return 0;
        }
        let (taken, kept) = (self.bells_taken(), self.kept());
        // The data that was taken for doorbells comes first.
        let early = taken.saturating_sub(bells) as usize;
        if early > kept || early > into.left() {
            return 0;
        }
        let seen = *into;
        self.copy_held(into, early, early);
        let head = ring.behind(down, Record::Down(bells));
        self.peek_kernel(into, (beginning, 0), head, bells.saturating_sub(taken));
        self.unless_taken_back(down, into, seen);
        into.taken() - before
    }

    /// If the sender has taken the mark at `down` back meanwhile, what was seen behind it may be doorbells: the look
    /// ends where it was when it had `seen` what comes before the mark.
    fn unless_taken_back(&self, down: u64, into: &mut Cursor, seen: Cursor) {
        if !matches!(self.incoming().record(down), Ok(Record::Down(_))) {
            *into = seen;
        }
    }

    /// Looks at the kernel path, behind `before` bytes, which the look that began at `beginning` has seen, and `bells`
    /// doorbells. The look goes up to the mark of going up that may lie at `head`, and on to what follows that mark in
    /// the ring.
    fn peek_kernel(&self, into: &mut Cursor, (beginning, before): (&Cursor, usize), head: u64, bells: u64) {
        let ring = self.incoming();
        let begin = self.kernel_position() + before as u64 + bells;
        let Ok((head, mark)) = self.front_from(head) else { return };
        let limit = match mark {
            Record::Empty => usize::MAX,
            Record::Up(up) if up >= begin => (up - begin) as usize,
            _ => return,
        };
        let mut scratch = [0u8; 64];
        let Some(scratch) = scratch.get_mut(..bells as usize) else { return };
        if into.left() == 0 {
            return;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let got = if into.discards() {
            let (to, len) = into.chunk(limit);
            // SAFETY: with MSG_TRUNC nothing is written to a null pointer.
            unsafe { kernel::recv(self.fd, to, len.saturating_add(before + scratch.len()), flags | libc::MSG_TRUNC) }
        } else {
            // The kernel shows the same bytes again, so they go where they are.
            let again = beginning.message(before);
            if again.len() != before {
                return;
            }
            let mut message = into.message(limit).behind(again, scratch);
            // SAFETY: the kernel writes into the scratch and what is left of the program's buffers.
            unsafe { kernel::recv_message(self.fd, &mut message.header(), flags) }
        };
        let got = got.unwrap_or_else(|error| {
            // The kernel tells an error once, and this call tells what lies in front of the error.
            if let Taken::Failed(error) = self.verdict(error) {
                self.end.keep_error(error);
            }
            0
        });
        let n = got.saturating_sub(before + bells as usize);
        into.skip(n);
        if n == limit {
            let _ = ring::copy_out(&ring, Place { head: ring.behind(head, mark), consumed: 0 }, into);
        }
    }

    /// Waits until `wanted` bytes are there to be looked at, or until the stream ends, a signal comes, or the socket's
    /// timeout is over, which began at `since`.
    #[cold]
    pub(super) fn await_whole(&mut self, wanted: usize, since: Option<u64>) {
        const LONGEST_NAP_US: u32 = 1000;
        (self.waiting.keep_socket)(self);
        let deadline = self.receive_deadline(since);
        // Signals come in during the naps alone, which say so.
        kernel::undisturbed_since(|held_back| {
            let mut nap_us = 20;
            while self.unread() < wanted as u64
                && !self.has_ended()
                && deadline.is_none_or(|at| nanoseconds() < at)
                && nap_unless_signalled(nap_us, held_back)
            {
                (self.waiting.keep_socket)(self);
                nap_us = (2 * nap_us).min(LONGEST_NAP_US);
            }
        });
    }
}

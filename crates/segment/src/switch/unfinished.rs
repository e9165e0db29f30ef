//! A sender that was killed while it gave back has put on the kernel path a part of what this end had left in its ring.
//! This end is back, and reads the rest from the ring.
//!
//! The part is as long as the kernel has received since this end went away: the sender, which may have been killed at
//! any step, need not have counted it.

use super::BROKEN;
use super::Port;
use super::entering::Beside;
use super::give::copy_past_marks;
use crate::kernel;
use crate::ring::{Place, Record};
use crate::sync::{Acquire, Relaxed, Release, SeqCst};
use crate::vector::Cursor;
use crate::words::{ALONE, Flag, Presence};

impl Port<'_> {
    /// This end is away, and its sender gives back. If the sender has ended in the middle of that, and all has been
    /// read that it gave, this end reads the rest from the ring.
    #[cold]
    pub(super) fn take_up_unfinished(&self) {
        let presence = || Flag(self.channel.incoming().flags.waiting.load(Acquire)).presence();
        let is_unfinished = || self.end.is_away() && presence() == Presence::Giving;
        // In this order: what a sender gives comes before its end.
        if !self.has_ended() || kernel::inq(self.fd) != Ok(0) || !is_unfinished() {
            return;
        }
        self.with_reading(|beside| {
            if beside == Beside::Nobody && is_unfinished() {
                kernel::undisturbed(|| {
                    // A sender that has ended finds nothing to give back, and says for a moment that it gives.
                    if self.left_behind() > 0 && self.read_on_behind_given().is_none() {
                        // Kernel TCP would have had the bytes.
                        self.end.keep_error(BROKEN);
                    }
                });
            }
        });
    }

    /// `None` if what was given cannot be told from what comes behind it.
    fn read_on_behind_given(&self) -> Option<()> {
        let (reading, words) = (&self.end.reading, self.channel.incoming());
        let ring = self.incoming();
        let place = match self.front_from(self.place().head).ok()? {
            (at, mark @ Record::Up(_)) => Place { head: ring.behind(at, mark), consumed: 0 },
            _ => self.place(),
        };
        let given = usize::try_from(self.given_while_away()?).ok()?;
        let (place, passed) = copy_past_marks(&ring, place, &mut Cursor::discarding(given)).ok()?;
        if passed != given {
            return None;
        }
        let counters = kernel::counters(self.fd).ok()?;
        reading.kernel.store((counters.received - 1).wrapping_sub(reading.all_bells.load(Relaxed)), Relaxed);
        reading.place.store(place.pack(), Relaxed);
        words.head.head.store(place.head, Release);
        words.flags.consumed.store(0, Relaxed);
        words.flags.giver.store(0, Relaxed);
        reading.fast.store(1, Relaxed);
        words.flags.waiting.swap(ALONE, SeqCst);
        self.be_here();
        Some(())
    }

    /// Bytes that the sender, which has sent its FIN, gave back while this end was away. `None` if the kernel does not
    /// tell.
    fn given_while_away(&self) -> Option<u64> {
        let before = match self.front_from(self.place().head) {
            Ok((_, Record::Up(position))) => position,
            _ => self.kernel_position(),
        };
        let counters = kernel::counters(self.fd).ok().filter(|it| kernel::has_fin(it.state))?;
        // The FIN counts as a byte.
        counters.received.checked_sub(before.checked_add(1)?)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Departure;
    use super::super::lies::{Ends, some_left_unread};
    use crate::kernel;
    use crate::sync::Relaxed;
    use crate::words::GIVING;
    use std::io::Read;
    use std::net::Shutdown;

    /// The first end has given so many bytes of what the second had left, and was killed. What the second reads, which
    /// spawns a program on the way. Fails if `Port::read_on` takes this end's own reads for those of a program without
    /// the library.
    fn given_in_part(it: &Ends, left: &[u8], given: usize) {
        let (sender, reader) = (it.port(0), it.port(1));
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        reader.channel.incoming().flags.waiting.fetch_or(GIVING, Relaxed);
        assert_eq!(kernel::send(sender.fd, &left[..given]), Ok(given));
        it.sockets[0].shutdown(Shutdown::Write).unwrap();
        let mut got = vec![0; given];
        reader.return_to_ring();
        assert!(given == 0 || it.ends[1].is_away(), "what was given comes first");
        (&it.sockets[1]).read_exact(&mut got).unwrap();
        assert!(got == left[..given]);
        reader.come_back();
        while !reader.has_ended() {
            std::thread::yield_now();
        }
        reader.return_to_ring();
        assert!(!it.ends[1].is_away(), "{given}");
    }

    /// Fails, by the end of the stream, if an end that is away waits for its sender for ever.
    #[test]
    fn what_a_killed_sender_has_not_given_is_read_from_the_ring() {
        for given in [0, 1, 3265, 3266, 3267, 12_000] {
            let (it, left) = some_left_unread();
            given_in_part(&it, &left, given);
            it.assert_receives(&left[given..]);
        }
    }

    #[test]
    fn what_comes_after_the_kernel_path_is_read_from_the_ring_too() {
        let it = Ends::joined(false);
        let early = b"before the ring";
        assert_eq!(kernel::send(it.port(0).fd, early), Ok(early.len()));
        // Nobody sleeps: no doorbell lies behind what comes first.
        it.port(1).channel.incoming().flags.waiting.store(0, Relaxed);
        assert!(it.port(0).can_wake());
        assert_eq!(it.send(b"in the ring"), Ok(11));
        assert_eq!(it.port(1).go_away(|| true), Departure::Gone);
        let mut got = vec![0; early.len()];
        (&it.sockets[1]).read_exact(&mut got).unwrap();
        assert_eq!(got, early);
        it.port(1).channel.incoming().flags.waiting.fetch_or(GIVING, Relaxed);
        assert_eq!(kernel::send(it.port(0).fd, b"in "), Ok(3));
        it.sockets[0].shutdown(Shutdown::Write).unwrap();
        (&it.sockets[1]).read_exact(&mut got[..3]).unwrap();
        while !it.port(1).has_ended() {
            std::thread::yield_now();
        }
        it.port(1).return_to_ring();
        it.assert_receives(b"the ring");
    }
}

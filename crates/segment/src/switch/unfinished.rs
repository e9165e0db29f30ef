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
use crate::sync::{Relaxed, Release, SeqCst};
use crate::vector::Cursor;
use crate::words::{ALONE, Presence};

impl Port<'_> {
    /// This end is away, and its sender gives back. If the sender has ended in the middle of that, and all has been
    /// read that it gave, this end reads the rest from the ring.
    #[cold]
    pub(super) fn take_up_unfinished(&self) {
        let is_unfinished = || self.end.is_away() && self.presence() == Presence::Giving;
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
            (at, mark @ Record::Up(_)) => {
                self.begin_counting_bells();
                Place { head: ring.behind(at, mark), consumed: 0 }
            }
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
        self.be_here(ALONE);
        Some(())
    }

    /// Bytes that the sender, which has sent its FIN, gave back while this end was away. `None` if the kernel does not
    /// tell.
    fn given_while_away(&self) -> Option<u64> {
        let counters = kernel::counters(self.fd).ok().filter(|it| kernel::has_fin(it.state))?;
        // The FIN counts as a byte.
        counters.received.checked_sub(self.given_from().checked_add(1)?)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Departure;
    use super::super::deaths::receive;
    use super::super::lies::{Ends, some_left_unread};
    use crate::kernel;
    use crate::reason::Reason;
    use crate::ring::Record;
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

    /// The first image receives through the library, which counts what it takes. Fails if `Port::given_while_away` goes
    /// by that count: what was given would be read twice.
    #[test]
    fn what_was_given_and_counted_is_not_read_again() {
        let (it, left) = some_left_unread();
        let (sender, mut reader) = (it.port(0), it.port(1));
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        reader.channel.incoming().flags.waiting.fetch_or(GIVING, Relaxed);
        assert_eq!(kernel::send(sender.fd, &left[..3000]), Ok(3000));
        it.sockets[0].shutdown(Shutdown::Write).unwrap();
        assert!(receive(&mut reader, 3000, libc::MSG_WAITALL).unwrap() == left[..3000]);
        while !reader.has_ended() {
            std::thread::yield_now();
        }
        reader.return_to_ring();
        it.assert_receives(&left[3000..]);
    }

    /// There were doorbells before the sender went down, and none since it is up again. Fails if what the mark of going
    /// down says is compared with all of them: they would be taken for data.
    #[test]
    fn doorbells_of_earlier_times_are_no_data() {
        let it = Ends::joined(true);
        let (sender, reader) = (it.port(0), it.port(1));
        assert!(sender.announce_bell());
        assert_eq!(kernel::send_bell(sender.fd), Ok(1));
        assert_eq!(it.send(b"x"), Ok(1));
        it.assert_receives(b"x");
        sender.go_down_for_now(Reason::Unsupported, false);
        reader.pass_due_marks();
        assert!(!reader.receives_fast() && it.ends[1].reading.all_bells.load(Relaxed) > 0);
        assert_eq!(kernel::send(sender.fd, b"early"), Ok(5));
        reader.channel.incoming().flags.waiting.store(0, Relaxed);
        assert!(sender.can_wake());
        assert_eq!(it.send(b"in the ring"), Ok(11));
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        sender.sender().mark(Record::Down(sender.bells_since_up()));
        reader.channel.incoming().flags.waiting.fetch_or(GIVING, Relaxed);
        it.sockets[0].shutdown(Shutdown::Write).unwrap();
        (&it.sockets[1]).read_exact(&mut [0; 5]).unwrap();
        while !reader.has_ended() {
            std::thread::yield_now();
        }
        reader.return_to_ring();
        it.assert_receives(b"in the ring");
        reader.pass_due_marks();
        assert_eq!(reader.unread(), 0);
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

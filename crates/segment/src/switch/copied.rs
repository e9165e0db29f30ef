//! An image that takes this one's place may find that no process has the channel any more: the other end has ended, or
//! its process was executing a program at the same time. Then the image reads on from a copy of what was unread, which
//! has come along with the process.
//!
//! A copy is made only once nothing more can come into the ring: the reader is away, and the sender puts on the kernel
//! path what it finds unread; or the sender has gone down behind what is unread, and cannot take that back any more; or
//! the sender has ended its direction. Behind what was copied the stream goes on in the kernel.
#![allow(unsafe_code, reason = "receives into a buffer of its own, and copies out of the ring")]

use super::give::{PIECE, copy_past_marks};
use super::{AGAIN, BROKEN, Port, micros};
use crate::clock::{nap, ticks};
use crate::end::{GIVEN_FIRST, HAD_ALL, IN_COPY, NO_PIECE, Whereabouts};
use crate::kernel;
use crate::raw::Errno;
use crate::reason::Reason;
use crate::ring::{self, Place, Record, Sender};
use crate::sync::{AtomicU64, Relaxed, Release};
use crate::vector::Cursor;
use crate::words::{ALONE, AWAY, CLOSED};

/// How long what was given back is awaited. It lies in the kernel's send buffer, and this end takes it as it comes.
const GIVEN_WITHIN_US: u64 = 2_000_000;

/// What of the unread bytes has come by the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    /// A piece of it.
    Some,
    /// Nothing, and the sender is gone: the stream has ended.
    NoMore,
    /// Nothing, and the sender is gone, as this error says.
    Failed(Errno),
    /// Nothing yet.
    Later,
}

/// What is unread in the incoming ring, from one position to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Where the reader stands.
    pub from: u64,
    /// Behind the last record.
    pub to: u64,
}

impl Port<'_> {
    /// This end was to [go away](Port::go_away), and an image takes this one's place. What the image reads if it finds
    /// the channel gone; `None` if more may come into the ring meanwhile. This end's own direction goes down in any
    /// case, because nothing that is in that ring can be given back then.
    pub fn unread_for_image(&self) -> Option<Unread> {
        self.go_down_for_now(Reason::Met, false);
        let has_ended = self.sender_has_ended();
        let from = self.place().head;
        let (to, mark) = self.end_of_records(from)?;
        if self.is_absent() {
            // A mark that the sender may have made meanwhile says what this end assumes.
            return self.end.is_away().then_some(Unread { from, to: mark.unwrap_or(to) });
        }
        let is_final = mark.map_or(has_ended, |at| self.incoming().pass_down(at));
        is_final.then_some(Unread { from, to })
    }

    /// Whether nothing more can come into the ring, should the other end be absent: its sender has gone down behind
    /// what is unread, or has ended its direction. Then a copy of the ring is all that an image needs.
    pub fn has_all_that_comes(&self) -> bool {
        let marked = || self.end_of_records(self.place().head).is_some_and(|(_, mark)| mark.is_some());
        self.reader_is_absent() && (self.sender_has_ended() || marked())
    }

    /// Where the records end that begin at `from`, and where the mark of going down lies with which they end.
    fn end_of_records(&self, from: u64) -> Option<(u64, Option<u64>)> {
        let ring = self.incoming();
        let mut at = from;
        while ring::distance(from, at) <= ring.capacity() {
            let record = ring.record(at).ok()?;
            let behind = ring.behind(at, record);
            match record {
                Record::Empty => return Some((at, None)),
                Record::Down(_) => return Some((behind, Some(at))),
                _ => at = behind,
            }
        }
        None
    }

    /// The old image's direction went down for the execution, and this image has the channel.
    pub fn go_up_again(&self) {
        kernel::undisturbed(|| self.take_mark_back());
    }

    /// The channel is a copy of the channel that the old image had, with what was `unread` there. This end reads on
    /// from it, and all else goes by the kernel. False if some of the bytes are lost.
    pub fn go_on_in_copy(&self, unread: Unread) -> bool {
        kernel::undisturbed(|| {
            let had_all = if self.other_has_had_all() { HAD_ALL } else { 0 };
            self.let_nobody_receive();
            self.end.reading.copied.store(IN_COPY | had_all, Relaxed);
            let goes_on = !self.end.is_away() || self.come_back_to_copy(unread);
            self.come_back();
            goes_on
        })
    }

    /// Comes back to a copy of the channel, for an end that was away. If it reads the kernel path before the ring, what
    /// was given back is passed once it comes to the ring.
    fn come_back_to_copy(&self, unread: Unread) -> bool {
        let reading = &self.end.reading;
        // The sender that was giving back is gone.
        self.channel.incoming().flags.waiting.store(AWAY, Relaxed);
        if self.pass_read_while_away().is_none() {
            return false;
        }
        let is_in_ring = reading.whereabouts() == Whereabouts::AwayFromRing;
        if !is_in_ring {
            reading.copied.fetch_or(GIVEN_FIRST, Relaxed);
        }
        if is_in_ring && self.pass_given(self.place()).is_none() || !self.end_copy(unread) {
            return false;
        }
        self.read_on();
        reading.whereabouts() == Whereabouts::Here
    }

    /// While the sender was giving back, an image may have read on the kernel path what comes before the ring, and some
    /// of what was given back. This passes so much of the copy. `None` if that cannot be.
    fn pass_read_while_away(&self) -> Option<()> {
        let reading = &self.end.reading;
        // A connection that is over does not tell how much was read: `read_on` looks whether something was that is not
        // counted.
        let position = self.read_position().map_or_else(|| self.kernel_position(), |it| it.0);
        let given_from = self.given_from();
        let is_in_ring = reading.whereabouts() == Whereabouts::AwayFromRing || position > given_from;
        if is_in_ring && self.left_behind() > 0 {
            let given = usize::try_from(position.checked_sub(given_from)?).ok()?;
            // It may have read more than was in the ring: behind that the stream goes on in the kernel.
            let place = copy_past_marks(&self.incoming(), self.place(), &mut Cursor::discarding(given)).ok()?.0;
            if reading.whereabouts() == Whereabouts::AwayFromKernel {
                self.begin_counting_bells();
                reading.set_whereabouts(Whereabouts::AwayFromRing);
            }
            reading.place.store(place.pack(), Relaxed);
            self.channel.incoming().head.head.store(place.head, Release);
        }
        reading.kernel.store(position.wrapping_sub(reading.all_bells.load(Relaxed)), Relaxed);
        Some(())
    }

    /// No other end has the copy: this one sends by the kernel for good.
    fn let_nobody_receive(&self) {
        let (sending, words) = (&self.end.sending, self.channel.outgoing());
        self.end.pin_sending();
        sending.fast.store(0, Relaxed);
        sending.piece.store(NO_PIECE, Relaxed);
        let tail = sending.tail.load(Relaxed);
        words.head.head.store(tail, Release);
        sending.seen_head.store(tail, Relaxed);
        words.sender.switching.store(0, Relaxed);
        words.sender.executing.store(0, Relaxed);
        let flags = &words.flags;
        [&flags.ready, &flags.in_kernel, &flags.giver].iter().for_each(|word| word.store(0, Relaxed));
        flags.waiting.store(ALONE, Relaxed);
        flags.want_down.store(1, Relaxed);
        // The slot is free once this end is closed.
        flags.closed.store(CLOSED, Release);
        let other = &self.channel.incoming().sender;
        [&other.switching, &other.executing].iter().for_each(|word| word.store(0, Relaxed));
        self.channel.incoming().flags.giver.store(0, Relaxed);
    }

    /// This end, which comes to the ring of its copy at position `head`, passes first what was given back. Returns
    /// where it reads on: at the end of the ring, with an error, if some of the bytes are lost.
    pub(super) fn pass_given_first(&self, head: u64) -> u64 {
        let goes_on = self.pass_given(Place { head, consumed: 0 }).is_some();
        self.end.reading.copied.fetch_and(!GIVEN_FIRST, Relaxed);
        if goes_on {
            return head;
        }
        self.end.set_reason(Reason::HandOver);
        self.end.keep_error(BROKEN);
        kernel::reset(self.fd);
        self.down_behind(head).map_or_else(
            || {
                self.break_off();
                head
            },
            |(at, _)| at,
        )
    }

    /// Whether what the kernel has before the ring is followed there by what is in the ring as well.
    pub(super) fn is_given_first(&self) -> bool {
        self.end.reading.copied.load(Relaxed) & GIVEN_FIRST != 0
    }

    /// A sender that has let go of the channel while this end was away has put on the kernel path all that is unread,
    /// unless it was killed before. This passes what has come of that, because all of it is in the copy, from `place`
    /// on. `None` if that cannot be.
    fn pass_given(&self, mut place: Place) -> Option<()> {
        let began = ticks();
        let mut was_given = false;
        while ring::unread(&self.incoming(), place).ok()? > 0 {
            match self.pass_given_piece(&mut place)? {
                Given::Some => was_given = true,
                Given::NoMore => break,
                Given::Failed(error) => {
                    // Behind what it gave back the sender may have sent more, which the reset has lost.
                    if was_given || !self.is_reset_by_bell() {
                        self.end.keep_error(error);
                    }
                    break;
                }
                Given::Later if ticks().wrapping_sub(began) > micros(GIVEN_WITHIN_US) => return None,
                Given::Later => nap(50),
            }
        }
        Some(())
    }

    /// Whether the other end had taken from its ring, before the copy was made, all that this end has put there, and
    /// has not closed its socket. The copy has nothing of that ring.
    fn other_has_had_all(&self) -> bool {
        let copied = self.end.reading.copied.load(Relaxed);
        if copied & IN_COPY != 0 {
            // An image before this one has made the first copy.
            return copied & HAD_ALL != 0;
        }
        !self.reader_resets() && !self.sends_fast() && self.sender().has_only_mark()
    }

    /// The kernel has reported a reset, and the sender has put nothing on the kernel path since the copy was made.
    /// Whether a doorbell alone is the cause: the sender's process was killed with nothing unread but that. See
    /// [`Port::judge_reset`].
    pub(super) fn is_reset_by_bell(&self) -> bool {
        self.end.reading.copied.load(Relaxed) & HAD_ALL != 0 && self.awaits_answer() && self.has_taken_all_but_bells()
    }

    /// Passes the next piece, from `place` on. `None` if something else has come.
    fn pass_given_piece(&self, place: &mut Place) -> Option<Given> {
        let (mut came, mut copied) = ([0u8; PIECE], [0u8; PIECE]);
        let one = |bytes: &mut [u8; PIECE], len| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        let vector = one(&mut copied, PIECE);
        // SAFETY: the array is writable for its length, and used through the cursor alone while that lives.
        let (_, len) = ring::copy_out(&self.incoming(), *place, &mut unsafe { Cursor::new(&vector, 1) }).ok()?;
        // SAFETY: the array is as long at least.
        let got = match unsafe { kernel::recv(self.fd, came.as_mut_ptr(), len, libc::MSG_DONTWAIT) } {
            Ok(0) => return Some(Given::NoMore),
            Ok(got) => got,
            Err(AGAIN) => return Some(Given::Later),
            Err(error) if error.ends_connection() => return Some(Given::Failed(error)),
            Err(_) => return None,
        };
        self.end.reading.kernel.fetch_add(got as u64, Relaxed);
        *place = ring::copy_out(&self.incoming(), *place, &mut Cursor::discarding(got)).ok()?.0;
        (came[..got] == copied[..got]).then_some(Given::Some)
    }

    /// Behind what was unread the stream goes on in the kernel: no doorbell is on its way to an end that is away.
    fn end_copy(&self, unread: Unread) -> bool {
        let bells = if self.end.reading.whereabouts() == Whereabouts::AwayFromRing { self.bells_taken() } else { 0 };
        let [tail, seen_head, behind, head] = [unread.to, unread.from, 0, unread.from].map(AtomicU64::new);
        let hole = [const { AtomicU64::new(0) }; 2];
        let ring = self.incoming();
        let sender = Sender {
            ring,
            tail: &tail,
            seen_head: &seen_head,
            hole: &hole,
            behind: &behind,
            head: &head,
            in_turn: false,
        };
        sender.mark(Record::Down(bells));
        ring::unread(&ring, Place { head: unread.from, consumed: 0 }).is_ok()
    }
}

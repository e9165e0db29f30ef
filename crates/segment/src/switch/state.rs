//! The state of a direction, as each of its ends derives it from the words in the channel and from those that it keeps
//! itself.

use super::Port;
use crate::end::Stage;
use crate::sync::{Acquire, Relaxed, Release, SeqCst};
use crate::words::{CLOSED, Flag, Presence, SHUT, WANTS_DOWN, WANTS_DOWN_ONCE_READ, is_closed};

/// What the sender of a direction does with what is sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderState {
    /// The sender puts it into the ring.
    Up,
    /// The direction is in the ring, and the next send takes it down, or finds that it cannot go on: the connection is
    /// pinned or held, the reader asks for it, is absent or has closed, or a side broke the rules.
    GoingDown,
    /// The sender puts it on the kernel path, and tries to go up before.
    Down,
    /// The sender puts it on the kernel path for good.
    DownForGood,
}

/// Where the reader of a direction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderState {
    /// The reader reads the ring.
    Ring,
    /// The reader reads the kernel path, and looks at the ring for the mark of going up.
    Kernel,
    /// The flag says that the reader is absent, and the end still stands in the ring: a thread is about to leave it, or
    /// was killed there.
    Leaving,
    /// The reader is absent: if a process reads, it reads the kernel path alone.
    Absent,
}

impl Port<'_> {
    /// The state of the direction out.
    pub fn sender_state(&self) -> SenderState {
        let stays = || {
            self.end.stage() == Stage::Joined
                && !self.end.sends_by_kernel()
                && !self.reader_has_closed()
                && !self.has_to_go_down()
                && !self.reader_is_absent()
        };
        match self.sends_fast() {
            true if stays() => SenderState::Up,
            true => SenderState::GoingDown,
            false if self.end.is_pinned() => SenderState::DownForGood,
            false => SenderState::Down,
        }
    }

    /// The state of the direction in.
    pub fn reader_state(&self) -> ReaderState {
        match (self.receives_fast(), self.is_absent()) {
            (true, false) => ReaderState::Ring,
            (false, false) => ReaderState::Kernel,
            (true, true) => ReaderState::Leaving,
            (false, true) => ReaderState::Absent,
        }
    }

    /// Whether the outgoing direction is fast.
    pub fn sends_fast(&self) -> bool {
        self.end.sending.is_fast()
    }

    /// Whether the incoming direction is fast.
    pub fn receives_fast(&self) -> bool {
        self.end.reading.is_fast()
    }

    /// The waiting flag, which this end has raised or the sender has taken.
    #[inline]
    pub(super) fn flag(&self) -> Flag {
        Flag(self.channel.incoming().flags.waiting.load(Acquire))
    }

    /// Where this end says that it is. SeqCst: one that gives back says so, then looks.
    pub(super) fn presence(&self) -> Presence {
        Flag(self.channel.incoming().flags.waiting.load(SeqCst)).presence()
    }

    /// Where the reader says that it is.
    pub(super) fn reader_presence(&self) -> Presence {
        Flag(self.channel.outgoing().flags.waiting.load(SeqCst)).presence()
    }

    /// Whether this end does not look at the incoming ring, for good (see `leave`) or while it is
    /// [away](Port::go_away).
    pub fn is_absent(&self) -> bool {
        self.flag().is_absent()
    }

    /// Whether the reader does not look at the ring, for good or for now.
    pub(super) fn reader_is_absent(&self) -> bool {
        Flag(self.channel.outgoing().flags.waiting.load(SeqCst)).is_absent()
    }

    /// Whether the reader asks for the kernel path.
    #[inline]
    pub(super) fn reader_wants_down(&self) -> bool {
        self.channel.outgoing().flags.want_down.load(Relaxed) != 0
    }

    /// Whether the direction has to go down because the reader asks for that.
    #[cold]
    pub(super) fn has_to_go_down(&self) -> bool {
        match self.channel.outgoing().flags.want_down.load(Relaxed) {
            0 => false,
            WANTS_DOWN_ONCE_READ => !matches!(self.sender().used(true), Ok(1..)),
            _ => true,
        }
    }

    /// Asks the sender for the kernel path. Release: what this end has done before is true for a sender that heeds it.
    pub(super) fn ask_for_down(&self) {
        self.channel.incoming().flags.want_down.store(WANTS_DOWN, Release);
    }

    /// As [`Port::ask_for_down`], once all that is in the ring is read: until then it can be given back.
    pub(super) fn ask_for_down_once_read(&self) {
        let want_down = &self.channel.incoming().flags.want_down;
        let _ = want_down.compare_exchange(0, WANTS_DOWN_ONCE_READ, Release, Relaxed);
    }

    /// Whether this end asks for the kernel path.
    pub(super) fn asks_for_down(&self) -> bool {
        self.channel.incoming().flags.want_down.load(Relaxed) != 0
    }

    /// Whether this end asks for the kernel path although something is in the ring.
    pub(super) fn asks_for_down_at_once(&self) -> bool {
        !matches!(self.channel.incoming().flags.want_down.load(Relaxed), 0 | WANTS_DOWN_ONCE_READ)
    }

    /// Whether the reader is [away](Port::go_away).
    pub(super) fn reader_is_away(&self) -> bool {
        !matches!(self.reader_presence(), Presence::Here | Presence::Left)
    }

    /// Whether the reader is away until an image comes. An end that was passed over a Unix socket may be away for good.
    pub(super) fn reader_is_to_return(&self) -> bool {
        self.reader_is_away() && self.channel.outgoing().flags.want_down.load(SeqCst) == 0
    }

    /// Whether the reader has neither shut down both ways nor closed its socket.
    pub(super) fn reader_is_open(&self) -> bool {
        self.channel.outgoing().flags.closed.load(Relaxed) == 0
    }

    /// Whether the reader's socket is closed: no process will read the ring any more.
    #[inline]
    pub(super) fn reader_has_closed(&self) -> bool {
        is_closed(self.channel.outgoing().flags.closed.load(Relaxed))
    }

    /// Whether the reader has closed its socket, or is about to reset the connection: its kernel's reset is no
    /// doorbell's doing. Acquire: what it did before is seen too.
    pub(super) fn reader_resets(&self) -> bool {
        let flags = &self.channel.outgoing().flags;
        flags.closed.load(Acquire) == CLOSED || flags.resets.load(Acquire) != 0
    }

    /// Whether the reader lives and has shut down both ways.
    pub(super) fn reader_has_shut(&self) -> bool {
        self.channel.outgoing().flags.closed.load(Acquire) == SHUT
    }

    /// Whether the reader and this end are such that the direction, which is down, can go up. What else that takes is
    /// looked at once no plain write is in progress.
    pub(super) fn can_go_up(&self) -> bool {
        // Acquire: the reader has passed the last mark before it says that it is ready.
        self.channel.outgoing().flags.ready.load(Acquire) != 0
            && self.reader_is_open()
            && !self.reader_wants_down()
            && self.end.stage() == Stage::Joined
    }

    /// Whether the direction out is in the ring, and nothing takes it down.
    pub fn stays_in_ring(&self) -> bool {
        self.sender_state() == SenderState::Up
    }
}

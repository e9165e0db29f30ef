//! What a transport entity knows of each frame of the arena that passes through it: where a TPDU stands on its way, and
//! which one follows it in its connection's list. Lists of frames instead of queues of each connection's own: nothing
//! is allocated, and an idle connection has none.

use crate::layer::Outbox;
use crate::service::{Cep, Fate, Indication, Time};
use underpass_link::arena::Buffer;

/// The end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// One frame.
#[derive(Debug)]
pub(super) struct Slot {
    /// The buffer, where it is here: lent below, it is not.
    pub buffer: Option<Buffer>,
    /// The next frame of the list.
    pub next: u32,
    /// The connection, and which one of those that have had this index.
    pub connection: u32,
    pub serial: u16,
    /// TPDU-NR.
    pub number: u32,
    /// When it was last sent.
    pub sent: Time,
    /// Octets of the header that was pushed here, and of an AK ahead of it, which goes once.
    pub header_len: u8,
    pub ahead: u8,
    /// The TSDU ends with it.
    pub end: bool,
    pub is: Is,
}

/// What the frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    /// Nothing here.
    Elsewhere,
    /// A DT, not sent yet.
    Unsent,
    /// A DT, sent so many times and not acknowledged.
    Retained {
        /// How often it was sent again.
        again: u8,
        /// Whether it was acknowledged out of order.
        selected: bool,
        /// T1 has run out, and it was not sent again since because of an acknowledgement: nothing is known to be under
        /// way.
        given_up: bool,
    },
    /// A TPDU that nobody waits for any more, lent below, and what becomes of it when it is back.
    Leaving(Fate),
    /// An ED, sent and not acknowledged, or waiting for the one before it.
    Expedited,
    /// A TPDU of this entity's own pool, lent below.
    Control,
    /// A DT that came before a DT that it follows.
    Early,
    /// A DT's user data, given to the user.
    Given,
    /// An ED's, which no credit was given for.
    GivenExpedited,
}

/// The frames of the arena.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
}

/// A list of frames, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    pub head: u32,
    pub tail: u32,
}

impl List {
    pub const EMPTY: List = List { head: NONE, tail: NONE };

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

impl Slot {
    /// Whether a DT that was sent again is acknowledged sooner than the second copy can be, by the shortest round trip:
    /// then the first copy has arrived (after Eifel, RFC 3522).
    #[inline]
    pub fn came_late(&self, now: Time, least: u64) -> bool {
        matches!(self.is, Is::Retained { again: 1.., selected: false, .. }) && now.since(self.sent) * 4 < least * 3
    }

    /// It is a DT that was sent, that the other end has not said that it has, and that T1 has not given up.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        matches!(self.is, Is::Retained { selected: false, given_up: false, .. })
    }

    /// It is a DT that T1 has given up, and that the other end has not said that it has.
    #[inline]
    pub fn is_given_up(&self) -> bool {
        matches!(self.is, Is::Retained { selected: false, given_up: true, .. })
    }

    /// It is a DT that was not sent again.
    #[inline]
    pub fn is_sent_once(&self) -> bool {
        matches!(self.is, Is::Retained { again: 0, .. })
    }

    /// The buffer is the user's again, without the header.
    #[inline]
    pub fn complete(&mut self, mut buffer: Buffer, fate: Fate) -> Indication {
        self.is = Is::Elsewhere;
        buffer.pull(usize::from(core::mem::take(&mut self.header_len)));
        Indication::Complete { buffer, cep: Some(Cep(self.connection)), fate }
    }
}

impl Slots {
    pub fn new(frames: u32) -> Slots {
        let slot = || Slot {
            buffer: None,
            next: NONE,
            connection: NONE,
            serial: 0,
            number: 0,
            sent: Time(0),
            header_len: 0,
            ahead: 0,
            end: false,
            is: Is::Elsewhere,
        };
        Slots { slots: (0..frames).map(|_| slot()).collect() }
    }

    #[inline]
    pub fn at(&mut self, frame: u32) -> &mut Slot {
        &mut self.slots[frame as usize]
    }

    #[inline]
    pub fn push_back(&mut self, list: &mut List, frame: u32) {
        self.at(frame).next = NONE;
        match list.tail {
            NONE => list.head = frame,
            tail => self.at(tail).next = frame,
        }
        list.tail = frame;
    }

    #[inline]
    pub fn pop_front(&mut self, list: &mut List) -> Option<u32> {
        let frame = list.head;
        if frame == NONE {
            return None;
        }
        list.head = self.at(frame).next;
        if list.head == NONE {
            list.tail = NONE;
        }
        Some(frame)
    }

    /// No acknowledgement is awaited any more for the TPDU that was sent: its buffer goes back to the user as it was
    /// lent. A buffer that is still lent to the layer below goes back when it returns from there.
    #[inline]
    pub fn let_go(&mut self, frame: u32, fate: Fate, out: &mut Outbox) {
        let slot = self.at(frame);
        let buffer = slot.buffer.take();
        slot.is = Is::Leaving(fate);
        if let Some(buffer) = buffer {
            out.up(slot.complete(buffer, fate));
        }
    }

    /// Puts `frame` behind `before`, or at the front.
    pub fn insert_after(&mut self, list: &mut List, before: u32, frame: u32) {
        if before == NONE {
            self.at(frame).next = list.head;
            list.head = frame;
        } else {
            let next = self.at(before).next;
            self.at(frame).next = next;
            self.at(before).next = frame;
        }
        if self.at(frame).next == NONE {
            list.tail = frame;
        }
    }
}

/// Makes room for another element, by an eighth of what is there: doubling would waste half of the memory of a million
/// elements.
pub(super) fn grow<T>(all: &mut Vec<T>) {
    if all.len() == all.capacity() {
        all.reserve_exact((all.len() / 8).max(64));
    }
}

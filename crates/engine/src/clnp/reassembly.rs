//! Packets that come in parts: put together in the frame of the part that came first, within limits of number and time.

use super::Blame;
use crate::service::{Peer, Time};
use crate::wire::clnp::{Discard, Segment};
use underpass_link::arena::{Arena, Buffer};

/// Most packets that are put together at a time, of all pairs of addresses, and of one pair: each keeps a frame from
/// the link.
const MOST: usize = 16;
const MOST_OF_ONE: usize = 4;
/// Most nanoseconds that the parts of a packet may take; its lifetime may be shorter.
const TIME: u64 = 1_000_000_000;
/// Octets that a part begins and, unless it is the last, ends at a multiple of.
const UNIT: usize = 8;

/// The packets of which parts have come, the oldest first.
#[derive(Debug)]
pub(super) struct Reassembly {
    arena: Arena,
    partial: Vec<Partial>,
    /// Data of a part on its way from one frame to the other.
    between: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Partial {
    pub from: Peer,
    identifier: u16,
    /// The buffer in which the packet is put together.
    pub buffer: Buffer,
    /// Octets of data of the whole.
    total: usize,
    /// Which units of it are here, and how many are not.
    here: Vec<u64>,
    missing: usize,
    until: Time,
    /// Where to report what becomes of the packet, if that is asked for and its beginning has come.
    pub blame: Option<Blame>,
}

/// A part of a packet.
pub(super) struct Part {
    pub from: Peer,
    pub segment: Segment,
    /// Octets of data of the whole.
    pub total: usize,
    pub lifetime: u8,
    pub blame: Option<Blame>,
}

/// What became of a part.
pub(super) enum Arrived {
    /// Other parts are to come. With a buffer that is not needed, and a packet that was given up for this one.
    Part { spare: Option<Buffer>, given_up: Option<Partial> },
    /// All parts are here.
    Whole { buffer: Buffer, spare: Option<Buffer> },
    /// The part is discarded, and so are the other parts of the same packet.
    Refused { buffers: [Option<Buffer>; 2], blame: Option<Blame>, discard: Discard },
}

impl Reassembly {
    pub fn new(arena: Arena) -> Reassembly {
        Reassembly { arena, partial: Vec::new(), between: Vec::new() }
    }

    /// How many packets are being put together.
    pub fn len(&self) -> usize {
        self.partial.len()
    }

    /// The data of the part that arrives next.
    pub fn hold(&mut self, data: &[u8]) {
        self.between.clear();
        self.between.extend_from_slice(data);
    }

    /// A part of a packet, in `buffer`; its data was held.
    pub fn arrived(&mut self, part: Part, buffer: Buffer, now: Time) -> Arrived {
        let Part { from, segment, total, lifetime, blame } = part;
        let (begin, end) = (usize::from(segment.offset), usize::from(segment.offset) + self.between.len());
        let fits = total <= self.arena.geometry().room();
        let is_right = begin % UNIT == 0
            && end > begin
            && if segment.more { end < total && end % UNIT == 0 } else { end == total };
        if !fits || !is_right {
            let discard = if is_right { Discard::CONGESTION } else { Discard::SYNTAX };
            return Arrived::Refused { buffers: [Some(buffer), None], blame, discard };
        }
        let known = self.partial.iter().position(|it| it.from == from && it.identifier == segment.identifier);
        let mut given_up = None;
        let (at, spare) = match known {
            Some(at) => (at, Some(buffer)),
            None => {
                given_up = self.make_room(from);
                let units = total.div_ceil(UNIT);
                self.partial.push(Partial {
                    from,
                    identifier: segment.identifier,
                    buffer,
                    total,
                    here: vec![0; units.div_ceil(64)],
                    missing: units,
                    until: now.after(TIME.min(u64::from(lifetime) * 500_000_000)),
                    blame: None,
                });
                (self.partial.len() - 1, None)
            }
        };
        let partial = &mut self.partial[at];
        let units = begin / UNIT..end.div_ceil(UNIT);
        let new = units.clone().filter(|it| partial.here[it / 64] >> (it % 64) & 1 == 0).count();
        if new == 0 {
            // The part has come twice.
            return Arrived::Part { spare, given_up };
        }
        if partial.total != total || new < units.len() {
            let Partial { buffer, blame: earlier, .. } = self.partial.remove(at);
            let (buffers, discard) = ([spare, Some(buffer)], Discard::INTERFERENCE);
            return Arrived::Refused { buffers, blame: earlier.or(blame), discard };
        }
        units.for_each(|it| partial.here[it / 64] |= 1 << (it % 64));
        partial.missing -= new;
        self.arena.room(&mut partial.buffer)[begin..end].copy_from_slice(&self.between);
        partial.blame = partial.blame.take().or(blame);
        if partial.missing > 0 {
            return Arrived::Part { spare, given_up };
        }
        let Partial { mut buffer, total, .. } = self.partial.remove(at);
        self.arena.fill(&mut buffer, total);
        Arrived::Whole { buffer, spare }
    }

    /// Gives up the packet that has waited longest; of the same pair of addresses, where that has as many as it may.
    /// Its missing parts are most likely lost, while the newest packet may still get all of its parts.
    fn make_room(&mut self, from: Peer) -> Option<Partial> {
        let own = self.partial.iter().filter(|it| it.from == from).count();
        let at = match own >= MOST_OF_ONE {
            true => self.partial.iter().position(|it| it.from == from),
            false => (self.partial.len() >= MOST).then_some(0),
        };
        at.map(|at| self.partial.remove(at))
    }

    /// When the next one is given up.
    pub fn due(&self) -> Option<Time> {
        self.partial.iter().map(|it| it.until).min()
    }

    /// Takes out packets whose parts have not come in time, one with each call.
    pub fn expire(&mut self, now: Time) -> Option<Partial> {
        let at = self.partial.iter().position(|it| it.until <= now)?;
        Some(self.partial.remove(at))
    }
}

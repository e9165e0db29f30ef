//! The adaptive bounce buffer of "Adaptive device driver for over-Gbps links": over any link, packets that lie in
//! several pieces are sent as they are, or with their first pieces copied into as few frames as hold them. Copying
//! costs the processor, pieces cost the kernel and the device; which costs more depends on the machine and on the size,
//! and is found out while packets go.

mod choice;

use crate::arena::{Arena, Buffer, refused};
use crate::error::Fault;
use crate::{Counters, Guarantees, LOOK, Link, Readiness, Returned, Watch};
use choice::Choice;
use std::collections::VecDeque;
use std::time::Instant;

/// What is copied of a packet in several pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// The first so many pieces; 0 is none.
    First(usize),
    /// All of it.
    All,
    /// Nothing is copied; frames of the packet's length that were made before are sent in its place. The difference is
    /// what gathering the packet costs. For measurements.
    Dummy,
    /// What costs least, for each size.
    Adaptive,
}

/// Most pieces of a packet.
const PIECES: usize = 64;

/// A link that copies before it sends.
#[derive(Debug)]
pub struct Bounce<L> {
    link: L,
    arena: Arena,
    how: Copying,
    choice: Choice,
    /// The beginning of a dummy.
    header: Box<[u8]>,
    /// Frames to copy into: the unused ones, and which frames these are.
    free: Vec<Buffer>,
    own: Box<[bool]>,
    frames: usize,
    refused: u64,
    /// For the link.
    out: VecDeque<Buffer>,
    /// What was copied, until it is known whether the link has refused the copy: for each packet the first frame that
    /// it was copied to, and how many pieces were.
    copies: VecDeque<(u32, usize)>,
    originals: VecDeque<Buffer>,
    /// Copied, or transmitted, and not yet asked for.
    done: Vec<Buffer>,
    returned: Vec<Buffer>,
}

impl<L: Link> Bounce<L> {
    /// A link over another one of the same arena, with frames to copy into. Dummies begin with `header`, as packets do.
    pub fn new(link: L, arena: &Arena, frames: Vec<Buffer>, how: Copying, header: &[u8]) -> Bounce<L> {
        let all = arena.geometry().frames as usize;
        let mut own = vec![false; all].into_boxed_slice();
        frames.iter().for_each(|frame| own[frame.frame() as usize] = true);
        let list = || Vec::with_capacity(all);
        let mut bounce = Bounce {
            link,
            arena: arena.clone(),
            how,
            choice: Choice::default(),
            header: header.into(),
            frames: frames.len(),
            free: frames,
            own,
            refused: 0,
            out: VecDeque::with_capacity(all),
            copies: VecDeque::with_capacity(all),
            originals: VecDeque::with_capacity(all),
            done: list(),
            returned: list(),
        };
        bounce.make_dummies();
        bounce
    }

    /// Goes on in another way. What was learned of sizes is kept. What is transmitted by now becomes a dummy again; a
    /// frame that is under way may have other contents when it is used as one.
    pub fn copy(&mut self, how: Copying) {
        self.how = how;
        self.take_back();
        if how == Copying::Dummy {
            self.make_dummies();
        }
    }

    /// Writes a packet's beginning into all unused frames.
    fn make_dummies(&mut self) {
        for frame in &mut self.free {
            self.arena.restore(frame, 0, self.header.len() as u32);
            self.arena.octets_mut(frame).copy_from_slice(&self.header);
        }
    }

    /// The link below.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The link below, to be told something.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Ends it, and gives back the link and the frames that it has.
    pub fn take_apart(self) -> (L, Vec<Buffer>) {
        let Bounce { link, free, out, originals, done, .. } = self;
        (link, free.into_iter().chain(out).chain(originals).chain(done).collect())
    }

    /// Moves the first packet, of so many pieces, to the link's queue, the first `copied` of them in frames of our own;
    /// `false` where there are not enough of these.
    fn gather(&mut self, packets: &mut VecDeque<Buffer>, pieces: usize, copied: usize) -> bool {
        let whole = self.arena.geometry().frame_size as usize;
        let octets: usize = packets.iter().take(copied).map(Buffer::len).sum();
        let frames = self.frames_for(packets, copied);
        if frames > self.free.len() {
            return false;
        }
        let first = self.out.len();
        for left in (0..frames).rev() {
            let Some(mut frame) = self.free.pop() else { unreachable!("they were counted") };
            let len = if left == 0 { octets - (frames - 1) * whole } else { whole };
            self.arena.restore(&mut frame, 0, len as u32);
            frame.go_on(left > 0 || copied < pieces);
            self.out.push_back(frame);
        }
        let mut at = 0;
        for buffer in packets.drain(..copied) {
            let mut octets = self.arena.octets(&buffer);
            while self.how != Copying::Dummy && !octets.is_empty() {
                let room = &mut self.arena.octets_mut(&mut self.out[first + at / whole])[at % whole..];
                let len = room.len().min(octets.len());
                room[..len].copy_from_slice(&octets[..len]);
                (at, octets) = (at + len, &octets[len..]);
            }
            self.originals.push_back(buffer);
        }
        if let (true, Some(frame)) = (copied > 0, self.out.get(first)) {
            self.copies.push_back((frame.frame(), copied));
        } else {
            // Without octets nothing was copied.
            let before = self.originals.len() - copied;
            self.done.extend(self.originals.drain(before..));
        }
        self.out.extend(packets.drain(..pieces - copied));
        true
    }

    /// The first packet, of so many pieces, is not sent: it needs more frames of our own than there are.
    fn refuse(&mut self, packets: &mut VecDeque<Buffer>, pieces: usize) {
        self.refused += 1;
        self.done.extend(packets.drain(..pieces).map(refused));
    }

    /// Frames of our own that so many pieces of the first packet are copied into.
    fn frames_for(&self, packets: &VecDeque<Buffer>, pieces: usize) -> usize {
        let octets: usize = packets.iter().take(pieces).map(Buffer::len).sum();
        octets.div_ceil(self.arena.geometry().frame_size as usize)
    }

    /// How many pieces at least must be copied together, so that the link takes the packet.
    fn needed(&self, packets: &VecDeque<Buffer>, pieces: usize) -> usize {
        let (whole, most) = (self.arena.geometry().frame_size as usize, self.link.pieces());
        if pieces <= most {
            return 0;
        }
        let mut octets = 0;
        for (number, piece) in packets.iter().take(pieces).enumerate() {
            octets += piece.len();
            if octets.div_ceil(whole) + (pieces - number - 1) <= most {
                return number + 1;
            }
        }
        pieces
    }

    /// Takes back what was transmitted. A link that refuses a packet says so at the first look behind that, so all
    /// other packets that it has taken are on their way, and what was copied for them is not needed any more. Of a link
    /// that holds packets back, which may have taken some before those that wait, each copy is awaited.
    fn take_back(&mut self) {
        let Bounce { link, own, free, out, copies, originals, done, returned, .. } = self;
        link.complete(returned);
        let is_own = |buffer: &&Buffer| own[buffer.frame() as usize];
        let (waiting, holds_back) = (out.iter().find(is_own).map(Buffer::frame), link.holds_back());
        let (mut at, mut begin) = (0, 0);
        while let Some(&(frame, pieces)) = copies.get(at).filter(|it| holds_back || Some(it.0) != waiting) {
            let copy = returned.iter().find(|it| it.frame() == frame);
            if holds_back && copy.is_none() {
                (at, begin) = (at + 1, begin + pieces);
                continue;
            }
            let is_refused = copy.is_some_and(Buffer::is_refused);
            copies.remove(at);
            done.extend(originals.drain(begin..begin + pieces).map(|it| if is_refused { refused(it) } else { it }));
        }
        for mut buffer in returned.drain(..) {
            if is_own(&&buffer) {
                buffer.refuse(false);
                free.push(buffer);
            } else {
                done.push(buffer);
            }
        }
    }
}

impl<L: Link> Link for Bounce<L> {
    fn guarantees(&self) -> Guarantees {
        self.link.guarantees()
    }

    fn mtu(&self) -> usize {
        self.link.mtu()
    }

    fn pieces(&self) -> usize {
        PIECES
    }

    fn whole(&self) -> usize {
        self.link.whole()
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        if !self.out.is_empty() {
            self.link.transmit(&mut self.out);
        }
        // A batch of packets of one size shows what that size costs; a batch of several sizes shows nothing.
        let (mut class, mut mixed, mut count, mut begin) = (None, false, 0u32, None);
        while let Some(last) = packets.iter().position(|it| !it.goes_on()) {
            let pieces = last + 1;
            let octets = packets.iter().take(pieces).map(Buffer::len).sum();
            let wanted = match self.how {
                Copying::First(pieces) => pieces,
                Copying::All | Copying::Dummy => pieces,
                Copying::Adaptive if pieces == 1 => 0,
                Copying::Adaptive => {
                    let of_packet = choice::class(octets);
                    mixed |= class.replace(of_packet).is_some_and(|class| class != of_packet);
                    if count == 0 && self.choice.tries(of_packet) {
                        begin = Some(Instant::now());
                    }
                    self.choice.pieces(of_packet)
                }
            };
            let needed = self.needed(packets, pieces);
            let copied = if octets == 0 { 0 } else { wanted.max(needed).min(pieces) };
            if !self.gather(packets, pieces, copied) {
                self.take_back();
                if !self.gather(packets, pieces, copied) {
                    if self.frames_for(packets, needed) > self.frames {
                        self.refuse(packets, pieces);
                        continue;
                    }
                    // Too few frames are free to copy as many pieces as would be best: only as many as the link needs
                    // are copied.
                    if !self.gather(packets, pieces, needed) {
                        break;
                    }
                }
            }
            count += 1;
        }
        self.link.transmit(&mut self.out);
        if let (Some(class), false) = (class, mixed) {
            self.choice.note(class, count, begin.map(|begin| begin.elapsed()));
        }
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        if !self.out.is_empty() {
            self.link.transmit(&mut self.out);
        }
        self.take_back();
        done.append(&mut self.done);
    }

    fn holds_back(&self) -> bool {
        !self.out.is_empty() || self.link.holds_back()
    }

    fn fill(&mut self, buffer: Buffer) {
        self.link.fill(buffer);
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        self.link.receive(packets, most)
    }

    fn watch(&mut self) -> Watch {
        self.link.watch()
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        // What the link has not taken is tried again.
        self.link.readiness().map(|it| it.look_after((!self.out.is_empty()).then_some(LOOK)))
    }

    fn counters(&self) -> Counters {
        let below = self.link.counters();
        Counters { refused: below.refused + self.refused, ..below }
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.link.check()
    }

    fn close(self: Box<Self>) -> Returned {
        let Bounce { link, free, out, originals, done, own, .. } = *self;
        let mut returned = Box::new(link).close();
        returned.own.extend(free);
        let lent = std::mem::take(&mut returned.lent);
        for buffer in lent.into_iter().chain(out).chain(originals).chain(done) {
            if own[buffer.frame() as usize] { returned.own.push(buffer) } else { returned.lent.push(buffer) }
        }
        returned
    }
}

//! How messages go, and one end of the cable: its link, its memory, and messages written into that.

use std::collections::VecDeque;

use anyhow::{Result, bail};

use super::message::{self, HEADER, WORD};
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::bounce::{Bounce, Copying};
use underpass_link::completion::Completion;
use underpass_link::filter::Filter;
use underpass_link::packet::Packet;
use underpass_link::rig::INTERFACE;
use underpass_link::xdp::{Config, Xdp};

/// Octets of user data in a piece, as the clusters of the paper have them, and of a message that lies in one piece.
pub const CLUSTER: usize = 2048;
/// Messages that are handed over together, and octets, which are not to leave the processor's cache meanwhile.
pub const BATCH: usize = 64;
pub const BATCH_OCTETS: usize = 128 << 10;
/// Frames to receive into, of short and of long messages; to copy into; and all.
const ROOM_SHORT: usize = 8192;
const ROOM_LONG: usize = 2048;
const BOUNCE: usize = 1024;
const GEOMETRY: Geometry = Geometry { frames: 16_384, frame_size: 4096, headroom: 64 };

/// How messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Kernel UDP: so many messages with a system call.
    Udp { batch: usize, gso: bool },
    /// A packet socket.
    Packet,
    /// AF_XDP.
    Xdp(Completion),
}

impl Way {
    /// AF_XDP, adaptive in all.
    pub const ADAPTIVE: Way = Way::Xdp(ADAPTIVE);
    /// UDP, a call for each message.
    pub const CALL: Way = Way::Udp { batch: 1, gso: false };
    /// UDP, many with a call.
    pub const SENDMMSG: Way = Way::Udp { batch: BATCH, gso: false };
    /// UDP, many as one.
    pub const GSO: Way = Way::Udp { batch: BATCH, gso: true };
}

/// As the driver has it where nothing is said.
pub const ADAPTIVE: Completion = Completion::Adaptive { low: GEOMETRY.frames / 8, high: GEOMETRY.frames / 4 };

/// The link of one end, its memory, and frames that nobody uses.
pub struct End<L: ?Sized = dyn Link> {
    pub arena: Arena,
    pub link: Box<L>,
    pub free: Vec<Buffer>,
}

impl End {
    pub fn open(way: Way, size: usize) -> Result<End> {
        match way {
            Way::Udp { .. } => bail!("UDP is the kernel's"),
            Way::Packet => {
                let (arena, free) = Arena::new(GEOMETRY);
                let link = Packet::open(INTERFACE, &arena, Filter::Llc, Config::default().guarantees)?;
                Ok(End { arena, link: Box::new(link), free })
            }
            // What lies in one piece is not copied, whatever is asked for.
            Way::Xdp(completion) if size <= CLUSTER => {
                let End { arena, link, free } = End::xdp(completion)?;
                Ok(End { arena, link, free })
            }
            Way::Xdp(completion) => {
                let End { arena, link, free } = End::bounce(completion)?;
                Ok(End { arena, link, free })
            }
        }
    }
}

impl End<Xdp> {
    pub fn xdp(completion: Completion) -> Result<End<Xdp>> {
        let (arena, free) = Arena::new(GEOMETRY);
        let config = Config { completion: Some(completion), ..Config::default() };
        let link = Box::new(Xdp::open(INTERFACE, &arena, &config)?);
        Ok(End { arena, link, free })
    }
}

impl End<Bounce<Xdp>> {
    pub fn bounce(completion: Completion) -> Result<End<Bounce<Xdp>>> {
        let End { arena, link, mut free } = End::xdp(completion)?;
        let own = free.split_off(free.len() - BOUNCE);
        let link = Box::new(Bounce::new(*link, &arena, own, Copying::Adaptive, &HEADER));
        Ok(End { arena, link, free })
    }
}

impl<L: Link + ?Sized> End<L> {
    /// Writes a message into as many buffers as it takes: those for its data, behind one for the header if there are several.
    pub fn write(&mut self, number: u64, size: usize, out: &mut VecDeque<Buffer>) {
        let mut header = HEADER.len();
        for begin in (0..size).step_by(CLUSTER) {
            let Some(mut buffer) = self.free.pop() else { unreachable!("they were counted") };
            if header > 0 && size > CLUSTER {
                self.arena.fill(&mut buffer, header);
                self.arena.octets_mut(&mut buffer).copy_from_slice(&HEADER);
                buffer.go_on(true);
                out.push_back(buffer);
                header = 0;
                let Some(next) = self.free.pop() else { unreachable!("they were counted") };
                buffer = next;
            }
            let len = CLUSTER.min(size - begin);
            self.arena.fill(&mut buffer, header + len);
            let octets = self.arena.octets_mut(&mut buffer);
            octets[..header].copy_from_slice(&HEADER[..header]);
            message::write(&mut octets[header..], begin / WORD, number);
            header = 0;
            buffer.go_on(begin + len < size);
            out.push_back(buffer);
        }
    }
}

/// Frames to receive into.
pub fn room(size: usize) -> usize {
    if size <= CLUSTER { ROOM_SHORT } else { ROOM_LONG }
}

/// Buffers of a message.
pub fn pieces(size: usize) -> usize {
    if size <= CLUSTER { 1 } else { 1 + size.div_ceil(CLUSTER) }
}

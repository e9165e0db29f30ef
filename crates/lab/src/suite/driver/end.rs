//! How messages go, and one end of the cable: its link, its memory, and messages written into that.

use std::collections::VecDeque;
use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::message::{self, HEADER, WORD};
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::bounce::{Bounce, Copying};
use underpass_link::completion::Completion;
use underpass_link::filter::Filter;
use underpass_link::ip::{Header, Template};
use underpass_link::packet::Packet;
use underpass_link::rig::INTERFACE;
use underpass_link::udp::{self, Udp};
use underpass_link::xdp::{Config, Xdp};

/// Octets of user data in a piece, as the clusters of the paper have them, and of a message that lies in one piece.
pub const CLUSTER: usize = 2048;
/// Messages that are handed over together, and octets, which are not to leave the processor's cache meanwhile.
pub const BATCH: usize = 64;
pub const BATCH_OCTETS: usize = 128 << 10;
/// Frames to receive into, of short and of long messages. The kernel writes to one after the other, however few hold
/// something: no more of them than the processor's cache holds.
const ROOM_SHORT: usize = 2048;
const ROOM_LONG: usize = 512;
/// Frames to copy into; and all.
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
    /// The link over UDP sockets, with segments both ways.
    Sockets,
}

/// Which end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The end that sends.
    Sender,
    /// The end that receives.
    Receiver,
}

impl Place {
    /// The addresses of the link over UDP sockets, at this end and at the other; they are the rig's.
    fn addresses(self) -> [SocketAddr; 2] {
        let addresses = [1, 2].map(|number| SocketAddr::from(([10, 9, 0, number], 7000)));
        match self {
            Place::Sender => addresses,
            Place::Receiver => [addresses[1], addresses[0]],
        }
    }
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

/// How a message lies in buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In frames that are as full as they can be, with the header in front of the first octets. That is the shortest
    /// chain, and what a program would write that is compared with UDP, where a message is one piece.
    Frames,
    /// As in the paper: in clusters, behind a header in a buffer by itself; with the header in one if it fits a
    /// cluster.
    Clusters,
}

impl Layout {
    /// Octets of the message that lie behind so many of the header in a buffer.
    fn piece(self, header: usize) -> usize {
        match self {
            Layout::Frames => (GEOMETRY.room() - header) / WORD * WORD,
            Layout::Clusters => CLUSTER,
        }
    }

    /// Whether the header of such a message lies in a buffer by itself.
    fn parts_header(self, size: usize) -> bool {
        self == Layout::Clusters && size > CLUSTER
    }

    /// Buffers of a message.
    pub fn pieces(self, size: usize) -> usize {
        if self.parts_header(size) {
            return 1 + size.div_ceil(self.piece(0));
        }
        1 + size.saturating_sub(self.piece(HEADER.len())).div_ceil(self.piece(0))
    }
}

/// The link of one end, its memory, and frames that nobody uses.
pub struct End<L: ?Sized = dyn Link> {
    pub arena: Arena,
    pub link: Box<L>,
    pub free: Vec<Buffer>,
    pub layout: Layout,
    /// What goes in front of messages over a link whose packets begin with the headers of IP.
    pub front: Option<Template>,
}

impl End {
    pub fn open(way: Way, place: Place) -> Result<End> {
        match way {
            Way::Udp { .. } => bail!("UDP is the kernel's"),
            Way::Packet => {
                let (arena, free) = Arena::new(GEOMETRY);
                let link = Packet::open(INTERFACE, &arena, Filter::Llc, Config::default().guarantees)?;
                Ok(End { arena, link: Box::new(link), free, layout: Layout::Clusters, front: None })
            }
            Way::Sockets => {
                let ([source, destination], (arena, free)) = (place.addresses(), Arena::new(GEOMETRY));
                let link = Udp::open(source, &arena, &udp::Config::default())?;
                let front = Template::new(Header { source, destination, class: 0 });
                Ok(End { arena, link: Box::new(link), free, layout: Layout::Frames, front })
            }
            // No message has more pieces than the kernel takes, and none has to be copied into fewer.
            Way::Xdp(completion) => {
                let End { arena, link, free, .. } = End::xdp(completion)?;
                Ok(End { arena, link, free, layout: Layout::Frames, front: None })
            }
        }
    }
}

impl End<Xdp> {
    pub fn xdp(completion: Completion) -> Result<End<Xdp>> {
        let (arena, free) = Arena::new(GEOMETRY);
        let config = Config { completion: Some(completion), ..Config::default() };
        let link = Box::new(Xdp::open(INTERFACE, &arena, &config)?);
        Ok(End { arena, link, free, layout: Layout::Clusters, front: None })
    }
}

impl End<Bounce<Xdp>> {
    pub fn bounce(completion: Completion) -> Result<End<Bounce<Xdp>>> {
        let End { arena, link, mut free, layout, front } = End::xdp(completion)?;
        let own = free.split_off(free.len() - BOUNCE);
        let link = Box::new(Bounce::new(*link, &arena, own, Copying::Adaptive, &HEADER));
        Ok(End { arena, link, free, layout, front })
    }
}

impl<L: Link + ?Sized> End<L> {
    /// Writes a message into as many buffers as it takes.
    pub fn write(&mut self, number: u64, size: usize, out: &mut VecDeque<Buffer>) {
        let mut header = HEADER.len();
        if self.layout.parts_header(size) {
            self.put(&HEADER, 0, true, out);
            header = 0;
        }
        let mut begin = 0;
        while begin < size {
            let len = self.layout.piece(header).min(size - begin);
            let octets = self.put(&HEADER[..header], len, begin + len < size, out);
            message::write(octets, begin / WORD, number);
            (begin, header) = (begin + len, 0);
        }
        if let (Some(front), Some(buffer)) = (&self.front, out.back_mut()) {
            let data = buffer.len();
            front.write(self.arena.push(buffer, front.size()), data);
        }
    }

    /// Leaves out what goes in front of a message that has come.
    pub fn strip(&self, message: &mut Buffer) {
        message.pull(self.front.map_or(0, |front| front.size()));
    }

    /// Puts a header into the next buffer, and room for so many octets behind it, which is to be written.
    fn put<'a>(&'a mut self, header: &[u8], len: usize, more: bool, out: &'a mut VecDeque<Buffer>) -> &'a mut [u8] {
        let Some(mut buffer) = self.free.pop() else { unreachable!("they were counted") };
        self.arena.fill(&mut buffer, header.len() + len);
        buffer.go_on(more);
        out.push_back(buffer);
        let Some(buffer) = out.back_mut() else { unreachable!("it was put there") };
        let (front, room) = self.arena.octets_mut(buffer).split_at_mut(header.len());
        front.copy_from_slice(header);
        room
    }
}

/// Frames to receive into.
pub fn room(size: usize) -> usize {
    if size <= CLUSTER { ROOM_SHORT } else { ROOM_LONG }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underpass_link::loopback::Loopback;

    #[test]
    fn messages_lie_in_as_many_pieces_as_is_said() {
        for (layout, size, pieces) in [
            (Layout::Frames, 32, 1),
            (Layout::Frames, 4008, 1),
            (Layout::Frames, 4016, 2),
            (Layout::Frames, 4008 + 4032, 2),
            (Layout::Frames, 60 << 10, 16),
            (Layout::Clusters, 2048, 1),
            (Layout::Clusters, 4096, 3),
            (Layout::Clusters, 60 << 10, 31),
        ] {
            let (arena, free) = Arena::new(Geometry { frames: 32, ..GEOMETRY });
            let [link, _] = Loopback::passing(&arena, 1 << 16);
            let (mut end, mut out) = (End { arena, link: Box::new(link), free, layout, front: None }, VecDeque::new());
            end.write(7, size, &mut out);
            assert_eq!((out.len(), layout.pieces(size)), (pieces, pieces), "{layout:?}, {size}");
            assert_eq!(message::check(out.iter().map(|it| end.arena.octets(it)), size), Ok(7), "{layout:?}, {size}");
            assert!(out.iter().enumerate().all(|(at, it)| it.goes_on() == (at + 1 < pieces)));
        }
    }
}

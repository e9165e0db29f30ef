//! What a run of the receive path carries, how, and what it comes to.

use anyhow::Result;

use super::sums::Way;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::filter::Filter;
use underpass_link::packet::Packet;
use underpass_link::rig::INTERFACE;
use underpass_link::xdp::{Config, Xdp};
use underpass_link::{Guarantees, Link};

/// Packets that are handed over and received together.
pub(super) const BURST: usize = 64;
/// The batch of the GPU, as in the paper.
pub const BATCH: usize = 1024;
/// What may be under way, in packets and in octets: what a receiver's queue holds.
const WINDOW: (usize, usize) = (1024, 2 << 20);

/// The kind of socket by which packets are sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// A packet socket: the paper's.
    Packet,
    /// AF_XDP, in whose frames a long packet lies in pieces.
    Xdp,
}

impl Socket {
    /// Both.
    pub const ALL: [Socket; 2] = [Socket::Packet, Socket::Xdp];

    /// As packet(7) and the kernel have it.
    pub const fn name(self) -> &'static str {
        match self {
            Socket::Packet => "AF_PACKET",
            Socket::Xdp => "AF_XDP",
        }
    }

    /// Frames that wait to be received into: for the kernel's copy into a burst, which are in the cache from the last,
    /// or for all that may be under way.
    pub(super) fn room(self) -> usize {
        if self == Socket::Packet { BURST } else { 512 }
    }

    /// Packets that may be under way: what the kernel holds for a packet socket, or half of the room.
    pub(super) fn window(self, size: usize, pieces: usize) -> u64 {
        let window = if self == Socket::Packet { WINDOW.0.min(WINDOW.1 / size) } else { self.room() / 2 / pieces };
        window as u64
    }

    pub(super) fn geometry(self) -> Geometry {
        let frame_size = if self == Socket::Packet { 16 << 10 } else { 4 << 10 };
        Geometry { frames: 8192, frame_size, headroom: 64 }
    }

    pub(super) fn open(self, arena: &Arena) -> Result<Box<dyn Link>> {
        let guarantees = Guarantees { delivery: false, integrity: false };
        Ok(match self {
            Socket::Packet => Box::new(Packet::open(INTERFACE, arena, Filter::Llc, guarantees)?),
            Socket::Xdp => Box::new(Xdp::open(INTERFACE, arena, &Config::default())?),
        })
    }
}

/// What is to be received, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub socket: Socket,
    pub way: Way,
    /// Octets of which the sum is wanted.
    pub size: usize,
    /// How long packets are sent, and how many at least.
    pub seconds: f64,
    pub packets: u64,
    /// Octets that are sent in a second; without a rate, as many as go.
    pub rate: Option<f64>,
    /// Whether the time of each stage is measured, which takes time itself.
    pub stages: bool,
    /// Whether something else computes on the receiver's processor.
    pub beside: bool,
}

/// The work for a packet, as the paper's table 5 divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Out of the socket, with the kernel's copy where there is one.
    Receive,
    /// The sum; or with a GPU the packet's place in a batch, and a copy there if it is staged.
    Sum,
    /// The GPU's driver, and its answers.
    Gpu,
    /// All else: addresses, buffers, sleeping.
    Rest,
}

impl Stage {
    /// How many there are.
    pub(super) const COUNT: usize = 4;

    /// The stages of a way.
    pub fn of(way: Way) -> &'static [Stage] {
        if way.is_gpu() {
            &[Stage::Receive, Stage::Sum, Stage::Gpu, Stage::Rest]
        } else {
            &[Stage::Receive, Stage::Sum, Stage::Rest]
        }
    }

    /// What it is, over this socket in this way.
    pub fn name(self, socket: Socket, way: Way) -> &'static str {
        match (self, socket, way) {
            (Stage::Receive, Socket::Packet, _) => "receive, with the kernel's copy",
            (Stage::Receive, Socket::Xdp, _) => "receive",
            (Stage::Sum, _, Way::Skip) => "no checksum",
            (Stage::Sum, _, Way::Scalar | Way::Simd) => "checksum",
            (Stage::Sum, _, Way::GpuStaged) => "packet copy",
            (Stage::Sum, _, Way::GpuUmem) => "descriptors",
            (Stage::Gpu, ..) => "GPU calls",
            (Stage::Rest, ..) => "rest",
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Octets that are summed in a second, from the first packet to the last verdict.
    pub octets_per_second: f64,
    /// How much of the time the receiver's processor is idle, in per cent, as the kernel counts.
    pub idle: f64,
    /// Nanoseconds of the receiver's processor for a packet, by stage.
    pub stages: [f64; Stage::COUNT],
}

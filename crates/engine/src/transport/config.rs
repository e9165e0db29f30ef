//! What a transport entity is configured with.

use crate::wire::tpdu::Class;
use underpass_link::Guarantees;

/// What an entity offers and asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The class that is proposed, and chosen where the other end proposes a higher one; a lower one is refused. See
    /// [`Config::over`].
    pub class: Class,
    /// Numbers of 31 bits and credits of 16.
    pub extended: bool,
    /// Whether TPDUs of class 4 carry a checksum. Without one, the network has to find what is corrupt.
    pub checksum: bool,
    /// Longest TPDU that the network carries, in octets; a multiple of 128 that fits into a frame.
    pub tpdu_size: u32,
    /// DT TPDUs that a connection takes at a time: buffers that its user may keep and those on their way.
    pub credit: u16,
    /// Buffers that the link was given to receive into. All connections together promise no more than seven eighths of
    /// them: the rest is for AKs and other TPDUs. Where several entities share the link, this is the entity's part of
    /// the buffers.
    pub receive: u32,
    /// DTs of a connection that may wait to be sent, and as many EDs; further ones are refused.
    pub queue: u32,
    /// Selective acknowledgement, if the other end has it too.
    pub selective: bool,
    /// Request of acknowledgement, if the other end has it too.
    pub roa: bool,
    /// A window of the sender's own besides the credit, by delay, loss and marks: one for all connections to a peer.
    pub congestion_control: bool,
    /// Whether DTs say that routers may mark them, where the other end tells of marks (ECN, RFC 3168). It is an
    /// extension of ours, for a network that carries marks, as [`crate::datagram`] does, and class 4 with congestion
    /// control.
    pub marks: bool,
    /// Most connections that peers have asked for and that are not open yet, or were released before they were open;
    /// more are refused.
    /// One peer has no more than half of them.
    pub pending: u32,
    /// A random number that makes references hard to guess for an attacker who does not see them; with 0 they count
    /// from 1.
    pub secret: u64,
    /// Timers.
    pub times: Times,
}

/// Timers, in nanoseconds (X.224 §12.2.1.1; names as there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// T1 until a round trip was measured; longer by as much as the other end's AL is longer than this end's.
    pub t1: u64,
    /// T1 at least.
    pub t1_least: u64,
    /// N: how often a CR, CC or DR is sent before the connection is given up.
    pub n: u8,
    /// AL: how long an AK may be put off. The other end is told, in ms.
    pub al: u64,
    /// W: the longest time for which this end sends nothing; a quarter of the other end's I if that is shorter, and 50
    /// ms at least.
    pub w: u64,
    /// I: how long the other end may be silent, and how long a DT may be sent again and again. It is told, in ms.
    pub i: u64,
    /// How long nothing may be acknowledged before the user is told, which happens when T1 runs out next.
    pub stall: u64,
    /// L: how long a reference is not used again.
    pub l: u64,
    /// What a round trip may take beyond the shortest before the congestion window shrinks.
    pub slack: u64,
}

impl Default for Times {
    /// For a local network: T1 5 ms and 0.5 ms at least, N 8, AL 0.2 ms, W 1 s, I 16 s, L 2 s; a stall
    /// is told after 10 ms.
    fn default() -> Times {
        const MS: u64 = 1_000_000;
        Times {
            t1: 5 * MS,
            t1_least: MS / 2,
            n: 8,
            al: MS / 5,
            w: 1000 * MS,
            i: 16_000 * MS,
            stall: 10 * MS,
            l: 2000 * MS,
            slack: MS / 2,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            class: Class::Four,
            extended: true,
            checksum: true,
            tpdu_size: 1408,
            credit: 64,
            receive: u32::MAX,
            queue: 1024,
            selective: true,
            roa: true,
            congestion_control: true,
            marks: false,
            pending: 1024,
            secret: 0,
            times: Times::default(),
        }
    }
}

impl Config {
    /// For a network that promises this (X.224 §5.4.2): class 2 where it delivers everything, class 4 where it may
    /// lose, with a checksum where it does not find what is corrupt. Its packets are of `most` octets at most, in one
    /// buffer: over a link that takes packets in pieces not [`underpass_link::Link::mtu`] but
    /// [`underpass_link::Link::whole`], less the headers below.
    ///
    /// # Panics
    /// If it carries less than 128 octets, which is the shortest longest TPDU.
    pub fn over(guarantees: Guarantees, most: usize) -> Config {
        let Guarantees { delivery, integrity } = guarantees;
        // What is corrupt and does not arrive is lost; what is corrupt and arrives is not what was sent.
        let class = if delivery && integrity { Class::Two } else { Class::Four };
        Config { class, checksum: !integrity, tpdu_size: tpdu_size(most), ..Config::default() }
    }
}

/// The longest TPDU, as is negotiated, that a network of packets of so many octets carries.
pub(super) fn tpdu_size(most: usize) -> u32 {
    assert!(most >= 128, "a network of {most} octets carries no TPDU of any negotiated size");
    (most / 128 * 128).min(65_408) as u32
}

//! From packets to messages of the kernel's: what goes to one peer in packets of one size goes as segments of one
//! message.

use super::calls::{Given, Outgoing};
use super::control::Control;
use super::paths::Paths;
use super::socket::Socket;
use crate::arena::{Arena, Buffer};
use crate::ip::{self, Header};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

/// Messages of a call, and segments of a message (`UDP_MAX_SEGMENTS` of linux/udp.h before Linux 6.9).
const BATCH: usize = 16;
const SEGMENTS: usize = 64;

/// Octets of a segment that is copied, so that those of a message lie one behind the other: the kernel's way from one
/// piece of memory to the next costs more than the copy.
const SHORT: usize = 512;

/// Where packets lie, and where they go.
#[derive(Debug)]
pub struct Ways<'a> {
    /// Where the packets lie.
    pub arena: &'a Arena,
    /// Where they leave.
    pub socket: &'a Socket,
    /// Where they go.
    pub paths: &'a mut Paths,
}

/// What has become of the packets at the front.
#[derive(Debug)]
pub enum Outcome {
    /// The kernel has so many.
    Sent(usize),
    /// The first so many buffers are one packet, which no link takes.
    Refused(usize),
    /// There is no way to the peer of the first so many packets.
    Lost {
        /// How many.
        packets: usize,
        /// The peer that they go to.
        peer: SocketAddr,
        /// What the kernel says.
        error: io::Error,
    },
    /// The kernel did not take the first so many, which go to this peer in packets of so many octets at most.
    Failed {
        /// How many.
        packets: usize,
        /// The peer that they go to.
        peer: SocketAddr,
        /// Octets of the first.
        octets: usize,
        /// What the kernel says.
        error: io::Error,
    },
    /// There is no whole packet.
    Nothing,
}

/// Packets of a message.
#[derive(Clone, Copy, Debug)]
struct Group {
    packets: usize,
    peer: SocketAddr,
    octets: usize,
}

/// The sending half.
#[derive(Debug)]
pub struct Sending {
    calls: Outgoing,
    groups: Vec<Group>,
    /// Room for short segments, one behind the other.
    stage: Vec<u8>,
    /// Whether packets may go as segments of a message.
    pub joins: bool,
    /// System calls.
    pub calls_made: u64,
}

impl Sending {
    /// Sending with segments, or without.
    pub fn new(joins: bool) -> Sending {
        let groups = Vec::with_capacity(BATCH);
        // Pages that are not written to take no memory.
        let stage = vec![0; if joins { BATCH * SEGMENTS * SHORT } else { 0 }];
        Sending { calls: Outgoing::new(BATCH, BATCH * SEGMENTS), groups, stage, joins, calls_made: 0 }
    }

    /// Sends packets from the front of `packets`, and leaves the buffers there. If `alone`, each packet is a message.
    /// With `departure`, the packets leave at that time of the monotonic clock.
    pub fn send<'a>(
        &mut self,
        ways: &mut Ways<'a>,
        packets: &'a VecDeque<Buffer>,
        departure: Option<u64>,
        alone: bool,
    ) -> Outcome {
        let Sending { calls, groups, joins, stage, calls_made } = self;
        let mut stage = &mut stage[..];
        groups.clear();
        let (mut messages, mut begun) = (calls.lay(), 0);
        while groups.len() < BATCH && begun < packets.len() {
            let (octets, header, path) = match admit(ways, packets, begun) {
                Ok(admitted) => admitted,
                Err(outcome) if begun == 0 => return outcome,
                Err(_) => break,
            };
            let headers = header.size();
            messages.add(ways.paths.get(path).name, beside(header, departure));
            let (mut count, mut data) = (1, octets.len() - headers);
            while *joins && !alone && count < SEGMENTS {
                let next = packets.get(begun + count).filter(|it| !it.goes_on()).map(|it| ways.arena.octets(it));
                let Some(next) = next.filter(|it| headers < it.len() && it.len() <= octets.len()) else { break };
                if !ip::follows(octets, next) || headers + data + next.len() - headers > ip::LONGEST {
                    break;
                }
                (count, data) = (count + 1, data + next.len() - headers);
                // A shorter segment is the last.
                if next.len() < octets.len() {
                    break;
                }
            }
            let segments = packets.range(begun..begun + count).map(|it| &ways.arena.octets(it)[headers..]);
            if count > 1 && octets.len() - headers < SHORT {
                let (mine, rest) = std::mem::take(&mut stage).split_at_mut(data);
                stage = rest;
                messages.read_from(join(mine, segments));
            } else {
                segments.for_each(|it| messages.read_from(it));
            }
            if let (true, Some(control)) = (count > 1, messages.control()) {
                control.put(libc::SOL_UDP, libc::UDP_SEGMENT, ((octets.len() - headers) as u16).to_ne_bytes());
            }
            groups.push(Group { packets: count, peer: header.destination, octets: octets.len() });
            begun += count;
        }
        let Some(first) = groups.first() else { return Outcome::Nothing };
        *calls_made += 1;
        match messages.send(ways.socket.as_fd()) {
            Ok(sent) => Outcome::Sent(groups.iter().take(sent).map(|it| it.packets).sum()),
            Err(error) => {
                let Group { packets, peer, octets } = *first;
                Outcome::Failed { packets, peer, octets, error }
            }
        }
    }
}

/// Copies segments one behind the other.
fn join<'a>(to: &'a mut [u8], segments: impl Iterator<Item = &'a [u8]>) -> &'a [u8] {
    let mut rest = &mut *to;
    for segment in segments {
        let (here, behind) = rest.split_at_mut(segment.len());
        here.copy_from_slice(segment);
        rest = behind;
    }
    to
}

/// Looks at a packet, which may go if it is whole, from here, and no longer than its way takes: its octets, what it
/// says, and the number of its way.
fn admit<'a>(
    ways: &mut Ways<'a>,
    packets: &'a VecDeque<Buffer>,
    at: usize,
) -> Result<(&'a [u8], Header, u32), Outcome> {
    let pieces = packets.iter().skip(at).position(|it| !it.goes_on()).ok_or(Outcome::Nothing)? + 1;
    let octets = ways.arena.octets(&packets[at]);
    let Ok((header, data)) = Header::parse(octets) else { return Err(Outcome::Refused(pieces)) };
    let peer = header.destination;
    let is_ours = header.source == ways.socket.local() && peer.port() != 0 && !peer.ip().is_unspecified();
    if pieces > 1 || !is_ours || header.size() + data.len() != octets.len() {
        return Err(Outcome::Refused(pieces));
    }
    let path = match ways.paths.find(peer) {
        Some(path) => path,
        None => match ways.socket.mtu(peer) {
            Ok(mtu) => ways.paths.add(peer, ways.socket.name(peer), mtu),
            Err(error) => return Err(Outcome::Lost { packets: 1, peer, error }),
        },
    };
    if octets.len() > ways.paths.get(path).mtu {
        return Err(Outcome::Refused(1));
    }
    Ok((octets, header, path))
}

/// The control messages of a message, without the size of its segments.
fn beside(header: Header, departure: Option<u64>) -> Given {
    let mut control = Control::NONE;
    let class = i32::from(header.class).to_ne_bytes();
    match header.source {
        _ if header.class == 0 => {}
        SocketAddr::V4(_) => control.put(libc::IPPROTO_IP, libc::IP_TOS, class),
        SocketAddr::V6(_) => control.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class),
    }
    if let Some(departure) = departure {
        control.put(libc::SOL_SOCKET, libc::SCM_TXTIME, departure.to_ne_bytes());
    }
    control
}

//! Network by the full connectionless protocol (ISO 8473): addresses of 20 octets, of which a host may have many,
//! lifetime, segmentation and reassembly, error reports. For end systems on one link: nothing is forwarded.
//!
//! A [`Peer`] is a pair of addresses, one of this host's and one of another's, so that each pair has references of its
//! own. What is too long for the link is copied into segments; what fits is not copied.

mod reassembly;

use crate::bucket::Bucket;
use crate::layer::{Layer, Outbox, no_packet};
use crate::service::{Fate, Indication, Peer, Request, Time};
use crate::wire::Writer;
use crate::wire::clnp::{Clnp, Discard, Header, NotClnp, Nsap, Report, Segment, options};
use crate::wire::llc::{Llc, Mac};
use reassembly::{Arrived, Part, Partial, Reassembly};
use std::collections::{HashMap, HashSet};
use underpass_link::Guarantees;
use underpass_link::arena::{Arena, Buffer, Pool};

/// How long a packet may be under way, in units of 500 ms: as long as transport's L.
const LIFETIME: u8 = 4;
/// Option: security, which may not be passed over.
const SECURITY: u8 = 0xc5;

/// What has happened, in numbers since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counters {
    pub segmented: u64,
    pub segments_sent: u64,
    pub segments_received: u64,
    pub reassembled: u64,
    /// Reassemblies that were given up: out of time, of room, or with parts that contradict each other.
    pub not_reassembled: u64,
    pub malformed: u64,
    pub corrupt: u64,
    /// Packets for or from an address that is not known.
    pub unknown: u64,
    pub expired: u64,
    pub reports_sent: u64,
    pub reports_left_out: u64,
    pub reports_received: u64,
    pub no_buffer: u64,
}

/// A pair of addresses.
#[derive(Clone, Copy, Debug)]
struct Pair {
    own: Nsap,
    other: Nsap,
    mac: Mac,
    /// The identifier of the next packet that goes in parts.
    identifier: u16,
}

/// Where to send an error report about a packet, and the packet's header.
#[derive(Debug)]
struct Blame {
    mac: Mac,
    destination: Nsap,
    source: Nsap,
    header: Box<[u8]>,
}

/// A network entity.
#[derive(Debug)]
pub struct Internet {
    arena: Arena,
    /// For segments and error reports.
    pool: Pool,
    own: Mac,
    /// Octets of the longest packet, LLC not counted.
    mtu: usize,
    pairs: Vec<Pair>,
    /// Indices of pairs, by this end's address and the other's.
    known: HashMap<(Nsap, Nsap), u32>,
    addresses: HashSet<Nsap>,
    /// Octets of header in front of a user's buffer that is lent below, by frame; 0 of the pool's.
    lent: Box<[u16]>,
    reassembly: Reassembly,
    reports: Bucket,
    counters: Counters,
}

impl Internet {
    /// An entity at a link that carries packets of `mtu` octets, with LLC. Its own buffers are `pool`.
    pub fn new(arena: Arena, pool: Pool, own: Mac, mtu: usize) -> Internet {
        let lent = vec![0; arena.geometry().frames as usize].into_boxed_slice();
        Internet {
            reassembly: Reassembly::new(arena.clone()),
            arena,
            pool,
            own,
            mtu: mtu.saturating_sub(Llc::LEN),
            pairs: Vec::new(),
            known: HashMap::new(),
            addresses: HashSet::new(),
            lent,
            reports: Bucket::default(),
            counters: Counters::default(),
        }
    }

    /// What has happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// From now on the link carries packets of `mtu` octets, with LLC: longer ones go in parts.
    pub fn resize(&mut self, mtu: usize) {
        self.mtu = mtu.saturating_sub(Llc::LEN);
    }

    /// What it promises to the layer above, whatever the link promises. Identifiers have 16 bits: if more than 65,536
    /// packets go in parts within the time that parts are awaited, parts of two packets may be put together (RFC 4963
    /// says the same of IPv4). Only a checksum over the whole, as a TPDU of class 4 has, finds that. And a packet that
    /// lacks a part may be given up for a later one.
    pub fn guarantees(&self) -> Guarantees {
        Guarantees { delivery: false, integrity: false }
    }

    /// How many packets wait for parts, and how many buffers of its own pool are not under way.
    pub fn held(&self) -> (usize, usize) {
        (self.reassembly.len(), self.pool.len())
    }

    /// The peer with address `other`, to which this host is known as `own`. The peer is known from now on, and is at
    /// `mac`, even if it was elsewhere before.
    pub fn peer(&mut self, own: Nsap, other: Nsap, mac: Mac) -> Peer {
        let Internet { pairs, known, addresses, .. } = self;
        addresses.insert(own);
        let index = *known.entry((own, other)).or_insert_with(|| {
            pairs.push(Pair { own, other, mac, identifier: 0 });
            (pairs.len() - 1) as u32
        });
        pairs[index as usize].mac = mac;
        Peer(index)
    }

    fn send(&mut self, to: Peer, mut buffer: Buffer, out: &mut Outbox) {
        let Some(&Pair { own, other, mac, .. }) = self.pairs.get(to.0 as usize) else {
            self.counters.unknown += 1;
            return out.up(Indication::complete(buffer, Fate::Refused));
        };
        let whole = Header {
            lifetime: LIFETIME,
            reports_errors: true,
            destination: other,
            source: own,
            segment: None,
            options: &[],
            len: buffer.len(),
        };
        let header_len = Clnp::Full(whole).header_len();
        if header_len + buffer.len() > self.mtu {
            let fate = if self.send_segments(to, whole, mac, &buffer, out) { Fate::Sent } else { Fate::Refused };
            return out.up(Indication::complete(buffer, fate));
        }
        self.lent[buffer.frame() as usize] = (Llc::LEN + header_len) as u16;
        self.push(mac, &Clnp::Full(whole), &mut buffer);
        out.down(Request::Unitdata { to, buffer });
    }

    /// Sends the data in as many packets as it takes: all of them, or none if there are not enough buffers. Whether
    /// there were.
    fn send_segments(&mut self, to: Peer, whole: Header<'_>, mac: Mac, buffer: &Buffer, out: &mut Outbox) -> bool {
        let arena = self.arena.clone();
        let data = arena.octets(buffer);
        let first = Segment { identifier: 0, offset: 0, total: 0, more: true };
        let header_len = Clnp::Full(Header { segment: Some(first), ..whole }).header_len();
        // Parts but the last are multiples of 8, and each lies in one frame, which may have room for less than the
        // link.
        let most = self.mtu.saturating_sub(header_len).min(self.room()) / 8 * 8;
        let total = u16::try_from(header_len + data.len());
        let (Ok(total), true) = (total, most > 0 && data.len().div_ceil(most.max(1)) <= self.pool.len()) else {
            self.counters.no_buffer += 1;
            return false;
        };
        let Some(pair) = self.pairs.get_mut(to.0 as usize) else { return false };
        let first = Segment { identifier: pair.identifier, ..first };
        pair.identifier = pair.identifier.wrapping_add(1);
        self.counters.segmented += 1;
        for (at, part) in data.chunks(most).enumerate() {
            let offset = (at * most) as u16;
            let more = at * most + part.len() < data.len();
            let segment = Some(Segment { offset, total, more, ..first });
            let Some(mut copy) = self.pool.take() else { return false };
            self.arena.room(&mut copy)[..part.len()].copy_from_slice(part);
            self.arena.fill(&mut copy, part.len());
            self.push(mac, &Clnp::Full(Header { segment, len: part.len(), ..whole }), &mut copy);
            self.counters.segments_sent += 1;
            out.down(Request::Unitdata { to, buffer: copy });
        }
        true
    }

    /// Octets that a frame has room for behind its headroom.
    fn room(&self) -> usize {
        self.arena.geometry().room()
    }

    fn push(&self, destination: Mac, clnp: &Clnp<'_>, buffer: &mut Buffer) {
        let header_len = clnp.header_len();
        let llc = Llc { destination, source: self.own, len: header_len + buffer.len() };
        let mut to = Writer::new(self.arena.push(buffer, Llc::LEN + header_len));
        if llc.emit(&mut to).and_then(|()| clnp.emit(&mut to)).is_err() {
            unreachable!("a header of two addresses is as long as it says, and shorter than 254 octets");
        }
    }

    /// Something has come; it is given on as a whole, kept as a part, or thrown away.
    fn receive(&mut self, mut buffer: Buffer, now: Time, out: &mut Outbox) {
        let Internet { arena, own, known, addresses, counters, reassembly, .. } = self;
        let octets = arena.octets(&buffer);
        let Some((llc, packet)) = Llc::parse(octets).ok().filter(|it| it.0.destination == *own) else {
            counters.unknown += 1;
            return out.down(Request::Return { buffer });
        };
        let (header, data) = match Clnp::parse(packet) {
            Ok((Clnp::Full(header), data)) => (header, data),
            other => {
                match other {
                    Ok((Clnp::Report(_), _)) => counters.reports_received += 1,
                    // No report is sent: the source address cannot be trusted.
                    Err(NotClnp::Checksum) => counters.corrupt += 1,
                    _ => counters.malformed += 1,
                }
                return out.down(Request::Return { buffer });
            }
        };
        let (header_len, len) = (Clnp::Full(header).header_len(), data.len());
        let accepted = accept(&header, known, addresses, counters);
        if let Ok((from, None)) = accepted {
            buffer.pull(Llc::LEN + header_len);
            buffer.truncate(len);
            return out.up(Indication::Unitdata { from, buffer });
        }
        let is_first = header.segment.is_none_or(|it| it.offset == 0);
        let blame = (header.reports_errors && is_first).then(|| Blame {
            mac: llc.source,
            destination: header.source,
            source: header.destination,
            header: packet[..header_len].into(),
        });
        let (from, segment) = match accepted {
            Ok((from, Some(segment))) => (from, segment),
            Ok((_, None)) => unreachable!("it was given on"),
            Err(discard) => {
                if let Some(discard) = discard {
                    self.report(blame, discard, now, out);
                }
                return out.down(Request::Return { buffer });
            }
        };
        counters.segments_received += 1;
        reassembly.hold(data);
        let total = usize::from(segment.total).saturating_sub(header_len);
        let part = Part { from, segment, total, lifetime: header.lifetime, blame };
        match reassembly.arrived(part, buffer, now) {
            Arrived::Part { spare, given_up } => {
                spare.into_iter().for_each(|buffer| out.down(Request::Return { buffer }));
                if let Some(it) = given_up {
                    self.give_up(it, Discard::CONGESTION, now, out);
                }
            }
            Arrived::Whole { buffer, spare } => {
                counters.reassembled += 1;
                spare.into_iter().for_each(|buffer| out.down(Request::Return { buffer }));
                out.up(Indication::Unitdata { from, buffer });
            }
            Arrived::Refused { buffers, blame, discard } => {
                counters.not_reassembled += 1;
                self.report(blame, discard, now, out);
                buffers.into_iter().flatten().for_each(|buffer| out.down(Request::Return { buffer }));
            }
        }
    }

    /// A packet whose parts have not all come is thrown away.
    fn give_up(&mut self, partial: Partial, why: Discard, now: Time, out: &mut Outbox) {
        self.counters.not_reassembled += 1;
        self.report(partial.blame, why, now, out);
        out.down(Request::Return { buffer: partial.buffer });
    }

    /// Reports to the sender what became of its packet, if the sender asks for that and not too many reports were sent.
    fn report(&mut self, blame: Option<Blame>, discard: Discard, now: Time, out: &mut Outbox) {
        let Some(Blame { mac, destination, source, header }) = blame else { return };
        let len = header.len();
        let clnp = Clnp::Report(Report { lifetime: LIFETIME, destination, source, discard, location: 0, len });
        if clnp.header_len() + len > self.mtu || !self.reports.take(now) {
            self.counters.reports_left_out += 1;
            return;
        }
        let Some(mut buffer) = self.pool.take() else {
            self.counters.no_buffer += 1;
            return;
        };
        self.arena.room(&mut buffer)[..len].copy_from_slice(&header);
        self.arena.fill(&mut buffer, len);
        self.push(mac, &clnp, &mut buffer);
        self.counters.reports_sent += 1;
        // The link needs no peer: the frame has the address.
        out.down(Request::Unitdata { to: Peer(0), buffer });
    }
}

/// The pair of addresses that a packet is between, and which part it is unless it is whole. Or the reason why it is
/// discarded, if that is to be reported.
#[inline]
fn accept(
    header: &Header<'_>,
    known: &HashMap<(Nsap, Nsap), u32>,
    addresses: &HashSet<Nsap>,
    counters: &mut Counters,
) -> Result<(Peer, Option<Segment>), Option<Discard>> {
    let mut unsupported = false;
    for option in options(header.options) {
        let Some((code, _)) = option else {
            counters.malformed += 1;
            return Err(Some(Discard::SYNTAX));
        };
        unsupported |= code == SECURITY;
    }
    if header.lifetime == 0 {
        counters.expired += 1;
        return Err(Some(Discard::LIFETIME));
    }
    let Some(&index) = known.get(&(header.destination, header.source)) else {
        counters.unknown += 1;
        // A stranger is not told that this host exists.
        return Err(Some(Discard::UNKNOWN_DESTINATION).filter(|_| !addresses.contains(&header.destination)));
    };
    if unsupported {
        counters.malformed += 1;
        return Err(Some(Discard::UNSUPPORTED_OPTION));
    }
    Ok((Peer(index), header.segment.filter(|it| it.offset > 0 || it.more)))
}

impl Layer for Internet {
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        match request {
            Request::Unitdata { to, buffer } => self.send(to, buffer, out),
            request => no_packet(request, out),
        }
    }

    fn indication(&mut self, indication: Indication, now: Time, out: &mut Outbox) {
        match indication {
            Indication::Unitdata { buffer, .. } => self.receive(buffer, now, out),
            Indication::Complete { mut buffer, fate, .. } => {
                match std::mem::take(&mut self.lent[buffer.frame() as usize]) {
                    0 => self.pool.put(buffer),
                    headers => {
                        buffer.pull(usize::from(headers));
                        out.up(Indication::complete(buffer, fate));
                    }
                }
            }
            Indication::Data { buffer, .. } | Indication::Expedited { buffer, .. } => {
                out.down(Request::Return { buffer });
            }
            _ => {}
        }
    }

    fn settle(&mut self, _: Time, _: &mut Outbox) {}

    fn due(&self) -> Option<Time> {
        self.reassembly.due()
    }

    fn expire(&mut self, now: Time, out: &mut Outbox) {
        while let Some(late) = self.reassembly.expire(now) {
            self.give_up(late, Discard::REASSEMBLY_LIFETIME, now, out);
        }
    }
}

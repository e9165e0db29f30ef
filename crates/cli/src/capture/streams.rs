//! From the records of a tap to packets: what would have been on the wire.
//!
//! A sequence number is the position in the stream, plus one. A connection begins with a handshake whose numbers are
//! such that the first byte that is captured of a direction follows it. What is not captured, because it went by kernel
//! TCP or did not fit, leaves a gap in the numbers. An acknowledgment says how much the end had received by then.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};

use etherparse::{PacketBuilder, TcpHeader, TcpOptionElement};
use underpass_segment::kernel::Address;
use underpass_segment::tap::Head;

/// Window of all packets, which the handshake has made so many times larger: no end is ever short of room.
const WINDOW: u16 = u16::MAX;
const WINDOW_SCALE: u8 = 14;
/// Largest segment that is promised in a handshake: what fits an IPv4 packet.
const LARGEST: u16 = 65_495;

/// A packet as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When, by CLOCK_MONOTONIC in nanoseconds.
    pub when: u64,
    /// From the IP header on.
    pub bytes: Vec<u8>,
    /// What is to be said of it.
    pub comment: Option<String>,
}

/// Describes a new connection by the processes at its two ends; `None` if it is not wanted.
pub type Describe<'a> = dyn FnMut([SocketAddr; 2], &Head) -> Option<String> + 'a;

/// The connections of which something was captured.
#[derive(Default)]
pub struct Streams {
    connections: HashMap<[u64; 2], Option<Connection>>,
    /// Bytes of the streams that are in the packets.
    pub captured: u64,
    /// Bytes before captured ones that were not.
    pub missing: u64,
    /// Records that make no sense.
    pub damaged: u64,
}

/// One direction, by its sender.
#[derive(Clone, Copy, Debug)]
struct Side {
    address: SocketAddr,
    /// The sender's socket.
    cookie: u64,
    /// Position behind the last byte of its stream that was captured.
    end: Counter,
    /// How much of the other's it has received.
    received: Counter,
    ended: bool,
}

/// A position that grows. A process that has told of its bytes in the statistics takes them off the count.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    position: u64,
    taken_off: u64,
}

impl Counter {
    fn at(position: u64) -> Counter {
        Counter { position, taken_off: 0 }
    }

    /// What `counted` means; never less than before.
    fn read(&mut self, counted: u64) -> u64 {
        let position = counted.wrapping_add(self.taken_off);
        if position < self.position {
            self.taken_off = self.position.wrapping_sub(counted);
            return self.position;
        }
        position
    }
}

struct Connection {
    /// The side that has connected comes first, as far as ports show it.
    sides: [Side; 2],
    /// The connection was known before the sockets were listed last.
    is_listed: bool,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;

impl Streams {
    /// The packets of a record with its bytes.
    pub fn packets(&mut self, head: &Head, bytes: &[u8], describe: &mut Describe<'_>, to: &mut Vec<Packet>) {
        let [Some(local), Some(peer)] = head.addresses.map(|it| socket_address(&it)) else {
            self.damaged += 1;
            return;
        };
        if local.is_ipv4() != peer.is_ipv4() {
            self.damaged += 1;
            return;
        }
        let [own, other] = head.cookies;
        let key = [own.min(other), own.max(other)];
        let connection = match self.connections.entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(_) if head.ends != 0 => return,
            Entry::Vacant(place) => {
                let comment = describe([local, peer], head);
                place.insert(comment.map(|comment| Connection::begin(head, [local, peer], comment, to)))
            }
        };
        let Some(connection) = connection else { return };
        let from = usize::from(connection.sides[0].cookie != own);
        if connection.sides[from].cookie != own || connection.sides[from].ended {
            self.damaged += u64::from(head.ends == 0);
            return;
        }
        let side = &mut connection.sides[from];
        let position = side.end.read(head.positions[0]);
        let gap = position - side.end.position;
        self.missing = self.missing.saturating_add(gap);
        side.end.position = position;
        side.received.position = side.received.read(head.positions[1]);
        if !bytes.is_empty() {
            let comment = (gap > 0).then(|| {
                format!("{gap} bytes before this were not captured: they went by kernel TCP, or did not fit the buffer")
            });
            to.push(connection.packet(head.when, from, ACK | PSH, bytes, comment));
            let end = &mut connection.sides[from].end;
            end.position = end.position.wrapping_add(bytes.len() as u64);
            self.captured += bytes.len() as u64;
        }
        if head.ends != 0 {
            connection.end(head.when, from, to);
        }
    }

    /// Before the sockets that there are get listed: a connection of which nothing was seen yet may be made after that.
    pub fn begin_listing(&mut self) {
        self.connections.values_mut().flatten().for_each(|it| it.is_listed = true);
    }

    /// Ends, at this time, the directions whose senders' sockets are none of those that are listed.
    pub fn end_all_but(&mut self, when: u64, is_there: impl Fn(u64) -> bool, to: &mut Vec<Packet>) {
        for connection in self.connections.values_mut().flatten().filter(|it| it.is_listed) {
            for from in 0..2 {
                if !connection.sides[from].ended && !is_there(connection.sides[from].cookie) {
                    connection.end(when, from, to);
                }
            }
        }
        // A cookie is never used twice.
        self.connections.retain(|key, connection| match connection {
            Some(connection) => connection.sides.iter().any(|side| !side.ended),
            None => key.iter().any(|&cookie| is_there(cookie)),
        });
    }
}

impl Connection {
    /// With a handshake, of which the first packet bears the comment.
    fn begin(head: &Head, [local, peer]: [SocketAddr; 2], comment: String, to: &mut Vec<Packet>) -> Connection {
        let [sent, received] = head.positions.map(Counter::at);
        let side = |address, cookie, end, received| Side { address, cookie, end, received, ended: false };
        let own = side(local, head.cookies[0], sent, received);
        let other = side(peer, head.cookies[1], received, sent);
        // Servers have the lower port, mostly.
        let sides = if local.port() >= peer.port() { [own, other] } else { [other, own] };
        let connection = Connection { sides, is_listed: false };
        let numbers = connection.sides.map(|side| side.end.position as u32);
        let options = [TcpOptionElement::MaximumSegmentSize(LARGEST), TcpOptionElement::WindowScale(WINDOW_SCALE)];
        let packet = |from: usize, flags, sequence: u32, acknowledgment: u32, options: &[_], comment| Packet {
            when: head.when,
            bytes: connection.bytes(from, flags, [sequence, acknowledgment], options, &[]),
            comment,
        };
        to.push(packet(0, SYN, numbers[0], 0, &options, Some(comment)));
        to.push(packet(1, SYN | ACK, numbers[1], numbers[0].wrapping_add(1), &options, None));
        to.push(packet(0, ACK, numbers[0].wrapping_add(1), numbers[1].wrapping_add(1), &[], None));
        connection
    }

    fn end(&mut self, when: u64, from: usize, to: &mut Vec<Packet>) {
        to.push(self.packet(when, from, FIN | ACK, &[], None));
        // A FIN counts as a byte.
        self.sides[from].end.position = self.sides[from].end.position.wrapping_add(1);
        self.sides[from].ended = true;
        self.sides[1 - from].received.position = self.sides[from].end.position;
        to.push(self.packet(when, 1 - from, ACK, &[], None));
    }

    fn packet(&self, when: u64, from: usize, flags: u8, payload: &[u8], comment: Option<String>) -> Packet {
        let side = &self.sides[from];
        let numbers = [side.end.position, side.received.position].map(|it| (it as u32).wrapping_add(1));
        Packet { when, bytes: self.bytes(from, flags, numbers, &[], payload), comment }
    }

    fn bytes(
        &self,
        from: usize,
        flags: u8,
        [sequence, acknowledgment]: [u32; 2],
        options: &[TcpOptionElement],
        payload: &[u8],
    ) -> Vec<u8> {
        let [source, destination] = [from, 1 - from].map(|it| self.sides[it].address);
        let mut header = TcpHeader::new(source.port(), destination.port(), sequence, WINDOW);
        header.acknowledgment_number = acknowledgment;
        (header.fin, header.syn) = (flags & FIN != 0, flags & SYN != 0);
        (header.psh, header.ack) = (flags & PSH != 0, flags & ACK != 0);
        let fits = header.set_options(options);
        debug_assert!(fits.is_ok(), "so many options fit");
        const HOPS: u8 = 64;
        let builder = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                PacketBuilder::ipv4(source.octets(), destination.octets(), HOPS)
            }
            (source, destination) => {
                let octets = [source, destination].map(|it| match it {
                    IpAddr::V4(it) => it.to_ipv6_mapped().octets(),
                    IpAddr::V6(it) => it.octets(),
                });
                PacketBuilder::ipv6(octets[0], octets[1], HOPS)
            }
        };
        let builder = builder.tcp_header(header);
        let mut bytes = Vec::with_capacity(builder.size(payload.len()));
        let written = builder.write(&mut bytes, payload);
        debug_assert!(written.is_ok(), "a record fits a packet");
        bytes
    }
}

/// As on the wire: an IPv6 socket may carry IPv4.
fn socket_address(address: &Address) -> Option<SocketAddr> {
    let ip: IpAddr = match address.family.into() {
        libc::AF_INET => <[u8; 4]>::try_from(&address.bytes[..4]).ok()?.into(),
        libc::AF_INET6 => address.bytes.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), address.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    fn address(text: &str) -> Address {
        let it: SocketAddr = text.parse().unwrap();
        let mut bytes = [0; 16];
        let family = match it.ip() {
            IpAddr::V4(ip) => {
                bytes[..4].copy_from_slice(&ip.octets());
                libc::AF_INET
            }
            IpAddr::V6(ip) => {
                bytes = ip.octets();
                libc::AF_INET6
            }
        };
        Address { family: family as u16, port: it.port(), bytes }
    }

    /// What end 0 or 1 of a connection sends.
    fn head(from: usize, positions: [u64; 2], addresses: [&str; 2]) -> Head {
        let pick = |it: [u64; 2]| if from == 0 { it } else { [it[1], it[0]] };
        let addresses = if from == 0 { addresses } else { [addresses[1], addresses[0]] };
        Head {
            len: 0,
            ends: 0,
            pid: 5,
            space: 0,
            when: 9,
            cookies: pick([100, 200]),
            positions,
            addresses: addresses.map(address),
        }
    }

    const V4: [&str; 2] = ["127.0.0.1:40000", "127.0.0.1:7000"];

    /// Source port, flags as SAPF, sequence, acknowledgment, payload; checksums are looked at.
    fn shown(packets: &[Packet]) -> Vec<(u16, String, u32, u32, usize)> {
        let show = |packet: &Packet| {
            let sliced = SlicedPacket::from_ip(&packet.bytes).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("no TCP") };
            let checksum = match sliced.net.as_ref().unwrap() {
                NetSlice::Ipv4(ip) => {
                    assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
                    let ip = ip.header();
                    tcp.calc_checksum_ipv4(ip.source(), ip.destination()).unwrap()
                }
                NetSlice::Ipv6(ip) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap(),
                NetSlice::Arp(_) => panic!("no IP"),
            };
            assert_eq!(tcp.checksum(), checksum);
            let flags = [(tcp.syn(), 'S'), (tcp.ack(), 'A'), (tcp.psh(), 'P'), (tcp.fin(), 'F')];
            let flags = flags.iter().filter(|it| it.0).map(|it| it.1).collect();
            (tcp.source_port(), flags, tcp.sequence_number(), tcp.acknowledgment_number(), tcp.payload().len())
        };
        packets.iter().map(show).collect()
    }

    fn take(streams: &mut Streams, head: &Head, bytes: &[u8]) -> Vec<Packet> {
        let mut packets = vec![];
        streams.packets(head, bytes, &mut |_, _| Some("who".into()), &mut packets);
        packets
    }

    fn row(port: u16, flags: &str, sequence: u32, acknowledgment: u32, len: usize) -> (u16, String, u32, u32, usize) {
        (port, flags.into(), sequence, acknowledgment, len)
    }

    #[test]
    fn a_connection_is_told_from_where_it_was_first_seen() {
        let mut streams = Streams::default();
        let first = take(&mut streams, &head(1, [500, 1000], V4), b"hello");
        assert_eq!(
            shown(&first),
            [
                row(40000, "S", 1000, 0, 0),
                row(7000, "SA", 500, 1001, 0),
                row(40000, "A", 1001, 501, 0),
                row(7000, "AP", 501, 1001, 5),
            ]
        );
        assert_eq!(first[0].comment.as_deref(), Some("who"));
        let answer = take(&mut streams, &head(0, [1000, 505], V4), b"you");
        assert_eq!(shown(&answer), [row(40000, "AP", 1001, 506, 3)]);
        // Ten bytes went another way.
        let gap = take(&mut streams, &head(1, [515, 1003], V4), b"x");
        assert_eq!(shown(&gap), [row(7000, "AP", 516, 1004, 1)]);
        assert!(gap[0].comment.as_deref().unwrap().starts_with("10 bytes before this"));
        assert_eq!((streams.captured, streams.missing), (9, 10));
        let end = Head { ends: 1, ..head(1, [516, 1003], V4) };
        assert_eq!(
            shown(&take(&mut streams, &end, b"")),
            [row(7000, "AF", 517, 1004, 0), row(40000, "A", 1004, 518, 0)]
        );
        assert_eq!(take(&mut streams, &end, b""), [], "once");
        let mut rest = vec![];
        streams.end_all_but(10, |_| false, &mut rest);
        assert_eq!(rest, [], "it may have begun after the sockets were listed");
        streams.begin_listing();
        streams.end_all_but(10, |cookie| cookie == 100, &mut rest);
        assert_eq!(rest, []);
        streams.end_all_but(10, |_| false, &mut rest);
        assert_eq!(shown(&rest), [row(40000, "AF", 1004, 518, 0), row(7000, "A", 518, 1005, 0)]);
        assert!(streams.connections.is_empty());
    }

    #[test]
    fn what_was_told_in_the_statistics_leaves_no_gap() {
        let mut streams = Streams::default();
        take(&mut streams, &head(0, [100, 50], V4), b"ab");
        let next = take(&mut streams, &head(0, [0, 0], V4), b"cd");
        let last = take(&mut streams, &head(0, [2, 0], V4), b"e");
        assert_eq!(shown(&[next, last].concat()).iter().map(|it| it.2).collect::<Vec<_>>(), [103, 105]);
        assert_eq!(streams.missing, 0);
        // What the end of the other direction counts is not in it either.
        take(&mut streams, &Head { ends: 1, ..head(1, [50, 105], V4) }, b"");
        let end = take(&mut streams, &Head { ends: 1, ..head(0, [3, 0], V4) }, b"");
        assert_eq!(shown(&end)[0], row(40000, "AF", 106, 52, 0));
    }

    #[test]
    fn numbers_go_round_and_the_largest_record_fits() {
        let mut streams = Streams::default();
        let position = u32::MAX as u64 - 5;
        let largest = vec![7; underpass_segment::ring::MAX_RECORD];
        let packets = take(&mut streams, &head(0, [position, 0], ["[::1]:50000", "[::1]:80"]), &largest);
        assert_eq!(shown(&packets)[3], row(50000, "AP", u32::MAX - 4, 1, largest.len()));
        let next =
            take(&mut streams, &head(0, [position + largest.len() as u64, 0], ["[::1]:50000", "[::1]:80"]), b"x");
        assert_eq!(shown(&next)[0].2, largest.len() as u32 - 5);
    }

    #[test]
    fn ipv4_through_an_ipv6_socket_is_ipv4() {
        let mut streams = Streams::default();
        let packets = take(&mut streams, &head(0, [0, 0], ["[::ffff:127.0.0.1]:4000", "127.0.0.1:80"]), b"x");
        assert_eq!((packets.len(), packets[0].bytes[0] >> 4), (4, 4));
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let mut streams = Streams::default();
        let mut forged = head(0, [0, 0], V4);
        forged.addresses[0].family = 99;
        assert_eq!(take(&mut streams, &forged, b"x"), []);
        assert_eq!(take(&mut streams, &head(0, [0, 0], ["[::1]:4000", "127.0.0.1:80"]), b"x"), []);
        let far = take(&mut streams, &head(0, [u64::MAX - 1, u64::MAX], V4), b"abcd");
        assert_eq!(far.len(), 4);
        take(&mut streams, &head(0, [0, 0], V4), b"abcd");
        streams.packets(&head(1, [0, 0], V4), b"x", &mut |_, _| None, &mut vec![]);
        assert_eq!(streams.damaged, 2);
    }
}

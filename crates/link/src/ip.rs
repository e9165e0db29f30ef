//! UDP datagrams in IP packets: the headers in front of the data, the same over every link that speaks IP (RFC 791, RFC
//! 8200, RFC 768).
//!
//! A packet of such a link begins with an IPv4 header without options, or an IPv6 header without extensions, and a UDP
//! header. Both sums are zero: the link, or the system below it, writes them when it sends and verifies them when it
//! receives. Lengths, addresses, ports and the traffic class are as on the wire.

mod sums;

pub use sums::{are_right, clear as clear_sums, write as write_sums};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Octets of both headers with IPv4.
pub const IPV4: usize = 20 + UDP;
/// Octets of both headers with IPv6.
pub const IPV6: usize = 40 + UDP;
/// Octets of the longest packet, with either.
pub const LONGEST: usize = 65_535;
const UDP: usize = 8;
/// Number of UDP among the protocols over IP.
const PROTOCOL: u8 = 17;
/// IPv4: may not be fragmented, and the bits that belong to a fragment (RFC 791 §3.1; the first bit is reserved).
const DO_NOT_FRAGMENT: u8 = 0x40;
const FRAGMENT: u8 = 0xbf;
/// How many routers it may pass.
const HOPS: u8 = 64;

/// What a router says about congestion, or may say (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// The transport does not heed marks, so routers drop instead.
    NotCapable,
    /// Capable, ECT(1): of use to L4S alone (RFC 9331).
    One,
    /// Capable, ECT(0).
    Capable,
    /// A router was congested.
    Congested,
}

impl Ecn {
    /// The mark in a traffic class (IPv4: type of service): its two lowest bits.
    #[inline]
    pub fn of(class: u8) -> Ecn {
        match class & 3 {
            0 => Ecn::NotCapable,
            1 => Ecn::One,
            2 => Ecn::Capable,
            _ => Ecn::Congested,
        }
    }

    /// The two bits.
    #[inline]
    pub fn bits(self) -> u8 {
        match self {
            Ecn::NotCapable => 0,
            Ecn::One => 1,
            Ecn::Capable => 2,
            Ecn::Congested => 3,
        }
    }
}

/// What both headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender; an IPv6 address without flow information and scope.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// Differentiated services and [`Ecn`].
    pub class: u8,
}

/// Why octets are not a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDatagram {
    /// Fewer octets than headers.
    #[error("{0} octets are fewer than the headers of IP and UDP")]
    Short(usize),
    /// The first four bits are neither 4 nor 6.
    #[error("no version of IP: {0}")]
    Version(u8),
    /// Options of IPv4, or a header shorter than any.
    #[error("an IPv4 header of {0} octets; options are not understood")]
    Options(u8),
    /// A part of a datagram.
    #[error("a fragment")]
    Fragment,
    /// Not UDP, or behind an extension header of IPv6.
    #[error("protocol {0} is not UDP (17)")]
    Protocol(u8),
    /// The lengths of IP and UDP do not agree, or are not the packet's.
    #[error("the lengths of IP and UDP do not agree with each other, or with the {0} octets that there are")]
    Length(usize),
    /// A source that cannot be answered: no address, a group's, all hosts', or port 0.
    #[error("nobody has the source address {0}")]
    Source(SocketAddr),
}

impl Header {
    /// Octets of both headers.
    #[inline]
    pub fn size(&self) -> usize {
        headers(self.source)
    }

    /// Reads the headers of a packet that may be followed by padding, as an Ethernet frame's is: what they say, and the
    /// data.
    ///
    /// # Errors
    /// They are no headers of ours.
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<(Header, &[u8]), NotDatagram> {
        let short = NotDatagram::Short(octets.len());
        let header = match octets.first().ok_or(short)? >> 4 {
            4 => Header::parse_4(octets.first_chunk().ok_or(short)?)?,
            6 => Header::parse_6(octets.first_chunk().ok_or(short)?)?,
            version => return Err(NotDatagram::Version(version)),
        };
        let data = octets.get(header.size()..total(octets)).ok_or(NotDatagram::Length(octets.len()))?;
        // What UDP says is what IP says less IP's header.
        if half(octets, header.size() - UDP + 4) != data.len() + UDP {
            return Err(NotDatagram::Length(octets.len()));
        }
        let ip = header.source.ip();
        let all = IpAddr::V4(Ipv4Addr::BROADCAST);
        if ip.is_unspecified() || ip.is_multicast() || ip == all || header.source.port() == 0 {
            return Err(NotDatagram::Source(header.source));
        }
        Ok((header, data))
    }

    fn parse_4(octets: &[u8; IPV4]) -> Result<Header, NotDatagram> {
        if octets[0] != 0x45 {
            return Err(NotDatagram::Options((octets[0] & 15) * 4));
        }
        if octets[6] & FRAGMENT != 0 || octets[7] != 0 {
            return Err(NotDatagram::Fragment);
        }
        if octets[9] != PROTOCOL {
            return Err(NotDatagram::Protocol(octets[9]));
        }
        let address = |at: usize| IpAddr::V4(Ipv4Addr::from(std::array::from_fn::<u8, 4, _>(|it| octets[at + it])));
        let end = |at, port| SocketAddr::new(address(at), half(octets, port) as u16);
        Ok(Header { source: end(12, 20), destination: end(16, 22), class: octets[1] })
    }

    fn parse_6(octets: &[u8; IPV6]) -> Result<Header, NotDatagram> {
        if octets[6] != PROTOCOL {
            return Err(NotDatagram::Protocol(octets[6]));
        }
        let address = |at: usize| IpAddr::V6(Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|it| octets[at + it])));
        let end = |at, port| SocketAddr::new(address(at), half(octets, port) as u16);
        let class = octets[0] << 4 | octets[1] >> 4;
        Ok(Header { source: end(8, 40), destination: end(24, 42), class })
    }
}

/// Octets of the headers of packets from this address.
#[inline]
pub fn headers(source: SocketAddr) -> usize {
    if source.is_ipv4() { IPV4 } else { IPV6 }
}

/// Says of a packet of class 0, whose headers are there, what a router may say about congestion.
#[inline]
pub fn set_ecn(headers: &mut [u8], ecn: Ecn) {
    // The lowest bits of the class: IPv6 has its lower half in the upper half of the second octet.
    headers[1] |= if headers[0] >> 4 == 4 { ecn.bits() } else { ecn.bits() << 4 };
}

/// Two octets as a number, which are there.
#[inline]
fn half(octets: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]))
}

/// Octets of the packet as its IP header has them.
#[inline]
fn total(octets: &[u8]) -> usize {
    if octets[0] >> 4 == 4 { half(octets, 2) } else { 40 + half(octets, 4) }
}

/// Whether `next` is a packet from and to the same as `first`, which was parsed, with the same class, and exactly as
/// long as it says.
#[inline]
pub fn follows(first: &[u8], next: &[u8]) -> bool {
    let same = |from: usize, to: usize| first.get(from..to).is_some_and(|it| next.get(from..to) == Some(it));
    let length = |at: usize, ip: usize| next.len() <= LONGEST && half(next, at) == next.len() - ip;
    match first[0] >> 4 {
        4 => next.len() >= IPV4 && same(0, 2) && same(4, 24) && length(2, 0) && length(24, 20),
        _ => next.len() >= IPV6 && same(0, 4) && same(6, 44) && length(4, 40) && length(44, 40),
    }
}

/// The headers of packets from one end to another, but for the lengths.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    octets: [u8; IPV6],
    len: usize,
}

impl Template {
    /// The template of packets with this header; `None` if the addresses are of different versions.
    pub fn new(header: Header) -> Option<Template> {
        let Header { source, destination, class } = header;
        let (mut octets, ip) = ([0; IPV6], header.size() - UDP);
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (octets[0], octets[1], octets[6], octets[8], octets[9]) =
                    (0x45, class, DO_NOT_FRAGMENT, HOPS, PROTOCOL);
                octets[12..16].copy_from_slice(&source.octets());
                octets[16..20].copy_from_slice(&destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                (octets[0], octets[1], octets[6], octets[7]) = (0x60 | class >> 4, class << 4, PROTOCOL, HOPS);
                octets[8..24].copy_from_slice(&source.octets());
                octets[24..40].copy_from_slice(&destination.octets());
            }
            _ => return None,
        }
        octets[ip..ip + 2].copy_from_slice(&source.port().to_be_bytes());
        octets[ip + 2..ip + 4].copy_from_slice(&destination.port().to_be_bytes());
        Some(Template { octets, len: header.size() })
    }

    /// Octets of the headers.
    #[inline]
    pub fn size(&self) -> usize {
        self.len
    }

    /// Writes the headers of a packet with so many octets of data.
    ///
    /// # Panics
    /// If `to` is not as long as the headers, or the packet is longer than [`LONGEST`].
    #[inline]
    pub fn write(&self, to: &mut [u8], data: usize) {
        assert!(self.len + data <= LONGEST, "no IP packet is as long as that");
        to.copy_from_slice(&self.octets[..self.len]);
        let (at, of_ip) = if self.len == IPV4 { (2, IPV4 + data) } else { (4, UDP + data) };
        to[at..at + 2].copy_from_slice(&(of_ip as u16).to_be_bytes());
        let at = self.len - UDP + 4;
        to[at..at + 2].copy_from_slice(&((UDP + data) as u16).to_be_bytes());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(header: Header, data: &[u8]) -> Vec<u8> {
        let template = Template::new(header).unwrap();
        let mut octets = vec![0; template.size()];
        template.write(&mut octets, data.len());
        octets.extend(data);
        octets
    }

    fn header(source: &str, destination: &str, class: u8) -> Header {
        Header { source: source.parse().unwrap(), destination: destination.parse().unwrap(), class }
    }

    fn both() -> [Header; 2] {
        [header("10.9.0.1:500", "10.9.0.2:600", 0xb9), header("[fd00::1]:500", "[fd00::2]:600", 0xb9)]
    }

    /// As a library of others reads it.
    #[test]
    fn headers_are_what_the_standards_say() {
        for header in both() {
            let octets = packet(header, b"data");
            let read = etherparse::SlicedPacket::from_ip(&octets).unwrap();
            let (source, destination, class) = match read.net.unwrap() {
                etherparse::NetSlice::Ipv4(ip) => {
                    let ip = ip.header().to_header();
                    assert!(ip.dont_fragment && ip.total_len == 32 && ip.protocol == etherparse::IpNumber::UDP);
                    let class = ip.dscp.value() << 2 | ip.ecn.value();
                    (IpAddr::from(ip.source), IpAddr::from(ip.destination), class)
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    let ip = ip.header().to_header();
                    assert!(ip.payload_length == 12 && ip.next_header == etherparse::IpNumber::UDP);
                    (IpAddr::from(ip.source), IpAddr::from(ip.destination), ip.traffic_class)
                }
                other => panic!("{other:?}"),
            };
            let Some(etherparse::TransportSlice::Udp(udp)) = read.transport else { panic!("no UDP") };
            assert_eq!((udp.source_port(), udp.destination_port(), udp.length()), (500, 600, 12));
            assert_eq!((source, destination, class), (header.source.ip(), header.destination.ip(), 0xb9));
            assert_eq!(Ecn::of(class), Ecn::One);
            assert_eq!(Header::parse(&octets), Ok((header, &b"data"[..])));
        }
    }

    #[test]
    fn what_is_not_ours_is_refused_by_name() {
        let [four, six] = both().map(|it| packet(it, b"data"));
        let changed = |octets: &[u8], at: usize, to: u8| {
            let mut octets = octets.to_vec();
            octets[at] = to;
            Header::parse(&octets).map(|_| ()).unwrap_err()
        };
        assert_eq!(Header::parse(&[]), Err(NotDatagram::Short(0)));
        assert_eq!(changed(&four, 0, 0x55), NotDatagram::Version(5));
        assert_eq!(changed(&four, 0, 0x46), NotDatagram::Options(24));
        assert_eq!((changed(&four, 6, 0x20), changed(&four, 7, 1)), (NotDatagram::Fragment, NotDatagram::Fragment));
        assert_eq!((changed(&four, 9, 6), changed(&six, 6, 44)), (NotDatagram::Protocol(6), NotDatagram::Protocol(44)));
        for (octets, lengths) in [(&four, [3, 25]), (&six, [5, 45])] {
            let good = lengths.map(|at| octets[at]);
            for (at, good) in lengths.into_iter().zip(good) {
                for wrong in [0, 7, good - 1, good + 1, 255] {
                    assert_eq!(changed(octets, at, wrong), NotDatagram::Length(octets.len()), "{at}: {wrong}");
                }
            }
            let cut = &octets[..octets.len() - 1];
            assert_eq!(Header::parse(cut), Err(NotDatagram::Length(cut.len())));
            // An Ethernet frame is filled up to 60 octets.
            let padded = [octets.as_slice(), &[0; 20]].concat();
            assert_eq!(Header::parse(&padded).unwrap().1, b"data");
            assert!(follows(octets, octets) && !follows(octets, &padded) && !follows(octets, cut));
        }
        for source in ["0.0.0.0:1", "224.0.0.1:1", "255.255.255.255:1", "10.0.0.1:0"] {
            let header = header(source, "10.9.0.2:600", 0);
            assert_eq!(Header::parse(&packet(header, b"")), Err(NotDatagram::Source(header.source)));
        }
        for source in ["[::]:1", "[ff02::1]:1", "[fd00::1]:0"] {
            let header = header(source, "[fd00::2]:600", 0);
            assert_eq!(Header::parse(&packet(header, b"")), Err(NotDatagram::Source(header.source)));
        }
        assert!(Template::new(header("10.0.0.1:1", "[fd00::2]:600", 0)).is_none());
        for header in both().map(|it| Header { class: 0, ..it }) {
            let mut octets = packet(header, b"data");
            set_ecn(&mut octets, Ecn::Capable);
            assert_eq!(Header::parse(&octets).unwrap().0, Header { class: 2, ..header });
        }
        assert_eq!([0, 1, 2, 3].map(|bits| Ecn::of(bits | 0xfc).bits()), [0, 1, 2, 3]);
    }

    proptest! {
        /// Any octets, and good packets of which some were changed: no panic, and what is read is what was written.
        #[test]
        fn any_octets_are_read_or_refused(
            mut octets in proptest::collection::vec(any::<u8>(), 0..120),
            first in 0..3u8,
        ) {
            if let (Some(octet), 1..) = (octets.first_mut(), first) {
                *octet = [0x45, 0x60][usize::from(first) - 1];
            }
            if let Ok((header, data)) = Header::parse(&octets) {
                let mut again = packet(header, data);
                prop_assert_eq!(Header::parse(&again), Ok((header, data)));
                prop_assert!(follows(&again.clone(), &again));
                again.truncate(again.len() - 1);
                prop_assert!(Header::parse(&again).is_err());
            }
        }

        #[test]
        fn a_changed_packet_is_another_or_none(
            six in any::<bool>(),
            data in proptest::collection::vec(any::<u8>(), 0..40),
            at in 0..48usize,
            to in any::<u8>(),
        ) {
            let header = both()[usize::from(six)];
            let good = packet(header, &data);
            let mut bad = good.clone();
            let at = at % header.size();
            bad[at] = to;
            if let Ok((read, rest)) = Header::parse(&bad) {
                prop_assert_eq!(rest, &data[..]);
                // What a packet says beyond addresses, ports and class is not kept.
                let kept = read == header;
                prop_assert!(kept || !follows(&good, &bad));
            }
        }
    }
}

//! Frames with a datagram in them: Ethernet's header in front of those of IP and UDP.

use crate::ip::{self, Header, NotDatagram};
use std::net::SocketAddr;

/// Octets of Ethernet's header: destination, source, and type of what it carries.
pub const HEADER: usize = 14;
/// What it carries.
const IPV4: u16 = libc::ETH_P_IP as u16;
const IPV6: u16 = libc::ETH_P_IPV6 as u16;

/// What goes in front of packets of this version to a neighbour.
pub fn header(destination: [u8; 6], source: [u8; 6], local: SocketAddr) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&carries(local).to_be_bytes());
    header
}

fn carries(local: SocketAddr) -> u16 {
    if local.is_ipv4() { IPV4 } else { IPV6 }
}

/// The receiver whose frames are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Whom {
    /// The interface's Ethernet address.
    pub address: [u8; 6],
    /// The address and port of datagrams.
    pub local: SocketAddr,
    /// Whether sums may be unfinished ([`ip::are_right`]).
    pub unfinished: bool,
}

/// Why a frame is thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    /// Fewer octets than Ethernet's header.
    #[error("{0} octets are fewer than Ethernet's header")]
    Short(usize),
    /// The frame goes to another interface or to many, or comes from an address that stands for many.
    #[error("a frame for others, or from no single interface")]
    Address,
    /// The frame carries another protocol, or the other version of IP.
    #[error("EtherType {0:#06x} is not that of this address")]
    Type(u16),
    /// The frame's contents are no datagram of ours.
    #[error(transparent)]
    Datagram(#[from] NotDatagram),
    /// The datagram is for another address or port.
    #[error("a datagram for {0}")]
    Destination(SocketAddr),
    /// The source is an address of this host itself, from which nothing comes over a wire.
    #[error("{0} is an address of this host")]
    Source(SocketAddr),
    /// One of the sums is wrong, or left out where it must not be.
    #[error("a sum of IP or UDP is wrong")]
    Sums,
}

/// Octets of the packet behind Ethernet's header, without what a frame is filled up with.
///
/// # Errors
/// The frame is not for this receiver, or not as it was sent.
#[inline]
pub fn parse(frame: &[u8], whom: &Whom) -> Result<usize, NotOurs> {
    let (front, packet) = frame.split_first_chunk::<HEADER>().ok_or(NotOurs::Short(frame.len()))?;
    // The lowest bit of its first octet says that an address is a group's.
    if front[..6] != whom.address || front[6] & 1 != 0 {
        return Err(NotOurs::Address);
    }
    let ethertype = u16::from_be_bytes([front[12], front[13]]);
    if ethertype != carries(whom.local) {
        return Err(NotOurs::Type(ethertype));
    }
    let (header, data) = Header::parse(packet)?;
    if header.destination != whom.local {
        return Err(NotOurs::Destination(header.destination));
    }
    let source = header.source.ip();
    if source == whom.local.ip() || source.is_loopback() {
        return Err(NotOurs::Source(header.source));
    }
    let len = header.size() + data.len();
    if ip::are_right(&packet[..len], whom.unfinished) { Ok(len) } else { Err(NotOurs::Sums) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ip::Template;
    use proptest::prelude::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn whom(six: bool) -> Whom {
        let local = if six { "[fd09::1]:500" } else { "10.9.0.1:500" };
        Whom { address: OWN, local: local.parse().unwrap(), unfinished: false }
    }

    fn frame(six: bool, data: &[u8]) -> Vec<u8> {
        let source = if six { "[fd09::2]:600" } else { "10.9.0.2:600" };
        from(source, six, data)
    }

    fn from(source: &str, six: bool, data: &[u8]) -> Vec<u8> {
        let local = whom(six).local;
        let header = Header { source: source.parse().unwrap(), destination: local, class: 2 };
        let template = Template::new(header).unwrap();
        let mut packet = vec![0; template.size()];
        template.write(&mut packet, data.len());
        packet.extend(data);
        ip::write_sums(&mut packet);
        [&super::header(OWN, OTHER, local)[..], &packet].concat()
    }

    #[test]
    fn what_is_not_ours_is_refused_by_name() {
        for six in [false, true] {
            let good = frame(six, b"data");
            let len = good.len() - HEADER;
            let changed = |at: usize, to: u8| {
                let mut frame = good.clone();
                frame[at] = to;
                parse(&frame, &whom(six))
            };
            assert_eq!(parse(&good, &whom(six)), Ok(len));
            // As a driver fills it up.
            assert_eq!(parse(&[&good[..], &[7; 30]].concat(), &whom(six)), Ok(len));
            assert_eq!(parse(&good[..13], &whom(six)), Err(NotOurs::Short(13)));
            assert_eq!(
                (changed(0, 3), changed(5, 2), changed(6, 3)),
                (Err(NotOurs::Address), Err(NotOurs::Address), Err(NotOurs::Address))
            );
            assert_eq!(changed(13, 6), Err(NotOurs::Type(if six { 0x8606 } else { 0x0806 })));
            assert_eq!(parse(&frame(!six, b"data"), &whom(six)), Err(NotOurs::Type(if six { 0x0800 } else { 0x86dd })));
            let (at, port) = if six { (14 + 39, 14 + 43) } else { (14 + 19, 14 + 23) };
            for at in [at, port] {
                assert!(matches!(changed(at, 99), Err(NotOurs::Destination(_))), "{at}");
            }
            assert_eq!(changed(good.len() - 1, b'b'), Err(NotOurs::Sums));
            assert_eq!(
                parse(&good[..good.len() - 1], &whom(six)),
                Err(NotOurs::Datagram(NotDatagram::Length(len - 1)))
            );
            let own = if six { ["[fd09::1]:7", "[::1]:7"] } else { ["10.9.0.1:7", "127.0.0.1:7"] };
            for source in own {
                let refused = parse(&from(source, six, b"data"), &whom(six));
                assert_eq!(refused, Err(NotOurs::Source(source.parse().unwrap())));
            }
        }
        // Options, and a fragment, whatever their sums say.
        for (at, octet, why) in [(14, 0x46, NotDatagram::Options(24)), (20, 0x20, NotDatagram::Fragment)] {
            let mut frame = frame(false, b"data");
            frame[at] = octet;
            ip::write_sums(&mut frame[HEADER..]);
            assert_eq!(parse(&frame, &whom(false)), Err(NotOurs::Datagram(why)));
        }
    }

    proptest! {
        /// Any octets behind a good beginning: nothing panics, and what is taken is within the frame.
        #[test]
        fn any_octets_are_taken_or_refused(
            six in any::<bool>(),
            kept in 0..60usize,
            rest in proptest::collection::vec(any::<u8>(), 0..120),
            sealed in any::<bool>(),
        ) {
            let mut octets = frame(six, b"some data");
            octets.truncate(kept);
            octets.extend(rest);
            if sealed && Header::parse(octets.get(HEADER..).unwrap_or_default()).is_ok() {
                ip::write_sums(&mut octets[HEADER..]);
            }
            if let Ok(len) = parse(&octets, &whom(six)) {
                let (header, data) = Header::parse(&octets[HEADER..]).unwrap();
                prop_assert!(len + HEADER <= octets.len() && header.size() + data.len() == len);
                prop_assert_eq!(header.destination, whom(six).local);
            }
        }

        /// A frame of which one bit was changed is refused, except where no sum covers the bit: in the source's
        /// Ethernet address, and in IPv6's class, flow and hops.
        #[test]
        fn a_changed_frame_is_refused(six in any::<bool>(), at in 0..100usize, bit in 0..8u32) {
            let good = frame(six, b"some data of a packet");
            let mut bad = good.clone();
            let at = at % good.len();
            bad[at] ^= 1 << bit;
            let uncovered = (6..12).contains(&at) || six && matches!(at, 14..18 | 21);
            prop_assume!(!uncovered);
            prop_assume!(six || bad[HEADER + 26..HEADER + 28] != [0, 0]);
            prop_assert!(parse(&bad, &whom(six)).is_err(), "octet {at}");
        }
    }
}

//! Connectionless network protocol (ISO 8473, RFC 994): the inactive subset, which is one octet, and the full data and
//! error report PDUs.
//!
//! ```text
//! inactive     1 0x00
//! full         1 0x81        5 SP 0x80 | MS 0x40 | ER 0x20 | type 0x1C      10- addresses, each behind its length:
//!              2 length      6-7 length of header and data                      destination, source
//!              3 version 1   8-9 checksum of the header, 0 for none              - [if SP: identifier, offset, total]
//!              4 lifetime                                                        - options
//! ```
//! An error report has type 0x01 and none of the flags, 0xC1 among its options with the reason and the number of the
//! octet that is to blame, and the header of what was thrown away as its data.

use super::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};
use underpass_checksum::fletcher::{Sums, seal};

/// Address of a network service access point (ISO 8348): up to 20 octets, the last of which is the selector.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nsap {
    len: u8,
    octets: [u8; Nsap::MOST],
}

impl Nsap {
    /// Octets of the longest address.
    pub const MOST: usize = 20;
    /// The selector of ISO transport, by which tshark knows it.
    pub const TRANSPORT: u8 = 0x21;

    /// The address of these octets, if they are not too many.
    pub fn new(octets: &[u8]) -> Option<Nsap> {
        let mut address = Nsap { len: octets.len() as u8, octets: [0; Nsap::MOST] };
        address.octets.get_mut(..octets.len())?.copy_from_slice(octets);
        Some(address)
    }

    /// Its octets.
    pub fn octets(&self) -> &[u8] {
        &self.octets[..usize::from(self.len)]
    }
}

impl Display for Nsap {
    /// As ISO 10589 and routers show it: `49.0001.0200.0000.0002.21`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (last, most) = (self.octets().len().saturating_sub(1), self.octets());
        for (at, octet) in most.iter().enumerate() {
            if at == last && at > 0 || at % 2 == 1 {
                f.write_str(".")?;
            }
            write!(f, "{octet:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Nsap {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// Which part of a longer PDU this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// One number for all parts of the PDU.
    pub identifier: u16,
    /// Octets of data before this part: a multiple of 8.
    pub offset: u16,
    /// Octets of the header and data of the whole.
    pub total: u16,
    /// Whether others follow (MS).
    pub more: bool,
}

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clnp<'a> {
    /// Both ends share a link: the link's addresses are enough.
    Inactive,
    /// Between any two.
    Full(Header<'a>),
    /// Something was thrown away.
    Report(Report),
}

/// The header of an error report PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How long it may still be under way, in units of 500 ms.
    pub lifetime: u8,
    /// The address of the sender of the discarded packet.
    pub destination: Nsap,
    /// The address of the entity that has discarded it.
    pub source: Nsap,
    /// Why.
    pub discard: Discard,
    /// Number of the octet that is to blame, or 0.
    pub location: u8,
    /// Octets of data behind the header.
    pub len: usize,
}

/// Why something was thrown away (ISO 8473 §7.9.5). Any number may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Discard(pub u8);

impl Discard {
    /// There is no room for it.
    pub const CONGESTION: Discard = Discard(0x03);
    /// The header contradicts itself.
    pub const SYNTAX: Discard = Discard(0x04);
    /// This host does not have the destination's address.
    pub const UNKNOWN_DESTINATION: Discard = Discard(0x81);
    /// It was under way for too long.
    pub const LIFETIME: Discard = Discard(0xa0);
    /// Its other parts have not come in time.
    pub const REASSEMBLY_LIFETIME: Discard = Discard(0xa1);
    /// It asks for something that may not be passed over.
    pub const UNSUPPORTED_OPTION: Discard = Discard(0xb0);
    /// Its parts contradict each other.
    pub const INTERFERENCE: Discard = Discard(0xc0);
}

/// The header of a data PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// How long it may still be under way, in units of 500 ms.
    pub lifetime: u8,
    /// Whether its loss is to be reported (ER).
    pub reports_errors: bool,
    /// The destination address.
    pub destination: Nsap,
    /// The source address.
    pub source: Nsap,
    /// Where it may be segmented (SP).
    pub segment: Option<Segment>,
    /// Options, as they are on the wire.
    pub options: &'a [u8],
    /// Octets of data behind the header.
    pub len: usize,
}

/// Why a packet is thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotClnp {
    /// It ends within what it says to have.
    #[error("the packet is shorter than it says")]
    Short,
    /// The first octet names another protocol.
    #[error("network protocol {0:#04x} is not CLNP")]
    Protocol(u8),
    /// A version, or a kind of PDU, that this entity does not understand.
    #[error("CLNP version {version}, type {kind:#04x} is not understood")]
    Unknown {
        /// 1 is understood.
        version: u8,
        /// 0x1C, data, and 0x01, an error report, are understood.
        kind: u8,
    },
    /// Lengths in the header contradict each other.
    #[error("the header's lengths contradict each other")]
    Lengths,
    /// The header is not as it was sent.
    #[error("the header's checksum is wrong")]
    Checksum,
}

const INACTIVE: u8 = 0x00;
const FULL: u8 = 0x81;
const VERSION: u8 = 1;
const DATA: u8 = 0x1c;
const ERROR: u8 = 0x01;
const REASON: u8 = 0xc1;
const SEGMENTED: u8 = 0x80;
const MORE: u8 = 0x40;
const REPORT: u8 = 0x20;
/// Octets up to the addresses.
const FIXED: usize = 9;
/// Number of the first octet of the checksum.
const CHECKSUM: usize = 8;

impl<'a> Clnp<'a> {
    /// The header of `packet`, and the data behind it.
    ///
    /// # Errors
    /// [`NotClnp`].
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<(Clnp<'a>, &'a [u8]), NotClnp> {
        match packet.split_first().ok_or(NotClnp::Short)? {
            (&INACTIVE, data) => Ok((Clnp::Inactive, data)),
            (&FULL, _) => parse(packet),
            (&other, _) => Err(NotClnp::Protocol(other)),
        }
    }

    /// Octets of the header.
    #[inline]
    pub fn header_len(&self) -> usize {
        match self {
            Clnp::Inactive => 1,
            Clnp::Full(header) => header.header_len(),
            Clnp::Report(report) => report.as_header(&[0; 4]).header_len(),
        }
    }

    /// Writes the header.
    ///
    /// # Errors
    /// [`NoRoom`], also where the header is longer than 254 octets or header and data are longer than 65,535.
    #[inline]
    pub fn emit(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        match self {
            Clnp::Inactive => to.octet(INACTIVE),
            Clnp::Full(header) => header.emit(DATA, to),
            Clnp::Report(it) => it.as_header(&[REASON, 2, it.discard.0, it.location]).emit(ERROR, to),
        }
    }
}

fn parse(packet: &[u8]) -> Result<(Clnp<'_>, &[u8]), NotClnp> {
    let &[_, _, version, _, kind, ..] = packet else { return Err(NotClnp::Short) };
    let code = kind & 0x1f;
    match (version, code) {
        (VERSION, DATA) => Header::parse(packet).map(|(header, data)| (Clnp::Full(header), data)),
        (VERSION, ERROR) if kind == ERROR => {
            let (header, data) = Header::parse(packet)?;
            Ok((Clnp::Report(Report::of(&header)?), data))
        }
        _ => Err(NotClnp::Unknown { version, kind: code }),
    }
}

/// The options of a header: code and value of each, or `None` at the end if they are not well formed.
pub fn options(octets: &[u8]) -> impl Iterator<Item = Option<(u8, &[u8])>> {
    let mut rest = octets;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let option = rest.split_at_checked(2).and_then(|(head, behind)| {
            let (value, behind) = behind.split_at_checked(usize::from(head[1]))?;
            rest = behind;
            Some((head[0], value))
        });
        if option.is_none() {
            rest = &[];
        }
        Some(option)
    })
}

impl Report {
    fn of(header: &Header<'_>) -> Result<Report, NotClnp> {
        let reason = options(header.options).find_map(|it| match it {
            Some((REASON, &[discard, location])) => Some((discard, location)),
            _ => None,
        });
        let (discard, location) = reason.ok_or(NotClnp::Lengths)?;
        let Header { lifetime, destination, source, len, .. } = *header;
        Ok(Report { lifetime, destination, source, discard: Discard(discard), location, len })
    }

    fn as_header<'a>(&self, options: &'a [u8]) -> Header<'a> {
        let Report { lifetime, destination, source, len, .. } = *self;
        Header { lifetime, reports_errors: false, destination, source, segment: None, options, len }
    }
}

impl<'a> Header<'a> {
    fn parse(packet: &'a [u8]) -> Result<(Header<'a>, &'a [u8]), NotClnp> {
        let &[_, header_len, _, lifetime, kind, len0, len1, ..] = packet else { return Err(NotClnp::Short) };
        let (header_len, len) = (usize::from(header_len), usize::from(u16::from_be_bytes([len0, len1])));
        let header = packet.get(..header_len).filter(|it| it.len() >= FIXED).ok_or(NotClnp::Short)?;
        let data = packet.get(header_len..len).ok_or(NotClnp::Short)?;
        if header[CHECKSUM - 1..=CHECKSUM] != [0, 0] && !Sums::of(header).is_zero() {
            return Err(NotClnp::Checksum);
        }
        let mut rest = &header[FIXED..];
        let (destination, source) = (address(&mut rest)?, address(&mut rest)?);
        let segment = if kind & SEGMENTED != 0 {
            let (part, behind) = rest.split_first_chunk::<6>().ok_or(NotClnp::Lengths)?;
            rest = behind;
            let number = |at: usize| u16::from_be_bytes([part[at], part[at + 1]]);
            Some(Segment { identifier: number(0), offset: number(2), total: number(4), more: kind & MORE != 0 })
        } else if kind & MORE != 0 {
            return Err(NotClnp::Lengths);
        } else {
            None
        };
        let reports_errors = kind & REPORT != 0;
        let len = data.len();
        Ok((Header { lifetime, reports_errors, destination, source, segment, options: rest, len }, data))
    }

    fn header_len(&self) -> usize {
        let addresses = 2 + self.destination.octets().len() + self.source.octets().len();
        FIXED + addresses + self.segment.map_or(0, |_| 6) + self.options.len()
    }

    fn emit(&self, kind: u8, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        let (begin, header_len) = (to.len(), self.header_len());
        let len = u16::try_from(header_len + self.len).map_err(|_| NoRoom)?;
        if header_len > 254 {
            return Err(NoRoom);
        }
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let more = self.segment.is_some_and(|it| it.more);
        let kind =
            kind | flag(self.segment.is_some(), SEGMENTED) | flag(more, MORE) | flag(self.reports_errors, REPORT);
        to.put(&[FULL, header_len as u8, VERSION, self.lifetime, kind])?;
        to.u16(len)?;
        to.u16(0)?;
        for address in [self.destination, self.source] {
            to.octet(address.octets().len() as u8)?;
            to.put(address.octets())?;
        }
        if let Some(it) = self.segment {
            for number in [it.identifier, it.offset, it.total] {
                to.u16(number)?;
            }
        }
        to.put(self.options)?;
        seal(&mut to.written()[begin..], CHECKSUM, Sums::default(), 0);
        Ok(())
    }
}

fn address(rest: &mut &[u8]) -> Result<Nsap, NotClnp> {
    let (&len, behind) = rest.split_first().ok_or(NotClnp::Lengths)?;
    let (octets, behind) = behind.split_at_checked(usize::from(len)).ok_or(NotClnp::Lengths)?;
    *rest = behind;
    Nsap::new(octets).ok_or(NotClnp::Lengths)
}

impl Display for Clnp<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let header = match self {
            Clnp::Inactive => return f.write_str("CLNP inactive"),
            Clnp::Report(it) => {
                return write!(f, "CLNP error {} → {}, reason {:#04x}", it.source, it.destination, it.discard.0);
            }
            Clnp::Full(header) => header,
        };
        write!(f, "CLNP {} → {}, {} octets", header.source, header.destination, header.len)?;
        if let Some(it) = header.segment {
            write!(f, ", part {:#06x} at {} of {}", it.identifier, it.offset, it.total)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn emitted(clnp: &Clnp<'_>, data: &[u8]) -> Vec<u8> {
        let mut octets = vec![0; clnp.header_len()];
        let mut to = Writer::new(&mut octets);
        clnp.emit(&mut to).unwrap();
        assert_eq!(to.len(), clnp.header_len());
        [&octets[..], data].concat()
    }

    fn example(len: usize) -> Header<'static> {
        let address = |number| Nsap::new(&[0x49, 0, 1, 2, 0, 0, 0, 0, number, Nsap::TRANSPORT]).unwrap();
        Header {
            lifetime: 0x40,
            reports_errors: true,
            destination: address(2),
            source: address(1),
            segment: None,
            options: &[],
            len,
        }
    }

    /// A header that tshark finds right.
    #[test]
    fn the_published_header() {
        let mut wanted = vec![0x81, 0x1f, 0x01, 0x40, 0x3c, 0x00, 0x31, 0xf8, 0xc5];
        for number in [2, 1] {
            wanted.extend([0x0a, 0x49, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00, number, 0x21]);
        }
        let data = [9; 0x12];
        wanted.extend(data);
        assert_eq!(emitted(&Clnp::Full(example(data.len())), &data), wanted);
        let (parsed, rest) = Clnp::parse(&wanted).unwrap();
        assert_eq!((parsed, rest), (Clnp::Full(example(data.len())), &data[..]));
        assert_eq!(parsed.to_string(), "CLNP 49.0001.0200.0000.0001.21 → 49.0001.0200.0000.0002.21, 18 octets");
    }

    #[test]
    fn every_changed_octet_of_a_header_is_noticed() {
        let whole = emitted(&Clnp::Full(example(4)), &[1, 2, 3, 4]);
        for at in 0..whole.len() - 4 {
            let mut changed = whole.clone();
            changed[at] ^= 0x41;
            assert!(Clnp::parse(&changed).is_err(), "octet {}", at + 1);
        }
    }

    #[test]
    fn an_error_report_comes_back() {
        let address = |number| Nsap::new(&[0x49, number]).unwrap();
        let (discard, len) = (Discard::LIFETIME, 3);
        let report = Report { lifetime: 4, destination: address(1), source: address(2), discard, location: 4, len };
        let packet = emitted(&Clnp::Report(report), &[1, 2, 3]);
        assert_eq!(packet[4], ERROR);
        assert_eq!(Clnp::parse(&packet), Ok((Clnp::Report(report), &[1, 2, 3][..])));
        assert_eq!(Clnp::Report(report).to_string(), "CLNP error 49.02 → 49.01, reason 0xa0");
    }

    /// RFC 994 §6.11: a checksum of 0 says that there is none.
    #[test]
    fn a_checksum_may_be_left_out() {
        let mut whole = emitted(&Clnp::Full(example(0)), &[]);
        whole[7..9].fill(0);
        whole[3] ^= 1;
        assert!(Clnp::parse(&whole).is_ok());
    }

    proptest! {
        #[test]
        fn any_octets_are_parsed_or_refused(
            packet in proptest::collection::vec(any::<u8>(), 0..120),
            ours in any::<bool>(),
        ) {
            let mut packet = packet;
            if ours && packet.len() >= FIXED {
                packet[0] = FULL;
                packet[1] = packet.len() as u8 / 2;
                packet[2] = VERSION;
                packet[4] = if packet[4] & 1 == 0 { packet[4] & 0xe0 | DATA } else { ERROR };
                let len = packet.len() as u16;
                packet[5..7].copy_from_slice(&len.to_be_bytes());
                packet[7..9].fill(0);
            }
            if let Ok((clnp, data)) = Clnp::parse(&packet) {
                let again = emitted(&clnp, data);
                prop_assert_eq!(Clnp::parse(&again), Ok((clnp, data)));
            }
        }

        /// Any other options may stand beside it; the first reason counts.
        #[test]
        fn an_error_report_is_parsed_as_it_was_emitted(
            fixed: (u8, u8, u8),
            addresses in (
                proptest::collection::vec(any::<u8>(), 0..=20),
                proptest::collection::vec(any::<u8>(), 0..=20),
            ),
            others in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..9)), 0..4),
            noise in proptest::collection::vec(any::<u8>(), 0..9),
            data in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (lifetime, discard, location) = fixed;
            let (destination, source) = (Nsap::new(&addresses.0).unwrap(), Nsap::new(&addresses.1).unwrap());
            let report =
                Report { lifetime, destination, source, discard: Discard(discard), location, len: data.len() };
            let packet = emitted(&Clnp::Report(report), &data);
            prop_assert_eq!(Clnp::parse(&packet), Ok((Clnp::Report(report), &data[..])));

            let before = others.iter().filter(|it| it.0 != REASON);
            let mut options: Vec<u8> =
                before.flat_map(|(code, value)| [&[*code, value.len() as u8], &value[..]].concat()).collect();
            options.extend([REASON, 2, discard, location]);
            options.extend(noise);
            let header = report.as_header(&options);
            let mut octets = vec![0; header.header_len()];
            header.emit(ERROR, &mut Writer::new(&mut octets)).unwrap();
            octets.extend(&data);
            let (parsed, rest) = Clnp::parse(&octets).unwrap();
            prop_assert_eq!((parsed, rest), (Clnp::Report(report), &data[..]));
            prop_assert_eq!(emitted(&parsed, rest), packet);
        }

        #[test]
        fn a_header_comes_back(
            lifetime: u8,
            reports_errors: bool,
            addresses in (
                proptest::collection::vec(any::<u8>(), 0..=20),
                proptest::collection::vec(any::<u8>(), 0..=20),
            ),
            segment in proptest::option::of((any::<u16>(), any::<u16>(), any::<u16>(), any::<bool>())),
            options in proptest::collection::vec(any::<u8>(), 0..100),
            data in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let segment = segment.map(|(identifier, offset, total, more)| Segment { identifier, offset, total, more });
            let (destination, source) = (Nsap::new(&addresses.0).unwrap(), Nsap::new(&addresses.1).unwrap());
            let header =
                Header { lifetime, reports_errors, destination, source, segment, options: &options, len: data.len() };
            let packet = emitted(&Clnp::Full(header), &data);
            prop_assert_eq!(Clnp::parse(&packet), Ok((Clnp::Full(header), &data[..])));
        }
    }
}

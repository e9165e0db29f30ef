//! LLC frames of ISO network protocols on Ethernet (ISO 8802-2; ISO 9577).
//!
//! ```text
//!  1-6  destination address      15  DSAP 0xFE
//!  7-12 source address           16  SSAP 0xFE
//! 13-14 length, or 0x8870        17  control 0x03 (UI)
//! ```
//! The length counts from octet 15 on and leaves out what pads a frame to 60 octets. Frames too long for it carry the
//! EtherType of jumbo LLC frames instead, and have no padding.

use super::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Llc {
    /// The destination address.
    pub destination: Mac,
    /// The source address.
    pub source: Mac,
    /// Octets of the packet behind the header.
    pub len: usize,
}

/// Why a frame is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLlc {
    /// It ends within its header.
    #[error("the frame is shorter than an LLC header")]
    Short,
    /// Its length says more than came.
    #[error("the frame says that it is longer than it is")]
    Length,
    /// It carries something else.
    #[error("the frame does not carry an ISO network protocol")]
    Other,
}

impl Llc {
    /// Octets of the header.
    pub const LEN: usize = 17;
    /// Longest packet of a frame with a length field.
    pub const MOST_WITH_LENGTH: usize = 1500 - 3;
    /// EtherType of jumbo LLC frames.
    pub const JUMBO: u16 = 0x8870;
    /// DSAP and SSAP of ISO network protocols, and unnumbered information.
    const SAPS_AND_CONTROL: [u8; 3] = [0xfe, 0xfe, 0x03];

    /// Where in the header the length stands.
    pub const LENGTH: std::ops::Range<usize> = 12..14;

    /// The length field of a frame with a packet of `len` octets, or what stands in its place.
    #[inline]
    pub fn length(len: usize) -> [u8; 2] {
        (if len <= Llc::MOST_WITH_LENGTH { len as u16 + 3 } else { Llc::JUMBO }).to_be_bytes()
    }

    /// The header of `frame`, and the packet in it.
    ///
    /// # Errors
    /// [`NotLlc`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Llc, &[u8]), NotLlc> {
        let (header, rest) = frame.split_first_chunk::<{ Llc::LEN }>().ok_or(NotLlc::Short)?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1, saps_and_control @ ..] = *header;
        let kind = u16::from_be_bytes([t0, t1]);
        if saps_and_control != Llc::SAPS_AND_CONTROL || kind > 1500 && kind != Llc::JUMBO {
            return Err(NotLlc::Other);
        }
        let len = match kind {
            Llc::JUMBO => rest.len(),
            length => usize::from(length).checked_sub(3).ok_or(NotLlc::Length)?,
        };
        let packet = rest.get(..len).ok_or(NotLlc::Length)?;
        let (destination, source) = (Mac([d0, d1, d2, d3, d4, d5]), Mac([s0, s1, s2, s3, s4, s5]));
        Ok((Llc { destination, source, len }, packet))
    }

    /// Writes the header.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn emit(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.put(&self.destination.0)?;
        to.put(&self.source.0)?;
        to.put(&Llc::length(self.len))?;
        to.put(&Llc::SAPS_AND_CONTROL)
    }
}

impl Display for Llc {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "LLC {} → {}, {} octets", self.source, self.destination, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn emitted(llc: &Llc, packet: &[u8]) -> Vec<u8> {
        let mut octets = [0; Llc::LEN];
        llc.emit(&mut Writer::new(&mut octets)).unwrap();
        [&octets[..], packet].concat()
    }

    #[test]
    fn padding_is_left_out() {
        let llc = Llc { destination: Mac([2, 0, 0, 0, 0, 2]), source: Mac([2, 0, 0, 0, 0, 1]), len: 4 };
        let mut frame = emitted(&llc, &[1, 2, 3, 4]);
        assert_eq!(frame[12..14], [0, 7]);
        frame.resize(60, 0);
        assert_eq!(Llc::parse(&frame), Ok((llc, &[1u8, 2, 3, 4][..])));
    }

    #[test]
    fn what_is_none_of_ours_is_told_apart() {
        let llc = Llc { destination: Mac::default(), source: Mac::default(), len: 1 };
        let frame = emitted(&llc, &[0]);
        for (at, octet, why) in
            [(12, 0x08, NotLlc::Other), (14, 0xaa, NotLlc::Other), (13, 2, NotLlc::Length), (13, 9, NotLlc::Length)]
        {
            let mut frame = frame.clone();
            frame[at] = octet;
            assert_eq!(Llc::parse(&frame), Err(why), "{at}");
        }
        assert_eq!(Llc::parse(&frame[..16]), Err(NotLlc::Short));
    }

    proptest! {
        #[test]
        fn any_octets_are_parsed_or_refused(
            frame in proptest::collection::vec(any::<u8>(), 0..80),
            ours in any::<bool>(),
        ) {
            let mut frame = frame;
            if ours && frame.len() >= Llc::LEN {
                frame[12] = 0;
                frame[14..17].copy_from_slice(&Llc::SAPS_AND_CONTROL);
            }
            if let Ok((llc, packet)) = Llc::parse(&frame) {
                prop_assert_eq!(llc.len, packet.len());
                let again = emitted(&llc, packet);
                prop_assert_eq!(Llc::parse(&again), Ok((llc, packet)));
            }
        }

        #[test]
        fn a_header_comes_back(destination: [u8; 6], source: [u8; 6], len in 0usize..9000) {
            let llc = Llc { destination: Mac(destination), source: Mac(source), len };
            let packet = vec![7; len];
            let frame = emitted(&llc, &packet);
            prop_assert_eq!(Llc::parse(&frame), Ok((llc, &packet[..])));
        }
    }
}

//! The packets of the receive path: behind the driver's header, a number, the Internet checksum, and octets that have
//! none of their own. Some are spoiled, and only a way that looks at them finds which.

use underpass_checksum::internet::Sum;

use crate::suite::driver::message;

/// What is in front of what is summed.
pub const HEADER: &[u8] = &message::HEADER;
/// Octets that differ from packet to packet: the number, the checksum, and a rest that aligns what follows.
pub const BEGINNING: usize = 16;
/// Where the checksum is.
const CHECKSUM: usize = 8;
/// One packet in so many is spoiled.
const SPOILED: u64 = 97;

/// Packets of one size.
#[derive(Debug)]
pub struct Packets {
    /// Header and all that follows it, as if the number and the checksum were 0.
    frame: Vec<u8>,
    /// The sum of what follows.
    rest: Sum,
}

impl Packets {
    /// Packets of which `size` octets are summed.
    pub fn of(size: usize) -> Packets {
        let mut frame = HEADER.to_vec();
        frame.resize(HEADER.len() + BEGINNING, 0);
        // The octets have no period that would hide errors from a sum.
        let octets = (0u64..).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
        frame.extend(octets.take(size.saturating_sub(BEGINNING)));
        let rest = Sum::of(&frame[HEADER.len()..]);
        Packets { frame, rest }
    }

    /// What is the same in all of them.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// What packet `number` has behind the header.
    pub fn beginning(&self, number: u64) -> [u8; BEGINNING] {
        let mut octets = [0; BEGINNING];
        let number_octets = number.to_be_bytes();
        octets[..CHECKSUM].copy_from_slice(&number_octets);
        let checksum = self.rest.then(Sum::of(&number_octets), 0).checksum();
        let wrong = u16::from(is_spoiled(number)) << (number % 16);
        octets[CHECKSUM..CHECKSUM + 2].copy_from_slice(&(checksum ^ wrong).to_be_bytes());
        octets
    }
}

/// Whether the packet was sent with a bit that is wrong.
pub fn is_spoiled(number: u64) -> bool {
    number % SPOILED == SPOILED - 1
}

/// The number of the packet with these octets in front of the driver's buffers, header and all.
pub fn number(octets: &[u8]) -> Option<u64> {
    octets.get(HEADER.len()..)?.first_chunk().map(|number| u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_intact_unless_it_is_spoiled() {
        for size in [64, 1480, 9480] {
            let packets = Packets::of(size);
            for packet in (0..3).chain([SPOILED - 1, SPOILED, 5 * SPOILED - 1, u64::MAX]) {
                let mut frame = packets.frame().to_vec();
                frame[HEADER.len()..][..BEGINNING].copy_from_slice(&packets.beginning(packet));
                assert_eq!(frame.len(), HEADER.len() + size);
                assert_eq!(number(&frame), Some(packet));
                assert_eq!(Sum::of(&frame[HEADER.len()..]).is_intact(), !is_spoiled(packet), "packet {packet}");
            }
        }
        assert!((0..SPOILED).filter(|packet| is_spoiled(*packet)).count() == 1);
        assert_eq!(number(&[0; 24]), None);
    }
}

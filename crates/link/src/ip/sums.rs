//! The sums of IPv4's header and of UDP's datagram with its pseudo-header (RFC 791 §3.1, RFC 768, RFC 8200 §8.1).
//! Packets here are such as [`super::Header::parse`] reads, without padding.

use super::{IPV4, IPV6, PROTOCOL, UDP, half};
use underpass_checksum::internet::Sum;

/// Where the sum of IPv4's header stands, and of a UDP header its own.
const OF_IPV4: usize = 10;
const OF_UDP: usize = 6;

/// Writes both sums, whatever stood there.
///
/// # Panics
/// If the packet is shorter than its headers.
#[inline]
pub fn write(packet: &mut [u8]) {
    clear(packet);
    let ip = header(packet);
    if ip == IPV4 - UDP {
        let sum = Sum::of(&packet[..ip]).checksum();
        put(packet, OF_IPV4, sum);
    }
    // Zero would say that there is none.
    let sum = match pseudo(packet, ip).then(Sum::of(&packet[ip..]), 0).checksum() {
        0 => 0xffff,
        sum => sum,
    };
    put(packet, ip + OF_UDP, sum);
}

/// Whether both sums are right. With IPv4 a sender may leave UDP's sum out. With `unfinished`, a UDP sum over the
/// pseudo-header alone passes too: the kernel leaves the rest to the device that sends, and within a host there is
/// none.
///
/// # Panics
/// If the packet is shorter than its headers.
#[inline]
pub fn are_right(packet: &[u8], unfinished: bool) -> bool {
    let ip = header(packet);
    if ip == IPV4 - UDP && !Sum::of(&packet[..ip]).is_intact() {
        return false;
    }
    let pseudo = pseudo(packet, ip);
    match half(packet, ip + OF_UDP) {
        0 => ip == IPV4 - UDP,
        sum if unfinished && sum == usize::from(pseudo.value()) => true,
        _ => pseudo.then(Sum::of(&packet[ip..]), 0).is_intact(),
    }
}

/// Makes both sums zero, as a link's packets have them.
///
/// # Panics
/// If the packet is shorter than its headers.
#[inline]
pub fn clear(packet: &mut [u8]) {
    let ip = header(packet);
    if ip == IPV4 - UDP {
        put(packet, OF_IPV4, 0);
    }
    put(packet, ip + OF_UDP, 0);
}

/// Octets of the header of IP.
#[inline]
fn header(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { IPV4 - UDP } else { IPV6 - UDP }
}

#[inline]
fn put(packet: &mut [u8], at: usize, sum: u16) {
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The sum of the pseudo-header: both addresses, which end the header of IP, the protocol and the length.
#[inline]
fn pseudo(packet: &[u8], ip: usize) -> Sum {
    let addresses = if ip == IPV4 - UDP { 2 * 4 } else { 2 * 16 };
    let [high, low] = ((packet.len() - ip) as u16).to_be_bytes();
    Sum::of(&packet[ip - addresses..ip]).then(Sum::of(&[0, PROTOCOL, high, low]), 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Header, Template};
    use super::*;
    use proptest::prelude::*;

    fn packet(six: bool, data: &[u8]) -> Vec<u8> {
        let [source, destination] =
            if six { ["[fd09::1]:500", "[fd09::2]:600"] } else { ["10.9.0.1:500", "10.9.0.2:600"] };
        let [source, destination] = [source, destination].map(|it| it.parse().unwrap());
        let template = Template::new(Header { source, destination, class: 2 }).unwrap();
        let mut octets = vec![0; template.size()];
        template.write(&mut octets, data.len());
        octets.extend(data);
        octets
    }

    proptest! {
        /// As a library of others computes them.
        #[test]
        fn sums_are_what_the_standards_say(
            six in any::<bool>(),
            data in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let plain = packet(six, &data);
            let mut sealed = plain.clone();
            write(&mut sealed);
            prop_assert!(are_right(&sealed, false) && are_right(&sealed, true));
            let copy = sealed.clone();
            let read = etherparse::SlicedPacket::from_ip(&copy).unwrap();
            let Some(etherparse::TransportSlice::Udp(udp)) = read.transport else { panic!("no UDP") };
            let expected = match read.net.unwrap() {
                etherparse::NetSlice::Ipv4(ip) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    udp.to_header().calc_checksum_ipv4(&ip, &data).unwrap()
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), &data).unwrap()
                }
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(udp.checksum(), expected);
            clear(&mut sealed);
            prop_assert_eq!(sealed, plain);
        }

        /// No bit that the sums cover may change. In IPv6's header they cover both addresses.
        #[test]
        fn a_changed_bit_is_noticed(
            six in any::<bool>(),
            data in proptest::collection::vec(any::<u8>(), 0..64),
            at in 0..112usize,
            bit in 0..8u32,
        ) {
            let mut sealed = packet(six, &data);
            write(&mut sealed);
            let at = if six { 8 + at % (sealed.len() - 8) } else { 1 + at % (sealed.len() - 1) };
            let ip = header(&sealed);
            sealed[at] ^= 1 << bit;
            // A UDP sum of zero says that there is no sum. Changing one bit makes the sum zero only if it had one bit
            // set.
            prop_assume!(six || half(&sealed, ip + OF_UDP) != 0);
            prop_assert!(!are_right(&sealed, false), "octet {}", at);
        }
    }

    #[test]
    fn a_sum_may_be_left_out_with_ipv4_and_unfinished_within_a_host() {
        for six in [false, true] {
            let mut sealed = packet(six, b"data");
            write(&mut sealed);
            let ip = header(&sealed);
            put(&mut sealed, ip + OF_UDP, 0);
            assert_eq!(are_right(&sealed, false), !six);
            let unfinished = pseudo(&sealed, ip).value();
            put(&mut sealed, ip + OF_UDP, unfinished);
            assert_eq!((are_right(&sealed, false), are_right(&sealed, true)), (false, true));
        }
    }
}

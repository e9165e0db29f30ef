//! Sums a packet: a UDP datagram over IPv4, by its sender, by a router and by its receiver. Then shows a change that
//! the Internet checksum cannot find, and Fletcher's checksum does.
//!
//! `cargo run --package underpass-checksum --example packet`

use underpass_checksum::Variant;
use underpass_checksum::fletcher::Sums;
use underpass_checksum::internet::Sum;

/// Octets of the two headers.
const IP: usize = 20;
const UDP: usize = 8;
/// Where the IP header has the time to live, which shares a 16-bit word with the protocol, and its checksum (RFC 791
/// §3.1).
const TIME_TO_LIVE: usize = 8;
const IP_CHECKSUM: usize = 10;
/// Where the UDP header has its checksum (RFC 768), from the beginning of the packet.
const UDP_CHECKSUM: usize = IP + 6;

fn main() {
    println!("Variants of this processor, the slowest first: {:?}\n", Variant::available().collect::<Vec<_>>());

    // The sender sums with zeros in the checksum fields, and then writes the complements of the sums there.
    let data = b"Sum me, and see.";
    let mut packet = packet(data);
    let header = Sum::of(&packet[..IP]).checksum();
    packet[IP_CHECKSUM..][..2].copy_from_slice(&header.to_be_bytes());
    let datagram = datagram(&packet).checksum();
    packet[UDP_CHECKSUM..][..2].copy_from_slice(&datagram.to_be_bytes());
    println!("sender    IP checksum {header:#06x}, UDP checksum {datagram:#06x}");

    // A router changes one word of the IP header. It mends the checksum without summing the header again (RFC 1624).
    let before = Sum::of(&packet[TIME_TO_LIVE..][..2]);
    packet[TIME_TO_LIVE] -= 1;
    let after = Sum::of(&packet[TIME_TO_LIVE..][..2]);
    let mended = Sum::from_value(!header).replacing(before, after, TIME_TO_LIVE).checksum();
    packet[IP_CHECKSUM..][..2].copy_from_slice(&mended.to_be_bytes());
    println!("router    IP checksum {mended:#06x}, since the time to live is {}", packet[TIME_TO_LIVE]);

    // The receiver sums everything, the checksum fields included. It copies the data in the same pass.
    let mut copy = [0; 16];
    let headers = Sum::of(&pseudo_header(&packet)).then(Sum::of(&packet[IP..IP + UDP]), 12);
    let whole = headers.then(Sum::copying(&packet[IP + UDP..], &mut copy), 12 + UDP);
    assert!(Sum::of(&packet[..IP]).is_intact() && whole.is_intact());
    println!("receiver  both are right: {:?}\n", String::from_utf8_lossy(&copy));

    // One changed bit is found. Two words that have changed places are not, because a sum does not depend on the order.
    let fletcher = Sums::of(&packet[IP + UDP..]);
    let mut flipped = packet.clone();
    flipped[IP + UDP + 4] ^= 0x10;
    let mut swapped = packet;
    swapped[IP + UDP..].rotate_left(2);
    for (what, packet) in [("one bit changed", flipped), ("words moved", swapped)] {
        let internet = if self::datagram(&packet).is_intact() { "finds nothing" } else { "finds it" };
        let iso = if Sums::of(&packet[IP + UDP..]) == fletcher { "finds nothing" } else { "finds it" };
        let data = String::from_utf8_lossy(&packet[IP + UDP..]).into_owned();
        println!("{what:<16} {data:?}: the Internet checksum {internet}, Fletcher's {iso}");
    }
}

/// The sum of a UDP datagram as RFC 768 has it: over the pseudo-header, the header and the data.
fn datagram(packet: &[u8]) -> Sum {
    Sum::gather([&pseudo_header(packet)[..], &packet[IP..]])
}

/// Both addresses, a zero, the protocol and the length of the datagram.
fn pseudo_header(packet: &[u8]) -> [u8; 12] {
    let mut header = [0; 12];
    header[..8].copy_from_slice(&packet[12..IP]);
    header[9] = packet[9];
    header[10..].copy_from_slice(&packet[IP + 4..IP + 6]);
    header
}

/// A datagram from 192.0.2.1 port 4000 to 198.51.100.2 port 53, with zeros for the checksums.
fn packet(data: &[u8]) -> Vec<u8> {
    let [ip_length, udp_length] = [IP + UDP + data.len(), UDP + data.len()].map(|it| (it as u16).to_be_bytes());
    let [source, destination] = [4000_u16, 53].map(u16::to_be_bytes);
    [
        &[0x45, 0][..],
        &ip_length,
        &[0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2],
        &source,
        &destination,
        &udp_length,
        &[0, 0],
        data,
    ]
    .concat()
}

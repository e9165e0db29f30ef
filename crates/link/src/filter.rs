//! Which packets of an interface a driver takes.

use std::net::SocketAddr;

/// Which packets of an interface a driver takes, of those to the interface's own address or to all; all others are left
/// to the kernel, as are those to groups, which other programs may have joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Filter {
    /// CLNP on Ethernet (ISO 8473), its inactive subset or all of it: LLC with the SAPs FE and FE and control 03,
    /// behind a length or the EtherType of jumbo frames (8870), and then 00 or 81. What else goes by these SAPs, as
    /// ES-IS and IS-IS do, is not ours.
    #[default]
    Llc,
    /// This EtherType.
    EtherType(u16),
    /// UDP datagrams for this address and port, in one piece and without options of IP, to the interface's own address
    /// alone. Over a packet socket none come: what that sees the kernel gives to the UDP socket of this address as
    /// well.
    Datagrams(SocketAddr),
}

/// Where in a frame the EtherType, or the length, stands, and what is behind it.
pub(crate) const ETHERTYPE_AT: u8 = 12;
pub(crate) const LLC_AT: u8 = 14;
/// The greatest length that stands in the EtherType's place (IEEE 802.3).
pub(crate) const LONGEST: u16 = 1500;
/// The EtherType of LLC frames that are longer.
pub(crate) const JUMBO: u16 = 0x8870;
/// The SAPs FE and FE, and the control octet of unnumbered information.
pub(crate) const SAPS: u16 = 0xfefe;
pub(crate) const UNNUMBERED: u8 = 0x03;
/// The first octet of CLNP's inactive subset, and of all of it (ISO 9577).
pub(crate) const PROTOCOLS: [u8; 2] = [0x00, 0x81];
/// What stands in two octets of the address of all, thrice.
pub(crate) const ALL: u16 = 0xffff;

/// Two octets each of an address, and where in a frame they stand as the destination.
pub(crate) fn halves(address: [u8; 6]) -> [(u8, u16); 3] {
    [0, 2, 4].map(|at| (at, u16::from_be_bytes([address[usize::from(at)], address[usize::from(at) + 1]])))
}

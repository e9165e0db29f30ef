//! Which packets are ours.

/// Which packets of an interface a driver takes; all others are left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Filter {
    /// ISO network protocols on Ethernet: LLC with the SAPs FE and FE and control 03, behind a length or the EtherType of jumbo
    /// frames (8870).
    #[default]
    Llc,
    /// This EtherType.
    EtherType(u16),
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

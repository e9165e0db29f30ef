//! The filter of a packet socket, in classic BPF.

use crate::filter::{self, ETHERTYPE_AT, Filter, JUMBO, LLC_AT, LONGEST, PROTOCOLS, SAPS, UNNUMBERED, halves};

/// Instructions of classic BPF (linux/filter.h): load from the packet, compare, and say how much of the packet is
/// wanted.
const LOAD_HALF: u16 = 0x28;
const LOAD_OCTET: u16 = 0x30;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const RETURN: u16 = 0x06;
const ALL: u32 = u32::MAX;
/// Offsets at which a filter reads the packet's kind and VLAN tag, as if they stood in the packet; and the kind of
/// packets that this host sends.
const KIND_AT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
const TAGGED_AT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
const OUTGOING: u32 = libc::PACKET_OUTGOING as u32;

impl Filter {
    /// This filter for a socket of an interface with this address, of what others send; what is too short for a load is
    /// not wanted. None where nothing is.
    pub(super) fn classic(self, own: [u8; 6]) -> Option<Vec<libc::sock_filter>> {
        let make = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
        let equal = |value: u16, jt, jf| make(JUMP_EQUAL, value.into(), jt, jf);
        let half = |at: u8| make(LOAD_HALF, at.into(), 0, 0);
        let mut code = vec![make(LOAD_OCTET, KIND_AT, 0, 0), make(JUMP_EQUAL, OUTGOING, 0, 1), make(RETURN, 0, 0, 0)];
        // What came with a VLAN's tag, which the kernel has taken out of the packet, is another network's.
        code.extend([make(LOAD_OCTET, TAGGED_AT, 0, 0), make(JUMP_EQUAL, 0, 1, 0), make(RETURN, 0, 0, 0)]);
        let [(a, first), (b, second), (c, third)] = halves(own);
        let all = filter::ALL;
        code.extend([half(a), equal(first, 0, 4), half(b), equal(second, 0, 2), half(c), equal(third, 7, 0)]);
        code.extend([half(a), equal(all, 0, 4), half(b), equal(all, 0, 2), half(c), equal(all, 1, 0)]);
        code.push(make(RETURN, 0, 0, 0));
        let [inactive, full] = PROTOCOLS.map(u16::from);
        code.extend(match self {
            Filter::Datagrams(_) => return None,
            Filter::EtherType(ours) => {
                vec![half(ETHERTYPE_AT), equal(ours, 0, 1), make(RETURN, ALL, 0, 0), make(RETURN, 0, 0, 0)]
            }
            Filter::Llc => vec![
                half(ETHERTYPE_AT),
                equal(JUMBO, 1, 0),
                make(JUMP_GREATER, LONGEST.into(), 8, 0),
                half(LLC_AT),
                equal(SAPS, 0, 6),
                make(LOAD_OCTET, u32::from(LLC_AT) + 2, 0, 0),
                equal(UNNUMBERED.into(), 0, 4),
                make(LOAD_OCTET, u32::from(LLC_AT) + 3, 0, 0),
                equal(inactive, 1, 0),
                equal(full, 0, 1),
                make(RETURN, ALL, 0, 0),
                make(RETURN, 0, 0, 0),
            ],
        });
        Some(code)
    }
}

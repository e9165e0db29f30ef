//! The XDP program: our packets go to the socket of the queue that they came on, all others to the kernel.

use super::assembler::{Assembler, Condition, Label, Operand, Register, Width};
use crate::filter::{ALL, ETHERTYPE_AT, Filter, JUMBO, LLC_AT, LONGEST, PROTOCOLS, SAPS, UNNUMBERED, halves};
use crate::ip;
use Operand::{Immediate, Register as Of};
use Register::{R0, R1, R2, R3, R4, R5};
use std::net::{IpAddr, SocketAddr};

/// `XDP_PASS` and `bpf_redirect_map`, of linux/bpf.h.
const PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;
/// Members of `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;
/// EtherTypes of IP's versions, the number of UDP, and the bit of IPv4 that says that a packet may not be fragmented.
const TYPE_OF_IPV4: u16 = libc::ETH_P_IP as u16;
const TYPE_OF_IPV6: u16 = libc::ETH_P_IPV6 as u16;
const UDP: u16 = 17;
const DO_NOT_FRAGMENT: i32 = 0x4000;

impl Filter {
    /// The program of an interface with this address, which looks sockets up in the map with this descriptor.
    pub fn program(self, own: [u8; 6], map: i32) -> Vec<u64> {
        let mut it = Assembler::default();
        let [to_all, addressed, ours, pass] = [(); 4].map(|()| it.label());
        let needed = match self {
            Filter::Llc => LLC_AT + 4,
            Filter::EtherType(_) => LLC_AT,
            Filter::Datagrams(local) => LLC_AT + ip::headers(local) as u8,
        };
        // What was sent to all, a datagram of ours is not: the kernel knows whether it takes such.
        let otherwise = if matches!(self, Filter::Datagrams(_)) { pass } else { to_all };
        it.load(R2, Width::Word, R1, DATA);
        it.load(R3, Width::Word, R1, DATA_END);
        it.set(R4, Of(R2));
        it.add(R4, Immediate(needed.into()));
        it.jump_if(R4, Condition::Greater, Of(R3), pass);
        for (at, half) in halves(own) {
            it.load(R5, Width::Half, R2, at.into());
            it.network_to_host(R5);
            it.jump_if(R5, Condition::Different, Immediate(half.into()), otherwise);
        }
        // The frame is for this interface. The jump is always taken, since a register equals itself.
        it.jump_if(R5, Condition::Equal, Of(R5), addressed);
        it.place(to_all);
        for at in [0, 2, 4] {
            it.load(R5, Width::Half, R2, at);
            // The same number in either order of octets.
            it.jump_if(R5, Condition::Different, Immediate(ALL.into()), pass);
        }
        it.place(addressed);
        it.load(R5, Width::Half, R2, ETHERTYPE_AT.into());
        it.network_to_host(R5);
        match self {
            Filter::Datagrams(local) => datagrams(&mut it, local, pass),
            Filter::EtherType(ours) => it.jump_if(R5, Condition::Different, Immediate(ours.into()), pass),
            Filter::Llc => {
                let llc = it.label();
                it.jump_if(R5, Condition::Equal, Immediate(JUMBO.into()), llc);
                it.jump_if(R5, Condition::Greater, Immediate(LONGEST.into()), pass);
                it.place(llc);
                it.load(R5, Width::Half, R2, LLC_AT.into());
                // The same number in either order of octets.
                it.jump_if(R5, Condition::Different, Immediate(SAPS.into()), pass);
                it.load(R5, Width::Octet, R2, i16::from(LLC_AT) + 2);
                it.jump_if(R5, Condition::Different, Immediate(UNNUMBERED.into()), pass);
                let [inactive, full] = PROTOCOLS;
                it.load(R5, Width::Octet, R2, i16::from(LLC_AT) + 3);
                it.jump_if(R5, Condition::Equal, Immediate(inactive.into()), ours);
                it.jump_if(R5, Condition::Different, Immediate(full.into()), pass);
            }
        }
        it.place(ours);
        it.load(R2, Width::Word, R1, RX_QUEUE_INDEX);
        it.load_map(R1, map);
        // The program's answer if the queue has no socket.
        it.set(R3, Immediate(PASS));
        it.call(REDIRECT_MAP);
        it.exit();
        it.place(pass);
        it.set(R0, Immediate(PASS));
        it.exit();
        it.finish()
    }
}

/// Goes on with a datagram for this address and port, whose EtherType is in R5, and elsewhere with anything else.
fn datagrams(it: &mut Assembler, local: SocketAddr, elsewhere: Label) {
    let at = |offset: usize| i16::from(LLC_AT) + offset as i16;
    let (ethertype, address, port) = match local.ip() {
        IpAddr::V4(ip) => (TYPE_OF_IPV4, (16, ip.octets().to_vec()), ip::IPV4 - 6),
        IpAddr::V6(ip) => (TYPE_OF_IPV6, (24, ip.octets().to_vec()), ip::IPV6 - 6),
    };
    let expect = |it: &mut Assembler, width: Width, offset: usize, value: u16| {
        it.load(R5, width, R2, at(offset));
        if matches!(width, Width::Half) {
            it.network_to_host(R5);
        }
        it.jump_if(R5, Condition::Different, Immediate(value.into()), elsewhere);
    };
    it.jump_if(R5, Condition::Different, Immediate(ethertype.into()), elsewhere);
    if local.is_ipv4() {
        // Without options; and no fragment, whether or not it might have become one.
        expect(it, Width::Octet, 0, 0x45);
        let whole = it.label();
        it.load(R5, Width::Half, R2, at(6));
        it.network_to_host(R5);
        it.jump_if(R5, Condition::Equal, Immediate(0), whole);
        it.jump_if(R5, Condition::Different, Immediate(DO_NOT_FRAGMENT), elsewhere);
        it.place(whole);
        expect(it, Width::Octet, 9, UDP);
    } else {
        expect(it, Width::Octet, 6, UDP);
    }
    let (begin, octets) = address;
    for (number, half) in octets.chunks_exact(2).enumerate() {
        expect(it, Width::Half, begin + 2 * number, u16::from_be_bytes([half[0], half[1]]));
    }
    expect(it, Width::Half, port, local.port());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{Header, Template};
    use crate::xdp::bpf::{Program, SocketMap};

    const OWN: [u8; 6] = [2, 0, 0x81, 0xfe, 0, 7];

    /// A frame with a datagram that has no data.
    fn datagram(header: Header) -> Vec<u8> {
        let template = Template::new(header).unwrap();
        let mut frame = vec![0; 14 + template.size()];
        frame[..6].copy_from_slice(&OWN);
        let ethertype = if header.source.is_ipv4() { TYPE_OF_IPV4 } else { TYPE_OF_IPV6 };
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        template.write(&mut frame[14..], 0);
        frame
    }

    fn frame(ethertype: u16, llc: [u8; 3]) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&OWN);
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[14..17].copy_from_slice(&llc);
        frame
    }

    /// The kernel verifies the program and runs it. There is no socket in the map; another answer in its place shows
    /// which packets are ours.
    #[test]
    fn ours_are_redirected_and_all_others_pass() {
        const ABORTED: u64 = 0;
        const ISO: [u8; 3] = [0xfe, 0xfe, 0x03];
        let map = match SocketMap::new(4) {
            Ok(map) => map,
            Err(error) => return println!("SKIPPED: no BPF here ({error}); run as root"),
        };
        let run = |filter: Filter, frame: &[u8]| {
            let mut code = filter.program(OWN, map.descriptor());
            // `r3 = XDP_PASS`, in front of the call.
            let call = code.iter().position(|it| it & 0xff == 0x85).unwrap();
            code[call - 1] = code[call - 1] & 0xffff_ffff | ABORTED << 32;
            Program::load(&code, true).unwrap().verdict(frame).unwrap()
        };
        for (ethertype, llc, ours) in [
            (46, ISO, true),
            (1500, ISO, true),
            (1501, ISO, false),
            (0x8870, ISO, true),
            (0x8871, ISO, false),
            (0x0800, ISO, false),
            (46, [0xfe, 0xfe, 0x13], false),
            (46, [0xfe, 0xaa, 0x03], false),
            (46, [0xaa, 0xfe, 0x03], false),
            (0x8870, [0x42, 0x42, 0x03], false),
        ] {
            let verdict = run(Filter::Llc, &frame(ethertype, llc));
            assert_eq!(verdict, if ours { ABORTED as u32 } else { PASS as u32 }, "{ethertype:#x} {llc:x?}");
        }
        for (protocol, ours) in [(0x00, true), (0x81, true), (0x82, false), (0x83, false), (0xcc, false)] {
            let mut frame = frame(46, ISO);
            frame[17] = protocol;
            assert_eq!(run(Filter::Llc, &frame), if ours { ABORTED as u32 } else { PASS as u32 }, "{protocol:#x}");
        }
        let to = |address: [u8; 6]| [&address[..], &frame(46, ISO)[6..]].concat();
        assert_eq!(run(Filter::Llc, &to([0xff; 6])), ABORTED as u32);
        // A neighbour's, a group's (of all IS), and those that are almost the address of all, or this one's.
        let group = [0x01, 0x80, 0xc2, 0, 0, 0x14];
        let almost = [0, 3, 5].map(|at| {
            let (mut own, mut all) = (OWN, [0xff; 6]);
            own[at] ^= 1;
            all[at] ^= 1;
            [own, all]
        });
        for address in almost.into_iter().flatten().chain([group, [0; 6]]) {
            assert_eq!(run(Filter::Llc, &to(address)), PASS as u32, "{address:x?}");
        }
        // The shortest that the kernel takes is too short for LLC.
        assert_eq!(run(Filter::Llc, &frame(46, ISO)[..17]), PASS as u32);
        for (ours, six) in [("10.9.0.2:700", false), ("[fd09::2]:700", true)] {
            let filter = Filter::Datagrams(ours.parse().unwrap());
            let other = if six { "[fd09::1]:9" } else { "10.9.0.1:9" };
            let header =
                |to: &str| Header { source: other.parse().unwrap(), destination: to.parse().unwrap(), class: 3 };
            let good = datagram(header(ours));
            assert_eq!(run(filter, &good), ABORTED as u32, "{ours}");
            // To all, of another type, with options, a fragment, not UDP, for another address or port, cut short.
            let (ip, port) = if six { (24, 42) } else { (16, 22) };
            let mut others = vec![(0, 0xff), (5, 8), (12, 9), (14 + ip + 3, 1), (14 + port, 1), (14 + port + 1, 1)];
            others.extend(if six {
                vec![(20, 44)]
            } else {
                vec![(14, 0x46), (20, 0x20), (21, 1), (20, 0x80), (23, 6)]
            });
            for (at, octet) in others {
                let mut frame = good.clone();
                frame[at] = octet;
                assert_eq!(run(filter, &frame), PASS as u32, "{ours}: octet {at} is {octet:#x}");
            }
            let mut to_all = good.clone();
            to_all[..6].fill(0xff);
            assert_eq!(run(filter, &to_all), PASS as u32);
            assert_eq!(run(filter, &good[..14 + ip::headers(header(ours).source) - 1]), PASS as u32);
        }
        let filter = Filter::EtherType(0x88b5);
        assert_eq!(run(filter, &frame(0x88b5, [0; 3])), ABORTED as u32);
        assert_eq!(run(filter, &frame(46, ISO)), PASS as u32);
        assert_eq!(run(filter, &frame(0x0806, ISO)), PASS as u32);
    }
}

//! How long packets may be on the way to a peer: found, and watched while it changes.

use super::super::support::{End, datagram, wait};
use super::{FOUR, GEOMETRY, SIX, address, dual_cable, ends, header};
use std::net::IpAddr;
use underpass_link::Link;
use underpass_link::error::Fault;
use underpass_link::rig::{INTERFACE, Namespace, RigError};
use underpass_link::udp::{Config, Udp};

/// How many buffers came back because their packet was refused.
fn refused(end: &mut End<Udp>) -> usize {
    end.reclaim();
    let count = end.free.iter().filter(|it| it.is_refused()).count();
    end.free.iter_mut().for_each(|it| it.refuse(false));
    count
}

#[test]
fn an_interface_that_takes_less_refuses_what_is_longer() {
    let Some(cable) = dual_cable(1500) else { return };
    for at in [FOUR, SIX] {
        for offload in [true, false] {
            let [mut from, mut to] = ends(&cable, at, &Config { offload, ..Config::default() });
            let there = header(&from, &to, 0);
            let long: Vec<_> = (0..30).map(|it| datagram(there, it, 1400)).collect();
            let short: Vec<_> = (0..30).map(|it| datagram(there, it, 1200)).collect();
            from.send_all(&long);
            (0..30).for_each(|_| drop(to.expect()));
            assert_eq!(
                (refused(&mut from), from.link.mtu(), from.link.path(there.destination).unwrap()),
                (0, 1500, 1500)
            );
            cable.ends[0].set_mtu(INTERFACE, 1300).unwrap();
            // Whether the kernel says so, or the link knows it already.
            from.send_all(&[&long[..10], &short, &long[..10]].concat());
            assert_eq!((refused(&mut from), from.left()), (20, 0));
            short.iter().for_each(|packet| assert!(to.expect() == *packet));
            match from.link.check() {
                Err(Fault::Path { peer, was: 1500, is: 1300 }) => assert_eq!(peer, there.destination),
                other => panic!("{other:?}"),
            }
            assert!(from.link.check().is_ok(), "it is told once");
            assert_eq!((from.link.mtu(), from.link.refusal().is_none()), (1300, true));
            cable.ends[0].set_mtu(INTERFACE, 1500).unwrap();
            assert!(matches!(from.link.check(), Err(Fault::Path { was: 1300, is: 1500, .. })));
            from.send_all(&long);
            long.iter().for_each(|packet| assert!(to.expect() == *packet));
            assert_eq!((refused(&mut from), from.link.counters().refused), (0, 20));
        }
    }
}

/// The two ends of a way over a router: each at its address, and what that is.
struct Routed {
    ends: [Namespace; 2],
    router: Namespace,
}

/// The addresses of the ends and of the router beside each, and the bits of a network.
const ENDS: [[&str; 2]; 2] = [["10.9.1.1:700", "10.9.2.1:700"], ["[fd09:1::1]:700", "[fd09:2::1]:700"]];
const ROUTERS: [[&str; 2]; 2] = [["10.9.1.2", "10.9.2.2"], ["fd09:1::2", "fd09:2::2"]];
const BITS: [u8; 2] = [24, 64];

fn routed() -> Result<Routed, RigError> {
    let routed = Routed { ends: [Namespace::new()?, Namespace::new()?], router: Namespace::new()? };
    for side in 0..2 {
        let (end, port) = (&routed.ends[side], ["r0", "r1"][side]);
        end.set_up("lo", true)?;
        end.lay(INTERFACE, (&routed.router, port), 1, 1500)?;
        for version in 0..2 {
            let (own, other) = (address(ENDS[version][side]).ip(), address(ENDS[version][1 - side]).ip());
            let router: IpAddr = ROUTERS[version][side].parse().expect("an address");
            end.add_address(INTERFACE, own, BITS[version])?;
            routed.router.add_address(port, router, BITS[version])?;
            end.set_up(INTERFACE, true)?;
            routed.router.set_up(port, true)?;
            end.route(other, if version == 0 { 32 } else { 128 }, router)?;
        }
    }
    for parameter in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        routed.router.set_parameter(parameter, "1").expect("a namespace of our own");
    }
    Ok(routed)
}

/// The link behind a router takes less, which the router says (ICMP, ICMPv6) when a packet has been too long.
#[test]
fn a_router_that_takes_less_is_heeded() {
    let routed = match routed() {
        Ok(routed) => routed,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    for at in ENDS {
        routed.router.set_mtu("r1", 1500).unwrap();
        let mut number = 0;
        let [mut from, mut to] = routed.ends.each_ref().map(|end| {
            number += 1;
            let mut end = End::udp(end, GEOMETRY, address(at[number - 1]), &Config::default()).unwrap();
            end.listen(256);
            end
        });
        let there = header(&from, &to, 0);
        let long: Vec<_> = (0..20).map(|it| datagram(there, it, 1400)).collect();
        let short: Vec<_> = (0..20).map(|it| datagram(there, it, 1200)).collect();
        // The ends find each other while addresses of IPv6 become valid.
        wait("a way", || {
            from.send_all(&long[..1]);
            to.receive()
        });
        while to.receive().is_some() {}
        routed.router.set_mtu("r1", 1300).unwrap();
        assert_eq!(from.link.path(there.destination).unwrap(), 1500);
        // The first are lost at the router, which says so.
        from.send_all(&long);
        wait("the router's word", || {
            assert!(from.receive().is_none());
            (from.link.mtu() == 1300).then_some(())
        });
        assert_eq!(refused(&mut from), 0);
        from.send_all(&[&short[..], &long].concat());
        assert_eq!(refused(&mut from), 20);
        short.iter().for_each(|packet| assert!(to.expect() == *packet));
        match from.link.check() {
            Err(Fault::Path { peer, was: 1500, is: 1300 }) => assert_eq!(peer, there.destination),
            other => panic!("{other:?}"),
        }
        assert!(from.link.refusal().is_none(), "segments go on");
    }
}

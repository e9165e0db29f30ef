//! Addresses that a link cannot be bound to, and closing a link and opening it again.

use super::super::support::{End, datagram, inside, wait};
use super::{FOUR, GEOMETRY, address, dual_cable, ends, header};
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::error::{Fault, OpenError};
use underpass_link::rig::INTERFACE;
use underpass_link::udp::{Config, Udp};

#[test]
fn each_refusal_names_its_remedy() {
    let (arena, _) = Arena::new(GEOMETRY);
    let open = |at: &str| Udp::open(address(at), &arena, &Config::default());
    let held = open("127.0.0.1:0").unwrap();
    let taken = held.local().to_string();
    for (at, remedy) in [
        ("0.0.0.0:700", "name one of those that `ip address` lists"),
        ("[::]:700", "name one of those that `ip address` lists"),
        ("224.0.0.1:700", "name one of those that `ip address` lists"),
        // For documentation (RFC 5737, RFC 3849).
        ("192.0.2.1:700", "`ip address` lists those that it has"),
        ("[2001:db8::1]:700", "`ip address` lists those that it has"),
        (&taken, "choose another port"),
    ] {
        let error = open(at).expect_err(remedy).to_string();
        assert!(error.contains(remedy), "{error}\nand not: {remedy}");
    }
    assert!(matches!(held.beside(), Err(OpenError::PortTaken { .. })), "it is not shared");
    let (small, _) = Arena::new(Geometry { frames: 4, frame_size: 64, headroom: 40 });
    let error = Udp::open(address("127.0.0.1:0"), &small, &Config::default()).expect_err("too small a frame");
    assert!(matches!(error, OpenError::Frames { .. }), "{error}");
}

/// The link is opened again with the buffers that it had, at the same port.
#[test]
fn a_link_that_is_closed_gives_back_all_buffers() {
    let Some(cable) = dual_cable(1500) else { return };
    let [here, there] = &cable.ends;
    let mut peer = End::udp(there, GEOMETRY, address(FOUR[1]), &Config::default()).unwrap();
    peer.listen(256);
    let (arena, mut free) = Arena::new(GEOMETRY);
    for round in 0..3 {
        let mut link = inside(here, || Udp::open(address(FOUR[0]), &arena, &Config::default())).unwrap();
        free.split_off(256).into_iter().for_each(|buffer| link.fill(buffer));
        let mut end = End::new(arena.clone(), free, link);
        let to = header(&end, &peer, 0);
        end.send_all(&(0..32).map(|it| datagram(to, it, 100)).collect::<Vec<_>>());
        let back = header(&peer, &end, 0);
        peer.send_all(&(0..32).map(|it| datagram(back, it, 100)).collect::<Vec<_>>());
        // Some have come to the link, and are with it.
        assert_eq!(end.expect(), datagram(back, 0, 100));
        let mut returned = Box::new(end.link).close();
        let counts = [returned.lent.len(), returned.given.len(), returned.own.len(), end.free.len()];
        assert_eq!(counts, [32, 256, 0, 224], "round {round}");
        assert!(returned.lent.iter().all(|it| it.len() == 128));
        free = end.free;
        free.append(&mut returned.lent);
        free.append(&mut returned.given);
        (0..32).for_each(|it| assert_eq!(peer.expect(), datagram(to, it, 100)));
    }
}

#[test]
fn a_link_whose_address_is_gone_says_so() {
    let Some(cable) = dual_cable(1500) else { return };
    let [mut from, mut to] = ends(&cable, FOUR, &Config::default());
    let there = header(&from, &to, 0);
    from.send_all(&[datagram(there, 1, 100)]);
    assert_eq!(to.expect(), datagram(there, 1, 100));
    cable.ends[0].remove_address(INTERFACE, there.source.ip(), 24).unwrap();
    from.send_all(&[datagram(there, 2, 100)]);
    assert_eq!((from.link.counters().unsent, from.left()), (1, 0));
    assert!(matches!(from.link.check(), Err(Fault::NoAddress { .. } | Fault::Unreachable { .. })));
    cable.ends[0].add_address(INTERFACE, there.source.ip(), 24).unwrap();
    wait("the way", || from.link.check().ok());
    from.send_all(&[datagram(there, 3, 100)]);
    assert_eq!(to.expect(), datagram(there, 3, 100));
}

/// An interface that is down leads to no peer: packets are lost, which is reported, until the interface is up again.
#[test]
fn an_interface_that_is_down_keeps_nothing() {
    let Some(cable) = dual_cable(1500) else { return };
    let [mut from, mut to] = ends(&cable, FOUR, &Config::default());
    let there = header(&from, &to, 0);
    from.send_all(&[datagram(there, 1, 100)]);
    assert_eq!(to.expect(), datagram(there, 1, 100));
    cable.ends[0].set_up(INTERFACE, false).unwrap();
    from.send_all(&(0..100).map(|it| datagram(there, it, 100)).collect::<Vec<_>>());
    assert_eq!((from.link.counters().unsent, from.left()), (100, 0));
    assert!(matches!(from.link.check(), Err(Fault::Unreachable { .. })));
    cable.ends[0].set_up(INTERFACE, true).unwrap();
    wait("the way", || from.link.check().ok());
    from.send_all(&[datagram(there, 3, 100)]);
    assert_eq!(to.expect(), datagram(there, 3, 100));
}

//! Ethernet, IP and UDP over AF_XDP and packet sockets: ends of different links understand each other, and what cannot
//! go directly goes through the kernel.

use super::refusals::Refusal;
use super::support::{End, FOUR, SIX, address, cable, datagram, dual_cable, inside, returns_all, until_up, wait};
use super::udp::queues::{PEERS, chosen, halves};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::driver::Driver;
use underpass_link::error::OpenError;
use underpass_link::ethernet::{Ethernet, Sides};
use underpass_link::filter::Filter;
use underpass_link::interface::Interface;
use underpass_link::ip::{self, Ecn, Header};
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::udp::{Config, Udp};
use underpass_link::wait::Wait;
use underpass_link::xdp;

const GEOMETRY: Geometry = Geometry { frames: 512, frame_size: 2048, headroom: 128 };
const DRIVERS: [Driver; 2] = [Driver::Xdp, Driver::Packet];
/// Packets that a sender may have the kernel send, so that it asks for a neighbour, within a test.
const ASKS: u64 = 4;

/// An end of a cable on its interface, or `None`, said aloud, where the driver is not to be had.
fn wired(cable: &Cable, end: usize, at: [&str; 2], driver: Driver) -> Option<End<Ethernet>> {
    match End::ethernet(&cable.ends[end], GEOMETRY, driver, address(at[end])) {
        Ok(mut end) => {
            end.listen(256);
            Some(end)
        }
        Err(error @ (OpenError::NoPermission { .. } | OpenError::NotInKernel { .. })) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// An end of a cable on a UDP socket.
fn socket(cable: &Cable, end: usize, at: &str) -> End<Udp> {
    let mut end =
        End::udp(&cable.ends[end], GEOMETRY, address(at), &Config::default()).expect("every user may open it");
    end.listen(256);
    end
}

/// The contents of a packet that mean something: hops, flow label and identification are the sender's kernel's choice.
fn said(packet: &[u8]) -> (String, Vec<u8>) {
    let (header, data) = Header::parse(packet).expect("a packet");
    (format!("{header:?}"), data.to_vec())
}

/// Sends packets together, and looks at what comes: all of them. A packet that asks for a neighbour may come out of
/// order.
fn carry(from: &mut End<impl Link>, to: &mut End<impl Link>, packets: &[Vec<u8>]) {
    from.send_all(packets);
    assert_eq!(from.left(), 0);
    let mut came: Vec<_> = packets.iter().map(|_| said(&to.expect())).collect();
    let mut sent: Vec<_> = packets.iter().map(|it| said(it)).collect();
    came.sort();
    sent.sort();
    assert!(came == sent, "{} packets, the first of {} octets", sent.len(), packets[0].len());
}

/// Bursts of packets of one length, of any lengths, and single ones, both ways.
fn every_burst<A: Link, B: Link>(a: &mut End<A>, b: &mut End<B>, at: [&str; 2]) {
    let mut random = fastrand::Rng::with_seed(1);
    let header = |from: usize, class| Header { source: address(at[from]), destination: address(at[1 - from]), class };
    for round in 0..60u32 {
        let from = round as usize % 2;
        let header = header(from, [0, 2, 0xb8][round as usize % 3]);
        let most = 1500 - header.size();
        let lengths: Vec<usize> = match round % 5 {
            0 => vec![most; 1 + round as usize],
            1 => vec![round as usize * 20 % most; 100],
            // The last segment of a message is shorter.
            2 => [vec![most - 7; 12], vec![5]].concat().repeat(3),
            3 => (0..100).map(|_| random.usize(0..=most)).collect(),
            _ => vec![random.usize(0..=most)],
        };
        let packets: Vec<_> = (0..).zip(lengths).map(|(number, data)| datagram(header, number, data)).collect();
        if from == 0 { carry(a, b, &packets) } else { carry(b, a, &packets) }
    }
}

/// Nearly all went directly, and came so where packets do; nothing was lost.
fn assert_direct(end: &End<Ethernet>, driver: Driver) {
    let Sides { direct, kernel, wrong } = end.link.sides();
    assert!(direct.sent > 1000 && kernel.sent <= ASKS, "{direct:?}, {kernel:?}");
    let (here, there) = if driver == Driver::Xdp { (direct, kernel) } else { (kernel, direct) };
    assert!(here.received > 1000 && there.received <= ASKS, "{direct:?}, {kernel:?}");
    let all = end.link.counters();
    assert_eq!((wrong, all.lost, all.refused, all.unsent), (0, 0, 0, 0));
}

#[test]
fn an_end_on_its_interface_and_one_on_a_socket_understand_each_other() {
    let Some(cable) = dual_cable(1500) else { return };
    for at in [FOUR, SIX] {
        for driver in DRIVERS {
            let Some(mut wired) = wired(&cable, 0, at, driver) else { continue };
            let mut socket = socket(&cable, 1, at[1]);
            println!("{:?}", wired.link);
            every_burst(&mut wired, &mut socket, at);
            assert_direct(&wired, driver);
            assert_eq!((wired.link.mtu(), wired.link.local()), (1500, address(at[0])));
            // Neither link was told that there is no peer.
            assert!(socket.link.check().is_ok() && wired.link.check().is_ok());
            returns_all(wired, GEOMETRY);
            returns_all(socket, GEOMETRY);
        }
    }
}

#[test]
fn ends_on_their_interfaces_understand_each_other() {
    let Some(cable) = dual_cable(1500) else { return };
    for (at, drivers) in [(FOUR, [Driver::Xdp; 2]), (SIX, [Driver::Xdp, Driver::Packet])] {
        let Some(mut a) = wired(&cable, 0, at, drivers[0]) else { continue };
        let Some(mut b) = wired(&cable, 1, at, drivers[1]) else { continue };
        every_burst(&mut a, &mut b, at);
        assert_direct(&a, drivers[0]);
        assert_direct(&b, drivers[1]);
        returns_all(a, GEOMETRY);
        returns_all(b, GEOMETRY);
    }
}

/// A neighbour that has to be found first, an address of this host, and one beyond another interface.
#[test]
fn what_cannot_go_directly_goes_through_the_kernel() {
    for driver in DRIVERS {
        let Some(cable) = cable(1500) else { return };
        let Some(mut from) = wired(&cable, 0, FOUR, driver) else { continue };
        let mut to = socket(&cable, 1, FOUR[1]);
        let header = |to: &str| Header { source: address(FOUR[0]), destination: address(to), class: 0 };
        let packet = datagram(header(FOUR[1]), 1, 500);
        assert!(from.send(&packet, packet.len()));
        let Sides { direct, kernel, .. } = from.link.sides();
        assert_eq!((direct.sent, kernel.sent), (0, 1), "the neighbour is not known");
        wait("a packet to a neighbour that was found", || {
            from.send(&packet, packet.len());
            to.receive().filter(|it| *it == packet)
        });
        wait("a packet that goes directly", || {
            from.send(&packet, packet.len());
            to.receive();
            (from.link.sides().direct.sent > 0).then_some(())
        });
        while to.receive().is_some() {}
        // Within this host.
        let mut here = socket(&cable, 0, "10.9.0.1:701");
        let before = from.link.sides();
        carry(&mut from, &mut here, &[datagram(header("10.9.0.1:701"), 2, 700)]);
        // By another interface.
        let [a, b] = &cable.ends;
        a.lay("other0", (b, "other1"), 1, 1500).expect("another cable");
        a.equip("other0", [10, 8, 0, 1].into()).expect("an address");
        b.equip("other1", [10, 8, 0, 2].into()).expect("an address");
        for interface in ["all", "other1"] {
            b.set_parameter(&format!("ipv4/conf/{interface}/rp_filter"), "0").expect("a parameter");
        }
        let mut there = socket(&cable, 1, "10.8.0.2:700");
        let packet = datagram(header("10.8.0.2:700"), 3, 900);
        wait("a packet by another interface", || {
            from.send(&packet, packet.len());
            there.receive().filter(|it| *it == packet)
        });
        let after = from.link.sides();
        assert_eq!(after.direct.sent, before.direct.sent, "neither went directly");
        assert!(after.kernel.sent >= before.kernel.sent + 2);
        from.reclaim();
        returns_all(from, GEOMETRY);
    }
}

/// The kernel says how long packets may be, and when that has changed.
#[test]
fn packets_are_as_long_as_the_interface_takes_them_now() {
    for driver in DRIVERS {
        let Some(cable) = dual_cable(1500) else { return };
        let Some(mut from) = wired(&cable, 0, FOUR, driver) else { continue };
        let mut to = socket(&cable, 1, FOUR[1]);
        let header = Header { source: address(FOUR[0]), destination: address(FOUR[1]), class: 0 };
        let data = |len: usize| len - header.size();
        carry(&mut from, &mut to, &[datagram(header, 1, data(1500))]);
        assert_eq!(from.link.path(address(FOUR[1])).expect("a way"), 1500);
        cable.ends[0].set_mtu(INTERFACE, 1300).expect("root may");
        let long = datagram(header, 2, data(1400));
        wait("a packet that is refused", || {
            from.send(&long, long.len());
            while to.receive().is_some() {}
            (from.link.counters().refused > 0).then_some(())
        });
        assert_eq!((from.link.path(address(FOUR[1])).expect("a way"), from.link.mtu()), (1300, 1300));
        carry(&mut from, &mut to, &[datagram(header, 3, data(1300)), datagram(header, 4, data(1299))]);
        from.reclaim();
        assert_eq!(
            from.free.iter().filter(|it| it.offset() != GEOMETRY.headroom).count(),
            0,
            "a buffer that is not as it was"
        );
        returns_all(from, GEOMETRY);
    }
}

/// A neighbour that gets another Ethernet address is sent to there, and a neighbour that was not heard of for a while
/// is asked by a packet that the kernel sends.
#[test]
fn neighbours_are_those_of_the_kernel_now() {
    for driver in DRIVERS {
        let Some(cable) = dual_cable(1500) else { return };
        let Some(mut from) = wired(&cable, 0, FOUR, driver) else { continue };
        let mut to = socket(&cable, 1, FOUR[1]);
        let header = Header { source: address(FOUR[0]), destination: address(FOUR[1]), class: 0 };
        let [a, b] = &cable.ends;
        let peer = address(FOUR[1]).ip();
        let mut sent = |from: &mut End<Ethernet>| {
            let before = from.link.sides();
            carry(from, &mut to, &[datagram(header, 1, 300)]);
            let after = from.link.sides();
            (after.direct.sent - before.direct.sent, after.kernel.sent - before.kernel.sent)
        };
        wait("a packet that goes directly", || (sent(&mut from) == (1, 0)).then_some(()));
        let moved = [2, 0, 0, 0, 7, 7];
        b.set_link_address(INTERFACE, moved).expect("root may");
        a.set_neighbour(INTERFACE, peer, moved, false).expect("root may");
        from.link.check().expect("its own interface is as it was");
        assert_eq!(sent(&mut from), (1, 0));
        a.set_neighbour(INTERFACE, peer, moved, true).expect("root may");
        from.link.check().expect("its own interface is as it was");
        assert_eq!([sent(&mut from), sent(&mut from)], [(0, 1), (1, 0)], "one packet asks");
    }
}

/// Frames made by hand, whatever they hold, with sums that are right or not: what comes is a datagram for this address.
#[test]
fn frames_of_any_contents_bring_no_packet_that_is_none() {
    let Some(cable) = dual_cable(1500) else { return };
    for (at, ethertype) in [(FOUR, libc::ETH_P_IP), (SIX, libc::ETH_P_IPV6)] {
        let Some(mut to) = wired(&cable, 0, at, Driver::Xdp) else { return };
        let filter = Filter::EtherType(0x88b5);
        let mut forger =
            inside(&cable.ends[1], || End::raw(&cable.ends[1], GEOMETRY, filter)).expect("root may open it");
        let own =
            inside(&cable.ends[0], || Interface::named(INTERFACE).expect("it is there").address()).expect("an address");
        let header = Header { source: address(at[1]), destination: address(at[0]), class: 0 };
        let frame = |packet: &[u8]| [&own[..], &[2, 0, 0, 0, 0, 9], &(ethertype as u16).to_be_bytes(), packet].concat();
        let good = datagram(header, 1, 100);
        let sealed = |mut packet: Vec<u8>| {
            ip::write_sums(&mut packet);
            packet
        };
        let first = frame(&sealed(good.clone()));
        wait("a good frame", || {
            forger.send(&first, first.len());
            to.receive().filter(|it| *it == good)
        });
        let mut random = fastrand::Rng::with_seed(3);
        for round in 0..4000 {
            let mut packet = sealed(datagram(header, random.u32(..), random.usize(0..200)));
            let (place, whole) = (random.usize(0..packet.len().min(60)), packet.len());
            packet[place] = random.u8(..);
            if round % 3 == 0 {
                packet.truncate(random.usize(20..=whole));
            }
            if round % 2 == 0 && Header::parse(&packet).is_ok_and(|it| it.0.size() + it.1.len() == packet.len()) {
                ip::write_sums(&mut packet);
            }
            let frame = frame(&packet);
            assert!(forger.send(&frame, frame.len()));
            while let Some(packet) = to.receive() {
                let (header, _) = Header::parse(&packet).expect("a packet");
                assert_eq!(header.destination, to.link.local());
            }
        }
        assert!(to.link.sides().wrong > 100, "{:?}", to.link.sides());
        wait("the last", || {
            forger.send(&first, first.len());
            to.receive().filter(|it| *it == good)
        });
    }
}

/// A packet wakes the sleeping thread, with its mark, whether it comes past the kernel or through it. Without a packet
/// nothing wakes the thread.
#[test]
fn a_thread_sleeps_on_it_and_is_woken_by_packets_alone() {
    let Some(cable) = dual_cable(1500) else { return };
    for driver in DRIVERS {
        let Some(mut to) = wired(&cable, 0, SIX, driver) else { continue };
        let mut from = socket(&cable, 1, SIX[1]);
        let mut sleeper = Wait::polling(Duration::ZERO);
        assert!(!sleeper.wait(&mut to.link, Duration::from_millis(20)).expect("it sleeps"));
        for class in [2, 3] {
            let header = Header { source: address(SIX[1]), destination: address(SIX[0]), class };
            let packet = datagram(header, 1, 100);
            std::thread::scope(|scope| {
                scope.spawn(|| from.send_all(std::slice::from_ref(&packet)));
                assert!(sleeper.wait(&mut to.link, super::support::PATIENCE).expect("it sleeps"));
            });
            let came = to.expect();
            assert_eq!(said(&came), said(&packet));
            let mark = Ecn::of(Header::parse(&came).expect("a packet").0.class);
            assert_eq!(mark, if class == 3 { Ecn::Congested } else { Ecn::Capable });
        }
        assert!(!sleeper.wait(&mut to.link, Duration::from_millis(20)).expect("it sleeps"));
    }
}

/// The kernel has no memory just now for what is in the ring: it goes while the thread sleeps.
#[test]
fn what_the_kernel_did_not_send_goes_while_a_thread_sleeps() {
    let Some(cable) = dual_cable(1500) else { return };
    let Some(mut from) = wired(&cable, 0, FOUR, Driver::Xdp) else { return };
    let mut to = socket(&cable, 1, FOUR[1]);
    let header = Header { source: address(FOUR[0]), destination: address(FOUR[1]), class: 0 };
    let packet = datagram(header, 1, 300);
    wait("a packet that goes directly", || {
        from.send(&packet, packet.len());
        to.receive();
        (from.link.sides().direct.sent > 0).then_some(())
    });
    assert!(!Wait::polling(Duration::ZERO).wait(&mut from.link, Duration::from_millis(20)).expect("it sleeps"));
    while to.receive().is_some() {}
    let packet = datagram(header, 2, 400);
    std::thread::scope(|scope| {
        let send = || {
            Refusal { call: libc::SYS_sendto, argument: None, errno: libc::ENOBUFS }.apply();
            from.send(&packet, packet.len())
        };
        assert!(scope.spawn(send).join().expect("it does not panic"));
    });
    assert_eq!(to.receive(), None);
    let mut sleeper = Wait::polling(Duration::ZERO);
    assert!(!sleeper.wait(&mut from.link, Duration::from_millis(20)).expect("it sleeps"));
    assert_eq!(said(&to.expect()), said(&packet));
}

/// While packets come past the kernel all the time, those that come through it have their turn.
#[test]
fn a_busy_interface_leaves_the_udp_socket_its_turn() {
    const BURST: u32 = 150;
    let Some(cable) = dual_cable(1500) else { return };
    let Some(mut to) = wired(&cable, 0, FOUR, Driver::Xdp) else { return };
    let mut there = socket(&cable, 1, FOUR[1]);
    // Within this host, so that it does not come over the interface.
    let mut here = socket(&cable, 0, "10.9.0.1:701");
    let header = |from: &str| Header { source: address(from), destination: address(FOUR[0]), class: 0 };
    let through = datagram(header("10.9.0.1:701"), 0, 100);
    let packets: Vec<_> = (0..BURST).map(|it| datagram(header(FOUR[1]), it, 100)).collect();
    for _ in 0..3 {
        there.send_all(&packets);
        here.send_all(std::slice::from_ref(&through));
        let came: Vec<_> = (0..=BURST).map(|_| said(&to.expect())).collect();
        let turn = came.iter().position(|it| *it == said(&through)).expect("it has come");
        assert!(turn <= 16, "after {turn} others");
    }
    let Sides { direct, kernel, .. } = to.link.sides();
    assert!(direct.received >= 3 * u64::from(BURST) && kernel.received == 3, "{direct:?}, {kernel:?}");
}

/// A link for each queue of an interface, at one address: over AF_XDP each takes what comes over its queue.
#[test]
fn queues_share_an_address_and_each_peer_has_one() {
    let Some(cable) = cable(1500) else { return };
    let [here, there] = &cable.ends;
    here.lay("two0", (there, "two1"), 2, 1500).expect("root may lay it");
    for (end, name, own) in [(here, "two0", 1), (there, "two1", 2)] {
        end.equip(name, Ipv4Addr::new(10, 8, 0, own)).expect("root may equip it");
    }
    until_up([here, there], ["10.8.0.1:700", "10.8.0.2:700"]);
    let (local, config) = (address("10.8.0.1:700"), xdp::Config::default());
    let alone = || {
        let (arena, _) = Arena::new(GEOMETRY);
        Ethernet::open(Driver::Packet, "two0", local, &arena, &config)?.beside(1)
    };
    assert!(matches!(inside(here, alone), Err(OpenError::PortTaken { .. })), "it is not shared");
    for driver in DRIVERS {
        let (arena, free) = Arena::new(GEOMETRY);
        let both = || {
            let first = Ethernet::open_shared(driver, "two0", local, &arena, &config)?;
            let second = first.beside(1)?;
            Ok([first, second])
        };
        let both = match inside(here, both) {
            Ok(both) => both,
            Err(error @ (OpenError::NoPermission { .. } | OpenError::NotInKernel { .. })) => {
                println!("SKIPPED: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let mut queues = halves(arena, free, both);
        let bind = || (0..PEERS).map(|_| UdpSocket::bind("10.8.0.2:0").expect("a port is free")).collect::<Vec<_>>();
        chosen(&mut queues, local, &inside(there, bind));
        for queue in &queues {
            let Sides { direct, kernel, .. } = queue.link.sides();
            let (come, other) = if driver == Driver::Xdp { (direct, kernel) } else { (kernel, direct) };
            assert!(come.received > 0 && other.received == 0, "{direct:?}, {kernel:?}");
            assert!(direct.sent > 0, "{direct:?}");
        }
    }
}

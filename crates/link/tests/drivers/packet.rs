//! The packet socket, by itself and against AF_XDP; and the choice of a driver.

use super::support::{End, cable, frame, inside, wait};
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::driver::Driver;
use underpass_link::error::{Fault, OpenError};
use underpass_link::filter::Filter;
use underpass_link::rig::INTERFACE;
use underpass_link::xdp::Config;

const GEOMETRY: Geometry = Geometry { frames: 256, frame_size: 2048, headroom: 128 };

/// Sends frames of these lengths, and looks at what comes.
fn carry<A: Link, B: Link>(from: &mut End<A>, to: &mut End<B>, lengths: impl Iterator<Item = usize>) {
    for (number, len) in lengths.enumerate() {
        let packet = frame(number as u32, len);
        // In as many pieces as it takes, and in more.
        let piece = if number % 2 == 0 { 1900 } else { len.div_ceil(16).clamp(1, 1900) };
        let piece = if from.link.pieces() == 1 { len } else { piece };
        assert!(from.send(&packet, piece), "buffers come back");
        assert!(to.expect() == packet, "{number}: {len} octets in pieces of {piece}");
    }
}

#[test]
fn packets_arrive_as_they_were() {
    let Some(cable) = cable(30_000) else { return };
    let [a, b] = cable.ends.each_ref().map(|end| End::raw(end, GEOMETRY, Filter::Llc).expect("root may open it"));
    let (mut a, mut b) = (a, b);
    assert_eq!(a.link.mtu(), 30_014);
    a.listen(100);
    b.listen(100);
    carry(&mut a, &mut b, (0..800).map(|it| 40 + it * 37));
    carry(&mut b, &mut a, (0..800).map(|it| 40 + it * 37));
    assert_eq!((a.link.counters().lost, b.link.counters().lost), (0, 0));
    assert_eq!((a.link.counters().sent, a.link.counters().received), (800, 800));
}

#[test]
fn both_drivers_understand_each_other() {
    let Some(cable) = cable(1500) else { return };
    let mut raw = End::raw(&cable.ends[0], GEOMETRY, Filter::Llc).expect("root may open it");
    let mut xdp = match End::open(&cable.ends[1], GEOMETRY, &Config::default()) {
        Ok(end) => end,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    raw.listen(64);
    xdp.listen(64);
    carry(&mut raw, &mut xdp, (0..1000).map(|it| 21 + it));
    carry(&mut xdp, &mut raw, (0..1000).map(|it| 21 + it));
}

#[test]
fn only_what_is_asked_for_comes() {
    let Some(cable) = cable(1500) else { return };
    let ours = Filter::EtherType(0x88b5);
    let mut llc = End::raw(&cable.ends[0], GEOMETRY, Filter::Llc).expect("root may open it");
    let mut other = End::raw(&cable.ends[0], GEOMETRY, ours).expect("root may open it");
    let mut peer = End::raw(&cable.ends[1], GEOMETRY, ours).expect("root may open it");
    llc.listen(64);
    other.listen(64);
    for number in 0..300 {
        let packet = frame(number, 100);
        let mut marked = packet.clone();
        marked[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
        // UDP is nobody's.
        let socket = inside(&cable.ends[1], || std::net::UdpSocket::bind("10.9.0.2:0")).unwrap();
        socket.send_to(&packet, "10.9.0.1:23003").unwrap();
        assert!(peer.send(&marked, 100) && peer.send(&packet, 100));
        assert_eq!(llc.expect(), packet);
        assert_eq!(other.expect(), marked);
    }
    assert_eq!((llc.receive(), other.receive()), (None, None));
    // Nor a neighbour's, or a group's, or what other protocols send by the same SAPs.
    for address in [[2, 0, 0, 0, 0, 9], [0x01, 0x80, 0xc2, 0, 0, 0x14]] {
        let packet = [&address[..], &frame(0, 100)[6..]].concat();
        assert!(peer.send(&packet, 100));
    }
    let mut hello = frame(0, 100);
    hello[17] = 0x83;
    assert!(peer.send(&hello, 100) && peer.send(&frame(1, 100), 100));
    assert_eq!((llc.expect(), llc.receive()), (frame(1, 100), None));
}

/// The kernel takes a VLAN's tag out of a packet, which looks as if it had none.
#[test]
fn what_comes_by_another_vlan_is_not_ours() {
    let Some(cable) = cable(1500) else { return };
    let [mut to, mut from] =
        cable.ends.each_ref().map(|end| End::raw(end, GEOMETRY, Filter::Llc).expect("root may open it"));
    to.listen(64);
    let packet = frame(0, 100);
    let tagged = [&packet[..12], &[0x81, 0x00, 0x00, 0x07], &packet[12..]].concat();
    assert!(from.send(&tagged, tagged.len()) && from.send(&frame(1, 100), 100));
    assert_eq!((to.expect(), to.receive()), (frame(1, 100), None));
}

#[test]
fn what_does_not_fit_is_refused_or_lost_and_counted() {
    let Some(cable) = cable(1500) else { return };
    let [mut from, mut to] =
        cable.ends.each_ref().map(|end| End::raw(end, GEOMETRY, Filter::Llc).expect("root may open it"));
    to.listen(32);
    let free = from.free.len();
    assert!(from.send(&frame(0, 1515), 1515) && from.send(&frame(1, 100)[..13], 13));
    from.reclaim();
    assert_eq!((from.link.counters().refused, from.free.len()), (2, free));
    assert_eq!(from.free.iter().filter(|it| it.is_refused()).count(), 2, "they say so");
    // The interface's longest packet is now shorter than this end knows.
    cable.ends[0].set_mtu(INTERFACE, 500).unwrap();
    assert!(from.send(&frame(2, 600), 600) && from.send(&frame(3, 400), 400));
    assert_eq!((from.link.counters().refused, from.link.counters().sent), (3, 1));
    let fault = from.link.check().unwrap_err();
    assert!(matches!(fault, Fault::Mtu { was: 1514, is: 514, .. }), "{fault}");
    assert_eq!(to.expect(), frame(3, 400));
    cable.ends[0].set_up(INTERFACE, false).unwrap();
    assert!(from.send(&frame(4, 100), 100));
    assert!(matches!(from.link.check().unwrap_err(), Fault::Down { .. }));
    cable.ends[0].set_up(INTERFACE, true).unwrap();
    wait("the carrier", || from.link.check().ok());
    // What could not be sent is kept for the next time.
    assert!(from.send(&frame(5, 100), 100));
    assert_eq!([to.expect(), to.expect()], [frame(4, 100), frame(5, 100)]);
    cable.ends[0].remove(INTERFACE).unwrap();
    for end in [&mut from, &mut to] {
        end.send(&frame(6, 100), 100);
        assert!(matches!(end.link.check().unwrap_err(), Fault::Gone { .. }));
    }
}

/// With any driver and behind any wrapper, the link is opened again with the buffers that it had.
#[test]
fn a_link_that_is_closed_gives_back_all_buffers() {
    let Some(cable) = cable(1500) else { return };
    for driver in [Driver::Packet, Driver::Xdp] {
        let (arena, mut free) = Arena::new(GEOMETRY);
        for round in 0..3 {
            let opened = inside(&cable.ends[0], || driver.open(INTERFACE, &arena, &Config::default()));
            let mut link = match opened {
                Ok(opened) => opened.link,
                Err(error) => {
                    println!("SKIPPED: {error}");
                    break;
                }
            };
            free.split_off(128).into_iter().for_each(|buffer| link.fill(buffer));
            let mut packets = std::collections::VecDeque::new();
            for number in 0..32 {
                let mut buffer = free.pop().unwrap();
                arena.fill(&mut buffer, 100);
                arena.octets_mut(&mut buffer).copy_from_slice(&frame(number, 100));
                packets.push_back(buffer);
            }
            link.transmit(&mut packets);
            let returned = link.close();
            let counts = [returned.lent.len(), returned.given.len(), returned.own.len(), packets.len()];
            assert_eq!(counts, [32, 128, 0, 0], "{driver:?}, round {round}");
            assert!(returned.lent.iter().all(|it| it.len() == 100));
            free.extend(returned.all());
        }
    }
}

#[test]
fn auto_takes_af_xdp_and_else_says_why_not() {
    let Some(cable) = cable(1500) else { return };
    let (config, here) = (Config::default(), &cable.ends[0]);
    let (arena, _) = Arena::new(GEOMETRY);
    let open = || inside(here, || Driver::Auto.open(INTERFACE, &arena, &config)).expect("one of them");
    let first = open();
    if let Some(reason) = first.instead {
        return println!("SKIPPED: {reason}");
    }
    assert_eq!(first.mode, "native XDP, copy");
    let second = open();
    assert_eq!(second.mode, "packet socket");
    assert!(matches!(second.instead, Some(OpenError::ForeignProgram { .. })));
    drop(first);
    wait("the interface", || open().instead.is_none().then_some(()));
}

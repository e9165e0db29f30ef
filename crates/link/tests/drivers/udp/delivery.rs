//! Packets arrive as they were sent: with both versions of IP, in segments and each by itself.

use super::super::support::{End, PATIENCE, datagram, returns_all, wait};
use super::{FOUR, GEOMETRY, SIX, dual_cable, ends, header, local_ends};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use underpass_link::Link;
use underpass_link::arena::Geometry;
use underpass_link::bell::Bell;
use underpass_link::error::Fault;
use underpass_link::ip::{Ecn, Header};
use underpass_link::udp::{Config, Udp};
use underpass_link::wait::Wait;

/// Sends packets together, and looks at what comes: all of them, in order.
fn carry(from: &mut End<Udp>, to: &mut End<Udp>, packets: &[Vec<u8>]) {
    from.send_all(packets);
    assert_eq!(from.left(), 0);
    for (number, packet) in packets.iter().enumerate() {
        let came = to.expect();
        assert!(came == *packet, "{number} of {}: {} octets, and not {}", packets.len(), came.len(), packet.len());
    }
}

/// Bursts of packets of one length, of any lengths, and single ones, both ways.
fn every_burst([a, b]: &mut [End<Udp>; 2], longest: usize) {
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..60u32 {
        let (from, to) = if round % 2 == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
        let header = header(from, to, [0, 2, 0xb8][round as usize % 3]);
        let most = longest - header.size();
        let lengths: Vec<usize> = match round % 5 {
            0 => vec![most; 1 + round as usize],
            1 => vec![round as usize * 20 % most; 100],
            // The last segment of a message is shorter.
            2 => [vec![most - 7; 12], vec![5]].concat().repeat(3),
            3 => (0..100).map(|_| random.usize(0..=most)).collect(),
            _ => vec![random.usize(0..=most)],
        };
        let packets: Vec<_> = (0..).zip(lengths).map(|(number, data)| datagram(header, number, data)).collect();
        carry(from, to, &packets);
    }
}

#[test]
fn packets_arrive_as_they_were_over_loopback() {
    for (ip, offload) in
        [(Ipv4Addr::LOCALHOST.into(), true), (Ipv6Addr::LOCALHOST.into(), true), (Ipv4Addr::LOCALHOST.into(), false)]
    {
        let geometry = Geometry { frames: 256, frame_size: 4096, headroom: 64 };
        let mut ends = local_ends(ip, geometry, &Config { offload, ..Config::default() });
        every_burst(&mut ends, 4096 - 64);
        ends.into_iter().for_each(|end| returns_all(end, geometry));
    }
}

#[test]
fn packets_arrive_as_they_were_over_a_cable() {
    let Some(cable) = dual_cable(1500) else { return };
    for at in [FOUR, SIX] {
        for offload in [true, false] {
            let mut ends = ends(&cable, at, &Config { offload, ..Config::default() });
            let mode = if offload { "UDP, in segments both ways" } else { "UDP, each by itself" };
            assert_eq!(ends[0].link.mode(), mode);
            every_burst(&mut ends, 1500);
            for end in &ends {
                let counters = end.link.counters();
                assert_eq!((counters.refused, counters.lost, counters.unsent), (0, 0, 0));
                assert_eq!((end.link.mtu(), counters.sent > 1000), (1500, true));
                assert!(counters.received > 1000);
            }
            let [a, b] = ends;
            returns_all(a, GEOMETRY);
            returns_all(b, GEOMETRY);
        }
    }
}

/// A burst in segments takes few system calls, either way; each by itself it takes more.
#[test]
fn a_burst_takes_few_calls() {
    let Some(cable) = dual_cable(1500) else { return };
    let calls = [true, false].map(|offload| {
        let [mut from, mut to] = ends(&cable, FOUR, &Config { offload, ..Config::default() });
        let header = header(&from, &to, 0);
        let packets: Vec<_> = (0..200).map(|number| datagram(header, number, 1400)).collect();
        carry(&mut from, &mut to, &packets);
        // The second burst is expected to be like the first.
        let before = to.link.counters().polls;
        carry(&mut from, &mut to, &packets);
        let calls = from.link.counters().wakeups;
        (calls, to.link.counters().polls - before)
    });
    println!("calls to send and to receive: {calls:?}");
    let [(sends, receives), (alone, _)] = calls;
    // 400 packets in messages of at most 46, 16 messages a call; and 200 that come in 5 messages, a call or two for
    // each.
    assert!(sends <= 4 && alone >= 26, "{calls:?}");
    assert!(receives <= 200, "{calls:?}");
}

/// Marks of congestion, and all of the traffic class, come as they went, packet by packet.
#[test]
fn the_traffic_class_comes_with_each_packet() {
    let Some(cable) = dual_cable(1500) else { return };
    for at in [FOUR, SIX] {
        let [mut from, mut to] = ends(&cable, at, &Config::default());
        let classes = [2, 2, 3, 2, 0, 1, 0xb8, 0xbb, 3, 3];
        let packets: Vec<_> =
            (0..).zip(classes).map(|(it, class)| datagram(header(&from, &to, class), it, 900)).collect();
        carry(&mut from, &mut to, &packets);
        from.send_all(&packets);
        let marks = classes.map(|_| Ecn::of(Header::parse(&to.expect()).unwrap().0.class));
        assert_eq!(marks, classes.map(Ecn::of));
    }
}

/// The thread waits for other descriptors too; and an error that is not taken keeps no thread awake.
#[test]
fn a_thread_sleeps_on_it_and_is_woken_by_packets_alone() {
    let [mut from, mut to] = local_ends(Ipv4Addr::LOCALHOST.into(), GEOMETRY, &Config::default());
    let bell = Bell::new().unwrap();
    let asleep = |end: &mut End<Udp>, limit: Duration| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let readiness = end.link.readiness().expect("it has a descriptor");
        let time = Timespec::try_from(readiness.look.unwrap_or(limit).min(limit)).unwrap();
        poll(&mut [PollFd::new(&*bell, PollFlags::IN), readiness.poll()], Some(&time)).unwrap()
    };
    assert_eq!(asleep(&mut to, Duration::from_millis(20)), 0);
    bell.ring();
    assert_eq!(asleep(&mut to, PATIENCE), 1);
    bell.silence();
    let there = header(&from, &to, 0);
    from.send_all(&[datagram(there, 1, 100)]);
    assert_eq!(asleep(&mut to, PATIENCE), 1);
    assert!(Wait::polling(Duration::ZERO).wait(&mut to.link, PATIENCE).unwrap());
    assert_eq!(to.expect(), datagram(there, 1, 100));
    // The peer is gone, which the kernel reports by an error.
    let gone = to.link.local();
    drop(to);
    from.send_all(&[datagram(there, 2, 100)]);
    assert_eq!(asleep(&mut from, PATIENCE), 1);
    assert!(from.receive().is_none());
    assert_eq!(asleep(&mut from, Duration::from_millis(20)), 0, "the error was taken");
    match from.link.check() {
        Err(Fault::Unreachable { peer, error }) => {
            assert_eq!((peer, error.raw_os_error()), (gone, Some(libc::ECONNREFUSED)));
        }
        other => panic!("{other:?}"),
    }
    assert!(from.link.check().is_ok(), "it is told once");
    // The packets after that are sent all the same, for a receiver that may come.
    from.send_all(&[datagram(there, 3, 100), datagram(there, 4, 100)]);
    wait("the error", || from.link.check().err());
    assert_eq!((from.link.counters().unsent, from.left()), (0, 0));
    returns_all(from, GEOMETRY);
}

/// A receiver that does not read loses packets, as over any network, and is told how many.
#[test]
fn what_there_is_no_room_for_is_lost_and_counted() {
    let Some(cable) = dual_cable(1500) else { return };
    let [mut from, mut to] = ends(&cable, FOUR, &Config { offload: false, ..Config::default() });
    let (there, mut sent) = (header(&from, &to, 0), 0);
    while to.link.counters().lost == 0 {
        from.send_all(&(0..100).map(|it| datagram(there, it, 1400)).collect::<Vec<_>>());
        sent += 100;
        assert!(sent < 1_000_000, "nothing is lost with a backlog of {} octets", to.link.backlog());
    }
    let mut came = 0;
    while to.receive().is_some() {
        came += 1;
    }
    assert_eq!(came + to.link.counters().lost, sent);
    returns_all(to, GEOMETRY);
}

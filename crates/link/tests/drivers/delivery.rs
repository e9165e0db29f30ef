//! Packets arrive as they were sent; and packets that are not ours reach the kernel as before.

use super::support::{End, cable, ends, frame, inside};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::error::OpenError;
use underpass_link::xdp::{Attach, Config, Xdp};

const GEOMETRY: Geometry = Geometry { frames: 256, frame_size: 2048, headroom: 128 };

/// Frames of all lengths that one buffer holds, both ways, by either kind of program.
#[test]
fn frames_arrive_as_they_were() {
    let Some(cable) = cable(1500) else { return };
    for attach in [Attach::Native, Attach::Generic] {
        let Some(mut ends) = ends(&cable, GEOMETRY, &Config { attach, ..Config::default() }) else { return };
        println!("{}", ends[0].link.mode());
        assert_eq!(ends[0].link.mtu(), 1514);
        ends.iter_mut().for_each(|it| it.listen(128));
        for number in 0..3000 {
            let (from, to) = if number % 2 == 0 { (0, 1) } else { (1, 0) };
            let packet = frame(number, 21 + number as usize % 1494);
            assert!(ends[from].send(&packet, packet.len()), "buffers come back");
            assert_eq!(ends[to].expect(), packet, "{number}, {attach:?}");
        }
        for end in ends {
            assert_eq!(end.link.counters().lost, 0);
            let all = end.free.len() + Box::new(end.link).close().all().len();
            assert_eq!(all, GEOMETRY.frames as usize, "buffers are lost");
        }
    }
}

/// Packets in several buffers, up to the largest that a veth pair takes.
#[test]
fn packets_in_pieces_arrive_as_they_were() {
    let Some(cable) = cable(60_000) else { return };
    let geometry = Geometry { frames: 256, frame_size: 4096, headroom: 64 };
    let Some(mut ends) = ends(&cable, geometry, &Config::default()) else { return };
    if ends[0].link.pieces() == 1 {
        return println!("SKIPPED: this kernel has no packets in several frames (Linux 6.6)");
    }
    assert!(ends[0].link.mtu() == 60_014);
    ends.iter_mut().for_each(|it| it.listen(128));
    let [from, to] = &mut ends;
    for number in 0..600 {
        let packet = frame(number, 40 + number as usize * 100);
        let piece = [4000, 3700, packet.len().div_ceil(16).clamp(1, 4000)][number as usize % 3];
        let pieces = packet.len().div_ceil(piece);
        if pieces <= from.link.pieces() {
            assert!(from.send(&packet, piece), "buffers come back");
            assert!(to.expect() == packet, "{number}: {} octets in pieces of {piece}", packet.len());
        }
    }
    assert_eq!((from.link.counters().refused, to.link.counters().lost), (0, 0));
}

/// Packet memory of huge pages, where some are reserved, else of ordinary ones.
#[test]
fn frames_of_a_large_arena_arrive_as_they_were() {
    let Some(cable) = cable(1500) else { return };
    let geometry = Geometry { frames: 1024, frame_size: 4096, headroom: 128 };
    let Some([mut from, mut to]) = ends(&cable, geometry, &Config::default()) else { return };
    println!("{:?} pages", from.arena.pages());
    to.listen(1024);
    for number in 0..5000 {
        let packet = frame(number, 21 + number as usize % 1494);
        assert!(from.send(&packet, packet.len()), "buffers come back");
        assert_eq!(to.expect(), packet, "{number}");
    }
}

/// Two queues of each end over one arena: what is sent over one comes on the same one of the other end.
#[test]
fn queues_share_an_arena() {
    let Some(cable) = cable(1500) else { return };
    let here = &cable.ends[0];
    here.lay("two0", (here, "two1"), 2, 1500).unwrap();
    for interface in ["two0", "two1"] {
        here.set_up(interface, true).unwrap();
    }
    let both = |interface| {
        let (arena, mut free) = Arena::new(GEOMETRY);
        let mut first = match inside(here, || Xdp::open(interface, &arena, &Config::default())) {
            Ok(first) => first,
            Err(error) => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let config = Config { queue: 1, ..Config::default() };
        // In another namespace its number is another interface's, or nobody's.
        assert!(matches!(first.beside(&config), Err(OpenError::NoInterface { .. })));
        let link = &mut first;
        let second = inside(here, move || link.beside(&config)).unwrap();
        let half = free.split_off(128);
        let mut ends = [End::new(arena.clone(), free, first), End::new(arena, half, second)];
        ends.iter_mut().for_each(|it| it.listen(64));
        Some(ends)
    };
    let (Some(mut from), Some(mut to)) = (both("two0"), both("two1")) else { return };
    for number in 0..1000 {
        let (queue, packet) = (number as usize % 2, frame(number, 100 + number as usize));
        assert!(from[queue].send(&packet, packet.len()), "buffers come back");
        assert_eq!(to[queue].expect(), packet);
    }
    // The second goes on without the first, which has registered the memory.
    let ([first, mut from], [_, mut to]) = (from, to);
    drop(first);
    for number in 0..100 {
        let packet = frame(number, 100);
        assert!(from.send(&packet, 100), "buffers come back");
        assert_eq!(to.expect(), packet);
    }
}

/// While frames of ours go, so do TCP and UDP, which the program passes to the kernel.
#[test]
fn other_traffic_goes_on() {
    let Some(cable) = cable(1500) else { return };
    let Some(mut ends) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    ends.iter_mut().for_each(|it| it.listen(128));
    let [at, other] = &cable.ends;
    let listener = inside(other, || TcpListener::bind("10.9.0.2:23001")).unwrap();
    let mut one = inside(at, || TcpStream::connect("10.9.0.2:23001")).unwrap();
    let (mut two, _) = listener.accept().unwrap();
    let bell = inside(other, || UdpSocket::bind("10.9.0.2:23002")).unwrap();
    let ring = inside(at, || UdpSocket::bind("10.9.0.1:23002")).unwrap();
    bell.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for number in 0..500u32 {
        let packet = frame(number, 600);
        assert!(ends[0].send(&packet, 600));
        one.write_all(&number.to_be_bytes()).unwrap();
        ring.send_to(&number.to_be_bytes(), "10.9.0.2:23002").unwrap();
        let (mut by_tcp, mut by_udp) = ([0; 4], [0; 4]);
        two.read_exact(&mut by_tcp).unwrap();
        bell.recv(&mut by_udp).unwrap();
        assert_eq!([by_tcp, by_udp].map(u32::from_be_bytes), [number; 2]);
        assert_eq!(ends[1].expect(), packet);
    }
    assert_eq!(ends[1].link.receive(&mut Vec::new(), 1), 0, "what is not ours has come to us");
}

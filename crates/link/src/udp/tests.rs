//! What is seen of the link over a UDP socket from within alone: times beside packets, and what it knows of ways.

use super::*;
use crate::arena::Geometry;
use crate::ip::Template;

/// A buffer as a packet of 1,000 octets from one end to the other.
fn packet(arena: &Arena, mut buffer: Buffer, [source, destination]: [SocketAddr; 2]) -> Buffer {
    let template = Template::new(Header { source, destination, class: 2 }).unwrap();
    arena.fill(&mut buffer, 1000);
    template.write(&mut arena.octets_mut(&mut buffer)[..template.size()], 1000 - template.size());
    buffer
}

/// Answers to ever new hosts take no memory without end.
#[test]
fn ways_of_peers_that_are_not_used_are_forgotten() {
    let (arena, _) = Arena::new(Geometry { frames: 8, frame_size: 1024, headroom: 0 });
    let mut link = Udp::open("127.0.0.1:0".parse().unwrap(), &arena, &Config::default()).unwrap();
    let peer = |port: u32| SocketAddr::new([127, 0, 0, 1].into(), port as u16);
    link.pace(peer(1), NonZeroU64::new(1000)).unwrap();
    for port in 2..=5000 {
        assert!(link.longest(peer(port)) > 0 && link.longest(peer(2)) > 0);
    }
    assert_eq!(link.paths.len(), crate::table::MOST);
    let known = [1, 2, 3, 5000].map(|port| link.paths.find(peer(port)).is_some());
    assert_eq!(known, [true, true, false, true]);
}

/// Whether or not the interface keeps them, the kernel takes a message's time beside it.
#[test]
fn packets_go_with_their_times_beside_them() {
    let (arena, mut free) = Arena::new(Geometry { frames: 64, frame_size: 1024, headroom: 0 });
    let open = || Udp::open("127.0.0.1:0".parse().unwrap(), &arena, &Config::default()).unwrap();
    let (mut from, mut to) = (open(), open());
    free.drain(..32).for_each(|buffer| to.fill(buffer));
    let peer = to.local();
    let rate = NonZeroU64::new(10_000_000).unwrap();
    assert_eq!(from.pace(peer, Some(rate)).unwrap(), Timekeeper::Link, "loopback has no discipline");
    from.socket.take_times().unwrap();
    let path = from.paths.find(peer).unwrap();
    from.paths.get_mut(path).pace = Some(Pace::new(rate, Timekeeper::Kernel, monotonic()));
    let mut packets: VecDeque<_> = free.drain(..).map(|it| packet(&arena, it, [from.local(), peer])).collect();
    from.transmit(&mut packets);
    let (mut come, begin) = (Vec::new(), std::time::Instant::now());
    while come.len() < 32 {
        to.receive(&mut come, 64);
        assert!(begin.elapsed() < Duration::from_secs(20), "{}: {:?}", come.len(), to.counters());
    }
    assert_eq!((from.counters().sent, from.paths.next_due(), packets.len()), (32, None, 0));
}

/// What the kernel was given ahead leaves first, where a pace ends: packets without a time would overtake it.
#[test]
fn the_end_of_a_pace_overtakes_nothing() {
    let (arena, mut free) = Arena::new(Geometry { frames: 64, frame_size: 1024, headroom: 0 });
    let open = || Udp::open("127.0.0.1:0".parse().unwrap(), &arena, &Config::default()).unwrap();
    let (mut from, to) = (open(), open());
    let peer = to.local();
    let rate = NonZeroU64::new(100_000).unwrap();
    from.pace(peer, Some(rate)).unwrap();
    from.socket.take_times().unwrap();
    let path = from.paths.find(peer).unwrap();
    from.paths.get_mut(path).pace = Some(Pace::new(rate, Timekeeper::Kernel, monotonic()));
    let ends = [from.local(), peer];
    let mut packet = || packet(&arena, free.pop().unwrap(), ends);
    // Ten milliseconds each, of which the kernel has the first two, and waits for as long.
    let mut packets: VecDeque<_> = (0..4).map(|_| packet()).collect();
    from.transmit(&mut packets);
    let sent = from.counters().sent;
    assert!((1..4).contains(&sent), "{sent}");
    let begin = std::time::Instant::now();
    from.pace(peer, None).unwrap();
    from.transmit(&mut VecDeque::from([packet()]));
    assert_eq!(from.counters().sent, sent, "what follows waits");
    while from.counters().sent < 5 {
        let due = from.readiness().unwrap().look.expect("it says when to look");
        std::thread::sleep(due);
        from.complete(&mut Vec::new());
    }
    assert!(begin.elapsed() > Duration::from_millis(5 * sent), "{:?}", begin.elapsed());
    from.complete(&mut Vec::new());
    assert_eq!((from.paced, from.readiness().unwrap().look), (0, None));
    from.transmit(&mut VecDeque::from([packet()]));
    assert_eq!(from.counters().sent, 6);
}

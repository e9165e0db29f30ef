//! Packets to a peer leave at its pace, whether the kernel or the driver keeps the time, and hold up no other peer's.

use super::super::support::{End, datagram, wait};
use super::{FOUR, GEOMETRY, dual_cable, ends, header, local_ends};
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use underpass_link::Link;
use underpass_link::rig::INTERFACE;
use underpass_link::udp::{Config, Timekeeper, Udp};

/// Octets in a second: a packet of a thousand octets lasts 0.2 ms.
const RATE: u64 = 5_000_000;
const PACKETS: u32 = 200;

/// Sends packets together, and says for how long they came, at least as long as they should.
fn paced(from: &mut End<Udp>, to: &mut End<Udp>) -> Duration {
    let there = header(from, to, 0);
    let packets: Vec<_> = (0..PACKETS).map(|it| datagram(there, it, 1000 - 28)).collect();
    let begin = Instant::now();
    from.send_all(&packets);
    assert_eq!(from.left(), 0, "all are taken");
    for packet in &packets {
        let came = wait("a packet", || {
            from.reclaim();
            to.receive()
        });
        assert!(came == *packet, "once, and in order");
    }
    let took = begin.elapsed();
    // But for a message that may go at once, and what may be caught up with.
    let least = Duration::from_nanos(u64::from(PACKETS) * 1000 * 1_000_000_000 / RATE) - Duration::from_millis(2);
    assert!(took >= least, "{took:?}, and not {least:?}");
    println!("{PACKETS} packets in {took:?}, at least {least:?}");
    took
}

#[test]
fn packets_leave_at_the_peers_pace_and_hold_up_no_others() {
    let [mut from, mut to] = local_ends(Ipv4Addr::LOCALHOST.into(), GEOMETRY, &Config::default());
    let [mut other, _] = local_ends(Ipv4Addr::LOCALHOST.into(), GEOMETRY, &Config::default());
    let (there, elsewhere) = (header(&from, &to, 0), header(&from, &other, 0));
    let rate = NonZeroU64::new(RATE);
    assert_eq!(from.link.pace(there.destination, rate).unwrap(), Timekeeper::Link);
    paced(&mut from, &mut to);
    // A second would go by until all have gone; the other peer's go at once.
    from.link.pace(there.destination, NonZeroU64::new(100_000)).unwrap();
    let begin = Instant::now();
    let mixed: Vec<_> = (0..200).map(|it| datagram(if it % 2 == 0 { there } else { elsewhere }, it, 972)).collect();
    from.send_all(&mixed);
    for packet in mixed.iter().skip(1).step_by(2) {
        assert!(other.expect() == *packet);
    }
    let look = from.link.readiness().unwrap().look.expect("packets wait for their time");
    assert!(look <= Duration::from_millis(20), "{look:?}");
    let came = std::iter::from_fn(|| to.receive()).count();
    assert!(came < 90 || begin.elapsed() > Duration::from_millis(500), "{came} have not waited");
    // Without a pace what waits goes at once, before what follows.
    from.link.pace(there.destination, None).unwrap();
    let last = datagram(there, 1000, 972);
    from.send_all(std::slice::from_ref(&last));
    for packet in mixed.iter().step_by(2).skip(came).chain([&last]) {
        assert!(to.expect() == *packet, "in order");
    }
    assert_eq!(from.link.readiness().unwrap().look, None);
    // Packets that wait when the link is closed come back.
    from.link.pace(there.destination, NonZeroU64::new(1)).unwrap();
    from.send_all(&mixed[..20]);
    let free = from.free.len();
    let returned = Box::new(from.link).close();
    assert_eq!((free + returned.lent.len(), returned.given.len()), (256, 256));
    assert!(returned.lent.iter().filter(|it| it.len() == 1000).count() >= 9);
}

#[test]
fn the_kernel_keeps_the_time_where_the_interface_does() {
    let Some(cable) = dual_cable(1500) else { return };
    if let Err(error) = cable.ends[0].set_queueing(INTERFACE, "fq") {
        return println!("SKIPPED: {error}");
    }
    let [mut from, mut to] = ends(&cable, FOUR, &Config::default());
    let there = header(&from, &to, 0);
    assert_eq!(from.link.pace(there.destination, NonZeroU64::new(RATE)).unwrap(), Timekeeper::Kernel);
    paced(&mut from, &mut to);
    // Packets for ten milliseconds are given to the kernel at once, and the link need not be looked at meanwhile.
    let packets: Vec<_> = (0..40).map(|it| datagram(there, it, 972)).collect();
    from.send_all(&packets);
    assert_eq!(from.link.readiness().unwrap().look, None);
    packets.iter().for_each(|packet| assert!(to.expect() == *packet));
    // The interface of the other end has no such queueing discipline.
    let back = header(&to, &from, 0);
    assert_eq!(to.link.pace(back.destination, NonZeroU64::new(RATE)).unwrap(), Timekeeper::Link);
    paced(&mut to, &mut from);
}

//! What the kernel refuses for a while, or for good: nothing is tried without end, and no thread spins for it.
#![allow(unsafe_code, reason = "asks for the number of an interface")]

use super::super::refusals::Refusal;
use super::super::support::{End, datagram, dual_cable, inside, wait};
use super::{GEOMETRY, header, local_ends};
use rustix::event::{PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use underpass_link::Link;
use underpass_link::arena::Arena;
use underpass_link::ip::Header;
use underpass_link::rig::INTERFACE;
use underpass_link::udp::{Config, Udp};

/// Does `what` in a thread in which these system calls fail.
fn refusing<R: Send>(calls: &[(i64, i32)], what: impl FnOnce() -> R + Send) -> R {
    let apply = || {
        calls.iter().for_each(|&(call, errno)| Refusal { call, argument: None, errno }.apply());
        what()
    };
    std::thread::scope(|scope| scope.spawn(apply).join().expect("it does not panic"))
}

/// A pair of ends that know the way.
fn acquainted() -> [End<Udp>; 2] {
    let [mut from, mut to] = local_ends(Ipv4Addr::LOCALHOST.into(), GEOMETRY, &Config::default());
    let packet = datagram(header(&from, &to, 0), 0, 100);
    from.send_all(std::slice::from_ref(&packet));
    assert!(to.expect() == packet);
    [from, to]
}

#[test]
fn packets_are_lost_where_no_way_can_be_asked_for() {
    for (errno, count) in [(libc::EINVAL, 2), (libc::EMSGSIZE, 1), (libc::EMSGSIZE, 2)] {
        let [mut from, to] = acquainted();
        let there = header(&from, &to, 0);
        let packets: Vec<_> = (0..count).map(|it| datagram(there, it, 100)).collect();
        refusing(&[(libc::SYS_sendmmsg, errno), (libc::SYS_connect, libc::EINVAL)], || from.send_all(&packets));
        assert_eq!((from.link.counters().unsent, from.left()), (u64::from(count), 0));
    }
}

#[test]
fn a_paced_link_waits_for_room_and_no_longer() {
    let [mut from, mut to] = acquainted();
    let there = header(&from, &to, 0);
    from.link.pace(there.destination, NonZeroU64::new(1_000_000_000)).unwrap();
    for (errno, waits_for_room) in [(libc::EAGAIN, true), (libc::ENOBUFS, false)] {
        refusing(&[(libc::SYS_sendmmsg, errno)], || from.send_all(&[datagram(there, 1, 100)]));
        let readiness = from.link.readiness().unwrap();
        assert_eq!(readiness.events.contains(PollFlags::OUT), waits_for_room);
        assert!(readiness.look.is_none_or(|look| look > Duration::ZERO), "{:?}", readiness.look);
        // Any call sends it, when there is room.
        from.reclaim();
        assert!(to.expect() == datagram(there, 1, 100));
        let readiness = from.link.readiness().unwrap();
        assert_eq!((readiness.events.contains(PollFlags::OUT), readiness.look), (false, None));
    }
}

/// A socket that is full has no room to describe an error, and without buffers nothing is received that would take it.
#[test]
fn an_error_without_a_description_keeps_no_thread_awake() {
    let (arena, mut free) = Arena::new(GEOMETRY);
    let mut link = Udp::open("127.0.0.1:0".parse().unwrap(), &arena, &Config::default()).unwrap();
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    flood.connect(link.local()).unwrap();
    for octets in [60_000, 1] {
        wait("a datagram that finds no room", || {
            let before = link.counters().lost;
            (0..8).for_each(|_| drop(flood.send(&vec![0; octets])));
            (link.counters().lost == before + 8).then_some(())
        });
    }
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let packet = datagram(Header { source: link.local(), destination: nobody, class: 0 }, 1, 100);
    let mut buffer = free.pop().unwrap();
    arena.fill(&mut buffer, packet.len());
    arena.octets_mut(&mut buffer).copy_from_slice(&packet);
    link.transmit(&mut VecDeque::from([buffer]));
    let (begin, mut wakeups) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(100) {
        let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        poll(&mut [link.readiness().unwrap().poll()], Some(&limit)).unwrap();
        wakeups += 1;
        assert_eq!(link.receive(&mut Vec::new(), 64), 0);
    }
    assert!(wakeups < 20, "{wakeups} times awake in 100 ms");
}

#[test]
fn a_link_is_opened_at_a_link_local_address() {
    let Some(cable) = dual_cable(1500) else { return };
    let namespace = &cable.ends[0];
    let ip = "fe80::1234".parse().unwrap();
    namespace.add_address(INTERFACE, ip, 64).unwrap();
    let name = std::ffi::CString::new(INTERFACE).unwrap();
    let local = inside(namespace, || {
        // SAFETY: a string that outlives the call.
        let interface = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let at = |port| SocketAddr::V6(SocketAddrV6::new("fe80::1234".parse().unwrap(), port, 0, interface));
        let (arena, _) = Arena::new(GEOMETRY);
        let config = Config { shared: true, ..Config::default() };
        // The address may still be looked for on the cable (duplicate address detection).
        let link = wait("the address", || Udp::open(at(0), &arena, &config).ok());
        assert_eq!(link.beside().unwrap().local(), link.local());
        link.local()
    });
    assert_eq!(local.ip(), ip);
}

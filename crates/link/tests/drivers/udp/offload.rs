//! Kernels and devices without segmentation offload: packets go each by itself, and the link says so.
#![allow(unsafe_code, reason = "an option of a socket that makes the kernel refuse segments")]

use super::super::refusals::Refusal;
use super::super::support::{End, datagram, returns_all};
use super::{GEOMETRY, header, local_ends};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::udp::{Config, Udp};

fn carry(from: &mut End<Udp>, to: &mut End<Udp>) {
    let packets: Vec<_> = (0..100).map(|it| datagram(header(from, to, 2), it, 700)).collect();
    from.send_all(&packets);
    packets.iter().for_each(|packet| assert!(to.expect() == *packet));
    let counters = from.link.counters();
    assert_eq!((counters.refused, counters.unsent, from.left()), (0, 0, 0));
}

#[test]
fn an_older_kernel_gets_packets_each_by_itself() {
    for (options, mode) in [
        (&[libc::UDP_SEGMENT][..], "UDP, in segments as they come"),
        (&[libc::UDP_GRO], "UDP, in segments as they go"),
        (&[libc::UDP_SEGMENT, libc::UDP_GRO], "UDP, each by itself"),
    ] {
        let open = || {
            for option in options {
                let (call, argument) = (libc::SYS_setsockopt, Some((2, *option as u64)));
                Refusal { call, argument, errno: libc::ENOPROTOOPT }.apply();
            }
            local_ends(Ipv4Addr::LOCALHOST.into(), GEOMETRY, &Config::default())
        };
        let [mut from, mut to] = std::thread::scope(|scope| scope.spawn(open).join().expect("it does not panic"));
        assert_eq!((from.link.mode().as_str(), from.link.refusal().is_none()), (mode, true));
        carry(&mut from, &mut to);
        carry(&mut to, &mut from);
    }
}

/// The kernel joins more packets to a message than the receiver has buffers for: the others wait for buffers, in order.
#[test]
fn a_message_of_more_packets_than_there_are_buffers_loses_none() {
    let [mut from, _] = local_ends(Ipv4Addr::LOCALHOST.into(), GEOMETRY, &Config::default());
    let few = Geometry { frames: 8, ..GEOMETRY };
    let (arena, free) = Arena::new(few);
    let link = Udp::open("127.0.0.1:0".parse().expect("an address"), &arena, &Config::default());
    let mut to = End::new(arena, free, link.expect("every user may open it"));
    to.listen(8);
    for round in 0..4 {
        let there = header(&from, &to, 2);
        let packets: Vec<_> = (0..50 + round).map(|it| datagram(there, it, 100 + 900 * (round as usize % 2))).collect();
        from.send_all(&packets);
        packets.iter().for_each(|packet| assert!(to.expect() == *packet));
    }
    assert_eq!(to.link.counters().lost, 0);
    returns_all(to, few);
}

/// The kernel refuses segments for a socket without sums, as for a way through a device that cannot make any.
#[test]
fn segments_that_are_refused_go_each_by_itself() {
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let [mut from, mut to] = local_ends(ip, GEOMETRY, &Config::default());
        carry(&mut from, &mut to);
        assert_eq!(from.link.mode(), "UDP, in segments both ways");
        let (socket, on) = (from.link.readiness().expect("a descriptor").descriptor.as_raw_fd(), 1i32);
        // SAFETY: a number, which outlives the call.
        let set = |level, option| unsafe { libc::setsockopt(socket, level, option, (&raw const on).cast(), 4) };
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_NO_CHECK), 0);
        if ip.is_ipv6() {
            const UDP_NO_CHECK6_TX: i32 = 101;
            assert_eq!(set(libc::SOL_UDP, UDP_NO_CHECK6_TX), 0);
            // Without a sum IPv6 takes nothing unless told to.
            const UDP_NO_CHECK6_RX: i32 = 102;
            let socket = to.link.readiness().expect("a descriptor").descriptor.as_raw_fd();
            // SAFETY: as above.
            let result =
                unsafe { libc::setsockopt(socket, libc::SOL_UDP, UDP_NO_CHECK6_RX, (&raw const on).cast(), 4) };
            assert_eq!(result, 0);
        }
        carry(&mut from, &mut to);
        assert_eq!(from.link.mode(), "UDP, in segments as they come");
        let refusal = from.link.refusal().and_then(|it| it.raw_os_error());
        assert!(matches!(refusal, Some(libc::EINVAL | libc::EIO)), "{refusal:?}");
        carry(&mut from, &mut to);
        carry(&mut to, &mut from);
    }
}

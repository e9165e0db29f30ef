//! Datagrams that any host may send to a socket: those that are no packets are dropped, and all others arrive as they
//! were sent.

use super::super::support::{End, datagram, inside, wait};
use super::{FOUR, GEOMETRY, address, dual_cable, ends, header, local_ends};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use underpass_link::Link;
use underpass_link::arena::Geometry;
use underpass_link::filter::Filter;
use underpass_link::ip::Header;
use underpass_link::udp::{Config, Udp};

/// Sends `octets` as segments of `segment` octets.
fn send_segments(socket: &UdpSocket, to: SocketAddr, octets: &[u8], segment: usize) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg_addr};
    set_segment(socket, segment)?;
    let sent =
        sendmsg_addr(socket, &to, &[io::IoSlice::new(octets)], &mut SendAncillaryBuffer::default(), SendFlags::empty());
    set_segment(socket, 0)?;
    assert_eq!(sent?, octets.len());
    Ok(())
}

#[allow(unsafe_code, reason = "an option that rustix does not have")]
fn set_segment(socket: &UdpSocket, segment: usize) -> io::Result<()> {
    let (value, len) = (segment as i32, 4);
    // SAFETY: a number, which outlives the call.
    match unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const value).cast(), len)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sender and data of the next packet.
fn data(end: &mut End<Udp>) -> (SocketAddr, Vec<u8>) {
    let packet = end.expect();
    let (header, data) = Header::parse(&packet).expect("a link gives what its own parser takes");
    assert_eq!(header.destination, end.link.local());
    (header.source, data.to_vec())
}

/// Segments may have any size, which may change from message to message.
#[test]
fn segments_of_any_size_come_each_by_itself() {
    let geometry = Geometry { frames: 512, frame_size: 2048, headroom: 128 };
    let [mut to, _] = local_ends(Ipv4Addr::LOCALHOST.into(), geometry, &Config::default());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = stranger.local_addr().unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    for round in 0..300usize {
        // Again and again the same size, then another.
        let segment = if round % 4 == 0 { random.usize(1..=1892) } else { [1, 1400, 1892, 100][round / 4 % 4] };
        let count = random.usize(1..=(60_000 / segment).min(64));
        let octets: Vec<u8> = (0..count * segment - random.usize(0..segment)).map(|it| (it + round) as u8).collect();
        match count {
            1 => drop(stranger.send_to(&octets, to.link.local()).unwrap()),
            _ => send_segments(&stranger, to.link.local(), &octets, segment).unwrap(),
        }
        for expected in octets.chunks(segment) {
            assert!(data(&mut to) == (from, expected.to_vec()), "round {round}: {count} segments of {segment} octets");
        }
    }
    assert_eq!(to.link.counters().lost, 0);
}

/// Nothing, and more than a buffer has room for. More at once than there are buffers for waits for some.
#[test]
fn what_does_not_fit_is_lost_and_counted() {
    let geometry = Geometry { frames: 64, frame_size: 2048, headroom: 128 };
    let [mut to, _] = local_ends(Ipv4Addr::LOCALHOST.into(), geometry, &Config::default());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = stranger.local_addr().unwrap();
    let at = to.link.local();
    let send = |octets: usize| assert_eq!(stranger.send_to(&vec![7; octets], at).unwrap(), octets);
    for round in 1..=3 {
        send(0);
        send(1893);
        send(65_507);
        send_segments(&stranger, at, &[7; 20_000], 2000).unwrap();
        send(1892);
        assert_eq!(data(&mut to), (from, vec![]));
        assert_eq!(data(&mut to), (from, vec![7; 1892]));
        assert_eq!((to.receive(), to.link.counters().lost), (None, round * 12));
    }
    // 32 buffers.
    send_segments(&stranger, at, &[7; 64 * 100], 100).unwrap();
    (0..64).for_each(|_| assert_eq!(data(&mut to), (from, vec![7; 100])));
    assert_eq!(to.link.counters().lost, 36);
    send(5);
    assert_eq!(data(&mut to), (from, vec![7; 5]));
    let returned = Box::new(to.link).close();
    assert_eq!((to.free.len(), returned.given.len(), returned.lent.len()), (32, 32, 0));
}

/// Frames made by hand, whatever they hold: what comes is what the kernel takes for a datagram of ours, and has a
/// source.
#[test]
fn frames_of_any_contents_bring_no_packet_that_is_none() {
    let Some(cable) = dual_cable(1500) else { return };
    let ip = Filter::EtherType(libc::ETH_P_IP as u16);
    let mut forger = inside(&cable.ends[0], || End::raw(&cable.ends[0], GEOMETRY, ip)).expect("root may open it");
    let [from, mut to] = ends(&cable, FOUR, &Config::default());
    let header = header(&from, &to, 0);
    let seal = |mut packet: Vec<u8>| {
        // The sum of the header, so that IP takes it; UDP's may be left out.
        let sum: u32 = packet[..20].chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[8, 0], &packet].concat()
    };
    let good = datagram(header, 1, 100);
    assert!(forger.send(&seal(good.clone()), 142));
    assert_eq!(to.expect(), good);
    let nobody = Header { source: address("10.9.0.1:0"), ..header };
    assert!(forger.send(&seal(datagram(nobody, 2, 100)), 142));
    let stranger = Header { source: address("10.9.0.77:5"), ..header };
    assert!(forger.send(&seal(datagram(stranger, 3, 100)), 142));
    assert_eq!(to.expect(), datagram(stranger, 3, 100), "who is known, the layer above knows");
    assert_eq!(to.link.counters().lost, 1, "nobody sends from port 0");
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..3000 {
        let mut packet = datagram(header, random.u32(..), random.usize(0..200));
        let (at, whole) = (random.usize(0..packet.len().min(40)), packet.len());
        packet[at] = random.u8(..);
        if random.bool() {
            packet.truncate(random.usize(20..=whole));
        }
        let frame = seal(packet);
        assert!(forger.send(&frame, frame.len()));
        while let Some(packet) = to.receive() {
            let (header, _) = Header::parse(&packet).expect("a packet");
            assert_eq!(header.destination, to.link.local());
        }
    }
    assert!(forger.send(&seal(good.clone()), 142));
    wait("the last", || to.receive().filter(|it| *it == good));
}

//! Packets in pieces arrive as they were, however many of these are copied first, and all buffers come back.

use super::support::{End, cable, datagram, ends, frame, wait};
use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU64;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::bounce::{Bounce, Copying};
use underpass_link::ip::Header;
use underpass_link::loopback::Loopback;
use underpass_link::udp::{self, Udp};
use underpass_link::xdp::{Config, Xdp};
use underpass_link::{Guarantees, Link, Returned};

const GEOMETRY: Geometry = Geometry { frames: 256, frame_size: 4096, headroom: 64 };
const OWN: usize = 64;
/// The beginning of a frame of ours, of any contents.
fn header() -> Vec<u8> {
    frame(0, 2000)[..18].to_vec()
}

fn over(end: End<Xdp>, how: Copying) -> End<Bounce<Xdp>> {
    let End { arena, link, mut free, .. } = end;
    let own = free.split_off(free.len() - OWN);
    let link = Bounce::new(link, &arena, own, how, &header());
    End::new(arena, free, link)
}

#[test]
fn any_number_of_pieces_may_be_copied() {
    let Some(cable) = cable(60_000) else { return };
    let firsts = (0..=4).map(Copying::First);
    for how in firsts.chain([Copying::All, Copying::Adaptive]) {
        let Some([from, mut to]) = ends(&cable, GEOMETRY, &Config::default()) else { return };
        if from.link.pieces() == 1 {
            return println!("SKIPPED: this kernel has no packets in several frames (Linux 6.6)");
        }
        let mut from = over(from, how);
        to.listen(128);
        for number in 0..900 {
            let packet = frame(number, 60 + (number as usize * 67) % 59_000);
            // Up to 40 pieces, of which the link takes 17.
            let piece = packet.len().div_ceil(1 + number as usize % 40).clamp(1500, 4000);
            assert!(from.send(&packet, piece), "buffers come back");
            assert!(to.expect() == packet, "{number}: {} octets in pieces of {piece}, {how:?}", packet.len());
        }
        let (link, frames) = from.link.take_apart();
        let all = frames.len() + from.free.len() + Box::new(link).close().all().len();
        assert_eq!(all, GEOMETRY.frames as usize, "buffers are lost, {how:?}");
    }
}

#[test]
fn dummies_are_as_long_as_what_they_stand_for() {
    let Some(cable) = cable(60_000) else { return };
    let Some([from, mut to]) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    let mut from = over(from, Copying::All);
    to.listen(128);
    // Frames that were used for copies become dummies too.
    for number in 0..200 {
        let packet = frame(number, 20_000);
        assert!(from.send(&packet, 3000) && to.expect() == packet);
    }
    from.reclaim();
    from.link.copy(Copying::Dummy);
    for number in 0..200 {
        let packet = frame(number, 60 + (number as usize * 607) % 40_000);
        assert!(from.send(&packet, 3000), "buffers come back");
        let dummy = to.expect();
        assert_eq!((dummy.len(), &dummy[..18]), (packet.len(), &header()[..]));
        assert!(dummy[18..] != packet[18..]);
    }
}

/// Over a link that takes no pieces, all of them are copied, whatever is asked for.
#[test]
fn a_link_that_takes_no_pieces_gets_none() {
    let geometry = Geometry { headroom: 0, ..GEOMETRY };
    let [(arena, mut free), (other, room)] = [Arena::new(geometry), Arena::new(geometry)];
    let [one, two] = Loopback::copying([&arena, &other], 4096);
    let own = free.split_off(free.len() - OWN);
    let link = Bounce::new(one, &arena, own, Copying::First(0), &header());
    let (mut from, mut to) = (End::new(arena, free, link), End::new(other, room, two));
    to.listen(16);
    for number in 0..1000 {
        let packet = frame(number, 60 + number as usize * 4);
        assert!(from.send(&packet, 300), "buffers come back");
        assert!(to.expect() == packet, "{number}");
    }
}

/// A packet that needs more frames than there are to copy into is refused, and what is behind it goes.
#[test]
fn a_packet_for_which_there_are_too_few_frames_keeps_no_other() {
    let geometry = Geometry { frames: 64, frame_size: 4096, headroom: 0 };
    let [(arena, mut free), (other, room)] = [Arena::new(geometry), Arena::new(geometry)];
    let [one, two] = Loopback::copying([&arena, &other], 4096);
    let own = free.split_off(free.len() - 1);
    let all = free.len();
    // As many frames as the packet has octets for, of a link that takes no pieces.
    let link = Bounce::new(one, &arena, own, Copying::First(0), &header());
    let (mut from, mut to) = (End::new(arena, free, link), End::new(other, room, two));
    to.listen(16);
    assert!(from.send(&frame(0, 6000), 3000) && from.send(&frame(1, 1000), 500));
    assert_eq!(to.expect(), frame(1, 1000));
    from.reclaim();
    assert_eq!((from.link.counters().refused, from.free.len()), (1, all));
}

/// What was copied of a packet comes back as the link says of the copy: refused, and not as if it had been sent.
#[test]
fn a_copy_that_is_refused_is_told() {
    let (arena, mut free) = Arena::new(GEOMETRY);
    let local = "127.0.0.1:0".parse().expect("an address");
    let udp = Udp::open(local, &arena, &udp::Config::default()).expect("every user may open it");
    let there = Header { source: udp.local(), destination: udp.local(), class: 0 };
    let (own, all) = (free.split_off(free.len() - OWN), free.len());
    let mut from = End::new(arena.clone(), free, Bounce::new(udp, &arena, own, Copying::All, &[]));
    // Octets that are no packet, and a packet.
    let (wrong, right) = (vec![7; 600], datagram(there, 1, 600));
    for _ in 0..2 * OWN {
        assert!(from.send(&wrong, 300) && from.send(&right, 400));
        from.reclaim();
        let refused = from.free.iter().filter(|it| it.is_refused()).map(|it| it.len()).sum::<usize>();
        assert_eq!((refused, from.free.len()), (600, all));
        from.free.iter_mut().for_each(|it| it.refuse(false));
    }
    assert_eq!(from.link.counters().refused, 2 * OWN as u64);
    let (link, frames) = from.link.take_apart();
    assert_eq!(frames.len() + from.free.len() + Box::new(link).close().all().len(), GEOMETRY.frames as usize);
}

/// A link may hold packets back until their time, and refuse one then: what was copied of it is refused too.
#[test]
fn a_copy_that_is_refused_later_is_told() {
    let (arena, mut free) = Arena::new(GEOMETRY);
    let local = "127.0.0.1:0".parse().expect("an address");
    let mut udp = Udp::open(local, &arena, &udp::Config::default()).expect("every user may open it");
    let there = Header { source: udp.local(), destination: udp.local(), class: 0 };
    // Five milliseconds for each packet.
    udp.pace(there.destination, NonZeroU64::new(120_000)).expect("a way");
    let (own, all) = (free.split_off(free.len() - OWN), free.len());
    let mut from = End::new(arena.clone(), free, Bounce::new(udp, &arena, own, Copying::All, &[]));
    let foreign = Header { source: "127.0.0.1:9".parse().expect("an address"), ..there };
    // The second has to wait, and does not come from this link.
    for (header, data) in [(there, 600), (foreign, 500), (there, 600)] {
        assert!(from.send(&datagram(header, 1, data), 400));
    }
    wait("a buffer", || {
        from.reclaim();
        (from.free.len() == all).then_some(())
    });
    let refused = from.free.iter().filter(|it| it.is_refused()).map(|it| it.len()).sum::<usize>();
    assert_eq!((refused, from.link.counters().refused), (528, 1));
    let (link, frames) = from.link.take_apart();
    assert_eq!(frames.len() + from.free.len() + Box::new(link).close().all().len(), GEOMETRY.frames as usize);
}

/// A link that holds packets back takes the last one at once, and the others at the third look.
#[derive(Default)]
struct Overtaking {
    looks: u32,
    taken: Vec<Buffer>,
}

impl Link for Overtaking {
    fn guarantees(&self) -> Guarantees {
        Guarantees { delivery: false, integrity: false }
    }

    fn mtu(&self) -> usize {
        GEOMETRY.frame_size as usize
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        self.looks += 1;
        match self.looks {
            1 => self.taken.extend(packets.pop_back()),
            2 => {}
            _ => self.taken.extend(packets.drain(..)),
        }
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        done.append(&mut self.taken);
    }

    fn holds_back(&self) -> bool {
        true
    }

    fn fill(&mut self, _: Buffer) {}

    fn receive(&mut self, _: &mut Vec<Buffer>, _: usize) -> usize {
        0
    }

    fn close(self: Box<Self>) -> Returned {
        Returned::default()
    }
}

/// Packets of a way with a pace are taken before others that wait: their copies come back first.
#[test]
fn a_copy_that_overtakes_another_gives_its_packet_back() {
    let (arena, mut free) = Arena::new(GEOMETRY);
    let own = free.split_off(free.len() - OWN);
    let mut link = Bounce::new(Overtaking::default(), &arena, own, Copying::All, &[]);
    let mut packets = VecDeque::from(free.split_off(free.len() - 2));
    packets.iter_mut().zip([100, 200]).for_each(|(it, len)| arena.fill(it, len));
    link.transmit(&mut packets);
    let mut done = Vec::new();
    for lengths in [&[200][..], &[200, 100]] {
        link.complete(&mut done);
        assert_eq!(done.iter().map(Buffer::len).collect::<Vec<_>>(), lengths);
    }
}

/// A packet whose first piece is empty has nothing to copy there: both pieces come back all the same, each round.
#[test]
fn pieces_without_octets_come_back() {
    let (arena, mut free) = Arena::new(Geometry { frames: 64, frame_size: 4096, headroom: 0 });
    let [here, mut there] = Loopback::passing(&arena, 4096);
    let mut link = Bounce::new(here, &arena, free.split_off(32), Copying::First(1), &[]);
    for round in 0..4 {
        let mut packets: VecDeque<Buffer> = free.drain(..2).collect();
        let sent: BTreeSet<u32> = packets.iter().map(Buffer::frame).collect();
        [0, 100].iter().zip(&mut packets).for_each(|(len, it)| arena.fill(it, *len));
        packets[0].go_on(true);
        link.transmit(&mut packets);
        let (mut came, mut back) = (Vec::new(), Vec::new());
        there.receive(&mut came, 9);
        came.into_iter().for_each(|it| there.fill(it));
        there.watch();
        (0..3).for_each(|_| link.complete(&mut back));
        assert_eq!(back.iter().map(Buffer::frame).collect::<BTreeSet<_>>(), sent, "round {round}");
        free.append(&mut back);
    }
}

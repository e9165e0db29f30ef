//! The full connectionless protocol between two hosts on one link: what is long goes in parts, which come in any order,
//! twice or not at all; what comes may be anything.

use underpass_engine::clnp::Internet;
use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Fate, Indication, Peer, Request, Time};
use underpass_engine::stack::Stack;
use underpass_engine::transport::{Config, Transport};
use underpass_engine::wire::Writer;
use underpass_engine::wire::clnp::{Clnp, Discard, Header, Nsap, Report, Segment};
use underpass_engine::wire::llc::{Llc, Mac};
use underpass_engine::wire::tpdu::{Class, Data, Format, Tpdu, is_intact};
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

const FRAMES: usize = 128;
const POOL: usize = 64;
const MTU: usize = 300;
const SECOND: u64 = 1_000_000_000;

struct Host {
    internet: Internet,
    arena: Arena,
    free: Vec<Buffer>,
    out: Outbox,
    /// What it has sent.
    frames: Vec<Vec<u8>>,
    /// What has come to its user.
    came: Vec<(Peer, Vec<u8>)>,
}

fn nsap(host: u8, selector: u8) -> Nsap {
    Nsap::new(&[0x49, 0, 1, 2, 0, 0, 0, 0, host, selector]).unwrap()
}

fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

impl Host {
    /// With two addresses, from each of which it knows one of the other's.
    fn new(own: u8, other: u8) -> Host {
        Host::over(own, other, 2048, MTU)
    }

    /// With two addresses as in `new`, and frames of so many octets at a link that carries so many.
    fn over(own: u8, other: u8, frame_size: u32, mtu: usize) -> Host {
        let (arena, mut free) = Arena::new(Geometry { frames: FRAMES as u32, frame_size, headroom: 128 });
        let pool = free.split_off(FRAMES - POOL).into_iter().collect();
        let mut internet = Internet::new(arena.clone(), pool, mac(own), mtu);
        for selector in [0, 1] {
            let peer = internet.peer(nsap(own, selector), nsap(other, selector), mac(other));
            assert_eq!(peer, Peer(selector.into()));
        }
        Host { internet, arena, free, out: Outbox::default(), frames: Vec::new(), came: Vec::new() }
    }

    fn send(&mut self, to: Peer, data: &[u8]) -> Vec<Vec<u8>> {
        let mut buffer = self.free.pop().unwrap();
        self.arena.room(&mut buffer)[..data.len()].copy_from_slice(data);
        self.arena.fill(&mut buffer, data.len());
        self.internet.request(Request::Unitdata { to, buffer }, Time(0), &mut self.out);
        self.run(Time(0));
        std::mem::take(&mut self.frames)
    }

    fn receive(&mut self, frame: &[u8], now: Time) {
        let mut buffer = self.free.pop().unwrap();
        let frame = &frame[..frame.len().min(1900)];
        self.arena.room(&mut buffer)[..frame.len()].copy_from_slice(frame);
        self.arena.fill(&mut buffer, frame.len());
        self.internet.indication(Indication::Unitdata { from: Peer(0), buffer }, now, &mut self.out);
        self.run(now);
    }

    fn expire(&mut self, now: Time) {
        self.internet.expire(now, &mut self.out);
        self.run(now);
    }

    fn run(&mut self, now: Time) {
        while let Some(request) = self.out.down.pop_front() {
            match request {
                Request::Unitdata { buffer, .. } => {
                    self.frames.push(self.arena.octets(&buffer).to_vec());
                    self.internet.indication(Indication::complete(buffer, Fate::Sent), now, &mut self.out);
                }
                Request::Return { buffer } => self.free.push(buffer),
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = self.out.up.pop_front() {
            match indication {
                Indication::Unitdata { from, buffer } => {
                    self.came.push((from, self.arena.octets(&buffer).to_vec()));
                    self.free.push(buffer);
                }
                Indication::Complete { buffer, .. } => {
                    assert_eq!(buffer.offset(), 128, "a buffer comes back as it was lent");
                    self.free.push(buffer);
                }
                other => panic!("{other:?}"),
            }
        }
        let (partial, pool) = self.internet.held();
        assert_eq!(self.free.len() + partial + pool, FRAMES, "every buffer is somewhere");
        assert!(partial <= 16 && partial <= self.internet.counters().segments_received as usize);
    }
}

/// A host that has got another card, or another host that has taken over its address.
#[test]
fn a_peer_that_is_told_with_a_new_address_is_reached_there() {
    let mut a = Host::new(1, 2);
    let destination = |frames: Vec<Vec<u8>>| Llc::parse(&frames[0]).unwrap().0.destination;
    assert_eq!(destination(a.send(Peer(1), b"to the old one")), mac(2));
    assert_eq!(a.internet.peer(nsap(1, 1), nsap(2, 1), mac(9)), Peer(1));
    assert_eq!(destination(a.send(Peer(1), b"to the new one")), mac(9));
    assert_eq!(destination(a.send(Peer(0), b"another pair")), mac(2));
}

fn data(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

#[test]
fn what_is_sent_comes_whole_or_not_at_all() {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut a, mut b) = (Host::new(1, 2), Host::new(2, 1));
    let (mut whole, mut lost) = (0, 0);
    let mut now = Time(1);
    for _ in 0..5000 {
        let len = random.usize(1..1900);
        let sent = data(&mut random, len);
        let to = Peer(random.u32(..2));
        let mut frames = a.send(to, &sent);
        assert!(frames.iter().all(|it| it.len() <= MTU));
        let all = frames.len();
        random.shuffle(&mut frames);
        if random.u32(..4) == 0 {
            frames.pop();
        }
        if random.u32(..4) == 0 && !frames.is_empty() {
            frames.insert(random.usize(..frames.len()), frames[0].clone());
        }
        let arrives = frames.iter().collect::<std::collections::HashSet<_>>().len() == all;
        frames.iter().for_each(|it| b.receive(it, now));
        // A packet that is whole comes twice if it was sent twice.
        let came = std::mem::take(&mut b.came);
        assert_eq!(came.is_empty(), !arrives, "{len} octets");
        assert!(came.iter().all(|it| *it == (to, sent.clone())));
        (whole, lost) = (whole + u32::from(arrives), lost + u32::from(!arrives));
        now = now.after(SECOND / 2);
        b.expire(now);
    }
    assert!(whole > 2000 && lost > 500, "{whole} and {lost}");
    let it = b.internet.counters();
    assert!(it.reassembled > 1000 && it.not_reassembled > 500, "{it:?}");
    b.expire(now.after(SECOND));
    assert_eq!(b.internet.held().0, 0);
    assert_eq!(b.internet.due(), None);
}

/// A packet that is longer than a frame's room, since headers were pushed in front of it, at a link that carries almost
/// as much.
#[test]
fn parts_fit_into_frames() {
    const HEADERS: usize = 60;
    let (mut a, mut b) = (Host::over(1, 2, 300, 260), Host::new(2, 1));
    let sent = data(&mut fastrand::Rng::with_seed(1), 172 + HEADERS);
    let mut buffer = a.free.pop().unwrap();
    a.arena.room(&mut buffer).copy_from_slice(&sent[HEADERS..]);
    a.arena.push(&mut buffer, HEADERS).copy_from_slice(&sent[..HEADERS]);
    a.internet.request(Request::Unitdata { to: Peer(0), buffer }, Time(0), &mut a.out);
    let Some(Indication::Complete { buffer, .. }) = a.out.up.pop_front() else { panic!("it was copied") };
    a.free.push(buffer);
    a.run(Time(0));
    assert_eq!(a.frames.len(), 2);
    a.frames.drain(..).for_each(|it| b.receive(&it, Time(1)));
    assert_eq!(b.came.pop(), Some((Peer(0), sent)));
}

/// A frame with this header.
fn frame(header: Header<'_>, data: &[u8]) -> Vec<u8> {
    let clnp = Clnp::Full(Header { len: data.len(), ..header });
    let mut room = vec![0; Llc::LEN + clnp.header_len()];
    let mut to = Writer::new(&mut room);
    let llc = Llc { destination: mac(2), source: mac(1), len: clnp.header_len() + data.len() };
    llc.emit(&mut to).and_then(|()| clnp.emit(&mut to)).unwrap();
    [&room[..], data].concat()
}

fn header() -> Header<'static> {
    Header {
        lifetime: 4,
        reports_errors: true,
        destination: nsap(2, 0),
        source: nsap(1, 0),
        segment: None,
        options: &[],
        len: 0,
    }
}

/// The error report that is in a frame, and the header that it is about.
fn report(frame: &[u8]) -> (Report, Vec<u8>) {
    match Clnp::parse(Llc::parse(frame).unwrap().1).unwrap() {
        (Clnp::Report(it), data) => (it, data.to_vec()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn discarded_packets_are_reported_to_senders_that_ask_for_it() {
    let part = |offset: u16, total: u16, more| Some(Segment { identifier: 9, offset, total: 37 + total, more });
    let cases: [(Header<'_>, Option<Discard>); 9] = [
        (Header { lifetime: 0, ..header() }, Some(Discard::LIFETIME)),
        (Header { destination: nsap(7, 0), ..header() }, Some(Discard::UNKNOWN_DESTINATION)),
        (Header { source: nsap(7, 0), ..header() }, None),
        (Header { options: &[0xc5, 1, 0], ..header() }, Some(Discard::UNSUPPORTED_OPTION)),
        (Header { options: &[0xcc, 9], ..header() }, Some(Discard::SYNTAX)),
        (Header { segment: part(4, 100, true), ..header() }, None),
        (Header { segment: part(0, 4, true), ..header() }, Some(Discard::SYNTAX)),
        (Header { segment: part(0, 5000, true), ..header() }, Some(Discard::CONGESTION)),
        (Header { lifetime: 0, reports_errors: false, ..header() }, None),
    ];
    for (header, wanted) in cases {
        let mut b = Host::new(2, 1);
        let sent = frame(header, &[7; 8]);
        b.receive(&sent, Time(1));
        assert!(b.came.is_empty(), "{header:?}");
        let reports: Vec<_> = b.frames.iter().map(|it| report(it)).collect();
        assert_eq!(reports.first().map(|it| it.0.discard), wanted, "{header:?}");
        if let Some((it, about)) = reports.first() {
            assert_eq!((it.destination, it.source), (header.source, header.destination));
            assert_eq!(*about, sent[Llc::LEN..sent.len() - 8]);
            // Nobody answers it.
            let mut a = Host::new(1, 2);
            a.receive(&b.frames[0], Time(1));
            assert!(a.frames.is_empty() && a.internet.counters().reports_received == 1);
        }
    }
    // Parts of which the rest does not come.
    let mut b = Host::new(2, 1);
    b.receive(&frame(Header { segment: part(0, 100, true), ..header() }, &[7; 8]), Time(1));
    b.expire(Time(SECOND));
    assert!(b.frames.is_empty());
    b.expire(b.internet.due().unwrap());
    assert_eq!(report(&b.frames[0]).0.discard, Discard::REASSEMBLY_LIFETIME);
    // Parts that contradict each other.
    for other in [part(8, 108, true), part(0, 100, true)] {
        let mut b = Host::new(2, 1);
        b.receive(&frame(Header { segment: part(0, 100, true), ..header() }, &[7; 8]), Time(1));
        b.receive(&frame(Header { segment: other, ..header() }, &[7; 16]), Time(1));
        assert_eq!(report(&b.frames[0]).0.discard, Discard::INTERFERENCE);
        assert_eq!(b.internet.held().0, 0);
    }
}

/// Each lost part leaves a packet that is never whole: the newest one comes all the same, and those before it are given
/// up.
#[test]
fn packets_that_lost_a_part_keep_no_other_out() {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut a, mut b) = (Host::new(1, 2), Host::new(2, 1));
    for round in 0..20 {
        let (peer, sent) = (Peer(round % 2), data(&mut random, 500));
        for _ in 0..6 {
            let frames = a.send(peer, &sent);
            b.receive(&frames[0], Time(1));
        }
        a.send(peer, &sent).iter().for_each(|it| b.receive(it, Time(1)));
        assert_eq!(b.came.pop(), Some((peer, sent)), "round {round}");
        assert!(b.internet.held().0 <= 8);
    }
    // The parts now belong to many pairs with few packets each.
    for selector in 2..40 {
        b.internet.peer(nsap(2, selector), nsap(1, selector), mac(1));
        a.internet.peer(nsap(1, selector), nsap(2, selector), mac(2));
        let frames = a.send(Peer(selector.into()), &data(&mut random, 500));
        b.receive(&frames[0], Time(1));
    }
    let sent = data(&mut random, 500);
    a.send(Peer(0), &sent).iter().for_each(|it| b.receive(it, Time(1)));
    assert_eq!(b.came.pop(), Some((Peer(0), sent)));
}

/// So many packets in parts come within a second that identifiers are used again. Parts of two packets are then put
/// together, and the checksum of the TPDU shows that. A transport that is configured by this network's guarantees uses
/// a checksum.
#[test]
fn parts_of_two_packets_are_found_out_by_the_checksum_of_the_tpdu() {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut a, mut b) = (Host::new(1, 2), Host::new(2, 1));
    let config = Config::over(b.internet.guarantees(), 1408);
    assert_eq!((config.class, config.checksum), (Class::Four, true));
    let mut tpdu = || {
        let user_data = data(&mut random, 400);
        let dt = Data { dst_ref: 1, number: 1, eot: true, roa: false, checksum: true, expedited: None };
        let mut room = [0; 500];
        let mut to = Writer::new(&mut room);
        Tpdu::Dt(dt).emit(Format::Extended, &user_data, &mut to).unwrap();
        [&*to.written(), &user_data[..]].concat()
    };
    let (old, new) = (tpdu(), tpdu());
    // One part of the old packet is lost, and the other part of the new one.
    b.receive(&a.send(Peer(0), &old)[0], Time(1));
    // Another pair's have numbers of their own.
    a.send(Peer(1), &old);
    (1..=65_535).for_each(|_| drop(a.send(Peer(0), &new)));
    a.send(Peer(0), &new)[1..].iter().for_each(|it| b.receive(it, Time(SECOND / 2)));
    let (_, mixed) = b.came.pop().expect("it is put together");
    assert!(mixed != old && mixed != new && mixed.len() == new.len());
    assert!(is_intact(&old) && is_intact(&new) && !is_intact(&mixed));
}

/// A link that carries less, and then more, than before.
#[test]
fn what_was_whole_goes_in_parts_over_a_link_that_carries_less() {
    let (mut a, mut b) = (Host::new(1, 2), Host::new(2, 1));
    let sent = data(&mut fastrand::Rng::with_seed(1), 240);
    for (mtu, frames) in [(MTU, 1), (150, 3), (MTU, 1)] {
        a.internet.resize(mtu);
        let all = a.send(Peer(0), &sent);
        assert!(all.len() == frames && all.iter().all(|it| it.len() <= mtu), "{} frames", all.len());
        all.iter().for_each(|it| b.receive(it, Time(1)));
        assert_eq!(b.came.pop(), Some((Peer(0), sent.clone())));
    }
}

/// Any octets, and headers of any values: nothing panics, every buffer is somewhere, and few reports are sent.
#[test]
fn hostile_packets() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut b = Host::new(2, 1);
    let mut sent = 0;
    for number in 0..200_000u64 {
        let now = Time(number * 1000);
        let len = [8, 8, 16, random.usize(..60)][random.usize(..4)];
        let data = data(&mut random, len);
        let options: &[u8] = [&[][..], &[], &[], &[0xcc, 1, 0], &[0xc5, 0], &[1]][random.usize(..6)];
        let selector = random.u8(..2);
        let segment = random.bool().then(|| Segment {
            identifier: random.u16(..6),
            offset: [0, 8, 16, random.u16(..)][random.usize(..4)],
            // The header has 37 octets.
            total: [37 + 24, 37 + 24, 37 + 24, random.u16(..)][random.usize(..4)],
            more: random.u32(..3) > 0,
        });
        let header = Header {
            lifetime: random.u8(..3),
            reports_errors: random.bool(),
            destination: nsap([2, 2, 2, 3][random.usize(..4)], selector),
            source: nsap([1, 1, 1, 4][random.usize(..4)], selector),
            segment,
            options,
            len: 0,
        };
        let mut frame = frame(header, &data);
        match random.u32(..4) {
            0 => {
                let at = random.usize(..frame.len());
                frame[at] ^= random.u8(1..);
            }
            1 => frame.truncate(random.usize(..frame.len())),
            2 => frame.splice(Llc::LEN.., data).for_each(drop),
            _ => {}
        }
        b.receive(&frame, now);
        b.expire(now);
        sent += b.frames.drain(..).count();
        b.came.clear();
    }
    // In 0.2 s: 32 at once, and one each millisecond.
    let it = b.internet.counters();
    assert!((100..=232).contains(&sent), "{sent}");
    assert!(it.reports_left_out > 1000 && it.malformed > 1000 && it.corrupt > 1000 && it.unknown > 1000, "{it:?}");
    assert!(it.expired > 1000 && it.not_reassembled > 1000 && it.reassembled > 10, "{it:?}");
    b.expire(Time(10 * SECOND));
    assert_eq!(b.internet.held().0, 0);
}

/// Transport on it: TPDUs that are too long for the link arrive, and each pair of addresses has connections of its own.
#[test]
fn transport_over_segments() {
    let (tags, tsdus) = ([0u32, 1], 200u32);
    let frames = || Arena::new(Geometry { frames: 256, frame_size: 2048, headroom: 128 });
    let [(arena_a, mut free), (arena_b, receive)] = [frames(), frames()];
    let ends = Loopback::copying([&arena_a, &arena_b], 600);
    let make = |mut link: Loopback, own, other, arena: &Arena, all: &mut Vec<Buffer>| {
        let mut pool = || all.split_off(all.len() - 32).into_iter().collect();
        let mut internet = Internet::new(arena.clone(), pool(), mac(own), 600);
        for tag in tags {
            assert_eq!(internet.peer(nsap(own, tag as u8), nsap(other, tag as u8), mac(other)), Peer(tag));
        }
        let config = Config::over(internet.guarantees(), 1408);
        let transport = Transport::new(config, arena.clone(), pool(), Time(0));
        all.split_off(all.len() - 64).into_iter().for_each(|it| link.fill(it));
        Stack::new(link, vec![Box::new(internet), Box::new(transport)])
    };
    let mut receive = receive;
    let [link_a, link_b] = ends;
    let mut a = make(link_a, 1, 2, &arena_a, &mut free);
    let mut b = make(link_b, 2, 1, &arena_b, &mut receive);
    for tag in tags {
        a.request(Request::Connect { tag, to: Peer(tag), details: Box::default() }, Time(0));
    }
    let (mut open, mut came) = ([None; 2], [0u32; 2]);
    let (mut sent, mut from) = ([0u32; 2], std::collections::HashMap::new());
    for now in (0..10 * SECOND).step_by(20_000).map(Time) {
        a.poll(now);
        b.poll(now);
        while let Some(indication) = b.indication() {
            match indication {
                Indication::Connect { cep, from: peer, .. } => {
                    from.insert(cep, peer.0 as usize);
                    b.request(Request::Accept { cep, user_data: Vec::new() }, now);
                }
                Indication::Data { cep, buffer, end } => {
                    let peer = from[&cep];
                    let octets = arena_b.octets(&buffer);
                    assert!(
                        end && octets.len() == 1396 && octets.iter().all(|&it| it == (came[peer] + peer as u32) as u8)
                    );
                    came[peer] += 1;
                    b.request(Request::Return { buffer }, now);
                }
                _ => {}
            }
        }
        while let Some(indication) = a.indication() {
            match indication {
                Indication::Confirm { tag, cep, .. } => open[tag as usize] = Some(cep),
                Indication::Complete { buffer, .. } => free.push(buffer),
                _ => {}
            }
        }
        for at in 0..2 {
            let Some(cep) = open[at] else { continue };
            if sent[at] < tsdus
                && let Some(mut buffer) = free.pop()
            {
                arena_a.room(&mut buffer)[..1396].fill((sent[at] + at as u32) as u8);
                arena_a.fill(&mut buffer, 1396);
                sent[at] += 1;
                a.request(Request::Data { cep, buffer, end: true }, now);
            }
        }
        if came == [tsdus; 2] {
            return;
        }
    }
    panic!("{came:?} of {sent:?}");
}

//! Class 4 over UDP sockets: a stream of some megabytes arrives as it was sent, while packets are lost and while the link is
//! replaced under the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use underpass_engine::datagram::Datagram;
use underpass_engine::layer::Layer;
use underpass_engine::service::{Cep, Details, Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::transport::Config;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::faults::{Faults, Odds};
use underpass_link::udp::{self, Udp};

/// Frames, of which so many receive; others are copied into, where packets are lost.
const GEOMETRY: Geometry = Geometry { frames: 640, frame_size: 2048, headroom: 128 };
const RECEIVE: usize = 256;
const POOL: usize = 64;
const COPIES: usize = 64;
/// Octets behind which something may happen to the ends.
const STEP: usize = 256 << 10;
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(120);

type Host = Stack<Box<dyn Link>>;

/// An end: its stack, its memory, and frames of its user.
struct End {
    host: Host,
    arena: Arena,
    free: Vec<Buffer>,
    local: SocketAddr,
}

fn end(ip: IpAddr, loss: f64) -> End {
    let (arena, mut free) = Arena::new(GEOMETRY);
    let mut some = |count: usize| free.split_off(free.len() - count);
    let link = Udp::open(SocketAddr::new(ip, 0), &arena, &udp::Config::default()).expect("every user may open it");
    let (local, guarantees) = (link.local(), link.guarantees());
    let link: Box<dyn Link> = match loss {
        0.0 => Box::new(link),
        _ => Box::new(Faults::new(link, &arena, some(COPIES), Odds { loss, reordering: loss, ..Odds::default() }, 7)),
    };
    let network = Datagram::new(arena.clone(), local);
    // On loopback a packet is as long as a frame has room for.
    let most = 1500 - network.headers();
    let config = Config { receive: RECEIVE as u32, credit: 64, ..Config::over(guarantees, most) };
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(network)];
    layers.append(&mut stack::transport(config, 0, &arena, some(POOL), Time(0)));
    let mut host = Stack::new(link, layers);
    some(RECEIVE).into_iter().for_each(|buffer| host.link_mut().fill(buffer));
    End { host, arena, free, local }
}

fn introduce(to: &mut End, whom: SocketAddr) -> Peer {
    to.host.layer::<Datagram>().expect("the network").peer(whom).expect("of the same version")
}

/// Sends so many octets from one end to the other, which must be what they were. `between` is called behind each [`STEP`] of them.
fn stream(mut from: End, mut to: End, octets: usize, mut between: impl FnMut(&mut End, &mut End, Time)) {
    let begin = Instant::now();
    let peer = introduce(&mut from, to.local);
    introduce(&mut to, from.local);
    let now = || Time(begin.elapsed().as_nanos() as u64);
    from.host.request(Request::Connect { tag: 1, to: peer, details: Box::new(Details::default()) }, now());
    let all = from.free.len();
    // Each side has the octets from the same seed.
    let (mut random, mut expected) = (fastrand::Rng::with_seed(5), fastrand::Rng::with_seed(5));
    let (mut open, mut sent, mut came, mut steps): (Option<(Cep, usize)>, usize, usize, usize) = (None, 0, 0, 0);
    while came < octets || from.free.len() < all {
        assert!(begin.elapsed() < PATIENCE, "{came} of {octets} octets, {} of {all} buffers", from.free.len());
        if came / STEP > steps {
            steps += 1;
            between(&mut from, &mut to, now());
        }
        from.host.poll(now());
        to.host.poll(now());
        while let Some(indication) = to.host.indication() {
            match indication {
                Indication::Connect { cep, .. } => {
                    to.host.request(Request::Accept { cep, user_data: Vec::new() }, now());
                }
                Indication::Data { buffer, .. } => {
                    assert!(to.arena.octets(&buffer).iter().all(|it| *it == expected.u8(..)), "behind {came} octets");
                    came += buffer.len();
                    to.host.request(Request::Return { buffer }, now());
                }
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = from.host.indication() {
            match indication {
                Indication::Confirm { cep, most, .. } => open = Some((cep, most as usize)),
                Indication::Complete { buffer, .. } => from.free.push(buffer),
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let Some((cep, most)) = open else { continue };
        let mut requests = Vec::new();
        while sent < octets
            && let Some(mut buffer) = from.free.pop()
        {
            let len = most.min(octets - sent);
            from.arena.room(&mut buffer)[..len].fill_with(|| random.u8(..));
            from.arena.fill(&mut buffer, len);
            sent += len;
            requests.push(Request::Data { cep, buffer, end: sent == octets });
        }
        from.host.requests(requests, now());
    }
    assert_eq!((sent, came), (octets, octets));
    println!("{octets} octets in {:?}", begin.elapsed());
}

const LOCAL: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

#[test]
fn a_stream_arrives_as_it_was_sent() {
    for ip in LOCAL {
        stream(end(ip, 0.0), end(ip, 0.0), 8 << 20, |_, _, _| {});
    }
}

#[test]
fn a_stream_arrives_though_packets_are_lost_and_overtaken() {
    for ip in LOCAL {
        stream(end(ip, 0.02), end(ip, 0.02), 2 << 20, |_, _, _| {});
    }
}

/// Another socket takes the place of the old one at the same port, whatever is on its way.
#[test]
fn a_link_is_replaced_under_a_living_connection() {
    let mut replaced = 0;
    stream(end(LOCAL[0], 0.0), end(LOCAL[0], 0.0), 4 << 20, |from, to, now| {
        for end in [from, to] {
            // The port is free once the old link is closed, so that one in memory stands in for it meanwhile.
            let nothing: Box<dyn Link> = Box::new(underpass_link::loopback::Loopback::cable(&end.arena, 1500));
            end.host.replace(nothing, now);
            let again = Udp::open(end.local, &end.arena, &udp::Config::default()).expect("the port is free again");
            end.host.replace(Box::new(again), now);
            replaced += 1;
        }
    });
    assert!(replaced >= 16, "{replaced}");
}
